"""Checks that stop a bad run early, and the summary printed before training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedModel

from distill.console import console, duration
from distill.data.batching import Examples, shown
from distill.data.tables import TaskData
from distill.errors import UserError
from distill.losses import Objective
from distill.models.checks import count_parameters
from distill.tasks import SequenceTask, Task
from distill.training.module import DistillationModule
from distill.training.settings import Settings


def describe_student(teacher: PreTrainedModel, student: PreTrainedModel) -> str:
    """Describes the student: layers and parameters from teacher -> student, tensors copied and newly initialized."""
    inherited: Mapping[str, str] = getattr(student, "inherited", {})
    tensors = len(dict(student.named_parameters()))
    layers = getattr(student.config, "teacher_layers", None)
    chosen = f" ({', '.join(map(str, layers))})" if layers is not None and inherited else ""
    return (
        f"{type(student).__name__}: layers {teacher.config.num_hidden_layers} -> "
        f"{student.config.num_hidden_layers}{chosen}, {len(inherited)} tensors copied, {tensors - len(inherited)} "
        f"new, parameters {_millions(count_parameters(teacher))} -> {_millions(count_parameters(student))}"
    )


def describe_labels(task: SequenceTask, splits: TaskData) -> str:
    """Describes the labels: the classes in order, or the range of the numbers."""
    if task.regression:
        numbers = splits.splits["train"].labels
        return f"a number, {splits.labels[0]}: {numbers.min():g} to {numbers.max():g}, mean {numbers.mean():.4g}"
    return ", ".join(f"{index} {label}" for index, label in enumerate(splits.labels))


def describe_lengths(splits: Mapping[str, Examples], max_length: int) -> str:
    """Describes the lengths in tokens and the number of truncated examples of each split."""
    lengths = np.concatenate([examples.lengths for examples in splits.values()])
    cut = {name: examples.truncated for name, examples in splits.items() if examples.truncated}
    counts = ", ".join(f"{number:,} of {len(splits[name]):,} in {name}" for name, number in cut.items())
    return (
        f"median length {int(np.median(lengths))}, longest {lengths.max()}, limit {max_length}; "
        f"truncated: {counts or 'none'}"
    )


def describe_batches(train: Any, settings: Settings) -> str:
    """Describes the size of an optimizer step and the share of padding."""
    _, buckets = shown(train)
    return f"{settings.step_size()} in a step, {buckets.padding():.1%} padding"


def describe_training(module: DistillationModule, settings: Settings, seconds: float) -> str:
    """Describes the number of steps, the precision and the estimated `seconds` of the training."""
    return f"{module.total_steps:,} steps in {settings.resolved_precision()}, about {duration(seconds)}"


def describe_answers(module: DistillationModule, why_not: str | None) -> str:
    """Describes the source of the teacher's outputs: the cache, the teacher in every step, or none."""
    if module.kept is not None:
        size = f"{module.kept.bytes() / 1e6:.1f} MB"
        if module.kept.vocabulary is not None:
            size += f", {module.kept.mass():.1%} of the probability mass"
        return f"computed once, cached in {module.kept.directory} ({size})"
    return "none needed" if module.teacher is None else f"computed in every step: {why_not}"


def show(rows: Sequence[tuple[str, Any]]) -> None:
    """Prints the rows as a table without a header."""
    table = Table(title="Before training", show_header=False, title_justify="left", title_style="bold", box=None)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(str(value)))
    console.print(table)


def _millions(number: int) -> str:
    return f"{number / 1e6:.1f} M"


def check_objective(objective: Objective, task: Task) -> None:
    """Raises UserError for a term that does not apply to the predictions of the task."""
    unsuited = objective.unsuited(task.answer)
    if unsuited:
        raise UserError(
            f"objective {objective.name} has the term {', '.join(unsuited)}, which cannot learn from the {task.answer} "
            f"of task {task.name}: choose another objective, or set objective.terms.{unsuited[0]}.weight=0"
        )
