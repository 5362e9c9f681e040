"""Latency of models in ms, measured with the same inputs and in turns."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from distill.benchmark.threads import count_threads
from distill.console import ProgressMeter
from distill.edge import cores
from distill.edge.model_files import count_bytes, timed_name
from distill.edge.whole_texts import open_model

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


def load_candidate(model: str, format: str, path: Path, inputs: Sequence[str], threads: int) -> Candidate:
    """Loads an exported file of a format such as `fp32` with the session of the edge runtime."""
    loaded, name = open_model(path, threads), timed_name(format, path)
    return Candidate(
        model, name, inputs, count_bytes(path), lambda feed: loaded.run(["logits"], dict(feed)),
        partial(count_threads, loaded),
    )  # fmt: skip


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
                p50, p90, p99 = (1000 * float(np.percentile(durations, q)) for q in (50, 90, 99))
                rows.append(
                    {
                        "model": candidate.model, "format": candidate.format, "batch": batch, "length": length,
                        "threads": threads, "runs": len(durations), "p50_ms": p50, "p90_ms": p90, "p99_ms": p99,
                        "bytes": candidate.bytes, "disturbed": is_busy or p90 > NOISE * p50,
                    }
                )  # fmt: skip
    return rows


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
        self.limit = max(0, len(cores.usable_processors()) - threads) + OTHER_WORK
        self._start = self._read()

    def is_busy(self) -> bool:
        """Returns whether they used more cores than the measured threads left free."""
        now, others = (end - start for end, start in zip(self._read(), self._start, strict=True))
        return others > self.limit * now

    @staticmethod
    def _read() -> tuple[float, float]:
        """Returns the time and the processor time of others, in s. Each is counted in steps of 10 ms."""
        processors, own = psutil.cpu_times(percpu=True), psutil.Process().cpu_times()
        usable = cores.usable_processors()
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
