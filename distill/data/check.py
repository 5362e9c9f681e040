"""The profile of files of rows and every problem of them, with everything that is wrong left in."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distill.core.errors import UserError
from distill.data import problems
from distill.data.labelled_text import TRAINED, CheckedRows, RowRules, TaskKind, ignore_notice, is_labelled
from distill.data.problems import ColumnProfile, Problem, describe_column, guess_label, guess_text, refusal
from distill.data.prose import Lengths, find_scripts, is_english, measure_lengths, sample_texts
from distill.data.sources import missing_columns
from distill.rows.columns import SAMPLED, Table, has_mark, read_columns
from distill.rows.formats import is_delimited, is_number, select_lines, show_names
from distill.rows.label_sets import name_lists
from distill.rows.labels import LabelColumn, LabelWords, simplify, sort_classes


def choose_columns(columns: Sequence[ColumnProfile], given: RowRules, file: Table) -> RowRules:
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
        raise missing_columns(file, ", ".join(missing), "name yours with text=NAME and label=NAME")
    label = label or guess_label([column for column in columns if column.name not in given.text])
    text = given.text or guess_text(columns, label)
    kinds = {column.name: column.kind for column in columns}
    task: TaskKind = "multi_label" if len(label) > 1 else "classification"
    if len(label) == 1 and kinds[label[0]] in ("list", "number"):
        task = "multi_label" if kinds[label[0]] == "list" else "regression"
    separators = [column.separator for column in columns if column.name in label and column.separator]
    separator = given.separator or next(iter(separators), None)
    return replace(given, text=text, label=label, task=given.task or task, separator=separator)


@dataclass(frozen=True)
class SplitRows:
    """The rows of a split.

    Args:
        checked: all rows, with their problems.
        complete: the rows with a text and, unless the whole split has none, a label.
        labels: of each complete row in words; None for a split without labels.
    """

    checked: CheckedRows
    complete: Table
    labels: Sequence[Sequence[str]] | None = None


def judge_rows(files: Mapping[str, Table], rules: RowRules) -> tuple[dict[str, SplitRows], list[Problem]]:
    """Returns the rows of each split, and the columns and lists of labels that cannot be read as problems."""
    wanted, found = (*rules.text, *rules.label), list[Problem]()
    tables, labelled = dict[str, Table](), list[str]()
    for split, file in files.items():
        missing = [name for name in wanted if name not in file.columns]
        if missing and not (split == "test" and set(missing) <= set(rules.label)):
            found.append(refusal(missing_columns(file, ", ".join(missing), "rename its columns")))
        tables[split] = replace(
            file,
            names=(*file.names, *missing),
            columns={name: file.columns.get(name, [None] * len(file)) for name in wanted},
            samples={name: values[:SAMPLED] for name, values in file.columns.items() if name not in wanted},
        )
        if rules.label and not set(missing) & set(rules.label) and is_labelled(tables[split], rules.label):
            labelled.append(split)
    checked = rules.check(tables, without_labels=tables.keys() - labelled)
    splits = {split: SplitRows(of_table, of_table.keep()) for split, of_table in checked.items()}
    try:
        labels = _name_labels({split: splits[split].complete for split in labelled}, rules)
    except UserError as error:
        return splits, [*found, Problem("the labels cannot be read", str(error), is_error=True)]
    return {split: replace(rows, labels=labels.get(split)) for split, rows in splits.items()}, found


def _name_labels(tables: Mapping[str, Table], rules: RowRules) -> dict[str, Sequence[Sequence[str]]]:
    """Returns the labels of each row in words by split, one of each row unless it has any number of them."""
    if rules.task == "multi_label":
        return {split: name_lists(column) for split, column in rules.read_lists(tables, ignore_notice).items()}
    columns = {split: LabelColumn(table.source, table.columns[rules.label[0]]) for split, table in tables.items()}
    words = {split: list(map(str, column.values)) for split, column in columns.items()}
    if rules.task == "classification":
        LabelWords(columns, words).join_spellings(rules.names or (), ignore_notice)
    return {split: [[word] for word in of_split] for split, of_split in words.items()}


_MOST_CLASSES = 100  # From which on a column with as many values as rows has no classes.
_NAMES_SHOWN = 8
_LONGEST_NAME = 8  # Words of a header's field.


def find_file_problems(file: Table, columns: Sequence[ColumnProfile]) -> Iterator[Problem]:
    """Yields the problems of a file that do not depend on the task."""
    yield from problems.find_unreadable(file.source, file.unreadable)
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


def find_label_problems(rows: SplitRows, rules: RowRules, *, is_train: bool) -> Iterator[Problem]:
    """Yields the problems of the classes of a split; those that other splits share are not among them."""
    if rows.labels is None or rules.task == "regression":
        return
    table = rows.checked.table
    if rules.task == "classification":
        yield from problems.find_floats(table.columns[rules.label[0]], table.lines)
    named = [name for of_row in rows.labels for name in of_row]
    numbers = [row for row, of_row in enumerate(rows.labels) for _ in of_row]
    is_of_classes = rules.task == "multi_label" or not _looks_like_text(len(set(named)), len(named))
    if is_train and is_of_classes:
        yield from problems.find_small_classes(named, select_lines(rows.complete.lines, numbers))


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


def _looks_like_text(distinct: int, rows: int) -> bool:
    return distinct > _MOST_CLASSES and 2 * distinct > rows


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return show_names(names[:_NAMES_SHOWN]) + more


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
        reached: of classes, what the most frequent one and TF-IDF reach, as `words.estimate` returns it.
    """

    rows: Mapping[str, int]
    columns: tuple[ColumnProfile, ...]
    chosen: RowRules
    is_guess: bool
    classes: Mapping[str, Mapping[str, int]]
    numbers: tuple[float, float, float] | None
    lengths: Lengths | None
    scripts: Mapping[str, float]
    is_english: bool
    problems: tuple[Problem, ...]
    reached: Mapping[str, Any] | None = None

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
            "reached": self.reached,
        }


