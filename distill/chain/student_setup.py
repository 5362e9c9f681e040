"""The student before its training: what it starts from, its depth within a budget, and the summary printed.

Chooses the largest student whose exported file is within a budget, by measuring students before any training. It is the
deepest one, or with `budget.widths` the one with most weights in its layers, of two alike the deeper one. Random,
copied and trained weights have the same size and the same speed, so that the students need no training.
"""

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from rich.text import Text
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.chain.parent import is_alike
from distill.chain.plan import Plan, Student
from distill.core.console import console, display_html, format_duration, in_notebook, print_line, print_notice
from distill.core.contracts import Data, EncodedSplits, Examples, Loader, Signal, Task
from distill.core.errors import Overview, Shown, UserError
from distill.core.files import JsonObject
from distill.core.storage import entry_key, has_entry, new_entry
from distill.data.batches import MixedBuckets, examples_and_buckets
from distill.data.splits import BANK
from distill.data.tokenization import encode_whole
from distill.edge import bundle_files
from distill.edge.bundle_files import count_bytes, weight_bits
from distill.export import latency
from distill.export.bundle_writer import FILES, export_float32
from distill.export.latency import Budget
from distill.export.quantization import RecipeInput, write_dynamic
from distill.losses import Objective
from distill.models.compatibility import count_parameters, longest
from distill.models.forward import exported_inputs
from distill.models.loading import ENCODER
from distill.models.sentence_files import read_vocabulary
from distill.models.surgery.embeddings import CutVocabulary
from distill.models.surgery.initialization import Origins, encode_pieces
from distill.models.surgery.layers import Sizes
from distill.models.wrappers import heads_of
from distill.records.run import Run
from distill.records.verdict import recommend
from distill.teachers.source import TeacherSource
from distill.training.hyperparameters import TrainerSettings
from distill.training.module import DistillationModule

_FORMAT = 1  # Of the vectors of pieces in the cache.


class OriginSource:
    """Computes the origins of the students of one task, each once.

    Args:
        source: of the teacher, whose weights have the encoder as it was before its fine-tuning.
        data: with the texts in which pieces are counted.
        cache_dir: keeps the vectors of pieces for later runs.
        device: of the encoder.
        cut: the vocabulary of the students, if it is smaller than the teacher's.
    """

    def __init__(
        self, source: TeacherSource, data: Data, cache_dir: Path, device: torch.device, cut: CutVocabulary | None = None
    ) -> None:
        self.source, self.data, self.cache_dir, self.device, self.cut = source, data, cache_dir, device, cut
        self._shares: Tensor | None = None

    def of(self, tokenizer: PreTrainedTokenizerBase) -> Origins:
        """Returns the origins of a student that reads the tokens of this tokenizer."""
        return Origins(tokenizer, partial(self._sentence_vectors, tokenizer), partial(self._count_shares, tokenizer))

    def _sentence_vectors(self, tokenizer: PreTrainedTokenizerBase) -> Tensor:
        weights = self.source.weights
        key = entry_key("pieces", _FORMAT, weights.fingerprint(), read_vocabulary(tokenizer))
        directory = self.cache_dir / "pieces" / f"{weights.name}-{key[:16]}"
        if not has_entry(directory):
            print_line(f"Student: {weights.resolved()} as it is encodes each of {len(tokenizer):,} pieces, once")
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)  # Of weights that are new.
                start = weights.load(ENCODER, None, self.data.texts())
            model = start.model if self.cut is None else self.cut.apply(start.model)
            is_own = self.cut is None and not is_alike(tokenizer, start.tokenizer)
            vectors = encode_pieces(model.to(self.device), tokenizer, start.tokenizer if is_own else None)
            with new_entry(directory) as temporary:
                save_file({"vectors": vectors}, temporary / "vectors.safetensors")
        return load_file(directory / "vectors.safetensors")["vectors"]

    def _count_shares(self, tokenizer: PreTrainedTokenizerBase) -> Tensor:
        if self._shares is None:
            # How often each piece stands in the texts, which are read whole, `[V]`, without special tokens.
            counts = torch.zeros(len(tokenizer))
            texts = itertools.chain(self.data.labelled_texts(), self.data.unlabelled_texts())
            for tokens in encode_whole(texts, tokenizer, add_special_tokens=False):
                counts += torch.bincount(torch.tensor(tokens, dtype=torch.long), minlength=len(counts))
            counts[torch.tensor(sorted(set(tokenizer.all_special_ids)), dtype=torch.long)] = 0
            self._shares = counts / counts.sum().clamp(min=1)
        return self._shares


DEPTH = "depth"  # The parameter of a function that builds students of any number of layers.
SIZES = ("heads", "ffn")  # Those of one that builds students of any width.
Size = tuple[int | None, float | None]  # Number of layers, and share of the teacher's heads and inner neurons.


