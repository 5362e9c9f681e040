"""Training of a module with Lightning, its duration estimated before, and only the rows of embeddings that it reads.

Trains the rows of a table of embeddings that the batches read, with the same weights as the whole table. A row that no
batch reads has no gradient. AdamW (arXiv 1711.05101, algorithm 2) multiplies it by one minus learning rate times weight
decay in every step, and does nothing else: such rows are their start times a factor that they share. A compact table
has one row for all of them, which starts with ones and therefore is this factor, after any schedule and in any average
of the weights. The norm of the gradient, by which it is clipped, is the same.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, Timer
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.core.console import print_notice
from distill.core.contracts import Batch, Examples, Loader
from distill.core.errors import UserError, first_line
from distill.data import batches
from distill.data.batches import epoch_size, examples_and_buckets
from distill.models import cpu_kernels
from distill.models.forward import to_device
from distill.models.wrappers import find_table
from distill.training import lightning_callbacks, processes, strategies
from distill.training.hyperparameters import TrainerSettings, count_evaluations, evaluation_interval
from distill.training.lightning_callbacks import CheckStates, Curve, Patience, ProgressBar, find_rise, naming_callbacks
from distill.training.module import DistillationModule
from distill.training.strategies import (
    AtomicCheckpointIO,
    Checkpoints,
    PortableModelCheckpoint,
    StepSource,
    create_strategy,
    prepare_trainer,
    select_devices,
)


@dataclass(frozen=True)
class TrainedRows:
    """The rows of a student's table of embeddings that are trained.

    Attributes:
        total: rows of the table; 0 for a student without one that is trained.
        pieces: the ids of the rows that are trained, ascending, `[n]`; None for all.
        reason: why all rows are trained.
    """

    total: int
    pieces: np.ndarray | None = None
    reason: str = ""

    def describe(self) -> str:
        """Describes the rows in a line, which is empty for a student without a table."""
        if self.pieces is not None:
            return f"{len(self.pieces):,} of {self.total:,} rows are trained, the others decay: no batch reads them"
        return f"all {self.total:,} rows are trained: {self.reason}" if self.total else ""

    def identity(self) -> dict[str, int]:
        """Returns the properties that a resumed training must share with the checkpoint."""
        return {} if self.pieces is None else {"compact_embeddings": len(self.pieces)}


def choose_rows(module: DistillationModule, train: Loader, settings: TrainerSettings) -> TrainedRows:
    """Returns the rows that are trained: those that the batches of `train` read, as far as these are known before."""
    table = find_table(module.student)
    if not isinstance(table, nn.Embedding) or not table.weight.requires_grad:
        return TrainedRows(0)
    total = table.num_embeddings
    if settings.compact_embeddings is False:
        return TrainedRows(total, reason="compact_embeddings=false")
    if settings.strategy == "fsdp" and settings.processes() > 1:
        return TrainedRows(total, reason="strategy=fsdp shards the whole table")
    owners = sum(table.weight is own for part in module.modules() for own in part.parameters(recurse=False))
    if type(table) is not nn.Embedding or owners > 1:
        return TrainedRows(total, reason="the output layer or another module has the same weights")
    examples, _ = examples_and_buckets(train)
    if (pieces := examples.pieces()) is None:
        return TrainedRows(total, reason="masking, targets or a stream read pieces that are not known before")
    pieces = np.union1d(pieces, _special_ids(module.student, table))
    if len(pieces) + 1 >= total:
        return TrainedRows(total, reason="the batches read them")
    return TrainedRows(total, pieces)


def _special_ids(student: PreTrainedModel, table: nn.Embedding) -> list[int]:
    """Returns the ids that the student itself may add to a text, such as padding up to a window of attention."""
    named = [value for name, value in vars(student.config).items() if name.endswith("_token_id")]
    ids = {value for value in (*named, table.padding_idx) if isinstance(value, int)}
    return sorted(number for number in ids if 0 <= number < table.num_embeddings)


class CompactEmbedding(nn.Embedding):
    """The rows of a table that a training reads, and behind them one that stands for all others.

    No gradient reaches the last row, which starts with ones. The other rows of the table are `start` times this row. A
    state dict has the whole table. In evaluation mode all pieces can be read.

    Attributes:
        weight: `[n + 1, H]`.
        start: the whole table before the training, `[V, H]`.
        places: the row of each piece, -1 for one without a row of its own, `[V]`.

    Args:
        table: the whole table, which is not changed.
        pieces: ids of the pieces that are read, ascending, `[n]`.
    """

    def __init__(self, table: nn.Embedding, pieces: np.ndarray) -> None:
        start = table.weight.detach()
        rows = torch.from_numpy(pieces).to(start.device)
        places = torch.full((len(start),), -1, device=start.device)
        places[rows] = torch.arange(len(rows), device=start.device)
        weight = torch.cat([start[rows], torch.ones_like(start[:1])])
        padding = None if table.padding_idx is None else int(places[table.padding_idx])
        super().__init__(len(weight), weight.shape[1], padding_idx=padding, _weight=weight)
        self.start, self.places = start, places
        self.train(table.training)

    def forward(self, input: Tensor) -> Tensor:
        """Returns the embeddings `[..., H]` of pieces `[...]`."""
        places = self.places[input]
        if self.training:
            return super().forward(places)
        others = self.start[input] * self.weight[-1]
        return torch.where(places[..., None] < 0, others, super().forward(places.clamp(min=0)))

    @torch.no_grad()
    def whole(self) -> Tensor:
        """Returns the rows of all pieces, `[V, H]`."""
        table = self.start * self.weight[-1]
        table[self.places >= 0] = self.weight[:-1]
        return table

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "CompactEmbedding":
        super()._apply(fn, recurse)
        self.start, self.places = fn(self.start), fn(self.places)
        return self

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.whole()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        name = f"{prefix}weight"
        if name in state_dict:
            state_dict[name] = self._compact(state_dict[name].to(self.start))
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def _compact(self, table: Tensor) -> Tensor:
        """Returns the `weight` of a whole table of this training, whose other rows are a multiple of their start.

        Averages of the weights in a checkpoint refer to this start too. Rows of another start become the start.
        """
        is_other = self.places < 0
        start, now = self.start[is_other], table[is_other]
        products, squares = (start * now).sum(dtype=torch.float64), start.square().sum(dtype=torch.float64)
        factor = (products / squares).to(table.dtype)
        if not torch.allclose(start * factor, now, rtol=1e-5, atol=1e-12):
            factor, self.start = torch.ones_like(factor), table
        return torch.cat([table[~is_other], factor.expand(1, table.shape[1])])


@contextmanager
def compact_embeddings(module: DistillationModule, rows: TrainedRows) -> Iterator[None]:
    """Replaces the student's table by one of the `rows` that are trained, and on exit writes these into the table."""
    table = find_table(module.student)
    if rows.pieces is None or not isinstance(table, nn.Embedding):
        yield
        return
    compact = CompactEmbedding(table, rows.pieces)
    _replace(module, table, compact)
    try:
        yield
    finally:
        _replace(module, compact, table)
        table.train(compact.training).to(compact.weight.device)
        with torch.no_grad():
            table.weight.copy_(compact.whole())


