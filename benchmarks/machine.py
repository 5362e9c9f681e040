"""What the machine can do at most, and what a model asks of it: the measures that the benchmarks share."""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from distill.record import environment


def median_seconds(work: Callable[[], object], *, times: int = 8, before: int = 2) -> float:
    """Median of the seconds that `work` takes, after some calls that are not counted."""
    took = []
    for number in range(before + times):
        synchronize()
        start = time.perf_counter()
        work()
        synchronize()
        if number >= before:
            took.append(time.perf_counter() - start)
    return statistics.median(took)


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_flops(dtype: torch.dtype, device: str = "cpu") -> float:
    """Floating-point operations in a second of this machine's best matrix product, out of some square ones."""
    best = 0.0
    for size in (1024, 2048) if device == "cpu" else (4096, 8192):
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        best = max(best, 2 * size**3 / median_seconds(lambda left=left, right=right: left @ right))
    return best


def has_bf16() -> bool:
    """Whether bf16 is computed in hardware."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def forward_flops(model: PreTrainedModel, lengths: np.ndarray) -> float:
    """Floating-point operations of one forward pass over texts of these lengths in tokens `[N]`, no padding.

    Two for every weight of the encoder's linear layers and every token, and the two products inside attention. A
    training step asks for three times as much.
    """
    weights = sum(
        module.weight.numel()
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and ("layer." in name or "transformer." in name)
    )
    config = model.config
    tokens = lengths.astype(np.float64)
    return float(2 * weights * tokens.sum() + 4 * config.num_hidden_layers * config.hidden_size * (tokens**2).sum())


def describe() -> str:
    """The machine in a line."""
    about = environment()
    machine = about["accelerator"] or f"{about['cpu']}, {about['cores']} cores, {', '.join(about['isa'])}"
    return f"{machine}, torch {about['torch']}"
