"""Tests that a damaged file is read exactly like by the `csv` and `json` modules, or refused.

`DISTILL_FUZZ=10000` sets the number of damaged files of each format, of which the default is a hundred.
"""

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from distill.core.errors import UserError
from distill.data.sources import read_file
from distill.kinds import Classification
from tests.fuzzing import fuzz

ROWS = [
    ("a lovely film", "pos"), ('he said "no", twice', "neg"), ("caf\u00e9 \u2014 \u4f60\u597d", "pos"),
    ("two\nlines", "neg"), ("  spaced ", "neg"), ("NA", "pos"), ("form\x0cfeed\u2028", "neg"), ("", "pos"),
]  # fmt: skip
Rows = list[tuple[str, str]]
WANTED = ("text", "label")
# Bytes and words with a meaning in one of the formats.
TOKENS = [
    b'"', b'""', b",", b"\t", b"\n", b"\r", b"\r\n", b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"\xc3", b"\\", b"{", b"}",
    b"[", b"]", b":", b" ", b"text", b"label", b"null", b"NaN", b"1e999", b"\\ud800", b'"text": 1, ', b"\xe2\x80\xa8",
]  # fmt: skip


def write_csv(quoting: Any, end: str, rows: Rows) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file, quoting=quoting, lineterminator=end)
    writer.writerows([("text", "label", "id"), *((*row, index) for index, row in enumerate(rows))])
    return file.getvalue().encode()


def write_tsv(end: str, rows: Rows) -> bytes:
    lines = [("text", "label"), *((text.replace("\n", " "), label) for text, label in rows)]
    return "".join("\t".join(line) + end for line in lines).encode()


def write_jsonl(rows: Rows, **options: Any) -> bytes:
    lines = [{"text": text, "label": label, "more": [index, {"x": 0.5}]} for index, (text, label) in enumerate(rows)]
    return "".join(json.dumps(line, **options) + "\n" for line in lines).encode()


def write_files(rows: Rows) -> dict[str, list[bytes]]:
    """Returns the rows in two variants of each format."""
    return {
        ".csv": [write_csv(csv.QUOTE_MINIMAL, "\n", rows), write_csv(csv.QUOTE_ALL, "\r\n", rows)],
        ".tsv": [write_tsv("\n", rows), b"\xef\xbb\xbf" + write_tsv("\r\n", rows)],
        ".jsonl": [write_jsonl(rows), b"\xef\xbb\xbf" + write_jsonl(rows, ensure_ascii=False)],
    }


FILES = write_files(ROWS)
WITHOUT_EMPTY_TEXTS = write_files(ROWS[:-1])
Columns = dict[str, list[Any]]


def read_rows(rows: list[list[str]]) -> Columns:
    header, *body = [row for row in rows if len(row) > 1 or any(field.strip() for field in row)]
    assert body
    assert all(len(row) == len(header) for row in body)
    assert all(header.count(name) == 1 for name in header if name)
    return {name: [row[header.index(name)] for row in body] for name in WANTED if name in header}


def read_by_csv(text: str) -> Columns:
    return read_rows(list(csv.reader(io.StringIO(text, newline=""), strict=True)))


def read_by_csv_without_quotes(text: str) -> Columns:
    return read_rows(list(csv.reader(io.StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)))


def read_by_json(text: str) -> Columns:
    rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    return {name: [row.get(name) for row in rows] for name in WANTED if any(name in row for row in rows)}


INDEPENDENT: dict[str, Callable[[str], Columns]] = {
    ".csv": read_by_csv,
    ".tsv": read_by_csv_without_quotes,
    ".jsonl": read_by_json,
}


