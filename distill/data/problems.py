"""Problems of the rows of a table, with their count and their lines, and the kind of each column."""

import json
import re
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from distill.core.errors import UserError
from distill.rows.formats import WHOLE, Lines, RowNumbers, has_no_label, is_blank, is_missing, is_number, show_names

FEWEST = 10  # Rows of a class with fewer are too few to learn it and to score it.
_LINES_SHOWN = 5
_FAR_MORE = 10  # Times the rows of a class that another one has whose name may be meant.
_SHORTEST_NAME = 4  # Letters of a name that may be misspelt; A and B are two classes.
_CLASSES_SHOWN = 8
_FEWEST_IDS = 20  # Values from which on a column is compared with ids.
_SHARE_OF_IDS = 0.95
_ID = re.compile(r"[A-Za-z0-9_.#-]*[0-9][A-Za-z0-9_.#-]*")  # One token with a digit: 12345, a91f-07, review_12.
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True)
class Problem:
    """A problem of the rows of a table.

    Args:
        summary: the number of rows and their lines.
        advice: the consequence of the problem, or the options that change it.
        is_error: whether no run can go on with it.
    """

    summary: str
    advice: str
    is_error: bool = False

    def __str__(self) -> str:
        return f"{self.summary}: {self.advice}"


def refusal(error: UserError, advice: str = "a training cannot begin") -> Problem:
    """Returns the error of a reader as a problem, with the advice if it has none."""
    summary, _, own = str(error).partition(": ")
    return Problem(summary, own or advice, is_error=True)


def find_unreadable(source: str, errors: Mapping[int, UserError]) -> list[Problem]:
    """Returns lines of a file that are left out as a problem, with the error of the first one."""
    if not errors:
        return []
    lines, first = list(errors), next(iter(errors.values()))
    noun, reason = "line" if len(lines) == 1 else "lines", str(first).removeprefix(f"{source}, ")
    summary = f"{len(lines):,} {noun} cannot be read ({show_lines(range(len(lines)), lines)})"
    return [Problem(summary, reason, is_error=True)]


def join_problems(source: str, problems: Sequence[Problem]) -> str:
    """Returns all problems of a table as one line of text."""
    return f"{source}: " + "; ".join(map(str, problems))


def show_lines(rows: Sequence[int], lines: Lines = None) -> str:
    """Returns the lines of rows in words: `lines 5, 17, 33, 48, 61 and 175 more`."""
    word = "example" if lines is None or isinstance(lines, RowNumbers) else "line"
    shown, more = [row + 1 if lines is None else lines[row] for row in rows[:_LINES_SHOWN]], len(rows) - _LINES_SHOWN
    if len(shown) == 1:
        return f"{word} {shown[0]}"
    first, last = ", ".join(map(str, shown[:-1])), shown[-1]
    return f"{word}s {first}, {last} and {more:,} more" if more > 0 else f"{word}s {first} and {last}"


def find_unlabelled(
    values: Sequence[object], lines: Lines = None, *, marks: frozenset[str] = frozenset(), advice: str | None = None
) -> list[Problem]:
    """Returns the rows without a label as a problem.

    Args:
        marks: further labels that mean that there is none.
        advice: the use of the rows in words; without any they are an error, with the options as advice.
    """
    rows = [row for row, value in enumerate(values) if has_no_label(value, marks)]
    found = sorted({str(values[row]) for row in rows if not is_missing(values[row])})
    names = f", for which {', '.join(found)} counts too" if found else ""
    classes = f"; if {found[0]} is a class, name all with task.labels=[{found[0]},...]" if found else ""
    usual = (
        "set task.missing=drop to leave them out, or task.missing=unlabelled to have the teacher label those of train"
    )
    return _of_rows(rows, values, f"no label{names}", (advice or usual) + classes, lines, is_error=advice is None)


def find_empty(columns: Sequence[Sequence[object]], lines: Lines = None, *, advice: str | None = None) -> list[Problem]:
    """Returns the rows without any text as a problem.

    Args:
        columns: that of the text, or the two of a pair.
        advice: as for `find_unlabelled`.
    """
    rows = [row for row, texts in enumerate(zip(*columns, strict=True)) if all(map(is_missing, texts))]
    what = "no text" if len(columns) == 1 else "no text in either column of the pair"
    usual = "set task.missing=drop to leave them out"
    return _of_rows(rows, columns[0] if columns else (), what, advice or usual, lines, is_error=advice is None)


