"""Tests that files of rows are read alike for training, for a check, as raw text, and on a device."""

import csv
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from distill.core.errors import UserError
from distill.data.sources import read_file
from distill.rows.columns import SUFFIXES, read_columns
from distill.rows.formats import open_parquet, read_rows
from distill.text.corpus import has_rows, read_chunks

ROWS = [{"text": "a film", "label": "good", "id": "1"}, {"text": "a dull film", "label": "bad", "id": "2"}]


def write(path: Path) -> Path:
    if path.name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    elif path.name.endswith(".jsonl"):
        path.write_text("\n".join(map(json.dumps, ROWS)))
    else:
        with open(path, "w", encoding="utf-8", newline="") as file:
            delimiter = "\t" if path.suffix == ".tsv" else ","
            csv.writer(file, delimiter=delimiter).writerows([ROWS[0], *(row.values() for row in ROWS)])
    return path


@pytest.mark.parametrize("suffix", [suffix for suffix in SUFFIXES if not suffix.endswith(".gz")])
def test_every_reader_finds_the_same_rows(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"train{suffix}")
    table, whole = read_file(path, {"text", "label"}), read_columns(path)
    assert whole.columns == {name: [row[name] for row in ROWS] for name in ROWS[0]}
    assert table.columns == {name: whole.columns[name] for name in ("text", "label")}
    assert (table.samples, whole.samples) == ({"id": ["1", "2"]}, {})
    assert (table.names, table.lines) == (whole.names, whole.lines) == (("text", "label", "id"), whole.lines)
    if suffix != ".parquet":
        assert list(read_rows(path)) == list(zip(whole.lines or (), ROWS, strict=True))
    if has_rows(path):
        texts = [chunk for chunk in read_chunks(path, column="text", split_by="file") if chunk is not None]
        assert texts == whole.columns["text"]


def test_an_error_of_arrow_while_parquet_is_read_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet")
    with pytest.raises(UserError, match=r"train\.parquet cannot be read: no column"), open_parquet(path):
        raise pyarrow.ArrowKeyError("no column")
