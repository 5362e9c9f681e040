"""Texts or pairs of texts with a label, from the columns of a table, and rows without a label or a text.

Rows without a label or a text are refused, left out, or become texts that only the teacher labels. All problems of all
splits are found before the first of them is reported, and job=check lists them.
"""

import math
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from distill.core.console import print_notice
from distill.core.contracts import IGNORED
from distill.core.errors import UserError
from distill.data import problems
from distill.data.problems import Problem, join_problems
from distill.data.sources import SINGLE, TableSource, check_columns, missing_columns, text_keys
from distill.data.splits import LabelledData, Pool, Split, create_data, text_split
from distill.rows.columns import Table
from distill.rows.formats import (
    MARKS,
    Lines,
    Notify,
    check_surrogates,
    find_marks,
    has_no_label,
    is_missing,
    is_number,
    is_without_label,
    select_lines,
)
from distill.rows.label_sets import check_single, first_rows, read_lists, stack_columns, to_label_sets
from distill.rows.labels import LabelColumn, LabelWords, find_classes, find_kinds, to_classes, to_numbers


def get_labels(table: Table, names: Sequence[str]) -> LabelColumn:
    """Returns the column of the labels: the one of these names that the table has.

    Raises:
        UserError: if it has several.
    """
    found = table.find(names)
    if len(found) > 1:
        raise UserError(
            f"{table.source} has the columns {' and '.join(found)}, expected one of them, because an example has one "
            f"label: name it, as in task.label={found[0]}"
        )
    return LabelColumn(table.source, table.columns[found[0]], table.classes.get(found[0]), lines=table.lines)


def stack_labels(table: Table, names: Sequence[str]) -> LabelColumn:
    """Returns the labels of a table with a column of 0 and 1 for each of these names.

    Raises:
        UserError: for a column that is missing, and for another value.
    """
    missing = [name for name in names if name not in table.names]
    if missing:
        raise missing_columns(table, ", ".join(missing), "task.label names a column of 0 and 1 for each label")
    return stack_columns(table.source, {name: table.columns[name] for name in names}, table.lines)


def is_labelled(table: Table, names: Sequence[str]) -> bool:
    """Returns whether a split has labels. GLUE on the Hub has -1 for the hidden labels of a test split."""
    return not all(is_without_label(value) for name in table.find(names) for value in table.columns[name])


def lacks_labels(table: Table, names: Sequence[str]) -> bool:
    """Returns whether no row of a table has a label; several columns of labels have one for every row."""
    found = table.find(names)
    return len(found) == 1 and all(is_missing(value) for value in table.columns[found[0]])


def leave_out_unlabelled(table: Table, names: Sequence[str]) -> Table:
    """Returns the table without the examples that have no label in a `datasets.ClassLabel`.

    Raises:
        UserError: if no example has a label.
    """
    column = get_labels(table, names)
    if column.classes is None:
        return table
    labelled = [row for row, value in enumerate(column.values) if not is_without_label(value)]
    missing = len(column.values) - len(labelled)
    if not labelled:
        raise UserError(f"{table.source} has no example with a label: all {missing:,} have none (-1)")
    if not missing:
        return table
    print_notice(f"{table.source}: {missing:,} of {len(column.values):,} examples have no label (-1) and are left out")
    return table.select(labelled, table.source)


def read_text_column(table: Table, name: str, *, may_be_empty: bool, optional: bool = False) -> list[str]:
    """Returns the texts of a column; with `optional`, a missing value is an empty text.

    Raises:
        UserError: for a value that is no text, or for an empty text unless it `may_be_empty`.
    """
    texts = []
    for row, value in enumerate(table.columns[name]):
        text = "" if optional and value is None else value
        if not isinstance(text, str) or not (text.strip() or may_be_empty):
            raise UserError(f"{table.place(row)}: column {name} is {reprlib.repr(text)}, expected text")
        if not text.isascii():
            check_surrogates(text, f"{table.place(row)}: column {name}")
        texts.append(text)
    return texts


TaskKind: TypeAlias = Literal["classification", "multi_label", "regression"]
Missing: TypeAlias = Literal["auto", "error", "drop", "unlabelled"]
TRAINED = ("train", SINGLE)


