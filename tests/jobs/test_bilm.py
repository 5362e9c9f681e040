"""Tests of whole jobs of a bidirectional language model at toy size: pre-training, features, students and refusals."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining

from distill.edge.bundle import Bundle
from distill.teachers.language_modeling import TextTraining
from distill.training.hyperparameters import TrainerSettings
from tests.conftest import write_corpus
from tests.jobs.runs import Run, capture_runs, read_record, run_command, stop_at

pytestmark = pytest.mark.slow
TRAINER = (
    "trainer.batch_size=8", "trainer.learning_rate=1e-2", "trainer.precision=32-true", "trainer.accelerator=cpu",
    "trainer.checkpoint_steps=2",
)  # fmt: skip
TEXT = ("task=bilm", "task.max_length=32", "task.dev_fraction=0.2", *TRAINER)
PRETRAIN = ("job=pretrain", "+teacher=bilm", "teacher.vocabulary=300", "teacher.hidden_dim=16", *TEXT)
CITIES = ("boston", "denver", "dallas", "chicago")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, tagged sentences and a cache."""
    root = tmp_path_factory.mktemp("work")
    (root / "corpus").mkdir()
    write_corpus(root / "corpus")
    (root / "tags").mkdir()
    for name, count in (("train", 64), ("dev", 16)):
        sentences = [f"to O\n{CITIES[number % 4]} B-city\n" + "now O\n" * (number % 3) for number in range(count)]
        (root / "tags" / f"{name}.conll").write_text("\n".join(sentences))
    return root


def run_options(work: Path, output: Path, *options: str) -> int:
    """Runs the command in this process."""
    common = [f"cache_dir={work / 'cache'}", f"output_dir={output}"]
    if "task=bilm" in options:
        common.append(f"task.data_dir={work / 'corpus'}")
    elif not options[0].startswith("resume="):
        common += ["task=atis_slots", f"task.data_dir={work / 'tags'}", *TRAINER, "benchmark.enabled=false"]
    else:
        common = []
    return run_command(*common, *options)


@pytest.fixture
def run(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command; returns its exit code, its output and the run's directory."""
    return capture_runs(partial(run_options, work), tmp_path, capsys)


@pytest.fixture(scope="module")
def pretrained(work: Path) -> Path:
    """The run of a model of two layers from random weights."""
    assert run_options(work, work / "teachers", *PRETRAIN, "trainer.max_epochs=4") == 0
    [path] = (work / "teachers").rglob("run.json")
    return path.parent


def test_a_model_from_random_weights_learns_both_directions(pretrained: Path) -> None:
    record = read_record(pretrained)
    assert record["objective"]["name"] == "bidirectional_language_modelling"
    metrics = record["teacher"]["metrics"]
    assert metrics["perplexity"] == pytest.approx(float(torch.tensor(metrics["loss"]).exp()), rel=1e-4)
    for name in ("perplexity_forwards", "perplexity_backwards"):
        assert metrics[name] < 60, name  # Random weights have about the number of tokens, 150.
    model = AutoModelForPreTraining.from_pretrained(pretrained / "teacher" / "model")
    assert model.config.num_hidden_layers == 2


def test_random_weights_without_attention_have_a_learning_rate_of_their_own(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = []
    prepare = TextTraining.prepare

    def record(*arguments: Any, settings: TrainerSettings, **options: Any) -> TextTraining:
        rates.append(settings.learning_rate)
        return prepare(*arguments, settings=settings, **options)

    monkeypatch.setattr(TextTraining, "prepare", record)
    for given in ("auto", "1e-4"):
        assert run(*PRETRAIN, f"trainer.learning_rate={given}", "dry_run=true")[0] == 0
    assert rates == [3e-3, 1e-4]


def test_a_resumed_training_ends_with_the_weights_of_an_uninterrupted_one(run: Run, tmp_path: Path) -> None:
    options = (*PRETRAIN, "trainer.max_epochs=null", "trainer.max_steps=8")
    code, text, whole = run(*options, output="whole")
    assert code == 0, text
    with pytest.MonkeyPatch.context() as patch:
        stop_at(5, patch)
        with pytest.raises(RuntimeError, match="stopped"):
            run(*options, output="stopped")
    [record] = (tmp_path / "stopped").rglob("run.json")
    code, text, _ = run(f"resume={record.parent}")
    assert code == 0, text
    weights = [load_file(folder / "teacher/model/model.safetensors") for folder in (whole, record.parent)]
    assert all(tensor.equal(weights[1][name]) for name, tensor in weights[0].items())


def test_a_smaller_model_learns_from_a_trained_one(run: Run, pretrained: Path) -> None:
    code, text, directory = run(
        "+teacher=bilm", f"teacher.path={pretrained / 'teacher' / 'model'}", "+student=distilbert",
        "objective=causal_language_model", *TEXT, "trainer.max_epochs=2",
    )  # fmt: skip
    assert code == 0, text
    assert "no bundle reads a model of task bilm (bidirectional_lm) yet: the student is not exported" in text
    metrics = read_record(directory)["student"]["metrics"]
    assert {"perplexity", "perplexity_forwards", "perplexity_backwards", "agreement_top1"} <= metrics.keys()
    assert AutoModelForPreTraining.from_pretrained(directory / "student").config.num_hidden_layers == 1


@pytest.mark.parametrize(
    ("student", "features"), [("bilstm", "sum_all"), ("distilbert", "sum_all"), ("distilbert", "null")]
)
def test_tags_are_taught_by_features_or_by_the_whole_model(
    run: Run, pretrained: Path, student: str, features: str
) -> None:
    sizes = () if features == "null" else ("teacher.bilstm.hidden_dim=16", "teacher.bilstm.layers=1")
    trainer = "teacher.finetune" if features == "null" else "teacher.bilstm.trainer"
    code, text, directory = run(
        "+teacher=bilm", f"teacher.path={pretrained / 'teacher' / 'model'}", f"teacher.features={features}", *sizes,
        f"{trainer}.max_epochs=8", f"{trainer}.learning_rate=2e-2", f"{trainer}.batch_size=8",
        f"+student={student}", "trainer.max_epochs=8", "export.enabled=true", "export.min_agreement=0",
    )  # fmt: skip
    assert code == 0, text
    record = read_record(directory)
    assert record["teacher"]["metrics"]["f1"] > 0.9
    assert record["export"]["fp32"]["gate"] == "passed"
    assert (directory / "report.html").is_file()
    [prediction] = Bundle(directory / "bundle").predict([{"tokens": ["to", "boston"]}])
    assert [entity["text"] for entity in prediction["entities"]] == ["boston"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ("objective=tinybert_layers", "+student=distilbert"),
            "which the teacher (BilmForTokenClassification) does not give",
        ),
        (
            ("objective=minilmv2", "+student=bilstm"),
            "attention vectors, which the teacher (BilmForTokenClassification) does not give",
        ),
    ],
)
def test_attention_is_refused_before_anything_is_trained(
    run: Run, pretrained: Path, options: tuple[str, ...], expected: str
) -> None:
    code, text, _ = run("+teacher=bilm", f"teacher.path={pretrained / 'teacher' / 'model'}", *options)
    assert code == 2, text
    assert expected in " ".join(text.split())
    assert "epoch" not in text.lower()
