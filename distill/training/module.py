"""The only LightningModule: one optimizer step of a student under an objective, with or without a teacher."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, get_linear_schedule_with_warmup

from distill.errors import NumericalError
from distill.losses import Objective
from distill.models import chunked_logits
from distill.models.forward import moved, run_model
from distill.tasks import Task
from distill.training import distributed
from distill.training.strategies import shard_module

_APART = 2_654_435_761  # Between the seeds of two processes; its multiples modulo 2**32 lie far from each other.


class DistillationModule(L.LightningModule):
    """Trains `student` under `objective`; with no teacher it is plain fine-tuning.

    A batch is one optimizer step: the list of its micro-batches, or, of several processes, this one's part of them.
    Each term is divided by its own count over the whole step, so unequal micro-batches equal one large batch.

    Args:
        teacher: asked in evaluation mode and without gradients; in no checkpoint, no optimizer.
        kept: in the place of a teacher: its outputs from an earlier pass, as `kept.outputs(batch)`.
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
        kept: Any = None,
        learning_rate: float = 5e-5,
        weight_decay: float = 0.01,
        warmup: float = 0.1,
        clip: float = 1.0,
        total_steps: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if objective.needs_teacher and teacher is None and kept is None:
            raise ValueError(f"objective {objective.name} learns from a teacher, and there is none")
        self.automatic_optimization = False
        self.student = student.train()
        self.objective = objective
        # Past nn.Module's registry: Lightning would train, save and move what it finds there.
        asked = objective.needs_teacher and kept is None
        self.__dict__["teacher"] = freeze(teacher) if asked and teacher is not None else None
        self.kept = kept if objective.needs_teacher else None
        self.task = task
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.warmup, self.clip, self.total_steps, self.seed = warmup, clip, total_steps, seed
        self.tokens_seen = self.tokens_computed = self.examples_seen = 0
        self.teacher_seconds = 0.0
        self._dev_logits: list[Tensor] = []
        self._dev_labels: list[Tensor] = []

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
        counts = torch.stack([self.objective.counts(batch) for batch in micro_batches]).sum(dim=0)
        counts = distributed.all_reduce(counts)
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

    def losses(self, batch: Mapping[str, Tensor], counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The objective of one micro-batch: loss `[]` and each term's sum `[terms]`.

        Over a vocabulary, `items [B, L]`, the models' heads compute the tokens that some term reads and no others.
        """
        counts = self.objective.counts(batch) if counts is None else counts
        if batch["items"].dim() > 1:
            totals = chunked_logits.totals(self.student, self.objective, batch, self._ask)
            return self.objective.weighed(totals, counts), totals.detach()
        needs = self.objective.needs
        teacher_output = self._ask(run_model, batch, needs)
        loss, sums = self.objective(run_model(self.student, batch, needs), teacher_output, batch, counts)
        return loss, sums

    def _ask(self, run: Callable[..., Any], *arguments: Any) -> Any:
        """What the teacher says when it is run so, or what is kept of it; None without either."""
        # The teacher computes in its own precision, whatever the student trains in.
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            if self.kept is not None:
                return self.kept.outputs(arguments[0])
            if self.teacher is None:
                return None
            began = time.perf_counter()
            said = run(self.teacher, *arguments)
            self.teacher_seconds += time.perf_counter() - began
            return said

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
        """Processes add up their gradients once a step, in its last backward pass."""
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
        for batch in micro_batches:
            said, labels = scored(self.student, batch)
            self._dev_logits.append(said)
            self._dev_labels.append(labels)

    def on_validation_epoch_end(self) -> None:
        logits, labels = torch.cat(self._dev_logits).numpy(), torch.cat(self._dev_labels).numpy()
        self._dev_logits.clear()
        self._dev_labels.clear()
        self.log_dict({f"dev/{name}": value for name, value in self.task.metrics(logits, labels).items()})

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(parameter_groups(self, self.weight_decay), lr=self.learning_rate, fused=True)
        schedule = get_linear_schedule_with_warmup(
            optimizer, math.ceil(self.warmup * self.total_steps), self.total_steps
        )
        return [optimizer], [schedule]


def freeze(model: PreTrainedModel) -> PreTrainedModel:
    """The model for good in evaluation mode and without gradients: a later `train()` does nothing."""
    model.requires_grad_(False).eval()
    model.train = _StayAsItIs(model)  # type: ignore[method-assign]
    return model


class _StayAsItIs:
    """A frozen model's `train()`; a copy of the model has one of its own, and it can be pickled."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def __call__(self, mode: bool = True) -> PreTrainedModel:
        return self.model


def scored(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """What a task's metrics are computed from, on the CPU: of every item its answer `[n, C]` and its label `[n]`.

    Over a vocabulary the answer is what `token_scores` makes of the logits.
    """
    if batch["items"].dim() > 1:
        labels = batch["labels"][batch["items"]]
        return chunked_logits.token_scores(chunked_logits.logits_at_items(model, batch), labels).cpu(), labels.cpu()
    return run_model(model, batch).logits.float().cpu(), batch["labels"].cpu()


@torch.inference_mode()
def predict_logits(model: PreTrainedModel, steps: Iterable[list[dict[str, Tensor]]]) -> np.ndarray:
    """Logits `[examples, C]` of a whole split, in the order of the split, float32; the model's mode is kept."""
    was_training = model.training
    model.eval()
    logits, order = [], []
    for step in steps:
        for batch in step:
            logits.append(run_model(model, moved(batch, model.device)).logits.float().cpu())
            order.append(batch["example_id"].cpu())
    model.train(was_training)
    return torch.cat(logits)[torch.cat(order).argsort()].numpy()


def predict_splits(model: PreTrainedModel, loaders: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Split -> logits `[examples, C]`, for every loader but that of the training."""
    return {name: predict_logits(model, loader) for name, loader in loaders.items() if name != "train"}


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
