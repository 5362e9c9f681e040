"""Rows of the files that tasks are trained from: CSV, TSV, JSONL, Parquet, CoNLL and the JSON of SQuAD."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.errors import UserError
from distill.readers.columns import read_table
from distill.readers.conll import read_conll
from distill.readers.labels import Notify
from distill.readers.lines import reading_errors
from distill.readers.rows import SUFFIXES, Row, read_rows
from distill.readers.squad import read_articles

if TYPE_CHECKING:
    from distill.edge.evaluate import Columns

PARQUET = (".parquet",)
CONLL = (".conll", ".txt", ".conllu", ".bio", ".iob", ".conll.gz", ".txt.gz")
SQUAD = (".json", ".json.gz")
OTHERS: Mapping[str, Sequence[str]] = {"tags": CONLL, "spans": SQUAD}  # Types of one decoder alone.


@dataclass(frozen=True)
class LabelledFile:
    """Rows with their numbers, the noun of these, and the columns as they are named in the rows."""

    rows: Sequence[tuple[int, Row]]
    noun: str
    columns: "Columns"


def read_labelled(decoder: str, path: Path, columns: "Columns", notify: Notify) -> LabelledFile:
    """Reads the rows of a file.

    Args:
        columns: of a CoNLL file, the number of the words' column and that of the tags, counted from 0, or below 0 from
            the end.

    Raises:
        UserError: for a type that the decoder has not, and for a file that cannot be read.
    """
    name = path.name.lower()
    if name.endswith(SUFFIXES):
        return LabelledFile(list(read_rows(path)), "line", columns)
    if name.endswith(PARQUET):
        return LabelledFile(list(enumerate(_read_parquet(path), 1)), "row", columns)
    others = tuple(OTHERS.get(decoder, ()))
    if not others or not name.endswith(others):
        raise UserError(f"got {path}, expected a file that ends in {', '.join((*SUFFIXES, *PARQUET, *others))}")
    if decoder == "spans":
        with reading_errors(path):
            return LabelledFile(list(enumerate(read_articles(path), 1)), "question", columns)
    return _read_sentences(path, columns, notify)


def _read_sentences(path: Path, columns: "Columns", notify: Notify) -> LabelledFile:
    words = _read_number("--text-column", columns.texts[0]) if columns.texts else None
    tags = -1 if columns.label is None else _read_number("--label-column", columns.label)
    try:
        read = read_conll(path, tags, words, notify=lambda text: notify(_use_options(text)))
    except UserError as error:
        raise UserError(_use_options(str(error))) from error
    rows = [
        {"tokens": of_words, "tags": of_tags, "text": text}
        for of_words, of_tags, text in zip(read.words, read.tags, read.texts, strict=True)
    ]
    return LabelledFile(list(zip(read.lines, rows, strict=True)), "line", replace(columns, texts=None, label=None))


def _use_options(text: str) -> str:
    """Returns a text about the columns of a task with the options of the command."""
    for words, option in (("task.word_column=0", "--text-column 0"), ("task.word_column", "--text-column N"),
                          ("task.column", "--label-column N")):  # fmt: skip
        text = text.replace(f"set {words}", f"give {option}").replace(words, option)
    return text


def _read_number(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"got {option} {text}, expected the number of a column of CoNLL, the first one is 0") from None


def _read_parquet(path: Path) -> list[Row]:
    table = read_table(path)
    columns = dict(table.columns)
    for name, classes in _find_classes(table.schema).items():
        if name in columns:
            columns[name] = [_name_classes(value, classes) for value in columns[name]]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _find_classes(schema: Any) -> dict[str, Sequence[str]]:
    """Returns the names of classes by their columns, as the `datasets` library has written them."""
    metadata = (schema.metadata or {}).get(b"huggingface")
    if metadata is None:
        return {}
    try:
        features = json.loads(metadata)["info"]["features"]
        inner = {name: feature.get("feature", feature) for name, feature in features.items()}
        return {name: feature["names"] for name, feature in inner.items() if feature.get("_type") == "ClassLabel"}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError("the Parquet file has damaged metadata of the datasets library, expected its features") from (
            error
        )


def _name_classes(value: object, classes: Sequence[str]) -> object:
    """Returns the name of a class in place of its number, also of each number of a list."""
    if isinstance(value, list):
        return [_name_classes(item, classes) for item in value]
    return classes[value] if isinstance(value, int) and 0 <= value < len(classes) else value