@st.composite
def damaged(draw: st.DrawFn, contents: list[bytes]) -> bytes:
    """Flips, deletes, inserts, truncates or splices bytes of one of the files, up to four times."""
    data = bytearray(draw(st.sampled_from(contents)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 30)))
        change = draw(st.sampled_from(["flip", "delete", "insert", "insert bytes", "truncate", "splice"]))
        if change == "flip" and start < len(data):
            data[start] ^= draw(st.integers(1, 255))
        elif change == "delete":
            del data[start:end]
        elif change == "insert":
            data[start:start] = draw(st.sampled_from(TOKENS))
        elif change == "insert bytes":
            data[start:start] = draw(st.binary(min_size=1, max_size=3))
        elif change == "truncate":
            del data[start:]
        elif change == "splice":
            other = draw(st.sampled_from(contents))
            first = draw(st.integers(0, len(other)))
            data[start:end] = other[first : first + draw(st.integers(0, 80))]
    return bytes(data)


damaged_files = fuzz(100)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


T = TypeVar("T")


def refuse_in_one_line(read: Callable[[], T]) -> T | None:
    """Returns the result, or None for a UserError; asserts that its message is one line."""
    try:
        return read()
    except UserError as error:
        message = str(error)
    assert len(message.splitlines()) == 1
    return None


def equal(first: Columns, second: Columns) -> bool:
    """Returns whether all values are equal, NaN too."""
    return repr(first) == repr(second)


@pytest.mark.parametrize("suffix", FILES)
def test_an_undamaged_file_is_read_like_by_an_independent_reader(directory: Path, suffix: str) -> None:
    for content in FILES[suffix]:
        (directory / f"a{suffix}").write_bytes(content)
        columns = dict(read_file(directory / f"a{suffix}", WANTED).columns)
        assert equal(columns, INDEPENDENT[suffix](content.decode("utf-8-sig")))
        assert columns["label"] == [label for _, label in ROWS]


@pytest.mark.parametrize("suffix", FILES)
def test_a_damaged_file_is_read_like_by_an_independent_reader_or_refused(directory: Path, suffix: str) -> None:
    path = directory / f"b{suffix}"

    @damaged_files
    @given(damaged(FILES[suffix]))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        table = refuse_in_one_line(lambda: read_file(path, WANTED))
        event("refused" if table is None else "read")
        assert table is None or equal(dict(table.columns), INDEPENDENT[suffix](content.decode("utf-8-sig")))

    check()


@pytest.mark.parametrize("suffix", FILES)
def test_a_task_reads_a_damaged_file_or_refuses_it(directory: Path, suffix: str) -> None:
    (directory / suffix).mkdir(exist_ok=True)
    (directory / suffix / "dev.tsv").write_bytes(b"text\tlabel\na\tpos\nb\tneg\n")

    @damaged_files
    @given(damaged(WITHOUT_EMPTY_TEXTS[suffix]))
    def check(content: bytes) -> None:
        (directory / suffix / f"train{suffix}").write_bytes(content)
        data = refuse_in_one_line(lambda: Classification(text="text", data=directory / suffix).read(directory))
        event("refused" if data is None else "read")
        if data is None:
            return
        assert all(text.strip() for text in data.splits["train"].texts)
        assert set(data.splits["train"].labels) <= set(range(len(data.labels)))
        assert data.splits["dev"].labels.tolist() == [data.labels.index("pos"), data.labels.index("neg")]

    check()


def test_a_damaged_archive_is_read_completely_or_refused(directory: Path) -> None:
    content = FILES[".tsv"][0]

    @damaged_files
    @given(damaged([gzip.compress(content, mtime=0), gzip.compress(content, compresslevel=0, mtime=0)]))
    def check(data: bytes) -> None:
        (directory / "c.tsv.gz").write_bytes(data)
        table = refuse_in_one_line(lambda: read_file(directory / "c.tsv.gz", WANTED))
        event("refused" if table is None else "read")
        if table is None:
            return
        lines = gzip.decompress(data).decode("utf-8-sig")
        assert equal(dict(table.columns), read_by_csv_without_quotes(lines))

    check()
