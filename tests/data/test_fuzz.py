"""Tests that a damaged file is read exactly like by the `csv` and `json` modules, or refused.

`DISTILL_FUZZ=10000` sets the number of damaged files of each format, of which the default is a hundred.
"""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distill.core.errors import UserError
from distill.data.sources import read_file
from tests.fuzzing import damages, fuzz

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
LABELS = [label for _, label in ROWS]
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


@pytest.mark.parametrize("suffix", FILES)
def test_a_damaged_file_is_read_like_by_an_independent_reader_or_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"

    def check(content: bytes) -> None:
        path.write_bytes(content)
        try:
            columns = dict(read_file(path, WANTED).columns)
        except UserError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017 - most damage is refused, some is not
        else:  # As text, by which NaN is equal to itself.
            assert repr(columns) == repr(INDEPENDENT[suffix](content.decode("utf-8-sig")))
            assert content not in FILES[suffix] or columns["label"] == LABELS

    for content in FILES[suffix]:
        check(content)
    damaged = st.sampled_from(FILES[suffix]).flatmap(lambda content: damages(content, TOKENS))
    fuzz(150)(given(damaged)(check))()
