"""The texts and the labels of files of rows, as a task would read them, with everything that is wrong left in."""

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from distill.errors import UserError
from distill.readers.columns import Table
from distill.readers.kinds import ColumnProfile, guess_label, guess_text
from distill.readers.label_sets import read_lists
from distill.readers.label_vectors import stack_columns
from distill.readers.labels import LabelColumn
from distill.readers.missing import has_no_label, is_missing, is_without_label
from distill.readers.problems import Problem
from distill.readers.rows import show_names, suggest_column

TaskKind = Literal["classification", "multi_label", "regression"]


@dataclass(frozen=True)
class Chosen:
    """The columns that a task reads, each a guess where it is empty or None.

    Args:
        text: the column of the text, or the two of a pair.
        label: the column of the label, or those of 0 and 1 for each label.
        separator: between several labels in a text.
        names: of the classes, where they are known.
    """

    text: tuple[str, ...] = ()
    label: tuple[str, ...] = ()
    task: TaskKind | None = None
    separator: str | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class SplitRows:
    """The rows of a split.

    Args:
        texts: values of each column of text.
        labels: of each row, several as a list of their names; None for a split without labels.
    """

    file: Table
    texts: tuple[Sequence[object], ...]
    labels: Sequence[object] | None

    @property
    def lines(self) -> Sequence[int] | None:
        return self.file.lines

    def complete(self, marks: frozenset[str]) -> "CompleteRows":
        """Returns the rows that have a text and, unless the whole split has none, a label."""
        labels = self.labels if self.labels is not None else [""] * len(self.file)
        texts = self.texts[0] if len(self.texts) == 1 else list(zip(*self.texts, strict=True))
        has_text = _flag(texts, lambda text: not is_missing(text))
        has_label = _flag(labels, lambda label: self.labels is None or not has_no_label(label, marks))
        rows = [row for row, both in enumerate(map(operator.and_, has_text, has_label)) if both]
        lines = self.lines
        return CompleteRows(
            [_to_key(texts[row]) for row in rows],
            None if self.labels is None else [str(labels[row]) for row in rows],
            None if lines is None else [lines[row] for row in rows],
        )


@dataclass(frozen=True)
class CompleteRows:
    """The text, the label and the line of each row."""

    texts: Sequence[Hashable]
    labels: Sequence[str] | None
    lines: Sequence[int] | None


def choose_columns(columns: Sequence[ColumnProfile], given: Chosen, source: str) -> Chosen:
    """Returns the columns and the task, with guesses for those that are not given.

    Raises:
        UserError: for a given column that is not there.
    """
    names = tuple(column.name for column in columns)
    label = given.label
    if given.task in ("classification", "regression") and len(label) > 1:  # Names of which one is there.
        label = tuple(name for name in label if name in names)[:1] or label
    missing = [name for name in (*given.text, *label) if name not in names]
    if missing:
        hint = suggest_column(missing, names)
        raise UserError(f"{source} has no column {' and '.join(missing)}{hint}: it has {show_names(names)}")
    label = label or guess_label([column for column in columns if column.name not in given.text])
    text = given.text or guess_text(columns, label)
    kinds = {column.name: column.kind for column in columns}
    task: TaskKind = "multi_label" if len(label) > 1 else "classification"
    if len(label) == 1 and kinds[label[0]] in ("list", "number"):
        task = "multi_label" if kinds[label[0]] == "list" else "regression"
    separators = [column.separator for column in columns if column.name in label and column.separator]
    return Chosen(text, label, given.task or task, given.separator or next(iter(separators), None), given.names)


def read_splits(files: Mapping[str, Table], chosen: Chosen) -> tuple[dict[str, SplitRows], list[Problem]]:
    """Returns the texts and the labels of each split, and the columns and lists that cannot be read as problems."""
    splits, problems = dict[str, SplitRows](), list[Problem]()
    for split, file in files.items():
        missing = [name for name in (*chosen.text, *chosen.label) if name not in file.columns]
        if missing and not (split == "test" and set(missing) <= set(chosen.label)):
            problems.append(
                Problem(
                    f"{file.source} has no column {' and '.join(missing)}",
                    f"it has {show_names(tuple(file.columns))}; rename its columns",
                    is_error=True,
                )
            )
        empty = [None] * len(file)
        texts = tuple(file.columns.get(name, empty) for name in chosen.text)
        has_labels = bool(chosen.label) and all(name in file.columns for name in chosen.label)
        values = file.columns[chosen.label[0]] if has_labels else empty
        splits[split] = SplitRows(file, texts, None if all(map(is_without_label, values)) else values)
    if chosen.task == "multi_label":
        try:
            splits = _read_label_lists(splits, chosen)
        except UserError as error:
            splits = {split: replace(rows, labels=None) for split, rows in splits.items()}
            problems.append(Problem("the labels cannot be read", str(error), is_error=True))
    return splits, problems


def _read_label_lists(splits: Mapping[str, SplitRows], chosen: Chosen) -> dict[str, SplitRows]:
    columns = {
        split: LabelColumn(rows.file.source, rows.labels, lines=rows.lines)
        if len(chosen.label) == 1
        else stack_columns(rows.file.source, {name: rows.file.columns[name] for name in chosen.label}, lines=rows.lines)
        for split, rows in splits.items()
        if rows.labels is not None
    }
    lists = columns
    if len(chosen.label) == 1:
        lists = read_lists(columns, None, separator=chosen.separator or "|", notify=lambda _: None)
    return {
        split: replace(rows, labels=_name_labels(lists[split]) if split in lists else None)
        for split, rows in splits.items()
    }


def _name_labels(column: LabelColumn) -> list[list[str]]:
    classes = column.classes
    return [
        [str(label) if classes is None else classes[int(str(label))] for label in labels]
        for labels in column.values
        if isinstance(labels, list | tuple)
    ]


def _flag(values: Sequence[object], test: Callable[[object], bool]) -> list[bool]:
    """Returns the test of each value, which of hashable ones is run once for equal values."""
    try:
        known = {value: test(value) for value in set(values)}
        return [known[value] for value in values]
    except TypeError:
        return [test(value) for value in values]


def _to_key(text: object) -> Hashable:
    if isinstance(text, tuple):
        return tuple(map(_to_key, text))
    return text if isinstance(text, str) or text is None else str(text)
