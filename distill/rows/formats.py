"""Rows of CSV, TSV, JSONL, Parquet and SQuAD files, values that mark a missing one, and splits by file names."""

import codecs
import csv
import gzip
import io
import json
import re
import reprlib
import zlib
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any

from distill.core.errors import UserError, did_you_mean, first_line, install_command

if TYPE_CHECKING:
    import pyarrow.parquet


# What pandas reads as a missing value, and what other programs write for one.
MARKS = frozenset({
    "nan", "NaN", "NAN", "-nan", "-NaN", "NaT", "None", "null", "NULL", "NA", "N/A", "n/a", "<NA>", "#NA", "#N/A",
    "undefined", "-",
})  # fmt: skip
WHOLE = re.compile(r"-?[0-9]{1,18}(\.0+)?")  # An integer, which a table with gaps writes as 1.0.
_MINUS_ONE = {"-1", "-1.0"}
Notify = Callable[[str], None]  # Shows a notice.
_LARGEST = 3.4028234663852886e38  # Of float32.


def is_blank(value: object) -> bool:
    """Returns whether a value is nothing, or a text without any character to see."""
    return value is None or (isinstance(value, str) and not value.strip())


def is_missing(value: object) -> bool:
    """Returns whether a value is nothing, NaN, or a text without any character to see."""
    return is_blank(value) or value != value


def is_without_label(value: object) -> bool:
    """Returns whether a value marks an example without a label: -1, a list of -1, or nothing."""
    if isinstance(value, list):
        return bool(value) and all(map(is_without_label, value))
    return is_missing(value) or str(value) in _MINUS_ONE


def to_number(value: object) -> float | None:
    """Returns a finite number that fits into float32, otherwise None."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        return None
    if isinstance(value, str) and "_" in value:  # Python's notation.
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) <= _LARGEST else None


def is_number(value: object) -> bool:
    """Returns whether a value is a finite number that fits into float32, or such a number as text."""
    return to_number(value) is not None


def list_marks(words: Set[str]) -> tuple[Set[str], Set[str]]:
    """Returns the labels of `MARKS`, and -1 if it is among non-negative integers. A hyphen beside a plus is a class."""
    marks, minus_one = {word for word in words & MARKS if not (word == "-" and "+" in words)}, words & _MINUS_ONE
    others = words - marks - minus_one
    are_indices = bool(others) and all(WHOLE.fullmatch(word) and not word.startswith("-") for word in others)
    return marks, minus_one if are_indices else set()


def find_marks(values: Iterable[object], names: Sequence[str] = (), *, may_guess: bool = True) -> frozenset[str]:
    """Returns the labels that mean that a row has none, as text: those of `list_marks`.

    Nothing is a mark where fewer than two classes would be left.

    Args:
        values: the labels of all splits.
        names: of the classes, where they are given; no other label is one then.
        may_guess: whether -1 beside 0 and 1 alone is a class, as in the sentiments -1, 0 and 1.
    """
    words = {str(value) for value in values if not isinstance(value, list) and not is_missing(value)}
    marks, minus_one = list_marks(words)
    if names:
        return frozenset((marks | words & _MINUS_ONE) - set(names))
    if not (may_guess and {word.partition(".")[0] for word in words - marks - minus_one} <= {"0", "1"}):
        marks |= minus_one
    return frozenset(marks) if len(words - marks) >= 2 else frozenset()


def has_no_label(value: object, marks: frozenset[str] = frozenset()) -> bool:
    """Returns whether a row with this label has none: nothing, NaN, an empty text, or one of `marks`."""
    return is_missing(value) or (bool(marks) and str(value) in marks)


def check_surrogates(text: str, source: str) -> None:
    """Raises UserError for a text that is no Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can contain "\ud800", which tokenizers do not accept.
        raise UserError(f"{source} contains the unpaired surrogate {text[error.start]!r}") from error


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


_COMPARED = 20  # Rows that are read with either delimiter.
_NUMBER = re.compile(r"[+-]?\d+(,\d+)?")


@dataclass(frozen=True)
class Dialect:
    """The form of a CSV file; that of Excel in Europe has semicolons, because commas are in its numbers.

    Args:
        delimiter: between the columns.
        decimals: places of the columns whose values are numbers with a decimal comma.
        header: number of lines before the header, of which `sep=;` is one.
    """

    delimiter: str = ","
    decimals: frozenset[int] = frozenset()
    header: int = 0

    def convert(self, row: list[str]) -> list[str]:
        """Returns a row with a decimal point in its numbers."""
        if not self.decimals:
            return row
        return [field.replace(",", ".") if place in self.decimals else field for place, field in enumerate(row)]

    def describe(self, names: Sequence[str]) -> str | None:
        """Returns what is unusual about the file in words, None for commas."""
        if self.delimiter == ",":
            return None
        numbers = [name for place, name in enumerate(names) if place in self.decimals]
        commas = f", and 3,5 in {', '.join(numbers)} is the number 3.5" if numbers else ""
        return f"the columns are read as separated by {self.delimiter!r}{commas}"


