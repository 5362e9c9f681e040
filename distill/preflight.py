"""The summary printed before training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedModel

from distill.console import console, duration, notice
from distill.contracts import EncodedSplits, Examples, Splits, Task
from distill.data.batching import shown
from distill.models.checks import count_parameters
from distill.teaching.output_cache import CachedOutputs
from distill.training.module import DistillationModule
from distill.training.settings import Settings


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


def describe_task(task: Task, record: Mapping[str, Any], splits: Splits) -> str:
    """The name of the task, the size of each split, and the predictions that there are."""
    sizes = ", ".join(f"{number:,} {name}" for name, number in record["examples"].items() if number)
    return f"{task.name}: {sizes}; {task.summary(splits)}"


def describe_lengths(splits: EncodedSplits, max_length: int) -> str:
    """Token lengths, and how many examples were cut; a stream has none before it is read."""
    read = {name: split for name, split in splits.items() if isinstance(split, Examples)}
    lengths = np.concatenate([examples.lengths for examples in read.values()])
    cut = {name: examples.truncated for name, examples in read.items() if examples.truncated}
    counts = ", ".join(f"{number:,} of {len(read[name]):,} in {name}" for name, number in cut.items())
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


def describe_outputs(module: DistillationModule, reason: str | None) -> str:
    """Whether the teacher's outputs are cached, or why the teacher runs in every step."""
    cached = module.cached_outputs
    if isinstance(cached, CachedOutputs):
        size = f"{cached.bytes() / 1e6:.1f} MB"
        if cached.top_k:
            size += f", with {cached.mass():.1%} of the probability"
        return f"computed once, cached in {cached.directory} ({size})"
    return "no term needs them" if module.teacher is None else f"the teacher runs in every step: {reason}"


def warn_of_stream(train: Any, settings: Settings) -> None:
    """Prints a notice for a stream that is saved at its end only."""
    if train.batch_sampler is None and settings.checkpoint_steps is None and settings.evaluations == 1:
        notice("a stream is scored and saved at its very end only: trainer.checkpoint_steps=n saves it every n steps")


def show(rows: Sequence[tuple[str, Any]]) -> None:
    """Print the rows as a small table."""
    table = Table(title="Before training", show_header=False, title_justify="left", title_style="bold", box=None)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(str(value)))
    console.print(table)


def _millions(number: int) -> str:
    return f"{number / 1e6:.1f} M"
