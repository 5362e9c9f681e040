"""The parts that tasks with labelled rows share: columns of text, texts without labels, weights of classes, and the
overview.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

import numpy as np
import torch
from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads that of `typing` from Python 3.12 on.

from distill.core.contracts import IGNORED, Batch, Examples, Items, Likelihood, Outputs, TaskInfo
from distill.core.errors import OptionError, Overview, Shown, describe_call
from distill.core.options import show_value
from distill.data import sources
from distill.data.labelled_text import ADVICE, LabelledText, Missing
from distill.data.pool import BankSource, Unlabelled, UnlabelledText, clean_pool
from distill.data.sources import SINGLE, STEMS, TableSource, check_memory
from distill.data.splits import (
    AUTO,
    SHARE,
    TEACHER_CLASS,
    GivenTable,
    LabelledData,
    Split,
    TableSplits,
    further_tables,
    to_tables,
)
from distill.rows import columns
from distill.rows.columns import SUFFIXES

if TYPE_CHECKING:
    import datasets
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distill.data.batches import TokenizedExamples


Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ClassWeights = Annotated[
    Literal["balanced"] | Sequence[Weight],
    Field(description="balanced, or a list of numbers of at least 0 in the order of the classes"),
]
SHOWN = 8  # Classes in a message.
WEIGHTS = "class_weights"  # The column of batches with the weights of the items.


def resolve_class_weights(
    option: Literal["balanced"] | Sequence[float], labels: Sequence[str], train_labels: np.ndarray
) -> tuple[float, ...]:
    """Returns the weight of each class.

    `balanced` gives class c the weight `n / (C * count_c)` over the n labelled items of train, as scikit-learn does.

    Args:
        labels: names of the classes.
        train_labels: classes of the items of the training split `[n]`; `IGNORED` ones are left out.

    Raises:
        OptionError: for a list of another length, one without a weight above 0, and a class without an example.
    """
    if option == "balanced":
        return _balance(labels, train_labels)
    weights = tuple(float(weight) for weight in option)
    if len(weights) != len(labels):
        raise OptionError(
            "task.class_weights", show_value(list(option)), f"{len(labels)} numbers, one for each of {_show(labels)}"
        )
    if not any(weights):
        raise OptionError("task.class_weights", show_value(list(option)), "at least one weight above 0")
    return weights


def _balance(labels: Sequence[str], train_labels: np.ndarray) -> tuple[float, ...]:
    counts = np.bincount(train_labels[train_labels != IGNORED], minlength=len(labels))
    missing = [label for label, count in zip(labels, counts, strict=True) if not count]
    if missing:
        raise OptionError(
            "task.class_weights",
            "balanced",
            f"an example of every class in train, which has none of {_show(missing)}: give a list of weights",
        )
    return tuple((counts.sum() / (len(labels) * counts)).tolist())


def weight_column(weights: Sequence[float] | None, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the column of batches with the weight of each item from its class, none without weights.

    Args:
        labels: classes `[n]`; an item without one, whose class is below 0, has the weight 0.
    """
    if weights is None:
        return {}
    chosen = np.asarray(weights, dtype=np.float32)[np.maximum(labels, 0)]
    return {WEIGHTS: np.where(labels < 0, np.float32(0), chosen)}


def describe_weights(weights: Sequence[float] | None, labels: Sequence[str]) -> str:
    """Returns the weights in words, to be appended to the names of the classes; nothing without weights."""
    if weights is None:
        return ""
    named = [f"{label} {weight:.3g}" for label, weight in zip(labels, weights, strict=True)]
    return f"; class weights {_show(named)}"


