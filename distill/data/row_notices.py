"""Notices about the rows of all splits: texts that are there twice, and classes of few rows."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from distill.console import print_notice
from distill.readers.lines import Lines, select_lines
from distill.readers.problems import find_doubled, find_shared, find_small_classes

if TYPE_CHECKING:
    from distill.data.tables import Split


def report_shared_texts(
    splits: "Mapping[str, Split]",
    labels: Mapping[str, np.ndarray] | None = None,
    lines: Mapping[str, Lines] | None = None,
) -> None:
    """Prints how many rows have the text of a row in an earlier split, or with another label in train itself.

    Args:
        splits: train first.
        labels, lines: of the rows by split, where a row has one label, and a line or a number.
    """
    texts = {name: list(map(str, split.records())) for name, split in splits.items()}
    words = None if labels is None else {name: of_split.tolist() for name, of_split in labels.items()}
    notices = list(map(str, find_shared(texts, words, lines)))
    if words is not None:
        doubled = find_doubled(texts["train"], words["train"], (lines or {}).get("train"), differing=True)
        notices += [] if doubled is None else [f"train: {doubled}"]
    if notices:
        print_notice("; ".join(notices))


def report_small_classes(source: str, labels: np.ndarray, names: Sequence[str], lines: Lines) -> None:
    """Prints the classes of few rows of train, whose labels are indices `[N]`, or 0 and 1 `[N, C]` of several."""
    classes = labels
    if labels.ndim == 2:
        rows, classes = np.nonzero(labels)
        lines = select_lines(lines, rows.tolist())
    problem = find_small_classes([names[number] for number in classes], lines)
    if problem is not None:
        print_notice(f"{source}: {problem}")
