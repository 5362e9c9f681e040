"""The profile of files of rows and every problem of them, with everything that is wrong left in."""

import operator
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from distill.core.errors import UserError
from distill.data import problems
from distill.data.problems import (
    ColumnProfile,
    Problem,
    describe_column,
    guess_label,
    guess_text,
    is_number,
    show_lines,
)
from distill.data.prose import Lengths, find_scripts, is_like_english, measure_lengths, sample_texts
from distill.rows.columns import Table, has_mark, read_columns
from distill.rows.formats import (
    WHOLE,
    find_marks,
    has_no_label,
    is_delimited,
    is_missing,
    is_without_label,
    show_names,
    suggest_column,
)
from distill.rows.label_sets import read_lists, stack_columns
from distill.rows.labels import LabelColumn, simplify, sort_classes

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


MULTILINGUAL = "+teacher=pretrained teacher.id=google-bert/bert-base-multilingual-cased"
_NUMBERS = ("least", "mean", "largest")
_SHORTEST = 200  # Letters of texts from which on their language shows.


@dataclass(frozen=True)
class Profile:
    """The profile of a file, or of the files of a directory.

    Args:
        rows: number of rows of each split; of a single file that of `data`.
        columns: of train, or of the single file.
        chosen: the columns and the task that the profile is about.
        is_guess: whether some of them are guesses.
        classes: number of rows of each class by split; empty for a regression.
        numbers: the least, the mean and the largest label of a regression.
        lengths: None without a column of text.
        scripts: share of each script among the letters of the texts.
        is_english: whether the texts look like English.
    """

    rows: Mapping[str, int]
    columns: tuple[ColumnProfile, ...]
    chosen: Chosen
    is_guess: bool
    classes: Mapping[str, Mapping[str, int]]
    numbers: tuple[float, float, float] | None
    lengths: Lengths | None
    scripts: Mapping[str, float]
    is_english: bool
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> list[int]:
        """Returns the numbers, from 1, of the problems that stop a training."""
        return [number for number, problem in enumerate(self.problems, 1) if problem.is_error]

    def record(self) -> dict[str, Any]:
        """Returns the profile as JSON, with names and numbers and without texts."""
        columns = [
            {key: value for key, value in vars(column).items() if key not in ("counts", "length")}
            for column in self.columns
        ]
        return {
            "rows": dict(self.rows),
            "columns": columns,
            "task": self.chosen.task,
            "text": list(self.chosen.text),
            "label": list(self.chosen.label),
            "separator": self.chosen.separator,
            "classes": {name: dict(rows) for name, rows in self.classes.items()},
            "numbers": None if self.numbers is None else dict(zip(_NUMBERS, self.numbers, strict=True)),
            "lengths": None if self.lengths is None else vars(self.lengths),
            "scripts": dict(self.scripts),
            "english": self.is_english,
            "problems": [vars(problem) for problem in self.problems],
        }


def profile_files(paths: Mapping[str, Sequence[Path]], given: Chosen | None = None) -> Profile:
    """Returns the profile of the file of each split, or of its parts, train first; `data` is the name of a single one.

    Args:
        given: columns and a task that are no guesses.

    Raises:
        UserError: for a file that cannot be read at all, and for a given column that it lacks.
    """
    given = given or Chosen()
    files = {split: read_columns(*of_split) for split, of_split in paths.items()}
    first = next(iter(files))
    columns = tuple(describe_column(name, values) for name, values in files[first].columns.items())
    chosen = choose_columns(columns, given, files[first].source)
    splits, unreadable = read_splits(files, chosen)
    marks = find_label_marks(splits, chosen)
    classes = {} if chosen.task == "regression" else _count_classes(splits, chosen, marks)
    texts = [[text if isinstance(text, str) else "" for text in values] for values in splits[first].texts]
    sample = [text for column in texts for text in sample_texts(column)]
    scripts, is_english = find_scripts(sample), is_like_english(sample)
    found = [
        *_find_choice_problems(chosen),
        *unreadable,
        *_find_problems(splits, columns, chosen, marks),
        *(find_class_problems(classes, tuple(splits)) if chosen.task != "regression" and chosen.label else ()),
        *_find_repeated(splits, chosen, marks),
        *_find_language_problems(sample, scripts, is_english=is_english),
    ]
    return Profile(
        rows={split: len(file) for split, file in files.items()},
        columns=columns,
        chosen=chosen,
        is_guess=not (given.text and given.label),
        classes=classes,
        numbers=_find_range(splits[first], marks) if chosen.task == "regression" else None,
        lengths=measure_lengths(texts, script=next(iter(scripts), ""), is_english=is_english) if texts else None,
        scripts=scripts,
        is_english=is_english,
        problems=tuple(sorted(found, key=lambda problem: not problem.is_error)),
    )


