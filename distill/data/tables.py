"""Reads labelled texts from a directory, a file, the Hub or memory."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np

from distill.console import print_notice
from distill.data.auto_text import SHARE
from distill.data.columns import get_labels, is_labelled, read_text_column, stack_labels
from distill.data.missing_rows import Kind, Missing, RowRules
from distill.data.readers import Table
from distill.data.row_notices import report_shared_texts, report_small_classes
from distill.data.sources import SINGLE, TableSource, check_columns
from distill.errors import UserError
from distill.readers.label_lists import check_single
from distill.readers.label_sets import first_rows, read_lists, to_label_sets
from distill.readers.labels import LabelColumn, Notify, join_spellings, to_classes, to_numbers, to_words
from distill.readers.lines import Lines
from distill.readers.problems import find_small_classes

# Names of sources of rows that only the teacher labels.
OWN_ROWS, GIVEN_TEXTS, CHANGED_COPIES, BANK = "rows without a label", "texts without a label", "changed copies", "bank"
ADVICE = "name yours with task.text=[...] and task.label=..."
Column: TypeAlias = list[Any] | np.ndarray


@dataclass(frozen=True)
class Split:
    """Raw examples as a table, whose columns are lists or arrays with a value for each example.

    Args:
        columns: the columns by their names.
        text: names of the columns of text, whose values are a text or a list of texts. By them examples are told from
            others.
        create_record: returns an example in the form that a bundle reads, from its values by column.
        whole: name of the column with all texts of an example as one; None if the first column of text is that.
    """

    columns: Mapping[str, Column]
    text: tuple[str, ...]
    create_record: Callable[[Mapping[str, Any]], Any]
    whole: str | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, column: str) -> Any:
        return self.columns[column]

    @property
    def labels(self) -> np.ndarray:
        """Class indices or numbers `[N]`, or 0 and 1 `[N, C]` where an example has any number of labels."""
        return np.asarray(self.columns["labels"])

    @property
    def texts(self) -> list[str]:
        """The text of each example, without the second texts of pairs."""
        texts: list[str] = self[self.whole or self.text[0]]
        return texts

    @property
    def pairs(self) -> list[str] | None:
        """The second texts of pairs."""
        return self[self.text[1]] if len(self.text) == 2 else None

    def records(self) -> list[Any]:
        """Returns the examples in the form that a bundle reads."""
        rows = zip(*self.columns.values(), strict=True)
        return [self.create_record(dict(zip(self.columns, row, strict=True))) for row in rows]

    def text_columns(self) -> dict[str, Column]:
        """Returns the texts as columns of predictions.parquet."""
        return {name: self.columns[name] for name in self.text}

    def compared_texts(self) -> Iterator[tuple[str, ...]]:
        """Yields the texts of each example, by which it is told from others."""
        for row in zip(*(self.columns[name] for name in self.text), strict=True):
            yield tuple(text for value in row for text in _list_texts(value))

    def all_texts(self) -> Iterator[str]:
        """Yields every text of the examples, by itself and as a part of the whole one."""
        return self.iterate_texts(*self.text, *([] if self.whole is None else [self.whole]))

    def iterate_texts(self, *columns: str) -> Iterator[str]:
        """Yields every text of these columns, one column after another."""
        return (text for name in columns for value in self.columns[name] for text in _list_texts(value))

    def select(self, rows: np.ndarray) -> "Split":
        """Returns these examples."""
        chosen = {
            name: column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]
            for name, column in self.columns.items()
        }
        return replace(self, columns=chosen)

    def with_columns(self, **columns: Column) -> "Split":
        """Returns the examples with further columns, or with others of the same names."""
        return replace(self, columns={**self.columns, **columns})

    def __add__(self, other: "Split") -> "Split":
        columns = {
            name: np.concatenate([column, other[name]]) if isinstance(column, np.ndarray) else [*column, *other[name]]
            for name, column in self.columns.items()
        }
        return replace(self, columns=columns)


def _list_texts(value: str | Sequence[str]) -> Sequence[str]:
    return (value,) if isinstance(value, str) else value


def text_split(texts: list[str], pairs: list[str] | None = None, labels: np.ndarray | None = None) -> Split:
    """Returns texts, or pairs of texts, as a split; without labels they are all 0, which means nothing."""
    columns = {"text": texts} if pairs is None else {"text": texts, "second_text": pairs}
    return Split(
        {**columns, "labels": np.zeros(len(texts)) if labels is None else labels},
        text=tuple(columns),
        create_record=_create_text_record if pairs is None else _create_pair_record,
    )


def _create_text_record(row: Mapping[str, Any]) -> str:
    text: str = row["text"]
    return text


def _create_pair_record(row: Mapping[str, Any]) -> list[str]:
    return [row["text"], row["second_text"]]


@dataclass(frozen=True)
class Pool:
    """Rows without labels, which the teacher labels and which are mixed with the training rows.

    Args:
        rows: the rows, whose labels mean nothing; None without any.
        share: of the examples of every optimizer step.
        removed: number of texts that were left out, by reason.
        augmentation: of run.json, if some of the texts are changed copies of the training texts.
        sources: the `sources` of run.json.
    """

    rows: Any = None
    share: float = SHARE
    removed: Mapping[str, int] = field(default_factory=dict)
    augmentation: Mapping[str, Any] | None = None
    sources: tuple[Mapping[str, Any], ...] = ()

    def __len__(self) -> int:
        return 0 if self.rows is None else len(self.rows)

    def fit_share(self, labelled: int) -> "Pool":
        """Returns the pool with its share of a step: without other rows, the task's own are shown as the labelled ones.

        Without this, the few rows of a table that lack a label would be half of every step.
        """
        if not len(self) or {source["name"] for source in self.sources} != {OWN_ROWS}:
            return self
        return replace(self, share=min(self.share, len(self) / (len(self) + labelled)))

    def shuffled(self) -> Any:
        """Returns the rows in an order that is the same in every run."""
        return self.rows.select(np.random.default_rng(0).permutation(len(self)))

    def add(self, rows: Any, name: str, origin: str) -> "Pool":
        """Returns the pool with further rows, whose source has a name and an origin in words."""
        source = {"name": name, "examples": len(rows), "from": origin}
        return replace(self, rows=self.rows + rows if len(self) else rows, sources=(*self.sources, source))

    def record(self) -> dict[str, Any]:
        """Returns the `unlabelled` of the task in run.json; the sureness of the teacher is not known yet."""
        augmentation = {} if self.augmentation is None else {"augmentation": dict(self.augmentation)}
        return {
            "examples": len(self), "share": self.share, "removed": dict(self.removed), **augmentation,
            "sources": [*map(dict, self.sources)], "sureness": None,
        }  # fmt: skip


@dataclass(frozen=True)
class LabelledData:
    """All splits of a task, the names of its classes in order, and the SHA-256 of the content.

    For a regression, the only name is that of the column. The SHA-256 does not cover the pool, on which no teacher is
    fine-tuned.

    Args:
        classes: names of the classes of train alone, where the other splits have scores.
        needs_all_texts: whether an example has nothing to learn from without each of its texts, as a question without
            its context.
    """

    labels: tuple[str, ...]
    splits: Mapping[str, Split]
    sha256: str
    pool: Pool = field(default_factory=Pool)
    classes: tuple[str, ...] = ()
    needs_all_texts: bool = False

    def with_option(self, option: str) -> Self:
        """Returns the data with a SHA-256 that depends on an option too."""
        return replace(self, sha256=hashlib.sha256(f"{self.sha256} {option}".encode()).hexdigest())

    def sizes(self) -> dict[str, int]:
        """Returns the number of examples of each split."""
        return {name: len(split) for name, split in self.splits.items()}

    def texts(self) -> list[str]:
        """Returns the training texts, with the second texts of pairs, each once, only if an example needs both."""
        train = self.splits["train"]
        further = train.iterate_texts(*train.text[1:]) if self.needs_all_texts else ()
        return [*train.iterate_texts(train.whole or train.text[0]), *dict.fromkeys(further)]

    def is_empty(self, texts: Sequence[str]) -> bool:
        """Returns whether an example of these texts has nothing to learn from."""
        return not (all(texts) if self.needs_all_texts else any(texts))

    def labelled_texts(self) -> Iterator[str]:
        """Yields the texts of the labelled rows that are trained on, also the second ones of pairs."""
        yield from self.splits["train"].all_texts()

    def unlabelled_texts(self) -> Iterator[str]:
        """Yields the texts that only a teacher labels."""
        if self.pool.rows is not None:
            yield from self.pool.rows.all_texts()

    def training(self) -> Split:
        """Returns the labelled rows that are trained on."""
        return self.splits["train"]

    def scored(self) -> dict[str, Split]:
        """Returns the splits that are scored and not trained on, dev first."""
        return {"dev": self.splits["dev"]} | {k: v for k, v in self.splits.items() if k not in ("train", "dev")}


def create_data(
    source: TableSource,
    labels: tuple[str, ...],
    splits: Mapping[str, Split],
    list_content: Callable[[Mapping[str, Split]], Iterable[object]],
    *,
    lines: Mapping[str, Lines] | None = None,
) -> LabelledData:
    """Returns the data of all splits, those of train and dev limited, and prints how many rows they have in common.

    Args:
        labels: names of the classes.
        list_content: returns the content of the splits, of which the digest is computed.
        lines: of the rows of the limited splits, where a row has one label; None for labels that are not compared.
    """
    splits = source.sample(splits)
    report_shared_texts(splits, None if lines is None else {name: of.labels for name, of in splits.items()}, lines)
    return LabelledData(labels, splits, compute_digest(list_content(splits)))


def compute_digest(content: Iterable[object]) -> str:
    """Returns the SHA-256 of the JSON of all of these; bytes are taken as they are."""
    digest = hashlib.sha256()
    for part in content:
        digest.update(part if isinstance(part, bytes) else json.dumps(part).encode())
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class LabelledText:
    """A source of rows with one or two columns of text and a label.

    Args:
        source: the tables, of which a single one is split by class.
        text: the column of the text, or the two columns of a pair.
        label: the column of the class or number; of several names the one that the data has. Examples with several
            labels may have a column of 0 and 1 for each of them.
        label_names: names of the classes in the order of the data's integers; None uses the labels of the training
            split.
        regression: whether the label is a number.
        separator: between the labels of an example that has any number of them, as for `read_lists`; None where an
            example has one label.
        missing: the treatment of rows without a label or a text, as in `RowRules`.
    """

    source: TableSource
    text: tuple[str, ...]
    label: tuple[str, ...]
    label_names: tuple[str, ...] | None = None
    regression: bool = False
    separator: str | None = None
    missing: Missing = "auto"

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads `train`, `dev` and the other splits with labels.

        The sample of `train_examples` does not depend on the run, so that the seeds of a sweep share data and teacher.

        Raises:
            UserError: if a directory, file, column, text or label is missing or invalid.
            UnreachableError: if the data is not in the cache and cannot be downloaded.
        """
        tables, unlabelled = self._read_tables(cache_dir)
        names, numbers = _read_labels(self, tables)
        splits = {name: _create_split(self, table, numbers[name]) for name, table in tables.items()}
        lines = {name: table.lines for name, table in self.source.sample(tables).items()}
        data = create_data(self.source, names, splits, lambda splits: _list_content(names, splits), lines=lines)
        if self._kind != "number":
            report_small_classes(tables["train"].source, data.splits["train"].labels, names, lines["train"])
        return data if unlabelled is None else replace(data, pool=Pool(_create_split(self, unlabelled)))

    def _read_tables(self, cache_dir: Path) -> tuple[dict[str, Table], Table | None]:
        """Returns the rows of each split that have a text and a label, and those that only the teacher labels."""
        tables = self.source.read(cache_dir, lambda table: {SINGLE: table}, partial(is_labelled, names=self.label))
        for table in tables.values():
            check_columns(table, [*((name,) for name in self.text), self.label], ADVICE)
        rules = RowRules(
            text=self.text, label=self.label, kind=self._kind, names=self.label_names, missing=self.missing
        )
        tables, unlabelled = rules.set_aside(tables)
        return (self._hold_out_dev(tables[SINGLE]) if SINGLE in tables else tables), unlabelled

    @property
    def _kind(self) -> Kind:
        return "number" if self.regression else "class" if self.separator is None else "classes"

    def _hold_out_dev(self, table: Table) -> dict[str, Table]:
        """Splits a table into train and dev, stratified by class; of several labels train has every one."""
        if self._kind == "number":
            return self.source.hold_out_dev(table)
        if self._kind == "classes":
            [column] = _get_label_lists(self, {"train": table}, _ignore).values()
            return self.source.hold_out_dev(table, train=first_rows(column))
        columns = {"train": get_labels(table, self.label)}
        words = to_words(columns, self.label_names)
        join_spellings(columns, words, self.label_names or (), _ignore)
        [column], [classes] = columns.values(), words.values()
        self._check_classes(table, classes)
        # Rows are drawn class by class, and indices in the order of their numbers as text.
        return self.source.hold_out_dev(
            table, classes=classes if column.classes is None else list(map(str, column.values))
        )

    def _check_classes(self, table: Table, classes: Sequence[str]) -> None:
        """Raises UserError if train or dev would lack a class of these rows."""
        fraction, count = self.source.dev_fraction, len(set(classes))
        number = math.ceil(fraction * len(table))
        advice = "give a directory with train and dev instead"
        if problem := find_small_classes(classes, table.lines, fewest=2):
            reason = f"{problem.summary}; add rows, join classes, remove these rows, or {advice}"
        elif min(number, len(table) - number) < count:
            needed = math.ceil(100 * count / len(table)) / 100
            reason = f"{number:,} of {len(table):,} rows would be dev, and there are {count:,} classes; "
            reason += f"set task.dev_fraction={needed}, or {advice}" if needed <= 0.5 else f"add rows, or {advice}"
        else:
            return
        raise UserError(
            f"{table.source} cannot be split with task.dev_fraction={fraction} so that train and dev hold every class: "
            f"{reason}"
        )


