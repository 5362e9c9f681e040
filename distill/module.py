"""The only LightningModule: one optimizer step of a student under an objective, with or without a teacher."""

import inspect
import math
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, get_linear_schedule_with_warmup
from transformers.modeling_outputs import ModelOutput

from distill import processes
from distill.errors import NumericalError
from distill.losses import Objective
from distill.tasks import SequenceTask

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
        task: SequenceTask,
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
                    processes.shard(part, self.device_mesh["data_parallel"])

    def on_fit_start(self) -> None:
        if self.teacher is not None:
            self.teacher.to(self.device)

    def training_step(self, micro_batches: list[dict[str, Tensor]], batch_idx: int) -> None:
        step = self.global_step
        torch.manual_seed(self.seed * 1_000_003 + step + processes.rank() * _APART)
        optimizer = self.optimizers()
        counts = processes.total(torch.stack([self.objective.counts(batch) for batch in micro_batches]).sum(dim=0))
        sums = torch.zeros_like(counts)
        loss_value = 0.0
        for number, batch in enumerate(micro_batches, start=1):
            loss, batch_sums = self.losses(batch, counts)
            with self._synchronized(number == len(micro_batches)):
                self.manual_backward(loss * processes.world())  # DDP takes the mean, where a step is a sum.
            sums += batch_sums
            loss_value += float(loss.detach())
        figures = [loss_value, *self._count_tokens(micro_batches)]
        loss_value, *seen = processes.total(torch.tensor(figures, dtype=torch.float64)).tolist()
        self.tokens_seen += int(seen[0])
        self.tokens_computed += int(seen[1])
        self.examples_seen += int(seen[2])
        self._log_losses(step, loss_value, processes.total(sums) / counts.clamp(min=1))
        if self.clip > 0:
            # Projections learn too, so their gradients are part of the norm.
            nn.utils.clip_grad_norm_(list(self.parameters()), self.clip)
        optimizer.step()  # type: ignore[union-attr]
        optimizer.zero_grad()  # type: ignore[union-attr]
        self.lr_schedulers().step()  # type: ignore[union-attr, call-arg]

    def losses(self, batch: Mapping[str, Tensor], counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The objective of one micro-batch: loss `[]` and each term's sum `[terms]`.

        Where every token is an item, `items [B, L]`, the models' heads compute those that count and no others.
        """
        needs = self.objective.needs
        batch, positions = at_items(batch)
        teacher_output = None
        # The teacher computes in its own precision, whatever the student trains in.
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            if self.kept is not None:
                teacher_output = self.kept.outputs(batch)
            elif self.teacher is not None:
                began = time.perf_counter()
                teacher_output = run_model(self.teacher, batch, needs, positions)
                self.teacher_seconds += time.perf_counter() - began
        student_output = run_model(self.student, batch, needs, positions)
        loss, sums = self.objective(student_output, teacher_output, batch, counts)
        return loss, sums

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
        if last or processes.world() == 1:
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
            self._dev_logits.append(run_model(self.student, batch).logits.float().cpu())
            self._dev_labels.append(batch["labels"].cpu())

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


def at_items(batch: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], Tensor | None]:
    """A batch whose items are tokens, `labels` and `items` being `[1, n]` of the n that count, and where those are.

    A vocabulary is so wide that the logits of all tokens cost as much as the encoder. Other batches stay as they are.
    """
    items = batch["items"]
    if items.dim() == 1:
        return batch, None
    labels = batch["labels"][items].unsqueeze(0)
    return {**batch, "labels": labels, "items": torch.ones_like(labels, dtype=torch.bool)}, items


def run_model(
    model: PreTrainedModel,
    batch: Mapping[str, Tensor],
    needs: frozenset[str] = frozenset(),
    positions: Tensor | None = None,
) -> ModelOutput:
    """The model's output for those tensors of the batch that it knows; a pair's token types reach who has them.

    With `positions [B, L]` the head sees those n tokens alone: `logits [1, n, V]`. Hidden states are of all tokens.
    """
    handle = None
    if positions is not None:

        def select(encoder: nn.Module, inputs: Any, output: ModelOutput) -> ModelOutput:
            output.last_hidden_state = output.last_hidden_state[positions].unsqueeze(0)
            return output

        handle = model.base_model.register_forward_hook(select)
    try:
        outputs: ModelOutput = model(
            **{name: batch[name] for name in input_names(model) if name in batch},
            output_hidden_states="hidden_states" in needs,
            output_attentions="attentions" in needs,
        )
    finally:
        if handle is not None:
            handle.remove()
    return outputs


def moved(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The batch on another device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


def input_names(model: PreTrainedModel) -> list[str]:
    """Tensors that the model reads: its `forward`'s, out of those that a tokenizer makes."""
    accepted = inspect.signature(model.forward).parameters
    return [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in accepted]


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
