"""The preview of a data set as JSON: columns, first rows, number of rows of each label, lengths, and problems."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distill.readers.lengths import measure_lengths
from distill.readers.problems import Problem
from distill.readers.scripts import find_scripts, is_like_english, sample_texts

FIRST = 10  # Rows that are shown.
LARGEST = 64 * 2**20  # Bytes of a file that is looked through as a whole; of a larger one its first rows.
_SHOWN = 300  # Characters of a value that are shown.
_MOST_LABELS = 200  # Labels whose rows are shown.
_MOST_COLUMNS = 200  # Columns that are shown.
_MOST_PROBLEMS = 50
_LARGEST_WHOLE = 2**53  # From which on JavaScript rounds whole numbers.

Preview = dict[str, Any]


def create_preview(
    splits: Mapping[str, int],
    *,
    kinds: Mapping[str, str] | None = None,
    first_rows: Iterable[Mapping[str, object]] = (),
    label_counts: Mapping[str, Mapping[str, int]] | None = None,
    texts: Mapping[str, Sequence[str]] | None = None,
    problems: Iterable[Problem] = (),
    **guess: object,
) -> Preview:
    """Returns a preview, in which values and lists are short.

    Args:
        splits: number of rows of each split; of a single file that of `data`.
        kinds: of each column.
        label_counts: number of rows of each label by column.
        texts: of each column whose lengths are measured.
        guess: the task and its columns, where the names and values of the columns tell them.
    """
    return {
        "splits": dict(splits),
        "columns": [name[:_SHOWN] for name in kinds or {}][:_MOST_COLUMNS],
        "kinds": {name[:_SHOWN]: kind for name, kind in list((kinds or {}).items())[:_MOST_COLUMNS]},
        "first_rows": [
            {name[:_SHOWN]: shorten(value) for name, value in list(row.items())[:_MOST_COLUMNS]} for row in first_rows
        ],
        "label_counts": {
            name[:_SHOWN]: {label[:_SHOWN]: rows for label, rows in list(counts.items())[:_MOST_LABELS]}
            for name, counts in (label_counts or {}).items()
        },
        "lengths": {name[:_SHOWN]: _measure(values) for name, values in (texts or {}).items() if values},
        "problems": [str(problem) for problem in problems][:_MOST_PROBLEMS],
        **guess,
    }


def shorten(value: object) -> object:
    """Returns a value of JSON; long ones, other types and numbers that JSON lacks become a short text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < _LARGEST_WHOLE else str(value)[:_SHOWN]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _measure(texts: Sequence[str]) -> dict[str, int]:
    """Returns the lengths of texts in words, or in characters for scripts without spaces."""
    sample = sample_texts(texts)
    script = next(iter(find_scripts(sample)), "")
    lengths = measure_lengths([texts], script=script, is_english=is_like_english(sample))
    return {"median": lengths.median, "p95": lengths.p95, "longest": lengths.longest}
