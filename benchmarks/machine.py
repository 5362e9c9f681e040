"""What the machine can do at most, what a model asks of it, and a plain training step: what the benchmarks share."""

import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # This checkout, whatever is installed.

from distill.records.record import environment
from distill.training import settings


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
    return settings.has_bf16(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


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


def soft_and_hard(student: Tensor, teacher: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Half soft targets, half labels; logits `[B, C]`, labels `[B]`."""
    soft = (teacher / temperature).softmax(-1) * (student / temperature).log_softmax(-1)
    return -0.5 * temperature**2 * soft.sum(-1).mean() + 0.5 * nn.functional.cross_entropy(student, labels)


def training_step(
    loss_of: Callable[[], Tensor],
    weights: Iterable[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    device: str,
    *,
    autocast: bool = True,
) -> Callable[[], None]:
    """One optimizer step as a function, with `autocast` in bf16 where there is hardware for it."""
    weights = list(weights)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=autocast and has_bf16()):
            loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def describe() -> str:
    """The machine in a line."""
    about = environment()
    machine = about["accelerator"] or f"{about['cpu']}, {about['cores']} cores, {', '.join(about['isa'])}"
    return f"{machine}, torch {about['torch']}"
