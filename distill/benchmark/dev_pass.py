"""Seconds of a whole pass over dev, one example at a time, each in its own length."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from distill.benchmark import latency
from distill.benchmark.comparison import Models, load_candidates, torch_threads
from distill.console import ProgressMeter, print_line
from distill.contracts import Examples
from distill.data.batching import loader
from distill.edge import cores

Feeds = Sequence[latency.Inputs]
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
    threads = threads or cores.count_cores()
    feeds = list(_read_feeds(examples, vocabulary or len(tokenizer)))
    tokens = sum(int(feed["attention_mask"].sum()) for feed in feeds)
    print_line(f"Timing a pass over {len(feeds):,} examples of dev, {tokens / len(feeds):.1f} tokens each")
    candidates = load_candidates(models, tokenizer, threads)
    with torch_threads(threads):
        seconds = _time_in_turns(candidates, feeds)
    return [
        {
            "model": candidate.model, "format": candidate.format, "seconds": duration, "examples": len(feeds),
            "tokens": tokens, "threads": threads,
        }
        for candidate, duration in zip(candidates, seconds, strict=True)
    ]  # fmt: skip


def _read_feeds(examples: Examples, vocabulary: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields the inputs `[S, L]` of each example, without the columns that are padding alone."""
    for [batch] in loader(examples, [[[index]] for index in range(len(examples))]):
        read = batch["attention_mask"].bool().any(dim=0)
        feed = {name: batch[name][:, read].numpy() for name in _INPUTS if name in batch}
        yield feed | {"input_ids": np.minimum(feed["input_ids"], vocabulary - 1)}


def _time_in_turns(candidates: Sequence[latency.Candidate], feeds: Feeds) -> list[float]:
    """Returns the seconds of each candidate. The first example of a turn is read once before, as a warm-up."""
    seconds = [0.0] * len(candidates)
    size = -(-len(feeds) // latency.TURNS)
    parts = [feeds[start : start + size] for start in range(0, len(feeds), size)]
    with ProgressMeter("timing dev", len(parts) * len(candidates), unit="turns") as progress:
        for part in parts:
            for number, candidate in enumerate(candidates):
                given = [{name: feed[name] for name in candidate.inputs} for feed in part]
                time.sleep(latency.PAUSE_SECONDS)
                candidate.run(given[0])
                begun = time.perf_counter()
                for feed in given:
                    candidate.run(feed)
                seconds[number] += time.perf_counter() - begun
                progress.advance(1)
    return seconds
