"""The written texts in a report: the tables of their metrics, and samples of dev beside each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from distill.errors import UserError, first_line
from distill.records.measures import Record, format_number
from distill.records.predictions import FILE, REFERENCES, WRITTEN

SHOWN = 12  # Samples, evenly spaced, whatever their quality.
TableRows = list[tuple[str, ...]]


@dataclass(frozen=True)
class WrittenTables:
    """The tables of the texts of one split, each with its header first.

    Attributes:
        sources: number of them.
        beams: of the search for the texts.
        metrics: of the teacher and the files.
        differences: of each file from the teacher and from the float32 file, with 95% intervals.
        lengths: the metrics by the words of the source.
    """

    sources: int
    beams: int
    metrics: TableRows
    differences: TableRows
    lengths: TableRows


@dataclass(frozen=True)
class Sample:
    """A row of dev: its source, its references, and the text of each model."""

    row: int
    source: str
    target: str
    written: Mapping[str, str]


def tabulate_written(record: Record) -> dict[str, WrittenTables]:
    """Returns the tables of each split; none for a run without written texts."""
    tables = {}
    for split, of_split in (record.get("texts") or {}).items():
        lengths, prefix = of_split["lengths"], "" if split == "dev" else f"{split}/"
        metrics = [name for name in next(iter(next(iter(lengths.values())).values())) if name != "number"]
        owners = {name: record["teacher"] if name == "teacher" else record["export"].get(name, {}) for name in lengths}
        models: TableRows = [
            (_name(model), *(format_number(owner.get("metrics", {}).get(f"{prefix}{name}"), ".4f") for name in metrics))
            for model, owner in owners.items()
        ]
        tables[split] = WrittenTables(
            of_split["sources"], of_split["beams"], [("", *metrics), *models],
            _list_differences(of_split["comparison"]), _list_lengths(lengths, metrics),
        )  # fmt: skip
    return tables


def read_samples(directory: Path) -> list[Sample]:
    """Returns evenly spaced rows of dev with the texts that were written for them; none without any.

    Raises:
        UserError: if predictions.parquet is damaged.
    """
    import pyarrow
    import pyarrow.parquet

    path = directory / FILE
    if not path.is_file():
        return []
    try:
        models = [name for name in pyarrow.parquet.read_schema(path).names if name.endswith(WRITTEN)]
        if not models:
            return []
        columns = ["index", "source", REFERENCES, *models]
        rows = pyarrow.parquet.read_table(path, columns=columns, filters=[("split", "==", "dev")]).to_pylist()
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    written = [row for row in rows if row[models[0]] is not None]
    number = min(SHOWN, len(written))
    chosen = [written[round(place * (len(written) - 1) / max(1, number - 1))] for place in range(number)]
    return [
        Sample(
            row["index"], row["source"], " | ".join(row[REFERENCES]),
            {_name(model.removesuffix(WRITTEN)): row[model] for model in models},
        )
        for row in chosen
    ]  # fmt: skip


def _name(model: str) -> str:
    return model if model == "teacher" else f"student {model}"


def _list_differences(comparison: Mapping[str, Mapping[str, Mapping[str, Record]]]) -> TableRows:
    rows: TableRows = [("", "against", "metric", "difference", "95% interval", "p")]
    for model, references in comparison.items():
        for reference, metrics in references.items():
            for metric, of in metrics.items():
                interval = " to ".join(format_number(end, "+.4f") for end in of["interval"] or ())
                values = (format_number(of["difference"], "+.4f"), interval, format_number(of["p"], ".2g"))
                rows.append((_name(model), _name(reference), metric, *values))
    return rows


def _list_lengths(lengths: Mapping[str, Mapping[str, Record]], metrics: Sequence[str]) -> TableRows:
    """Returns a row for each metric and group of sources."""
    rows: TableRows = [("source", "texts", "metric", *map(_name, lengths))]
    for group, first in next(iter(lengths.values())).items():
        for metric in metrics:
            values = (format_number(groups[group].get(metric), ".4f") for groups in lengths.values())
            rows.append((group, f"{first['number']:,.0f}", metric, *values))
    return rows
