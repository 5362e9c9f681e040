"""The summary printed before training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedModel

from distill.console import console, display_html, format_duration, in_notebook, print_notice
from distill.contracts import Data, EncodedSplits, Examples, Loader, Signal, Task
from distill.data.batching import examples_and_buckets
from distill.data.mixing import MixedBuckets
from distill.data.tables import BANK
from distill.edge.overview import Overview, Shown
from distill.losses import Objective
from distill.models.checks import count_parameters
from distill.models.heads import heads_of
from distill.storage.files import JsonObject
from distill.training.compact_embeddings import choose_rows
from distill.training.module import DistillationModule
from distill.training.settings import TrainerSettings

TITLE = "Before training"
MICRO_BATCH = 32_768  # Tokens of a micro-batch, more of which take gigabytes.
MANY = 0.05  # Share of sequences that are cut, from which on it is said.


@dataclass(frozen=True, repr=False)
class PlanSummary(Shown):
    """The summary before a training that was planned and not started.

    Attributes:
        rows: the name of a fact and the fact, in the order of the summary.
    """

    rows: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return str(self.overview())

    def overview(self) -> Overview:
        """Returns the table that `dry_run=true` prints."""
        return Overview(TITLE, self.rows, notes=["Nothing was trained."])


def describe_student(teacher: PreTrainedModel, student: PreTrainedModel) -> str:
    """Describes the student: layers and parameters from teacher -> student, tensors copied and newly initialized."""
    inherited: Mapping[str, str] = getattr(student, "inherited", {})
    tensors = len(dict(student.named_parameters()))
    layers = getattr(student.config, "teacher_layers", None)
    chosen = f" ({', '.join(map(str, layers))})" if layers is not None and inherited else ""
    kinds = dict.fromkeys(type(head).__name__ for head in heads_of(student).values())
    return (
        f"{' and '.join(kinds)}: layers {teacher.config.num_hidden_layers} -> "
        f"{student.config.num_hidden_layers}{chosen}, {len(inherited)} tensors copied, {tensors - len(inherited)} "
        f"new, parameters {_millions(count_parameters(teacher))} -> {_millions(count_parameters(student))}"
    )


def describe_task(task: Task, record: JsonObject, data: Data) -> str:
    """Describes the task: its name, the size of each split and its possible predictions."""
    # A stream has no number of examples.
    counts = {name: f"{number:,} {name}" for name, number in record["examples"].items() if number}
    sizes = ", ".join({"train": "streamed", **counts}.values())
    if "unlabelled" in record:
        sizes += f", {record['unlabelled']['examples']:,} unlabelled"
    return f"{task.info.name}: {sizes}; {data.scoring.summary(data)}"


def describe_text(unlabelled: JsonObject | None, notes: Sequence[str]) -> str | None:
    """Describes the texts that only the teacher labels: their number, sources and share, and how sure it is of them.

    Args:
        unlabelled: the field of the task in run.json, None without such texts.
        notes: further facts, such as what was left out.

    Returns:
        None if there is nothing to say.
    """
    if unlabelled is None:
        return "; ".join(notes) or None
    names = {BANK: "sentences of the bank"}
    sources = ", ".join(
        f"{source['examples']:,} {names.get(source['name'], source['name'])} ({source['from']})"
        for source in unlabelled["sources"]
    )
    sureness = unlabelled["sureness"]
    of_teacher = "" if sureness is None else f"the teacher's largest probability is {sureness:.2f} on average"
    facts = [f"{sources}; {unlabelled['share']:.0%} of the examples of every step", of_teacher, *notes]
    return "; ".join(filter(None, facts))


def describe_lengths(splits: EncodedSplits, max_length: int, *, max_target: int | None = None) -> str:
    """Describes the lengths in tokens and the numbers of truncated examples. A stream has none before it is read.

    Args:
        max_target: the most tokens of a target, which lengths count behind those of its source; None without targets.
    """
    tokenized = {name: split for name, split in splits.items() if isinstance(split, Examples)}
    lengths = np.concatenate([examples.lengths // examples.sequences for examples in tokenized.values()])
    several = any(examples.sequences.max() > 1 for examples in tokenized.values())
    truncated = {name: examples.truncated for name, examples in tokenized.items() if examples.truncated}
    counts = ", ".join(
        f"{number:,} sequences in {name}" if several else f"{number:,} of {len(tokenized[name]):,} in {name}"
        for name, number in truncated.items()
    )
    of_sequences = " of an example's longest sequence" if several else ""
    limit = f"{max_length}"
    if max_target is not None:
        of_sequences, limit = " of source and target", f"{max_length} and {max_target}"
    return (
        f"median length{of_sequences} {int(np.median(lengths))}, longest {lengths.max()}, limit {limit}; "
        f"truncated: {counts or 'none'}"
    )


def describe_unigram(metrics: Mapping[str, float]) -> str:
    """Describes the metrics of token frequencies on dev, which a model that has learned something is better than."""
    values = f"loss {metrics['loss']:.2f}, perplexity {metrics['perplexity']:.0f}"
    return f"{values} on dev by the frequency of each token in train"


def describe_cut(splits: EncodedSplits, max_length: int, *, longest: int) -> str | None:
    """Describes the share of sequences that are cut, and the option that cuts fewer; None where few are.

    Args:
        longest: the most tokens that the teacher reads.
    """
    tokenized = [split for split in splits.values() if isinstance(split, Examples)]
    share = sum(split.truncated for split in tokenized) / sum(int(split.sequences.sum()) for split in tokenized)
    if share < MANY:
        return None
    more = f"task.max_length={min(longest, 4 * max_length)} cuts fewer, and takes longer"
    if longest <= max_length:
        more = f"the teacher reads no more: +teacher=pretrained with teacher.positions={4 * max_length} makes it do so"
    return f"{share:.0%} are longer than task.max_length={max_length}, and their rest is cut off; {more}"


def describe_batches(train: Loader, settings: TrainerSettings) -> str:
    """Describes the size of an optimizer step and the share of padding."""
    examples, buckets = examples_and_buckets(train)
    filled = (1 - buckets.padding()) * int(examples.tokens.sum()) / int(examples.lengths.sum())
    mixed = f", {buckets.share:.0%} of the examples unlabelled" if isinstance(buckets, MixedBuckets) else ""
    return f"{settings.step_size()} in a step{mixed}, {1 - filled:.1%} padding"


def describe_embeddings(module: DistillationModule, train: Loader, settings: TrainerSettings) -> list[tuple[str, str]]:
    """Returns the row on the embeddings that are trained; none for a student without a table of them."""
    described = choose_rows(module, train, settings).describe()
    return [("embeddings", described)] if described else []


def describe_training(module: DistillationModule, settings: TrainerSettings, seconds: float, *, seeds: int = 1) -> str:
    """Describes the number of steps, the precision and the estimated `seconds` of the training of all seeds."""
    several = f" for {seeds} seeds" if seeds > 1 else ""
    limit = "up to " if settings.patience is not None else ""
    steps = f"{limit}{module.total_steps:,} steps in {settings.resolved_precision()}"
    return f"{steps}, {limit or 'about '}{format_duration(seconds)}{several}"


def describe_baseline(choice: JsonObject) -> list[str]:
    """Describes whether the student is trained without its teacher too; no line where there is nothing to choose."""
    if choice["share"] is None:
        return []
    if choice["trained"]:
        return [f"trained too, {choice['reason']}"]
    return [f"not trained, because {choice['reason']}: baseline=true trains it"]


def describe_outputs(signal: Signal) -> str:
    """Describes the cache of teacher outputs, or why the teacher runs in every step."""
    if signal.bytes:
        return f"computed once, cached in {signal.describe()}"
    return "none needed" if signal.reason is None else f"computed in every step: {signal.reason}"


def warn_of_stream(train: Loader, settings: TrainerSettings) -> None:
    """Prints a notice if a stream is evaluated and saved only at its end."""
    if train.batch_sampler is None and settings.checkpoint_steps is None and settings.evaluations == 1:
        print_notice(
            "a stream is evaluated and saved only at its end: trainer.checkpoint_steps=n saves it every n steps"
        )


def warn_of_long_texts(train: Loader, settings: TrainerSettings) -> None:
    """Prints a notice if a micro-batch of long texts needs much memory, with the options that need less."""
    examples, _ = examples_and_buckets(train)
    longest, size = int(examples.lengths.max()), settings.batch_size
    if settings.batch_tokens is not None or size is None or size * longest <= MICRO_BATCH:
        return
    smaller = max(1, MICRO_BATCH // longest)
    accumulate = -(-size * settings.accumulate // smaller)
    if smaller < size:
        print_notice(
            f"a micro-batch has up to {size * longest:,} tokens, {size} texts of up to {longest:,}: "
            f"trainer.batch_size={smaller} trainer.accumulate={accumulate} needs less memory for as large a step"
        )


def warn_of_parts(objective: Objective, settings: TrainerSettings) -> None:
    """Prints a notice if terms that compare the examples of a step see only those of a micro-batch."""
    terms = ", ".join(objective.names_where(lambda term: term.across_examples))
    parts = settings.accumulate * settings.processes()
    if terms and parts > 1:
        print_notice(
            f"a step is {parts} micro-batches, and the term {terms} compares examples of one micro-batch with each "
            "other: a larger batch_size with trainer.accumulate=1 compares more of them"
        )


def warn_of_head(objective: Objective) -> None:
    """Prints a notice if no term trains the student's head."""
    if not objective.reads_logits:
        print_notice(
            f"objective {objective.name} does not train the student's head: dev scores the layers with the head as it "
            "is, and a head of random weights scores by chance"
        )


def show(rows: Sequence[tuple[str, object]]) -> None:
    """Prints the rows as a table without a header; a notebook shows them as HTML."""
    if in_notebook():
        display_html(Overview(TITLE, [(name, str(value)) for name, value in rows]).html())
        return
    table = Table(title=TITLE, show_header=False, title_justify="left", title_style="bold", box=None)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(str(value)))
    console.print(table)


def _millions(number: int) -> str:
    return f"{number / 1e6:.1f} M"
