"""Reads labelled texts from a directory, a file, the Hub or memory."""

import hashlib
import json
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from distill.console import print_notice
from distill.data import labels, readers
from distill.data.labels import LabelColumn
from distill.data.readers import Table
from distill.data.sources import STEMS, TableSource, hold_out_dev
from distill.errors import UserError

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class Split:
    """Raw examples: texts, the second texts of pairs, and labels `[N]`, which are class indices or numbers."""

    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, rows: np.ndarray) -> "Split":
        """Returns these rows."""
        pairs = None if self.pairs is None else [self.pairs[i] for i in rows]
        return Split(texts=[self.texts[i] for i in rows], pairs=pairs, labels=self.labels[rows])

    def records(self) -> list[str | list[str]]:
        """Returns the examples in the form that a bundle reads: a text, or the two texts of a pair."""
        if self.pairs is None:
            return list(self.texts)
        return [list(pair) for pair in zip(self.texts, self.pairs, strict=True)]


class RawSplit(Protocol):
    """Raw examples of a split."""

    def __len__(self) -> int: ...

    def records(self) -> Sequence[object]:
        """Returns the examples in the form that a bundle reads."""
        ...


@dataclass(frozen=True)
class Pool:
    """Texts without labels, which the teacher labels and which are mixed with the training rows.

    Args:
        share: of the examples of every optimizer step.
        removed: number of texts that were left out, by reason.
        augmentation: of run.json, if some of the texts are changed copies of the training texts.
    """

    texts: Sequence[str] = ()
    pairs: Sequence[str] | None = None
    share: float = 0.5
    removed: Mapping[str, int] = field(default_factory=dict)
    augmentation: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def shuffled(self) -> "Pool":
        """Returns the texts in an order that is the same in every run."""
        order = np.random.default_rng(0).permutation(len(self))
        pairs = None if self.pairs is None else [self.pairs[row] for row in order]
        return replace(self, texts=[self.texts[row] for row in order], pairs=pairs)

    def split(self, no_label: float, dtype: np.dtype) -> Split:
        """Returns the texts as a split, all with the label `no_label`."""
        pairs = None if self.pairs is None else list(self.pairs)
        return Split(list(self.texts), pairs, np.full(len(self), no_label, dtype=dtype))

    def record(self) -> dict[str, Any]:
        """Returns the `unlabelled` of the task in run.json."""
        augmentation = {} if self.augmentation is None else {"augmentation": dict(self.augmentation)}
        return {"examples": len(self), "share": self.share, "removed": dict(self.removed), **augmentation}


@dataclass(frozen=True)
class LabelledData:
    """All splits of a task, the names of its classes in order, and the SHA-256 of the content.

    For a regression, the only name is that of the column. The SHA-256 does not cover the pool, on which no teacher is
    fine-tuned.
    """

    labels: tuple[str, ...]
    splits: "Mapping[str, Any]"
    sha256: str
    pool: Pool = field(default_factory=Pool)

    def sizes(self) -> dict[str, int]:
        """Returns the number of examples of each split."""
        return {name: len(split) for name, split in self.splits.items()}

    def texts(self) -> list[str]:
        """Returns the training texts, without the second texts of pairs."""
        texts: list[str] = self.splits["train"].texts
        return texts

    def is_empty(self, texts: Sequence[str]) -> bool:
        """Returns whether an example of one text or the two texts of a pair has nothing to learn from."""
        return not any(texts)

    def training_texts(self) -> Iterator[str]:
        """Yields all texts that are trained on, also the second ones of pairs and those without labels."""
        for part in (self.splits["train"], self.pool):
            yield from part.texts
            yield from part.pairs or ()

    def training(self) -> Any:
        """Returns the labelled rows that are trained on."""
        return self.splits["train"]

    def scored(self) -> dict[str, Any]:
        """Returns the splits that are scored and not trained on, dev first."""
        return {"dev": self.splits["dev"]} | {k: v for k, v in self.splits.items() if k not in ("train", "dev")}


