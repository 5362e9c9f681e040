"""The parts that tasks with labelled rows share: their options, the sources of their rows, and weights of classes."""

import re
from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads that of `typing` from Python 3.12 on.

from distill.core.contracts import IGNORED
from distill.core.errors import OptionError
from distill.core.options import show_value
from distill.data.batches import TokenizedExamples
from distill.data.labelled_text import ADVICE, LabelledText, Missing
from distill.data.pool import BankSource, Unlabelled, UnlabelledText
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
from distill.kinds.kind import WEIGHTS, AddRows, Encoder, Kind, PoolSource
from distill.kinds.scoring import Scoring

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ClassWeights = Annotated[
    Literal["balanced"] | Sequence[Weight],
    Field(description="balanced, or a list of numbers of at least 0 in the order of the classes"),
]
SHOWN = 8  # Classes in a message.


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
        counts = np.bincount(train_labels[train_labels != IGNORED], minlength=len(labels))
        if missing := [label for label, count in zip(labels, counts, strict=True) if not count]:
            none = f"which has none of {show_names(missing)}: give a list of weights"
            raise OptionError("task.class_weights", "balanced", f"an example of every class in train, {none}")
        return tuple((counts.sum() / (len(labels) * counts)).tolist())
    weights = tuple(float(weight) for weight in option)
    if len(weights) != len(labels):
        raise OptionError(
            "task.class_weights", show_value(list(option)),
            f"{len(labels)} numbers, one for each of {show_names(labels)}",
        )  # fmt: skip
    if not any(weights):
        raise OptionError("task.class_weights", show_value(list(option)), "at least one weight above 0")
    return weights


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
    return f"; class weights {show_names(named)}"


def show_names(names: Sequence[str]) -> str:
    """Returns the first names, and the number of the others."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


# A column may be called 0, which the command line passes as a number.
Columns = str | int | Sequence[str | int]
MaxLength = Annotated[int, Field(ge=3, description="at least 3 tokens")]
Share = Annotated[float, Field(gt=0, lt=1, description="a share between 0 and 1")]
Amount = Annotated[int, Field(ge=1)]
# A path, or a table in memory, by name.
TransferSets = Annotated[Mapping[str, Any], Field(description="a mapping of names to files, directories or tables")]
NO_LABEL = "label"  # The column of missing values of data that is said to have no labels.


class RowOptions(TypedDict, total=False):
    """The options that determine the labelled rows of a task, one of `data`, `train`, `data_dir` and `hub_id`.

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
    transfer: TransferSets | None


class TableOptions(RowOptions, total=False):
    """The options of a task whose rows may also be without labels.

    Attributes:
        unlabelled: examples that only the teacher labels: a file, a directory, a data set of the Hub or a table.
        unlabelled_share: share of them in the examples of every step.
        bank: sentences, of which those near the rows join `unlabelled="auto"`.
        clean: rules for the texts of `unlabelled` and the bank: `web` keeps the prose of web text; None keeps all.
    """

    unlabelled: Unlabelled | None
    unlabelled_share: Share
    bank: Unlabelled | None
    clean: Literal["web"] | None


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


SPLITS = ("train", "dev", "test")  # The options that are tables of a split.
SOURCE_OPTIONS = ("dev_fraction", "hub_id", "builtin", "train_examples", "dev_examples")  # Those of `TableSource`.


def column_names(names: Columns) -> tuple[str, ...]:
    """The names of one column or of several."""
    return (str(names),) if isinstance(names, str | int) else tuple(map(str, names))