def _count_classes(splits: Mapping[str, SplitRows], chosen: Chosen, marks: frozenset[str]) -> dict[str, dict[str, int]]:
    """Returns the number of rows of each class by split, in the order of `sort_classes`."""
    classes: dict[str, dict[str, int]] = {}
    for split, rows in splits.items():
        if chosen.task == "multi_label":
            names = [label for labels in rows.labels or () if isinstance(labels, list) for label in labels]
        else:
            names = to_classes([label for label in rows.labels or () if not has_no_label(label, marks)])
        for name, count in Counter(names).items():
            classes.setdefault(name, {})[split] = count
    return {name: classes[name] for name in sort_classes(classes)}


def _find_range(rows: SplitRows, marks: frozenset[str]) -> tuple[float, float, float] | None:
    labels = [label for label in rows.labels or () if not has_no_label(label, marks) and is_number(label)]
    numbers = [float(str(label)) for label in labels]
    return (min(numbers), sum(numbers) / len(numbers), max(numbers)) if numbers else None


def _find_choice_problems(chosen: Chosen) -> Iterator[Problem]:
    """Yields the columns that no guess was found for."""
    if not chosen.text:
        yield Problem("no column looks like text", "name it with text=NAME", is_error=True)
    if not chosen.label:
        yield Problem(
            "no column looks like a label",
            "name it with label=NAME; texts without labels go beside labelled rows with task.unlabelled=FILE",
            is_error=True,
        )


def _find_problems(
    splits: Mapping[str, SplitRows], columns: Sequence[ColumnProfile], chosen: Chosen, marks: frozenset[str]
) -> Iterator[Problem]:
    """Yields the problems of each split by itself, with its name where there are several."""
    texts = [column.name for column in columns if column.kind == "text" and column.name not in chosen.text]
    for split, rows in splits.items():
        is_train = split in ("data", "train")
        found = [
            *find_file_problems(rows.file, columns),
            *find_text_problems(rows, chosen.text, texts),
            *find_label_problems(rows, chosen, marks, is_train=is_train),
        ]
        prefix = f"{split}: " if len(splits) > 1 else ""
        yield from (replace(problem, summary=f"{prefix}{problem.summary}") for problem in found)


def _find_repeated(splits: Mapping[str, SplitRows], chosen: Chosen, marks: frozenset[str]) -> Iterator[Problem]:
    """Yields the texts that are several times in one split or in several."""
    if not chosen.text:
        return
    complete = {split: rows.complete(marks) for split, rows in splits.items()}
    for split, rows in complete.items():
        if doubled := problems.find_doubled(rows.texts, rows.labels, rows.lines):
            yield doubled if len(splits) == 1 else replace(doubled, summary=f"{split}: {doubled.summary}")
    labels = {split: rows.labels for split, rows in complete.items() if rows.labels is not None}
    yield from problems.find_shared(
        {split: rows.texts for split, rows in complete.items()},
        labels if len(labels) == len(complete) else None,
        {split: rows.lines for split, rows in complete.items()},
    )


def _find_language_problems(sample: Sequence[str], scripts: Mapping[str, float], *, is_english: bool) -> list[Problem]:
    if is_english or sum(map(len, sample)) < _SHORTEST:
        return []
    script = next(iter(scripts), "no")
    return [
        Problem(
            f"the texts do not look like English ({script} letters)",
            f"teachers of English such as bert_base know little of them: take another one, as with {MULTILINGUAL}",
        )
    ]
