"""Settings of a training and checks of the devices they need."""

import math
import os
import shutil
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from distill.contracts import BatchOptions
from distill.errors import OptionError, UserError
from distill.options import STRICT, raise_option_errors
from distill.training.launchers import launched_world_size
from distill.training.ray_cluster import check_ray

Precision = Literal["auto", "32-true", "bf16-mixed"]
Accelerator = Literal["auto", "cpu", "gpu", "cuda", "mps"]
AUTO = "auto"
# The options that may be auto.
CHOSEN = ("learning_rate", "max_epochs", "evaluations", "ema", "soup", "patience", "frozen_embeddings")
if TYPE_CHECKING:  # All code that reads these options runs after `auto.resolve`.
    Rate: TypeAlias = float
    Frequency: TypeAlias = float
    Number: TypeAlias = int
    OptionalNumber: TypeAlias = int | None
    Decay: TypeAlias = float
    Part: TypeAlias = float
else:
    Rate = Frequency = PositiveFloat | Literal["auto"]
    Number = PositiveInt | Literal["auto"]
    OptionalNumber = PositiveInt | Literal["auto"] | None
    Decay = Annotated[float, Field(ge=0, lt=1)] | Literal["auto"]
    Part = Annotated[float, Field(ge=0, lt=1, description="a share of the steps from 0 to below 1")] | Literal["auto"]