def profile_files(paths: Mapping[str, Sequence[Path]], given: RowRules | None = None) -> Profile:
    """Returns the profile of the file of each split, or of its parts, train first; `data` is the name of a single one.

    Args:
        given: columns and a task that are no guesses.

    Raises:
        UserError: for a file that cannot be read at all, and for a given column that it lacks.
    """
    return profile_tables({split: read_columns(*of_split) for split, of_split in paths.items()}, given or RowRules())


def profile_tables(files: Mapping[str, Table], given: RowRules) -> Profile:
    """Returns the profile of the table of each split, as `profile_files`."""
    first = next(iter(files))
    columns = tuple(describe_column(name, values) for name, values in files[first].columns.items())
    chosen = choose_columns(columns, given, files[first])
    splits, unreadable = judge_rows(files, chosen)
    classes = {} if chosen.task == "regression" else _count_classes(splits)
    texts = [
        [text if isinstance(text, str) else "" for text in splits[first].checked.table.columns[name]]
        for name in chosen.text
    ]
    sample = [text for column in texts for text in sample_texts(column)]
    scripts, english = find_scripts(sample), is_english(sample)
    found = [
        *_find_choice_problems(chosen),
        *unreadable,
        *_find_problems(files, splits, columns, chosen),
        *(find_class_problems(classes, tuple(splits)) if chosen.task != "regression" and chosen.label else ()),
        *_find_repeated(splits, chosen),
        *_find_language_problems(sample, scripts, is_english=english),
    ]
    return Profile(
        rows={split: len(file) for split, file in files.items()},
        columns=columns,
        chosen=chosen,
        is_guess=not (given.text and given.label),
        classes=classes,
        numbers=_find_range(splits[first]) if chosen.task == "regression" else None,
        lengths=measure_lengths(texts, script=next(iter(scripts), ""), is_english=english) if texts else None,
        scripts=scripts,
        is_english=english,
        problems=tuple(sorted(found, key=lambda problem: not problem.is_error)),
    )


def _count_classes(splits: Mapping[str, SplitRows]) -> dict[str, dict[str, int]]:
    """Returns the number of rows of each class by split, in the order of `sort_classes`."""
    classes: dict[str, dict[str, int]] = {}
    for split, rows in splits.items():
        for name, count in Counter(name for of_row in rows.labels or () for name in of_row).items():
            classes.setdefault(name, {})[split] = count
    return {name: classes[name] for name in sort_classes(classes)}


def _find_range(rows: SplitRows) -> tuple[float, float, float] | None:
    numbers = [float(label) for [label] in rows.labels or () if is_number(label)]
    return (min(numbers), sum(numbers) / len(numbers), max(numbers)) if numbers else None


def _find_choice_problems(chosen: RowRules) -> Iterator[Problem]:
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
    files: Mapping[str, Table], splits: Mapping[str, SplitRows], columns: Sequence[ColumnProfile], rules: RowRules
) -> Iterator[Problem]:
    """Yields the problems of each split by itself, with its name where there are several."""
    for split, rows in splits.items():
        found = [
            *find_file_problems(files[split], columns),
            *rows.checked.problems,
            *find_label_problems(rows, rules, is_train=split in TRAINED),
        ]
        prefix = f"{split}: " if len(splits) > 1 else ""
        yield from (replace(problem, summary=f"{prefix}{problem.summary}") for problem in found)


def _find_repeated(splits: Mapping[str, SplitRows], rules: RowRules) -> Iterator[Problem]:
    """Yields the texts that are several times in one split or in several."""
    if not rules.text:
        return
    texts = {
        split: [tuple(map(str, row)) for row in zip(*(rows.complete.columns[name] for name in rules.text), strict=True)]
        for split, rows in splits.items()
    }
    lines = {split: rows.complete.lines for split, rows in splits.items()}
    for split, rows in splits.items():
        for doubled in problems.find_doubled(texts[split], rows.labels, lines[split]):
            yield doubled if len(splits) == 1 else replace(doubled, summary=f"{split}: {doubled.summary}")
    labels = {split: rows.labels for split, rows in splits.items() if rows.labels is not None}
    yield from problems.find_shared(texts, labels if len(labels) == len(texts) else None, lines)


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
