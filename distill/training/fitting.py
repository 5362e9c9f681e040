"""Fitting one module with Lightning: precision, checkpoints, progress, and what the training took."""

import copy
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, Timer
from lightning.pytorch.loggers import Logger
from transformers import PreTrainedModel

from distill.contracts import Examples, Loader
from distill.data import batching
from distill.models import cpu_kernels
from distill.models.forward import to_device
from distill.training import distributed, memory
from distill.training.checkpoints import (
    AtomicCheckpointIO,
    Checkpoints,
    PortableModelCheckpoint,
    StepSource,
    load_checkpoint,
)
from distill.training.module import DistillationModule
from distill.training.progress_bar import ProgressBar
from distill.training.settings import TrainerSettings
from distill.training.strategies import create_strategy, select_devices


@dataclass(frozen=True)
class Fit:
    """What a training took: `padding` is the share of computed tokens that were padding; a stream has no epochs."""

    seconds: float
    epochs: float | None
    steps: int
    precision: str
    examples_per_second: float
    tokens_per_second: float
    padding: float
    peak_rss_mb: float | None
    best: float


def fit(
    module: DistillationModule,
    train: Loader,
    dev: Loader,
    *,
    settings: TrainerSettings,
    checkpoints: Path,
    logger: Logger | None,
    title: str,
    identity: Mapping[str, object] | None = None,
    resume: bool = False,
) -> Fit:
    """Train, and leave the module with the weights that scored best on dev.

    With `resume` the training goes on from `checkpoints/last.ckpt` where there is one. `identity` is what it depends
    on besides its settings and the shape of the module.

    Raises:
        UserError: for a checkpoint that is damaged or of another training.
        KeyboardInterrupt: when the training was asked to stop, by Ctrl-C or SIGTERM.
    """
    work = (module, train, dev, settings, checkpoints, title, dict(identity or {}), resume)
    if settings.processes() == 1:
        return _fit(*work, logger=logger)
    for model in (module, module.teacher):
        if model is not None:
            model.cpu()  # On its way to other processes, which have other GPUs.
    return distributed.run(_fit, *work, world_size=settings.processes(), device=settings.device(), logger=logger)


def _fit(
    module: DistillationModule,
    train: Loader,
    dev: Loader,
    settings: TrainerSettings,
    checkpoints: Path,
    title: str,
    identity: Mapping[str, object],
    resume: bool,
    logger: Logger | None = None,
) -> Fit:
    """`fit` in one of the processes that train."""
    memory.keep_freed_memory()
    measures_memory = memory.reset_peak()
    steps = cast(StepSource, train.batch_sampler or train.dataset)  # A stream makes its own steps.
    if distributed.rank() > 0:
        steps.rank = distributed.rank()
    metric, selects = f"dev/{module.task.metric}", module.task.selects
    best = PortableModelCheckpoint(
        dirpath=checkpoints, filename="best", monitor=metric, mode=selects, save_weights_only=True,
        enable_version_counter=False,
    )  # fmt: skip
    last = PortableModelCheckpoint(dirpath=checkpoints, filename="last", enable_version_counter=False)
    last_path = checkpoints / "last.ckpt"
    resuming = resume and last_path.is_file()
    saving = Checkpoints(
        last_path,
        every=settings.checkpoint_steps,
        identity={**identity, **_identity(module, len(train), settings)},
        steps=steps,
    )
    if resuming:
        saving.skip_finished_steps()
    timer = Timer()  # Its state is in the checkpoint, so that a resumed run continues counting.
    shown = [ProgressBar(title, metric, selects)] if distributed.rank() == 0 else []
    callbacks = [best, _EvaluateAtTheEnd(), saving, last, timer, *shown]
    trainer = _create_trainer(module, settings, steps_per_epoch=len(train), callbacks=callbacks, logger=logger)
    with _kept_whole(module, settings), _made_fast(module.student, settings), saving.stop_on_signals():
        trainer.fit(module, train, dev, ckpt_path=str(last_path) if resuming else None, weights_only=True)
    if distributed.rank() == 0:  # The others have done their part.
        module.load_state_dict(load_checkpoint(Path(best.best_model_path))["state_dict"])
    return _summarize(
        module, train, settings, seconds=timer.time_elapsed("train"), steps=trainer.global_step, best=best,
        peak_rss_mb=memory.peak_mb() if measures_memory else None,
    )  # fmt: skip