@dataclass(frozen=True)
class LabelledText:
    """A source of rows with one or two columns of text and a label.

    Args:
        name: name of the task in messages.
        text: the column of the text, or the two columns of a pair.
        label: the column of the class or number. Of several names, the first one that the data has is used.
        label_names: names of the classes in the order of the data's integers; None uses the labels of the training
            split.
        regression: whether the label is a number.
        tables: data in memory by split, a single table under the name `data`.
        data_dir: a directory with `train` and `dev`, or a single file. None uses the Hub's `hub_id`.
        dev_fraction: share of a single file or table that is held out as dev, stratified by class and the same in
            every run.
        group: a column instead of the class: rows with the same value are held out together.
        advice: how to name other columns, for messages.
        suffixes: of the files that are read.
        stems: possible names of each split's file or Hub split.
        hub_id: a data set of the Hub and, after a colon, its configuration: `nyu-mll/glue:sst2`.
        builtin: whether to use the built-in data.
        train_examples, dev_examples: number of examples to use, always the same ones; None uses all.
        further: columns that are read if they are there.
    """

    name: str
    text: tuple[str, ...]
    label: tuple[str, ...]
    label_names: tuple[str, ...] | None = None
    regression: bool = False
    tables: "Mapping[str, datasets.Dataset] | None" = None
    data_dir: str | None = None
    dev_fraction: float = 0.1
    group: str | None = None
    advice: str = "name yours with task.text=[...] and task.label=..."
    suffixes: tuple[str, ...] = readers.SUFFIXES
    stems: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: dict(STEMS))
    hub_id: str | None = None
    builtin: bool = False
    train_examples: int | None = None
    dev_examples: int | None = None
    further: tuple[str, ...] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        """All columns that may be read."""
        return (*self.text, *self.label, *self.further)

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads `train`, `dev` and the other splits with labels.

        The sample of `train_examples` does not depend on the run, so that the seeds of a sweep share data and teacher.

        Raises:
            UserError: if a directory, file, column, text or label is missing or invalid.
            UnreachableError: if the data is not in the cache and cannot be downloaded.
        """
        tables = {}
        for name, table in self.read_tables(cache_dir).items():
            if name in ("train", "dev") or _is_labelled(self, table):
                check_columns(self, table)
                tables[name] = _leave_out_unlabelled(self, table)
        names, numbers = _read_labels(self, tables)
        splits = {name: _create_split(self, table, numbers[name]) for name, table in tables.items()}
        for name, size in (("train", self.train_examples), ("dev", self.dev_examples)):
            splits[name] = splits[name].select(sample_rows(len(splits[name]), size))
        report_shared_texts(splits)
        return LabelledData(labels=names, splits=splits, sha256=_compute_digest(names, splits))

    def read_tables(self, cache_dir: Path) -> dict[str, Table]:
        """Returns the table of each split, with those of the wanted columns that it has."""
        source = TableSource(
            name=self.name, wanted=self.wanted, tables=self.tables, data_dir=self.data_dir, stems=self.stems,
            hub_id=self.hub_id, builtin=self.builtin, suffixes=self.suffixes,
        )  # fmt: skip
        return source.read(cache_dir, self._hold_out_dev)

    def _hold_out_dev(self, table: Table) -> dict[str, Table]:
        """Splits a table into train and dev, stratified by class or by groups of rows."""
        check_columns(self, table)
        table = _leave_out_unlabelled(self, table)
        values = _get_labels(self, table).values
        if self.group is not None:
            groups = list(map(str, table.columns[self.group]))
            return hold_out_dev(table, self.dev_fraction, rows=len(values), groups=groups, group=self.group)
        if self.regression:
            return hold_out_dev(table, self.dev_fraction, rows=len(values))
        labels.to_words({"train": _get_labels(self, table)}, self.label_names)  # Checks them.
        return hold_out_dev(table, self.dev_fraction, rows=len(values), classes=list(map(str, values)))


def check_columns(rows: LabelledText, table: Table) -> None:
    """Raises UserError for a table that lacks a column, or has no rows."""
    missing = [column for column in rows.text if column not in table.names]
    if not any(column in table.names for column in rows.label):
        missing.append(" or ".join(rows.label))
    if missing:
        raise UserError(
            f"{table.source} has no column {', '.join(missing)}: it has {readers.show_names(table.names)}; "
            f"{rows.advice}"
        )
    if not table.columns[rows.text[0]]:
        raise UserError(f"{table.source} has no examples")


def _get_labels(rows: LabelledText, table: Table) -> LabelColumn:
    column = next(column for column in rows.label if column in table.names)
    return LabelColumn(table.source, table.columns[column], table.classes.get(column))


def _is_labelled(rows: LabelledText, table: Table) -> bool:
    """Returns whether a split has labels. GLUE on the Hub has -1 for the hidden labels of a test split."""
    if not any(column in table.names for column in rows.label):
        return False
    return not all(map(labels.is_without_label, _get_labels(rows, table).values))


def _leave_out_unlabelled(rows: LabelledText, table: Table) -> Table:
    """Removes the examples without a label of a `datasets.ClassLabel`."""
    column = _get_labels(rows, table)
    if rows.regression or column.classes is None:
        return table
    labelled = [row for row, value in enumerate(column.values) if not labels.is_without_label(value)]
    missing = len(column.values) - len(labelled)
    if not labelled:
        raise UserError(f"{table.source} has no example with a label: all {missing:,} have none (-1)")
    if not missing:
        return table
    print_notice(f"{table.source}: {missing:,} of {len(column.values):,} examples have no label (-1) and are left out")
    return table.select(labelled, table.source)


def _read_labels(rows: LabelledText, tables: Mapping[str, Table]) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Returns the names of the classes in order, or the column of the numbers, and the labels of each split."""
    columns = {split: _get_labels(rows, table) for split, table in tables.items()}
    if rows.regression:
        name = next(column for column in rows.label if column in tables["train"].names)
        return (name,), {split: labels.to_numbers(column) for split, column in columns.items()}
    return labels.to_classes(columns, rows.label_names)


