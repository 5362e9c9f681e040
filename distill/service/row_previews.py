"""Previews of CSV, TSV, JSONL and Parquet; of a large file the first rows are looked through and all are counted."""

import csv
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from distill.errors import UserError, first_line
from distill.readers.columns import read_columns
from distill.readers.lines import iterate_lines, reading_errors
from distill.readers.parquet import open_parquet
from distill.readers.problems import Problem
from distill.readers.profile import profile_files
from distill.readers.rows import read_dialect
from distill.service.preview import FIRST, LARGEST, Preview, create_preview

_PARQUET_ROWS = 50_000  # Rows of a Parquet file that are looked through, whose size tells nothing of them.
_OF_ONE_TASK = (
    "no column looks like"  # The beginning of problems that rows of tags, pairs of texts or choices all have.
)


class _Sample(NamedTuple):
    """A file, or the first rows of a large one with the number of all."""

    path: Path
    rows: int | None = None


def preview_rows(paths: Mapping[str, Path]) -> Preview:
    """Returns the preview of the file of each split, train first, or of a single one under the name `data`.

    Raises:
        UserError: for a file that cannot be read.
    """
    with tempfile.TemporaryDirectory(dir=next(iter(paths.values())).parent, prefix=".") as temporary:
        try:
            samples = {split: _sample(path, Path(temporary, path.name)) for split, path in paths.items()}
            profile = profile_files({split: (sample.path,) for split, sample in samples.items()})
            table = read_columns(next(iter(samples.values())).path)
        except UserError as error:
            raise UserError(str(error).replace(f"{temporary}/", "")) from error
    problems = [
        replace(problem, summary=problem.summary.replace(f"{temporary}/", ""))
        for problem in profile.problems
        if not problem.summary.startswith(_OF_ONE_TASK)
    ]
    for split, sample in samples.items():
        if sample.rows is not None:
            summary = f"only the first {profile.rows[split]:,} of {sample.rows:,} rows are looked through"
            problems.append(Problem(summary, "a job reads all of them"))
    chosen = profile.chosen
    counts = {label: sum(rows.values()) for label, rows in profile.classes.items()}
    return create_preview(
        {split: profile.rows[split] if sample.rows is None else sample.rows for split, sample in samples.items()},
        kinds={column.name: column.kind for column in profile.columns},
        first_rows=[
            {name: values[row] for name, values in table.columns.items()} for row in range(min(FIRST, len(table)))
        ],
        label_counts={", ".join(chosen.label): counts} if counts else {},
        texts={
            column.name: [value for value in table.columns[column.name] if isinstance(value, str)]
            for column in profile.columns
            if column.kind == "text" or column.name in chosen.text
        },
        problems=problems,
        task=chosen.task,
        text=chosen.text,
        label=chosen.label,
    )


def _sample(path: Path, target: Path) -> _Sample:
    """Returns a file; of a large one `target`, to which the first rows are copied."""
    with reading_errors(path):
        if path.suffix == ".parquet":
            return _sample_parquet(path, target)
        if path.stat().st_size <= LARGEST:
            return _Sample(path)
        if path.suffix != ".csv":
            rows = _copy_lines(filter(str.strip, iterate_lines(path)), target)
            return _Sample(target, rows - (path.suffix == ".tsv"))
        csv.field_size_limit(2**31 - 1)  # This process reads nothing else.
        try:
            return _Sample(target, _copy_fields(path, target, read_dialect(path).delimiter))
        except csv.Error as error:
            raise UserError(f"{path}: {first_line(error)}") from error


def _copy_lines(lines: Iterable[str], target: Path) -> int:
    """Copies the first lines; returns the number of all."""
    number, size = 0, 0
    with open(target, "w", encoding="utf-8", newline="") as file:
        for line in lines:
            number += 1
            size += len(line) if size < LARGEST else 0
            if size < LARGEST:
                file.write(line)
    return number


def _copy_fields(path: Path, target: Path, delimiter: str) -> int:
    """Copies the first rows; returns the number of all, without the header."""
    rows = csv.reader(iterate_lines(path), strict=True, delimiter=delimiter)
    number, size = 0, 0
    with open(target, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        for row in rows:
            number += any(row)
            size += sum(map(len, row)) if size < LARGEST else 0
            if size < LARGEST:
                writer.writerow(row)
    return number - 1


def _sample_parquet(path: Path, target: Path) -> _Sample:
    import pyarrow.parquet

    with open_parquet(path) as file:
        rows = file.metadata.num_rows
        if rows <= _PARQUET_ROWS and path.stat().st_size <= LARGEST:
            return _Sample(path)
        first = next(file.iter_batches(_PARQUET_ROWS))
        with pyarrow.parquet.ParquetWriter(target, first.schema) as writer:
            writer.write_batch(first)
    return _Sample(target, rows)
