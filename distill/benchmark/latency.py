"""How long a model takes for an answer, in ms: every model through the same code, in turns."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.edge.bundle import session

TURNS = 4
RUNS_A_TURN = 3  # At least.
# Both runtimes keep their threads spinning for a while after an answer, at the cost of whoever comes next.
PAUSE_SECONDS = 0.05

Inputs = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Candidate:
    """Something to time: `run` answers to arrays `[B, L]` of the names in `inputs`; `bytes` is its file's size."""

    model: str
    format: str
    inputs: Sequence[str]
    bytes: int
    run: Callable[[Inputs], Any]


def cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Not on macOS and Windows.
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def onnx_candidate(model: str, format: str, path: Path, inputs: Sequence[str], threads: int) -> Candidate:
    """An exported file, as the edge runtime loads it."""
    loaded = session(path, threads)
    return Candidate(model, format, inputs, path.stat().st_size, lambda feed: loaded.run(["logits"], dict(feed)))


def measure(
    candidates: Sequence[Candidate],
    *,
    batches: Sequence[int],
    lengths: Sequence[int],
    threads: int,
    seconds: float,
    vocabulary: int,
) -> list[dict[str, Any]]:
    """Rows of run.json's `benchmark`: p50, p90 and p99 in ms of each candidate, batch and length.

    The candidates take turns, so that a machine that is slow for a while is slow for all of them; the first run of a
    turn warms up and does not count. `seconds` is spent on each candidate at each batch and length.
    """
    rows = []
    for batch in batches:
        for length in lengths:
            feed = _feed(batch, length, vocabulary)
            times = _take_turns(candidates, feed, seconds)
            for candidate, taken in zip(candidates, times, strict=True):
                p50, p90, p99 = (1000 * float(np.percentile(taken, q)) for q in (50, 90, 99))
                rows.append(
                    {
                        "model": candidate.model, "format": candidate.format, "batch": batch, "length": length,
                        "threads": threads, "runs": len(taken), "p50_ms": p50, "p90_ms": p90, "p99_ms": p99,
                        "bytes": candidate.bytes,
                    }
                )  # fmt: skip
    return rows


def _take_turns(candidates: Sequence[Candidate], feed: Inputs, seconds: float) -> list[list[float]]:
    """Seconds of every counted run of each candidate."""
    times: list[list[float]] = [[] for _ in candidates]
    for _ in range(TURNS):
        for candidate, taken in zip(candidates, times, strict=True):
            own_feed = {name: feed[name] for name in candidate.inputs}
            time.sleep(PAUSE_SECONDS)
            candidate.run(own_feed)
            turn: list[float] = []
            while len(turn) < RUNS_A_TURN or sum(turn) < seconds / TURNS:
                start = time.perf_counter()
                candidate.run(own_feed)
                turn.append(time.perf_counter() - start)
            taken += turn
    return times


def _feed(batch: int, length: int, vocabulary: int) -> Inputs:
    """Random tokens without padding: what a full batch of this length costs."""
    shape = (batch, length)
    return {
        "input_ids": np.random.default_rng(0).integers(0, vocabulary, shape, dtype=np.int64),
        "attention_mask": np.ones(shape, dtype=np.int64),
        "token_type_ids": np.zeros(shape, dtype=np.int64),
    }
