"""Latency of teacher, student and exported files in ms, with the same inputs and in turns, and its limits."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import onnxruntime
import psutil
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as checked_dataclass
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.console import ProgressMeter, print_line, print_notice
from distill.core.contracts import Examples
from distill.core.errors import UserError
from distill.core.options import STRICT, raise_option_errors
from distill.data.batches import loader
from distill.edge import bundle_files
from distill.edge.bundle_files import OpenVinoSession, Session, count_bytes, timed_name
from distill.edge.text_decoders import WholeTexts, open_model
from distill.models.compatibility import longest
from distill.models.forward import exported_inputs, run_exported
from distill.training.processes import torch_threads

SECONDS = 1.0
SHARE = 0.1  # Of the run before, that the timing may take.

Sizes = Annotated[
    Sequence[PositiveInt], Field(min_length=1, description="whole numbers of at least 1 in a list like [1,8]")
]


@raise_option_errors
@checked_dataclass(frozen=True, config=STRICT)
class BenchmarkSettings:
    """Settings of a benchmark, the keys of `conf/benchmark`.

    Args:
        batches: batch sizes B of the inputs `[B, L]`.
        lengths: lengths L of the inputs `[B, L]`, in tokens.
        enabled: whether anything is timed.
        teacher: whether to time the teacher too, in torch and as ONNX files.
        threads: number of threads of each runtime; None for as many as the process may use cores.
        seconds: time for each model, format, batch size and length, in s; `auto` for 1.0, or for less where all of them
            would take more than a tenth of a run.
        max_lengths: lengths that texts are cut to, in tokens, at which the exported files are scored besides
            `task.max_length`; None for none.
        dev_pass: whether a pass over all of dev is timed, one example at a time in its own length.
    """

    batches: Sizes = (1, 8)
    lengths: Sizes = (32, 128)
    enabled: bool = True
    teacher: bool = True
    threads: PositiveInt | None = None
    seconds: PositiveFloat | Literal["auto"] = "auto"
    max_lengths: Sizes | None = None
    dev_pass: bool = False

    def longest(self) -> float:
        """Returns the time for each model, format, batch size and length, in s, where nothing limits all of them."""
        return SECONDS if self.seconds == "auto" else self.seconds

    def choose_lengths(self, limit: int, readers: str) -> list[int]:
        """Returns the lengths up to a limit, or the limit alone, with a notice if some are left out.

        Args:
            readers: what reads no more, with its verb.
        """
        lengths = [length for length in self.lengths if length <= limit] or [limit]
        if len(lengths) < len(self.lengths):
            print_notice(f"timed at length {', '.join(map(str, lengths))} only: {readers} {limit} tokens at most")
        return lengths

    def limit(self, before: float) -> float:
        """Returns the time for all measurements, in s, in a run that took `before` s until now."""
        return SHARE * before if self.seconds == "auto" else math.inf


WIDTHS = (1.0, 0.75, 0.5, 0.25)  # Shares that are tried with `widths=true`.
Share = Annotated[float, Field(gt=0, le=1)]


@raise_option_errors
@checked_dataclass(frozen=True, config=STRICT)
class Budget:
    """Limits of the exported student, the keys of `budget` in `conf/config.yaml`.

    Args:
        mb: largest size of the int8 file, in MB of 1,000,000 bytes; None for any.
        ms: largest p50 of the int8 file in ms, for one text of the benchmark's smallest length; None for any.
        widths: shares of the teacher's heads and inner neurons, of which one is chosen too; true for `WIDTHS`, false
            for all of them.
    """

    mb: PositiveFloat | None = None
    ms: PositiveFloat | None = None
    widths: bool | Annotated[list[Share], Field(min_length=1)] = False

    @property
    def is_set(self) -> bool:
        """Returns whether there is a limit."""
        return self.mb is not None or self.ms is not None

    def shares(self) -> tuple[float, ...]:
        """Returns the shares that are tried; none if the width is not chosen."""
        if isinstance(self.widths, bool):
            return WIDTHS if self.widths else ()
        return tuple(self.widths)

    def allows(self, *, size: int, p50_ms: float) -> bool:
        """Returns whether a file of `size` bytes and this latency is within the limits."""
        return (self.mb is None or size <= self.mb * 1e6) and (self.ms is None or p50_ms <= self.ms)

    def __str__(self) -> str:
        limits = {"mb": self.mb, "ms": self.ms}
        return " ".join(f"budget.{name}={limit:g}" for name, limit in limits.items() if limit is not None)


def count_threads(session: Session) -> int:
    """Returns the threads that a session computes with, as its runtime says."""
    if isinstance(session, WholeTexts):
        return count_threads(session.decoder)
    if isinstance(session, OpenVinoSession):
        return session.threads
    assert isinstance(session, onnxruntime.InferenceSession)
    return int(session.get_session_options().intra_op_num_threads)


def runtime_of(timed_name: str) -> str:
    """Returns the runtime of a timed model by its name: `onnxruntime`, `openvino` or `torch`."""
    name = timed_name.partition("-")[0]
    return "onnxruntime" if name == "onnx" else name


def check_threads(runtimes: Iterable[tuple[str, int]], threads: int) -> str:
    """Returns the budget of all runtimes in words.

    Args:
        runtimes: the name and the threads of each, once for each file.

    Raises:
        UserError: for a runtime that computes with other than so many threads.
    """
    found = sorted(set(runtimes))
    for name, count in found:
        if count != threads:
            raise UserError(
                f"{name} computes with {count} thread(s), expected {threads} as all others: set job.threads to at most "
                "the cores of this machine, or leave its files out with job.formats"
            )
    return f"Threads: {threads} for each of {', '.join(name for name, _ in found)}"


TURNS = 4
RUNS_PER_TURN = 2  # At least.
# The threads of both runtimes spin for a while after a run, which would slow down the next candidate.
PAUSE_SECONDS = 0.05
NOISE = 2.0  # Of p90 over p50; at most 1.2 in a run on a quiet machine.
OTHER_WORK = 0.25  # Of a core, by other processes beyond the cores that the measured threads leave free.

Inputs = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Candidate:
    """Model in one format.

    Args:
        bytes: on disk.
        run: takes the arrays `[B, L]`, `[B, K, L]` or `[n]` of `inputs`.
        count_threads: returns the threads that its runtime computes with.
    """

    model: str
    format: str
    inputs: Sequence[str]
    bytes: int
    run: Callable[[Inputs], Any]
    count_threads: Callable[[], int]

    @classmethod
    def of_file(cls, model: str, format: str, inputs: Sequence[str], path: Path, session: Session) -> "Candidate":
        """Returns an exported file that is loaded; `format` is as `timed_name` returns it."""
        run = lambda feed: session.run(["logits"], dict(feed))  # noqa: E731
        if isinstance(session, onnxruntime.InferenceSession):  # A teacher may read by another tokenizer.
            inputs = [entry.name for entry in session.get_inputs()]
        return cls(model, format, inputs, count_bytes(path), run, partial(count_threads, session))


def load_candidate(model: str, format: str, path: Path, inputs: Sequence[str], threads: int) -> Candidate:
    """Loads an exported file of a format such as `fp32` with the session of the edge runtime."""
    return Candidate.of_file(model, timed_name(format, path), inputs, path, open_model(path, threads))


def measure_latency(
    candidates: Sequence[Candidate],
    *,
    batches: Sequence[int],
    lengths: Sequence[int],
    threads: int,
    seconds: float,
    vocabulary: int,
    choices: int | None = None,
    within: float = math.inf,
) -> list[dict[str, Any]]:
    """Returns the rows of run.json's `benchmark`: p50, p90 and p99 in ms of each candidate, batch size and length.

    `disturbed` says whether other processes kept busy the cores that were needed, or the times varied as if they had.
    A steady load shows in no spread, but slows down runtimes whose threads wait for each other by far more than others.
    With `choices`, an example is as many sequences of this length.

    The candidates take turns, because a machine that is slow for a while then slows down all of them. The first run of
    a turn is a warm-up and not counted. Each candidate takes `seconds` s for each batch size and length, or less where
    all of them together would take more than `within` s, but at least `TURNS * RUNS_PER_TURN` runs.
    """
    rows = []
    end = time.perf_counter() + within
    sizes = [(batch, length) for batch in batches for length in lengths]
    with ProgressMeter("timing", len(sizes) * TURNS * len(candidates), unit="turns") as progress:
        for number, (batch, length) in enumerate(sizes):
            feed = make_inputs((batch, length) if choices is None else (batch, choices, length), vocabulary)
            share = (end - time.perf_counter()) / (len(sizes) - number) / len(candidates)
            meter = _OtherWork(threads)
            times = _time_in_turns(candidates, feed, min(seconds, share - TURNS * PAUSE_SECONDS), progress)
            is_busy = meter.is_busy()
            for candidate, durations in zip(candidates, times, strict=True):
                found = percentiles(durations)
                rows.append({
                    "model": candidate.model, "format": candidate.format, "batch": batch, "length": length,
                    "threads": threads, "runs": len(durations), **found, "bytes": candidate.bytes,
                    "disturbed": is_busy or found["p90_ms"] > NOISE * found["p50_ms"],
                })  # fmt: skip
    return rows


def percentiles(seconds: ArrayLike) -> dict[str, float]:
    """Returns the percentiles of durations in ms."""
    return {f"p{q}_ms": 1000 * float(np.percentile(np.asarray(seconds), q)) for q in (50, 90, 99)}


def describe_disturbance(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns a sentence on rows that other work disturbed; None if there are none."""
    disturbed = sum(row["disturbed"] for row in rows)
    if not disturbed:
        return None
    return (
        f"the machine was busy during {disturbed} of {len(rows)} timings, so that times and speed-ups may be wrong by "
        "far: time them again when it is quiet"
    )


