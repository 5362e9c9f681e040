"""Numbers of a paper beside ours, for the experiments whose YAML names them under `paper`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12.

from distill.records.comparison import Row, read_config
from distill.records.measures import MISSING, format_number, format_points, format_spread


class Paper(TypedDict):
    """The `paper` of an experiment's YAML.

    Attributes:
        source: title, arXiv id and table.
        metric: of `values`, with its unit.
        option: by whose values the rows are known, such as `ablation.name`.
        reference: the value of the row from which `values` are differences; without one they are no differences.
        values: the paper's number for each value of the option, or such a mapping for each task.
    """

    source: str
    metric: str
    option: str
    reference: NotRequired[str]
    values: dict[str, float] | dict[str, dict[str, float]]


_SHAPE: TypeAdapter[Any] = TypeAdapter(Paper)


@dataclass(frozen=True)
class PaperTable:
    """The cells of the paper's rows, the header first, and the paper."""

    source: str
    cells: Sequence[tuple[str, ...]]


def compare_with_paper(rows: Sequence[Row]) -> PaperTable | None:
    """Returns the paper's numbers beside those of the rows; None if the runs name no paper."""
    paper = next((found for row in rows for directory in row.directories if (found := _read_paper(directory))), None)
    if paper is None:
        return None
    values = _select_values(paper, rows)
    if values is None:
        return None
    option, compared_with = paper["option"].removesuffix(".name"), paper.get("reference")
    ours: Mapping[str, Row] = {str(row.options.get(option)): row for row in rows if row.values}
    header = (option, f"paper: {paper['metric']}", _metric(rows))
    if compared_with is None:
        names = [*values, *(name for name in ours if name not in values)]
        cells = [(name, format_number(values.get(name), ".1f"), _spread(ours.get(name))) for name in names]
        return PaperTable(paper["source"], [header, *cells])
    reference = ours.get(compared_with)
    differences = [
        (name, format_number(values.get(name), "+.2f"), _spread(ours.get(name)), _difference(ours.get(name), reference))
        for name in [compared_with, *(name for name in values if name != compared_with)]
    ]
    return PaperTable(paper["source"], [(*header, f"against {compared_with}"), *differences])


def _select_values(paper: Paper, rows: Sequence[Row]) -> Mapping[str, float] | None:
    """Returns the paper's numbers for the task of the rows; None if it has none for this task."""
    values: dict[str, float] = {}
    tasks = {str(row.task["name"]) for row in rows if row.task}
    for name, value in paper["values"].items():
        if not isinstance(value, dict):
            values[name] = value
        elif name in tasks:
            return value
    return values or None


def _spread(row: Row | None) -> str:
    return format_spread(row.spread() if row else None)


def _read_paper(directory: Path) -> Paper | None:
    content = (read_config(directory) or {}).get("paper")
    try:
        return _SHAPE.validate_python(content)  # type: ignore[no-any-return]
    except ValidationError:
        return None


def _metric(rows: Sequence[Row]) -> str:
    return next((f"ours: {row.task['metric']}" for row in rows if row.task), "ours")


def _difference(row: Row | None, reference: Row | None) -> str:
    """Returns the difference of two rows in points; `-` without one of them, and for the reference itself."""
    if row is None or reference is None or row is reference:
        return MISSING
    mean, other = row.spread(), reference.spread()
    return format_points(mean["mean"] - other["mean"], row.task) if mean and other else MISSING
