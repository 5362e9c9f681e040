"""Toy teachers, data and trainings, built offline in seconds."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
os.environ["OMP_NUM_THREADS"] = "1"  # For each test, and for the subprocesses that inherit it.

import gc
import io
import logging
import multiprocessing
import shlex
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from hydra.core.plugins import Plugins
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from distill import __main__ as command_line
from distill.chain import encoding
from distill.core.contracts import Items, Outputs, Scores, Task
from distill.data import batches
from distill.data import splits as tables
from distill.edge import bundle_files
from distill.export.quantization import ExportSettings
from distill.kinds import Classification
from distill.losses import Cosine, HardLabels, Objective, SoftTargets
from distill.losses.term import EncoderSize
from distill.models.forward import segment_logits
from distill.models.surgery.embeddings import choose_pieces
from distill.records import plots
from distill.teachers.output_cache import Cached
from distill.teachers.signal import Live
from distill.text.vocabulary import train_word_pieces
from distill.training import fitting
from distill.training.hyperparameters import TrainerSettings
from distill.training.module import DistillationModule
from distill.training.processes import start_method
from tests.composition import quick_composition
from tests.exports import quick_exports

with suppress(ImportError):  # Of TensorBoard and OpenVINO. It would close the output that pytest captures.
    from absl import logging as absl_logging

    absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__

# Hydra's search for plugins defines its basic sweeper anew, so that it comes before tests import our sweepers.
Plugins.instance()

CHROMIUM = shutil.which("chromium")  # Of the machine, which .ci/run installs.
GOOD = ("a lovely and moving film", "wonderful acting , a joy", "funny , warm and clever", "i loved every minute")
BAD = ("a dull and lifeless mess", "terrible acting , a bore", "stale , cold and stupid", "i hated every minute")
LABELS = ("negative", "positive")

# Every file passes its gate, so that the first recipe of quantization is taken.
_LIMITS = {"max_drop": 1.0, "min_agreement": 0.0, "max_probability_diff": 1.0, "max_ece_rise": 1.0}
LOOSE = ExportSettings(**_LIMITS)
LOOSE_OPTIONS = tuple(f"export.{name}={limit}" for name, limit in _LIMITS.items())


def sentences(count: int) -> list[tuple[str, int]]:
    """Returns sentences of different lengths that a toy model can tell apart."""
    rows = []
    for index in range(count):
        label = index % 2
        source = GOOD if label else BAD
        text = " ".join(source[(index // 2 + k) % len(source)] for k in range(1 + index % 3))
        rows.append((f"{text} {index}", label))
    return rows


def write_corpus(root: Path) -> Path:
    """Writes thirty files of short sentences."""
    for number in range(30):
        lines = [f"{(GOOD + BAD)[(number * 3 + line) % 8].capitalize()} {line}." for line in range(10 + number % 7)]
        (root / f"{number:02}.txt").write_text("\n".join(lines), encoding="utf-8")
    return root


EXPENSIVE = (
    "chain", "killed", "two_rank_training", "sweep", "result", "exported", "prepared", "recorded_fit",
    "ray_cluster", "written", "keys", "bart",
)  # fmt: skip


# Files whose tests take many seconds each: they come first, so that no worker is left alone with one at the end.
LONGEST = ("test_distributed", "test_launchers", "test_run", "test_urls", "test_mistakes", "test_api", "test_bilstm")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sends the tests of a fixture that takes many seconds to one worker, so that it is built once.

    Tests that leave OpenVINO in their process come last: a training in a process that has run it may die.
    """
    alone = [(item, item.get_closest_marker("alone")) for item in items]
    last = {item for item, marker in alone if marker is not None and marker.kwargs.get("last")}
    items.sort(key=lambda item: (item in last, item.path.stem not in LONGEST))
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(0))
        for fixture in EXPENSIVE:
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(f"{item.path.stem}.{fixture}"))
                break


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Takes what the imports have made out of Python's search for garbage, which a training begins with.

    It would look at millions of objects, half a second each time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, in a process that the tests of a module share."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra dev")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(autouse=True, scope="module")
