"""The kind of each column of a table, and which of them look like the text and the label."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from distill.readers.missing import WHOLE, is_missing
from distill.readers.problems import find_ids

Kind = Literal["text", "class", "number", "id", "date", "list", "constant", "empty"]

SEPARATORS = ("|", ";", ",", "#")
# Names of columns in the order in which they are taken for the label or the text.
LABEL_NAMES = (
    "label", "labels", "gold_label", "class", "category", "categories", "target", "sentiment", "intent", "emotion",
    "polarity", "topic", "topics", "tag", "tags", "stars", "star", "rating", "score", "y",
)  # fmt: skip
TEXT_NAMES = (
    "text", "sentence", "review", "reviews", "review_text", "content", "body", "comment", "message", "utterance",
    "tweet", "post", "document", "abstract", "question", "query", "description", "string", "phrase",
)  # fmt: skip
PAIRS = (
    ("premise", "hypothesis"), ("question", "answer"), ("question", "sentence"), ("question", "context"),
    ("query", "passage"), ("query", "document"), ("query", "text"), ("first", "second"), ("anchor", "positive"),
)  # fmt: skip
_PAIR_ENDS = {"1": "2", "a": "b", "A": "B"}
_CLASS_NAMES = frozenset(LABEL_NAMES) - {"target", "stars", "star", "rating", "score", "y"}
_MOST_NUMBERS = 20  # Whole numbers up to which they are classes, whatever the name of the column.
_MOST_CLASSES = 1000
_LONGEST_CLASS = 60  # Characters of a class, on average.
_SAMPLE = 1000  # Values in which a separator is looked for first.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DATE = re.compile(r"\d{4}[-/.]\d\d?[-/.]\d\d?([T ][\d:.+Z-]*)?|\d\d?[-/.]\d\d?[-/.]\d{4}( [\d:.]*)?")
_ID_NAME = re.compile(r"(.*[^a-z])?(id|ids|index|idx|key|nr|number|uuid|guid|unnamed: 0)|")
_LIST = re.compile(r"\[.*\]", re.DOTALL)
_BITS = {"0", "1"}


@dataclass(frozen=True)
class ColumnProfile:
    """A column of a table.

    Args:
        values: number of its values, without the missing ones.
        distinct: number of different values.
        length: mean number of characters of a value.
        separator: between the labels of a list that is a text; None for other lists and columns.
        counts: number of rows of each value as text.
    """

    name: str
    kind: Kind
    values: int
    missing: int
    distinct: int
    length: float
    separator: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict, repr=False)

    @property
    def example(self) -> str:
        """Returns the first value of the column, or nothing."""
        return next(iter(self.counts), "")


def describe_column(name: str, values: Sequence[object]) -> ColumnProfile:
    """Returns the kind of a column and the numbers of its values."""
    are_lists = not {list, dict}.isdisjoint(set(map(type, values)))
    found = Counter(map(_to_key, values) if are_lists else values)
    counts: dict[str, int] = {}
    for value, number in found.items():
        if not is_missing(value):
            word = str(value)
            counts[word] = counts.get(word, 0) + number
    filled = sum(counts.values())
    length = sum(len(value) * number for value, number in counts.items()) / max(1, filled)
    column = ColumnProfile(name, "text", filled, len(values) - filled, len(counts), length, counts=counts)
    if are_lists or (counts and all(map(_LIST.fullmatch, counts))):
        return replace(column, kind="list")
    kind = _find_kind(column)
    separator = _find_separator(column) if kind in ("text", "class") else None
    return replace(column, kind="list" if separator else kind, separator=separator)


def guess_label(columns: Sequence[ColumnProfile]) -> tuple[str, ...]:
    """Returns the column of the label, or those of 0 and 1 for each label; nothing where no column looks like one."""
    by_name = {column.name.strip().casefold(): column for column in columns}
    named = [by_name[name] for name in LABEL_NAMES if name in by_name]
    suited = [column for column in named if column.kind not in ("text", "id", "date", "empty")] or named
    if suited:
        return (suited[0].name,)
    classes = [column.name for column in columns if column.kind == "class"]
    bits = [column.name for column in columns if column.counts.keys() == _BITS]
    if len(bits) > 1 and len(bits) == len(classes):
        return tuple(bits)
    lists = [column.name for column in columns if column.kind == "list"]
    numbers = [column.name for column in columns if column.kind == "number"]
    return (*classes[-1:], *lists[-1:], *numbers[-1:])[:1]


def guess_text(columns: Sequence[ColumnProfile], label: Sequence[str]) -> tuple[str, ...]:
    """Returns the column of the text, or the two of a pair; nothing where no column looks like text."""
    others = [column for column in columns if column.name not in label]
    word_columns = [column for column in others if column.kind == "class" and not all(map(is_number, column.counts))]
    texts = [column for column in others if column.kind == "text"] or word_columns
    by_name = {column.name.strip().casefold(): column.name for column in [*word_columns, *texts]}
    for first, second in (*PAIRS, *_numbered_pairs(by_name)):
        if first in by_name and second in by_name:
            return by_name[first], by_name[second]
    names = {column.name.strip().casefold(): column.name for column in texts}
    named = [names[name] for name in TEXT_NAMES if name in names]
    longest = sorted(texts, key=lambda column: -column.length)
    return (*named, *(column.name for column in longest))[:1]


def _to_key(value: object) -> object:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value


def _find_kind(column: ColumnProfile) -> Kind:
    counts, repeats = column.counts, 2 * column.distinct <= column.values
    if not counts:
        return "empty"
    if len(counts) == 1 and column.values > 1:
        return "constant"
    if all(map(is_number, counts)):
        return _find_kind_of_numbers(column)
    if all(map(_DATE.fullmatch, counts)):
        return "date"
    if repeats and len(counts) <= _MOST_CLASSES and column.length <= _LONGEST_CLASS:
        return "class"
    return "id" if find_ids(column.name, list(counts)) and not repeats else "text"


def _find_kind_of_numbers(column: ColumnProfile) -> Kind:
    counts, repeats = column.counts, 2 * column.distinct <= column.values
    if not all(map(WHOLE.fullmatch, counts)):
        return "number"
    name = column.name.strip().casefold()
    if repeats:
        numbers = {int(float(value)) for value in counts}
        follow = min(numbers) in (0, 1) and max(numbers) - min(numbers) == len(numbers) - 1
        if len(numbers) <= _MOST_NUMBERS or (follow and name in _CLASS_NAMES):
            return "class"
    if name in LABEL_NAMES or repeats or not find_ids(name, list(counts)):
        return "number"
    in_order = all(int(float(one)) < int(float(other)) for one, other in pairwise(counts))
    return "id" if in_order or _ID_NAME.fullmatch(name) else "number"


def is_number(value: object) -> bool:
    """Returns whether a value is a finite number, perhaps as text."""
    return not isinstance(value, bool) and _NUMBER.fullmatch(str(value).strip()) is not None


def _find_separator(column: ColumnProfile) -> str | None:
    """Returns the separator of a column whose texts are several labels, which are few and short."""
    for separator in SEPARATORS:
        for values in (list(column.counts)[:_SAMPLE], list(column.counts)):
            rows = {value: column.counts[value] for value in values}
            if not _separates(separator, rows):
                break
        else:
            return separator
    return None


def _separates(separator: str, rows: Mapping[str, int]) -> bool:
    joined = sum(number for value, number in rows.items() if separator in value)
    if 10 * joined < sum(rows.values()):
        return False
    parts: Counter[str] = Counter()
    for value, number in rows.items():
        for part in value.split(separator):
            parts[part.strip()] += number
    few = 3 * len(parts) <= parts.total() and len(parts) <= _MOST_CLASSES
    return few and "" not in parts and all(len(part.split()) <= 4 for part in parts)


def _numbered_pairs(names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the names that differ in their end alone: sentence1 and sentence2, text_a and text_b."""
    return [
        (name, name[:-1] + _PAIR_ENDS[name[-1]])
        for name in names
        if name[-1:] in _PAIR_ENDS and name[:-1] + _PAIR_ENDS[name[-1]] in names
    ]