def table_source(
    *,
    name: str,
    text: tuple[str, ...],
    label: tuple[str, ...],
    options: Mapping[str, Any],
    further: tuple[str, ...] = (),
    **files: Any,
) -> TableSource:
    """The source of the tables with these columns; `pool_source` reads the options on rows without labels.

    Args:
        options: those of `DataOptions`.
        further: columns that are read if they are there.
        files: `suffixes` and `read_file` of `TableSource`.

    Raises:
        OptionError: for a set of `transfer` whose name is no word, or is that of a split.
        UserError: for data of a type that cannot be read.
    """
    data, data_dir = options.get("data"), options.get("data_dir")
    if isinstance(data, str | Path):
        data_dir, data = data, None
    given = {split: tuple(names) for split, names in (options.get("splits") or {}).items()}
    sets, taken = options.get("transfer") or {}, {SINGLE, *STEMS, *given}
    tables = to_tables(data, {split: options.get(split) for split in SPLITS}, text=text, label=label[0])
    for set_name in sets:
        if set_name in taken or not re.fullmatch(r"\w[\w.-]*", set_name):
            known = ", ".join(sorted(taken))
            raise OptionError(
                "transfer", f"{{{set_name}: ...}}", f"names of letters, digits, - and _ that are no splits ({known})"
            )
    return TableSource(
        name=name, wanted=(*text, *label, *further), tables=tables,
        data_dir=None if data_dir is None else str(data_dir),
        # The usual names of a split, and in their place those that are given.
        stems={**STEMS, **given}, transfer=further_tables(sets, text=text, label=label[0]),
        **{key: value for key, value in options.items() if key in SOURCE_OPTIONS}, **files,
    )  # fmt: skip


def pool_source(options: TableOptions, create: Callable[[Unlabelled], AddRows]) -> PoolSource:
    """The source of a task's rows without labels; `create` makes it from the option `unlabelled`.

    Raises:
        OptionError: for `auto`, a bank and a cleaning, which other tasks have (`TextRows`).
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


class TextRows(Kind):
    """A label for one text or a pair of texts, by the logits `[B, C]` of a classifier.

    Args:
        scoring: of the labels, which `read` adapts to the data.
        text: the columns of text, or None for those of `(texts, labels)` in memory, which has no names.
        label: the column of the label, or several of which one is read; None if no row has one.
        rows: further options of `LabelledText`.
        options: on the data.

    Raises:
        OptionError: for other data without names of columns, more than two columns of text, a bank beside other texts
            without labels, and a cleaning of pairs.
        UserError: for data of a type that cannot be read, and tables in memory without one of the columns.
    """

    auto_class = "AutoModelForSequenceClassification"
    can_augment = can_stream = True
    scoring: Any

    def __init__(
        self,
        name: str,
        max_length: int,
        scoring: Scoring,
        text: Columns | None,
        label: Columns | None,
        rows: Mapping[str, Any],
        options: TextOptions,
    ) -> None:
        columns = _find_texts(options) if text is None else column_names(text)
        labels = column_names(NO_LABEL if label is None else label)
        if not 1 <= len(columns) <= 2:
            raise OptionError("text", show_value(columns), "one column or the two of a pair")
        self.source = table_source(name=name, text=columns, label=labels, options=options)
        check_memory(self.source, [*((column,) for column in columns), *([] if label is None else [labels])], ADVICE)
        self.rows = LabelledText(
            source=self.source, text=columns, label=labels, missing=options.get("missing", "auto"),
            is_labelled=label is not None, **rows,
        )  # fmt: skip
        super().__init__(name, max_length, builtin=options.get("builtin", False), pool=_text_pool(options, self.rows))
        self.scoring, self.pair = scoring, len(columns) == 2
        self.known_columns = columns

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads every split, and takes from it what the scoring needs.

        Raises:
            UserError: for data that is invalid, or does not suit the options.
        """
        data: LabelledData = self.scoring.adapt(self.pool.add_to(self.rows.read(cache_dir)))
        return data

    def encode_split(self, encoder: Encoder, data: LabelledData, name: str, split: Split) -> TokenizedExamples:
        columns = {"labels": split.labels} | weight_column(data.scoring.weights, split.labels)
        columns |= {name: split[name] for name in (TEACHER_CLASS,) if name in split.columns}
        return encoder.encode(split, **columns)


def _find_texts(options: DataOptions) -> tuple[str, ...]:
    """Returns names for the texts of `(texts, labels)` in memory; raises OptionError for other data."""
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


def _text_pool(options: TableOptions, labelled: LabelledText) -> PoolSource:
    """Returns the source of texts without labels; by default they are chosen from the data."""
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