Beta = Annotated[float, Field(ge=0, lt=1)]


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class TrainerSettings:
    """Settings of a training, the keys of `conf/trainer`.

    The training ends at `max_epochs` or at `max_steps`, whichever it reaches first.

    Some options may be `auto`. `auto.resolve` replaces them by values for the data and the student before training.

    Args:
        learning_rate: its peak, reached after the warm-up.
        batch_size: number of examples of a micro-batch; `auto`: more than 32 for many short texts.
        batch_tokens: number of tokens of a micro-batch, padding included. A number replaces `batch_size`.
        accumulate: number of micro-batches of an optimizer step in each process.
        max_epochs: number of passes over the data; None: no limit.
        max_steps: number of optimizer steps; None: no limit.
        warmup: share of all steps.
        embeddings_learning_rate: the peak for tables of embeddings, which have no weight decay then, because it would
            shrink the rows that a step does not read; None: `learning_rate`.
        frozen_embeddings: share of all steps, the first ones, in which the table of embeddings stays as it is.
        weight_decay: decay of the weights; biases and norms have none.
        betas: decays of AdamW's averages of the gradient and of its square.
        eps: added by AdamW to the root of the average square.
        clip: largest norm of the gradient; 0 does not clip.
        precision: of the forward and backward passes; `auto` is bf16 where the hardware computes it, else float32.
        evaluations: number of evaluations on dev in an epoch, each of which writes a checkpoint; 0.25: one in four
            epochs.
        checkpoint_steps: number of optimizer steps between further checkpoints.
        schedule: course of the learning rate after the warm-up: to zero in a line or as half a cosine, or constant.
        min_steps: raises the epochs of `max_epochs` until they have this many optimizer steps.
        ema: decay of the moving average of the weights (`averaging.MovingAverage`); 0: none.
        soup: number of the last evaluations whose weights are averaged at the end (`averaging.Soup`); 1: none.
        patience: number of evaluations in a row without a better metric after which the training stops; None: never.
        accelerator: the device; `auto` takes a GPU if there is one.
        devices: number of processes on this machine that train together, each with batches of its own. Under torchrun
            or SLURM it is the number of processes that these have launched, and with strategy=ray those of a cluster.
        strategy: for several processes: `ddp`, `fsdp` with sharded weights, or `ray` for those of a cluster.
        compile: whether to pass the student to `torch.compile`.
        compact_embeddings: `auto` trains only the rows of the table of embeddings that batches read, where these are
            known before, with the same result (`compact_embeddings`); False: all rows.
        seed: of the order of the examples and of dropout.

    Raises:
        OptionError: for a value out of range, or an accelerator or a compiler that this machine lacks.
        ValueError: if both options of a pair are missing.
    """

    learning_rate: Rate
    batch_size: OptionalNumber
    batch_tokens: PositiveInt | None = None
    accumulate: PositiveInt = 1
    max_epochs: OptionalNumber = None
    max_steps: PositiveInt | None = None
    warmup: Annotated[float, Field(ge=0, le=1, description="a share of the steps from 0 to 1")] = 0.1
    embeddings_learning_rate: PositiveFloat | None = None
    weight_decay: NonNegativeFloat = 0.01
    betas: Annotated[
        tuple[Beta, Beta], Field(strict=False, description="two numbers of at least 0 and below 1, like [0.9, 0.98]")
    ] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    clip: NonNegativeFloat = 1.0
    precision: Precision = "auto"
    evaluations: Frequency = 1
    checkpoint_steps: PositiveInt | None = None
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    min_steps: PositiveInt | None = None
    ema: Decay = 0.0
    soup: Number = 1
    patience: OptionalNumber = None
    accelerator: Accelerator = "auto"
    devices: PositiveInt = 1
    strategy: Literal["auto", "ddp", "fsdp", "ray"] = "auto"
    compile: bool = False
    compact_embeddings: Literal["auto", False] = "auto"
    frozen_embeddings: Part = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0

    def __post_init__(self) -> None:
        if self.max_epochs is None and self.max_steps is None:
            raise ValueError("got neither max_epochs nor max_steps, expected a number for one of them")
        if self.batch_size is None and self.batch_tokens is None:
            raise ValueError("got neither batch_size nor batch_tokens, expected a number for one of them")
        if self.min_steps is not None and self.max_steps is not None and self.min_steps > self.max_steps:
            raise ValueError(
                f"got min_steps={self.min_steps}, expected at most max_steps={self.max_steps}: lower min_steps"
            )
        if self.strategy == "fsdp" and self.ema not in (0, AUTO):
            raise OptionError("ema", str(self.ema), "0 with strategy=fsdp because the average is not sharded")
        if self.accelerator == "mps" and not torch.backends.mps.is_available():
            raise OptionError("accelerator", "mps", "auto or cpu because torch finds no Apple GPU")
        if self.accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
            raise OptionError("accelerator", self.accelerator, "auto or cpu because torch finds no GPU")
        if self.compile and self.device().type == "cpu" and not _has_compiler():
            raise OptionError(
                "compile", "true", "false because torch.compile needs g++ or clang++, and neither is found"
            )

    @classmethod
    def auto(cls, **options: Any) -> "TrainerSettings":
        """Returns settings whose other options than the given ones are chosen for the data and the student.

        Args:
            options: fields of `TrainerSettings` that are not chosen, for example `max_epochs=3`.
        """
        chosen: dict[str, Any] = dict.fromkeys(CHOSEN, AUTO)
        return cls(**chosen | {"batch_size": AUTO} | options)

    @property
    def fixed_epochs(self) -> int | None:
        """Returns `max_epochs`, None if the number of epochs follows from the data or `max_steps`."""
        return None if "max_epochs" in self.unresolved() or self.min_steps else self.max_epochs

    @property
    def chooses_batch_size(self) -> bool:
        """Returns whether `batch_size` is `auto` and not chosen yet."""
        value: object = self.batch_size
        return value == AUTO

    def unresolved(self) -> list[str]:
        """Returns the names of the options besides `batch_size` that are `auto` and not chosen yet."""
        return [name for name in CHOSEN if getattr(self, name) == AUTO]

    def total_steps(self, steps_per_epoch: int) -> int:
        """Returns the optimizer steps of the whole training, without an early stop."""
        if names := self.unresolved():
            raise ValueError(f"{names[0]} is auto, expected a value: distill.training.auto.resolve chooses one")
        return self.steps_in(self.max_epochs, steps_per_epoch)

    def steps_in(self, epochs: int | None, steps_per_epoch: int) -> int:
        """Returns the optimizer steps of `epochs` in the place of `max_epochs`, within `min_steps` and `max_steps`."""
        if epochs is not None:
            epochs = max(epochs, math.ceil((self.min_steps or 0) / steps_per_epoch))
        ends = [self.max_steps, None if epochs is None else epochs * steps_per_epoch]
        return min(end for end in ends if end is not None)

    def batches(self) -> BatchOptions:
        """Returns the size and the order of the batches, for `batching.all_loaders`.

        Raises:
            ValueError: if their size is not chosen yet.
        """
        if self.chooses_batch_size:
            raise ValueError("batch_size is auto, expected a value: distill.training.auto.with_batch_size chooses one")
        size = self.batch_size if self.batch_tokens is None else None
        return {
            "batch_size": size, "batch_tokens": self.batch_tokens, "accumulate": self.accumulate, "seed": self.seed,
            "world": self.processes(),
        }  # fmt: skip

    def step_size(self) -> str:
        """Returns the size of the batch of an optimizer step, in words: `64 examples`."""
        micro_batches = self.accumulate * self.processes()
        if self.batch_tokens is not None:
            return f"up to {self.batch_tokens * micro_batches:,} tokens"
        return f"{(self.batch_size or 0) * micro_batches:,} examples"

    def optimization(self, steps_per_epoch: int) -> dict[str, Any]:
        """Returns the arguments of `DistillationModule` that concern the optimizer."""
        names = (
            "learning_rate", "embeddings_learning_rate", "weight_decay", "betas", "eps", "warmup", "clip", "schedule",
            "seed",
        )  # fmt: skip
        steps = self.total_steps(steps_per_epoch)
        frozen = math.ceil(round(self.frozen_embeddings * steps, 6))
        return {name: getattr(self, name) for name in names} | {"total_steps": steps, "frozen_steps": frozen}

    def key(self) -> dict[str, Any]:
        """Returns the settings that the result of a training depends on, for the key of a cache."""
        key = asdict(replace(self, precision=self.resolved_precision()))
        for name in ("checkpoint_steps", "devices", "strategy", "compact_embeddings"):
            key.pop(name)  # They do not change the result.
        for name in ("embeddings_learning_rate", "frozen_embeddings"):
            if not key[name]:
                key.pop(name)  # As in the keys of versions without it.
        if self.processes() > 1:  # A step contains the batches of all ranks.
            key["processes"] = self.processes()
        return key | {"device": self.device().type}

    def processes(self) -> int:
        """Returns the number of processes that train, the world size."""
        launched = launched_world_size()
        return launched if launched > 1 and self.strategy != "ray" else self.devices

    def device(self) -> torch.device:
        """Returns the device of the training."""
        if self.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
            return torch.device("cuda")
        if self.accelerator in ("auto", "mps") and torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")

    def resolved_precision(self) -> Precision:
        """Returns the precision: `auto` is bf16 where the GPU or CPU computes it in hardware, and float32 elsewhere."""
        if self.precision != "auto":
            return self.precision
        return "bf16-mixed" if has_bf16(self.device()) else "32-true"


