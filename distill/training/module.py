"""The only LightningModule, which is one optimizer step of a student, and the evaluation of a model on a split."""

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, get_scheduler

from distill.core.contracts import (
    IGNORED,
    PROMPT_TOKENS,
    TARGET_MASK,
    TASK_ID,
    AttentionVectors,
    Batch,
    Items,
    Learnable,
    Loader,
    Outputs,
    Scores,
    Signal,
)
from distill.core.errors import NumericalError
from distill.kinds.scoring import Scoring
from distill.losses import Objective
from distill.losses.term import divisors, in_chunks
from distill.models.decoding import choose_tokens, continue_prompts, up_to_end
from distill.models.forward import to_device
from distill.models.wrappers import find_table
from distill.training import processes
from distill.training.hyperparameters import TrainerSettings
from distill.training.strategies import shard_module

_NO_OUTPUTS = frozenset[str]()
Columns = dict[str, Tensor]


def score_batch(
    model: PreTrainedModel, task: Learnable, scoring: Scoring, batch: Batch, *, reference: PreTrainedModel | None = None
) -> Columns:
    """Scores one batch: the columns of the scoring, `labels [n]` and `example_id [n]`, all on the CPU."""
    items = task.select(batch)
    outputs = task.run(model, batch, items, _NO_OUTPUTS)
    reference_outputs = None
    if reference is not None:
        reference_batch = to_device(batch, reference.device)
        reference_items = task.select(reference_batch)
        reference_outputs = task.run(reference, reference_batch, reference_items, _NO_OUTPUTS)
    return score_items(scoring, outputs, items, reference_outputs)


def score_items(scoring: Scoring, outputs: Outputs, items: Items, reference: Outputs | None = None) -> Columns:
    """Scores the outputs of a model at the items of one batch, with the results of `score_batch`.

    Logits over a vocabulary are computed and scored in chunks of `outputs.chunk_size` items.
    """
    chunks = []
    for part in items.parts(outputs.chunk_size):
        columns = scoring.score(outputs.at(part), part)
        if reference is not None:
            columns |= scoring.compare(columns, reference.at(part))
        chunks.append({name: column.cpu() for name, column in columns.items()})
    columns = {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}
    number = {TASK_ID: items[TASK_ID].cpu()} if TASK_ID in items.batch else {}
    return {**columns, "labels": items.labels.cpu(), "example_id": items.example_id().cpu(), **number}


def concatenate(batches: Iterable[Columns]) -> Scores:
    """Joins the scores of several batches in their order, those of several tasks each by itself."""
    by_task: dict[int | None, list[Columns]] = {}
    for columns in batches:
        by_task.setdefault(int(columns[TASK_ID][0]) if TASK_ID in columns else None, []).append(columns)
    scores: dict[int | None, Scores] = {}
    for number, parts in by_task.items():
        joined = {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0] if name != TASK_ID}
        labels, example_id = joined.pop("labels"), joined.pop("example_id")
        scores[number] = Scores(joined, labels, example_id)
    if None in scores:
        return scores[None]
    return Scores.of_tasks({number: of_task for number, of_task in scores.items() if number is not None})


@torch.inference_mode()
def evaluate(
    model: PreTrainedModel,
    task: Learnable,
    scoring: Scoring,
    loader: Iterable[list[Batch]],
    *,
    reference: PreTrainedModel | None = None,
) -> Scores:
    """Scores a whole split on the model's device, in the order of the loader; the model's mode is restored.

    Args:
        loader: yields lists of batches.
        reference: a teacher whose outputs the task compares the model's with.
    """
    was_training = model.training
    model.eval()
    batches = itertools.chain.from_iterable(loader)
    scores = concatenate(
        [score_batch(model, task, scoring, to_device(batch, model.device), reference=reference) for batch in batches]
    )
    model.train(was_training)
    return scores


def evaluate_splits(
    model: PreTrainedModel,
    task: Learnable,
    scoring: Scoring,
    loaders: Mapping[str, Loader],
    *,
    reference: PreTrainedModel | None = None,
) -> dict[str, Scores]:
    """Scores every split but `train` as `evaluate`, each in the order of its examples."""
    scores = {
        name: evaluate(model, task, scoring, loader, reference=reference).by_example()
        for name, loader in loaders.items()
        if name != "train"
    }
    return fit_decoding(scoring, scores)


def fit_decoding(scoring: Scoring, scores: Mapping[str, Scores]) -> dict[str, Scores]:
    """Returns the scores of one model with the values of its decoder, which are chosen on dev for all splits.

    Dev itself is decoded by halves, each with the values that the other one chose, because its metrics would be too
    good with values that it chose itself.
    """
    decoding = scoring.fit_decoder(scores["dev"])
    fitted = {name: replace(split_scores, decoding=decoding) for name, split_scores in scores.items()}
    return fitted | {"dev": scoring.held_out(fitted["dev"])}


