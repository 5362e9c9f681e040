"""Averages of a student's weights: a moving average over the steps, and the mean of the last evaluated checkpoints."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, Checkpoint
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from distill.contracts import Loader
from distill.training.checkpoints import AtomicCheckpointIO, PortableModelCheckpoint, load_checkpoint
from distill.training.evaluate import dev_metrics, evaluate
from distill.training.module import DistillationModule
from distill.training.settings import TrainerSettings


class MovingAverage(Callback):
    """Evaluates and saves an exponential moving average of the weights; the training continues with the raw ones.

    After step t the average a of the weights w becomes `d a + (1 - d) w` with `d = min(decay, (1 + t) / (10 + t))`,
    which lets the average of a short training forget its start (the warm-up of TensorFlow's
    ExponentialMovingAverage; for its use on weights see arXiv 1703.01780, section 2).

    The average replaces the weights from the start of an evaluation until `RawWeights` restores them, so that the best
    checkpoint holds the average. `last.ckpt` holds the raw weights, and the average as the state of this callback.
    Buffers are not averaged.
    """

    # Lightning's WeightAveraging does not fit (by its source, 2.6): checkpoints with `save_weights_only` hold the raw
    # weights, `last.ckpt` holds the average in their place, and the module is copied together with its teacher.

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.averages: list[Tensor] = []

    def start(self, module: nn.Module) -> None:
        """Begins with the weights of `module`, or moves the average of a checkpoint to their device."""
        current = _trained(module)
        sources = self.averages or current
        self.averages = [
            source.detach().to(weight.device, copy=True) for source, weight in zip(sources, current, strict=True)
        ]

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        """Adds the weights after this step, which is counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        get_ema_multi_avg_fn(decay)(self.averages, _trained(module), None)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def swap(self, module: nn.Module) -> None:
        """Exchanges the weights and their average."""
        for average, weight in zip(self.averages, _trained(module), strict=True):
            raw = weight.clone()
            weight.copy_(average)
            average.copy_(raw)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.start(pl_module)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: object) -> None:
        self.update(pl_module, trainer.global_step)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.swap(pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self.averages}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.averages = state_dict["averages"]


class RawWeights(Checkpoint):
    """Restores the raw weights after an evaluation.

    It is a Checkpoint because Lightning runs these last and in their order: the best checkpoint is written before it,
    and `last.ckpt` after it.
    """

    def __init__(self, average: MovingAverage) -> None:
        self.average = average

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.average.swap(pl_module)


def _trained(module: nn.Module) -> list[Tensor]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


@dataclass(frozen=True)
class Soup:
    """The mean of the checkpoints of the last evaluations, and whether it became the student.

    Attributes:
        steps: optimizer steps of the averaged checkpoints.
        metric: the mean's metric on dev.
        best: metric on dev of the best single checkpoint.
        taken: whether the mean is at least as good.
    """

    steps: tuple[int, ...]
    metric: float
    best: float
    taken: bool

    def record(self) -> dict[str, Any]:
        """Returns the `soup` of run.json."""
        return asdict(self) | {"steps": list(self.steps)}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Soup":
        """Returns the soup of `record`."""
        return cls(**{**record, "steps": tuple(record["steps"])})


class RecentCheckpoints(PortableModelCheckpoint):
    """Keeps the weights of the last `number` evaluations as `soup-STEP.ckpt`, until their soup is decided on.

    The file of an evaluation is written before the oldest one is removed, and both before `last.ckpt`. A training that
    is killed in between repeats the evaluation, and needs no older file than before.
    """

    def __init__(self, directory: Path, number: int) -> None:
        super().__init__(
            dirpath=directory, filename="soup-{step}", auto_insert_metric_name=False, monitor="step", mode="max",
            save_top_k=number, save_weights_only=True, enable_version_counter=False,
        )  # fmt: skip
        self.decided = directory / "soup.ckpt"

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        if trainer.is_global_zero and trainer.global_step == 0:  # An earlier training in this directory.
            self.decided.unlink(missing_ok=True)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self.decided.is_file():
            super().load_state_dict(state_dict)

    def paths(self) -> list[Path]:
        """Returns the checkpoints, oldest first."""
        return sorted(map(Path, self.best_k_models), key=_step)


def average_checkpoints(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Returns the uniform mean of the weights of several checkpoints, computed in float64.

    A uniform soup (arXiv 2203.05482, section 2) of one training's checkpoints instead of several trainings'. Integers
    are those of the last checkpoint.

    Raises:
        UserError: if a checkpoint is missing or damaged.
    """
    mean: dict[str, Tensor] = {}
    for path in paths:
        for name, tensor in _weights(path).items():
            if tensor.is_floating_point():
                tensor = tensor.double() / len(paths) + mean.get(name, 0.0)
            mean[name] = tensor
    dtypes = {name: tensor.dtype for name, tensor in _weights(paths[-1]).items()}
    return {name: tensor.to(dtypes[name], copy=True) for name, tensor in mean.items()}


def take_best_weights(
    module: DistillationModule,
    dev: Loader,
    settings: TrainerSettings,
    *,
    best: PortableModelCheckpoint,
    recent: RecentCheckpoints | None,
) -> Soup | None:
    """Loads the weights of the best checkpoint, or their soup if it is at least as good on dev; returns the soup.

    The decision is saved as `soup.ckpt`, with the weights if the soup is taken, and the averaged files are removed.
    """
    soup = None
    if recent is not None and recent.decided.is_file():
        decision = load_checkpoint(recent.decided)
        soup, averages = Soup.from_record(decision["soup"]), decision["state_dict"]
    elif recent is not None and len(recent.best_k_models) > 1 and best.best_model_score is not None:
        averages = average_checkpoints(recent.paths())
        module.load_state_dict(averages)
        metric, score = _score(module, dev, settings), float(best.best_model_score)
        rounded = float(np.float32(metric))  # As Lightning rounds that of an evaluation: equal metrics stay equal.
        taken = rounded >= score if module.scoring.selects == "max" else rounded <= score
        soup = Soup(tuple(map(_step, recent.paths())), metric, score, taken)
        AtomicCheckpointIO().save_checkpoint(
            {"soup": soup.record(), "state_dict": averages if taken else {}}, recent.decided
        )
        for path in recent.paths():
            path.unlink()
    taken_weights = averages if soup is not None and soup.taken else _weights(Path(best.best_model_path))
    module.load_state_dict(taken_weights)
    return soup


def load_best_weights(module: DistillationModule, directory: Path) -> None:
    """Loads the weights that a finished training with its checkpoints in `directory` ended with.

    Raises:
        UserError: if a checkpoint is missing or damaged.
    """
    decided = directory / "soup.ckpt"
    decision = load_checkpoint(decided) if decided.is_file() else None
    is_taken = decision is not None and Soup.from_record(decision["soup"]).taken
    module.load_state_dict(_weights(decided if is_taken else directory / "best.ckpt"))


def _weights(path: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = load_checkpoint(path)["state_dict"]
    return weights


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("soup-"))


def _score(module: DistillationModule, dev: Iterable[Any], settings: TrainerSettings) -> float:
    """Returns the metric on dev, computed as in the evaluations of the training."""
    device, student = settings.device(), module.student
    student.to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=settings.resolved_precision() == "bf16-mixed"):
        scores = evaluate(student, module.task, module.scoring, dev)
    student.cpu()
    return float(dev_metrics(module.scoring, scores)[module.scoring.metric])
