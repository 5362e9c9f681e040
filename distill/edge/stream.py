"""Reads the texts of the command: its arguments, or the lines of standard input as they arrive."""

import codecs
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BufferedReader
from typing import cast

from distill.edge.decoder import Record
from distill.edge.strings import find_surrogate
from distill.errors import UserError

LINES_PER_CHUNK = 256
BLOCK_BYTES = 1 << 16  # Of one read, as many as a pipe holds.
Row = tuple[str, Record | None]  # A text, and its record; None for a blank line.
Named = tuple[str, str]  # The name of a text in messages, and the text.


def read_chunks(texts: Sequence[str], parse: Callable[[str], Record]) -> Iterator[list[Row]]:
    """Yields the texts with their records in chunks; without texts, the lines of standard input.

    A line is in a chunk as soon as it has arrived. The next chunk has all lines that arrived since, at most
    `LINES_PER_CHUNK`: a lonely line does not wait for others, and a fast pipe fills every chunk.

    Args:
        parse: returns the record of a text; raises UserError for an invalid one.

    Raises:
        UserError: for a text that is not UTF-8 or has no record, after the texts before it were yielded.
    """
    for block in [_read_arguments(texts)] if texts else _read_lines():
        chunk: list[Row] = []
        try:
            for name, text in block:
                chunk.append((text, _read_record(name, text, parse)))
                if len(chunk) == LINES_PER_CHUNK:
                    yield chunk
                    chunk = []
        except UserError:
            yield chunk
            raise
        yield chunk


def _read_record(name: str, text: str, parse: Callable[[str], Record]) -> Record | None:
    if not text.strip():
        return None
    try:
        return parse(text)
    except UserError as error:
        raise UserError(f"{name}: {error}") from error


def _read_arguments(arguments: Sequence[str]) -> Iterator[Named]:
    """Yields a name for each argument, and its text, which is UTF-8 whatever the locale is."""
    for number, argument in enumerate(arguments, 1):
        text = argument
        if find_surrogate(argument) is not None:
            try:
                text = os.fsencode(argument).decode("utf-8")
            except UnicodeError as error:
                raise UserError(f"text {number} is not UTF-8: convert it to UTF-8") from error
        yield f"text {number}", text


def _read_lines() -> Iterator[Iterator[Named]]:
    """Yields the lines of standard input that have arrived, each with its name."""
    if sys.stdin is None:  # Standard input is closed.
        return
    first = 1
    for lines in split_lines(cast(BufferedReader, sys.stdin.buffer)):
        yield _name_lines(lines, first)
        first += len(lines)


def split_lines(stream: BufferedReader) -> Iterator[list[bytes]]:
    """Yields the lines that have arrived, without their line feeds, as soon as there is one.

    The last line may lack its line feed.
    """
    parts: list[bytes] = []  # Of a line whose end has not arrived.
    while content := stream.read1(BLOCK_BYTES):
        start, *others = content.split(b"\n")
        parts.append(start)
        if others:
            yield [b"".join(parts), *others[:-1]]
            parts = [others[-1]]
    if last := b"".join(parts):
        yield [last]


def _name_lines(lines: Iterable[bytes], first: int) -> Iterator[Named]:
    """Yields a name for each line, and its text. Only line feeds end a line."""
    for number, line in enumerate(lines, first):
        content = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).removesuffix(b"\r")
        try:
            yield f"line {number}", content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"line {number} of standard input is not UTF-8, its byte {error.start + 1} is "
                f"0x{content[error.start]:02x}: convert the file to UTF-8"
            ) from error