def frozen() -> Iterator[None]:
    """Does the same with what a file of tests has imported."""
    yield
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Begins the tests marked `alone` in a process of their own, beside the others of a plain `python -m pytest`."""
    config = session.config
    is_worker = hasattr(config, "workerinput")
    has_default_marks = config.option.markexpr in config.getini("addopts")
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and has_default_marks
    if is_worker or not is_whole or config.option.collectonly:
        return
    command = [sys.executable, "-m", "pytest", *config.invocation_params.args, "-m", "alone and not slow", "-n", "0"]
    output = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - Closed with the process.
    process = subprocess.Popen(command, cwd=config.invocation_params.dir, stdout=output, stderr=subprocess.STDOUT)
    config.stash[_ALONE] = shlex.join(command[1:]), process, output


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Waits for the tests marked `alone`, and fails where they do."""
    if _ALONE not in session.config.stash:
        return
    _, process, _ = session.config.stash[_ALONE]
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        process.terminate()
    status = process.wait()
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Prints what the tests marked `alone` have printed, behind all else, where the end of a log shows it."""
    if _ALONE in config.stash:
        command, process, output = config.stash[_ALONE]
        output.seek(0)
        print(f"\nthe tests marked alone: {command}\n{output.read()}exit status {process.returncode}", flush=True)


_ALONE = pytest.StashKey[tuple[str, subprocess.Popen[bytes], IO[str]]]()


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Restores the levels and loggers that Hydra changes for its process when a test runs the command."""
    level, disabled = logging.root.level, {name for name, logger in _loggers().items() if logger.disabled}
    yield
    logging.root.setLevel(level)
    for name, logger in _loggers().items():
        logger.disabled = name in disabled  # Also of a logger that the test has created.


def _loggers() -> dict[str, logging.Logger]:
    loggers = logging.root.manager.loggerDict
    return {name: logger for name, logger in loggers.items() if isinstance(logger, logging.Logger)}


@pytest.fixture(autouse=True, scope="session")
def empty_figures() -> Iterator[None]:
    """Leaves out the drawing of figures, a second for each run. The fixture `drawn` is for tests of figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "_render", lambda *_: b"<svg></svg>")
        yield


@pytest.fixture(autouse=True, scope="session")
def composition() -> Iterator[None]:
    with quick_composition():
        yield


@pytest.fixture(autouse=True, scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    root = tmp_path_factory.getbasetemp()
    directory = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "graphs"
    directory.mkdir(exist_ok=True)
    with quick_exports(directory):
        yield


_RENDER = plots._render


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws the figures."""
    monkeypatch.setattr(plots, "_render", _RENDER)


_COPIES = tables.COPIES


@pytest.fixture(autouse=True, scope="session")
def no_copies() -> Iterator[None]:
    """Makes no copies by default, which every run would label. The fixture `copies` is for tests of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "COPIES", 0)
        yield


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the copies of the default configuration."""
    monkeypatch.setattr(tables, "COPIES", _COPIES)


@pytest.fixture(autouse=True, scope="session")
def no_chosen_baseline() -> Iterator[None]:
    """Leaves out the baselines that `baseline=auto` trains. The fixture `chosen_baseline` is for tests of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "LARGEST_SHARE", 0.0)
        yield


LARGEST_SHARE = encoding.LARGEST_SHARE


@pytest.fixture
def chosen_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains a baseline where `baseline=auto` chooses one."""
    monkeypatch.setattr(encoding, "LARGEST_SHARE", LARGEST_SHARE)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Runs and times models on one core, because the others have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundle_files, "count_cores", lambda: 1)
        yield


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_word_pieces([text for text, _ in sentences(64)], 300)


