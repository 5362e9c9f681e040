"""Callbacks of Lightning: the user's, progress, patience, averages of weights, and the rounding of int8."""

import contextlib
import copy
import io
import math
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, Checkpoint, EarlyStopping
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim.swa_utils import get_ema_multi_avg_fn

from distill.core.console import ProgressMeter, console, events, stages
from distill.core.contracts import Loader
from distill.core.errors import DistillError, OptionError, UserError, first_line
from distill.core.options import show_value
from distill.training.hyperparameters import TrainerSettings
from distill.training.module import DistillationModule, dev_metrics, evaluate
from distill.training.strategies import AtomicCheckpointIO, PortableModelCheckpoint, load_checkpoint


class Patience(EarlyStopping):
    """Stops a training after `patience` evaluations in a row without a better metric.

    `stopped` is the optimizer step of that evaluation, None without an early stop. It is in the checkpoint, so that a
    training that was killed after its early stop ends at once when it is resumed.

    Args:
        metric: name of the logged metric on dev.
        selects: `max` or `min`, the better direction of the metric.
    """

    def __init__(self, metric: str, selects: str, patience: int) -> None:
        # A metric that is not a number counts as not better.
        super().__init__(
            monitor=metric, mode=selects, patience=patience, check_finite=False, check_on_train_epoch_end=False
        )
        self.stopped: int | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.stopped is not None:
            trainer.should_stop = True

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        if self.wait_count >= self.patience and trainer.global_step < trainer.max_steps:
            self.stopped = trainer.global_step

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "stopped": self.stopped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.stopped = state_dict["stopped"]


LEAST_EVALUATIONS = 3  # Of a training with a last third.


class Curve(Callback):
    """Collects the metric on dev of every evaluation. It is in the checkpoint, so that a resumed training has all.

    Args:
        metric: name of the logged metric on dev.
    """

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.values: list[float] = []

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.values.append(float(trainer.callback_metrics[self.metric]))

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self.values)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.values = list(state_dict["values"])


def find_rise(values: Sequence[float], *, selects: str, examples: int) -> float | None:
    """Returns the gain in the last third of the evaluations, None if the metric did not improve any more at the end.

    The last evaluation must be the best one, and the gain larger than `1 / (2 sqrt(n))` with n examples in dev, the
    largest standard error of a share. For a metric of which less is better, it is that part of the metric itself.

    >>> find_rise([0.5, 0.6, 0.8], selects="max", examples=100)
    0.2
    >>> find_rise([0.5, 0.6, 0.64], selects="max", examples=100)

    Args:
        selects: `max` or `min`, the better direction of the metric.
        examples: number of examples in dev.
    """
    if len(values) < LEAST_EVALUATIONS:
        return None
    sign = 1 if selects == "max" else -1
    *earlier, last = (sign * value for value in values)
    gain = last - sign * values[-1 - len(values) // 3]
    noise = 0.5 / math.sqrt(examples) * (1.0 if selects == "max" else abs(last))
    return round(gain, 6) if last > max(earlier) and gain > noise else None


SMOOTHING = 0.95  # Of the losses, the share of the steps before.
TOTAL = "loss"  # Of all terms.
ROOM = 66  # Columns of a line beside the losses and the best metric.


class ProgressBar(Callback):
    """Shows the loss with each term, the best metric on dev so far and the time left, over all steps of a training.

    It sends the same as events, and those of dev for every evaluation.

    Args:
        metric: name of the logged metric on dev.
        selects: `max` or `min`, the better direction of the metric.
        weights: of the terms of the loss by their names.
    """

    def __init__(self, title: str, metric: str, selects: str = "max", *, weights: Mapping[str, float]) -> None:
        self.title, self.metric, self.weights = title, metric, weights
        self._select = max if selects == "max" else min
        self._meter: ProgressMeter | None = None
        self._losses: dict[str, float] = {}
        self._best: float | None = None
        self._epoch = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._meter = ProgressMeter(self.title, trainer.max_steps, done=trainer.global_step, unit="step")
        self._meter.__enter__()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: object) -> None:
        self._epoch = trainer.current_epoch
        self._add(trainer.callback_metrics)
        self._update(trainer.global_step)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        score = trainer.callback_metrics.get(self.metric)
        if score is not None:
            self._best = float(score) if self._best is None else self._select(self._best, float(score))
            self._update(trainer.global_step, now=f"{self.metric} {float(score):.4f}")
        dev = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("dev/")}
        events.send("metrics", title=self.title, step=trainer.global_step, metrics=dev)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._stop()

    def _add(self, metrics: Mapping[str, Tensor]) -> None:
        """Averages the losses of a step with those of the steps before."""
        for name in (TOTAL, *self.weights):
            if (loss := metrics.get(f"train/{name}")) is not None:
                before = self._losses.get(name, float(loss))
                self._losses[name] = SMOOTHING * before + (1 - SMOOTHING) * float(loss)

    def _update(self, step: int, now: str | None = None) -> None:
        best = "" if self._best is None else f"  best {self.metric} {self._best:.4f}"
        room = ROOM + len(best) if console.is_interactive else 0  # Elsewhere a line has no bar and may be longer.
        status = describe_losses(self._losses, self.weights, width=console.width - room) + best
        if self._meter is not None:
            self._meter.show(step, status, now=now, details=self._describe_step)
            stages.expect_left(self._meter.left())

    def _describe_step(self) -> Mapping[str, object]:
        """Returns what the event of a step has besides its number."""
        losses = {name: self._losses.get(name) for name in self.weights}
        return {"epoch": self._epoch, "loss": self._losses.get(TOTAL), "losses": losses, **stages.progress()}

    def _stop(self) -> None:
        if self._meter is not None:
            self._meter.__exit__()
            self._meter = None


