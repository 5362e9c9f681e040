"""How to train: the settings of a training, and whether this machine can do what they ask for."""

import os
import shutil
from dataclasses import dataclass
from typing import Any

import torch

from distill.errors import UserError
from distill.training.launchers import launched_world_size

ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")
PRECISIONS = ("auto", "32-true", "bf16-mixed")
STRATEGIES = ("auto", "ddp", "fsdp")


@dataclass(frozen=True)
class Settings:
    """How to train: the keys of `conf/trainer`. Of `max_epochs` and `max_steps` the first one reached ends it.

    `batch_size` counts examples in a forward pass; with `batch_tokens` that many tokens, padding included, take its
    place. An optimizer step sees `accumulate` such batches. `warmup` is a share of all steps, `clip` the largest norm
    of the gradient (0: none), `evaluations` how often dev is scored in an epoch. A checkpoint is written wherever dev
    is scored, and every `checkpoint_steps` optimizer steps. `compile` hands the student to `torch.compile`.

    `devices` processes train as one, on this machine; those that torchrun or SLURM have started take their place. A
    batch is then that of each process, and a step sees the batches of all.
    """

    learning_rate: float
    batch_size: int | None
    batch_tokens: int | None = None
    accumulate: int = 1
    max_epochs: int | None = None
    max_steps: int | None = None
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0
    precision: str = "auto"
    evaluations: int = 1
    checkpoint_steps: int | None = None
    accelerator: str = "auto"
    devices: int = 1
    strategy: str = "auto"
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_epochs is None and self.max_steps is None:
            raise ValueError("got neither max_epochs nor max_steps, expected a number for one of them")
        if self.batch_size is None and self.batch_tokens is None:
            raise ValueError("got neither batch_size nor batch_tokens, expected a number for one of them")
        if not isinstance(self.compile, bool):
            raise ValueError(f"got compile={self.compile}, expected true or false")
        whole = (
            "batch_size", "batch_tokens", "accumulate", "max_epochs", "max_steps", "evaluations", "checkpoint_steps",
            "devices",
        )  # fmt: skip
        for name in whole:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"got {name}={value!r}, expected a whole number of at least 1")
        if not self.learning_rate > 0:
            raise ValueError(f"got learning_rate={self.learning_rate}, expected a number above 0")
        for name in ("weight_decay", "clip"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"got {name}={getattr(self, name)}, expected 0 or more")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise ValueError(f"got seed={self.seed}, expected a whole number from 0 to 4294967295")
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"got warmup={self.warmup}, expected a share of the steps between 0 and 1")
        check_devices(self.accelerator)
        if self.compile and self.device().type == "cpu" and not _has_compiler():
            raise ValueError("got compile=true, which needs a C++ compiler, and there is no g++ or clang++ here")
        if self.strategy not in STRATEGIES:
            raise ValueError(f"got strategy={self.strategy}, expected one of {', '.join(STRATEGIES)}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"got precision={self.precision}, expected one of {', '.join(PRECISIONS)}")

    def total_steps(self, steps_per_epoch: int) -> int:
        """Optimizer steps of the whole training."""
        ends = [self.max_steps, None if self.max_epochs is None else self.max_epochs * steps_per_epoch]
        return min(end for end in ends if end is not None)

    def batches(self) -> dict[str, Any]:
        """What `batches.loaders` asks for."""
        size = self.batch_size if self.batch_tokens is None else None
        return {
            "batch_size": size, "batch_tokens": self.batch_tokens, "accumulate": self.accumulate, "seed": self.seed,
            "world": self.processes(),
        }  # fmt: skip

    def step_size(self) -> str:
        """What an optimizer step sees, in words."""
        micro_batches = self.accumulate * self.processes()
        if self.batch_tokens is not None:
            return f"up to {self.batch_tokens * micro_batches:,} tokens"
        return f"{(self.batch_size or 0) * micro_batches:,} examples"

    def optimization(self, steps_per_epoch: int) -> dict[str, Any]:
        """What `DistillationModule` asks for."""
        names = ("learning_rate", "weight_decay", "warmup", "clip", "seed")
        return {name: getattr(self, name) for name in names} | {"total_steps": self.total_steps(steps_per_epoch)}

    def processes(self) -> int:
        """How many processes train."""
        launched = launched_world_size()
        return launched if launched > 1 else self.devices

    def device(self) -> torch.device:
        """Where the training takes place."""
        if self.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
            return torch.device("cuda")
        if self.accelerator in ("auto", "mps") and torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")

    def resolved_precision(self) -> str:
        """`auto` becomes bf16 where the processor or GPU computes it in hardware, float32 elsewhere."""
        if self.precision != "auto":
            return self.precision
        return "bf16-mixed" if has_bf16(self.device()) else "32-true"


def has_bf16(device: torch.device) -> bool:
    """Whether the GPU, or else the processor, computes bf16 in hardware."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _has_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def check_devices(accelerator: str) -> None:
    """Raises UserError for an accelerator that is unknown or not here."""
    if accelerator not in ACCELERATORS:
        raise UserError(f"trainer.accelerator={accelerator} is unknown, expected one of {', '.join(ACCELERATORS)}")
    if accelerator == "mps" and not torch.backends.mps.is_available():
        raise UserError("trainer.accelerator=mps, but torch sees no Apple GPU: use auto or cpu")
    if accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise UserError(f"trainer.accelerator={accelerator}, but torch sees no GPU: use auto or cpu")


def check_budget(batch_tokens: int | None, max_length: int, trainer: str) -> None:
    """UserError for a budget that the longest example may not fit."""
    if batch_tokens is not None and batch_tokens < max_length:
        raise UserError(
            f"{trainer}.batch_tokens={batch_tokens}, but an example may have task.max_length={max_length} tokens: "
            "raise the one or lower the other"
        )


def check_processes(settings: Settings, trainer: str) -> None:
    """UserError where there are fewer GPUs than processes that want one."""
    device = settings.device()
    if device.type == "mps" and settings.processes() > 1:
        raise UserError(f"{trainer}.devices={settings.devices}, but an Apple GPU serves one process: set it to 1")
    if device.type == "cuda" and launched_world_size() == 1 and settings.devices > torch.cuda.device_count():
        raise UserError(
            f"{trainer}.devices={settings.devices}, but torch sees {torch.cuda.device_count()} GPU(s): take as many, "
            f"or set {trainer}.accelerator=cpu"
        )
