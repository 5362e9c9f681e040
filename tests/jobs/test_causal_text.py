"""Tests of whole jobs of a causal language model at toy size: cached outputs, resumption and refusals."""

from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.conftest import write_corpus
from tests.jobs.runs import Run, capture_runs, read_record, run_command, stop_at

SMALL = (
    "task=clm", "task.max_length=32", "task.dev_fraction=0.2", "trainer.batch_size=8", "trainer.max_epochs=2",
    "trainer.learning_rate=3e-3", "trainer.precision=32-true", "trainer.accelerator=cpu", "trainer.checkpoint_steps=2",
)  # fmt: skip
PRETRAIN = ("job=pretrain", "+teacher=gpt2_tiny", "teacher.vocabulary=300", "teacher.hidden_size=32")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a cache."""
    root = tmp_path_factory.mktemp("work")
    (root / "corpus").mkdir()
    write_corpus(root / "corpus")
    return root


def run_options(work: Path, output: Path, *options: str) -> int:
    """Runs the command in this process."""
    common = [] if any(option.startswith("resume=") for option in options) else [
        *SMALL, f"task.data_dir={work / 'corpus'}", f"cache_dir={work / 'cache'}", f"output_dir={output}"
    ]  # fmt: skip
    return run_command(*common, *options)


@pytest.fixture
def run(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command; returns its exit code, its output and the run's directory."""
    return capture_runs(partial(run_options, work), tmp_path, capsys)


@pytest.fixture(scope="module")
def pretrained(work: Path) -> Path:
    """The run of a teacher of four layers from random weights."""
    assert run_options(work, work / "teachers", *PRETRAIN, "trainer.learning_rate=1e-2") == 0
    [path] = (work / "teachers").rglob("run.json")
    return path.parent


def test_a_teacher_from_random_weights_learns_and_loads_with_the_auto_classes(pretrained: Path) -> None:
    record = read_record(pretrained)
    assert record["objective"]["name"] == "causal_language_modelling"
    metrics = record["teacher"]["metrics"]
    assert metrics["perplexity"] == pytest.approx(float(torch.tensor(metrics["loss"]).exp()), rel=1e-4)
    assert metrics["perplexity"] < 100  # Random weights have about 300, the number of tokens.
    directory = pretrained / "teacher" / "model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    assert model.config.num_hidden_layers == 4
    assert tokenizer.all_special_tokens == ["<|endoftext|>"]
    batch = tokenizer("Good morning.", return_tensors="pt")
    assert model.generate(**batch, max_new_tokens=3, do_sample=False).shape[1] > batch["input_ids"].shape[1]


def test_a_student_of_alternate_layers_learns_from_cached_outputs(run: Run, pretrained: Path) -> None:
    options = (
        "+teacher=pretrained", f"teacher.path={pretrained / 'teacher' / 'model'}", "+student=layers",
        "objective=causal_language_model", "export.enabled=false", "teacher.cache.hidden=true",
    )  # fmt: skip
    code, text, first = run(*options)
    assert code == 0, text
    code, text, second = run(*options)
    assert code == 0, text
    assert "Bundle " not in text
    records = [read_record(directory) for directory in (first, second)]
    assert [record["training"]["teacher_cache"]["hit"] for record in records] == [False, True]
    metrics = records[0]["student"]["metrics"]
    assert metrics == records[1]["student"]["metrics"]
    assert {"perplexity", "word_perplexity", "bits_per_byte", "loss", "accuracy", "agreement_top1"} <= metrics.keys()
    assert (first / "report.html").is_file()
    student = AutoModelForCausalLM.from_pretrained(first / "student")
    assert student.config.num_hidden_layers == 2
    # A teacher that runs in every step, as it does by default, gives nearly the same loss.
    code, text, live = run(*options[:-1])
    assert code == 0, text
    reason = "computed in every step: what is cached of the logits of every token is 200 bytes a token"
    assert reason in " ".join(text.split())
    assert read_record(live)["teacher_outputs"]["cached"] is False
    expected = read_record(live)["student"]["metrics"]
    assert metrics["loss"] == pytest.approx(expected["loss"], abs=0.05)


@pytest.mark.parametrize("job", ["distill"])
def test_a_resumed_training_ends_with_the_weights_of_an_uninterrupted_one(
    run: Run, pretrained: Path, job: str, tmp_path: Path
) -> None:
    teacher, path = pretrained / "teacher" / "model", "student"
    options = ("+teacher=pretrained", f"teacher.path={teacher}", "+student=layers", "export.enabled=false",
               "objective=causal_language_model", "teacher.cache.hidden=true")  # fmt: skip
    if job == "pretrain":
        options, path = PRETRAIN, "teacher/model"
    options = (*options, "trainer.max_epochs=null", "trainer.max_steps=8")
    code, text, whole = run(*options, output="whole")
    assert code == 0, text
    with pytest.MonkeyPatch.context() as patch:
        stop_at(5, patch)
        with pytest.raises(RuntimeError, match="stopped"):
            run(*options, output="stopped")
    [record] = (tmp_path / "stopped").rglob("run.json")
    code, text, _ = run(f"resume={record.parent}")
    assert code == 0, text
    weights = [load_file(directory / path / "model.safetensors") for directory in (whole, record.parent)]
    assert all(tensor.equal(weights[1][name]) for name, tensor in weights[0].items())