def evaluation_interval(evaluations: float, steps_per_epoch: int) -> int:
    """Returns the number of optimizer steps between two evaluations, given their number in an epoch.

    It is rounded up, so that the last one is not followed by the one after the last step a few steps later.
    """
    return max(1, math.ceil(round(steps_per_epoch / evaluations, 6)))


def count_evaluations(evaluations: float, *, steps_per_epoch: int, steps: int) -> int:
    """Returns the number of evaluations in a training of so many steps; the last one is after the last step."""
    return math.ceil(steps / evaluation_interval(evaluations, steps_per_epoch))


def has_bf16(device: torch.device) -> bool:
    """Returns whether a GPU `device`, or else the CPU, computes bf16 in hardware."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _has_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def check_budget(batch_tokens: int | None, max_length: int, trainer: str) -> None:
    """Checks that the longest example fits into a micro-batch of `batch_tokens`.

    Raises:
        UserError: if it may not. `trainer` is the key of the settings in the configuration.
    """
    if batch_tokens is not None and batch_tokens < max_length:
        raise UserError(
            f"got {trainer}.batch_tokens={batch_tokens}, expected at least task.max_length={max_length}, the "
            f"longest example: raise {trainer}.batch_tokens or lower task.max_length"
        )


def check_processes(settings: TrainerSettings, trainer: str) -> None:
    """Checks that each process has a GPU of its own, if the training runs on GPUs.

    Raises:
        UserError: if there are too few. `trainer` is the key of the settings in the configuration.
    """
    device = settings.device()
    if settings.strategy == "ray":
        check_ray(f"{trainer}.strategy=ray")
        return  # Its processes are of other machines.
    if device.type == "mps" and settings.processes() > 1:
        raise UserError(f"got {trainer}.devices={settings.devices}, expected 1 because an Apple GPU serves one process")
    if device.type == "cuda" and launched_world_size() == 1 and settings.devices > torch.cuda.device_count():
        raise UserError(
            f"got {trainer}.devices={settings.devices}, expected at most {torch.cuda.device_count()}, the GPUs that "
            f"torch finds: lower it or set {trainer}.accelerator=cpu"
        )