def find_no_texts(
    column: str, values: Sequence[object], lines: Lines = None, *, without: Collection[int] = ()
) -> list[Problem]:
    """Returns the rows of a column of text whose value is of another type as a problem, apart from those `without`."""
    rows = [row for row, value in enumerate(values) if not isinstance(value, str) and row not in without]
    what = f"no text but {_show_first(values, rows)} or the like in column {column}"
    return _of_rows(rows, values, what, "expected text", lines, is_error=True)


def find_no_numbers(values: Sequence[object], rows: Sequence[int], lines: Lines = None) -> list[Problem]:
    """Returns these rows, whose labels are no finite numbers, as a problem."""
    what = f"a label that is no number, {_show_first(values, rows)}"
    return _of_rows(rows, values, what, "for classes take task=classification", lines, is_error=True)


def find_mixed(values: Sequence[object], kinds: Mapping[str, Sequence[int]], lines: Lines = None) -> list[Problem]:
    """Returns labels of several kinds as a problem; `kinds` are the rows of each, such as those of text."""
    if len(kinds) < 2:
        return []
    parts = [
        f"{len(rows):,} {_have(rows)} {kind} as label, {values[rows[0]]!r:.60} ({show_lines(rows, lines)})"
        for kind, rows in sorted(kinds.items(), key=lambda item: len(item[1]))
    ]
    return [Problem(f"of {len(values):,} rows {' and '.join(parts)}", "expected labels of one kind", is_error=True)]


def find_floats(values: Sequence[object], lines: Lines = None) -> list[Problem]:
    """Returns labels that are integers written as 4.0 as a problem, if all labels are whole numbers."""
    words = [None if is_missing(value) else str(value) for value in values]
    whole = {word for word in words if word is not None}
    if not whole or not all(map(WHOLE.fullmatch, whole)):
        return []
    rows = [row for row, word in enumerate(words) if word is not None and "." in word]
    word = str(values[rows[0]]) if rows else ""
    advice = f"{word} is the class {word.partition('.')[0]}, because programs write integers so in a column with gaps"
    return _of_rows(rows, values, f"a label such as {word}, a whole number", advice, lines)


def find_small_classes(labels: Sequence[object], lines: Lines = None, *, fewest: int = FEWEST) -> list[Problem]:
    """Returns the classes with fewer rows than `fewest` as a problem; `labels` are those of rows that have one."""
    counts = Counter(map(str, labels))
    small = sorted((count, name) for name, count in counts.items() if count < fewest)
    if not small:
        return []
    shown = [
        f"{show_names([name])} ({count:,}: {_lines_of(name, labels, lines)}{_describe_slip(name, counts)})"
        for count, name in small[:_CLASSES_SHOWN]
    ]
    more = f" and {len(small) - _CLASSES_SHOWN:,} more" if len(small) > _CLASSES_SHOWN else ""
    verb, them = ("has", "it") if len(small) == 1 else ("have", "them")
    summary = f"{len(small):,} of {len(counts):,} classes {verb} fewer than {fewest} rows: {', '.join(shown)}{more}"
    advice = f"this is too little to learn {them} and to score {them}: add rows, join classes, or remove {them}"
    return [Problem(summary, advice)]


def find_doubled(
    texts: Sequence[Hashable], labels: Sequence[object] | None = None, lines: Lines = None, *, differing: bool = False
) -> list[Problem]:
    """Returns the rows whose text an earlier row of the same split has as a problem.

    Args:
        texts: the text of each row, or the texts of its pair as a tuple.
        labels: of the rows; None for rows that are compared by text alone.
        differing: whether rows that have the same label too are no problem.
    """
    first: dict[Hashable, int] = {}
    rows = [row for row, text in enumerate(texts) if first.setdefault(text, row) != row]
    others = [row for row in rows if labels is not None and str(labels[row]) != str(labels[first[texts[row]]])]
    if differing and not others:
        return []
    advice = (
        f"{len(others):,} of them {_have(others)} another label ({show_lines(others, lines)}), so that no model can "
        "have all right: correct the labels, or remove these rows"
        if others
        else "they count more than once: remove them if that is not meant"
    )
    return _of_rows(rows, texts, "the text of an earlier row", advice, lines)