def find_dialect(path: Path) -> Dialect:
    """Returns the form of a CSV file: semicolons if they give columns and commas do not.

    Raises:
        UserError: for lines that cannot be read.
    """
    first = next(iterate_lines(path), "").strip().strip('"').casefold()
    header = int(first in ("sep=;", "sep=,"))
    semicolon, comma = (_count_columns(path, sign, header) for sign in ";,")
    if first != "sep=;" and (semicolon < 2 or comma > 1):
        return Dialect(header=header)
    return Dialect(";", _find_decimals(path, header), header)


def _count_columns(path: Path, delimiter: str, header: int) -> int:
    """Returns the number of columns of the header, 0 if most of the first rows have another one or cannot be read."""
    try:
        counts = [len(row) for row in islice(_read(path, delimiter, header), _COMPARED)]
    except csv.Error:
        return 0
    return counts[0] if counts and 2 * counts.count(counts[0]) > len(counts) else 0


def _find_decimals(path: Path, header: int) -> frozenset[int]:
    """Returns the places of the columns whose values are all numbers, at least one of them with a comma."""
    numbers: dict[int, bool] = {}  # Whether a column of numbers has a comma.
    try:
        rows = _read(path, ";", header)
        numbers = dict.fromkeys(range(len(next(rows))), False)
        for row in rows:
            for place in [place for place in numbers if place < len(row) and row[place].strip()]:
                if _NUMBER.fullmatch(row[place].strip()):
                    numbers[place] |= "," in row[place]
                else:
                    del numbers[place]
    except csv.Error:  # The reader of the rows reports it.
        return frozenset()
    return frozenset(place for place, has_comma in numbers.items() if has_comma)


def _read(path: Path, delimiter: str, header: int) -> Iterator[list[str]]:
    """Yields the rows of a file that are not blank."""
    rows = csv.reader(islice(iterate_lines(path), header, None), strict=True, delimiter=delimiter)
    return (row for row in rows if any(field.strip() for field in row))


READ_BYTES = 2**18  # The default buffers would load a column's whole row group into memory.


