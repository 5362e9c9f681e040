"""Tests of texts that are read in parts: types of files, directories, URLs, how many there are, and what is refused."""

import csv
import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3fs import S3FileSystem

from distill.core.errors import UserError
from distill.data.text_files import TextFiles

TEXTS = [f"a text, number {number}" for number in range(70)]


def delimited(separator: str, column: str) -> bytes:
    table = io.StringIO()
    writer = csv.writer(table, delimiter=separator)
    writer.writerows([[column, "other"], *([text, 1] for text in TEXTS)])
    return table.getvalue().encode()


CONTENTS = {
    "texts.txt": "\n".join(f" {text} " for text in TEXTS).encode() + b"\n",
    "texts.csv": delimited(",", "sentence"),
    "texts.tsv": delimited("\t", "text"),  # The usual name of the only column.
    "texts.jsonl": b"".join(json.dumps({"sentence": text, "other": [1]}).encode() + b"\n" for text in TEXTS),
}
CONTENTS |= {f"{name}.gz": gzip.compress(content) for name, content in list(CONTENTS.items())}
_TABLE = io.BytesIO()
pq.write_table(pa.table({"sentence": TEXTS}), _TABLE)
CONTENTS["texts.parquet"] = _TABLE.getvalue()


def read(place: object, size: int = 30) -> list[list[str]]:
    return [column for [column] in TextFiles(str(place), ("sentence",)).read(size)]


@pytest.mark.parametrize("name", CONTENTS)
def test_every_type_of_file_is_read_in_parts(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(CONTENTS[name])
    for place in (path, f"file://{path}"):
        assert [len(part) for part in read(place)] == [30, 30, 10]
        assert [text for part in read(place) for text in part] == TEXTS
    count = TextFiles(str(path), ("sentence",)).count()
    assert count is None if name.endswith(".gz") else 70 <= count <= 71  # type: ignore[operator] - With a header.


@pytest.mark.parametrize("name", [name for name in CONTENTS if not name.endswith(".gz") or ".txt" in name])
def test_files_of_a_bucket_are_read_in_parts(bucket: str, name: str) -> None:
    for file in "ab":
        S3FileSystem().pipe_file(f"{bucket}/{file}.{name}", CONTENTS[name])
    for place, expected in ((f"a.{name}", TEXTS), (f"*.{name}", TEXTS * 2)):
        parts = read(f"{bucket}/{place}")
        assert [len(part) for part in parts[:-1]] == [30] * (len(parts) - 1)
        assert [text for part in parts for text in part] == expected


def test_compressed_tables_of_a_bucket_are_refused() -> None:
    with pytest.raises(UserError, match="can be decompressed on a disk alone: store it without .gz"):
        _ = TextFiles("s3://texts/a.jsonl.gz", ("sentence",)).files


def test_the_files_of_a_directory_are_read_in_order_and_both_texts_of_a_pair(tmp_path: Path) -> None:
    for number, rows in enumerate((TEXTS[:40], TEXTS[40:])):
        lines = [f'"{text}",{text.rpartition(" ")[2]}' for text in rows]
        (tmp_path / f"{number}.csv").write_text("\n".join(["one,two", *lines]))
    files = TextFiles(str(tmp_path), ("one", "two"))
    parts = list(files.read(50))
    assert [len(first) for first, _ in parts] == [50, 20]
    assert parts[0][0] + parts[1][0] == TEXTS
    assert parts[0][1][:2] == ["0", "1"]
    assert [of.partition(" ")[0] for of in files.describe()] == ["0.csv", "1.csv"]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nothing", "data=nothing does not exist, expected a file or a directory of texts"),
        ("two", r"data=.*two has files in .csv, .txt, expected files of one type of .txt, .csv"),
        ("empty", r"data=.*empty has no file, expected files of one type"),
        ("wrong.csv", r"wrong.csv has the columns a, b, expected sentence: name those of the texts with task.text"),
        ("lists.jsonl", "the column sentence has lists, expected texts"),
        ("bad.parquet", r"bad.parquet cannot be read: "),
    ],
)
def test_what_cannot_be_read_is_refused(
    place: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("two", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "two" / "a.txt").write_text("a\n")
    (tmp_path / "two" / "b.csv").write_text("sentence\na\n")
    (tmp_path / "wrong.csv").write_text("a,b\n1,2\n")
    (tmp_path / "lists.jsonl").write_text('{"sentence": ["a"]}\n')
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        read(place)