def _show(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


class ShownTask(Shown):
    """A kind of task that a notebook shows as its overview."""

    info: TaskInfo

    def __repr__(self) -> str:
        return describe_call(type(self).__name__, name=self.info.name, data=_describe_origin(self))

    def overview(self) -> Overview:
        """Returns the name and the kind of the task, the columns that it reads, and the source of its rows."""
        info, source = self.info, find_source(self)
        rows = {
            "name": info.name, "kind": info.kind, "data": _describe_origin(self),
            "columns": "" if source is None else ", ".join(source.wanted),
            "longest input": f"{info.max_length} tokens" + (" of two texts" if info.pair else ""),
            "texts without labels": {"none": "", "given": "given", "auto": "chosen from the data"}[info.unlabelled],
        }  # fmt: skip
        return Overview(type(self).__name__, [(name, value) for name, value in rows.items() if value])


def find_source(task: object) -> TableSource | None:
    """Returns the source of the rows of a task; None for raw text."""
    found = getattr(getattr(task, "rows", task), "source", None)
    return found if isinstance(found, TableSource) else None


def _describe_origin(task: ShownTask) -> str:
    """Returns the path, the Hub's name or the sizes of the tables that a task reads."""
    source = find_source(task) or getattr(task, "settings", None)
    tables: Mapping[str, Sized] | None = getattr(source, "tables", None)
    if tables is not None:
        return ", ".join(f"{name} {len(table):,} rows" for name, table in tables.items())
    names: Iterator[object] = (getattr(source, name, None) for name in ("data_dir", "hub_id"))
    found = next((str(name) for name in names if name), "")
    return found or ("built in" if task.info.builtin else "")


# A column may be called 0, which the command line passes as a number.
Columns = str | int | Sequence[str | int]
MaxLength = Annotated[int, Field(ge=3, description="at least 3 tokens")]
Share = Annotated[float, Field(gt=0, lt=1, description="a share between 0 and 1")]
Amount = Annotated[int, Field(ge=1)]
# A path, or a table in memory, by name.
TransferSets = Annotated[Mapping[str, Any], Field(description="a mapping of names to files, directories or tables")]
NO_LABEL = "label"  # The column of missing values of data that is said to have no labels.
UNLABELLED = "task.unlabelled"  # Names the rows of the pool, which are encoded as a split.


class TableOptions(TypedDict, total=False):
    """The options of every task that determine the rows that it reads, one of `data`, `train`, `data_dir` and `hub_id`.

    Attributes:
        data: a path as `data_dir`, a table, or split -> table; a table is a list of rows, a pandas frame, a
            `datasets.Dataset`, or a mapping of columns.
        train: the table of the training split, with `dev` and `test` in place of `data`.
        dev: the table of the split that selects the checkpoint.
        test: the table of a split that is scored at the end.
        data_dir: a directory with `train` and `dev`, or one file.
        dev_fraction: share of a single file or table, or of train, that is held out as dev, the same in every run.
        splits: names of each split on the Hub and in the files, of which the first one that is there is read. With no
            name for dev, `{"dev": []}`, `dev_fraction` of train is held out.
        hub_id: a data set of the Hub, `owner/name` or `owner/name:configuration`.
        train_examples: number of training examples that are used; None for all.
        dev_examples: number of dev examples that are used; None for all.
        unlabelled: examples that only the teacher labels: a file, a directory, a data set of the Hub or a table.
        unlabelled_share: share of them in the examples of every step.
        bank: sentences, of which those near the rows join `unlabelled="auto"`.
        clean: rules for the texts of `unlabelled` and the bank: `web` keeps the prose of web text; None keeps all.
        transfer: further sets in the same columns by name, such as those of other languages. Every model is scored on
            them at the end, and they select nothing.
    """

    data: GivenTable | TableSplits | str | Path | None
    train: GivenTable | None
    dev: GivenTable | None
    test: GivenTable | None
    data_dir: str | Path | None
    dev_fraction: Share
    splits: Mapping[str, Sequence[str]] | None
    hub_id: str | None
    train_examples: Amount | None
    dev_examples: Amount | None
    unlabelled: Unlabelled | None
    unlabelled_share: Share
    bank: Unlabelled | None
    clean: Literal["web"] | None
    transfer: TransferSets | None


class DataOptions(TableOptions, total=False):
    """The options of a task whose rows may also be those that come with the program.

    Attributes:
        builtin: whether the rows are those that come with the program.
    """

    builtin: bool


class TextOptions(DataOptions, total=False):
    """The options of a task that reads one or two columns of text and a label.

    Attributes:
        missing: for rows without a label or a text: `error`, `drop`, `unlabelled` (the teacher labels them), or `auto`.
    """

    missing: Missing


SOURCE_OPTIONS = ("dev_fraction", "hub_id", "builtin", "train_examples", "dev_examples")  # Those of `TableSource`.


def column_names(names: Columns) -> tuple[str, ...]:
    """The names of one column or of several."""
    return (str(names),) if isinstance(names, str | int) else tuple(map(str, names))


def table_source(
    *,
    name: str,
    text: tuple[str, ...],
    label: tuple[str, ...],
    further: tuple[str, ...] = (),
    suffixes: tuple[str, ...] = SUFFIXES,
    read_file: Callable[[Path, Collection[str]], columns.Table] = sources.read_file,
    **options: Unpack[DataOptions],
) -> TableSource:
    """The source of the tables with these columns; `pool_source` reads the options on rows without labels.

    Args:
        further: columns that are read if they are there.
        suffixes: of the files that `read_file` reads.

    Raises:
        UserError: for data of a type that cannot be read.
    """
    data, data_dir = options.get("data"), options.get("data_dir")
    if isinstance(data, str | Path):
        data_dir, data = data, None
    splits = {"train": options.get("train"), "dev": options.get("dev"), "test": options.get("test")}
    given: dict[str, Any] = {key: value for key, value in options.items() if key in SOURCE_OPTIONS}
    return TableSource(
        name=name,
        wanted=(*text, *label, *further),
        tables=to_tables(data, splits, text=text, label=label[0]),
        data_dir=None if data_dir is None else str(data_dir),
        # The usual names of a split, and in their place those of `splits`.
        stems={**STEMS, **{split: tuple(names) for split, names in (options.get("splits") or {}).items()}},
        suffixes=suffixes,
        read_file=read_file,
        transfer=_transfer_sets(options, text, label[0]),
        **given,
    )


def _transfer_sets(options: DataOptions, text: tuple[str, ...], label: str) -> "dict[str, str | datasets.Dataset]":
    """Returns the sets that are scored besides the splits by name.

    Raises:
        OptionError: for a name that is no word, or is that of a split.
    """
    sets = options.get("transfer") or {}
    taken = {SINGLE, *STEMS, *(options.get("splits") or {})}
    for name in sets:
        if name in taken or not re.fullmatch(r"\w[\w.-]*", name):
            known = ", ".join(sorted(taken))
            raise OptionError(
                "transfer", f"{{{name}: ...}}", f"names of letters, digits, - and _ that are no splits ({known})"
            )
    return further_tables(sets, text=text, label=label)


def text_columns(text: Columns | None, options: DataOptions) -> tuple[str, ...]:
    """The names of the columns of text, given or those of `(texts, labels)` in memory, which has no names.

    Raises:
        OptionError: if other data are given without names.
    """
    if text is not None:
        return column_names(text)
    data = options.get("data")
    values = list(data.values()) if isinstance(data, Mapping) else [data]
    values += [options.get("train"), options.get("dev"), options.get("test")]
    tables: list[Any] = [table for table in values if table is not None]
    are_lists = all(isinstance(table, tuple) and len(table) == 2 for table in tables)
    # Looking at the first value of a generator would remove it.
    texts: Any = tables[0][0] if tables and are_lists and isinstance(tables[0][0], Sized) else ()
    first = next(iter(texts), "")
    if not tables or not are_lists or isinstance(first, Mapping):
        raise OptionError("text", None, "the column of the texts, or the two columns of a pair")
    return ("text",) if isinstance(first, str) or not isinstance(first, Sized) else ("first", "second")


def labelled_text(
    *,
    name: str,
    text: Columns | None,
    label: Columns | None,
    label_names: tuple[str, ...] | None = None,
    regression: bool = False,
    separator: str | None = None,
    missing: Missing = "auto",
    **options: Unpack[DataOptions],
) -> LabelledText:
    """The source of a task's rows.

    Args:
        label: the column of the label, or several of which one is read; None if no row has one.

    Raises:
        OptionError: for more than two columns of text.
        UserError: for data of a type that cannot be read, and tables in memory without one of the columns.
    """
    columns, labels = text_columns(text, options), column_names(NO_LABEL if label is None else label)
    if not 1 <= len(columns) <= 2:
        raise OptionError("text", show_value(columns), "one column or the two of a pair")
    source = table_source(name=name, text=columns, label=labels, **options)
    check_memory(source, [*((column,) for column in columns), *([] if label is None else [labels])], ADVICE)
    return LabelledText(
        source=source,
        text=columns,
        label=labels,
        task="regression" if regression else "classification" if separator is None else "multi_label",
        names=label_names,
        separator=separator,
        missing=missing,
        is_labelled=label is not None,
    )


# Returns the data with the rows of a source that are in none of its splits as its pool.
AddRows = Callable[[LabelledData], LabelledData]


@dataclass(frozen=True)
class PoolSource:
    """The source of the rows without labels, and their share of every step.

    Args:
        rows: adds the rows to the data, None without any.
        is_auto: whether texts are chosen once the data is read.
        bank: a source of sentences to choose from, None without one.
    """

    rows: AddRows | None
    share: float
    is_auto: bool = False
    bank: BankSource | None = None

    def info(self) -> dict[str, Any]:
        """Returns the fields of `TaskInfo` that concern these rows."""
        return {"unlabelled": "auto" if self.is_auto else "none" if self.rows is None else "given", "bank": self.bank}

    def add_to(self, data: LabelledData) -> LabelledData:
        """Returns the data with the rows, if there are any, and their share as its pool.

        They follow the rows of the task's own tables without a label.
        """
        data = clean_pool(data)
        data = replace(data, pool=replace(data.pool, share=self.share))
        return data if self.rows is None else self.rows(data)


def pool_source(options: TableOptions, create: Callable[[Unlabelled], AddRows]) -> PoolSource:
    """The source of a task's rows without labels; `create` makes it from the option `unlabelled`.

    Raises:
        OptionError: for `auto`, a bank and a cleaning, which other tasks have (`text_pool`).
    """
    source, others = options.get("unlabelled"), "classification and regression"
    if is_auto(source):
        raise OptionError("unlabelled", AUTO, f"null or texts, because {AUTO} is for {others}; a file auto is ./auto")
    for option, of_words in (("bank", "a bank is"), ("clean", "the rules are")):
        if options.get(option) is not None:
            raise OptionError(option, show_value(options.get(option)), f"null, because {of_words} for {others}")
    return PoolSource(None if source is None else create(source), options.get("unlabelled_share", SHARE))


def is_auto(source: object) -> bool:
    """Returns whether the option `unlabelled` is `auto`, and no data."""
    return isinstance(source, str) and source == AUTO


def text_pool(options: TableOptions, labelled: LabelledText) -> PoolSource:
    """The source of texts without labels for a task with these rows; by default they are chosen from the data.

    Raises:
        OptionError: for a bank beside other texts, or none, and for a cleaning of pairs.
    """
    clean = options.get("clean") is not None
    if clean and len(labelled.text) == 2:
        raise OptionError("clean", show_value(options.get("clean")), "null, because the rules are for single texts")
    source, bank, share = options.get("unlabelled", AUTO), options.get("bank"), options.get("unlabelled_share", SHARE)
    if is_auto(source):
        chosen = None if bank is None else BankSource(bank, labelled.text[0], clean)
        return PoolSource(None, share, is_auto=True, bank=chosen)
    if bank is not None:
        raise OptionError(
            "bank", show_value(bank), "null, because sentences are chosen with task.unlabelled=auto alone"
        )
    if source is None:
        return PoolSource(None, share)
    return PoolSource(UnlabelledText(source, text=labelled.text, label=labelled.label, clean=clean).add_to, share)


def encode_rows(
    splits: LabelledData,
    tokenizer: "PreTrainedTokenizerBase",
    max_length: int,
    cache_dir: Path | None,
    *,
    no_label: float = IGNORED,
    weights: Sequence[float] | None = None,
) -> "dict[str, Examples]":
    """Tokenizes every split as `encode_splits`, each example as one text or a pair of texts.

    The texts of the pool have the label `no_label`. With `weights` of the classes examples have a column of them.
    """
    from distill.data import tokenization
    from distill.data.batches import TokenizedExamples

    def encode(name: str, split: Split) -> TokenizedExamples:
        tokens = tokenization.tokenize_split(split, tokenizer, max_length, cache_dir)
        columns = {"labels": split.labels} | weight_column(weights, split.labels)
        columns |= {name: split[name] for name in (TEACHER_CLASS,) if name in split.columns}
        return TokenizedExamples(tokens, tokenizer, per_example=columns)

    labels = splits.splits["train"].labels

    def unlabelled(pool: Split) -> Split:
        return pool.with_columns(labels=np.full((len(pool), *labels.shape[1:]), no_label, dtype=labels.dtype))

    return encode_splits(splits, encode, unlabelled)


def encode_splits(
    splits: LabelledData, encode: "Callable[[str, Any], TokenizedExamples]", unlabelled: Callable[[Any], object]
) -> "dict[str, Examples]":
    """Tokenizes `train`, mixed with the pool if there is one, and the splits that are scored, dev first.

    Args:
        encode: tokenizes a split, which has a name for messages.
        unlabelled: returns the rows of the pool as a split without labels.
    """
    from distill.data.batches import MixedExamples

    train = encode("train", splits.splits["train"])
    pool = splits.pool.fit_share(len(splits.splits["train"]))
    scored = {name: encode(name, split) for name, split in splits.scored().items()}
    if not len(pool):
        return {"train": train, **scored}
    mixed = encode(UNLABELLED, unlabelled(pool.shuffled()))
    return {"train": MixedExamples(train, mixed, share=pool.share, record=pool.record()), **scored}


def select_examples(batch: Batch, likelihood: Likelihood, valid: "Tensor | None" = None) -> Items:
    """The items of a batch whose items are its examples; `valid [B, C]` are the classes that each can have."""
    labels = batch["labels"]
    # A softmax has classes; numbers and the 0 and 1 of several labels are NaN where there are none.
    labelled = labels != IGNORED if likelihood == "softmax" else ~labels.reshape(len(labels), -1).isnan().any(dim=-1)
    row = torch.arange(len(labels), device=labels.device)
    weights = batch.get(WEIGHTS)
    return Items(
        batch=batch, row=row, labels=labels, labelled=labelled, likelihood=likelihood, weights=weights, valid=valid
    )


def run_whole_model(model: "PreTrainedModel", batch: Batch, needs: frozenset[str]) -> Outputs:
    """Runs a model whose output is `logits [B, C]`."""
    from distill.models.forward import collect_outputs, run_model

    output = run_model(model, batch, needs)
    return collect_outputs(output, output.logits)
