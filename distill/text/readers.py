"""Readers of text, JSONL and Parquet files, which yield documents in chunks of limited size."""

import codecs
import io
import os
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from distill.errors import UserError
from distill.readers.lines import open_file, reading_errors, unreadable
from distill.readers.parquet import open_parquet
from distill.readers.rows import read_objects

# The last two are those of WikiText.
_TEXT = (".txt", ".text", ".md", ".tokens", ".raw")
SUFFIXES = (*_TEXT, ".jsonl", ".parquet", *(f"{suffix}.gz" for suffix in (*_TEXT, ".jsonl")))

CHUNK_SIZE = 2**20  # Characters.
READ_BYTES = 2**18
PARQUET_BATCH_ROWS = 256


def read_chunks(path: Path, *, column: str, split_by: str) -> Iterator[str | None]:
    """Yields the documents of a file in chunks of at most `CHUNK_SIZE` characters, and None after each document.

    Chunks end after a line, or after a word in a long line. A row of JSONL or Parquet is one document. Text files are
    split into documents by `split_by`: "file", "paragraph" or "line".

    Raises:
        UserError: if the file cannot be read, or the column is missing or contains other values than text.
    """
    suffix = path.name.lower().removesuffix(".gz")
    if suffix.endswith(".jsonl"):
        return split_rows(_read_jsonl(path, column))
    if suffix.endswith(".parquet"):
        return split_rows(_read_parquet(path, column))
    return _split_text(read_blocks(path), split_by)


def has_rows(path: Path) -> bool:
    """Returns whether each row of the file is one document, which `split_by` does not change."""
    return path.name.lower().removesuffix(".gz").endswith((".jsonl", ".parquet"))


def find_files(root: Path) -> Iterator[Path]:
    """Yields all files below a folder with one of `SUFFIXES`, except hidden ones.

    Links to folders are followed, and each folder is read once.
    """
    seen: set[str] = set()
    for folder, folders, names in os.walk(root, followlinks=True, onerror=_raise_user_error):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        for name in names:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield Path(folder, name)


def _raise_user_error(error: OSError) -> None:
    raise unreadable(error.filename, error) from error


def read_status(path: Path) -> os.stat_result:
    """Returns size and times of a file.

    Raises:
        UserError: if the file does not exist or cannot be accessed.
    """
    with reading_errors(path):
        return path.stat()


def read_blocks(path: Path) -> Iterator[str]:
    """Yields a text file in blocks of at most `CHUNK_SIZE` characters, with "\\n" as the only line end."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True)
    text, bytes_read = "", 0
    with reading_errors(path), open_file(path) as file:
        while True:
            data = file.read(READ_BYTES)
            bytes_read += len(data)
            try:
                text += decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                # The object may begin with bytes of the previous read.
                position = bytes_read - len(error.object) + error.start
                unpacked = " when unpacked" if path.name.lower().endswith(".gz") else ""
                raise UserError(
                    f"{path} is not UTF-8 at byte {position}{unpacked}, expected text in UTF-8: convert it with iconv"
                ) from error
            while len(text) > CHUNK_SIZE:
                end = _find_chunk_end(text)
                yield text[:end]
                text = text[end:]
            if not data:
                break
    yield text


def _find_chunk_end(text: str, start: int = 0) -> int:
    """Returns the end of the chunk at `start` of a longer text: after a line, or after a word, or anywhere."""
    stop = start + CHUNK_SIZE
    return text.rfind("\n", start, stop) + 1 or text.rfind(" ", start, stop) + 1 or stop


def _split_text(blocks: Iterable[str], split_by: str) -> Iterator[str | None]:
    """Splits the blocks of a text file into documents, and yields their chunks with None after each document."""
    if split_by == "file":
        yield from blocks
        yield None
        return
    pending: list[str] = []
    size = 0
    starts_line = True  # A block may end within a line; the rest of the line is not a line itself.
    # str.splitlines would also split at form feeds and other separators.
    for line in (line for block in blocks for line in io.StringIO(block)):
        if size + len(line) > CHUNK_SIZE:
            yield "".join(pending)
            pending, size = [], 0
        pending.append(line)
        size += len(line)
        ends_line = line.endswith("\n")
        is_complete_line, starts_line = starts_line and ends_line, ends_line
        if (is_complete_line and line.isspace()) or (split_by == "line" and ends_line):
            yield "".join(pending).rstrip()
            yield None
            pending, size = [], 0
    yield "".join(pending).rstrip()
    yield None


def split_rows(texts: Iterable[str]) -> Iterator[str | None]:
    """Yields each text in chunks of at most `CHUNK_SIZE` characters, and None after each text."""
    for text in texts:
        start = 0
        while len(text) - start > CHUNK_SIZE:
            end = _find_chunk_end(text, start)
            yield text[start:end]
            start = end
        yield text[start:]
        yield None


def _read_jsonl(path: Path, column: str) -> Iterator[str]:
    """Yields the column of each line. A complete line is in memory, because JSON cannot be parsed in chunks."""
    for number, row in read_objects(path):
        yield get_text(row, column, f"{path}, line {number}")


def _read_parquet(path: Path, column: str) -> Iterator[str]:
    with open_parquet(path) as table:
        check_column(column, table.schema_arrow.names, str(path))
        number = 0
        for batch in table.iter_batches(PARQUET_BATCH_ROWS, columns=[column]):
            for value in batch.column(0):
                number += 1
                yield get_text({column: value.as_py()}, column, f"{path}, row {number}")


def check_column(column: str, columns: Iterable[str], source: str) -> None:
    """Checks that the column exists.

    Raises:
        UserError: if it is missing. The message starts with `source`.
    """
    if column not in columns:
        names = ", ".join(columns) or "none"
        raise UserError(f"{source} has no column {column}, its columns are: {names}; set task.text=NAME")


def get_text(row: Mapping[str, object], column: str, source: str) -> str:
    """Returns the text of a row, which may be empty.

    Raises:
        UserError: if the column is missing or its value is not a text. The message starts with `source`.
    """
    check_column(column, row, source)
    value = row[column]
    if not isinstance(value, str):
        raise UserError(f"{source}: column {column} is {reprlib.repr(value)}, expected a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can contain "\ud800", which tokenizers do not accept.
        surrogate = value[error.start]
        raise UserError(f"{source}: column {column} contains the unpaired surrogate {surrogate!r}") from error
    return value
