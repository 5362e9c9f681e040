"""What the user should know, and what cannot be, before the training starts."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill import processes
from distill.batches import Examples, shown
from distill.data import TaskData
from distill.errors import UserError
from distill.forward import run_model
from distill.losses import Objective
from distill.module import DistillationModule
from distill.progress import console
from distill.settings import Settings
from distill.tasks import SequenceTask, Task


def describe_student(teacher: PreTrainedModel, student: PreTrainedModel) -> str:
    """Layers, tensors copied and fresh, and parameters, each from -> to."""
    inherited: Mapping[str, str] = getattr(student, "inherited", {})
    tensors = len(dict(student.named_parameters()))
    layers = getattr(student.config, "teacher_layers", None)
    chosen = f" ({', '.join(map(str, layers))})" if layers is not None and inherited else ""
    return (
        f"{type(student).__name__}: layers {teacher.config.num_hidden_layers} -> "
        f"{student.config.num_hidden_layers}{chosen}, {len(inherited)} tensors copied, {tensors - len(inherited)} "
        f"fresh, parameters {_millions(count_parameters(teacher))} -> {_millions(count_parameters(student))}"
    )


def describe_labels(task: SequenceTask, splits: TaskData) -> str:
    """The classes in order, or the range of the numbers."""
    if task.regression:
        numbers = splits.splits["train"].labels
        return f"a number, {splits.labels[0]}: {numbers.min():g} to {numbers.max():g}, mean {numbers.mean():.4g}"
    return ", ".join(f"{index} {label}" for index, label in enumerate(splits.labels))


def describe_lengths(splits: Mapping[str, Examples], max_length: int) -> str:
    """Token lengths and how many examples were cut."""
    lengths = np.concatenate([examples.lengths for examples in splits.values()])
    cut = {name: examples.truncated for name, examples in splits.items() if examples.truncated}
    counts = ", ".join(f"{number:,} of {len(splits[name]):,} in {name}" for name, number in cut.items())
    return (
        f"median {int(np.median(lengths))}, longest {lengths.max()} of at most {max_length}; "
        f"cut to that: {counts or 'none'}"
    )


def describe_batches(train: Any, settings: Settings) -> str:
    """What an optimizer step sees, and the share of padding in it."""
    _, buckets = shown(train)
    return f"{settings.step_size()} in a step, {buckets.padding():.1%} padding"


def describe_training(module: DistillationModule, settings: Settings, seconds: float) -> str:
    """How long it will take."""
    return f"{module.total_steps:,} steps in {settings.resolved_precision()}, about {duration(seconds)}"


def describe_answers(module: DistillationModule, why_not: str | None) -> str:
    """Where the teacher's outputs come from."""
    if module.kept is not None:
        size = f"{module.kept.bytes() / 1e6:.1f} MB"
        if module.kept.vocabulary is not None:
            size += f", with {module.kept.mass():.1%} of the probability"
        return f"asked once, kept in {module.kept.directory} ({size})"
    return "none are needed" if module.teacher is None else f"the teacher is asked in every step: {why_not}"


def check_vocabulary(teacher: PreTrainedModel, student: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """One line about who reads which tokens.

    A student that was trained before says with its `vocabulary` what each token was to it.

    Raises:
        UserError: where that differs from the teacher's tokenizer, or a token would be out of a model's reach.
    """
    theirs: Mapping[str, int] = getattr(student, "vocabulary", {})
    ours = tokenizer.get_vocab()
    differing = [token for token, number in ours.items() if theirs.get(token) != number] if theirs else []
    if differing:
        token = min(differing, key=lambda token: ours[token])
        raise UserError(
            f"teacher and student read different tokens: {token!r} is {ours[token]} to the teacher and "
            f"{theirs.get(token, 'nothing')} to the student, {len(differing):,} of {len(ours):,} differ: "
            "take a student with the teacher's tokenizer"
        )
    sizes = {"teacher": teacher.config.vocab_size, "student": student.config.vocab_size}
    for name, size in sizes.items():
        if len(tokenizer) > size:
            raise UserError(f"the tokenizer has {len(tokenizer):,} tokens and the {name} embeds {size:,} only")
    return f"teacher and student read the same {len(tokenizer):,} tokens, by the teacher's tokenizer"


def longest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens that the model can read."""
    # Some families keep positions of their table to themselves, and only their tokenizer knows.
    positions = getattr(model.config, "max_position_embeddings", None) or sys.maxsize
    return int(min(positions, tokenizer.model_max_length))


def check_length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, *, who: str) -> None:
    """UserError for a task whose examples may be longer than the model can read."""
    limit = longest(model, tokenizer)
    if task.max_length > limit:
        raise UserError(f"task.max_length={task.max_length}, but the {who} reads {limit} tokens at most")


def check_budget(batch_tokens: int | None, task: Task, trainer: str) -> None:
    """UserError for a budget that the longest example may not fit."""
    if batch_tokens is not None and batch_tokens < task.max_length:
        raise UserError(
            f"{trainer}.batch_tokens={batch_tokens}, but an example may have task.max_length={task.max_length} tokens: "
            "raise the one or lower the other"
        )


def check_processes(settings: Settings, trainer: str) -> None:
    """UserError where there are fewer GPUs than processes that want one."""
    device = settings.device()
    if device.type == "mps" and settings.processes() > 1:
        raise UserError(f"{trainer}.devices={settings.devices}, but an Apple GPU serves one process: set it to 1")
    if device.type == "cuda" and processes.launched().world == 1 and settings.devices > torch.cuda.device_count():
        raise UserError(
            f"{trainer}.devices={settings.devices}, but torch sees {torch.cuda.device_count()} GPU(s): take as many, "
            f"or set {trainer}.accelerator=cpu"
        )


def check_objective(objective: Objective, task: Task) -> None:
    """UserError for a term that cannot learn what the task asks for."""
    unsuited = objective.unsuited(task.answer)
    if unsuited:
        raise UserError(
            f"objective {objective.name} has the term {', '.join(unsuited)}, which cannot learn from the {task.answer} "
            f"of task {task.name}: take another objective, or set objective.terms.{unsuited[0]}.weight=0"
        )


def check_outputs(objective: Objective, **models: PreTrainedModel) -> None:
    """UserError where a term needs what one of the models does not give."""
    for who, model in models.items():
        output = try_out(model, objective.needs)
        for name in sorted(objective.needs):
            if not getattr(output, name, None):
                terms = ", ".join(objective.needing(name))
                raise UserError(
                    f"objective {objective.name}: the term {terms} needs {name}, which the {who} "
                    f"({type(model).__name__}) does not give: set its weight to 0, or take another objective"
                )


@torch.no_grad()
def try_out(model: PreTrainedModel, needs: frozenset[str] = frozenset()) -> Any:
    """What the model says of one text of four tokens."""
    tokens = torch.ones((1, 4), dtype=torch.long, device=model.device)
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # Its warning says half of what those say who ask here.
    output = run_model(model, {"input_ids": tokens, "attention_mask": tokens}, needs)
    transformers.logging.set_verbosity(verbosity)
    return output


def show(rows: Sequence[tuple[str, Any]]) -> None:
    """Print the rows as a small table."""
    table = Table(title="Before training", show_header=False, title_justify="left", title_style="bold", box=None)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(str(value)))
    console.print(table)


def count_parameters(model: PreTrainedModel) -> int:
    """All parameters, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


def _millions(number: int) -> str:
    return f"{number / 1e6:.1f} M"
