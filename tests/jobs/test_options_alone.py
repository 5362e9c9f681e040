"""Tests that every option of a student, a teacher, an augmentation, an export and a budget works alone.

Each command has the defaults in all else but the number of steps: no user has the settings that a test adds.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import BertForMaskedLM

from distill.core.errors import config_directory
from distill.export import latency
from distill.text.vocabulary import train_word_pieces
from tests.conftest import run_here, sentences, toy_bert

CONF = config_directory()
# By student, the commands with the options in them. An option may need another one to have a meaning. CORPUS, TEXTS and
# ENCODER are paths.
STUDENTS: dict[str, list[str]] = {
    "distilbert": [
        "layers=[0]", "depth=1", "init=search", "heads=2", "ffn=16", "embedding_dim=16", "prune=iterative",
        "prune=iterative prune_steps=2 prune_share=0.5", "attention=local window=8 global_tokens=2", "positions=400",
        "chunk=32 chunk_overlap=8 chunk_pooling=max",
        "init=general general={corpus:CORPUS,passes:1,max_length:16,batch_size:4}", "start=ENCODER",
    ],
    "albert": [
        "groups=2 depth=2", "embedding_dim=16", "share=ffn", "table=svd", "layer=first", "init=random",
        "start=ENCODER",
    ],
    "bilstm": [
        "init=random", "embedding_dim=16", "hidden_dim=20", "layers=2", "classifier_dim=20", "dropout=0.2",
        "pooling=max", "tokenizer=pieces",
    ],
    "cnn": [
        "widths=[2,3]", "embedding_dim=16", "hidden_dim=30", "classifier_dim=20", "dropout=0.2", "init=random",
        "tokenizer=ENCODER",
    ],
    "static": [
        "start=random", "dim=16", "buckets=0", "bucket_dim=16", "classifier_dim=20", "dropout=0.1", "token_dropout=0.2",
        "smoothing=1e-4", "tokenizer=pieces",
    ],
    "tfidf": ["max_length=null"],
}  # fmt: skip
# Of students for other kinds of tasks, and of tags.
OTHER_TASKS = {"distilbert": {"decoder_depth"}, "cnn": {"tag_width", "dilations"}}
OTHERS = (
    "objective=hinton", "objective=dkd", "objective=dist", "objective=rkd",
    "objective=cka", "objective=crd", "objective=vid", "objective=logit_mse", "objective=minilm", "objective=minilmv2",
    "objective=pkd student.depth=2", "objective=tinybert", "objective=tinybert_layers", "objective=pseudo_label",
    "objective=supervised", "teacher.max_length=80",
    "teacher.start=contrastive teacher.contrastive.pairs=1",
    "teacher.features=last teacher.bilstm.trainer.max_steps=2 teacher.bilstm.hidden_dim=16", "teacher.positions=400",
    "teacher.attention=local", "teacher.precision=auto", "teacher.cache.enabled=false", "teacher.cache.hidden=true",
    "augment=tang", "augment=mlm augment.model=ENCODER", "augment=none", "task.unlabelled=TEXTS",
    "export.abstain=0.1", "export.calibration=16", "export.formats=[fp32]", "export.max_batch_diff=0.01",
    "export.recipes=[mixed]", "export.recipes=[static]", "export.recipes=[weight_only]", "export.recipes=[qat]",
    "export.target=avx2", "export.vocabulary=task", "export.vocabulary=trained",
    "export.vocabulary_texts=[TEXTS] export.vocabulary=task", "export=rows", "budget.mb=1", "budget.ms=500",
    "budget.widths=true budget.mb=1", "benchmark.dev_pass=true", "baseline=true", "baseline=same_start", "seeds=2",
)  # fmt: skip


# Mechanisms that no cheaper test runs with the defaults, several in a command. Alone they are slow tests.
TOGETHER = (
    "+student=distilbert student.init=search teacher.cache.hidden=true objective=minilm benchmark.dev_pass=true "
    "export.recipes=[mixed] export.vocabulary_texts=[TEXTS] export.vocabulary=task",
    "+student=bilstm student.tokenizer=pieces objective=pooled",
    "+student=cnn budget.ms=500 export.abstain=0.1 export.calibration=16 augment=mlm augment.model=ENCODER export=rows",
)


def _list_commands() -> Iterator[Any]:
    yield from (pytest.param(command, id=f"together {number}") for number, command in enumerate(TOGETHER))
    students = [
        f"+student={student} {' '.join(f'student.{option}' for option in command.split())}"
        for student, commands in STUDENTS.items()
        for command in commands
    ]
    for command in (*students, *OTHERS):
        yield pytest.param(command, marks=pytest.mark.slow, id=command)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A toy of a pre-trained encoder and data."""
    root = tmp_path_factory.mktemp("alone")
    rows = sentences(48)
    tokenizer = train_word_pieces([text for text, _ in rows], 200)
    config = toy_bert(len(tokenizer), layers=2, width=48, initializer_range=0.05).config
    config.max_position_embeddings = 300
    torch.manual_seed(0)
    BertForMaskedLM(config).save_pretrained(root / "encoder")
    tokenizer.save_pretrained(root / "encoder")
    (root / "data").mkdir()
    for name, part in (("train", rows[:32]), ("dev", rows[32:])):
        lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in part)]
        (root / "data" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    (root / "texts.txt").write_text("".join(f"a warm film {number}\n" for number in range(20)))
    (root / "corpus").mkdir()
    for number in range(20):
        (root / "corpus" / f"{number}.txt").write_text("\n\n".join(f"a dull film {number} {line}" for line in range(9)))
    return {"ENCODER": root / "encoder", "DATA": root / "data", "TEXTS": root / "texts.txt", "CORPUS": root / "corpus"}


@pytest.mark.parametrize("command", list(_list_commands()))
def test_an_option_works_with_the_defaults_of_all_others(
    command: str, paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PAUSE_SECONDS": 0.0, "TURNS": 1, "RUNS_PER_TURN": 1}.items():  # No time is read here.
        monkeypatch.setattr(latency, name, value)
    for name, path in paths.items():
        command = command.replace(name, str(path))
    options = command.split()
    student = [] if any(option.startswith("+student=") for option in options) else ["+student=distilbert"]
    finetuning = [] if re.search("teacher.(start|features)", command) else ["teacher.finetune.max_steps=2"]
    done = run_here(
        "+teacher=pretrained", f"teacher.path={paths['ENCODER']}", *student, "task=sst2",
        f"task.data_dir={paths['DATA']}", f"cache_dir={paths['ENCODER'].parent / 'cache'}", "teacher.accept_weak=true",
        "trainer.max_steps=2", *finetuning, *options, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("runs/**/bundle/bundle.json"))


@pytest.mark.parametrize("student", STUDENTS)
def test_every_option_of_a_student_has_a_command(student: str) -> None:
    content = yaml.safe_load((CONF / "student" / f"{student}.yaml").read_text())
    expected = set(content) - {"_target_", "name", "defaults", "projection"} - OTHER_TASKS.get(student, set())
    assert {option.partition("=")[0] for command in STUDENTS[student] for option in command.split()} == expected
