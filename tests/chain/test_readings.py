"""Tests of runs whose teacher and student read different tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import distill as d
from distill.chain.parent import list_encoders
from distill.core.errors import UserError
from tests.conftest import LABELS, sentences, toy_bert
from tests.laws.test_readings import permute

ROWS = [{"text": text, "label": LABELS[label]} for text, label in sentences(48)]


@pytest.fixture(scope="module")
def start(tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder that a student starts from."""
    directory = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(1)
    toy_bert(len(tokenizer), layers=2).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture
def run(tmp_path: Path, start: Path) -> Callable[..., dict[str, Any]]:
    def run(name: str, *teachers: tuple[PreTrainedModel, PreTrainedTokenizerBase], **options: Any) -> dict[str, Any]:
        members = [d.Teacher(*each, accept_weak=True, cache_dir=tmp_path / "cache") for each in teachers]
        cache = options.pop("cache", None)
        whole = members[0] if len(members) == 1 else d.Teacher.ensemble(members)
        if cache is not None:
            whole = d.Teacher(*teachers[0], accept_weak=True, cache_dir=tmp_path / "cache", cache=cache)
        student = options.pop("student", None) or d.students.distilbert(depth=1, start=str(start))
        defaults = {"objective": d.Objective(soft=d.SoftTargets(), hard=d.HardLabels())}
        result = d.distill(
            whole, student, d.tasks.Classification(text="text", train=ROWS, dev=ROWS[:24], max_length=32),
            directory=tmp_path / name, export=d.ExportSettings(enabled=False),
            trainer=d.TrainerSettings(batch_size=16, precision="32-true", learning_rate=1e-3, max_steps=4),
            **defaults | options,
        )  # fmt: skip
        return result.record

    return run


def test_a_teacher_with_permuted_ids_teaches_the_same_student(
    run: Callable[..., dict[str, Any]], teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Cached, in every step, and as one of an ensemble."""
    twin = permute(teacher, tokenizer)
    expected = run("usual", (teacher, tokenizer))
    for name, record in {
        "cached": run("cached", twin),
        "live": run("live", twin, cache=d.OutputCache(enabled=False)),
        "ensemble": run("ensemble", (teacher, tokenizer), twin),
    }.items():
        assert record["teacher"]["metrics"] == expected["teacher"]["metrics"], name
        assert record["student"]["metrics"] == expected["student"]["metrics"], name
        assert record["training"]["seconds"] > 0


def test_the_default_objective_leaves_out_the_states_of_tokens(
    run: Callable[..., dict[str, Any]],
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = run("default", permute(teacher, tokenizer), objective=None)
    assert list(record["objective"]["terms"]) == ["soft", "hard"]
    assert "leaves out the term cosine, which compares the states of tokens" in " ".join(
        capsys.readouterr().out.split()
    )
    with pytest.raises(UserError, match="the term cosine compares the states of tokens, and teacher and student read"):
        run("refused", permute(teacher, tokenizer), objective=d.Objective(soft=d.SoftTargets(), cosine=d.Cosine()))


def test_a_student_with_pieces_of_its_own_starts_from_the_teacher_s_embeddings(
    run: Callable[..., dict[str, Any]], teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    for student in (
        d.students.bilstm(embedding_dim=16, hidden_dim=8, tokenizer="pieces"),
        d.students.static(dim=16, buckets=0, tokenizer="pieces"),
    ):
        record = run(student.name, (teacher, tokenizer), student=student, baseline=True)
        assert record["student"]["metrics"]["accuracy"] > 0


def test_encoders_of_the_cache_are_named(monkeypatch: pytest.MonkeyPatch, start: Path, tmp_path: Path) -> None:
    place = tmp_path / "models--org--small" / "snapshots" / "1"
    place.mkdir(parents=True)
    (place / "config.json").write_text((start / "config.json").read_text())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert list_encoders() == ["org/small"]
