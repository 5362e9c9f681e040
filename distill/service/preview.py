"""The preview of a data set as JSON: columns, first rows, number of rows of each label, lengths, and problems."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from distill.readers.lengths import Lengths
from distill.readers.problems import Problem

FIRST = 10  # Rows that are shown.
LARGEST = 64 * 2**20  # Bytes of a file that is looked through as a whole; of a larger one its first rows.
_SHOWN = 300  # Characters of a value that are shown.
_MOST_LABELS = 200  # Labels whose rows are shown.
_MOST_COLUMNS = 200  # Columns that are shown.
_MOST_PROBLEMS = 50
_LARGEST_WHOLE = 2**53  # From which on JavaScript rounds whole numbers.

Preview = dict[str, Any]


def create_preview(
    rows: Mapping[str, int],
    *,
    columns: Iterable[Mapping[str, object]] = (),
    first: Iterable[Mapping[str, object]] = (),
    labels: Mapping[str, Mapping[str, int]] | None = None,
    lengths: Lengths | None = None,
    problems: Iterable[Problem] = (),
    **guess: object,
) -> Preview:
    """Returns a preview, in which values and lists are short.

    Args:
        rows: number of rows of each split; of a single file that of `data`.
        labels: number of rows of each label by split.
        guess: the task and its columns, where the names and values of the columns tell them.
    """
    shown, counted, found = list(columns), list((labels or {}).items()), list(problems)
    return {
        "rows": dict(rows),
        "columns": [{key: shorten(value) for key, value in column.items()} for column in shown[:_MOST_COLUMNS]],
        "number_of_columns": len(shown),
        "first": [{key[:_SHOWN]: shorten(value) for key, value in list(row.items())[:_MOST_COLUMNS]} for row in first],
        "labels": {label[:_SHOWN]: dict(of) for label, of in counted[:_MOST_LABELS]},
        "number_of_labels": len(counted),
        "lengths": None if lengths is None else vars(lengths),
        "problems": [vars(problem) for problem in found[:_MOST_PROBLEMS]],
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
