"""Tests of teachers that know the classes by their names alone, and of runs without labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill.builtin.teachers.zero_shot import ZeroShot, _order_words
from transformers import BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import IGNORED, Scores
from distill.core.errors import OptionError, UserError
from distill.data.splits import TEACHER_CLASS
from distill.edge.decoder import softmax
from distill.kinds import Classification, Regression
from distill.kinds.classification import OneClass
from distill.models.wrappers import EntailmentLogits, LabelledEncoder, tokenize_hypotheses
from distill.teachers.stages import best_temperature
from tests.conftest import sentences
from tests.jobs.conftest import Command, command
from tests.teachers.conftest import WORDS, SaveInference, read_run, teacher_options, write_texts

assert command


def options(root: Path, inference: Path, *further: str, is_timed: bool = False) -> list[str]:
    teacher = ("+teacher=zero_shot", f"teacher.path={inference}", "teacher.labels=[lovely,dull]")
    return [*teacher_options(root, *teacher, is_timed=is_timed), *further]


def load(directory: Path) -> PreTrainedModel:
    return BertForSequenceClassification.from_pretrained(directory).eval()


@pytest.mark.parametrize(("side", "independent"), [("left", False), ("right", True)])
@torch.no_grad()
def test_logits_are_those_of_the_pairs_of_text_and_hypothesis(
    inference: Path, tokenizer: PreTrainedTokenizerBase, side: str, independent: bool
) -> None:
    model, texts = load(inference), ["a dull film", "warm and clever and funny acting", "a bore"]
    hypotheses = [f"this film is {word} ." for word in (*WORDS, "funny and warm")]
    tokens = tokenize_hypotheses(hypotheses, model, tokenizer, max_length=40)
    logits = EntailmentLogits(model, tokens, independent=independent, padding=0)
    batch = tokenizer(texts, padding=True, padding_side=side, return_tensors="pt")
    expected = []
    for hypothesis in hypotheses:
        pairs = tokenizer(texts, [hypothesis] * 3, padding=True, return_tensors="pt")
        scores = model(**pairs).logits
        expected.append(scores[:, 1] - scores[:, 0] if independent else scores[:, 1])
    torch.testing.assert_close(logits(batch["input_ids"], batch["attention_mask"]), torch.stack(expected, dim=1))


@torch.no_grad()
def test_a_model_without_contradiction_compares_entailment_with_all_else(
    save_inference: SaveInference, tokenizer: PreTrainedTokenizerBase
) -> None:
    model = load(save_inference(("entailment", "not_entailment")))
    tokens = tokenize_hypotheses(["dull .", "lovely ."], model, tokenizer, max_length=40)
    batch, pair = tokenizer("a film", return_tensors="pt"), tokenizer("a film", "lovely .", return_tensors="pt")
    logits = EntailmentLogits(model, tokens, independent=True, padding=0)(
        **{k: batch[k] for k in ("input_ids", "attention_mask")}
    )
    scores = model(**pair).logits
    torch.testing.assert_close(logits[:, 1], scores[:, 0] - scores[:, 1])


@torch.no_grad()
def test_hidden_states_are_those_of_the_text_alone(inference: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    model = load(inference)
    tokens = tokenize_hypotheses(["dull .", "lovely ."], model, tokenizer, max_length=40)
    labels = EntailmentLogits(model, tokens, independent=False, padding=0)
    batch = tokenizer(["a dull film"], return_tensors="pt")
    output = LabelledEncoder(model, labels)(**batch, output_hidden_states=True)
    expected = model.bert(**batch, output_hidden_states=True).hidden_states
    assert len(output.hidden_states) == 3
    torch.testing.assert_close(output.hidden_states[-1], expected[-1])
    assert output.logits.shape == (1, 2)


def test_the_temperature_is_that_of_the_least_cross_entropy() -> None:
    """Logits of (6, 0) with a right class three times of four: the odds of 3 are those of 6 / 5.46."""
    logits = torch.tensor([[6.0, 0.0]]).repeat(400, 1)
    labels = torch.tensor([0, 0, 0, 1] * 100)
    assert best_temperature(logits, labels) == pytest.approx(6 / np.log(3), rel=0.03)
    several = torch.stack([labels == 0, labels == 1], dim=1).float()
    assert best_temperature(torch.tensor([[6.0, -6.0]]).repeat(400, 1), several) == pytest.approx(
        6 / np.log(3), rel=0.03
    )


def test_a_student_learns_from_the_names_of_the_classes(
    inference: Path, films: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase, command: Command
) -> None:
    """The student learns the probabilities, of which the hypothesis of each class has given one."""
    further = (f"task.data_dir={films}", "objective=distilbert")
    code, output, error = command(*options(tmp_path, inference, *further, is_timed=True))
    assert code == 0, error
    assert output.count("computes the outputs for 64 examples") == 1
    record = read_run(tmp_path)
    teacher = record["teacher"]
    assert {row["model"] for row in record["benchmark"]} == {"student"}
    assert (teacher["origin"], teacher["resolved"]) == ("zero-shot", str(inference))
    model, texts = load(inference), [text for text, _ in sentences(24)]
    logits = []
    for word in WORDS:
        pairs = tokenizer(texts, [f"This text is about {word}."] * 24, padding=True, return_tensors="pt")
        with torch.no_grad():
            logits.append(model(**pairs).logits[:, 1].numpy())
    expected = np.mean(softmax(np.stack(logits, axis=1)).argmax(axis=1) == [label for _, label in sentences(24)])
    assert teacher["metrics"]["accuracy"] == pytest.approx(expected)


MISTAKES: dict[str, tuple[list[str], str]] = {
    "texts that are too long with a hypothesis": (
        ["task.max_length=79"], "task.max_length=79 and a hypothesis of ",
    ),
    "attention": (
        ["objective=minilm"],
        "reads attention vectors, and the teacher zero_shot gives class probabilities, with the hidden states",
    ),
    "no student": (["job=finetune"], "job=finetune trains a model, and teacher zero_shot has class"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_end_before_anything_is_trained(
    inference: Path, films: Path, tmp_path: Path, command: Command, mistake: str
) -> None:
    further, message = MISTAKES[mistake]
    given = options(tmp_path, inference, f"task.data_dir={films}", *further)
    if mistake == "no student":
        given = [*further, *given[:3], f"task.data_dir={films}"]
    code, _, error = command(*given)
    assert code == 2, error
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_a_class_has_words_of_its_own_in_the_hypothesis() -> None:
    teacher = ZeroShot(name="zero_shot", path=".", labels={"1": "sport", "0": "politics"})
    assert teacher.words == {"1": "sport", "0": "politics"}
    wrong: list[Any] = ["sport", ["dull"], ["dull", "Dull"], {"dull": "film", "lovely": "film"}]
    for labels in wrong:
        with pytest.raises(OptionError, match=r"^got teacher.labels=.*, expected at least two labels, each once, as"):
            ZeroShot(name="zero_shot", path=".", labels=labels)
    sentence = r"^got teacher.hypothesis=About sport., expected a sentence with \{\} once, in the place of the label"
    with pytest.raises(OptionError, match=sentence):
        ZeroShot(name="zero_shot", path=".", labels=["sport", "politics"], hypothesis="About sport.")
    with pytest.raises(UserError, match="gives probabilities of classes of texts, and task regression is regression:"):
        teacher.check(Regression(text="text"))
    with pytest.raises(UserError, match="compares a text with a hypothesis, and an example of task classification is"):
        teacher.check(Classification(text=["one", "other"]))
    with pytest.raises(UserError, match="teacher zero_shot has no weights: give teacher.path=DIR"):
        ZeroShot(name="zero_shot", labels=["sport", "politics"])


def test_words_are_in_the_order_of_the_classes_of_the_task() -> None:
    assert _order_words({"Lovely": "fun", "dull": "a bore"}, ["dull", "lovely"]) == ["a bore", "fun"]
    message = "has dull, funny, and the classes of the task are dull, lovely: name these in teacher.labels"
    with pytest.raises(UserError, match=message):
        _order_words({"dull": "dull", "funny": "funny"}, WORDS)


def test_a_model_of_another_task_is_refused(save_inference: SaveInference) -> None:
    teacher = ZeroShot(name="zero_shot", path=str(save_inference(("LABEL_0", "LABEL_1"))), labels=list(WORDS))
    with pytest.raises(
        UserError, match="has the labels LABEL_0, LABEL_1, expected those of natural language inference"
    ):
        teacher._load_inference()


# Without labels, checkpoints are chosen by agreement with the teacher.


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
    code, output, error = command(*options(tmp_path, inference, f"task.data_dir={write_texts(tmp_path, 'test')}"))
    assert code == 0, error
    record = read_run(tmp_path)
    assert (record["task"]["metric"], record["teacher"]["metrics"]["agreement"]) == ("agreement", 1.0)
    assert set(record["student"]["metrics"]) == {"agreement", "test/agreement", "test/accuracy", "test/f1"}
    assert record["baseline_choice"]["reason"] == "the training texts have no labels"
    assert "agreement" in output


def test_a_dry_run_asks_the_teacher_nothing(inference: Path, tmp_path: Path, command: Command) -> None:
    given = options(tmp_path, inference, f"task.data_dir={write_texts(tmp_path)}", "task.label=null", "dry_run=true")
    code, output, error = command(*given)
    assert code == 0, error
    assert "computes the outputs" not in output


def test_classes_must_be_named_and_known_to_the_teacher(encoder_dir: Path, tmp_path: Path, command: Command) -> None:
    data = write_texts(tmp_path)
    with pytest.raises(UserError, match=r"has no row with a label: name the classes in task.labels=\[...\]"):
        Classification(text="sentence", label=None, data_dir=data).read(tmp_path)
    with pytest.raises(OptionError, match="expected the column of the labels, because task.multi_label=true"):
        Classification(text="sentence", label=None, multi_label=True, labels=WORDS, data_dir=data)
    with pytest.raises(OptionError, match="class_weights=balanced, expected null, because train has no labels"):
        Classification(text="sentence", label=None, labels=WORDS, data_dir=data, class_weights="balanced").read(
            tmp_path
        )
    given = teacher_options(tmp_path, "+teacher=pretrained", f"teacher.path={encoder_dir}")
    code, _, error = command(*given, "task.label=null", "task.labels=[dull,lovely]", f"task.data_dir={data}")
    assert code == 2
    assert f"train has no labels, and teacher {encoder_dir} must be fine-tuned on some because its head is not" in error
