"""Tests of the option `adapt`: added words of a language model, a whole run, and refusals on the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedTokenizerBase

from distill import __main__ as command_line
from tests.conftest import LOOSE_OPTIONS, write_corpus

Run = Callable[..., tuple[int, str, dict[str, Any]]]
TEXT = ("job=finetune", "task=mlm", "task.max_length=16", "task.dev_fraction=0.2", "trainer.max_epochs=null",
        "trainer.max_steps=2", "trainer.precision=32-true", "trainer.batch_size=8")  # fmt: skip
LABELS = ("+student=distilbert", "task=sst2", "task.max_length=32", "benchmark.enabled=false")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of short sentences, with words that break into pieces."""
    directory = write_corpus(tmp_path_factory.mktemp("corpus"))
    for file in directory.iterdir():
        file.write_text(f"Home | About\n{file.read_text()}\nThe coldness and the warmness of this long film.")
    return directory


@pytest.fixture
def run(encoder_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process; returns its exit code, its output and run.json, empty in a dry run."""

    def run_command(*options: str) -> tuple[int, str, dict[str, Any]]:
        where = [f"cache_dir={tmp_path / 'cache'}", f"output_dir={tmp_path / 'runs'}"]
        teacher = ["+teacher=pretrained", f"teacher.path={encoder_dir}"]
        monkeypatch.setattr("sys.argv", ["distill", *options, *teacher, *where])
        code = command_line.main()
        printed = capsys.readouterr()
        runs = sorted((tmp_path / "runs").rglob("run.json"))
        record = json.loads(runs[-1].read_text()) | {"directory": runs[-1].parent} if runs else {}
        return code, " ".join((printed.out + printed.err).split()), record

    return run_command


def test_a_language_model_gets_words_of_its_text(run: Run, corpus: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    code, out, record = run(
        *TEXT, f"task.data_dir={corpus}", "adapt.add_words=[coldness,warmness,film]", "task.clean=web"
    )
    assert code == 0, out
    assert "2 words become pieces" in out
    assert "film is a piece already" in out
    vocabulary = record["teacher"]["vocabulary"]
    assert (vocabulary["words"], vocabulary["standing"]) == (2, 1)
    assert record["task"]["cleaning"]["dropped"]["no punctuation at the end"] == 30
    assert "lines are left; dropped: " in out
    model = AutoModelForMaskedLM.from_pretrained(record["directory"] / "teacher" / "model")
    saved = AutoTokenizer.from_pretrained(record["directory"] / "teacher" / "model")
    assert model.config.vocab_size == len(saved) == len(tokenizer) + 2
    assert saved.tokenize("Coldness, warmness") == ["coldness", ",", "warmness"]


@pytest.mark.slow
def test_a_student_of_an_adapted_teacher_has_its_vocabulary(
    run: Run, corpus: Path, data_dir: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    code, out, record = run(
        *LABELS, f"task.data_dir={data_dir}", "adapt=domain", f"adapt.data_dir={corpus}", "adapt.add_words=2",
        "adapt.max_length=16", "adapt.trainer.max_steps=2", "teacher.finetune.max_epochs=1", "trainer.max_steps=2",
        "teacher.accept_weak=true", *LOOSE_OPTIONS,
    )  # fmt: skip
    assert code == 0, out
    adapted = record["teacher"]["adapted"]
    assert (adapted["words"], adapted["steps"], adapted["name"]) == (2, 2, "domain")
    for name in ("report.md", "bundle/README.md"):
        text = (record["directory"] / name).read_text()
        assert "Before its fine-tuning the teacher was adapted to corpus" in text
        assert "2 words became pieces of its vocabulary" in text
    student = AutoTokenizer.from_pretrained(record["directory"] / "student")
    bundle = json.loads((record["directory"] / "bundle" / "tokenizer.json").read_text())
    assert len(student) == len(bundle["model"]["vocab"]) == len(tokenizer) + 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            (*LABELS, "adapt.add_words=500"),
            "adapt.add_words=500 would change nothing with adapt=none: set adapt=domain",
        ),
        ((*LABELS, "adapt=task", "adapt.clean=all"), "got adapt.clean=all, expected one of null, web"),
        (("+student=distilbert", "task=mlm", "adapt=task"), "adapt=task would change nothing in job=distill task=mlm"),
    ],
)
def test_what_has_no_effect_is_refused(run: Run, data_dir: Path, options: tuple[str, ...], message: str) -> None:
    code, out, _ = run(*options, f"task.data_dir={data_dir}")
    assert code == 2, out
    assert message in out
