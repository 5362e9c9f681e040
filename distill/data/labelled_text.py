"""Reads texts or pairs of texts with a label from the tables of a task."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from distill.console import print_notice
from distill.contracts import IGNORED
from distill.data.columns import get_labels, is_labelled, lacks_labels, read_text_column, stack_labels
from distill.data.held_out import text_keys
from distill.data.missing_rows import Kind, Missing, RowRules
from distill.data.sources import SINGLE, TableSource, check_columns
from distill.data.tables import LabelledData, Pool, Split, create_data, text_split
from distill.errors import UserError
from distill.readers.columns import Table
from distill.readers.label_lists import check_single
from distill.readers.label_sets import first_rows, read_lists, to_label_sets
from distill.readers.labels import (
    LabelColumn,
    Notify,
    find_classes,
    join_spellings,
    to_classes,
    to_numbers,
    to_words,
)
from distill.readers.lines import Lines, select_lines
from distill.readers.problems import find_small_classes

ADVICE = "name yours with task.text=[...] and task.label=..."


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
        is_labelled: whether the tables have labels. Without, the column of `label` is not read.
    """

    source: TableSource
    text: tuple[str, ...]
    label: tuple[str, ...]
    label_names: tuple[str, ...] | None = None
    regression: bool = False
    separator: str | None = None
    missing: Missing = "auto"
    is_labelled: bool = True

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
        if self._kind != "number" and not lacks_labels(tables["train"], self.label):
            _report_small_classes(tables["train"].source, data.splits["train"].labels, names, lines["train"])
        return data if unlabelled is None else replace(data, pool=Pool(_create_split(self, unlabelled)))

    def check_names(self, tables: Mapping[str, Table]) -> None:
        """Raises UserError for tables of which one lacks a column; their rows are not read."""
        self._add_label_columns(dict(tables))

    def _read_tables(self, cache_dir: Path) -> tuple[dict[str, Table], Table | None]:
        """Returns the rows of each split that have a text and a label, and those that only the teacher labels."""
        tables = self.source.read(cache_dir, lambda table: {SINGLE: table}, partial(is_labelled, names=self.label))
        tables = self._add_label_columns(tables)
        rules = RowRules(
            text=self.text, label=self.label, kind=self._kind, names=self.label_names, missing=self.missing
        )
        tables, unlabelled = rules.set_aside(tables)
        single = tables.pop(SINGLE, None)
        return ({} if single is None else self._hold_out_dev(single)) | tables, unlabelled

    def _add_label_columns(self, tables: dict[str, Table]) -> dict[str, Table]:
        """Returns the tables, where those without labels of classes have a column of missing values, if train is one.

        Raises:
            UserError: for columns of text that are missing, for tables that all lack the labels they should have, for
                others than train that lack them, and for classes without names.
        """
        of_class, text = self._kind == "class", [(name,) for name in self.text]
        train = next(tables[name] for name in ("train", SINGLE) if name in tables)
        is_anywhere = any(_has_column(table, self.label) for table in tables.values())
        if self.is_labelled and not (of_class and is_anywhere and not _has_column(train, self.label)):
            advice = f"{ADVICE}; task.label=null if no text has a label" if of_class else ADVICE
            for table in tables.values():
                check_columns(table, [*text, self.label], advice)
            return tables
        for table in tables.values():
            is_misnamed = self.is_labelled and not all(column in table.names for column in self.text)
            check_columns(table, [*text, self.label] if is_misnamed else text, ADVICE)
        if self.label_names is None:
            raise UserError(
                f"{train.source} has no row with a label: name the classes in task.labels=[...] and take a teacher "
                "that knows them, as +teacher=zero_shot does, or add labels"
            )
        return {
            name: table
            if self.is_labelled and _has_column(table, self.label)
            else _without_labels(table, self.label[0])
            for name, table in tables.items()
        }

    @property
    def _kind(self) -> Kind:
        return "number" if self.regression else "class" if self.separator is None else "classes"

    def _hold_out_dev(self, table: Table) -> dict[str, Table]:
        """Splits a table into train and dev, stratified by class; of several labels train has every one."""
        together = [text_keys(*(table.columns[name] for name in self.text))]
        if self._kind == "number" or lacks_labels(table, self.label):
            return self.source.hold_out_dev(table, together=together)
        if self._kind == "classes":
            [column] = _get_label_lists(self, {"train": table}, _ignore).values()
            return self.source.hold_out_dev(table, train=first_rows(column), together=together)
        columns = {"train": get_labels(table, self.label)}
        words = to_words(columns, self.label_names)
        join_spellings(columns, words, self.label_names or (), _ignore)
        [column], [classes] = columns.values(), words.values()
        self._check_classes(table, classes)
        # Rows are drawn class by class, and indices in the order of their numbers as text.
        by_class = classes if column.classes is None else list(map(str, column.values))
        return self.source.hold_out_dev(table, classes=by_class, together=together)

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
    if not lacks_labels(tables["train"], rows.label):
        return to_classes(columns, rows.label_names, print_notice)
    names = rows.label_names
    assert names is not None  # Rows without a label are kept for given classes alone.
    return names, {
        split: np.full(len(tables[split]), IGNORED)
        if lacks_labels(tables[split], rows.label)
        else find_classes(column, names, print_notice)
        for split, column in columns.items()
    }


def _has_column(table: Table, names: Sequence[str]) -> bool:
    return any(name in table.names for name in names)


def _without_labels(table: Table, name: str) -> Table:
    names = (*(other for other in table.names if other != name), name)
    return replace(table, names=names, columns={**table.columns, name: [None] * len(table)})


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


def _report_small_classes(source: str, labels: np.ndarray, names: Sequence[str], lines: Lines) -> None:
    """Prints the classes of few rows of train, whose labels are indices `[N]`, or 0 and 1 `[N, C]` of several."""
    classes = labels
    if labels.ndim == 2:
        rows, classes = np.nonzero(labels)
        lines = select_lines(lines, rows.tolist())
    problem = find_small_classes([names[number] for number in classes], lines)
    if problem is not None:
        print_notice(f"{source}: {problem}")


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
    return text_split(*_read_texts(rows, table), labels=numbers)


def _list_content(labels: Sequence[str], splits: Mapping[str, Split]) -> Iterator[object]:
    yield labels
    yield from ([name, split.texts, split.pairs, split.labels.tolist()] for name, split in splits.items())
