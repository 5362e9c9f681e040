"""Tests of whole jobs at toy size in which a teacher continues the training texts, or the student does."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from distill.builtin.teachers.vocabulary import train_bytes
from transformers import GPT2Config, GPT2LMHeadModel

from tests.conftest import write_corpus
from tests.jobs.runs import Run, capture_runs, read_record, run_command

SMALL = (
    "task=clm", "task.max_length=16", "task.dev_fraction=0.2", "+teacher=pretrained", "+student=layers",
    "student.depth=1", "teacher.accept_weak=true", "trainer.batch_size=8",
    "trainer.max_epochs=null", "trainer.max_steps=3", "trainer.precision=32-true", "trainer.accelerator=cpu",
    "export.enabled=false",
)  # fmt: skip


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, a GPT-2 and a cache."""
    root = tmp_path_factory.mktemp("work")
    (root / "corpus").mkdir()
    write_corpus(root / "corpus")
    tokenizer = train_bytes(["one two three", "a letter of some words"] * 3, 280, 64)
    end = tokenizer.eos_token_id
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=16, n_layer=2, n_head=2, n_positions=32, eos_token_id=end, bos_token_id=end
    )
    GPT2LMHeadModel(config).save_pretrained(root / "gpt2")
    tokenizer.save_pretrained(root / "gpt2")
    return root


@pytest.fixture
def run(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command; returns its exit code, its output and the run's directory."""

    def run_options(output: Path, *options: str) -> int:
        return run_command(
            *SMALL, f"task.data_dir={work / 'corpus'}", f"teacher.path={work / 'gpt2'}",
            f"cache_dir={work / 'cache'}", f"output_dir={output}", *options,
        )  # fmt: skip

    return capture_runs(partial(run_options), tmp_path, capsys)


@pytest.mark.parametrize(
    "options",
    [
        ("teacher.sampling_temperature=1.0", "teacher.sampling_seed=5", "task.prompt=6"),
    ],
    ids=["sampling"],
)
def test_the_teachers_continuations_are_written_once_and_planned_before(
    run: Run, work: Path, options: tuple[str, ...]
) -> None:
    objective = next(
        (option for option in options if option.startswith("objective=")), "objective=causal_language_model"
    )
    options = (objective, *(option for option in options if option != objective))
    earlier = set((work / "cache").glob("targets/*/*.json"))
    code, text, _ = run(*options, "dry_run=true", output="dry")
    assert code == 0, text
    assert "the teacher continues each of " in text
    assert set((work / "cache").glob("targets/*/*.json")) == earlier
    code, text, directory = run(*options, output="first")
    assert code == 0, text
    paths = set((work / "cache").glob("targets/*/*.json")) - earlier
    assert len(json.loads(min(paths).read_text(encoding="utf-8"))["texts"]) == 32
    code, text, again = run(*options, output="second")
    assert code == 0, text
    assert "the teacher continues each" not in text
    assert read_record(directory)["student"]["metrics"] == read_record(again)["student"]["metrics"]
    code, text, plain = run(objective, output="plain")
    assert code == 0, text
    assert read_record(directory)["student"]["metrics"] != read_record(plain)["student"]["metrics"]


def test_a_student_learns_on_its_own_continuations_from_a_teacher_that_runs(run: Run) -> None:
    code, text, directory = run("objective=on_policy", "objective.terms.gkd.student_share=1")
    assert code == 0, text
    record = read_record(directory)
    assert record["teacher_outputs"]["reason"] == "the student writes some of the texts"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("teacher.beams=2", "teacher.keep=nearest"), "teacher.keep=nearest chooses by the target, and a text of task"),
        (("teacher.beams=2", "task=denoising"), "teacher.beams=2 replaces the targets of texts, and task=denoising"),
    ],
)
def test_bad_input_is_reported_in_one_line(run: Run, options: tuple[str, ...], expected: str) -> None:
    code, text, _ = run(*options)
    error = text.strip().splitlines()[-1]
    assert code == 2
    assert error.startswith("error: ")
    assert expected in error
