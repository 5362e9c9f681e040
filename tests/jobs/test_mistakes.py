"""Every kind of bad input is answered in one line, with exit code 2, before anything is trained.

Each goes through the command itself, in this process: its imports are paid for once.
"""

import gzip
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
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from distill import __main__ as command_line
from distill.losses import Term
from distill.training import fitting
from teachers.embedded import train_tokenizer
from tests.conftest import sentences, toy_bert


class AttentionTerm(Term):
    """Reads an output that a model with fused attention does not have."""

    needs = frozenset({"attentions"})

    def forward(self, student: Any, teacher: Any, items: Any) -> tuple[Tensor, Tensor]:
        raise AssertionError("it must be noticed before")


class Place:
    """A user's files: good ones, of which a test spoils one."""

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
        """A teacher with a trained head for so many labels."""
        model = toy_bert(len(self.tokenizer))
        model.config.num_labels = labels
        type(model)(model.config).save_pretrained(self.root / "classifier")
        self.tokenizer.save_pretrained(self.root / "classifier")
        return self.root / "classifier"

    def other_student(self) -> Path:
        """A model with a vocabulary of the same size and other tokens."""
        other = train_tokenizer([text[::-1] for text, _ in sentences(64)], len(self.tokenizer))
        toy_bert(max(len(other), len(self.tokenizer))).save_pretrained(self.root / "student")
        other.save_pretrained(self.root / "student")
        return self.root / "student"


@pytest.fixture
def place(tmp_path: Path, encoder_dir: Path, tokenizer: PreTrainedTokenizerBase) -> Place:
    return Place(tmp_path, encoder_dir, tokenizer)


def _no_pickle(place: Place) -> list[str]:
    directory = place.root / "pickle"
    directory.mkdir()
    (directory / "config.json").write_text((place.encoder / "config.json").read_text())
    (directory / "pytorch_model.bin").write_bytes(b"anything")
    return [f"teacher.path={directory}"]


def _no_weights(place: Place) -> list[str]:
    options = _no_pickle(place)
    (place.root / "pickle" / "pytorch_model.bin").unlink()
    return options


def _no_tokenizer(place: Place) -> list[str]:
    toy_bert(len(place.tokenizer)).save_pretrained(place.root / "bare")
    return [f"teacher.path={place.root / 'bare'}"]