def _read_texts(rows: LabelledText, table: Table) -> list[list[str]]:
    """Returns the texts of each column. One text of a pair may be empty."""
    columns = [read_text_column(table, name, may_be_empty=len(rows.text) == 2) for name in rows.text]
    if len(columns) == 2:
        _check_pairs(columns, table.source)
    return columns


def read_text_column(table: Table, name: str, *, may_be_empty: bool, optional: bool = False) -> list[str]:
    """Returns the texts of a column; with `optional`, a missing value is an empty text.

    Raises:
        UserError: for a value that is no text, or for an empty text unless it `may_be_empty`.
    """
    texts = []
    for row, value in enumerate(table.columns[name]):
        text = "" if optional and value is None else value
        if not isinstance(text, str) or not (text.strip() or may_be_empty):
            raise UserError(f"{table.source}, example {row + 1}: column {name} is {reprlib.repr(text)}, expected text")
        if not text.isascii():
            check_surrogates(text, f"{table.source}, example {row + 1}: column {name}")
        texts.append(text)
    return texts


def check_surrogates(text: str, source: str) -> None:
    """Raises UserError for a text that is no Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can contain "\ud800", which tokenizers do not accept.
        raise UserError(f"{source} contains the unpaired surrogate {text[error.start]!r}") from error


def _check_pairs(columns: Sequence[Sequence[str]], source: str) -> None:
    """Counts the pairs with one empty text, and raises UserError for a pair of two."""
    half_empty = 0
    for row, texts in enumerate(zip(*columns, strict=True)):
        empty = sum(not text.strip() for text in texts)
        if empty == 2:
            raise UserError(f"{source}, example {row + 1}: both texts of the pair are empty, expected text")
        half_empty += empty
    if half_empty:
        print_notice(f"{source}: pairs with one empty text, which are used as they are: {half_empty:,}")


def _create_split(rows: LabelledText, table: Table, numbers: np.ndarray) -> Split:
    columns = _read_texts(rows, table)
    return Split(texts=columns[0], pairs=columns[1] if len(columns) == 2 else None, labels=numbers)


def report_shared_texts(splits: "Mapping[str, RawSplit]") -> None:
    """Prints how many examples that are scored have the texts of a training example."""
    training = set(map(str, splits["train"].records()))
    for name, split in splits.items():
        shared = sum(str(record) in training for record in split.records()) if name != "train" else 0
        if shared:
            print_notice(
                f"{shared:,} of {len(split):,} examples of {name} have the same text as one of train, so that the "
                f"scores of {name} may be too high"
            )


def sample_rows(total: int, size: int | None) -> np.ndarray:
    """Returns the numbers of `size` of the `total` rows in their order, the same in every run; all rows for None."""
    if size is None or size >= total:
        return np.arange(total)
    return np.sort(np.random.default_rng(0).permutation(total)[:size])


def _compute_digest(labels: tuple[str, ...], splits: dict[str, Split]) -> str:
    digest = hashlib.sha256(json.dumps(labels).encode())
    for name, split in splits.items():
        digest.update(json.dumps([name, split.texts, split.pairs, split.labels.tolist()]).encode())
    return digest.hexdigest()