@dataclass(frozen=True, kw_only=True)
class RowRules:
    """The columns of rows with a label, and the treatment of those without a label or a text.

    For a profile of files, an empty column and a task of None are guessed.

    Args:
        text: the column of the text, or the two columns of a pair, of which one may be empty.
        label: the column of the class or number; of several names the one that the data has. Examples with several
            labels may have a column of 0 and 1 for each of them.
        task: whether the label is a class, a number, or any number of classes.
        names: of the classes in the order of the data's integers; None uses the labels of the training split.
        separator: between several labels in a text, as for `read_lists`.
        missing: error refuses rows without a label or a text, drop leaves them out, and unlabelled gives those of train
            that have a text to the teacher. auto does so too, but an empty list of several labels is none of them.
            Where no row of train has a class although `names` are given, both keep the rows of train, and of a dev
            without classes.
    """

    text: tuple[str, ...] = ()
    label: tuple[str, ...] = ()
    task: TaskKind | None = None
    names: tuple[str, ...] | None = None
    separator: str | None = None
    missing: Missing = "auto"

    def set_aside(self, tables: Mapping[str, Table]) -> tuple[dict[str, Table], Table | None]:
        """Returns the tables without such rows, and the rows that only the teacher labels, None without any.

        A test split that has no row left is left out.

        Raises:
            UserError: for all rows of all tables that cannot be used at once, and for a table without a row left.
        """
        lacking: list[str] = []
        if self.keeps_rows(tables):
            lacking = [name for name in (*TRAINED, "dev") if name in tables and lacks_labels(tables[name], self.label)]
        checked = self.check(tables, without_labels=lacking)
        if any(problem.is_error for of_table in checked.values() for problem in of_table.problems):
            every = [join_problems(of.table.source, of.problems) for of in checked.values() if of.problems]
            raise UserError("; ".join(every))
        unlabelled = None
        for name, of_table in checked.items():
            if name in (*TRAINED, "dev"):
                of_table.check_left()
            if of_table.problems:
                print_notice(join_problems(of_table.table.source, of_table.problems))
            if name in TRAINED and of_table.unlabelled and self.missing in ("auto", "unlabelled"):
                unlabelled = of_table.table.select(of_table.unlabelled)
        kept = {name: of_table.keep() for name, of_table in checked.items()}
        return {name: table for name, table in kept.items() if len(table)}, unlabelled

    def keeps_rows(self, tables: Mapping[str, Table]) -> bool:
        """Returns whether no row of train has a class, so that its rows are no exceptions."""
        trained = [tables[name] for name in TRAINED if name in tables]
        may_keep = self.task == "classification" and self.names is not None and self.missing in ("auto", "unlabelled")
        return may_keep and any(lacks_labels(table, self.label) for table in trained)

    def check(self, tables: Mapping[str, Table], *, without_labels: Collection[str] = ()) -> dict[str, "CheckedRows"]:
        """Returns the tables with the problems of their rows.

        Args:
            without_labels: tables whose labels are not looked at.
        """
        columns = {name: None if name in without_labels else self._find_labels(table) for name, table in tables.items()}
        marks = self._find_marks(columns)
        return {name: self._check(table, columns[name], marks, name) for name, table in tables.items()}

    def read_lists(self, tables: Mapping[str, Table], notify: Notify) -> dict[str, LabelColumn]:
        """Returns the labels of each example by split as lists, of one column or of one for each label.

        Raises:
            UserError: for a column that is missing, and for values that can be read in two ways.
        """
        if any(len(table.find(self.label)) > 1 for table in tables.values()):
            return {split: stack_labels(table, self.label) for split, table in tables.items()}
        columns = {split: get_labels(table, self.label) for split, table in tables.items()}
        further = self.label if len(self.label) > 1 else ()
        return read_lists(columns, self.names, separator=self.separator or "|", notify=notify, further=further)

    def _find_labels(self, table: Table) -> LabelColumn | None:
        """Returns the labels of a table, None if there is a column for each of several."""
        several = self.task == "multi_label" and len(table.find(self.label)) > 1
        return None if several else get_labels(table, self.label)

    def _find_marks(self, columns: Mapping[str, LabelColumn | None]) -> frozenset[str]:
        """Returns the labels of plain columns that mean that a row has none."""
        if self.task == "regression":
            return MARKS
        if self.task == "multi_label":
            return frozenset()
        present = [column for column in columns.values() if column is not None]
        names = self.names or next((column.classes for column in present if column.classes), ())
        values = chain.from_iterable(column.values for column in present if column.classes is None)
        return find_marks(values, names, may_guess=self.missing == "auto")

    def _check(self, table: Table, column: LabelColumn | None, marks: frozenset[str], name: str) -> "CheckedRows":
        """Finds the problems of a table."""
        texts, is_error = [table.columns[of_text] for of_text in self.text], self.missing == "error"
        empty = {row for row, of_row in enumerate(zip(*texts, strict=True)) if all(map(is_missing, of_row))}
        found = self._check_texts(table, empty, is_trained=name in TRAINED)
        found += problems.find_empty(texts, table.lines, advice=None if is_error else "they are left out")
        if column is None:
            return CheckedRows(table, found, empty)
        if column.classes is not None:
            marks = frozenset({"-1"})
        without = [row for row, value in enumerate(column.values) if has_no_label(value, marks)]
        advice = None if is_error else self._describe_fate(name, is_most=2 * len(without) > len(table))
        found += problems.find_unlabelled(column.values, table.lines, marks=marks, advice=advice)
        found += self._check_labels(column, set(without))
        unlabelled = [] if self._keeps_unlabelled else [row for row in without if row not in empty]
        return CheckedRows(table, found, empty, unlabelled)

    @property
    def _keeps_unlabelled(self) -> bool:
        return self.task == "multi_label" and self.missing == "auto"

    def _describe_fate(self, name: str, *, is_most: bool) -> str:
        """Returns the use of the rows without a label in words."""
        most = "this is more than half, so check task.label; " if is_most and not self._keeps_unlabelled else ""
        if self._keeps_unlabelled:
            return "they count as examples with none of the labels; task.missing=drop leaves them out"
        if name in TRAINED and self.missing != "drop":
            return f"{most}only the teacher labels them, as task.unlabelled; task.missing=drop leaves them out"
        return f"{most}they are left out"

    def _check_texts(self, table: Table, empty: set[int], *, is_trained: bool) -> list[Problem]:
        """Returns the problems of columns whose values are no texts, or look like ids."""
        others = [name for name, values in table.samples.items() if problems.looks_like_text(values)]
        found: list[Problem] = []
        for name in self.text:
            values = table.columns[name]
            found += problems.find_ids(name, values, others) if is_trained else []
            found += problems.find_no_texts(name, values, table.lines, without=empty)
        return found

    def _check_labels(self, column: LabelColumn, without: set[int]) -> list[Problem]:
        """Returns the problems of labels that are of the wrong kind."""
        rows = [row for row in range(len(column.values)) if row not in without]
        if self.task == "regression":
            wrong = [row for row in rows if not is_number(column.values[row])]
            return problems.find_no_numbers(column.values, wrong, column.lines)
        if self.task == "classification":
            return problems.find_mixed(column.values, find_kinds(column.values, rows), column.lines)
        return []


