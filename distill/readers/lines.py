"""Lines of text files in UTF-8, which may be compressed with gzip."""

import codecs
import gzip
import io
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from distill.errors import UserError, first_line


class RowNumbers(tuple[int, ...]):
    """The numbers of rows, counted from 1, in a table that has no lines."""

    __slots__ = ()


# The line of the file in which each row begins, or its number in a table without lines; None counts the rows.
Lines = Sequence[int] | None


def name_row(row: int, lines: Lines) -> str:
    """Returns the name of a row within its table: `line 7`, or `example 6` of a table without lines."""
    if lines is None:
        return f"example {row + 1}"
    return f"{'example' if isinstance(lines, RowNumbers) else 'line'} {lines[row]}"


def select_lines(lines: Lines, rows: Sequence[int]) -> Sequence[int]:
    """Returns the lines or numbers of these rows."""
    if lines is None or isinstance(lines, RowNumbers):
        return RowNumbers(row + 1 if lines is None else lines[row] for row in rows)
    return array("q", (lines[row] for row in rows))


@contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """Converts errors of the readers to a UserError of one line with the path."""
    try:
        yield
    except UserError:
        raise
    except (OSError, EOFError, zlib.error, ValueError, NotImplementedError) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path | str, error: Exception) -> UserError:
    """Returns the error for a file that cannot be read."""
    return UserError(f"{path} cannot be read: {format_reason(error)}")


def format_reason(error: Exception) -> str:
    """Returns the first line of an error's message, without the path and the number that `OSError` adds."""
    return getattr(error, "strerror", None) or first_line(error)


def open_file(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """Opens a file, which is unpacked if its name ends in `.gz`."""
    return gzip.open(path) if path.name.lower().endswith(".gz") else open(path, "rb")


def iterate_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a text file with their line feeds, without a byte order mark.

    Raises:
        UserError: for a line that is not UTF-8 or has a NUL byte.
    """
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise UserError(f"{path} is in UTF-16 or UTF-32, expected UTF-8: convert it with iconv")
            if b"\0" in line:
                raise UserError(
                    f"{path}, line {number} has a NUL byte, expected text in UTF-8: is it UTF-16, or no text file?"
                )
            try:
                yield (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode()
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path}, line {number} is not UTF-8 (byte 0x{error.object[error.start]:02x}), expected UTF-8: "
                    "convert the file with iconv"
                ) from error


def read_lines(path: Path) -> list[str]:
    """Returns the lines of a text file without their ends.

    Raises:
        UserError: if the file cannot be read.
    """
    with reading_errors(path):
        return [line.rstrip("\r\n") for line in iterate_lines(path)]


def lone_carriage_return(path: Path, number: int) -> UserError:
    """Returns the error for a line with a carriage return inside."""
    return UserError(
        f"{path}, line {number} has a carriage return (\\r) without a line feed, which may end a row or belong to a "
        "text: expected lines that end in \\n or \\r\\n"
    )
