"""Peak speed of the machine, operations of a model, and a plain training step, shared by the benchmarks."""

import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # Imports this checkout, not an installed distill.

from distill.edge.bundle_files import this_target, weight_bits
from distill.export.quantization import RecipeInput
from distill.records.run import environment
from distill.training import hyperparameters


def measure_median_seconds(function: Callable[[], object], *, repeats: int = 8, warmup: int = 2) -> float:
    """Returns the median seconds of `repeats` calls, after `warmup` calls that are not timed."""
    seconds = []
    for number in range(warmup + repeats):
        synchronize()
        start = time.perf_counter()
        function()
        synchronize()
        if number >= warmup:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def synchronize() -> None:
    """Waits for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure_peak_flops(dtype: torch.dtype, device: str = "cpu") -> float:
    """Returns the operations per second of the fastest of two square matrix products."""
    best = 0.0
    for size in (1024, 2048) if device == "cpu" else (4096, 8192):
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        best = max(best, 2 * size**3 / measure_median_seconds(functools.partial(torch.matmul, left, right)))
    return best


def has_bf16() -> bool:
    """Returns whether the GPU, or the CPU if there is none, computes bf16 in hardware."""
    return hyperparameters.has_bf16(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def count_forward_flops(model: PreTrainedModel, lengths: np.ndarray) -> float:
    """Returns the floating-point operations of one forward pass without padding; `lengths` in tokens `[N]`.

    They are two per token and weight of the encoder's linear layers, plus the two matrix products of attention. A
    training step takes three times as many.
    """
    weights = sum(
        module.weight.numel()
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and ("layer." in name or "transformer." in name)
    )
    config = model.config
    tokens = lengths.astype(np.float64)
    return float(2 * weights * tokens.sum() + 4 * config.num_hidden_layers * config.hidden_size * (tokens**2).sum())


def random_material(fp32: Path, vocabulary: int, length: int) -> RecipeInput:
    """Returns a float32 file for quantization, with the ranges of activations from 8 texts of random tokens."""
    pieces = np.random.default_rng(0).integers(999, vocabulary, (8, length))
    feed = {"input_ids": pieces, "attention_mask": np.ones_like(pieces)}
    return RecipeInput(fp32, weight_bits(this_target()), lambda: [feed])


def soft_and_hard_loss(student_logits: Tensor, teacher_logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Returns half soft-target loss plus half cross-entropy; logits `[B, C]`, labels `[B]`."""
    soft = (teacher_logits / temperature).softmax(-1) * (student_logits / temperature).log_softmax(-1)
    return -0.5 * temperature**2 * soft.sum(-1).mean() + 0.5 * nn.functional.cross_entropy(student_logits, labels)


def make_training_step(
    compute_loss: Callable[[], Tensor],
    parameters: Iterable[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    device: str,
    *,
    autocast: bool = True,
) -> Callable[[], None]:
    """Returns a function that runs one optimizer step, with `autocast` in bf16 where the hardware supports it."""
    parameters = list(parameters)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=autocast and has_bf16()):
            loss = compute_loss()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def describe_machine() -> str:
    """Returns one line about the processor and torch."""
    record = environment()
    machine = record["accelerator"] or f"{record['cpu']}, {record['cores']} cores, {', '.join(record['isa'])}"
    return f"{machine}, torch {record['torch']}"
