"""Compares the latencies of teacher and student, in torch and as ONNX files."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.benchmark import latency
from distill.benchmark.settings import BenchmarkSettings
from distill.console import print_line, print_notice
from distill.edge import cores
from distill.models.checks import longest
from distill.models.forward import exported_inputs, run_exported

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
    threads = settings.threads or cores.count_cores()
    limit = min(longest(model, tokenizer) for model, _ in models.values())
    lengths = [length for length in settings.lengths if length <= limit] or [limit]
    if len(lengths) < len(settings.lengths):
        print_notice(
            f"timed at length {', '.join(map(str, lengths))} only: {' or '.join(models)} read {limit} tokens at most"
        )
    print_line(f"Timing {' and '.join(models)}, each with {threads} thread(s)")
    candidates = load_candidates(models, tokenizer, threads)
    with torch_threads(threads):
        rows = latency.measure_latency(
            candidates, batches=settings.batches, lengths=lengths, threads=threads,
            seconds=settings.longest(), vocabulary=vocabulary or len(tokenizer), choices=choices, within=within,
        )  # fmt: skip
    if disturbance := latency.describe_disturbance(rows):
        print_notice(disturbance)
    return rows


def load_candidates(models: Models, tokenizer: PreTrainedTokenizerBase, threads: int) -> list[latency.Candidate]:
    """Returns each model in torch, followed by its exported files, which compute with so many threads."""
    candidates = []
    for name, (model, files) in models.items():
        names = exported_inputs(model, tokenizer)
        candidates.append(torch_candidate(name, model, names))
        candidates += [latency.load_candidate(name, format, path, names, threads) for format, path in files.items()]
    return candidates


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Lets torch compute with so many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def torch_candidate(name: str, model: PreTrainedModel, inputs: Sequence[str]) -> latency.Candidate:
    """Returns a model in torch as a candidate."""
    model = model.cpu().eval()
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())

    def run(feed: latency.Inputs) -> Any:
        with torch.inference_mode():
            return run_exported(model, {key: torch.from_numpy(array) for key, array in feed.items()})

    return latency.Candidate(name, "torch", inputs, size, run, torch.get_num_threads)
