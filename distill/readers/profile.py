"""The profile of files of rows: columns, classes, lengths and scripts of the texts, and problems with their lines."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distill.readers import checks, problems
from distill.readers.columns import read_columns
from distill.readers.kinds import ColumnProfile, describe_column, is_number
from distill.readers.lengths import Lengths, measure_lengths
from distill.readers.missing import has_no_label
from distill.readers.order import sort_classes
from distill.readers.problems import Problem
from distill.readers.scripts import find_scripts, is_like_english, sample_texts
from distill.readers.splits import Chosen, SplitRows, choose_columns, read_splits

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
    marks = checks.find_label_marks(splits, chosen)
    classes = {} if chosen.task == "regression" else _count_classes(splits, chosen, marks)
    texts = [[text if isinstance(text, str) else "" for text in values] for values in splits[first].texts]
    sample = [text for column in texts for text in sample_texts(column)]
    scripts, is_english = find_scripts(sample), is_like_english(sample)
    found = [
        *_find_choice_problems(chosen),
        *unreadable,
        *_find_problems(splits, columns, chosen, marks),
        *(checks.find_class_problems(classes, tuple(splits)) if chosen.task != "regression" and chosen.label else ()),
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
            names = checks.to_classes([label for label in rows.labels or () if not has_no_label(label, marks)])
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
            *checks.find_file_problems(rows.file, columns),
            *checks.find_text_problems(rows, chosen.text, texts),
            *checks.find_label_problems(rows, chosen, marks, is_train=is_train),
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