def _replace(module: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replaces a module wherever it is a part, because the heads of several tasks share an encoder."""
    for part in module.modules():
        for name, child in part.named_children():
            if child is old:
                setattr(part, name, new)


_LOST_WORKERS = 3  # After so many a training with Ray fails.


@dataclass(frozen=True)
class Fit:
    """Duration, throughput and memory of a training.

    Attributes:
        epochs: number of epochs; None for a stream.
        padding: share of the computed tokens that are padding.
        peak_rss_mb: largest resident memory of rank 0, in MB.
        best: best metric on dev.
        stopped_early: optimizer step of the evaluation after which `patience` ended the training; None: it did not.
        soup: the average of the last checkpoints; None without one.
        rise: the gain of the metric on dev in the last third of the evaluations, where it had not ended (`find_rise`).
    """

    seconds: float
    epochs: float | None
    steps: int
    precision: str
    examples_per_second: float
    tokens_per_second: float
    padding: float
    peak_rss_mb: float | None
    best: float
    stopped_early: int | None = None
    soup: dict[str, Any] | None = None
    rise: float | None = None


def fit(
    module: DistillationModule,
    train: Loader,
    dev: Loader,
    *,
    settings: TrainerSettings,
    checkpoints: Path,
    logger: Logger | Sequence[Logger] | None,
    title: str,
    identity: Mapping[str, object] | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Fit:
    """Trains the module and loads the weights with the best metric on dev, or an average of the last ones.

    Args:
        identity: further properties that a resumed training must share with the checkpoint.
        resume: whether to continue from `checkpoints/last.ckpt`, if it exists.
        callbacks: of the user. Each process has its own copy, this one the given ones, except with Ray.

    Raises:
        UserError: if the checkpoint is damaged or belongs to another training, and if a callback fails.
        KeyboardInterrupt: if Ctrl-C or SIGTERM stopped the training.
    """
    # Those of the user run before a checkpoint is written, which has their state.
    further = (*callbacks, CheckStates(callbacks)) if callbacks else ()
    training = RankTraining(module, train, dev, settings, checkpoints, title, identity or {}, further, resume)
    with naming_callbacks(callbacks):
        if settings.processes() == 1:
            return training.run(logger)
        module.cpu()  # Pickled for processes with other GPUs.
        ranks: dict[str, Any] = {"world_size": settings.processes(), "device": settings.device()}
        if settings.strategy != "ray":
            return processes.run_in_ranks(RankTraining.run, training, logger=logger, **ranks)
        if not resume:
            (checkpoints / "last.ckpt").unlink(missing_ok=True)
        resumable = replace(training, resume=True)  # All ranks start again when one is lost.
        result, state = strategies.run_in_ray(
            RankTraining.run_copy, resumable, directory=checkpoints / ".ray", max_failures=_LOST_WORKERS, logger=logger,
            **ranks,
        )  # fmt: skip
        module.load_state_dict(state["state_dict"])
        module.on_load_checkpoint(state)
        return result


@dataclass(frozen=True)
class RankTraining:
    """A training of a module, the same in all ranks but for the logger.

    Attributes:
        identity: properties that a resumed training must share with the checkpoint.
        further: callbacks of the user, and the check of their states.
    """

    module: DistillationModule
    train: Loader
    dev: Loader
    settings: TrainerSettings
    checkpoints: Path
    title: str
    identity: Mapping[str, object] = field(default_factory=dict)
    further: Sequence[Callback] = ()
    resume: bool = False

    @property
    def metric(self) -> str:
        """Returns the name of the logged metric on dev."""
        return f"dev/{self.module.scoring.metric}"

    def run_copy(self, logger: Logger | Sequence[Logger] | None = None) -> tuple[Fit, dict[str, Any]]:
        """Trains a copy of the module in one rank, and returns its weights and counters too."""
        result = self.run(logger)
        return result, {"state_dict": self.module.cpu().state_dict(), "seen": self.module.seen()}

    def run(self, logger: Logger | Sequence[Logger] | None = None) -> Fit:
        """Trains the module in one rank, as `fit` describes it."""
        module, settings, is_first = self.module, self.settings, processes.get_rank() == 0
        processes.keep_freed_memory()
        measures_memory = processes.reset_peak()
        steps = cast(StepSource, self.train.batch_sampler or self.train.dataset)  # A stream has no batch sampler.
        if not is_first:
            steps.rank = processes.get_rank()
        selects, last_path = module.scoring.selects, self.checkpoints / "last.ckpt"
        best = PortableModelCheckpoint(
            dirpath=self.checkpoints, filename="best", monitor=self.metric, mode=selects, save_weights_only=True,
            enable_version_counter=False,
        )  # fmt: skip
        last = PortableModelCheckpoint(dirpath=self.checkpoints, filename="last", enable_version_counter=False)
        rows, resuming = choose_rows(module, self.train, settings), self.resume and last_path.is_file()
        identity = {**self.identity, **_describe_training(module, len(self.train), settings), **rows.identity()}
        saver = Checkpoints(last_path, every=settings.checkpoint_steps, identity=identity, steps=steps)
        if resuming:
            saver.skip_finished_steps()
        timer, curve = Timer(), Curve(self.metric)  # Their state is in the checkpoint: a resumed run continues both.
        recent = lightning_callbacks.RecentCheckpoints(self.checkpoints, settings.soup) if settings.soup > 1 else None
        average = lightning_callbacks.MovingAverage(settings.ema)
        averages = [lightning_callbacks.RawWeights(average), average] if settings.ema > 0 else []
        patience = None if settings.patience is None else Patience(self.metric, selects, settings.patience)
        bar = ProgressBar(self.title, self.metric, selects, weights=module.objective.weights) if is_first else None
        # Lightning moves every Checkpoint to the end. The others run before one is written, which has their state.
        chosen = (recent, *averages, patience, *self.further)
        used = (best, *chosen, curve, _EvaluateAfterLastStep(), saver, last, timer, bar)
        trainer = self._create_trainer([callback for callback in used if callback is not None], logger)
        with _copy_before_sharding(module, settings), _train_faster(module, rows, settings), saver.stop_on_signals():
            trainer.fit(module, self.train, self.dev, ckpt_path=str(last_path) if resuming else None, weights_only=True)
        if resuming:
            steps.skip = 0  # A training that had ended skipped none, and the next one with these batches must not.
        soup = None
        if is_first:
            with _accelerate(module.student, settings):
                soup = lightning_callbacks.take_best_weights(module, self.dev, settings, best=best, recent=recent)
            self._print_ending(patience, soup)
        score = float("nan") if best.best_model_score is None else float(best.best_model_score)
        return self._describe(
            seconds=max(timer.time_elapsed("train"), 1e-9), steps=trainer.global_step,
            peak_rss_mb=processes.peak_mb() if measures_memory else None,
            best=soup.metric if soup is not None and soup.taken else score,
            stopped_early=None if patience is None else patience.stopped,
            soup=None if soup is None else soup.record(),
            rise=find_rise(curve.values, selects=selects, examples=len(cast(Examples, self.dev.dataset))),
        )  # fmt: skip

    def _describe(self, *, seconds: float, **ending: Any) -> Fit:
        """Returns the result of a training of so many seconds, with what its end says of it."""
        module = self.module
        return Fit(
            seconds=seconds, epochs=module.examples_seen / epoch_size(self.train) if self.train.batch_sampler else None,
            precision=self.settings.resolved_precision(), examples_per_second=module.examples_seen / seconds,
            tokens_per_second=module.tokens_seen / seconds,
            padding=1 - module.tokens_seen / max(1, module.tokens_computed), **ending,
        )  # fmt: skip

    def _create_trainer(self, callbacks: list[Callback], logger: Logger | Sequence[Logger] | None) -> L.Trainer:
        """Returns Lightning's trainer of this rank."""
        settings, total_steps = self.settings, self.module.total_steps
        trainer = L.Trainer(
            accelerator=settings.accelerator,
            devices=select_devices(settings.device()),
            strategy=create_strategy(settings.strategy, settings.device()),
            precision=settings.resolved_precision(),  # type: ignore[arg-type]
            max_steps=total_steps,
            val_check_interval=evaluation_interval(settings.evaluations, len(self.train)),
            check_val_every_n_epoch=None,  # Steps are counted across epochs.
            num_sanity_val_steps=0,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False if logger is None else logger if isinstance(logger, Logger) else list(logger),
            log_every_n_steps=max(1, min(50, total_steps // 20)),
            callbacks=callbacks,
            use_distributed_sampler=False,
            plugins=[AtomicCheckpointIO()],
            inference_mode=settings.strategy != "fsdp",  # Inference mode fails on gathered weights.
        )
        return prepare_trainer(trainer, settings.strategy)

    def _print_ending(self, patience: Patience | None, soup: lightning_callbacks.Soup | None) -> None:
        """Prints a notice of an early stop, and of weights that are an average."""
        if patience is not None and patience.stopped is not None:
            print_notice(
                f"{self.title}: stopped at step {patience.stopped:,} of {self.module.total_steps:,} after "
                f"{patience.wait_count} evaluations without a better {self.metric}"
            )
        if soup is not None and soup.taken:
            print_notice(
                f"{self.title}: the average of the last {len(soup.steps)} evaluations is taken, which has "
                f"{self.metric} {soup.metric:.4f}; the best one has {soup.best:.4f}"
            )
        elif soup is None and self.settings.soup > 1:
            print_notice(f"{self.title}: dev was evaluated once, so soup={self.settings.soup} averages nothing")


def _describe_training(module: DistillationModule, steps_per_epoch: int, settings: TrainerSettings) -> dict[str, Any]:
    """Returns the properties that a resumed training must share with the checkpoint."""
    shapes = {name: list(tensor.shape) for name, tensor in module.state_dict().items()}
    steps = [module.total_steps, steps_per_epoch, settings.accumulate]
    frozen = {"frozen_steps": module.frozen_steps} if module.frozen_steps else {}  # Earlier versions have none.
    return {
        "model": shapes, "steps": steps, "precision": settings.resolved_precision(), "seed": module.settings.seed,
        "processes": processes.world_size(), "schedule": settings.schedule, "min_steps": settings.min_steps,
        "ema": settings.ema, "soup": settings.soup, "patience": settings.patience, **frozen,
    }  # fmt: skip


def estimate_seconds(module: DistillationModule, train: Loader, dev: Loader, settings: TrainerSettings) -> float:
    """Estimates the duration of `fit` from a few steps on examples of median length, which do not change the weights.

    Scoring an example is assumed to take a third of a training step on it, because it needs no backward pass.
    """
    dataset, buckets = batches.examples_and_buckets(train)
    steps = module.total_steps * settings.accumulate
    shown = buckets.indices()
    size = max(1, round(len(shown) / (len(buckets) * settings.accumulate * settings.processes())))
    device = settings.device()
    module.to(device)
    batch = to_device(dataset[buckets.median_batch(size)], device)
    with _train_faster(module, choose_rows(module, train, settings), settings):
        step_seconds, optimizer_seconds = _time_steps(module, batch, settings)
    writing = module.writing_seconds(batch) * steps
    evaluations = count_evaluations(settings.evaluations, steps_per_epoch=len(train), steps=module.total_steps)
    evaluations += int(settings.soup > 1)  # Of the average.
    scored = evaluations * len(cast(Examples, dev.dataset))
    return writing + step_seconds * (steps + scored / size / 3) + optimizer_seconds * module.total_steps


TIMED_STEPS = 3  # At most, of which the first one warms up,
TIMED_SECONDS = 0.5  # and none after the second one once they have taken so long.


def _time_steps(module: DistillationModule, batch: Batch, settings: TrainerSettings) -> tuple[float, float]:
    """Returns the seconds of both passes over a batch, and those of the optimizer, which changes no weight."""
    optimizer = module.configure_optimizers()[0][0]
    for group in optimizer.param_groups:
        group["lr"] = group["weight_decay"] = 0.0  # The same work without a change of the weights.
    average = lightning_callbacks.MovingAverage(settings.ema)
    if settings.ema > 0:
        average.start(module)
    step_seconds: list[float] = []
    optimizer_seconds = []
    with processes.limit_threads(settings.devices):
        while len(step_seconds) < TIMED_STEPS and (len(step_seconds) < 2 or sum(step_seconds) < TIMED_SECONDS):
            start = time.perf_counter()
            _pass_through(module, batch, settings)
            step_seconds.append(time.perf_counter() - start)
            optimizer.step()
            if settings.ema > 0:
                average.update(module, 1)
            optimizer_seconds.append(time.perf_counter() - start - step_seconds[-1])
            optimizer.zero_grad()
    return min(step_seconds), min(optimizer_seconds)  # The minimum excludes the warm-up and the load of others.


def _pass_through(module: DistillationModule, batch: Batch, settings: TrainerSettings) -> None:
    """Computes the loss of a batch and its gradient; raises UserError for a model that fails in bf16-mixed alone."""
    is_mixed = settings.resolved_precision() == "bf16-mixed"
    try:
        with torch.autocast(settings.device().type, torch.bfloat16, enabled=is_mixed):
            loss, _ = module.losses(batch)
        loss.backward()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if not is_mixed:
            raise
        raise UserError(
            f"a {type(module.student).__name__} cannot be trained in bf16-mixed ({first_line(error)}): set "
            "trainer.precision=32-true and teacher.finetune.precision=32-true"
        ) from error


@contextmanager
def _copy_before_sharding(module: DistillationModule, settings: TrainerSettings) -> Iterator[None]:
    """Replaces student and objective by copies if FSDP shards them, and restores them on exit."""
    if settings.strategy != "fsdp" or processes.world_size() == 1:
        yield
        return
    originals = module.student, module.objective
    module.student, module.objective = copy.deepcopy(originals)
    try:
        yield
    finally:
        module.student, module.objective = originals


@contextmanager
def _train_faster(module: DistillationModule, rows: TrainedRows, settings: TrainerSettings) -> Iterator[None]:
    """Trains these rows of embeddings alone, with `_accelerate`, and restores the student on exit."""
    with compact_embeddings(module, rows), _accelerate(module.student, settings):
        yield


@contextmanager
def _accelerate(student: PreTrainedModel, settings: TrainerSettings) -> Iterator[None]:
    """Compiles the encoder or uses the CPU kernels, and restores the student on exit."""
    if settings.compile:
        encoder = student.base_model  # The head is small, or computes only some tokens.
        encoder.compile(dynamic=True)
        try:
            yield
        finally:
            encoder._compiled_call_impl = None
    elif settings.device().type == "cpu":
        with cpu_kernels.use_cpu_kernels(student):
            yield
    else:
        yield


class _EvaluateAfterLastStep(Callback):
    """Evaluates on dev after the last step, also if `max_steps` ends within an epoch."""

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: object) -> None:
        if trainer.global_step >= trainer.max_steps:
            trainer.should_stop = True