def describe_losses(losses: Mapping[str, float], weights: Mapping[str, float], *, width: int) -> str:
    """Returns the loss as the weighted sum of its terms, or alone if the sum has more characters than `width`.

    >>> describe_losses({"loss": 0.365, "soft": 0.031, "hard": 0.105}, {"soft": 5.0, "hard": 2.0}, width=70)
    'loss 0.3650 = soft 0.0310 x 5 + hard 0.1050 x 2'
    """
    if TOTAL not in losses:
        return ""
    total = f"loss {losses[TOTAL]:.4f}"
    terms = [
        f"{name} {losses[name]:.4f}" + ("" if weight == 1 else f" x {weight:g}")
        for name, weight in weights.items()
        if name in losses
    ]
    whole = f"{total} = {' + '.join(terms)}"
    return whole if list(weights.values()) != [1] and len(whole) <= width else total


def read_callbacks(given: Callback | Sequence[Callback]) -> tuple[Callback, ...]:
    """Returns the callbacks as a tuple.

    Raises:
        OptionError: for something else than callbacks of `lightning.pytorch`.
        UserError: for two whose states a checkpoint cannot tell apart.
    """
    listed = [given] if isinstance(given, Callback) else given
    expected = "a callback of lightning.pytorch, or a list of them"
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise OptionError("callbacks", show_value(given), expected)
    for callback in listed:
        if isinstance(callback, type):
            raise OptionError("callbacks", f"[{callback.__name__}]", f"its object: {callback.__name__}(...)")
        if not isinstance(callback, Callback):
            name = f"{type(callback).__module__}.{type(callback).__name__}"
            raise OptionError("callbacks", f"[{name}]", expected)
    stateful = [callback for callback in listed if type(callback).state_dict is not Callback.state_dict]
    keys = [callback.state_key for callback in stateful]
    if twice := next((of for of in stateful if keys.count(of.state_key) > 1), None):
        raise UserError(
            f"two callbacks {name_of(twice)} have the state_key {twice.state_key}, under which a checkpoint holds "
            "one state: give each a state_key of its own, or leave one out"
        )
    return tuple(listed)