class _OtherWork:
    """The time that other processes and machines use the processors of this process, from its creation on."""

    def __init__(self, threads: int) -> None:
        self.limit = max(0, len(bundle_files.usable_processors()) - threads) + OTHER_WORK
        self._start = self._read()

    def is_busy(self) -> bool:
        """Returns whether they used more cores than the measured threads left free."""
        now, others = (end - start for end, start in zip(self._read(), self._start, strict=True))
        return others > self.limit * now

    @staticmethod
    def _read() -> tuple[float, float]:
        """Returns the time and the processor time of others, in s. Each is counted in steps of 10 ms."""
        processors, own = psutil.cpu_times(percpu=True), psutil.Process().cpu_times()
        usable = bundle_files.usable_processors()
        # Processors that are switched off are not listed, and the numbers of the others are then not their places.
        used = [processors[number] for number in usable] if max(usable) < len(processors) else processors
        counted = ("user", "nice", "system", "irq", "softirq", "steal")  # `guest` is part of `user`.
        total = sum(getattr(each, name, 0.0) for each in used for name in counted)
        return time.perf_counter(), total - own.user - own.system


def _time_in_turns(
    candidates: Sequence[Candidate], feed: Inputs, seconds: float, progress: ProgressMeter
) -> list[list[float]]:
    """Returns the durations of the counted runs of each candidate, in s."""
    times: list[list[float]] = [[] for _ in candidates]
    for _ in range(TURNS):
        for candidate, durations in zip(candidates, times, strict=True):
            inputs = {name: feed[name] for name in candidate.inputs}
            time.sleep(PAUSE_SECONDS)
            candidate.run(inputs)
            turn: list[float] = []
            while len(turn) < RUNS_PER_TURN or sum(turn) < seconds / TURNS:
                start = time.perf_counter()
                candidate.run(inputs)
                turn.append(time.perf_counter() - start)
            durations += turn
            progress.advance(1)
    return times


