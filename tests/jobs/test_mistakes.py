"""Tests that bad input is reported in one line, with exit code 2, before anything is trained.

The command runs in this process, so that its imports run once.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distill.builtin.teachers.vocabulary import train_word_pieces
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from distill import __main__ as command_line
from distill.losses import Term
from distill.training import fitting
from tests.conftest import sentences, toy_bert
from tests.jobs.sweeps import find_files


class AttentionTerm(Term):
    """Reads an output that a model with fused attention does not have."""

    needs = frozenset({"attentions"})

    def forward(self, student: Any, teacher: Any, items: Any) -> tuple[Tensor, Tensor]:
        raise AssertionError("the missing output must be reported before training")


class UserFiles:
    """A user's valid files, of which a test damages one."""

    def __init__(self, root: Path, encoder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        self.root, self.encoder, self.tokenizer = root, encoder, tokenizer
        self.data = root / "data"
        self.data.mkdir()
        self.write("train", sentences(32))
        self.write("dev", sentences(8))

    def write(self, split: str, rows: list[tuple[Any, ...]], header: str = "sentence\tlabel") -> None:
        lines = [header, *("\t".join(map(str, row)) for row in rows)]
        (self.data / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def classifier(self, labels: int) -> Path:
        """Saves a teacher with a head for this number of labels."""
        model = toy_bert(len(self.tokenizer))
        model.config.num_labels = labels
        type(model)(model.config).save_pretrained(self.root / "classifier")
        self.tokenizer.save_pretrained(self.root / "classifier")
        return self.root / "classifier"

    def narrow_encoder(self) -> Path:
        """Saves an encoder without a head, 16 wide."""
        toy_bert(len(self.tokenizer), width=16).bert.save_pretrained(self.root / "narrow")
        self.tokenizer.save_pretrained(self.root / "narrow")
        return self.root / "narrow"

    def shallow_encoder(self) -> Path:
        """Saves an encoder of two layers without a head."""
        toy_bert(len(self.tokenizer), layers=2).bert.save_pretrained(self.root / "shallow")
        self.tokenizer.save_pretrained(self.root / "shallow")
        return self.root / "shallow"

    def other_student(self) -> Path:
        """Saves a model with a vocabulary of the same size and other tokens."""
        other = train_word_pieces([text[::-1] for text, _ in sentences(64)], len(self.tokenizer))
        toy_bert(max(len(other), len(self.tokenizer))).save_pretrained(self.root / "student")
        other.save_pretrained(self.root / "student")
        return self.root / "student"


@pytest.fixture
def user_files(tmp_path: Path, encoder_dir: Path, tokenizer: PreTrainedTokenizerBase) -> UserFiles:
    return UserFiles(tmp_path, encoder_dir, tokenizer)


def _no_tokenizer(user_files: UserFiles) -> list[str]:
    toy_bert(len(user_files.tokenizer)).save_pretrained(user_files.root / "bare")
    return [f"teacher.path={user_files.root / 'bare'}"]


def _damaged(user_files: UserFiles) -> list[str]:
    directory = user_files.classifier(2)
    (directory / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    return [f"teacher.path={directory}"]


def _spoiled(split: str, content: bytes, suffix: str = "tsv") -> Callable[[UserFiles], list[str]]:
    def spoil(user_files: UserFiles) -> list[str]:
        (user_files.data / f"{split}.tsv").unlink()
        (user_files.data / f"{split}.{suffix}").write_bytes(content)
        return []

    return spoil


def _options(*options: str) -> Callable[[UserFiles], list[str]]:
    return lambda user_files: list(options)


def _all(*mistakes: Callable[[UserFiles], list[str]]) -> Callable[[UserFiles], list[str]]:
    return lambda user_files: [option for mistake in mistakes for option in mistake(user_files)]


def _blocking_file(user_files: UserFiles) -> Path:
    (user_files.root / "file").write_text("in the way")
    return user_files.root / "file"


def _tagged(*options: str, **files: str) -> Callable[[UserFiles], list[str]]:
    """Writes valid files of tagged words, and in their place those that are given: `dev_jsonl` is dev.jsonl."""

    def write(user_files: UserFiles) -> list[str]:
        given = {name.partition("_")[0]: (name.replace("_", "."), content) for name, content in files.items()}
        for split in ("train", "dev"):
            name, content = given.get(split, (f"{split}.conll", TAGGED))
            (user_files.data / f"{split}.tsv").unlink()
            (user_files.data / name).write_text(content)
        return ["task=token_classification", *options]

    return write


TAGGED = "fly O\nto O\nnew B-city\nyork I-city\n\nnow O\n"


def _choices(
    *options: str, answers: tuple[object, ...] = (0, 1), **changes: object
) -> Callable[[UserFiles], list[str]]:
    """Replaces the data by questions with two choices, of which the last one is changed."""

    def write(user_files: UserFiles) -> list[str]:
        rows: list[dict[str, object]] = [
            {"question": "which", "choices": ["one", "two"], "answer": answer} for answer in answers * 4
        ]
        rows[-1] = rows[-1] | changes
        for split in ("train", "dev"):
            (user_files.data / f"{split}.tsv").unlink()
            lines = "\n".join(map(json.dumps, rows))
            (user_files.data / f"{split}.jsonl").write_text(lines)
        return ["task=multiple_choice", *options]

    return write


def _vectors(
    *options: str, train: str = "sentence1,sentence2,score\na b,a,1\nb,b a,2\n", dev: str = ""
) -> Callable[[UserFiles], list[str]]:
    """Replaces the data by pairs with a score, and the default objective by that of vectors."""

    def write(user_files: UserFiles) -> list[str]:
        for split, content in (("train", train), ("dev", dev or "sentence1,sentence2,score\na,a b,1\nb,a,2\n")):
            (user_files.data / f"{split}.tsv").unlink()
            (user_files.data / f"{split}.csv").write_text(content)
        is_given = any(option.startswith("objective=") for option in options)
        return ["task=embedding", *([] if is_given else ["objective=embedding"]), *options]

    return write


ATTENTION = "+objective.terms.attention={_target_: tests.jobs.test_mistakes.AttentionTerm}"
# Mistake -> a function that makes it and returns its options, and the expected part of the message.
MISTAKES: dict[str, tuple[Callable[[UserFiles], list[str]], str]] = {
    "an unknown way with empty labels": (
        _options("task.missing=keep"),
        "got task.missing=keep, expected one of auto, error, drop, unlabelled",
    ),
    "one class where the task names two": (
        lambda p: ["task=sst2", *_spoiled("train", b"sentence\tlabel\na\t1\nb\t1\n")(p)],
        "train.tsv has one class only (1)",
    ),
    "a missing column of words": (
        _tagged(train_jsonl='{"words": ["a"], "tags": ["O"]}\n'),
        "train.jsonl has no column tokens: it has words, tags; name yours with task.tokens=... and task.tags=...",
    ),
    "unlabelled text for tags without words": (
        _all(
            _tagged(),
            lambda p: [f"task.unlabelled={p.data / 'other.jsonl'}"],
            lambda p: (p.data / "other.jsonl").write_text('{"review": "a"}\n') and [],
        ),
        "other.jsonl has no column tokens: it has review; texts without labels need the task's text columns, "
        "task.tokens=tokens",
    ),
    "a student with another vocabulary": (
        lambda p: ["+student=pretrained", f"student.path={p.other_student()}"],
        "teacher and student read different tokens: ",
    ),
    "a teacher without a tokenizer": (_no_tokenizer, "holds no tokenizer: call tokenizer.save_pretrained"),
    "a teacher whose weights are damaged": (_damaged, "cannot be loaded: "),
    "a layer out of range": (_options("student.layers=[0,9]"), "student.layers has 9, expected indices from 0 to 3"),
    "a number as student.layers": (
        _options("student.layers=3"),
        "student.layers=3 is one number: student.depth=3 copies this many layers",
    ),
    "a term that needs attentions": (_options(ATTENTION), "the term attention needs attentions, which the teacher"),
    "patient distillation of one layer": (
        _options("objective=pkd", "student.depth=1"),
        "the term pkd leaves out the last layer, and the student has no other: set last_layer=true",
    ),
    "relation heads that do not divide the width": (
        _options("objective=minilmv2"),
        "objective minilmv2: the term minilmv2 got relation_heads=48, expected a divisor of the attention widths 32 "
        "(teacher) and 32 (student): 1, 2, 4, 8, 16, 32",
    ),
    "hidden states of a BiLSTM": (
        _options("objective=pkd", "+student=bilstm"),
        "objective pkd: the term pkd needs hidden states of the embeddings and of every layer in one width, which the "
        "student (BilstmForSequence",
    ),
    "attention of sharded layers": (
        _options("objective=minilm", "trainer.strategy=fsdp", "trainer.devices=2", "trainer.accelerator=cpu"),
        "the term minilm reads attention vectors inside of sharded layers: set trainer.strategy=ddp",
    ),
    "an output directory in a file": (lambda p: [f"output_dir={_blocking_file(p)}/runs"], "cannot be created"),
    "a cache directory in a file": (lambda p: [f"cache_dir={_blocking_file(p)}/cache"], "cannot be created"),
    "a max_length above the teacher's": (_options("task.max_length=100"), "but the teacher reads 80 tokens at most"),
    "abstentions of less than an example": (
        _options("export.abstain=0.1"),
        "got export.abstain=0.1, which is less than one of the 8 examples of dev: set it to at least 0.125,",
    ),
    "a budget of 0": (_options("budget.mb=0"), "got budget.mb=0, expected a number above 0 or null"),
    "a budget and a list of layers": (
        _options("student.layers=[0,2]", "budget.ms=1"),
        "budget.ms=1 tries every depth of student distilbert: student.depth=4 and student.layers=[0, 2] both choose",
    ),
    "cut texts without an export": (
        _options("export.enabled=false", "benchmark.max_lengths=[8]"),
        "benchmark.max_lengths=[8] is for exported students, and export.enabled=false: leave one of them out",
    ),
    "a pass over dev of choices": (
        _options("task=swag", "benchmark.dev_pass=true"),
        "benchmark.dev_pass=true is for tasks whose examples are texts, and task=swag is multiple_choice: leave it out",
    ),
    "texts that are cut to more than is read": (
        _options("task.max_length=16", "benchmark.max_lengths=[8,16]"),
        "got benchmark.max_lengths=[8, 16], expected less than task.max_length=16, which is scored anyway: leave 16 "
        "out, or raise task.max_length",
    ),
    "no batch size": (_options("trainer.batch_size=null"), "got neither batch_size nor batch_tokens"),
    "a token budget of 0": (
        _options("trainer.batch_tokens=0"),
        "got trainer.batch_tokens=0, expected a whole number of at least 1 or null",
    ),
    "a token budget below the longest example": (
        _options("trainer.batch_tokens=30"),
        "got trainer.batch_tokens=30, expected at least task.max_length=32, the longest example: raise",
    ),
    "a teacher's token budget below the longest example": (
        _options(
            "teacher.finetune.batch_tokens=30",
            "teacher.finetune.learning_rate=5e-5",
            "teacher.finetune.max_epochs=1",
            "teacher.finetune.evaluations=1",
            "teacher.finetune.patience=null",
        ),
        "got teacher.finetune.batch_tokens=30, expected at least task.max_length=32, the longest example",
    ),
    "an invalid teacher.cache.hidden": (
        _options("teacher.cache.hidden=perhaps"),
        "got teacher.cache.hidden=perhaps, expected auto, true or false",
    ),
    "a bank for a fine-tuning": (
        _options("job=finetune", "task.bank=reviews", "task=sst2"),
        "task.bank=reviews would change nothing in job=finetune task=sst2: leave it out",
    ),
    "dimensions of an export above the model's": (
        _vectors("export.dimensions=[8,64]"),
        "got export.dimensions=[8, 64], expected at most 32, the width of the student's vectors",
    ),
    "copies of raw text": (
        _options("task=mlm", "objective=language_model", "augment=tang"),
        "augment=tang is for tasks with labelled texts, and task mlm is masked_lm: leave it out",
    ),
    "copies that change nothing": (
        _options("augment=tang", *(f"augment.{name}=0.0" for name in ("p_mask", "p_pos", "p_ngram"))),
        "augment=tang makes no new text of 32 training examples",
    ),
    "unlabelled text for a fine-tuning": (
        _options("job=finetune", "task.unlabelled=nowhere.txt", "task=sst2"),
        "task.unlabelled=nowhere.txt would change nothing in job=finetune task=sst2: leave it out",
    ),
    "copies of questions": (
        _choices("augment=tang"),
        "augment=tang is for tasks with labelled texts, and task multiple_choice is multiple_choice: leave it out",
    ),
    "a cross-encoder that teaches nothing": (
        _vectors("task.cross_encoder=nowhere", "objective=embedding"),
        "task.cross_encoder is given, and no term of objective embedding learns from it: raise the weight of a term "
        "with targets=cross_encoder, or leave out task.cross_encoder",
    ),
    "scores of dev that are equal": (
        _vectors(train="sentence1,sentence2,score\na,b,1\nc,d,2\n", dev="sentence1,sentence2,score\na,b,3\nc,d,3\n"),
        "dev has 2 pairs with the score 3 and no other, with which nothing correlates: give pairs with different",
    ),
    "options of a fine-tuning that features do without": (
        _options("teacher.features=last", "teacher.finetune.max_epochs=2"),
        "teacher.finetune.max_epochs=2 would change nothing in job=distill task=classification: leave it out, "
        "teacher.bilstm.trainer.* is what trains here",
    ),
    "no layer on features": (
        _options("teacher.features=last", "teacher.bilstm.layers=0"),
        "got teacher.bilstm.layers=0, expected a whole number of at least 1",
    ),
    "vectors of two pieces for model2vec": (
        _options("+student=static", "export.model2vec=true"),
        "export.model2vec=true is for vectors of single pieces, and the student has student.buckets=131072",
    ),
    "a learning rate of 0 for the tables": (
        _options("+student=static", "trainer.embeddings_learning_rate=0"),
        "got trainer.embeddings_learning_rate=0, expected",
    ),
    "a table that is never trained": (
        _options("trainer.frozen_embeddings=1"),
        "got trainer.frozen_embeddings=1, expected a share of the steps from 0 to below 1 or auto",
    ),
    "a table that is always compact": (
        _options("trainer.compact_embeddings=true"),
        "got trainer.compact_embeddings=true, expected auto or false",
    ),
    "a negative weight decay": (
        _options("trainer.weight_decay=-1"),
        "got trainer.weight_decay=-1, expected a number of at",
    ),
    "one beta": (_options("trainer.betas=[0.9]"), "got trainer.betas"),
    "an eps of 0": (_options("trainer.eps=0"), "got trainer.eps=0, expected a number above 0"),
    "an invalid record.texts": (_options("record.texts=perhaps"), "got record.texts=perhaps, expected true or false"),
    "a tracker without a key": (
        _options("logger=[csv,wandb]", "logger.wandb.mode=online"),
        "logger.wandb.mode=online needs a key of Weights & Biases, and there is none: run `wandb login`",
    ),
    "a mode of a tracker": (
        _options("logger=wandb", "logger.wandb.mode=on"),
        "got logger.wandb.mode=on, expected one of online, offline, disabled",
    ),
    "a misspelt option of a tracker": (
        _options("logger=[csv,wandb]", "logger.wandb.projekt=toy"),
        "did you mean logger.wandb.project?",
    ),
}


def arguments(user_files: UserFiles, *options: str) -> list[str]:
    given = list(options)
    if not any(option.startswith("+student=") for option in given):
        given.insert(0, "+student=distilbert")
    if not any(option.startswith("task=") for option in given):
        given[:0] = ["task=classification", "task.text=[sentence]"]
    defaults = {
        "teacher.path": user_files.encoder, "task.data_dir": user_files.data, "task.max_length": 32,
        "output_dir": user_files.root / "runs", "cache_dir": user_files.root / "cache",
    }  # fmt: skip
    given += [f"{key}={value}" for key, value in defaults.items() if not any(o.startswith(f"{key}=") for o in given)]
    return ["+teacher=pretrained", *given]


@pytest.fixture
def distill(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Runs the command in this process; training raises an error."""

    def run(*options: str) -> int:
        monkeypatch.setattr(sys, "argv", ["distill", *options])
        return command_line.main()

    def no_training(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("something is trained")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))  # Without keys.
    for name in ("HYDRA_FULL_ERROR", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(fitting, "fit", no_training)
    return run


@pytest.mark.parametrize("mistake", MISTAKES)
def test_bad_input_is_reported_in_one_line(
    mistake: str, user_files: UserFiles, distill: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, expected = MISTAKES[mistake]
    options = arguments(user_files, *spoil(user_files))
    capsys.readouterr()  # Models that are saved show their progress.
    code = distill(*options)
    lines = capsys.readouterr().err.strip().splitlines()
    assert code == 2, lines
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    assert expected in lines[0]


def test_the_valid_files_reach_training(user_files: UserFiles, distill: Callable[..., int]) -> None:
    with pytest.raises(AssertionError, match="something is trained"):
        distill(*arguments(user_files))


def test_a_full_disk_is_reported_in_one_line_and_leaves_no_partial_checkpoint(user_files: UserFiles) -> None:
    """Limits the size of a file to less than that of the teacher's first checkpoint."""
    done = subprocess.run(
        [
            sys.executable, "-m", "distill", *arguments(user_files), "trainer.max_steps=2",
            "teacher.finetune.max_steps=2",
        ],
        cwd=user_files.root, capture_output=True, text=True, check=False, timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: there is no room left to write in output_dir=")
    assert "Traceback" not in done.stderr
    assert not [path for path in user_files.root.rglob("*") if ".ckpt" in path.name]


def test_a_directory_is_removed_if_the_disk_is_full(user_files: UserFiles) -> None:
    """Limits the size of a file so that only the second one of the directory fails."""
    program = (
        "import resource, pathlib, sys\n"
        "from distill.core.files import is_full_disk, atomic_directory\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    with atomic_directory(pathlib.Path('cache/teacher')) as draft:\n"
        "        (draft / 'small').write_bytes(bytes(10))\n"
        "        (draft / 'large').write_bytes(bytes(5000))\n"
        "except OSError as error:\n"
        "    sys.exit(7 if is_full_disk(error) else 8)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=user_files.root, capture_output=True, check=False)
    assert done.returncode == 7, done.stderr
    assert list((user_files.root / "cache").iterdir()) == []


@pytest.mark.parametrize("trained", [False, True])
def test_ctrl_c_reports_the_checkpoint_and_how_to_resume(user_files: UserFiles, trained: bool) -> None:
    options = [
        "teacher.finetune.max_steps=2",
        "teacher.accept_weak=true",
        "trainer.max_epochs=2000",
        "trainer.batch_size=8",
        "trainer.evaluations=4",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "distill", *arguments(user_files), *options], cwd=user_files.root, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ),
        # A test run in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    awaited = "checkpoints/last.ckpt" if trained else "run.json"
    runs = user_files.root / "runs" / "classification" / "pretrained-distilbert"
    deadline = time.monotonic() + 90
    try:
        while (
            not find_files(runs, f"{runs.name}/*/{awaited}") and time.monotonic() < deadline and process.poll() is None
        ):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 130, error
    [directory] = runs.iterdir()
    last = error.strip().splitlines()[-1]
    if trained:
        assert "last.ckpt holds the training so far" in last
    else:
        assert "interrupted before the first checkpoint" in last
    assert f"resume={directory.relative_to(user_files.root) if not directory.is_absolute() else directory}" in last
    assert "Traceback" not in error