@contextmanager
def open_parquet(path: Path) -> "Iterator[pyarrow.parquet.ParquetFile]":
    """Opens a Parquet file.

    Raises:
        UserError: if it cannot be read, at once or in the body, or pyarrow is missing.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{path} needs pyarrow: {install_command('train')}, or give the rows as .jsonl") from error
    try:
        with (
            reading_errors(path),
            pyarrow.parquet.ParquetFile(
                path, pre_buffer=False, buffer_size=READ_BYTES, page_checksum_verification=True
            ) as file,
        ):
            yield file
    except (pyarrow.ArrowException, MemoryError) as error:
        raise unreadable(path, error) from error


SUFFIXES = (".tsv", ".csv", ".jsonl", ".tsv.gz", ".csv.gz", ".jsonl.gz")

_LONGEST_FIELD = 2**31 - 1  # Characters of a CSV field; the default of `csv` is 131,072.
_NAMES_SHOWN = 20
_LEAST_SIMILAR = 0.75  # Of the name of a column that may be meant.
_DIGITS = re.compile(r"\d+$")

Row = Mapping[str, object]
Skipped = dict[int, UserError]  # The errors of lines that are left out, by the number of the line.


def read_rows(path: Path, skipped: Skipped | None = None, dialect: Dialect | None = None) -> Iterator[tuple[int, Row]]:
    """Yields the first line and the values by column of each row of a file of a type in `SUFFIXES`.

    Fields of CSV and TSV are strings. TSV has no quotes. Blank lines are skipped.

    Args:
        skipped: receives the errors of lines that have no clear meaning, which end the reading without it.
        dialect: as for `read_fields`.

    Raises:
        UserError: if the file cannot be read, or a line of it has no clear meaning.
    """
    if is_delimited(path):
        fields = read_fields(path, skipped, dialect)
        _, names = next(fields)
        yield from ((number, dict(zip(names, row, strict=True))) for number, row in fields)
        return
    found: dict[str, None] = {}
    for number, row in read_objects(path, skipped):
        found.update(dict.fromkeys(row))
        yield number, row
    if not found:
        none = UserError(f"{path} has no examples, expected an object on every line")
        raise next(iter((skipped or {}).values()), none)
    check_names(str(path), tuple(found))


def is_delimited(path: Path) -> bool:
    """Returns whether a file is CSV or TSV."""
    return path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv"))


def read_dialect(path: Path) -> Dialect:
    """Returns the form of a CSV file, that of usual CSV for others.

    Raises:
        UserError: if the file cannot be read.
    """
    with reading_errors(path), _long_fields():
        return Dialect() if _is_tsv(path) else find_dialect(path)


def read_fields(
    path: Path, skipped: Skipped | None = None, dialect: Dialect | None = None
) -> Generator[tuple[int, list[str]], None, None]:
    """Yields the first line and the fields of the header of a CSV or TSV file, and then of each row.

    Numbers with a decimal comma have a point.

    Args:
        skipped: receives the rows of another number of fields than the header, which end the reading without it.
        dialect: that of `read_dialect`; None finds it.

    Raises:
        UserError: if the file cannot be read, has no row, or has rows of another number of fields than its header.
    """
    names: list[str] = []
    dialect = dialect or read_dialect(path)
    with reading_errors(path), _long_fields():
        number = 0
        for first, row in _parse_tsv(path) if _is_tsv(path) else _parse_csv(path, dialect):
            if len(row) < 2 and not any(field.strip() for field in row):
                continue
            if not names:
                names = row
                check_names(str(path), names)
            elif len(row) == len(names):
                number = first
            else:
                fields = "1 field" if len(row) == 1 else f"{len(row)} fields"
                error = UserError(
                    f"{path}, line {first} has {fields}, its header {len(names)}: expected as many in every row"
                )
                if skipped is None:
                    raise error
                skipped[first] = error
                continue
            yield first, dialect.convert(row) if number else row
    if not names:
        raise UserError(f"{path} is empty, expected a header and examples")
    if not number:
        raise next(iter((skipped or {}).values()), UserError(f"{path} has a header and no examples"))


def read_objects(path: Path, skipped: Skipped | None = None) -> Iterator[tuple[int, Row]]:
    """Yields the number and the object of each line of a JSONL file, which may have none.

    Args:
        skipped: receives the lines that are no object, which end the reading without it.

    Raises:
        UserError: if the file cannot be read, or a line is no object.
    """
    with reading_errors(path):
        for number, line in enumerate(iterate_lines(path), 1):
            if line.strip():
                try:
                    row = _parse_json(path, number, line)
                except UserError as error:
                    if skipped is None:
                        raise
                    skipped[number] = error
                    continue
                yield number, row


def check_names(source: str, names: Sequence[str]) -> None:
    """Raises UserError for column names that differ in nothing but white space. Columns without a name are allowed."""
    seen: dict[str, str] = {}
    for name in names:
        plain = name.strip()
        if plain and plain in seen:
            columns = f"the column {name}" if seen[plain] == name else f"the columns {seen[plain]!r} and {name!r}"
            twice = " twice" if seen[plain] == name else ""
            raise UserError(f"{source} has {columns}{twice}, expected different names: rename one of them")
        seen[plain] = name


def show_names(names: Sequence[str]) -> str:
    """Returns names on one line: with quotes where white space or a control character would not show."""
    shown = [
        reprlib.repr(name) if name != name.strip() or not name.isprintable() or len(name) > 60 else name
        for name in names[:_NAMES_SHOWN]
    ]
    return ", ".join(shown) + (f", ... ({len(names)} in all)" if len(names) > _NAMES_SHOWN else "")


def suggest_column(missing: Sequence[str], names: Sequence[str]) -> str:
    """Returns ` (did you mean NAME?)` for the first missing column that is misspelt.

    `text2` is no slip for `text1`, and a name with white space around it is shown with quotes elsewhere.
    """
    for name in missing:
        plain = [other for other in names if other == other.strip()]
        others = [other for other in plain if _DIGITS.sub("", other) != _DIGITS.sub("", name)]
        if hint := did_you_mean(name, others, cutoff=_LEAST_SIMILAR):
            return hint
    return ""


@contextmanager
def _long_fields() -> Iterator[None]:
    """Raises the limit of `csv`, which is global, for the time of one file."""
    limit = csv.field_size_limit(_LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _is_tsv(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(".tsv")


def _parse_tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and the fields of each line."""
    for number, line in enumerate(iterate_lines(path), 1):
        content = line.removesuffix("\n").removesuffix("\r")
        if "\r" in content:
            raise lone_carriage_return(path, number)
        yield number, content.split("\t")