def dev_metrics(scoring: Scoring, scores: Scores) -> dict[str, float]:
    """Returns the metrics of a model's scores on dev, decoded as `fit_decoding` does."""
    return scoring.metrics(fit_decoding(scoring, {"dev": scores})["dev"])


def split_metrics(scoring: Scoring, scores: Mapping[str, Scores]) -> dict[str, float]:
    """Returns the metrics of dev under their own names, and those of every other split as `split/metric`."""
    metrics: dict[str, float] = {}
    for split, split_scores in scores.items():
        prefix = "" if split == "dev" else f"{split}/"
        metrics |= {f"{prefix}{name}": value for name, value in scoring.metrics(split_scores).items()}
    return metrics


def sum_with_gradient(
    compute: Callable[[Outputs, Items], tuple[Tensor, Tensor]],
    outputs: Outputs,
    items: Items,
    parameters: Iterable[Tensor],
) -> tuple[Tensor, Tensor]:
    """Returns the sums over chunks of `outputs.chunk_size` items: of a loss `[]`, and of further values.

    The gradient of a chunk is computed together with its loss, on states that are cut off from the encoder, and its
    logits are then freed. The backward pass of the sum only passes on what is known: to the encoder, and once to every
    parameter. It can run once.

    Args:
        compute: returns the loss and the further values of some items, from outputs with the logits of these items.
        outputs: of a model, with `states` and `decode`.
        parameters: those that `compute` may read.
    """
    states, decode = outputs.states, outputs.decode
    assert states is not None  # The caller makes sure of both.
    assert decode is not None
    cut, leaves = _cut_off(replace(outputs, states=None))
    sources = [*leaves, *(parameter for parameter in parameters if parameter.requires_grad)]
    inputs = [*leaves.values(), *sources[len(leaves) :]]
    gradients: list[Tensor | None] = [None] * len(inputs)
    of_states, losses, values = torch.zeros_like(states), [], []
    for part in items.parts(outputs.chunk_size):
        chunk = states[part.span].detach().requires_grad_()
        of_part = replace(cut, logits=decode(chunk), head=None, chunk_size=None, span=part.span)
        loss, further = compute(of_part, part)
        losses.append(loss.detach())
        values.append(further.detach())
        if loss.requires_grad:
            of_chunk, *others = torch.autograd.grad(loss, [chunk, *inputs], allow_unused=True)
            if of_chunk is not None:
                of_states[part.span] = of_chunk
            gradients = [_add(sum_, gradient) for sum_, gradient in zip(gradients, others, strict=True)]
    known = [pair for pair in zip(sources, gradients, strict=True) if pair[1] is not None]
    tensors = [states, *(source for source, _ in known)]
    total: Tensor = _Known.apply(  # type: ignore[no-untyped-call]
        torch.stack(losses).sum(), [of_states, *(gradient for _, gradient in known)], *tensors
    )
    return total, torch.stack(values).sum(dim=0)


