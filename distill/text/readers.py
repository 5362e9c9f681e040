"""How is text read out of files of several kinds, a part at a time?"""

import codecs
import gzip
import io
import json
import os
import reprlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distill.errors import UserError

SUFFIXES = (".txt", ".text", ".md", ".jsonl", ".parquet", ".txt.gz", ".text.gz", ".md.gz", ".jsonl.gz")

PART = 2**20  # characters
READ_BYTES = 2**18
PARQUET_ROWS = 256  # at a time


def parts(path: Path, *, column: str, kind: str) -> Iterator[str | None]:
    """The documents of a file in parts of at most `PART` characters that end where a line does, if they can.

    None stands where a document ends. A row is one; a text is cut into documents as `kind` says.

    Raises:
        UserError: for what cannot be read, and a column that is missing or holds no text.
    """
    suffix = path.name.lower().removesuffix(".gz")
    if suffix.endswith(".jsonl"):
        return row_parts(_jsonl_texts(path, column))
    if suffix.endswith(".parquet"):
        return row_parts(_parquet_texts(path, column))
    return _text_parts(blocks(path), kind)


def holds_rows(path: Path) -> bool:
    """Whether a file holds one document a row, however texts are cut."""
    return path.name.lower().removesuffix(".gz").endswith((".jsonl", ".parquet"))


def walk(root: Path) -> Iterator[Path]:
    """Files of known kind under a folder; links to folders are followed, and none is read twice."""
    seen: set[str] = set()
    for folder, folders, names in os.walk(root, followlinks=True, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        for name in names:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield Path(folder, name)


def _raise(error: OSError) -> None:
    raise UserError(f"{error.filename} cannot be read: {reason(error)}") from error


def status(path: Path) -> os.stat_result:
    """Size and time of a file.

    Raises:
        UserError: where there is none, or none to be seen.
    """
    with told(path):
        return path.stat()


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turns what a reader raises into one line that names the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error, ValueError, NotImplementedError) as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from error


def reason(error: Exception) -> str:
    """What went wrong, on one line."""
    lines = (getattr(error, "strerror", None) or str(error)).splitlines()
    return lines[0] if lines else type(error).__name__


def _open(path: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.open(path) if path.name.lower().endswith(".gz") else open(path, "rb")


def _not_utf8(path: Path, position: int) -> UserError:
    unpacked = " when unpacked" if path.name.lower().endswith(".gz") else ""
    return UserError(f"{path} is not UTF-8 at byte {position}{unpacked}, expected text in UTF-8: convert it (iconv)")


def blocks(path: Path) -> Iterator[str]:
    """A text file in blocks of at most `PART` characters, cut as `_cut` does."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True)
    text, read = "", 0
    with told(path), _open(path) as file:
        while True:
            chunk = file.read(READ_BYTES)
            read += len(chunk)
            try:
                text += decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                # What it was given last may begin with bytes of the chunk before.
                raise _not_utf8(path, read - len(error.object) + error.start) from error
            while len(text) > PART:
                end = _cut(text)
                yield text[:end]
                text = text[end:]
            if not chunk:
                break
    yield text


def _cut(text: str, start: int = 0) -> int:
    """Where a part of a longer text ends: after a line; in one that is too long, after a word."""
    stop = start + PART
    return text.rfind("\n", start, stop) + 1 or text.rfind(" ", start, stop) + 1 or stop


def _text_parts(pieces: Iterable[str], kind: str) -> Iterator[str | None]:
    """Parts of at most `PART` characters of the documents that `kind` makes of a text; None where one ends."""
    if kind == "file":
        yield from pieces
        yield None
        return
    held: list[str] = []
    size, begins = 0, True  # A piece may end within a line, and what follows then is none of its own.
    # Not str.splitlines, which would split at form feeds and other separators too.
    for line in (line for piece in pieces for line in io.StringIO(piece)):
        if size + len(line) > PART:
            yield "".join(held)
            held, size = [], 0
        held.append(line)
        size += len(line)
        whole, begins = begins and line.endswith("\n"), line.endswith("\n")
        if (whole and line.isspace()) or (kind == "line" and begins):
            yield "".join(held).rstrip()
            yield None
            held, size = [], 0
    yield "".join(held).rstrip()
    yield None


def row_parts(texts: Iterable[str]) -> Iterator[str | None]:
    """Each text a document, in parts of at most `PART` characters; None where it ends."""
    for text in texts:
        start = 0
        while len(text) - start > PART:
            end = _cut(text, start)
            yield text[start:end]
            start = end
        yield text[start:]
        yield None


def _jsonl_texts(path: Path, column: str) -> Iterator[str]:
    """A line is held whole, as JSON cannot be read in parts."""
    read = 0
    with told(path), _open(path) as file:
        for number, line in enumerate(file, 1):
            content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            read += len(line)
            if not content.strip():
                continue
            try:
                row = json.loads(content.decode())
            except UnicodeDecodeError as error:
                raise _not_utf8(path, read - len(content) + error.start) from error
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}, line {number} is no JSON: {reason(error)}") from error
            if not isinstance(row, dict):
                raise UserError(f'{path}, line {number} is {reprlib.repr(row)}, expected {{"{column}": "..."}}')
            yield text_of(row, column, f"{path}, line {number}")


def _parquet_texts(path: Path, column: str) -> Iterator[str]:
    import pyarrow.parquet

    # Without a buffer of its own size, a column of a row group would be read whole.
    with told(path), pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES) as table:
        check_column(column, table.schema_arrow.names, str(path))
        number = 0
        for batch in table.iter_batches(PARQUET_ROWS, columns=[column]):
            for value in batch.column(0):
                number += 1
                yield text_of({column: value.as_py()}, column, f"{path}, row {number}")


def check_column(column: str, columns: Iterable[str], source: str) -> None:
    """Raises UserError for a column that is missing."""
    if column not in columns:
        there = ", ".join(columns) or "none"
        raise UserError(f"{source} has no column {column}: it has {there}; name yours with task.text=NAME")


def text_of(row: Mapping[str, Any], column: str, source: str) -> str:
    """The text of a row, which may be empty.

    Raises:
        UserError: for a column that is missing or holds no text; `source` begins the message.
    """
    check_column(column, row, source)
    value = row[column]
    if not isinstance(value, str):
        raise UserError(f"{source}: column {column} is {reprlib.repr(value)}, expected a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can write half a pair, "\ud800", which no tokenizer takes.
        raise UserError(f"{source}: column {column} holds half a character, {value[error.start]!r}") from error
    return value