def _parse_csv(path: Path, dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
    """Yields the first line and the fields of each row, which may have more than one line."""
    rows = csv.reader(islice(iterate_lines(path), dialect.header, None), strict=True, delimiter=dialect.delimiter)
    skipped = dialect.header
    first = 1 + skipped
    try:
        for row in rows:
            yield first, row
            first = rows.line_num + 1 + skipped
    except csv.Error as error:
        if "new-line" in str(error):
            raise lone_carriage_return(path, rows.line_num + skipped) from error
        if "end of data" in str(error):
            raise UserError(f"{path}, line {first} opens a quote that is never closed") from error
        raise UserError(
            f"{path}, line {first}: {error}; a quote inside of a quoted field is written as two quotes"
        ) from error


def _parse_json(path: Path, number: int, line: str) -> dict[str, object]:
    def check_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
        content = dict(pairs)
        if len(content) < len(pairs):
            keys = [key for key, _ in pairs]
            doubled = next(key for key in keys if keys.count(key) > 1)
            raise UserError(f"{path}, line {number} has the key {reprlib.repr(doubled)} twice, expected it once")
        return content

    try:
        row = json.loads(line, object_pairs_hook=check_keys)
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}, line {number} is not valid JSON: {first_line(error)}") from error
    if not isinstance(row, dict):
        raise UserError(f'{path}, line {number} is {reprlib.repr(row)}, expected an object such as {{"text": ...}}')
    return row


def read_articles(path: Path) -> list[dict[str, Any]]:
    """Returns a row for each question of `qas`, with its `context` and the `title` of its article if it has one.

    Raises:
        UserError: for JSON of another form, and for a file without questions.
    """
    try:
        content = json.loads("".join(iterate_lines(path)))
        rows = [
            {"context": paragraph["context"], **({"title": article["title"]} if "title" in article else {}), **question}
            for article in content["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not valid JSON: {first_line(error)}") from error
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not in the format of SQuAD ({type(error).__name__}: {first_line(error)}), expected "
            '{"data": [{"paragraphs": [{"context": ..., "qas": [...]}]}]}; give rows as .jsonl'
        ) from error
    if not rows:
        raise UserError(f"{path} has no questions")
    return rows


# The words of a name, those that data sets of the Hub have.
WORDS: Mapping[str, str] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "val", "valid", "validation"), "dev"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_WORD = re.compile(r"[^\W\d_]+")
_SHARD = re.compile(r"(?P<stem>.+?)[-_.](?P<number>\d+)-of-(?P<count>\d+)")


def assign_splits(names: Sequence[str], suffixes: Sequence[str]) -> dict[str, str]:
    """Returns the split of each file of a folder whose name tells one; nothing if the names tell no splits.

    They do if there is a name of train and another one that differs in the word of the split alone, or else a `dev` or
    a `test` at the top of the folder beside files without a split, which are then train.

    Args:
        names: paths within the folder, with `/`.
        suffixes: of the files, without which their names are compared.
    """
    found = {name: read for name in names if (read := _read_split(name, suffixes)) is not None}
    of_rest: dict[str, set[str]] = {}
    for split, rest in found.values():
        of_rest.setdefault(rest, set()).add(split)
    if any("train" in splits and len(splits) > 1 for splits in of_rest.values()):
        return {name: split for name, (split, _) in found.items()}
    plain = {name: split for name, (split, rest) in found.items() if not rest and _is_at_top(name, suffixes)}
    is_one = len(plain) == len(names) and len(set(plain.values())) == 1
    if not plain or "train" in of_rest.get("", ()) or is_one:
        return {}
    return {name: plain.get(name, "train") for name in names}


def _read_split(name: str, suffixes: Sequence[str]) -> tuple[str, str] | None:
    """Returns the split of a file and the other words of its name, none if it or a folder is called as a split."""
    path = PurePosixPath(name)
    for folder in path.parts[:-1]:
        if folder.lower() in WORDS:
            return WORDS[folder.lower()], ""
    words = _WORD.findall(strip_suffix(path.name, suffixes).lower())
    others = [word for word in words if word not in WORDS and word not in ("of", "part", "shard")]
    splits = {WORDS[word] for word in words if word in WORDS}
    return (splits.pop(), " ".join([*path.parts[:-1], *others] if others else [])) if len(splits) == 1 else None


def _is_at_top(name: str, suffixes: Sequence[str]) -> bool:
    first, *others = PurePosixPath(name).parts
    return not others or first.lower() in WORDS


def strip_suffix(name: str, suffixes: Sequence[str]) -> str:
    """Returns the name of a file without the longest suffix that it has."""
    fitting = [suffix for suffix in suffixes if name.lower().endswith(suffix)]
    return name.removesuffix(name[len(name) - len(max(fitting, key=len)) :]) if fitting else name


def read_shard(path: PurePath, suffixes: Sequence[str]) -> tuple[str, int, int] | None:
    """Returns the stem of a file `train-00000-of-00002.parquet`, its number and the number of all files.

    >>> read_shard(PurePath("train-00000-of-00002.parquet"), [".parquet"])
    ('train', 0, 2)
    """
    match = _SHARD.fullmatch(strip_suffix(path.name, suffixes))
    return None if match is None else (match["stem"], int(match["number"]), int(match["count"]))