def _add(earlier: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    """Returns the sum of two gradients, in place of the first one; None is 0."""
    if gradient is None:
        return earlier
    # A new gradient may share its memory with another one.
    return gradient.clone() if earlier is None else earlier.add_(gradient)


def _cut_off(outputs: Outputs) -> tuple[Outputs, dict[Tensor, Tensor]]:
    """Returns the outputs without their history, and the tensors that stand for those of them with one."""
    leaves: dict[Tensor, Tensor] = {}

    def cut(value: Any) -> Any:
        if isinstance(value, Tensor):
            if not value.requires_grad:
                return value
            return leaves.setdefault(value, value.detach().requires_grad_())
        if isinstance(value, Outputs):
            return replace(value, **{field.name: cut(getattr(value, field.name)) for field in fields(value)})
        if isinstance(value, AttentionVectors):
            return AttentionVectors(*map(cut, value))
        if isinstance(value, Mapping):
            return {key: cut(each) for key, each in value.items()}
        if isinstance(value, Sequence):
            return [cut(each) for each in value]
        return value

    of: Outputs = cut(outputs)
    return of, leaves


class _Known(torch.autograd.Function):
    """A loss `[]` whose gradients for some tensors are known."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: list[Tensor], *tensors: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gradients, ctx.gradients = ctx.gradients, None  # A gradient takes no memory besides that of its parameter.
        return (None, None, *(gradient.mul_(factor) for gradient in gradients))


STUDENT_WRITES = "student_writes"  # The column `[B]` of batches whose texts the student wrote, which are no labels.


@torch.no_grad()
def write_batch(student: PreTrainedModel, batch: Batch, *, temperature: float) -> dict[str, Tensor]:
    """Returns the batch with texts that the student samples: targets for its sources, or continuations of its prompts.

    A target has at most as many tokens as the longest one of the batch, and a text that is continued at most as many as
    it had. The student is as it was, in training or not.

    Args:
        batch: with `input_ids` and `attention_mask` `[B, L]`, for an encoder-decoder `labels [B, T]`, and for a decoder
            `prompt_tokens [B]`.
        temperature: of the sampling, above 0.
    """
    was_training = student.training
    student.eval()
    write = _write_targets if student.config.is_encoder_decoder else _continue_texts
    written = write(student, batch, temperature)
    student.train(was_training)
    marks = torch.ones(len(batch["input_ids"]), dtype=torch.bool, device=batch["input_ids"].device)
    return {**batch, **written, STUDENT_WRITES: marks}


def _write_targets(student: PreTrainedModel, batch: Batch, temperature: float) -> dict[str, Tensor]:
    ids = student.generate(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], num_beams=1,
        num_return_sequences=1, max_new_tokens=batch["labels"].shape[1], **choose_tokens(temperature),
    )  # fmt: skip
    written = ids[:, 1:]  # Without the token that a decoder starts with.
    is_written = up_to_end(written, student.generation_config.eos_token_id)
    labels = written.masked_fill(~is_written, IGNORED).to(batch["labels"].dtype)
    return {"labels": labels, TARGET_MASK: is_written.to(batch["attention_mask"].dtype)}


def _continue_texts(student: PreTrainedModel, batch: Batch, temperature: float) -> dict[str, Tensor]:
    """Returns the texts, each padded behind its tokens, which those before it do not see."""
    ids, mask = batch["input_ids"], batch["attention_mask"].bool()
    texts = [row[kept] for row, kept in zip(ids, mask, strict=True)]
    sizes = batch[PROMPT_TOKENS].tolist()
    prompts = [text[:size] for text, size in zip(texts, sizes, strict=True)]
    room = [len(text) - size for text, size in zip(texts, sizes, strict=True)]
    written = continue_prompts(student, [prompt.tolist() for prompt in prompts], room, temperature=temperature)
    rows = [torch.cat([prompt, prompt.new_tensor(own)]) for prompt, [own] in zip(prompts, written, strict=True)]
    input_ids = pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows], device=ids.device)
    places = torch.arange(input_ids.shape[1], device=ids.device)
    return {"input_ids": input_ids, "attention_mask": (places < lengths[:, None]).to(batch["attention_mask"].dtype)}


_RANK_SEED_STRIDE = 2_654_435_761  # Its multiples modulo 2**32 are far from each other.
# Names of schedules -> those of transformers.
_SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}


NOTHING = Signal()  # That of no teacher.
DEFAULTS = TrainerSettings(learning_rate=5e-5, batch_size=32, max_steps=1000)


class DistillationModule(L.LightningModule):
    """Trains `student` with `objective`. Without the signal of a teacher this is fine-tuning.

    A batch is one optimizer step: the list of the micro-batches of this rank. Each term is divided by its count over
    the whole step, so that micro-batches of unequal sizes equal one large batch.

    Args:
        scoring: computes the metrics of dev, by which checkpoints are selected; a step alone needs none.
        signal: the teacher's outputs, which are not part of checkpoints and optimizer.
        settings: of the optimizer. Dropout depends only on the seed, the step and the rank, so that a resumed training
            is the same.
        steps_per_epoch: number of optimizer steps in an epoch.
    """

    def __init__(
        self,
        *,
        student: PreTrainedModel,
        objective: Objective,
        task: Learnable,
        scoring: Scoring = Scoring(),  # noqa: B008  # Without fields.
        signal: Signal = NOTHING,
        settings: TrainerSettings = DEFAULTS,
        steps_per_epoch: int = 1,
    ) -> None:
        super().__init__()
        if objective.needs_teacher and signal is NOTHING:
            raise ValueError(f"objective {objective.name} learns from a teacher, and there is none: give its signal")
        self.automatic_optimization = False
        self.student = student.train()
        self.objective = objective
        self.task, self.scoring = task, scoring
        self.signal = signal if objective.needs_teacher else NOTHING
        self.settings, self.total_steps = settings, settings.total_steps(steps_per_epoch)
        self.frozen_steps = settings.frozen_steps(self.total_steps)
        self.tokens_seen = self.tokens_computed = self.examples_seen = 0
        self.teacher_seconds = 0.0
        self._dev_scores: list[Columns] = []

    def configure_model(self) -> None:
        if self.device_mesh is not None:  # FSDP.
            for module in (self.student, self.objective):
                if any(True for _ in module.parameters()):
                    shard_module(module, self.device_mesh["data_parallel"])

    def training_step(self, micro_batches: list[dict[str, Tensor]], batch_idx: int) -> None:
        step, teacher_seconds = self.global_step, self.signal.seconds
        torch.manual_seed(self.settings.seed * 1_000_003 + step + processes.get_rank() * _RANK_SEED_STRIDE)
        optimizer = self.optimizers()
        micro_batches = [self.choose_targets(batch) for batch in micro_batches]
        counts = processes.all_reduce(torch.stack([self._counts(batch) for batch in micro_batches]).sum(dim=0))
        sums = torch.zeros_like(counts)
        loss_value = 0.0
        for number, batch in enumerate(micro_batches, start=1):
            loss, batch_sums = self.losses(batch, counts)
            with self._synchronized(number == len(micro_batches)):
                self.manual_backward(loss * processes.world_size())  # DDP averages the gradients.
            sums += batch_sums
            loss_value += float(loss.detach())
        self.teacher_seconds += self.signal.seconds - teacher_seconds
        values = [loss_value, *self._count_tokens(micro_batches)]
        loss_value, *seen = processes.all_reduce(torch.tensor(values, dtype=torch.float64)).tolist()
        self.tokens_seen += int(seen[0])
        self.tokens_computed += int(seen[1])
        self.examples_seen += int(seen[2])
        self._log_losses(step, loss_value, processes.all_reduce(sums) / divisors(counts))
        if step < self.frozen_steps and (table := find_table(self.student)) is not None:
            for parameter in table.parameters():
                parameter.grad = None  # AdamW leaves out a tensor without a gradient, its decay and moments too.
        if self.settings.clip > 0:
            # Including the projections of the objective.
            nn.utils.clip_grad_norm_(list(self.parameters()), self.settings.clip)
        optimizer.step()  # type: ignore[union-attr]
        optimizer.zero_grad()  # type: ignore[union-attr]
        self.lr_schedulers().step()  # type: ignore[union-attr, call-arg]

    def losses(self, batch: Batch, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns the loss `[]` of one micro-batch and the sum of each term `[terms]`."""
        items = self._items(batch)
        counts = self.objective.counts(items) if counts is None else counts
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):  # It cannot concatenate float16.
            teacher_outputs = self.signal(batch, items)  # Empty if no term needs them.
        student_outputs = self.task.run(self.student, batch, items, self.objective.student_needs)
        totals = self.objective.totals(student_outputs.whole(), teacher_outputs.whole(), items, reading_logits=False)
        if not self.objective.reads_logits:
            return self.objective.weighted(totals, counts), totals.detach()

        def of_part(outputs: Outputs, part: Items) -> tuple[Tensor, Tensor]:
            part_totals = self.objective.totals(outputs, teacher_outputs.at(part), part, reading_logits=True)
            return self.objective.weighted(part_totals, counts), part_totals

        # FSDP needs the gradient in the backward pass, in which it gathers the parameters and scatters their gradients.
        if torch.is_grad_enabled() and student_outputs.states is not None and self.device_mesh is None:
            of_logits, sums = sum_with_gradient(of_part, student_outputs, items, self.parameters())
            return self.objective.weighted(totals, counts) + of_logits, totals.detach() + sums
        of_chunk = lambda part: of_part(student_outputs.at(part), part)[1]  # noqa: E731
        for chunk_totals in in_chunks(of_chunk, items, student_outputs.chunk_size):
            totals = totals + chunk_totals
        return self.objective.weighted(totals, counts), totals.detach()

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
        if last or processes.world_size() == 1:
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
        settings = self.settings
        optimizer = torch.optim.AdamW(
            parameter_groups(
                self, settings.weight_decay, embeddings_learning_rate=settings.embeddings_learning_rate
            ),
            lr=settings.learning_rate, betas=settings.betas, eps=settings.eps, fused=True,
        )  # fmt: skip
        warmup = math.ceil(settings.warmup * self.total_steps)
        schedule = get_scheduler(_SCHEDULES[settings.schedule], optimizer, warmup, self.total_steps)
        return [optimizer], [schedule]


def freeze(model: PreTrainedModel) -> PreTrainedModel:
    """Returns the model in evaluation mode and without gradients. A later `train()` has no effect."""
    model.requires_grad_(False).eval()
    model.train = functools.partial(_stay, model)  # type: ignore[method-assign]
    return model


def _stay(model: PreTrainedModel, mode: bool = True) -> PreTrainedModel:
    """The `train()` of a frozen model, which can be copied and pickled with it."""
    return model


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