def _damaged(place: Place) -> list[str]:
    directory = place.classifier(2)
    (directory / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    return [f"teacher.path={directory}"]


def _spoiled(split: str, content: bytes, suffix: str = "tsv") -> Callable[[Place], list[str]]:
    def spoil(place: Place) -> list[str]:
        (place.data / f"{split}.tsv").unlink()
        (place.data / f"{split}.{suffix}").write_bytes(content)
        return []

    return spoil


def _options(*options: str) -> Callable[[Place], list[str]]:
    return lambda place: list(options)


def _in_the_way(place: Place) -> Path:
    (place.root / "file").write_text("in the way")
    return place.root / "file"


REGRESSION = ("task=regression", "task.text=[sentence]")
WEIGHTS = [f"objective.terms.{name}.weight=0" for name in ("soft", "hard", "cosine")]
ATTENTION = "+objective.terms.attention={_target_: tests.jobs.test_mistakes.AttentionTerm}"
# What a user may get wrong -> how to get it wrong, and what the one line must say.
MISTAKES: dict[str, tuple[Callable[[Place], list[str]], str]] = {
    "a directory that is not there": (_options("task.data_dir=nowhere"), "task.data_dir=nowhere does not exist"),
    "no dev file": (_spoiled("dev", b"", "txt"), "has no dev or validation file (found dev.txt, train.tsv)"),
    "an empty file": (_spoiled("dev", b""), "dev.tsv is empty, expected a header and examples"),
    "a header alone": (_spoiled("train", b"sentence\tlabel\n"), "train.tsv has a header and no examples"),
    "a missing text column": (_options("task.text=[review]"), "has no column review: it has sentence, label"),
    "a misnamed label column": (_options("task.label=stars"), "has no column stars: it has sentence, label"),
    "a label that train lacks": (
        _spoiled("dev", b"sentence\tlabel\na\t7\n"),
        "dev.tsv, example 1: label '7' is unknown",
    ),
    "a word for a number": (
        lambda p: [*REGRESSION, *_spoiled("train", b"sentence\tlabel\na\t1\nb\tgood\n")(p)],
        "train.tsv, example 2: label 'good' is no number",
    ),
    "one class only": (_spoiled("train", b"sentence\tlabel\na\t1\nb\t1\n"), "train.tsv has one class only (1)"),
    "an empty text": (
        _spoiled("dev", b"sentence\tlabel\na\t1\n \t0\n"),
        "example 2: column sentence is ' ', expected text",
    ),
    "a text that is a number": (
        _spoiled("dev", b'{"sentence": 3, "label": 1}\n', "jsonl"),
        "dev.jsonl, example 1: column sentence is 3, expected text",
    ),
    "broken UTF-8": (_spoiled("dev", b"sentence\tlabel\ncaf\xe9\t1\n"), "dev.tsv cannot be read: 'utf-8' codec"),
    "a row with too many fields": (
        _spoiled("train", b"sentence\tlabel\na\t1\nb\t0\tx\n"),
        "train.tsv cannot be read: ",
    ),
    "one class where the task names two": (
        lambda p: ["task=sst2", *_spoiled("train", b"sentence\tlabel\na\t1\nb\t1\n")(p)],
        "train.tsv has one class only (1)",
    ),
    "a file that is cut short": (
        _spoiled("dev", gzip.compress(b"sentence\tlabel\na\t1\n" * 50)[:-20], "tsv.gz"),
        "dev.tsv.gz cannot be read: ",
    ),
    "a file of no known kind": (lambda p: [f"task.data_dir={_in_the_way(p)}"], "is of no known kind, expected one of"),
    "a teacher that is not there": (_options("teacher.path=nowhere"), "teacher.path=nowhere is no directory"),
    "a teacher without weights": (_no_weights, "holds no weights: save the model there again as safetensors"),
    "a teacher with a pickle": (_no_pickle, "holds only pytorch_model.bin, which can run code when read"),
    "a teacher with other labels": (
        lambda p: [f"teacher.path={p.classifier(3)}", "teacher.finetune=false"],
        "does not fit task classification: it has 3 labels and the task 2",
    ),
    "another vocabulary": (
        lambda p: ["+student=pretrained", f"student.path={p.other_student()}"],
        "teacher and student read different tokens: ",
    ),
    "a teacher without a tokenizer": (_no_tokenizer, "holds no tokenizer: call tokenizer.save_pretrained"),
    "a teacher whose weights are damaged": (_damaged, "cannot be loaded: "),
    "a student that is not there": (
        _options("+student=pretrained", "student.path=nowhere"),
        "student.path=nowhere is no directory",
    ),
    "a layer out of range": (_options("student.layers=[0,9]"), "student.layers has 9, expected indices from 0 to 3"),
    "a layer twice": (_options("student.layers=[0,0]"), "student.layers=[0, 0] repeats a layer"),
    "a number of layers": (
        _options("student.layers=3"),
        "student.layers=3 is one number: student.depth=3 copies this many layers",
    ),
    "half a layer": (_options("student.depth=1.5"), "student.depth=1.5 is no whole number"),
    "no layer": (_options("student.layers=[]"), "student.layers=[] keeps no layer"),
    "a temperature of 0": (
        _options("objective.terms.soft.temperature=0"),
        "got temperature 0, expected a number above 0",
    ),
    "a negative weight": (
        _options("objective.terms.hard.weight=-1"),
        "got weight -1 for HardLabels, expected 0 or more",
    ),
    "no weight above 0": (_options(*WEIGHTS), "objective distilbert has nothing to learn from (soft, hard, cosine)"),
    "a batch of nothing": (_options("trainer.batch_size=0"), "got trainer.batch_size=0, expected a whole number of"),
    "a teacher's batch of nothing": (
        _options("teacher.finetune.batch_size=0"),
        "error: got teacher.finetune.batch_size=0, expected a whole number of at least 1",
    ),
    "an output that is not given": (_options(ATTENTION), "the term attention needs attentions, which the teacher"),
    "a term for other tasks": (
        _options("objective=language_model"),
        "objective language_model has the term mlm, which cannot learn task classification (classification)",
    ),
    "classes asked of a number": (
        lambda p: [*REGRESSION, "objective=pseudo_label"],
        "has the term pseudo_label, which cannot learn task regression (regression)",
    ),
    "an output directory in a file": (lambda p: [f"output_dir={_in_the_way(p)}/runs"], "cannot be created"),
    "a cache directory in a file": (lambda p: [f"cache_dir={_in_the_way(p)}/cache"], "cannot be created"),
    "too long for the teacher": (_options("task.max_length=100"), "but the teacher reads 80 tokens at most"),
    "a metric of another task": (
        _options("task.metrics=[pearson]"),
        "got task.metrics=[pearson], expected a list of some of accuracy, f1",
    ),
    "labels that are no words": (
        _options("task.labels=[true,false]"),
        "got task.labels=[true, false], expected at least two names, quoted if",
    ),
    "a length of nothing": (_options("benchmark.lengths=[0]"), "got benchmark.lengths=[0], expected whole numbers"),
    "batches of no size": (_options("trainer.batch_size=null"), "got neither batch_size nor batch_tokens"),
    "a compiler perhaps": (_options("trainer.compile=perhaps"), "got trainer.compile=perhaps, expected true or"),
    "a teacher without a cache": (
        _options("teacher.cache=null"),
        "the teacher's YAML has no cache: add /cache@cache: default to its defaults list",
    ),
    "a budget of no tokens": (
        _options("trainer.batch_tokens=0"),
        "got trainer.batch_tokens=0, expected a whole number of at least 1 or null",
    ),
    "a budget below one example": (
        _options("trainer.batch_tokens=30"),
        "got trainer.batch_tokens=30, expected at least task.max_length=32, the longest example: raise",
    ),
    "a teacher's budget below one example": (
        _options("teacher.finetune.batch_tokens=30"),
        "got teacher.finetune.batch_tokens=30, expected at least task.max_length=32, the longest example",
    ),
    "outputs that are perhaps cached": (
        _options("teacher.cache.enabled=perhaps"),
        "got teacher.cache.enabled=perhaps, expected auto, true or false",
    ),
    "outputs that cannot be cached": (
        _options("teacher.cache.enabled=true"),
        "cannot cache teacher outputs (teacher.cache.enabled=true): cosine reads hidden states: "
        "teacher.cache.hidden=true caches those too",
    ),
    "outputs without room": (
        _options("teacher.cache.max_gb=1e-9", "objective=hinton"),
        "more than teacher.cache.max_gb=1e-09: raise it, or set teacher.cache.enabled=false",
    ),
    "a decay below 0": (_options("trainer.weight_decay=-1"), "got trainer.weight_decay=-1, expected a number of at"),
    "a seed below 0": (_options("seed=-1"), "got seed=-1, expected a whole number"),
    "an unknown accelerator": (
        _options("trainer.accelerator=tpu"),
        "got trainer.accelerator=tpu, expected one of auto, cpu, gpu, cuda, mps",
    ),
    "a misspelt option": (_options("trainer.max_epoch=1"), "did you mean trainer.max_epochs?"),
    "a misspelt name": (_options("objective=hintn"), "there is no objective hintn (did you mean hinton?)"),
}


def arguments(place: Place, *options: str) -> list[str]:
    given = list(options)
    if not any(option.startswith("+student=") for option in given):
        given.insert(0, "+student=distilbert")
    if not any(option.startswith("task=") for option in given):
        given[:0] = ["task=classification", "task.text=[sentence]"]
    defaults = {
        "teacher.path": place.encoder, "task.data_dir": place.data, "task.max_length": 32,
        "output_dir": place.root / "runs", "cache_dir": place.root / "cache",
    }  # fmt: skip
    given += [f"{key}={value}" for key, value in defaults.items() if not any(o.startswith(f"{key}=") for o in given)]
    return ["+teacher=pretrained", *given]


@pytest.fixture
def distill(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """The command in this process; training is not allowed."""

    def run(*options: str) -> int:
        monkeypatch.setattr(sys, "argv", ["distill", *options])
        return command_line.main()

    def no_training(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("something is trained")

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.setattr(fitting, "fit", no_training)
    return run


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_answered_in_one_line(
    kind: str, place: Place, distill: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, expected = MISTAKES[kind]
    options = arguments(place, *spoil(place))
    code = distill(*options)
    told = capsys.readouterr().err.strip().splitlines()
    assert code == 2, told
    assert len(told) == 1, told
    assert told[0].startswith("error: ")
    assert expected in told[0]


def test_the_good_files_are_good(place: Place, distill: Callable[..., int]) -> None:
    with pytest.raises(AssertionError, match="something is trained"):
        distill(*arguments(place))


def test_a_full_disk_is_answered_in_one_line_and_leaves_nothing_half_written(place: Place) -> None:
    """The largest file that this process may write is smaller than the teacher's first checkpoint."""
    done = subprocess.run(
        [sys.executable, "-m", "distill", *arguments(place), "trainer.max_steps=2", "teacher.finetune.max_steps=2"],
        cwd=place.root, capture_output=True, text=True, check=False, timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: there is no room left to write in output_dir=")
    assert "Traceback" not in done.stderr
    assert not [path for path in place.root.rglob("*") if ".ckpt" in path.name]


def test_a_directory_that_could_not_be_filled_is_not_there(place: Place) -> None:
    """A teacher's files are too large where its checkpoints are not: they end as they began, with nothing."""
    program = (
        "import resource, pathlib, sys\n"
        "from distill.files import is_full_disk, atomic_directory\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    with atomic_directory(pathlib.Path('cache/teacher')) as draft:\n"
        "        (draft / 'small').write_bytes(bytes(10))\n"
        "        (draft / 'large').write_bytes(bytes(5000))\n"
        "except OSError as error:\n"
        "    sys.exit(7 if is_full_disk(error) else 8)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=place.root, capture_output=True, check=False)
    assert done.returncode == 7, done.stderr
    assert list((place.root / "cache").iterdir()) == []


@pytest.mark.parametrize("trained", [False, True])
def test_ctrl_c_says_what_is_kept_and_how_to_go_on(place: Place, trained: bool) -> None:
    options = [
        "teacher.finetune.max_steps=2",
        "trainer.max_epochs=2000",
        "trainer.batch_size=8",
        "trainer.evaluations=4",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "distill", *arguments(place), *options], cwd=place.root, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "2"},
        # A test run in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    wanted = "checkpoints/last.ckpt" if trained else "run.json"
    runs = place.root / "runs" / "classification" / "pretrained-distilbert"
    deadline = time.monotonic() + 90
    try:
        while not list(runs.glob(f"*/{wanted}")) and time.monotonic() < deadline and process.poll() is None:
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
    assert f"resume={directory.relative_to(place.root) if not directory.is_absolute() else directory}" in last
    assert "Traceback" not in error