@dataclass
class DepthSearch:
    """The search for the largest student within a budget; without a budget it is the student as it is.

    The choice stands in the `budget` of run.json, so that a resumed run does not choose again: times vary.
    """

    student: Student
    plan: Plan
    task: Task
    run: Run
    data: Data
    chosen: Student | None = None

    def choose(self, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Student:
        """Returns the largest student within the budget, measured in the first call.

        Raises:
            UserError: if no student is within the budget.
        """
        if self.chosen is None:
            self.chosen = self._choose(teacher, tokenizer) if self.plan.budget.is_set else self.student
        return self.chosen

    def _choose(self, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Student:
        budget = self.plan.budget
        candidates = _list_candidates(self.student, teacher, budget.shares())
        earlier = self.run.record.get("budget")
        if earlier is not None and earlier["chosen"] is not None:
            return candidates[earlier["chosen"]["depth"], earlier["chosen"].get("width")]
        print_line(f"Measuring untrained students of {self.student.name} for {budget}")
        rows: list[dict[str, Any]] = []
        for (depth, width), student in candidates.items():
            size = {"depth": depth} if width is None else {"depth": depth, "width": width}
            row = {**size, **self._measure(student, teacher, tokenizer)}
            rows.append(row | {"fits": budget.allows(size=row["bytes"], p50_ms=row["p50_ms"])})
            if rows[-1]["fits"]:
                break
        console.print(_create_table(rows))
        last = rows[-1]
        self.run.update(
            budget={"mb": budget.mb, "ms": budget.ms, "tried": rows, "chosen": last if last["fits"] else None}
        )
        if not last["fits"]:
            raise UserError(self._describe_failure(last))
        return candidates[last["depth"], last.get("width")]

    def _measure(
        self, student: Student, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
    ) -> dict[str, Any]:
        """Returns the size and the latency of the student's int8 file, and the size of its float32 file."""
        settings = self.plan.benchmark
        try:
            model = student.make(teacher, self.task, self.data, Origins(tokenizer))
        except UserError as error:
            raise UserError(f"{self.plan.budget} tries every depth of student {student.name}: {error}") from error
        length = min(*settings.lengths, longest(model, tokenizer))
        threads = settings.threads or bundle_files.count_cores()
        _separate_tensors(model)
        with tempfile.TemporaryDirectory() as directory:
            fp32, int8 = (Path(directory) / FILES[name] for name in ("fp32", "int8"))
            model, tokenizer = export_float32(
                model, fp32, tokenizer=tokenizer, settings=self.plan.export.cut_at_export(), data=self.data,
                info=self.task.info,
            )  # fmt: skip
            bits = weight_bits(self.plan.export.targets()[0])
            write_dynamic(RecipeInput(fp32, bits, ties=self.task.info.generates), int8)
            row = time_file(
                int8, exported_inputs(model, tokenizer), length=length, threads=threads, seconds=settings.longest(),
                vocabulary=len(tokenizer), choices=self.data.choices,
            )  # fmt: skip
            if row["disturbed"]:
                print_notice("the machine is busy, so that the student's time may be too long for its depth")
            return {
                "format": "int8", "bytes": row["bytes"], "p50_ms": row["p50_ms"], "length": length,
                "threads": threads, "fp32_bytes": count_bytes(fp32),
            }  # fmt: skip

    def _describe_failure(self, smallest: Mapping[str, Any]) -> str:
        which = "it" if smallest["depth"] is None else f"the one of depth {smallest['depth']}"
        which += f" and width {smallest['width']:g}" if "width" in smallest else ""
        return (
            f"no student {self.student.name} is within {self.plan.budget}: {which} has "
            f"{smallest['bytes'] / 1e6:.1f} MB and {smallest['p50_ms']:.2f} ms in int8 (one text of "
            f"{smallest['length']} tokens, {smallest['threads']} threads): raise the budget, or take another student"
        )


def time_file(path: Path, inputs: Sequence[str], *, length: int, threads: int, **options: Any) -> dict[str, Any]:
    """Returns the row of a benchmark of an exported file, for one text of `length` tokens.

    Args:
        options: `seconds`, `vocabulary` and `choices`, as in `latency.measure_latency`.
    """
    candidate = latency.load_candidate("student", path.stem, path, inputs, threads)
    [row] = latency.measure_latency([candidate], batches=[1], lengths=[length], threads=threads, **options)
    return row


def measure_delivered(plan: Plan, record: Mapping[str, Any], directory: Path, **model: Any) -> dict[str, Any] | None:
    """Returns the size and the time of the recommended file of a bundle, timed as the student was before the training.

    Its recipe may be another one. None without a recommended file.

    Args:
        model: its `inputs`, `vocabulary` and `choices`, as in `latency.measure_latency`.
    """
    chosen = recommend(record["export"])
    if chosen is None:
        return None
    file, before = record["export"][chosen], record["budget"]["chosen"]
    row = time_file(
        directory / file["file"], length=before["length"], threads=before["threads"],
        seconds=plan.benchmark.longest(), **model,
    )  # fmt: skip
    delivered = {"format": chosen, "file": file["file"], "recipe": file.get("recipe"), "bytes": file["bytes"]}
    delivered |= {name: row[name] for name in ("p50_ms", "length", "threads", "disturbed")}
    fits = plan.budget.allows(size=file["bytes"], p50_ms=row["p50_ms"])
    return delivered | {"fits": fits}


def warn_of_budget(budget: Budget, delivered: Mapping[str, Any] | None) -> None:
    """Prints a notice if the recommended file is not within the budget, or not the int8 file that it is about."""
    if delivered is None or (delivered["fits"] and delivered["format"] == "int8"):
        return
    measured = (
        f"the recommended file {delivered['file']} has {delivered['bytes'] / 1e6:.2f} MB and takes "
        f"{delivered['p50_ms']:.2f} ms (one text of {delivered['length']} tokens, {delivered['threads']} threads)"
    )
    if delivered["format"] != "int8":
        within = "within" if delivered["fits"] else "more than"
        print_notice(f"{measured}, {within} {budget}; no int8 file passed its gate")
        return
    busy = ", while the machine was busy" if delivered["disturbed"] else ""
    why = advice = ""
    if delivered["recipe"] != "dynamic":
        why = f": its recipe is {delivered['recipe']}, and that of the file before the training was dynamic"
        advice = ", or export.recipes=[dynamic]"
    print_notice(f"{measured}{busy}, more than {budget}{why}: set a smaller student.depth{advice}")


def _list_candidates(student: Student, teacher: PreTrainedModel, shares: Sequence[float]) -> dict[Size, Student]:
    """Returns the students of every depth and width, those with most weights in their layers first.

    Without `shares` their width is that of the student, and a student without a depth is the only one.

    Raises:
        UserError: if the user chose a depth, or a width that is to be chosen.
    """
    if shares and not all(map(student.has_option, SIZES)):
        raise UserError(
            f"budget.widths is for a student with student.heads and student.ffn, and student {student.name} has none: "
            "leave it out, or take +student=distilbert"
        )
    for name in SIZES:
        if shares and student.option(name) is not None:
            raise UserError(
                f"got student.{name}={student.option(name)} and budget.widths, which chooses it: leave out one of them"
            )
    if isinstance(student.build, PreTrainedModel) or not student.has_option(DEPTH):
        return {(None, None): student}
    given = student.option(DEPTH)
    if given is not None:
        raise UserError(
            f"got student.{DEPTH}={given} and a budget, which chooses the depth: leave out student.{DEPTH} or budget"
        )
    tried: Sequence[float | None] = shares or [None]
    sizes = itertools.product(range(teacher.config.num_hidden_layers, 0, -1), tried)
    found: dict[Size, Student] = {}
    # The sort is stable, so that of two with as many weights the deeper one stays first.
    for depth, share in sorted(sizes, key=lambda size: size[0] * (size[1] or 1.0), reverse=True):
        options: dict[str, int] = {DEPTH: depth}
        if share is not None:
            whole = Sizes.of(teacher)
            options |= {"heads": max(1, round(share * whole.heads[0])), "ffn": max(1, round(share * whole.neurons[0]))}
        found[depth, share] = Student(student.name, partial(student.build, **options))
    return found


@torch.no_grad()
def _separate_tensors(model: PreTrainedModel) -> None:
    """Adds noise to the weights, because an ONNX file stores equal tensors once, such as biases before any training."""
    random = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter += 0.01 * torch.randn(parameter.shape, generator=random)


def _create_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Untrained students", title_justify="left", title_style="bold")
    has_widths = "width" in rows[0]
    for column in ("depth", *["width"] * has_widths, "size (int8)", "p50", "within the budget"):
        table.add_column(column, justify="right")
    for row in rows:
        depth = "-" if row["depth"] is None else str(row["depth"])
        size, time = f"{row['bytes'] / 1e6:.1f} MB", f"{row['p50_ms']:.2f} ms"
        width = [f"{row['width']:g}"] if has_widths else []
        table.add_row(depth, *width, size, time, "yes" if row["fits"] else "no")
    return table


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
    before, after = (count_parameters(model) / 1e6 for model in (teacher, student))
    kinds = dict.fromkeys(type(head).__name__ for head in heads_of(student).values())
    return (
        f"{' and '.join(kinds)}: layers {teacher.config.num_hidden_layers} -> "
        f"{student.config.num_hidden_layers}{chosen}, {len(inherited)} tensors copied, {tensors - len(inherited)} "
        f"new, parameters {before:.1f} M -> {after:.1f} M"
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


def describe_training(module: DistillationModule, settings: TrainerSettings, seconds: float, *, seeds: int = 1) -> str:
    """Describes the number of steps, the precision and the estimated `seconds` of the training of all seeds."""
    several = f" for {seeds} seeds" if seeds > 1 else ""
    limit = "up to " if settings.patience is not None else ""
    steps = f"{limit}{module.total_steps:,} steps in {settings.resolved_precision()}"
    return f"{steps}, {limit or 'about '}{format_duration(seconds)}{several}"


def describe_baseline(choice: JsonObject) -> str | None:
    """Describes whether the student is trained without its teacher too; None where there is nothing to choose."""
    if choice["share"] is None:
        return None
    if choice["trained"]:
        return f"trained too, {choice['reason']}"
    return f"not trained, because {choice['reason']}: baseline=true trains it"


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


def show_summary(rows: Sequence[tuple[str, object]]) -> None:
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