def copy_callbacks(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """Returns copies for another training. Call it before the first one, which changes their state.

    Raises:
        UserError: for a callback that cannot be copied.
    """
    copies = []
    for callback in callbacks:
        try:
            copies.append(copy.deepcopy(callback))
        except Exception as error:  # Those of any object that the callback holds.
            raise UserError(
                f"the callback {name_of(callback)} cannot be copied for the training of another student "
                f"({first_line(error)}): set baseline=False and seeds=1, or give it a __deepcopy__"
            ) from error
    return tuple(copies)


def name_of(callback: Callback) -> str:
    """Returns the name of a callback in messages."""
    return type(callback).__name__


def describe_callback(callback: Callback) -> str:
    """Returns the class of a callback and its plain attributes, by which a fine-tuned teacher is found again."""
    plain = {
        name: value
        for name, value in sorted(vars(callback).items())
        if isinstance(value, str | int | float | bool | None)
    }
    return f"{type(callback).__module__}.{type(callback).__qualname__} {plain}"


@contextmanager
def naming_callbacks(callbacks: Sequence[Callback]) -> Iterator[None]:
    """Raises an error of one of the callbacks as a UserError of one line that names it and its method."""
    try:
        yield
    except DistillError:
        raise
    except Exception as error:  # Of a user's code.
        found = _find_callback(error.__traceback__, callbacks)
        if found is None:
            raise
        callback, method = found
        raise UserError(
            f"the callback {name_of(callback)} failed in {method} ({type(error).__name__}: {first_line(error)}): "
            "correct it and run again; a run with resume=True goes on from its last checkpoint"
        ) from error


def _find_callback(traceback: TracebackType | None, callbacks: Sequence[Callback]) -> tuple[Callback, str] | None:
    """Returns the callback that raised an error, and its method; None if it was none of these."""
    while traceback is not None:
        frame = traceback.tb_frame
        names = frame.f_locals
        for callback in callbacks:
            if names.get("self") is callback:
                return callback, frame.f_code.co_name
            if names.get("callback") is callback and "hook_name" in names:  # Of Lightning's call of a plain function.
                return callback, str(names["hook_name"])
        traceback = traceback.tb_next
    return None


class CheckStates(Callback):
    """Refuses states of callbacks that a checkpoint cannot give back, because only plain values are loaded from it.

    Args:
        callbacks: those of the user.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = tuple(callbacks)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._check()

    def _check(self) -> None:
        for callback in self.callbacks:
            content = io.BytesIO()
            try:
                torch.save(callback.state_dict(), content)
                content.seek(0)
                torch.load(content, weights_only=True)
            except (pickle.PicklingError, pickle.UnpicklingError, TypeError, AttributeError) as error:
                raise UserError(
                    f"the state_dict of the callback {name_of(callback)} has a value that no checkpoint gives back "
                    f"({first_line(error)}): return numbers, texts, tensors, and lists and dicts of them"
                ) from error


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


WEIGHT_STEPS = 127  # Of each sign, for a weight.
ACTIVATION_STEPS = 255  # Between the smallest and the largest activation.


class RoundedWeight(nn.Module):
    """Rounds a weight `[O, I]` to int8 with a scale for each of its rows; gradients pass as if it did not.

    Args:
        steps: largest integer, 127 for 8 bits and 63 for 7.
    """

    def __init__(self, steps: int = WEIGHT_STEPS) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, weight: Tensor) -> Tensor:
        scale = weight.detach().abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / self.steps
        return weight + ((weight / scale).round() * scale - weight).detach()


def round_activations(x: Tensor) -> Tensor:
    """Rounds activations to 8 bits with one scale and offset for the whole tensor, as dynamic int8 does.

    Gradients pass as if it did not: the straight-through estimator (Jacob et al., arXiv 1712.05877, section 3).
    """
    values = x.detach().float()
    low, high = values.amin().clamp_max(0), values.amax().clamp_min(0)
    scale = ((high - low) / ACTIVATION_STEPS).clamp_min(1e-12)
    offset = (-low / scale).round()
    rounded = ((values / scale).round() + offset).clamp(0, ACTIVATION_STEPS) - offset
    return x + (rounded * scale - values).to(x.dtype)


@contextlib.contextmanager
def fake_quantized(model: nn.Module, *, bits: int) -> Iterator[None]:
    """Rounds the weights and inputs of the model's linear layers while the context is open.

    Recurrent layers and embeddings are left as they are.

    Args:
        bits: of a weight, 8 or 7.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    hooks = [layer.register_forward_pre_hook(_round_input) for layer in layers]
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", RoundedWeight(2 ** (bits - 1) - 1), unsafe=True)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        with torch.no_grad():
            for layer in layers:
                original = layer.parametrizations["weight"].original  # type: ignore[index, union-attr]
                parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
                assert layer.weight is original  # The weight itself, not the rounded one.


def _round_input(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return (round_activations(arguments[0]), *arguments[1:])