def run_here(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command in this process, which saves the seconds of the imports."""
    output, error = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(error):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["distill", *arguments])
        code = command_line.main()
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), error.getvalue())


def run_concurrently(work: Callable[..., None], directory: Path) -> list[Any]:
    """Runs `work(directory, barrier, results)` in three processes at once; returns what they put into `results`."""
    context = multiprocessing.get_context(start_method("cpu"))
    barrier, results = context.Barrier(3), context.Queue()
    processes = [context.Process(target=work, args=(directory, barrier, results)) for _ in range(3)]
    for process in processes:
        process.start()
    values = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    return values


def outputs_at_items(output: Any, items: Items) -> Outputs:
    """Returns a model's full output as the terms read it, with its logits only at the items `[n, V]`."""
    logits = output.get("prediction_logits", output.get("logits"))
    return Outputs(
        logits=logits.flatten(0, 1)[items.index],
        hidden_states=output.get("hidden_states"),
        segment_logits=segment_logits(output),
    )


def stored_logits(outputs: Cached) -> np.ndarray:
    """Returns the cached logits of all items in the order of the examples."""
    numbers = range(len(outputs._shards))
    return np.concatenate([outputs._shard(number)["logits"].numpy() for number in numbers])


def cut_vocabulary(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, labelled: Iterable[str], unlabelled: Iterable[str] = ()
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Returns copies of a model and its tokenizer with the pieces that the texts need."""
    cut = choose_pieces(model, tokenizer, labelled, unlabelled)
    return cut.apply(model), cut.tokenizer


def randomize(model: PreTrainedModel) -> PreTrainedModel:
    """Returns the model in eval mode with other tensors, biases and norms too, so that a missing one shows."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


def toy_bert(
    vocab_size: int, *, layers: int = 4, seed: int = 0, width: int = 32, initializer_range: float = 0.3
) -> PreTrainedModel:
    """Returns a BERT with two labels, by default with weights large enough for differences to show."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=80,
        initializer_range=initializer_range,
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
    )
    return BertForSequenceClassification(config)


@pytest.fixture
def teacher(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    return toy_bert(len(tokenizer)).eval()


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory laid out as SST-2: 64 training examples, 24 in dev."""
    directory = tmp_path_factory.mktemp("data")
    for name, rows in (("train", sentences(64)), ("dev", sentences(24))):
        lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows)]
        (directory / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def encoder_dir(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase) -> Path:
    """A pre-trained encoder without a classification head, in float16 as many checkpoints are."""
    directory = tmp_path_factory.mktemp("encoder")
    encoder = toy_bert(len(tokenizer), initializer_range=0.05).bert.half()
    encoder.config.id2label, encoder.config.label2id = {0: "LABEL_0", 1: "LABEL_1"}, {"LABEL_0": 0, "LABEL_1": 1}
    encoder.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


# 64 training examples: four steps an epoch.
SETTINGS = TrainerSettings(
    learning_rate=3e-3, batch_size=16, max_epochs=2, precision="32-true", accelerator="cpu", seed=1
)


@dataclass
class Toy:
    """A module that is ready to be fitted, with its loaders, settings and tokenizer."""

    module: DistillationModule
    loaders: dict[str, Any]
    settings: TrainerSettings
    tokenizer: PreTrainedTokenizerBase
    directory: Path

    def fit(self, *, resume: bool = False, logger: Any = None) -> fitting.Fit:
        return fitting.fit(
            self.module, self.loaders["train"], self.loaders["dev"], settings=self.settings,
            checkpoints=self.directory / "checkpoints", logger=logger, title="toy", resume=resume,
        )  # fmt: skip


MakeToy = Callable[..., Toy]


@pytest.fixture(scope="session")
def task(data_dir: Path) -> Classification:
    return Classification(name="toy", text=["sentence"], data_dir=str(data_dir))


@pytest.fixture(scope="session")
def splits(task: Classification, tmp_path_factory: pytest.TempPathFactory) -> tables.LabelledData:
    return task.read(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def make_toy(
    task: Classification,
    splits: tables.LabelledData,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path_factory: pytest.TempPathFactory,
) -> MakeToy:
    """Returns `build_toy` with the session's task and data, and a new directory by default."""

    def build(*, directory: Path | None = None, **options: Any) -> Toy:
        return build_toy(task, splits, tokenizer, directory or tmp_path_factory.mktemp("run"), **options)

    return build


def live(teacher: PreTrainedModel, objective: Objective, task: Task) -> Live:
    """Returns the signal of a teacher that runs in every step."""
    return Live(teacher, task, objective, reason="a test")


def build_toy(
    task: Classification,
    splits: tables.LabelledData,
    tokenizer: PreTrainedTokenizerBase,
    directory: Path,
    *,
    teacher_width: int = 32,
    dropout: float = 0.1,
    cosine: float = 1,
    **options: Any,
) -> Toy:
    """Builds a two-layer student of width 32 with soft, hard and cosine terms; `options` are the trainer's."""
    teacher = toy_bert(len(tokenizer), width=teacher_width)
    source = teacher if teacher_width == 32 else toy_bert(len(tokenizer))
    source.config.hidden_dropout_prob = source.config.attention_probs_dropout_prob = dropout
    settings = replace(SETTINGS, **options)
    loaders = batches.all_loaders(task.encode(splits, tokenizer, None), **settings.batches())
    terms = {"soft": SoftTargets(weight=5), "hard": HardLabels(weight=2), "cosine": Cosine(weight=cosine)}
    objective = Objective(name="distilbert", terms=terms)
    torch.manual_seed(0)
    objective.connect(EncoderSize(32, 2), EncoderSize(teacher_width, 4))
    module = DistillationModule(
        student=from_teacher(source).eval(), objective=objective, task=task, scoring=splits.scoring,
        signal=live(teacher, objective, task), settings=settings, steps_per_epoch=len(loaders["train"]),
    )  # fmt: skip
    return Toy(module, loaders, settings, tokenizer, directory)


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.fixture(scope="session")
def uninterrupted(make_toy: MakeToy) -> Toy:
    toy = make_toy()
    toy.fit()
    return toy


def record_steps(toy: Toy) -> list[list[int]]:
    """Returns a list that fills with the example ids of every optimizer step."""
    seen: list[list[int]] = []
    original = toy.module.training_step

    def training_step(micro_batches: list[dict[str, Tensor]], batch_idx: int) -> None:
        seen.append([i for batch in micro_batches for i in batch["example_id"].tolist()])
        original(micro_batches, batch_idx)

    toy.module.training_step = training_step  # type: ignore[method-assign]
    return seen


def fake_scores(toy: Toy, values: list[float], monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[str, Tensor]]]:
    """Replaces dev's scores by these values; returns a list that fills with the step and weights of each evaluation."""
    seen: list[tuple[int, dict[str, Tensor]]] = []

    def metrics(of_dev: Scores) -> dict[str, float]:
        assert (len(of_dev.columns["logits"]), len(of_dev.labels)) == (24, 24)
        seen.append((toy.module.global_step, weights(toy.module)))
        return {"accuracy": values[len(seen) - 1]}

    monkeypatch.setattr(type(toy.module.scoring), "metrics", staticmethod(metrics))
    return seen


def last_state(toy: Toy) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(toy.directory / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    return state


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket of an S3 server."""
    from moto.server import ThreadedMotoServer
    from s3fs import S3FileSystem

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    of = {"ENDPOINT_URL": f"http://{host}:{port}", "ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret"}
    for name, value in {**of, "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    S3FileSystem.clear_instance_cache()
    name = uuid.uuid4().hex  # All servers of a process have the same buckets.
    S3FileSystem().mkdir(name)
    yield f"s3://{name}"
    S3FileSystem.clear_instance_cache()
    server.stop()