def find_shared(
    texts: Mapping[str, Sequence[Hashable]],
    labels: Mapping[str, Sequence[object]] | None = None,
    lines: Mapping[str, Lines] | None = None,
) -> list[Problem]:
    """Returns the rows whose text another split has too as a problem of each pair of splits.

    Args:
        texts: by split as in `find_doubled`, train first.
        labels, lines: by split.
    """
    names, problems = list(texts), list[Problem]()
    for place, earlier in enumerate(names):
        first: dict[Hashable, int] = {}
        for row, text in enumerate(texts[earlier]):
            first.setdefault(text, row)
        for split in names[place + 1 :]:
            rows = [row for row, text in enumerate(texts[split]) if text in first]
            if not rows:
                continue
            others = [
                row
                for row in rows
                if labels is not None and str(labels[split][row]) != str(labels[earlier][first[texts[split][row]]])
            ]
            number = "" if len(others) == len(rows) else f"{len(others):,} of them "
            another = f", {number}with another label" if others else ""
            problems.append(
                Problem(
                    f"{len(rows):,} of {len(texts[split]):,} rows of {split} {_have(rows)} the text of a row of "
                    f"{earlier}{another} "
                    f"({show_lines(rows, (lines or {}).get(split))} of {split})",
                    f"the scores of {split} may be too high"
                    if earlier == "train"
                    else f"{split} is not independent of {earlier}, which selects the checkpoint",
                )
            )
    return problems


def find_ids(column: str, values: Sequence[object], others: Sequence[str] = ()) -> list[Problem]:
    """Returns a column of text whose values look like ids as a problem, an error if no value has a letter.

    Ids are single tokens with a digit, nearly all of them different.

    Args:
        others: columns that look like text.
    """
    words = [str(value).strip() for value in values if not is_missing(value)]
    if len(words) < _FEWEST_IDS or len(set(words)) < _SHARE_OF_IDS * len(words):
        return []
    if sum(_ID.fullmatch(word) is not None for word in words) < _SHARE_OF_IDS * len(words):
        return []
    has_letters = any(_LETTER.search(word) for word in words)
    offer = f"task.text=[{others[0]}]" if others else "task.text=[...]"
    further = f" (also text: {', '.join(others[1:])})" if len(others) > 1 else ""
    summary = f"the column {column} looks like ids ({', '.join(words[:3])}) and not like text"
    return [Problem(summary, f"name the column of the text, as in {offer}{further}", not has_letters)]


def looks_like_text(values: Sequence[object]) -> bool:
    """Returns whether most values are texts of several words, or of letters without spaces such as Chinese."""
    texts = [value for value in values if isinstance(value, str) and not is_blank(value)]
    long = [text for text in texts if len(text.split()) >= 3 or (len(text) >= 6 and not text.isascii())]
    return bool(texts) and 2 * len(long) > len(texts)


def _describe_slip(name: str, counts: Mapping[str, int]) -> str:
    """Returns the class with far more rows that differs by one letter, of which this one is a likely slip, in words."""
    many = [other for other, count in counts.items() if count >= max(FEWEST, _FAR_MORE * counts[name])]
    found = max((other for other in many if _differ_by_a_letter(name, other)), key=counts.__getitem__, default=None)
    return "" if found is None else f", a likely slip for {show_names([found])} with {counts[found]:,} rows"


def _differ_by_a_letter(name: str, other: str) -> bool:
    """Returns whether two names differ in one letter, which one of them lacks or has in another case or place."""
    first, second = sorted((name, other), key=len)
    if len(second) < _SHORTEST_NAME or len(second) - len(first) > 1:
        return False
    start = _count_equal(first, second)
    end = _count_equal(first[start:][::-1], second[start:][::-1])
    rest, longer = first[start : len(first) - end], second[start : len(second) - end]
    swapped = len(rest) == 2 and rest == longer[::-1]
    return (swapped or len(longer) == 1) and all(map(str.isalpha, rest + longer))


def _count_equal(first: str, second: str) -> int:
    """Returns the number of letters at the beginning that two texts have in common."""
    pairs = zip(first, second, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


def _lines_of(name: str, labels: Sequence[object], lines: Lines) -> str:
    return show_lines([row for row, label in enumerate(labels) if str(label) == name], lines)


def _of_rows(
    rows: Sequence[int], values: Sequence[object], what: str, advice: str, lines: Lines, *, is_error: bool = False
) -> list[Problem]:
    """Returns some rows as a problem, such as `2 of 9 rows have no label (lines 3 and 7)`; none without any."""
    if not rows:
        return []
    summary = f"{len(rows):,} of {len(values):,} rows {_have(rows)} {what} ({show_lines(rows, lines)})"
    return [Problem(summary, advice, is_error)]


def _show_first(values: Sequence[object], rows: Sequence[int]) -> str:
    return f"{values[rows[0]]!r:.60}" if rows else ""


def _have(rows: Sequence[int]) -> str:
    return "has" if len(rows) == 1 else "have"


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
