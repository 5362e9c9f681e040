"""The profile of a file or a directory of rows in the terminal, and the command that trains on it."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table as ShownTable

from distill.core.console import console, print_line
from distill.core.contracts import IGNORED
from distill.core.errors import UserError
from distill.core.storage import check_hub_file
from distill.data.check import MULTILINGUAL, Profile, profile_files
from distill.data.labelled_text import LabelledText, RowRules
from distill.data.problems import ColumnProfile, Problem, refusal
from distill.data.prose import LIMIT
from distill.data.sources import STEMS, TableSource, find_files, missing_file, number_units
from distill.data.words import estimate
from distill.rows.columns import Table

COLUMNS_SHOWN = CLASSES_SHOWN = 20
_CLASSES_ON_A_LINE = 8
_WIDTH = 100  # Of the problems.
_EXAMPLE = 36  # Characters of a value that are shown.
_SMALLEST_SHARE = 0.005  # Of a script that is shown.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:~-")
# Teachers of the Hub: their name, the options that choose them, and their size.
_ENGLISH = ("sentence-transformers/all-MiniLM-L6-v2", ["+teacher=minilm"], "22.7 M parameters")
_OTHERS = ("google-bert/bert-base-multilingual-cased", MULTILINGUAL.split(), "178 M parameters")
# Names of one of two classes that a user means by F1.
_POSITIVE = ("positive", "pos", "yes", "spam", "toxic", "hate", "offensive", "relevant", "entailment", "equivalent")


def profile_data(data: str, given: RowRules | None = None, stems: Mapping[str, Sequence[str]] = STEMS) -> Profile:
    """Returns the profile of a file, or of a directory with train, dev and perhaps test.

    Args:
        stems: possible names of each split's file; none for a split that the data has no file of.

    Raises:
        UserError: for a path that does not exist, and for files that cannot be read at all.
    """
    path = Path(data).expanduser()
    if path.is_file():
        return profile_files({"data": (path,)}, given)
    if not path.is_dir():
        raise UserError(f"{data} does not exist, expected a file with rows, or a directory with train and dev")
    files = find_files(path, stems)
    if not files:
        raise missing_file(path, stems["train"])
    profile = profile_files(files, given)
    missing = [split for split in ("train", "dev") if stems[split] and split not in files]
    problems = [
        Problem(f"{split} is missing", str(missing_file(path, stems[split])), is_error=True) for split in missing
    ]
    return replace(profile, problems=(*problems, *profile.problems))


class _Undrawn(TableSource):
    """A source whose dev is its first row, because the draw needs large libraries and changes hardly a verdict."""

    def hold_out_dev(self, table: Table, **options: Any) -> dict[str, Table]:
        """Returns all rows as train, and the first one as dev."""
        if len(table) < 2:
            raise UserError(f"{table.source} cannot be split into train and dev: it has one row, expected many")
        if len(set(number_units(options.get("together", ()), len(table)).tolist())) < 2:
            raise self.too_few_texts(table)
        return {"train": table, "dev": table.select([0])}


def rehearse_reading(profile: Profile, data: str) -> Profile:
    """Returns the profile with what simple models reach, or the reason why the suggested training refuses the rows.

    The rows are read by the code of the training.
    """
    if profile.errors:
        return profile
    chosen = profile.chosen
    source = _Undrawn(name=str(chosen.task), wanted=(*chosen.text, *chosen.label), data_dir=data)
    rows = LabelledText(source=source, **vars(chosen))
    try:
        with console.capture():  # The notices of the reading are among the problems.
            train = rows.read(Path()).splits["train"]
    except UserError as error:
        return replace(profile, problems=(refusal(error), *profile.problems))
    if chosen.task != "classification":
        return profile
    texts = train.texts if train.pairs is None else list(map(" ".join, zip(train.texts, train.pairs, strict=True)))
    known = [row for row, label in enumerate(train.labels) if label != IGNORED]
    return replace(profile, reached=estimate([texts[row] for row in known], [str(train.labels[row]) for row in known]))


@dataclass(frozen=True)
class Suggestion:
    """The teacher of a suggested command.

    Args:
        options: that choose it.
        about: its size and where it is from, in words.
    """

    options: Sequence[str]
    about: str


SHIPPED = Suggestion(["+teacher=embedded"], "a small BERT that is trained on the texts, because the Hub is not there")


def find_teacher(profile: Profile) -> Suggestion:
    """Returns a teacher of the language of the texts that is in the cache of the Hub or can be downloaded.

    Without one it is the teacher that needs neither.
    """
    from huggingface_hub import try_to_load_from_cache

    name, options, size = _ENGLISH if profile.is_english else _OTHERS
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return Suggestion(options, f"{name}, {size}, in the cache of the Hub")
    try:
        check_hub_file(name, "config.json")
    except UserError:
        return SHIPPED
    return Suggestion(options, f"{name}, {size}, downloaded from the Hub once")


def print_profile(profile: Profile, data: str, teacher: Suggestion) -> None:
    """Prints columns, classes, lengths, scripts, problems, and the command to go on with."""
    print_line(_describe_rows(profile, data), style="bold")
    console.print(_tabulate_columns(profile))
    if profile.classes:
        console.print(_tabulate_classes(profile))
    if profile.is_guess:
        print_line("Columns  text and label are guesses from names and values: text=NAME and label=NAME choose others")
    for line in _describe_labels_and_texts(profile):
        print_line(line)
    _print_problems(profile)
    if not profile.errors:
        print_line(f"Teacher  {teacher.about}")
        print_line("Time     dry_run=true says how long each student of the command takes")
        print_line("Go on with", style="bold")
        print_line(f"python -m distill {' '.join(suggest_command(profile, data, teacher))}")


def print_rows_profile(rows: LabelledText) -> None:
    """Prints the profile of the files of a task in few lines; other sources have none."""
    data = rows.source.data_dir
    if data is None:
        return
    profile = profile_data(data, rows, rows.source.stems)
    print_line(_describe_rows(profile, data), style="bold")
    if profile.classes:
        print_line(f"Classes  {_list_classes(profile)}")
    for line in _describe_labels_and_texts(profile):
        print_line(line)
    _print_problems(profile)


def suggest_command(profile: Profile, data: str, teacher: Suggestion) -> list[str]:
    """Returns the options of a training on the data, in which the columns that were found are named."""
    chosen = profile.chosen
    options = [*teacher.options, "+student=auto"]
    options.append("task=regression" if chosen.task == "regression" else "task=classification")
    if chosen.task == "multi_label":
        options.append("task.multi_label=true")
    options += [f"task.data_dir={_quote(data)}", f"task.text=[{','.join(map(_quote, chosen.text))}]"]
    labels = ",".join(map(_quote, chosen.label))
    options.append(f"task.label=[{labels}]" if len(chosen.label) > 1 else f"task.label={labels}")
    if chosen.separator not in (None, "|"):
        options.append(f'task.separator="{chosen.separator}"')
    positive = next((name for name in profile.classes if name.casefold() in _POSITIVE), None)
    if chosen.task == "classification" and len(profile.classes) == 2 and positive:
        options.append(f"task.positive={_quote(positive)}")
    if profile.lengths is not None and profile.lengths.limit > LIMIT:
        options.append(f"task.max_length={profile.lengths.limit}")
    return [option if set(option) <= _PLAIN | set("+=[],") else shlex.quote(option) for option in options]


def _quote(text: str) -> str:
    """Returns a text as Hydra reads it."""
    return text if set(text) <= _PLAIN else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _describe_rows(profile: Profile, data: str) -> str:
    rows = [_count(count, "row" if split == "data" else f"row of {split}") for split, count in profile.rows.items()]
    return f"{data}: {', '.join(rows)}, {_count(len(profile.columns), 'column')}"


def _count(number: int, noun: str) -> str:
    first, *rest = noun.split(" ", 1)
    return " ".join([f"{number:,}", first if number == 1 else f"{first}s", *rest])


def _tabulate_columns(profile: Profile) -> ShownTable:
    table = ShownTable(title_justify="left")
    for name in ("column", "kind"):
        table.add_column(name, overflow="fold")
    for name in ("values", "missing", "distinct"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("example", overflow="ellipsis", no_wrap=True, max_width=_EXAMPLE)
    table.add_column("read as")
    uses = dict.fromkeys(profile.chosen.label, "label") | dict.fromkeys(profile.chosen.text, "text")
    for column in profile.columns[:COLUMNS_SHOWN]:
        table.add_row(
            column.name or "(no name)", _describe_kind(column), f"{column.values:,}", f"{column.missing:,}",
            f"{column.distinct:,}", column.example[: 2 * _EXAMPLE].replace("\n", " "), uses.get(column.name, ""),
        )  # fmt: skip
    if len(profile.columns) > COLUMNS_SHOWN:
        table.add_row(f"and {len(profile.columns) - COLUMNS_SHOWN} more")
    return table


def _describe_kind(column: ColumnProfile) -> str:
    names = {"class": "class label", "list": "list of labels"}
    separated = f" by {column.separator}" if column.separator else ""
    return f"{names.get(column.kind, column.kind)}{separated}"


def _tabulate_classes(profile: Profile) -> ShownTable:
    """Returns the classes with their rows by split, and their share of train or of the single file."""
    first = next(iter(profile.rows))
    table = ShownTable()
    name = "label" if profile.chosen.task == "multi_label" else "class"
    table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=2 * _EXAMPLE)
    for split in profile.rows:
        table.add_column("rows" if split == "data" else split, justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    total = sum(rows.get(first, 0) for rows in profile.classes.values())
    if profile.chosen.task == "multi_label":  # A row has any number of them.
        total = profile.rows[first]
    for name, rows in list(profile.classes.items())[:CLASSES_SHOWN]:
        counts = (f"{rows.get(split, 0):,}" for split in profile.rows)
        table.add_row(name, *counts, f"{rows.get(first, 0) / max(1, total):.1%}")
    if len(profile.classes) > CLASSES_SHOWN:
        table.add_row(f"and {len(profile.classes) - CLASSES_SHOWN} more")
    return table


def _list_classes(profile: Profile) -> str:
    first = next(iter(profile.rows))
    shown = [f"{name} {rows.get(first, 0):,}" for name, rows in list(profile.classes.items())[:_CLASSES_ON_A_LINE]]
    more = len(profile.classes) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _describe_labels_and_texts(profile: Profile) -> Iterator[str]:
    """Yields a line each on the numbers of a regression, the lengths and the scripts."""
    if profile.numbers is not None:
        least, mean, largest = profile.numbers
        yield f"Numbers  {least:g} to {largest:g}, mean {mean:.4g}"
    if (reached := profile.reached) is not None:
        low, high = reached["interval"]
        yield (
            f"Reached  {reached['majority']:.1%} by the most frequent class, {reached['accuracy']:.1%} "
            f"({low:.1%} to {high:.1%}) by TF-IDF and logistic regression"
        )
    lengths = profile.lengths
    if lengths is None:
        return
    over = lengths.over[LIMIT]
    about = f"about {over:,} of {lengths.examples:,} rows exceed" if over else "no row exceeds"
    yield (
        f"Lengths  median {lengths.median:,} {lengths.unit}, 95% up to {lengths.p95:,}, longest {lengths.longest:,}; "
        f"{about} {LIMIT} tokens"
    )
    shown = [f"{script} {share:.1%}" for script, share in profile.scripts.items() if share >= _SMALLEST_SHARE]
    language = "looks like English" if profile.is_english else "does not look like English"
    yield f"Scripts  {', '.join(shown) or 'no letters'}; {language}"


def _print_problems(profile: Profile) -> None:
    if not profile.problems:
        print_line("No problems")
        return
    print_line("Problems", style="bold")
    table = ShownTable.grid(padding=(0, 1))
    for number, problem in enumerate(profile.problems, 1):
        kind = "error: " if problem.is_error else ""
        table.add_row(f"{number}.", f"{kind}{problem}", style="red" if problem.is_error else None)
    console.print(table, width=min(_WIDTH, console.width))
