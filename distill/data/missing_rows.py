"""Rows without a label or a text: they are refused, left out, or become texts that only the teacher labels.

All problems of all splits are found before the first of them is reported.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, TypeAlias

from distill.console import print_notice
from distill.data.columns import get_labels, lacks_labels
from distill.data.sources import SINGLE
from distill.errors import UserError
from distill.readers import problems
from distill.readers.columns import Table
from distill.readers.labels import LabelColumn, find_kinds, is_number
from distill.readers.missing import MARKS, find_marks, has_no_label, is_missing
from distill.readers.problems import Problem, join_problems

Kind: TypeAlias = Literal["class", "number", "classes"]
Missing: TypeAlias = Literal["auto", "error", "drop", "unlabelled"]
_TRAINED = ("train", SINGLE)


@dataclass(frozen=True, kw_only=True)
class RowRules:
    """The columns of rows, and the treatment of those without a label or a text.

    Args:
        text: the column of the text, or the two of a pair, of which one may be empty.
        label: the possible columns of the label.
        kind: of the label: a class, a number, or any number of classes.
        names: of the classes, where they are given.
        missing: error refuses such rows, drop leaves them out, and unlabelled gives those of train that have a text to
            the teacher. auto does so too, but an empty list of several labels is none of them. Where no row of train
            has a class although `names` are given, both keep the rows of train, and of a dev without classes.
    """

    text: tuple[str, ...]
    label: tuple[str, ...]
    kind: Kind = "class"
    names: tuple[str, ...] | None = None
    missing: Missing = "auto"

    def set_aside(self, tables: Mapping[str, Table]) -> tuple[dict[str, Table], Table | None]:
        """Returns the tables without such rows, and the rows that only the teacher labels, None without any.

        A test split that has no row left is left out.

        Raises:
            UserError: for all rows of all tables that cannot be used at once, and for a table without a row left.
        """
        columns = {name: self._find_labels(table) for name, table in tables.items()}
        marks = self._find_marks(columns)
        if self.keeps_rows(tables):
            lacking = [name for name in (*_TRAINED, "dev") if name in tables and lacks_labels(tables[name], self.label)]
            columns |= dict.fromkeys(lacking)
        checked = {name: self._check(table, columns[name], marks, name) for name, table in tables.items()}
        if any(problem.is_error for of_table in checked.values() for problem in of_table.problems):
            every = [join_problems(of.table.source, of.problems) for of in checked.values() if of.problems]
            raise UserError("; ".join(every))
        kept = {name: of_table.keep(name) for name, of_table in checked.items()}
        unlabelled = None
        for name, of_table in checked.items():
            if of_table.problems:
                print_notice(join_problems(of_table.table.source, of_table.problems))
            if name in _TRAINED and of_table.unlabelled and self.missing in ("auto", "unlabelled"):
                unlabelled = of_table.table.select(of_table.unlabelled)
        return {name: table for name, table in kept.items() if len(table)}, unlabelled

    def keeps_rows(self, tables: Mapping[str, Table]) -> bool:
        """Returns whether no row of train has a class, so that its rows are no exceptions."""
        trained = [tables[name] for name in _TRAINED if name in tables]
        may_keep = self.kind == "class" and self.names is not None and self.missing in ("auto", "unlabelled")
        return may_keep and any(lacks_labels(table, self.label) for table in trained)

    def _find_labels(self, table: Table) -> LabelColumn | None:
        """Returns the labels of a table, None if there is a column for each of several."""
        several = self.kind == "classes" and len([name for name in self.label if name in table.names]) > 1
        return None if several else get_labels(table, self.label)

    def _find_marks(self, columns: Mapping[str, LabelColumn | None]) -> frozenset[str]:
        """Returns the labels of plain columns that mean that a row has none."""
        if self.kind == "number":
            return MARKS
        if self.kind == "classes":
            return frozenset()
        present = [column for column in columns.values() if column is not None]
        names = self.names or next((column.classes for column in present if column.classes), ())
        values = chain.from_iterable(column.values for column in present if column.classes is None)
        return find_marks(values, names, may_guess=self.missing == "auto")

    def _check(self, table: Table, column: LabelColumn | None, marks: frozenset[str], name: str) -> "_Checked":
        """Finds the problems of a table."""
        texts, is_error = [table.columns[of_text] for of_text in self.text], self.missing == "error"
        empty = {row for row, of_row in enumerate(zip(*texts, strict=True)) if all(map(is_missing, of_row))}
        found = [*self._check_texts(table, empty, is_trained=name in _TRAINED)]
        found.append(
            problems.find_empty(texts, table.lines, advice=None if is_error else "they are left out", is_error=is_error)
        )
        if column is None:
            return _Checked(table, list(filter(None, found)), empty)
        if column.classes is not None:
            marks = frozenset({"-1"})
        without = [row for row, value in enumerate(column.values) if has_no_label(value, marks)]
        advice = None if is_error else self._describe_fate(name, is_most=2 * len(without) > len(table))
        found.append(
            problems.find_unlabelled(column.values, table.lines, marks=marks, advice=advice, is_error=is_error)
        )
        found += self._check_labels(column, set(without))
        unlabelled = [] if self._keeps_unlabelled else [row for row in without if row not in empty]
        return _Checked(table, list(filter(None, found)), empty, unlabelled)

    @property
    def _keeps_unlabelled(self) -> bool:
        return self.kind == "classes" and self.missing == "auto"

    def _describe_fate(self, name: str, *, is_most: bool) -> str:
        """Returns the use of the rows without a label in words."""
        most = "this is more than half, so check task.label; " if is_most and not self._keeps_unlabelled else ""
        if self._keeps_unlabelled:
            return "they count as examples with none of the labels; task.missing=drop leaves them out"
        if name in _TRAINED and self.missing != "drop":
            return f"{most}only the teacher labels them, as task.unlabelled; task.missing=drop leaves them out"
        return f"{most}they are left out"

    def _check_texts(self, table: Table, empty: set[int], *, is_trained: bool) -> Iterable[Problem | None]:
        """Yields the problems of columns whose values are no texts, or look like ids."""
        others = [name for name, values in table.samples.items() if problems.looks_like_text(values)]
        for name in self.text:
            values = table.columns[name]
            if is_trained:
                yield problems.find_ids(name, values, others)
            yield problems.find_no_texts(name, values, table.lines, without=empty)

    def _check_labels(self, column: LabelColumn, without: set[int]) -> Iterable[Problem | None]:
        """Yields the problems of labels that are of the wrong kind."""
        rows = [row for row in range(len(column.values)) if row not in without]
        if self.kind == "number":
            wrong = [row for row in rows if not is_number(column.values[row])]
            yield problems.find_no_numbers(column.values, wrong, column.lines)
        elif self.kind == "class":
            yield problems.find_mixed(column.values, find_kinds(column.values, rows), column.lines)


@dataclass(frozen=True)
class _Checked:
    """A table with its problems, and its rows without a text and without a label."""

    table: Table
    problems: Sequence[Problem]
    empty: set[int] = field(default_factory=set)
    unlabelled: Sequence[int] = ()

    def keep(self, name: str) -> Table:
        """Returns the rows with a text and a label.

        Raises:
            UserError: if there is none, unless this is a test split.
        """
        if not self.empty and not self.unlabelled:
            return self.table
        without = {*self.empty, *self.unlabelled}
        rows = [row for row in range(len(self.table)) if row not in without]
        if not rows and name in (*_TRAINED, "dev"):
            raise UserError(
                f"{self.table.source} has no row with a text and a label: {len(self.empty):,} of {len(self.table):,} "
                f"have no text, and {len(self.unlabelled):,} others no label; name other columns with task.text=[...] "
                "and task.label=..., add labels, or name the classes in task.labels=[...] for a teacher that knows them"
            )
        return self.table.select(rows)