def _create_trainer(
    module: DistillationModule,
    settings: TrainerSettings,
    *,
    steps_per_epoch: int,
    callbacks: list[Callback],
    logger: Logger | None,
) -> L.Trainer:
    """Lightning's trainer for one of the processes that train."""
    return L.Trainer(
        accelerator=settings.accelerator,
        devices=select_devices(settings.device()),
        strategy=create_strategy(settings.strategy, settings.device()),
        precision=settings.resolved_precision(),  # type: ignore[arg-type]
        max_steps=module.total_steps,
        val_check_interval=max(1, steps_per_epoch // settings.evaluations),
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=logger if logger is not None else False,
        log_every_n_steps=max(1, min(50, module.total_steps // 20)),
        callbacks=callbacks,
        use_distributed_sampler=False,
        plugins=[AtomicCheckpointIO()],
        inference_mode=settings.strategy != "fsdp",  # Gathered weights are no tensors for it.
    )


def _summarize(
    module: DistillationModule,
    train: Loader,
    settings: TrainerSettings,
    *,
    seconds: float,
    steps: int,
    best: PortableModelCheckpoint,
    peak_rss_mb: float | None,
) -> Fit:
    """What the training took, by the counts of the module."""
    seconds = max(seconds, 1e-9)
    return Fit(
        seconds=seconds,
        epochs=module.examples_seen / len(train.dataset) if train.batch_sampler else None,  # type: ignore[arg-type]
        steps=steps,
        precision=settings.resolved_precision(),
        examples_per_second=module.examples_seen / seconds,
        tokens_per_second=module.tokens_seen / seconds,
        padding=1 - module.tokens_seen / max(1, module.tokens_computed),
        peak_rss_mb=peak_rss_mb,
        best=float(best.best_model_score) if best.best_model_score is not None else float("nan"),
    )


def _identity(module: DistillationModule, steps_per_epoch: int, settings: TrainerSettings) -> dict[str, Any]:
    """What a training that is resumed must have in common with its beginning."""
    shapes = {name: list(tensor.shape) for name, tensor in module.state_dict().items()}
    steps = [module.total_steps, steps_per_epoch, settings.accumulate]
    return {
        "model": shapes, "steps": steps, "precision": settings.resolved_precision(), "seed": module.seed,
        "processes": distributed.world_size(),
    }  # fmt: skip


def estimate_seconds(module: DistillationModule, train: Loader, dev: Loader, settings: TrainerSettings) -> float:
    """How long `fit` will take, from a few steps over examples of median length; the weights stay as they are.

    Scoring an example of dev is taken for a third of training on one: it is spared the backward pass.
    """
    dataset, buckets = batching.shown(train)
    steps = module.total_steps * settings.accumulate
    size = max(1, round(len(dataset) / (len(buckets) * settings.accumulate * settings.processes())))
    by_length = np.argsort(dataset.lengths, kind="stable")
    middle = max(0, (len(by_length) - size) // 2)
    device = settings.device()
    module.to(device)
    if module.teacher is not None:
        module.teacher.to(device)
    batch = to_device(dataset[by_length[middle : middle + size].tolist()], device)
    optimizer = module.configure_optimizers()[0][0]
    for group in optimizer.param_groups:
        group["lr"] = group["weight_decay"] = 0.0  # All the work of a step, and nothing moves.
    took, optimizing = [], []
    with _made_fast(module.student, settings), distributed.limit_threads(settings.devices):
        for _ in range(4):
            start = time.perf_counter()
            with torch.autocast(device.type, torch.bfloat16, enabled=settings.resolved_precision() == "bf16-mixed"):
                loss, _ = module.losses(batch)
            loss.backward()
            took.append(time.perf_counter() - start)
            optimizer.step()
            optimizing.append(time.perf_counter() - start - took[-1])
            optimizer.zero_grad()
    module.teacher_seconds = 0.0  # These answers are no part of the training.
    # The quickest: the others waited for something that comes once, or for others.
    evaluations = max(1, round(settings.evaluations * module.total_steps / len(train)))
    scored = evaluations * len(cast(Examples, dev.dataset))
    return min(took) * (steps + scored / size / 3) + min(optimizing) * module.total_steps


@contextmanager
def _kept_whole(module: DistillationModule, settings: TrainerSettings) -> Iterator[None]:
    """Train copies of student and objective where these are cut into shares; the module has its own at the end."""
    if settings.strategy != "fsdp" or distributed.world_size() == 1:
        yield
        return
    whole = module.student, module.objective
    module.student, module.objective = copy.deepcopy(whole)
    try:
        yield
    finally:
        module.student, module.objective = whole


@contextmanager
def _made_fast(student: PreTrainedModel, settings: TrainerSettings) -> Iterator[None]:
    """The student with what makes its training quick on this device, and as it was at the end."""
    if settings.compile:
        encoder = student.base_model  # A head is small, or is asked for some tokens alone.
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


class _EvaluateAtTheEnd(Callback):
    """Scores dev after the very last step too, wherever in an epoch `max_steps` ends."""

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: object) -> None:
        if trainer.global_step >= trainer.max_steps:
            trainer.should_stop = True
