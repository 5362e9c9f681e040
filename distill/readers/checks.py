"""Every problem of the files of a task, found in all rows at once."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from distill.readers import problems
from distill.readers.columns import Table, has_mark
from distill.readers.kinds import ColumnProfile, is_number
from distill.readers.labels import simplify
from distill.readers.missing import WHOLE, find_marks, has_no_label, is_missing
from distill.readers.problems import Problem, show_lines
from distill.readers.rows import is_delimited, show_names
from distill.readers.splits import Chosen, SplitRows

_SELECTING = ("data", "train", "dev")
_MOST_CLASSES = 100  # From which on a column with as many values as rows has no classes.
_NAMES_SHOWN = 8
_LONGEST_NAME = 8  # Words of a header's field.


def find_label_marks(splits: Mapping[str, SplitRows], chosen: Chosen) -> frozenset[str]:
    """Returns the labels that mean that a row has none."""
    if chosen.task == "multi_label":
        return frozenset()
    labels = [splits[split].labels or () for split in _SELECTING if split in splits]
    return find_marks(chain.from_iterable(labels)) - set(chosen.names)


def find_file_problems(file: Table, columns: Sequence[ColumnProfile]) -> Iterator[Problem]:
    """Yields the problems of a file that do not depend on the task."""
    if file.unreadable:
        lines, first = list(file.unreadable), next(iter(file.unreadable.values()))
        noun = "line" if len(lines) == 1 else "lines"
        reason = str(first).removeprefix(f"{file.source}, ")
        yield Problem(
            f"{len(lines):,} {noun} cannot be read ({show_lines(range(len(lines)), lines)})", reason, is_error=True
        )
    if is_delimited(file.path) and (names := _find_values_in_header(columns)):
        yield Problem(
            f"line 1 looks like a row and not like the names of the columns ({', '.join(map(repr, names))})",
            "write a line with names such as text,label above it",
            is_error=True,
        )
    if file.note:
        yield Problem(file.note, "this needs no action")
    if has_mark(file.path):
        yield Problem("the file begins with a byte order mark", "it is left out, which needs no action")


def find_text_problems(rows: SplitRows, names: Sequence[str], others: Sequence[str]) -> Iterator[Problem]:
    """Yields the problems of the texts of a split; `others` are columns that look like text."""
    if found := problems.find_empty(rows.texts, rows.lines):
        yield found
    for name, values in zip(names, rows.texts, strict=True):
        wrong = [row for row, value in enumerate(values) if not (isinstance(value, str) or is_missing(value))]
        if wrong:
            yield Problem(
                f"{len(wrong):,} of {len(values):,} rows have no text in column {name} but a value such as "
                f"{values[wrong[0]]!r:.40} ({show_lines(wrong, rows.lines)})",
                "write it in quotes, or name the column of the text",
                is_error=True,
            )
        if found := problems.find_ids(name, values, others):
            yield found


def find_label_problems(rows: SplitRows, chosen: Chosen, marks: frozenset[str], *, is_train: bool) -> Iterator[Problem]:
    """Yields the problems of the labels of a split; those of classes that other splits share are not among them."""
    if rows.labels is None:
        return
    if chosen.task == "multi_label":
        named = [label for labels in rows.labels if isinstance(labels, list) for label in labels]
        numbers = [row for row, labels in enumerate(rows.labels) if isinstance(labels, list) for _ in labels]
        lines = numbers if rows.lines is None else [rows.lines[row] for row in numbers]
        if is_train and (found := problems.find_small_classes(named, lines)):
            yield found
        return
    if found := problems.find_unlabelled(rows.labels, rows.lines, marks=marks):
        yield found
    if chosen.task == "regression":
        yield from _find_no_numbers(rows, marks)
        return
    if found := problems.find_floats(rows.labels, rows.lines):
        yield found
    labelled = [row for row, label in enumerate(rows.labels) if not has_no_label(label, marks)]
    words = to_classes([rows.labels[row] for row in labelled])
    lines = labelled if rows.lines is None else [rows.lines[row] for row in labelled]
    has_classes = is_train and not _looks_like_text(len(set(words)), len(words))
    if has_classes and (found := problems.find_small_classes(words, lines)):
        yield found


def find_class_problems(classes: Mapping[str, Mapping[str, int]], splits: Sequence[str]) -> Iterator[Problem]:
    """Yields the problems of the classes of all splits; `classes` are rows by class and split."""
    train = splits[0]
    known = [name for name, rows in classes.items() if train in rows]
    rows_of_train = sum(classes[name][train] for name in known)
    if _looks_like_text(len(known), rows_of_train):
        yield Problem(
            f"the label has {len(known):,} different values in {rows_of_train:,} rows",
            "it looks like text and not like a class: name the column of the label with label=NAME",
            is_error=True,
        )
        return
    if len(known) < 2:
        yield Problem(
            f"there is one class only ({known[0]})" if known else "no row has a label",
            "give rows of at least two classes, or name the column of the label with label=NAME",
            is_error=True,
        )
    for split in splits[1:]:
        unknown = [name for name, rows in classes.items() if split in rows and train not in rows]
        if unknown and known:
            yield Problem(
                f"{split} has {sum(classes[name][split] for name in unknown):,} rows of a class that {train} lacks "
                f"({_list_names(unknown)})",
                f"no model can learn it: move rows of it to {train}, or remove them",
                is_error=True,
            )
    spellings: dict[str, list[str]] = {}
    for name in classes:
        spellings.setdefault(simplify(name).casefold(), []).append(name)
    for names in spellings.values():
        if len(names) > 1:
            yield Problem(
                f"the classes {' and '.join(map(repr, names))} look alike",
                "they are classes of their own: write them alike if they are not meant to be",
                is_error=len(set(map(simplify, names))) < len(names),
            )


def to_classes(labels: Sequence[object]) -> list[str]:
    """Returns labels as names of classes, which of whole numbers have no point: 4.0 is the class 4."""
    words = list(map(str, labels))
    if any("." in word for word in set(words)) and all(map(WHOLE.fullmatch, set(words))):
        return [word.partition(".")[0] for word in words]
    return words


def _looks_like_text(distinct: int, rows: int) -> bool:
    return distinct > _MOST_CLASSES and 2 * distinct > rows


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return show_names(names[:_NAMES_SHOWN]) + more


def _find_no_numbers(rows: SplitRows, marks: frozenset[str]) -> Iterator[Problem]:
    labels = rows.labels or ()
    wrong = [row for row, label in enumerate(labels) if not (has_no_label(label, marks) or is_number(label))]
    if wrong:
        yield Problem(
            f"{len(wrong):,} of {len(labels):,} rows have a label that is no number, such as {labels[wrong[0]]!r:.40} "
            f"({show_lines(wrong, rows.lines)})",
            "correct them, or take task=classification for classes",
            is_error=True,
        )


def _find_values_in_header(columns: Sequence[ColumnProfile]) -> list[str]:
    """Returns the names of columns that look like values: numbers, classes of their column, and whole sentences."""
    names = [column.name for column in columns]
    if names == [str(number) for number in range(len(names))]:  # As pandas names columns.
        return []
    return [
        column.name
        for column in columns
        if column.name.strip()
        and (
            (column.kind in ("class", "number") and (is_number(column.name) or column.name in column.counts))
            or (column.kind == "text" and len(column.name.split()) > _LONGEST_NAME)
        )
    ]