@dataclass(frozen=True)
class CheckedRows:
    """A table with its problems, and its rows without a text and without a label."""

    table: Table
    problems: Sequence[Problem]
    empty: set[int] = field(default_factory=set)
    unlabelled: Sequence[int] = ()

    def keep(self) -> Table:
        """Returns the rows with a text and a label."""
        without = {*self.empty, *self.unlabelled}
        return self.table.select(row for row in range(len(self.table)) if row not in without) if without else self.table

    def check_left(self) -> None:
        """Raises UserError if no row has a text and a label."""
        if len({*self.empty, *self.unlabelled}) == len(self.table):
            raise UserError(
                f"{self.table.source} has no row with a text and a label: {len(self.empty):,} of {len(self.table):,} "
                f"have no text, and {len(self.unlabelled):,} others no label; name other columns with task.text=[...] "
                "and task.label=..., add labels, or name the classes in task.labels=[...] for a teacher that knows them"
            )


ADVICE = "name yours with task.text=[...] and task.label=..."


@dataclass(frozen=True, kw_only=True)
class LabelledText(RowRules):
    """A source of rows with one or two columns of text and a label.

    Args:
        source: the tables, of which a single one is split by class.
        is_labelled: whether the tables have labels. Without, the column of `label` is not read.
    """

    source: TableSource
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
        if self.task != "regression" and not lacks_labels(tables["train"], self.label):
            _report_small_classes(tables["train"].source, data.splits["train"].labels, names, lines["train"])
        return data if unlabelled is None else replace(data, pool=Pool(_create_split(self, unlabelled)))

    def check_names(self, tables: Mapping[str, Table]) -> None:
        """Raises UserError for tables of which one lacks a column; their rows are not read."""
        self._add_label_columns(tables)

    def _read_tables(self, cache_dir: Path) -> tuple[dict[str, Table], Table | None]:
        """Returns the rows of each split that have a text and a label, and those that only the teacher labels."""
        tables = self.source.read(cache_dir, lambda table: {SINGLE: table}, partial(is_labelled, names=self.label))
        tables = self._add_label_columns(tables)
        tables, unlabelled = self.set_aside(tables)
        single = tables.pop(SINGLE, None)
        return ({} if single is None else self._hold_out_dev(single)) | tables, unlabelled

    def _add_label_columns(self, given: Mapping[str, Table]) -> dict[str, Table]:
        """Returns the tables, where those without labels of classes have a column of missing values, if train is one.

        Raises:
            UserError: for columns of text that are missing, for tables that all lack the labels they should have, for
                others than train that lack them, and for classes without names.
        """
        tables = dict(given)
        of_class, text = self.task == "classification", [(name,) for name in self.text]
        train = next(tables[name] for name in ("train", SINGLE) if name in tables)
        is_anywhere = any(table.find(self.label) for table in tables.values())
        if self.is_labelled and not (of_class and is_anywhere and not train.find(self.label)):
            advice = f"{ADVICE}; task.label=null if no text has a label" if of_class else ADVICE
            for table in tables.values():
                check_columns(table, [*text, self.label], advice)
            return tables
        for table in tables.values():
            is_misnamed = self.is_labelled and not all(column in table.names for column in self.text)
            check_columns(table, [*text, self.label] if is_misnamed else text, ADVICE)
        if self.names is None:
            raise UserError(
                f"{train.source} has no row with a label: name the classes in task.labels=[...] and take a teacher "
                "that knows them, as +teacher=zero_shot does, or add labels"
            )
        for name, table in tables.items():
            if not (self.is_labelled and table.find(self.label)):
                column = self.label[0]
                names = (*(other for other in table.names if other != column), column)
                tables[name] = replace(table, names=names, columns={**table.columns, column: [None] * len(table)})
        return tables

    def _hold_out_dev(self, table: Table) -> dict[str, Table]:
        """Splits a table into train and dev, stratified by class; of several labels train has every one."""
        together = [text_keys(*(table.columns[name] for name in self.text))]
        if self.task == "regression" or lacks_labels(table, self.label):
            return self.source.hold_out_dev(table, together=together)
        if self.task == "multi_label":
            [column] = self.read_lists({"train": table}, ignore_notice).values()
            return self.source.hold_out_dev(table, train=first_rows(column), together=together)
        column = get_labels(table, self.label)
        classes = LabelWords.read({"train": column}, self.names, ignore_notice).words["train"]
        self._check_classes(table, classes)
        # Rows are drawn class by class, and indices in the order of their numbers as text.
        by_class = classes if column.classes is None else list(map(str, column.values))
        return self.source.hold_out_dev(table, classes=by_class, together=together)

    def _check_classes(self, table: Table, classes: Sequence[str]) -> None:
        """Raises UserError if train or dev would lack a class of these rows."""
        fraction, count = self.source.dev_fraction, len(set(classes))
        number = math.ceil(fraction * len(table))
        advice = "give a directory with train and dev instead"
        if small := problems.find_small_classes(classes, table.lines, fewest=2):
            reason = f"{small[0].summary}; add rows, join classes, remove these rows, or {advice}"
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
    if rows.task == "multi_label":
        return to_label_sets(rows.read_lists(tables, print_notice), rows.names, print_notice)
    columns = {split: get_labels(table, rows.label) for split, table in tables.items()}
    if rows.task == "regression":
        [name, *_] = tables["train"].find(rows.label)
        return (name,), {split: to_numbers(column) for split, column in columns.items()}
    check_single(columns, rows.names)
    if not lacks_labels(tables["train"], rows.label):
        return to_classes(columns, rows.names, print_notice)
    names = rows.names
    assert names is not None  # Rows without a label are kept for given classes alone.
    return names, {
        split: np.full(len(tables[split]), IGNORED)
        if lacks_labels(tables[split], rows.label)
        else find_classes(column, names, print_notice)
        for split, column in columns.items()
    }


def _check_same_column(rows: LabelledText, tables: Mapping[str, Table]) -> None:
    """Raises UserError if the labels of the splits are in columns of different names."""
    found = {split: table.find(rows.label) for split, table in tables.items()}
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
    for problem in problems.find_small_classes([names[number] for number in classes], lines):
        print_notice(f"{source}: {problem}")


def ignore_notice(notice: str) -> None:
    """Does not show a notice of rows that are read once more."""


def _create_split(rows: LabelledText, table: Table, numbers: np.ndarray | None = None) -> Split:
    """Returns the examples of a table. One text of a pair may be empty."""
    columns = [read_text_column(table, name, may_be_empty=len(rows.text) == 2) for name in rows.text]
    half_empty = sum(not all(map(str.strip, texts)) for texts in zip(*columns, strict=True))
    if half_empty:
        print_notice(f"{table.source}: pairs with one empty text, which are used as they are: {half_empty:,}")
    return text_split(*columns, labels=numbers)


def _list_content(labels: Sequence[str], splits: Mapping[str, Split]) -> Iterator[object]:
    yield labels
    yield from ([name, split.texts, split.pairs, split.labels.tolist()] for name, split in splits.items())
