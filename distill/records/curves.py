"""Curves of a training, read from metrics.csv."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

Curve = Sequence[tuple[int, float]]  # Optimizer steps and values.


def read_curves(directory: Path) -> Mapping[str, Curve]:
    """Returns each logged value over the steps: `train/soft`, `dev/accuracy`, ...; empty without metrics.csv.

    A resumed run has several files. Lines that a killed run cut off are left out.
    """
    curves: dict[str, dict[int, float]] = {}
    for path in [*sorted(directory.glob("metrics.before-*.csv")), directory / "metrics.csv"]:
        if not path.is_file():
            continue
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            for row in csv.DictReader(line.replace("\0", "") for line in file):
                _add(row, curves)
    return {name: sorted(points.items()) for name, points in curves.items()}


def _add(row: Mapping[str, str | None], curves: dict[str, dict[int, float]]) -> None:
    step = _number(row.get("step"))
    if step is None:
        return
    for name, text in row.items():
        value = _number(text)
        if value is not None and name.startswith(("train/", "dev/")):
            curves.setdefault(name, {})[int(step)] = value


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except (TypeError, ValueError):
        return None
    return value if abs(value) < float("inf") else None