def make_inputs(shape: tuple[int, ...], vocabulary: int) -> Inputs:
    """Returns random tokens without padding; `positions` has the token in the middle of each sequence."""
    length = shape[-1]
    return {
        "input_ids": np.random.default_rng(0).integers(0, vocabulary, shape, dtype=np.int64),
        "attention_mask": np.ones(shape, dtype=np.int64),
        "token_type_ids": np.zeros(shape, dtype=np.int64),
        "positions": np.arange(np.prod(shape[:-1]), dtype=np.int64) * length + length // 2,
    }


Models = Mapping[str, tuple[PreTrainedModel, Mapping[str, Path]]]  # By name, each with its exported files by format.


def compare_models(
    models: Models,
    *,
    tokenizer: PreTrainedTokenizerBase,
    settings: BenchmarkSettings,
    choices: int | None = None,
    within: float = math.inf,
    vocabulary: int | None = None,
) -> list[dict[str, Any]]:
    """Measures all models and returns the `benchmark` of run.json.

    Args:
        models: each model by name, with its ONNX files by format.
        tokenizer: determines the size of the vocabulary and the longest input.
        choices: number of choices of an example, for models of choices.
        within: time for all measurements, in s.
        vocabulary: pieces that all of the models and files have; None for those of the tokenizer.
    """
    threads = settings.threads or bundle_files.count_cores()
    limit = min(longest(model, tokenizer) for model, _ in models.values())
    lengths = settings.choose_lengths(limit, f"{' or '.join(models)} read")
    print_line(f"Timing {' and '.join(models)}, each with {threads} thread(s)")
    candidates = load_candidates(models, tokenizer, threads)
    with torch_threads(threads):
        rows = measure_latency(
            candidates, batches=settings.batches, lengths=lengths, threads=threads,
            seconds=settings.longest(), vocabulary=vocabulary or len(tokenizer), choices=choices, within=within,
        )  # fmt: skip
    if disturbance := describe_disturbance(rows):
        print_notice(disturbance)
    return rows


