"""Tests of runs without labels, whose checkpoints are chosen by agreement with the teacher."""

from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from distill.core.contracts import IGNORED, Scores
from distill.core.errors import OptionError, UserError
from distill.data.splits import TEACHER_CLASS
from distill.kinds import Classification
from distill.kinds.classification import OneClass
from tests.conftest import sentences
from tests.jobs.conftest import Command, command
from tests.teachers.test_zero_shot import WORDS, options, read_run, save_inference

assert command


@pytest.fixture
def inference(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    return save_inference(tmp_path / "inference", tokenizer)


def write_texts(root: Path, *labelled: str) -> Path:
    """Writes three splits, of which these have labels."""
    directory = root / "texts"
    directory.mkdir()
    for name, count in (("train", 64), ("dev", 24), ("test", 24)):
        rows = [f"{text}\t{WORDS[label]}" if name in labelled else text for text, label in sentences(count)]
        header = "sentence\tlabel" if name in labelled else "sentence"
        (directory / f"{name}.tsv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return directory


def test_agreement_is_with_the_teacher_and_other_metrics_are_of_the_labels_alone() -> None:
    """Classes 0, 1, 1 against the teacher's 0, 0, 1, and the labels 1, 0 and none, whose label is the teacher's."""
    logits = np.array([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
    scores = Scores({"logits": logits, TEACHER_CLASS: np.array([0, 0, IGNORED])}, np.array([0, 0, 1]), np.arange(3))
    scoring = OneClass(("agreement", "accuracy"), classes=WORDS)
    assert scoring.metrics(scores) == {"agreement": pytest.approx(2 / 3), "accuracy": 0.5}
    assert scoring.example_metric(scores).tolist() == [1.0, 0.0, 1.0]  # type: ignore[union-attr]
    unlabelled = Scores({"logits": logits, TEACHER_CLASS: np.full(3, IGNORED)}, np.array([0, 1, 0]), np.arange(3))
    assert scoring.metrics(unlabelled) == {"agreement": pytest.approx(2 / 3)}


def test_rows_without_labels_stay_in_train_and_dev(tmp_path: Path) -> None:
    task = Classification(text="sentence", label=None, labels=WORDS, data_dir=write_texts(tmp_path), unlabelled=None)
    data = task.read(tmp_path)
    assert data.sizes() == {"train": 64, "dev": 24}
    assert set(data.splits["train"].labels) == {IGNORED}
    assert (data.labels, data.scoring.names, data.terms) == (WORDS, ("agreement", "accuracy", "f1"), {})
    taught = data.with_teacher({"dev": np.ones(24, dtype=np.int64)})
    assert set(taught.splits["dev"].labels) == {1}
    assert set(taught.splits["dev"][TEACHER_CLASS]) == {IGNORED}


def test_one_file_of_texts_is_split(tmp_path: Path) -> None:
    path = tmp_path / "texts.tsv"
    path.write_text("\n".join(["sentence", *(text for text, _ in sentences(40))]) + "\n", encoding="utf-8")
    data = Classification(text="sentence", label=None, labels=WORDS, data_dir=path).read(tmp_path)
    assert data.sizes() == {"train": 36, "dev": 4}


def test_a_student_is_chosen_without_one_label(inference: Path, tmp_path: Path, command: Command) -> None:
    data = write_texts(tmp_path, "test")
    code, output, error = command(*options(tmp_path, inference, f"task.data_dir={data}"))
    assert code == 0, error
    record = read_run(tmp_path)
    assert record["task"]["metric"] == "agreement"
    assert record["teacher"]["metrics"]["agreement"] == 1.0
    assert set(record["student"]["metrics"]) == {
        "agreement", "test/agreement", "test/accuracy", "test/f1",
    }  # fmt: skip
    assert record["baseline_choice"]["reason"] == "the training texts have no labels"
    assert "agreement" in output


@pytest.mark.slow
def test_labels_of_dev_only_measure(inference: Path, tmp_path: Path, command: Command) -> None:
    given = options(tmp_path, inference, f"task.data_dir={write_texts(tmp_path, 'dev')}", "export.enabled=false")
    code, _, error = command(*given)
    assert code == 0, error
    record = read_run(tmp_path)
    assert record["task"]["metric"] == "agreement"
    assert set(record["student"]["metrics"]) == {"agreement", "accuracy", "f1"}
    assert record["teacher"]["metrics"]["agreement"] == 1.0


def test_a_dry_run_asks_the_teacher_nothing(inference: Path, tmp_path: Path, command: Command) -> None:
    given = options(tmp_path, inference, f"task.data_dir={write_texts(tmp_path)}", "task.label=null", "dry_run=true")
    code, output, error = command(*given)
    assert code == 0, error
    assert "computes the outputs" not in output


def test_classes_must_be_named_and_known_to_the_teacher(
    inference: Path, encoder_dir: Path, tmp_path: Path, command: Command
) -> None:
    data = write_texts(tmp_path)
    with pytest.raises(UserError, match=r"has no row with a label: name the classes in task.labels=\[...\]"):
        Classification(text="sentence", label=None, data_dir=data).read(tmp_path)
    with pytest.raises(UserError, match="task.label=null if no text has a label"):
        Classification(text="sentence", labels=WORDS, data_dir=data).read(tmp_path)
    with pytest.raises(OptionError, match="expected the column of the labels, because task.multi_label=true"):
        Classification(text="sentence", label=None, multi_label=True, labels=WORDS, data_dir=data)
    with pytest.raises(OptionError, match="class_weights=balanced, expected null, because train has no labels"):
        Classification(text="sentence", label=None, labels=WORDS, data_dir=data, class_weights="balanced").read(
            tmp_path
        )
    code, _, error = command(
        "+teacher=pretrained", f"teacher.path={encoder_dir}", "+student=distilbert", "task=classification",
        "task.text=[sentence]", "task.label=null", "task.labels=[dull,lovely]", f"task.data_dir={data}",
        "task.max_length=40", f"cache_dir={tmp_path / 'cache'}",
    )  # fmt: skip
    assert code == 2
    assert f"train has no labels, and teacher {encoder_dir} must be fine-tuned on some because its head is not" in error


@pytest.mark.slow
def test_a_model_that_knows_the_classes_needs_no_labels_either(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, command: Command
) -> None:
    known = save_inference(tmp_path / "known", tokenizer, WORDS)
    code, _, error = command(
        "+teacher=pretrained", f"teacher.path={known}", "+student=distilbert", "task=classification",
        "task.text=[sentence]", "task.label=null", "task.labels=[dull,lovely]",
        f"task.data_dir={write_texts(tmp_path)}", "task.max_length=40", "trainer.max_epochs=1",
        "trainer.batch_size=16", "trainer.precision=32-true", "export.enabled=false", "teacher.accept_weak=true",
        f"cache_dir={tmp_path / 'cache'}", f"output_dir={tmp_path / 'runs'}",
    )  # fmt: skip
    assert code == 0, error
    record = read_run(tmp_path)
    assert (record["teacher"]["origin"], record["teacher"]["metrics"]) == ("as it is", {"agreement": 1.0})
