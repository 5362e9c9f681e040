"""Toy models with heads for the toy task, in directories as a run leaves them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.inspection.subjects import Subject, open_subject
from distill.kinds import Classification
from students.distilbert import from_teacher
from tests.conftest import LABELS, toy_bert

Save = Callable[[PreTrainedModel, str], Path]


@pytest.fixture
def save(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Save:
    """Returns a function that saves a model and the tokenizer."""

    def save(model: PreTrainedModel, name: str) -> Path:
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


@pytest.fixture
def subjects(save: Save, data_dir: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> list[Subject]:
    """A teacher of four layers and its untrained student of two."""
    teacher = toy_bert(len(tokenizer))
    models = {"teacher": teacher, "student": from_teacher(teacher)}
    task = Classification(text=["sentence"], data_dir=str(data_dir), labels=LABELS, max_length=32)
    data = task.read(tmp_path / "cache")
    return [open_subject(name, save(model, name), task, data, tmp_path / "cache") for name, model in models.items()]
