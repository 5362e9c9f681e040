"""Tests of the objective of a training on raw text: the chosen one, the task's own terms, and refusals by name."""

import csv
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

from distill import __main__ as command_line
from tests.conftest import write_corpus
from tests.jobs.runs import stop_at

Run = Callable[..., tuple[int, str, dict[str, Any]]]
SMALL = (
    "task=mlm", "task.max_length=32", "task.dev_fraction=0.2", "trainer.batch_size=16", "trainer.max_epochs=null",
    "trainer.max_steps=3", "trainer.precision=32-true", "trainer.accelerator=cpu",
    "job=pretrain", "+teacher=bert_tiny", "teacher.vocabulary=300", "teacher.hidden_size=32",
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty files of short sentences."""
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(
    corpus: Path, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs the command in this process; returns its exit code, its output and run.json, empty in a dry run."""

    def run_command(*options: str) -> tuple[int, str, dict[str, Any]]:
        names = {option.partition("=")[0] for option in options}
        defaults = [option for option in SMALL if option.partition("=")[0] not in names]
        if "resume" in names:
            defaults = []
        elif "job" in names:  # Options of the teacher of job=pretrain.
            defaults = [option for option in defaults if not option.startswith("teacher.")]
            defaults += [f"task.data_dir={corpus}", f"cache_dir={cache_dir}", f"output_dir={tmp_path / 'runs'}"]
        else:
            defaults += [f"task.data_dir={corpus}", f"cache_dir={cache_dir}", f"output_dir={tmp_path / 'runs'}"]
        monkeypatch.setattr("sys.argv", ["distill", *defaults, *options])
        code = command_line.main()
        printed = capsys.readouterr()
        runs = sorted((tmp_path / "runs").rglob("run.json"), key=lambda path: path.stat().st_mtime)
        record = json.loads(runs[-1].read_text()) | {"directory": runs[-1].parent} if runs else {}
        return code, printed.out + printed.err, record

    return run_command


def test_the_default_objective_leaves_a_training_to_the_terms_of_its_task(run: Run) -> None:
    code, text, _ = run("dry_run=true")
    assert code == 0, text
    assert "masked_language_modelling: mlm" in text


def test_a_training_resumes_with_the_layers_of_its_terms(run: Run, tmp_path: Path) -> None:
    options = ("+experiment=spanbert_recipe", "objective.terms.boundary.weight=0.5")
    code, text, record = run(*options)
    assert code == 0, text
    assert "spanbert: mlm, boundary" in text
    terms = {
        "mlm": {"weight": 1.0, "smoothing": 0.0},
        "boundary": {"weight": 0.5, "position_width": 200, "positions": 20},
    }
    assert record["objective"] == {"name": "spanbert", "terms": terms}
    with open(record["directory"] / "metrics.csv") as file:
        losses = [float(row["train/boundary"]) for row in csv.DictReader(file) if row["train/boundary"]]
    assert losses
    assert 2 < losses[0] < math.log(300) + 0.5  # That of random weights, over the vocabulary.
    weights = load_file(record["directory"] / "teacher" / "model" / "model.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        stop_at(2, patch)
        with pytest.raises(RuntimeError, match="stopped"):
            run(*options, "trainer.checkpoint_steps=1")
    directory = max((tmp_path / "runs").rglob("run.json"), key=lambda path: path.stat().st_mtime).parent
    code, text, record = run(f"resume={directory}")
    assert code == 0, text
    assert record["directory"] == directory
    assert record["objective"]["terms"] == terms  # The command named none of them.
    resumed = load_file(directory / "teacher" / "model" / "model.safetensors")
    assert all(tensor.equal(resumed[name]) for name, tensor in weights.items())
    # The layers of the term are none of the model.
    assert AutoModelForMaskedLM.from_pretrained(directory / "teacher" / "model")


@pytest.mark.slow
def test_a_student_learns_boundaries_beside_soft_targets(run: Run, tmp_path: Path) -> None:
    code, text, record = run("+experiment=spanbert_recipe", "teacher.layers=4")
    assert code == 0, text
    code, text, record = run(
        "job=distill", "+teacher=pretrained", f"teacher.path={record['directory'] / 'teacher' / 'model'}",
        "+student=distilbert", "+experiment=spanbert_recipe",
        "+objective.terms.soft._target_=distill.losses.SoftTargets", "export.enabled=false", "benchmark.enabled=false",
    )  # fmt: skip
    assert code == 0, text
    assert "spanbert: mlm, boundary, soft" in text
    assert record["student"]["metrics"]["agreement_top1"] >= 0
    # The teacher of three steps gets a notice, and teaches.
    assert "not known to be better than a constant prediction" in text or "worse than a constant prediction" in text
    assert AutoModelForMaskedLM.from_pretrained(record["directory"] / "student").config.num_hidden_layers == 2


def test_a_model_stands_beside_the_frequencies_of_its_tokens(run: Run) -> None:
    code, text, record = run("objective=supervised")
    assert code == 0, text
    assert re.search(r"unigram +loss \d\.\d\d, perplexity \d+ on dev by the frequency of each token in train", text)
    teacher, losses = record["teacher"], record["training"]["dev_losses"]
    assert losses == {"hard": pytest.approx(teacher["metrics"]["loss"], rel=1e-5)}
    constant, difference = teacher["constant"], teacher["against_constant"]
    assert constant["answer"] == "the frequency of each token in train"
    expected = teacher["metrics"]["perplexity"] - constant["metrics"]["perplexity"]
    assert difference["difference"] == pytest.approx(expected, rel=1e-5)
    assert f"Losses on dev: hard {losses['hard']:.3f}; by the frequency of each token in train" in text
    assert "the model is worse than a constant prediction on dev" in text  # After three steps.


def test_shuffled_tokens_and_the_order_of_segments_are_predicted(run: Run) -> None:
    code, text, record = run("+experiment=structbert_recipe")
    assert code == 0, text
    assert "structbert: mlm, order" in text
    terms = {"mlm": {"weight": 1.0, "smoothing": 0.0}, "order": {"weight": 1.0}}
    assert record["objective"] == {"name": "structbert", "terms": terms}
    with open(record["directory"] / "metrics.csv") as file:
        losses = [float(row["train/order"]) for row in csv.DictReader(file) if row["train/order"]]
    assert losses
    assert 0.3 < losses[0] < 2.5  # Random weights have about ln 3.
    # No head of two orders is in the model, because the term has its own of three.
    assert AutoModelForMaskedLM.from_pretrained(record["directory"] / "teacher" / "model")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ("objective=language_model",),
            "objective language_model has the term soft, cosine, which learns from a teacher, and job=pretrain has "
            "none: leave out objective= for the terms of the task, or set objective.terms.soft.weight=0",
        ),
        (
            ("objective=embedding",),
            "objective embedding has the term embedding, similarity, which cannot learn task mlm (masked_lm): leave "
            "out objective= for the terms of the task, or set objective.terms.embedding.weight=0",
        ),
        (
            ("objective=spanbert", "task=clm", "+teacher=gpt2_tiny"),
            "objective spanbert: the term boundary learns from tokens that are hidden and chosen for prediction "
            "(task=mlm), and task clm has none: leave out objective= for the terms of the task, or set "
            "objective.terms.boundary.weight=0",
        ),
        (
            ("objective=structbert",),
            "objective structbert: the term order learns from pairs of segments in three orders (task.pair=three_way), "
            "and task mlm has none",
        ),
        (
            ("objective=spanbert", "task.packing=segment_pair", "task.pair=nsp"),
            "task.pair=nsp gives pairs of segments with a label (pair_labels), and no term of objective spanbert "
            "learns from it: set task.pair=null, or leave out objective= for the terms of the task",
        ),
        (
            ("objective=structbert", "task.packing=segment_pair", "task.pair=sop"),
            "the term order learns from pairs of segments in three orders (task.pair=three_way), and task mlm has none",
        ),
    ],
    ids=[
        "a teacher",
        "another task",
        "tokens that are not hidden",
        "no pairs",
        "pairs without a term",
        "pairs of two orders",
    ],
)
def test_terms_that_need_a_teacher_or_another_task_are_refused(
    run: Run, options: tuple[str, ...], expected: str
) -> None:
    code, text, _ = run(*options, "dry_run=true")
    error = text.strip().splitlines()[-1]
    assert code == 2
    assert error.startswith("error: ")
    assert expected in error
