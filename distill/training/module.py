"""The only LightningModule: one optimizer step of a student under an objective, with or without a teacher."""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, get_scheduler

from distill.contracts import TARGET_MASK, Batch, Items, Learnable, Outputs, Signal
from distill.errors import NumericalError
from distill.losses import Objective
from distill.losses.term import divisors, in_chunks
from distill.models.forward import to_device
from distill.models.heads import find_table
from distill.tasks.scoring import Scoring
from distill.training import distributed
from distill.training.evaluate import Columns, concatenate, dev_metrics, score_batch
from distill.training.known_gradient import sum_with_gradient
from distill.training.on_policy import STUDENT_WRITES, write_batch
from distill.training.strategies import shard_module

_RANK_SEED_STRIDE = 2_654_435_761  # Its multiples modulo 2**32 are far from each other.
# Names of schedules -> those of transformers.
_SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}


NOTHING = Signal()  # That of no teacher.


class DistillationModule(L.LightningModule):
    """Trains `student` with `objective`. Without the signal of a teacher this is fine-tuning.

    A batch is one optimizer step: the list of the micro-batches of this rank. Each term is divided by its count over
    the whole step, so that micro-batches of unequal sizes equal one large batch.

    Args:
        scoring: computes the metrics of dev, by which checkpoints are selected; a step alone needs none.
        signal: the teacher's outputs, which are not part of checkpoints and optimizer.
        total_steps: optimizer steps of the whole training.
        schedule: course of the learning rate after the warm-up: `linear` or `cosine` to zero, or `constant`.
        warmup: share of the steps over which the learning rate rises from zero.
        embeddings_learning_rate: that of tables of embeddings; None: `learning_rate`.
        betas, eps: of AdamW.
        clip: largest norm of the gradient; 0 does not clip.
        frozen_steps: number of the first steps in which the student's table of embeddings stays as it is.
        seed: dropout depends only on the seed, the step and the rank, so that a resumed training is the same.
    """

    def __init__(
        self,
        *,
        student: PreTrainedModel,
        objective: Objective,
        task: Learnable,
        scoring: Scoring = Scoring(),  # noqa: B008  # Without fields.
        signal: Signal = NOTHING,
        learning_rate: float = 5e-5,
        embeddings_learning_rate: float | None = None,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        warmup: float = 0.1,
        clip: float = 1.0,
        total_steps: int = 1000,
        schedule: str = "linear",
        frozen_steps: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if objective.needs_teacher and signal is NOTHING:
            raise ValueError(f"objective {objective.name} learns from a teacher, and there is none: give its signal")
        self.automatic_optimization = False
        self.student = student.train()
        self.objective = objective
        self.task, self.scoring = task, scoring
        self.signal = signal if objective.needs_teacher else NOTHING
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.embeddings_learning_rate = embeddings_learning_rate
        self.betas, self.eps = betas, eps
        self.warmup, self.clip, self.total_steps, self.seed = warmup, clip, total_steps, seed
        self.schedule, self.frozen_steps = _SCHEDULES[schedule], frozen_steps
        self.tokens_seen = self.tokens_computed = self.examples_seen = 0
        self.teacher_seconds = 0.0
        self._dev_scores: list[tuple[Columns, Columns]] = []

    def configure_model(self) -> None:
        if self.device_mesh is not None:  # FSDP.
            for module in (self.student, self.objective):
                if any(True for _ in module.parameters()):
                    shard_module(module, self.device_mesh["data_parallel"])

    def training_step(self, micro_batches: list[dict[str, Tensor]], batch_idx: int) -> None:
        step, teacher_seconds = self.global_step, self.signal.seconds
        torch.manual_seed(self.seed * 1_000_003 + step + distributed.rank() * _RANK_SEED_STRIDE)
        optimizer = self.optimizers()
        micro_batches = [self.choose_targets(batch) for batch in micro_batches]
        counts = distributed.all_reduce(torch.stack([self._counts(batch) for batch in micro_batches]).sum(dim=0))
        sums = torch.zeros_like(counts)
        loss_value = 0.0
        for number, batch in enumerate(micro_batches, start=1):
            loss, batch_sums = self.losses(batch, counts)
            with self._synchronized(number == len(micro_batches)):
                self.manual_backward(loss * distributed.world_size())  # DDP averages the gradients.
            sums += batch_sums
            loss_value += float(loss.detach())
        self.teacher_seconds += self.signal.seconds - teacher_seconds
        values = [loss_value, *self._count_tokens(micro_batches)]
        loss_value, *seen = distributed.all_reduce(torch.tensor(values, dtype=torch.float64)).tolist()
        self.tokens_seen += int(seen[0])
        self.tokens_computed += int(seen[1])
        self.examples_seen += int(seen[2])
        self._log_losses(step, loss_value, distributed.all_reduce(sums) / divisors(counts))
        if step < self.frozen_steps and (table := find_table(self.student)) is not None:
            for parameter in table.parameters():
                parameter.grad = None  # AdamW leaves out a tensor without a gradient, its decay and moments too.
        if self.clip > 0:
            # Including the projections of the objective.
            nn.utils.clip_grad_norm_(list(self.parameters()), self.clip)
        optimizer.step()  # type: ignore[union-attr]
        optimizer.zero_grad()  # type: ignore[union-attr]
        self.lr_schedulers().step()  # type: ignore[union-attr, call-arg]

    def losses(self, batch: Batch, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns the loss `[]` of one micro-batch and the sum of each term `[terms]`."""
        items = self._items(batch)
        counts = self.objective.counts(items) if counts is None else counts
        teacher_outputs = self._teacher_outputs(batch, items)
        student_outputs = self.task.run(self.student, batch, items, self.objective.student_needs)
        totals = self.objective.totals(student_outputs.whole(), teacher_outputs.whole(), items, reading_logits=False)
        if self.objective.reads_logits and self._knows_gradient(student_outputs):

            def of_part(outputs: Outputs, part: Items) -> tuple[Tensor, Tensor]:
                part_totals = self.objective.totals(outputs, teacher_outputs.at(part), part, reading_logits=True)
                return self.objective.weighted(part_totals, counts), part_totals

            of_logits, sums = sum_with_gradient(of_part, student_outputs, items, self.parameters())
            return self.objective.weighted(totals, counts) + of_logits, totals.detach() + sums
        for chunk_totals in self._logit_totals(student_outputs, teacher_outputs, items):
            totals = totals + chunk_totals
        return self.objective.weighted(totals, counts), totals.detach()

    def _knows_gradient(self, outputs: Outputs) -> bool:
        """Returns whether the gradient of logits is computed in the forward pass.

        FSDP needs it in the backward pass, in which it gathers the parameters and scatters their gradients.
        """
        return torch.is_grad_enabled() and outputs.states is not None and self.device_mesh is None

    @torch.no_grad()
    def mean_losses(self, loader: Iterable[list[Batch]]) -> dict[str, float]:
        """Returns the mean of each term over a split, in evaluation mode.

        Args:
            loader: yields lists of batches.
        """
        was_training = self.training
        self.eval()
        sums = counts = torch.zeros(len(self.objective.names))
        for batches in loader:
            for batch in batches:
                moved = to_device(batch, self.student.device)
                sums = sums + self.losses(moved)[1].cpu()
                counts = counts + self._counts(moved).cpu()
        self.train(was_training)
        return dict(zip(self.objective.names, (sums / divisors(counts)).tolist(), strict=True))

    def choose_targets(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the batch, for a share of the batches with targets that the student writes now."""
        writing = self.objective.writing
        if writing is None or float(torch.rand(())) >= writing.student_share:
            return batch
        return write_batch(self.student, batch, temperature=writing.sampling_temperature)

    def writing_seconds(self, batch: dict[str, Tensor]) -> float:
        """Returns the mean duration of the student's writing for such a batch, 0 for the share that it leaves."""
        writing = self.objective.writing
        if writing is None:
            return 0.0
        start = time.perf_counter()
        write_batch(self.student, batch, temperature=writing.sampling_temperature)
        return writing.student_share * (time.perf_counter() - start)

    def _items(self, batch: Batch) -> Items:
        items = self.task.select(batch)
        if STUDENT_WRITES in batch:
            items = items.without_labels()
        return items.with_every_token() if self.objective.reads_every_token else items

    def _counts(self, batch: Batch) -> Tensor:
        return self.objective.counts(self._items(batch))

    def _logit_totals(self, student_outputs: Outputs, teacher_outputs: Outputs, items: Items) -> Iterator[Tensor]:
        """Yields the sums `[terms]` of the terms that read logits, in chunks of the student's `chunk_size` items."""

        def totals(items: Items) -> Tensor:
            return self.objective.totals(
                student_outputs.at(items), teacher_outputs.at(items), items, reading_logits=True
            )

        if not self.objective.reads_logits:
            return
        yield from in_chunks(totals, items, student_outputs.chunk_size)

    def _teacher_outputs(self, batch: Batch, items: Items) -> Outputs:
        """Returns the teacher's outputs for this batch, which are empty if no term needs them."""
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):  # It cannot concatenate float16.
            return self.signal(batch, items)

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
        """Synchronizes the gradients of the ranks only in the last backward pass of a step."""
        if last or distributed.world_size() == 1:
            return nullcontext()
        blocked: AbstractContextManager[Any] = self.trainer.strategy.block_backward_sync()  # type: ignore[attr-defined]
        return blocked

    @staticmethod
    def _count_tokens(micro_batches: list[dict[str, Tensor]]) -> list[int]:
        """Returns the numbers of tokens without padding, of tokens with padding, and of examples."""
        names = ("attention_mask", TARGET_MASK)
        masks = [batch[name] for batch in micro_batches for name in names if name in batch]
        tokens = sum(int(mask.sum()) for mask in masks)
        return [tokens, sum(mask.numel() for mask in masks), sum(len(batch["example_id"]) for batch in micro_batches)]

    def seen(self) -> list[float]:
        """Returns the counters of the training so far, which `on_load_checkpoint` reads."""
        return [self.examples_seen, self.tokens_seen, self.tokens_computed, self.teacher_seconds]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["seen"] = self.seen()
        progress = self.trainer.fit_loop.epoch_loop.batch_progress
        checkpoint["steps_of_epoch"] = 0 if progress.is_last_batch else progress.current.ready

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.examples_seen, self.tokens_seen, self.tokens_computed, self.teacher_seconds = checkpoint["seen"]

    def validation_step(self, micro_batches: list[dict[str, Tensor]], batch_idx: int) -> None:
        self._dev_scores += [score_batch(self.student, self.task, self.scoring, batch) for batch in micro_batches]

    def on_validation_epoch_end(self) -> None:
        scores = concatenate(self._dev_scores)
        self._dev_scores.clear()
        self.log_dict({f"dev/{name}": value for name, value in dev_metrics(self.scoring, scores).items()})

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(
            parameter_groups(self, self.weight_decay, embeddings_learning_rate=self.embeddings_learning_rate),
            lr=self.learning_rate, betas=self.betas, eps=self.eps, fused=True,
        )  # fmt: skip
        warmup = math.ceil(self.warmup * self.total_steps)
        schedule = get_scheduler(self.schedule, optimizer, warmup, self.total_steps)
        return [optimizer], [schedule]


def freeze(model: PreTrainedModel) -> PreTrainedModel:
    """Returns the model in evaluation mode and without gradients. A later `train()` has no effect."""
    model.requires_grad_(False).eval()
    model.train = _NoTrain(model)  # type: ignore[method-assign]
    return model


class _NoTrain:
    """The `train()` of a frozen model, which can be copied and pickled with it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def __call__(self, mode: bool = True) -> PreTrainedModel:
        return self.model


def parameter_groups(
    module: nn.Module, weight_decay: float, *, embeddings_learning_rate: float | None = None
) -> list[dict[str, Any]]:
    """Returns the parameters with and those without weight decay: biases and the parameters of norms.

    Args:
        embeddings_learning_rate: that of tables of embeddings, which are a third group without weight decay then, as
            far as no other module reads them; None: they have that of the others, and are decayed.
    """
    decayed: list[nn.Parameter] = []
    undecayed: list[nn.Parameter] = []
    tables: list[nn.Parameter] = []
    seen: set[int] = set()
    for child in module.modules():
        is_norm = "norm" in type(child).__name__.lower()
        for name, parameter in child.named_parameters(recurse=False):
            if id(parameter) in seen or not parameter.requires_grad:
                continue
            seen.add(id(parameter))
            is_table = isinstance(child, nn.Embedding) and embeddings_learning_rate is not None
            (tables if is_table else undecayed if is_norm or "bias" in name else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": undecayed, "weight_decay": 0.0}]
    return [*groups, {"params": tables, "weight_decay": 0.0, "lr": embeddings_learning_rate}] if tables else groups
