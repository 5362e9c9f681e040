"""Pairs of a source and a target text, from rows with a column of each.

The target of a row is a text, or several references: a list of texts, or one text with a separator between them.
"""

import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from distill.console import print_notice
from distill.data.columns import check_surrogates, read_text_column
from distill.data.held_out import text_keys
from distill.data.sources import TableSource, check_columns
from distill.data.tables import LabelledData, Split, create_data
from distill.errors import UserError
from distill.readers.columns import Table
from distill.readers.missing import is_missing

MissingTarget = Literal["error", "drop"]
ADVICE = "name other columns with task.source=... and task.target=..."


@dataclass(frozen=True, kw_only=True)
class TextPairs:
    """The source of the rows, and how their targets are read.

    Args:
        rows: the tables of the splits.
        source, target: the columns.
        separator: text between the references of a target; None for one reference, or lists of them.
        prefix: text that is put before each source.
        missing: error refuses rows without a source or a target, drop leaves them out.
    """

    rows: TableSource
    source: str
    target: str
    separator: str | None = None
    prefix: str = ""
    missing: MissingTarget = "error"

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads `train`, `dev` and the other splits with targets.

        A row of train with several references becomes a row for each of them.

        Raises:
            UserError: if a file or column is missing, for values that are no texts, and for rows without a source or a
                target.
            UnreachableError: if the data is not in the cache and cannot be downloaded.
        """
        tables = self.rows.read(cache_dir, self._hold_out, self._has_targets)
        splits = {name: self._read(table) for name, table in tables.items()}
        splits = self.rows.sample(splits)
        splits["train"] = _spread_references(splits["train"], self.prefix)
        data = create_data(replace(self.rows, train_examples=None), (), splits, _list_content)
        return data.with_option(f"prefix={self.prefix!r}") if self.prefix else data

    def _hold_out(self, table: Table) -> dict[str, Table]:
        check_columns(table, [(self.source,), (self.target,)], ADVICE)
        return self.rows.hold_out_dev(table, together=[text_keys(table.columns[self.source])])

    def _has_targets(self, table: Table) -> bool:
        """Returns whether a split has targets at all: those of a test split may be hidden, which a notice says."""
        found = not all(map(self._is_empty, table.columns.get(self.target, ())))
        if not found:
            print_notice(f"{table.source} has no targets and is left out")
        return found

    def _read(self, table: Table) -> Split:
        check_columns(table, [(self.source,), (self.target,)], ADVICE)
        table = self._leave_out(table)
        sources = read_text_column(table, self.source, may_be_empty=False)
        references = [self._read_target(table, row) for row in range(len(table))]
        return pair_split([self.prefix + source for source in sources], references, prefix=self.prefix)

    def _leave_out(self, table: Table) -> Table:
        """Returns the table without the rows that lack a source or a target; raises UserError if they must not."""
        columns = (self.source, self.target)
        values = zip(*(table.columns[name] for name in columns), strict=True)
        lacking = {
            row: name
            for row, of_row in enumerate(values)
            for name, value in zip(columns, of_row, strict=True)
            if self._is_empty(value)
        }
        if not lacking:
            return table
        if self.missing == "error":
            row, name = next(iter(lacking.items()))
            raise UserError(
                f"{table.place(row)}: column {name} is {reprlib.repr(table.columns[name][row])}, expected text, and "
                f"{len(lacking):,} of {len(table):,} rows lack a source or a target: task.missing=drop leaves them out"
            )
        rows = [row for row in range(len(table)) if row not in lacking]
        if not rows:
            raise UserError(f"{table.source} has no row with a source and a target: {ADVICE}")
        print_notice(
            f"{table.source}: {len(lacking):,} of {len(table):,} rows have no source or no target and are left out"
        )
        return table.select(rows)

    def _is_empty(self, value: object) -> bool:
        return is_missing(value) or (isinstance(value, list | tuple | np.ndarray) and all(map(is_missing, value)))

    def _read_target(self, table: Table, row: int) -> list[str]:
        """Returns the references of a row, at least one; raises UserError for a value that is none."""
        value: Any = table.columns[self.target][row]
        references: list[Any]
        if isinstance(value, str) and self.separator is not None:
            references = [part.strip() for part in value.split(self.separator)]
        elif isinstance(value, list | tuple | np.ndarray):
            references = list(value)
        else:
            references = [value]
        references = [reference for reference in references if not is_missing(reference)]
        if not references or not all(isinstance(reference, str) for reference in references):
            raise UserError(
                f"{table.place(row)}: column {self.target} is {reprlib.repr(value)}, expected text, or a list of texts"
            )
        for reference in references:
            check_surrogates(reference, f"{table.place(row)}: column {self.target}")
        return references


def pair_split(sources: list[str], references: list[list[str]], *, prefix: str = "") -> Split:
    """Returns sources with the references of each, of which the first one is the target.

    Args:
        prefix: with which each source begins, and which its record does not have, because a bundle puts it there.
    """
    targets = [of_row[0] for of_row in references]
    whole = [f"{source} {target}" for source, target in zip(sources, targets, strict=True)]
    columns: dict[str, list[Any]] = {"source": sources, "target": targets, "references": references, "text": whole}
    return Split(columns, ("source",), partial(_create_record, prefix), whole="text")


def _create_record(prefix: str, row: Mapping[str, Any]) -> dict[str, str]:
    return {"source": row["source"].removeprefix(prefix), "target": row["target"]}


def _spread_references(split: Split, prefix: str) -> Split:
    """Returns a row for each reference."""
    pairs = [
        (source, reference)
        for source, references in zip(split["source"], split["references"], strict=True)
        for reference in references
    ]
    return pair_split([source for source, _ in pairs], [[reference] for _, reference in pairs], prefix=prefix)


def _list_content(splits: Mapping[str, Split]) -> Iterator[object]:
    """Yields the content of the splits, of which a digest is computed."""
    for name, split in splits.items():
        yield [name, split["source"], split["references"]]
