"""Numbers of a paper beside ours, for the experiments whose YAML names them under `paper`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12.

from distill.records.comparison import Row, read_config
from distill.records.report import MISSING, format_points, format_spread


class Paper(TypedDict):
    """The `paper` of an experiment's YAML.

    Attributes:
        source: title, arXiv id and table.
        metric: of `values`, with its unit.
        option: by whose values the rows are known, such as `ablation.name`.
        reference: the value of the row from which `values` are differences.
        values: the paper's number for each value of the option.
    """

    source: str
    metric: str
    option: str
    reference: str
    values: dict[str, float]


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
    option = paper["option"].removesuffix(".name")
    ours: Mapping[str, Row] = {str(row.options.get(option)): row for row in rows if row.values}
    reference = ours.get(paper["reference"])
    header = (option, f"paper: {paper['metric']}", _metric(rows), f"against {paper['reference']}")
    cells = [header]
    for value in [paper["reference"], *(name for name in paper["values"] if name != paper["reference"])]:
        row = ours.get(value)
        theirs = paper["values"].get(value)
        cells.append(
            (
                value, MISSING if theirs is None else f"{theirs:+.2f}", format_spread(row.spread() if row else None),
                _difference(row, reference),
            )
        )  # fmt: skip
    return PaperTable(paper["source"], cells)


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
