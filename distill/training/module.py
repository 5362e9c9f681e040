"""The only LightningModule: one optimizer step of a student under an objective, with or without a teacher."""

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, get_linear_schedule_with_warmup

from distill.contracts import Batch, ItemOutputs, Items, Outputs, Task, TeacherOutputs
from distill.errors import NumericalError
from distill.losses import Objective
from distill.training import distributed
from distill.training.evaluate import Columns, concatenate, score_batch
from distill.training.strategies import shard_module

_APART = 2_654_435_761  # Between the seeds of two processes; its multiples modulo 2**32 lie far from each other.


class DistillationModule(L.LightningModule):
    """Trains `student` under `objective`; with no teacher it is plain fine-tuning.

    A batch is one optimizer step: the list of its micro-batches, or, of several processes, this one's part of them.
    Each term is divided by its own count over the whole step, so unequal micro-batches equal one large batch.

    Args:
        teacher: runs in evaluation mode and without gradients; it is in no checkpoint and no optimizer.
        cached_outputs: the teacher's outputs of an earlier pass, in place of a teacher.
        total_steps: optimizer steps of the whole training, for the linear decay to zero.
        warmup: share of the steps over which the learning rate rises from zero.
        clip: largest norm of the gradient; 0 does not clip.
        seed: dropout depends on it, on the step and on the process alone, so a resumed run draws the same.
    """

    def __init__(
        self,
        *,
        student: PreTrainedModel,
        objective: Objective,
        task: Task,
        teacher: PreTrainedModel | None = None,
        cached_outputs: TeacherOutputs | None = None,
        learning_rate: float = 5e-5,
        weight_decay: float = 0.01,
        warmup: float = 0.1,
        clip: float = 1.0,
        total_steps: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if objective.needs_teacher and teacher is None and cached_outputs is None:
            raise ValueError(f"objective {objective.name} learns from a teacher, and there is none")
        self.automatic_optimization = False
        self.student = student.train()
        self.objective = objective
        self.task = task
        computed = objective.needs_teacher and cached_outputs is None and teacher is not None
        # Not registered as a submodule: Lightning would train, save and move it.
        self.__dict__["teacher"] = freeze(teacher) if computed and teacher is not None else None
        self.cached_outputs = cached_outputs if objective.needs_teacher else None
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.warmup, self.clip, self.total_steps, self.seed = warmup, clip, total_steps, seed
        self.tokens_seen = self.tokens_computed = self.examples_seen = 0
        self.teacher_seconds = 0.0
        self._dev_scores: list[tuple[Columns, Columns]] = []

    def configure_model(self) -> None:
        if self.device_mesh is not None:  # Weights are spread over processes.
            for part in (self.student, self.objective):
                if any(True for _ in part.parameters()):
                    shard_module(part, self.device_mesh["data_parallel"])

    def on_fit_start(self) -> None:
        if self.teacher is not None:
            self.teacher.to(self.device)

    def training_step(self, micro_batches: list[dict[str, Tensor]], batch_idx: int) -> None:
        step = self.global_step
        torch.manual_seed(self.seed * 1_000_003 + step + distributed.rank() * _APART)
        optimizer = self.optimizers()
        counts = distributed.all_reduce(torch.stack([self._counts(batch) for batch in micro_batches]).sum(dim=0))
        sums = torch.zeros_like(counts)
        loss_value = 0.0
        for number, batch in enumerate(micro_batches, start=1):
            loss, batch_sums = self.losses(batch, counts)
            with self._synchronized(number == len(micro_batches)):
                self.manual_backward(loss * distributed.world_size())  # DDP takes the mean, where a step is a sum.
            sums += batch_sums
            loss_value += float(loss.detach())
        figures = [loss_value, *self._count_tokens(micro_batches)]
        loss_value, *seen = distributed.all_reduce(torch.tensor(figures, dtype=torch.float64)).tolist()
        self.tokens_seen += int(seen[0])
        self.tokens_computed += int(seen[1])
        self.examples_seen += int(seen[2])
        self._log_losses(step, loss_value, distributed.all_reduce(sums) / counts.clamp(min=1))
        if self.clip > 0:
            # Projections learn too, so their gradients are part of the norm.
            nn.utils.clip_grad_norm_(list(self.parameters()), self.clip)
        optimizer.step()  # type: ignore[union-attr]
        optimizer.zero_grad()  # type: ignore[union-attr]
        self.lr_schedulers().step()  # type: ignore[union-attr, call-arg]

    def losses(self, batch: Batch, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The objective of one micro-batch: loss `[]` and each term's sum `[terms]`."""
        items = self._items(batch)
        counts = self.objective.counts(items) if counts is None else counts
        teacher = self._teacher_outputs(batch, items)
        student = self.task.run(self.student, batch, items, self.objective.needs)
        totals = self.objective.totals(student.whole(), teacher.whole(), items, reading_logits=False)
        for part in self._totals_of_logits(student, teacher, items):
            totals = totals + part
        return self.objective.weighted(totals, counts), totals.detach()

    def _items(self, batch: Batch) -> Items:
        return self.task.select(batch, every_token=self.objective.reads_every_token)

    def _counts(self, batch: Batch) -> Tensor:
        return self.objective.counts(self._items(batch))

    def _totals_of_logits(self, student: ItemOutputs, teacher: ItemOutputs, items: Items) -> Iterator[Tensor]:
        """The sums `[terms]` of the terms that read logits, for some items at a time where the student says so.

        The logits of a chunk are freed and computed once more for the gradient, so that memory does not grow with the
        batch.
        """

        def totals(items: Items) -> Tensor:
            return self.objective.totals(student.at(items), teacher.at(items), items, reading_logits=True)

        size = student.chunk_size
        if size is None or len(items) <= size:
            yield totals(items)
            return
        for first in range(0, len(items), size):
            part = items.part(first, min(len(items), first + size))
            yield checkpoint(totals, part, use_reentrant=False, preserve_rng_state=False)  # type: ignore[misc]

    def _teacher_outputs(self, batch: Batch, items: Items) -> ItemOutputs:
        """The teacher's outputs for this batch, computed or cached; empty ones if no term needs them."""
        if self.cached_outputs is not None:
            with torch.no_grad(), torch.autocast(self.device.type, enabled=False):  # Which refuses to join float16.
                return self.cached_outputs(batch, items)
        if self.teacher is None:
            return _NoOutputs()
        with self._teacher_computes():
            return _TeacherPass(self, self.task.run(self.teacher, batch, items, self.objective.needs))

    @contextmanager
    def _teacher_computes(self) -> Iterator[None]:
        """Computes without gradients, in the teacher's own precision, and counts the seconds."""
        start = time.perf_counter()
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            yield
        self.teacher_seconds += time.perf_counter() - start

    def _log_losses(self, step: int, loss: float, means: Tensor) -> None:
        values = dict(zip(self.objective.names, means.tolist(), strict=True))
        for name, value in values.items():
            if not math.isfinite(value):
                raise NumericalError(
                    f"step {step}: the term {name} is {value}; try a smaller learning_rate (trainer's, or "
                    "teacher.finetune's), or precision=32-true"
                )
        self.log_dict({f"train/{name}": value for name, value in values.items()} | {"train/loss": loss})

    def _synchronized(self, last: bool) -> AbstractContextManager[Any]:
        """Ranks add up their gradients once a step, in its last backward pass."""
        if last or distributed.world_size() == 1:
            return nullcontext()
        blocked: AbstractContextManager[Any] = self.trainer.strategy.block_backward_sync()  # type: ignore[attr-defined]
        return blocked

    @staticmethod
    def _count_tokens(micro_batches: list[dict[str, Tensor]]) -> list[int]:
        """Tokens, tokens with their padding, and examples."""
        masks = [batch["attention_mask"] for batch in micro_batches]
        seen = sum(int(mask.sum()) for mask in masks)
        return [seen, sum(mask.numel() for mask in masks), sum(len(batch["example_id"]) for batch in micro_batches)]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["seen"] = [self.examples_seen, self.tokens_seen, self.tokens_computed, self.teacher_seconds]
        progress = self.trainer.fit_loop.epoch_loop.batch_progress
        checkpoint["steps_of_epoch"] = 0 if progress.is_last_batch else progress.current.ready

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.examples_seen, self.tokens_seen, self.tokens_computed, self.teacher_seconds = checkpoint["seen"]

    def validation_step(self, micro_batches: list[dict[str, Tensor]], batch_idx: int) -> None:
        self._dev_scores += [score_batch(self.student, self.task, batch) for batch in micro_batches]

    def on_validation_epoch_end(self) -> None:
        scores = concatenate(self._dev_scores)
        self._dev_scores.clear()
        self.log_dict({f"dev/{name}": value for name, value in self.task.metrics(scores).items()})

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(parameter_groups(self, self.weight_decay), lr=self.learning_rate, fused=True)
        schedule = get_linear_schedule_with_warmup(
            optimizer, math.ceil(self.warmup * self.total_steps), self.total_steps
        )
        return [optimizer], [schedule]


class _NoOutputs:
    """The outputs of a teacher that no term needs."""

    chunk_size = None

    def whole(self) -> Outputs:
        return Outputs()

    def at(self, items: Items) -> Outputs:
        return Outputs()


class _TeacherPass:
    """The outputs of a teacher that runs in every step; its head runs without gradients too."""

    def __init__(self, module: DistillationModule, outputs: ItemOutputs) -> None:
        self.module, self.outputs, self.chunk_size = module, outputs, outputs.chunk_size

    def whole(self) -> Outputs:
        with self.module._teacher_computes():
            return self.outputs.whole()

    def at(self, items: Items) -> Any:
        with self.module._teacher_computes():
            return self.outputs.at(items)


def freeze(model: PreTrainedModel) -> PreTrainedModel:
    """Returns the model in evaluation mode and without gradients; a later `train()` has no effect."""
    model.requires_grad_(False).eval()
    model.train = _NoTrain(model)  # type: ignore[method-assign]
    return model


class _NoTrain:
    """The `train()` of a frozen model; it is copied with the model, and can be pickled."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def __call__(self, mode: bool = True) -> PreTrainedModel:
        return self.model


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters with and without decay: none for biases, nor for whatever is inside a norm, by the module's type."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    seen: set[int] = set()
    for owner in module.modules():
        is_norm = "norm" in type(owner).__name__.lower()
        for name, parameter in owner.named_parameters(recurse=False):
            if id(parameter) in seen or not parameter.requires_grad:
                continue
            seen.add(id(parameter))
            (free if is_norm or "bias" in name else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]