def load_candidates(models: Models, tokenizer: PreTrainedTokenizerBase, threads: int) -> list[Candidate]:
    """Returns each model in torch, followed by its exported files, which compute with so many threads."""
    candidates = []
    for name, (model, files) in models.items():
        names = exported_inputs(model, tokenizer)
        candidates.append(torch_candidate(name, model, names))
        candidates += [load_candidate(name, format, path, names, threads) for format, path in files.items()]
    return candidates


def torch_candidate(name: str, model: PreTrainedModel, inputs: Sequence[str]) -> Candidate:
    """Returns a model in torch as a candidate."""
    model = model.cpu().eval()
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())

    def run(feed: Inputs) -> Any:
        with torch.inference_mode():
            return run_exported(model, {key: torch.from_numpy(array) for key, array in feed.items()})

    return Candidate(name, "torch", inputs, size, run, torch.get_num_threads)


Feeds = Sequence[Inputs]
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def time_dev_pass(
    models: Models,
    examples: Examples,
    *,
    tokenizer: PreTrainedTokenizerBase,
    threads: int | None,
    vocabulary: int | None = None,
) -> list[dict[str, Any]]:
    """Returns the `dev_pass` of run.json: the seconds of each model for all examples, without their tokenization.

    It is the measurement of DistilBERT (arXiv 1910.01108, table 3): a pass over the dev set of STS-B on a CPU, with a
    batch size of 1. The models take turns, each on a part of the examples, so that a machine that is slow for a while
    slows down all of them. An example of which several sequences are read has them in one batch.

    Args:
        models: each model by name, with its ONNX files by format.
        threads: of each runtime; None for as many as the process may use cores.
        vocabulary: pieces that all of the models and files have, the last of which is read in place of further ones;
            None for those of the tokenizer.
    """
    threads = threads or bundle_files.count_cores()
    feeds = list(_read_feeds(examples, vocabulary or len(tokenizer)))
    tokens = sum(int(feed["attention_mask"].sum()) for feed in feeds)
    print_line(f"Timing a pass over {len(feeds):,} examples of dev, {tokens / len(feeds):.1f} tokens each")
    candidates = load_candidates(models, tokenizer, threads)
    with torch_threads(threads):
        seconds = _time_examples_in_turns(candidates, feeds)
    about = {"examples": len(feeds), "tokens": tokens, "threads": threads}
    return [
        {"model": candidate.model, "format": candidate.format, "seconds": duration, **about}
        for candidate, duration in zip(candidates, seconds, strict=True)
    ]


def _read_feeds(examples: Examples, vocabulary: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields the inputs `[S, L]` of each example, without the columns that are padding alone."""
    for [batch] in loader(examples, [[[index]] for index in range(len(examples))]):
        read = batch["attention_mask"].bool().any(dim=0)
        feed = {name: batch[name][:, read].numpy() for name in _INPUTS if name in batch}
        yield feed | {"input_ids": np.minimum(feed["input_ids"], vocabulary - 1)}


def _time_examples_in_turns(candidates: Sequence[Candidate], feeds: Feeds) -> list[float]:
    """Returns the seconds of each candidate. The first example of a turn is read once before, as a warm-up."""
    seconds = [0.0] * len(candidates)
    size = -(-len(feeds) // TURNS)
    parts = [feeds[start : start + size] for start in range(0, len(feeds), size)]
    with ProgressMeter("timing dev", len(parts) * len(candidates), unit="turns") as progress:
        for part in parts:
            for number, candidate in enumerate(candidates):
                given = [{name: feed[name] for name in candidate.inputs} for feed in part]
                time.sleep(PAUSE_SECONDS)
                candidate.run(given[0])
                begun = time.perf_counter()
                for feed in given:
                    candidate.run(feed)
                seconds[number] += time.perf_counter() - begun
                progress.advance(1)
    return seconds