def _read_labels(rows: LabelledText, tables: Mapping[str, Table]) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Returns the names of the classes in order, or the column of the numbers, and the labels of each split."""
    _check_same_column(rows, tables)
    if rows.separator is not None:
        return to_label_sets(_get_label_lists(rows, tables, print_notice), rows.label_names, print_notice)
    columns = {split: get_labels(table, rows.label) for split, table in tables.items()}
    if rows.regression:
        name = next(column for column in rows.label if column in tables["train"].names)
        return (name,), {split: to_numbers(column) for split, column in columns.items()}
    check_single(columns, rows.label_names)
    return to_classes(columns, rows.label_names, print_notice)


def _get_label_lists(rows: LabelledText, tables: Mapping[str, Table], notify: Notify) -> dict[str, LabelColumn]:
    """Returns the labels of each example by split as lists, of one column or of one for each label."""
    assert rows.separator is not None
    names = rows.label
    if any(len([name for name in names if name in table.names]) > 1 for table in tables.values()):
        return {split: stack_labels(table, names) for split, table in tables.items()}
    columns = {split: get_labels(table, names) for split, table in tables.items()}
    further = names if len(names) > 1 else ()
    return read_lists(columns, rows.label_names, separator=rows.separator, notify=notify, further=further)


def _check_same_column(rows: LabelledText, tables: Mapping[str, Table]) -> None:
    """Raises UserError if the labels of the splits are in columns of different names."""
    found = {split: [name for name in rows.label if name in table.names] for split, table in tables.items()}
    [expected, *further] = found["train"]
    for split, names in found.items():
        if not further and len(names) == 1 and names != [expected]:
            raise UserError(
                f"{tables['train'].source} has the column {expected} and {tables[split].source} {names[0]}, expected "
                "the labels in columns of one name: rename one, or name it with task.label=..."
            )


def _ignore(notice: str) -> None:
    """Does not show a notice of rows that are read again."""


def _read_texts(rows: LabelledText, table: Table) -> list[list[str]]:
    """Returns the texts of each column. One text of a pair may be empty."""
    columns = [read_text_column(table, name, may_be_empty=len(rows.text) == 2) for name in rows.text]
    if len(columns) == 2:
        _check_pairs(columns, table.source)
    return columns


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


def _create_split(rows: LabelledText, table: Table, numbers: np.ndarray | None = None) -> Split:
    columns = _read_texts(rows, table)
    return text_split(columns[0], columns[1] if len(columns) == 2 else None, numbers)


def _list_content(labels: Sequence[str], splits: Mapping[str, Split]) -> Iterator[object]:
    yield labels
    yield from ([name, split.texts, split.pairs, split.labels.tolist()] for name, split in splits.items())
