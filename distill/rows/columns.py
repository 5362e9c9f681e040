"""Columns of files and words of CoNLL files, with the line of each row and the lines that cannot be read."""

import codecs
import math
import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from distill.core.errors import UserError
from distill.rows.formats import SUFFIXES as ROW_SUFFIXES
from distill.rows.formats import (
    Lines,
    Notify,
    Skipped,
    check_names,
    is_delimited,
    lone_carriage_return,
    name_row,
    open_file,
    open_parquet,
    read_dialect,
    read_fields,
    read_lines,
    read_rows,
    reading_errors,
    select_lines,
)

SUFFIXES = (*ROW_SUFFIXES, ".parquet")
_DELIMITERS = (";", "\t", "|", ",")
FIRST_ROWS = 50_000  # Of a Parquet file that is not read as a whole.
SAMPLED = 50  # Rows of the columns that no task reads, of which a message offers those of text.


@dataclass(frozen=True)
class Table:
    """The rows of one source, with the columns that a task reads.

    Args:
        source: names the rows in messages.
        names: all columns of the source.
        columns: values of the wanted columns that the source has; None where a row of JSONL lacks one.
        classes: names of the classes of each column that is a `datasets.ClassLabel`, or a list of them, whose values
            are their indices, or -1 for an example without a label.
        lines: of the rows.
        samples: the first values of the other columns.
        unreadable: the errors of lines that are left out.
        schema: of a Parquet file, None for others.
        parts: the files of several parts.
        note: what is unusual about the form of the file, in words.
        left_out: number of the last rows of a large file, which are counted alone.
    """

    source: str
    names: tuple[str, ...]
    columns: Mapping[str, Sequence[object]]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lines: Lines = None
    samples: Mapping[str, Sequence[object]] = field(default_factory=dict)
    unreadable: Skipped = field(default_factory=dict)
    schema: Any = None
    parts: tuple[str, ...] = ()
    note: str | None = None
    left_out: int = 0

    @property
    def path(self) -> Path:
        """Returns the file, of several parts the first one."""
        return Path(self.parts[0] if self.parts else self.source)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def find(self, names: Sequence[str]) -> list[str]:
        """Returns those of these columns that the source has."""
        return [name for name in names if name in self.names]

    def select(self, rows: Iterable[int], source: str | None = None) -> "Table":
        """Returns these rows, with `source` under another name in messages."""
        chosen = list(map(int, rows))
        columns = {name: [values[row] for row in chosen] for name, values in self.columns.items()}
        return replace(self, source=source or self.source, columns=columns, lines=select_lines(self.lines, chosen))

    def place(self, row: int) -> str:
        """Returns the name of a row in messages."""
        return f"{self.source}, {name_row(row, self.lines)}"


def read_table(
    path: Path, wanted: Collection[str] | None = None, skipped: Skipped | None = None, most: float = math.inf
) -> Table:
    """Reads the wanted columns of a file of a type in `SUFFIXES`, all of them without `wanted`.

    Fields of CSV and TSV are strings. TSV has no quotes. Blank lines of CSV, TSV and JSONL are skipped.

    Args:
        skipped: receives the errors of lines that have no clear meaning, which end the reading without it.
        most: characters of the first rows, behind which rows are only counted, and bytes of a Parquet file of which all
            rows are read.

    Raises:
        UserError: if the file cannot be read.
    """
    with reading_errors(path):
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty, expected a header and examples")
        if path.name.endswith(".parquet"):
            return _read_parquet(path, wanted, most)
        return _read_text(path, wanted, skipped, most)


def join_tables(tables: Sequence[Table]) -> Table:
    """Returns the rows of one table, or of all parts of one, whose rows are counted from the first part on.

    Raises:
        UserError: for parts with other columns or classes than the first one.
    """
    first, *others = tables
    if not others:
        return first
    for other in others:
        if set(other.names) != set(first.names) or other.classes != first.classes:
            raise UserError(
                f"{other.source} has the columns {', '.join(other.names)}, and {first.source} has "
                f"{', '.join(first.names)}: expected the same columns and classes in all parts of a file"
            )
    columns = {name: [value for of in tables for value in of.columns[name]] for name in first.columns}
    unreadable = {line: error for of in tables for line, error in of.unreadable.items()}
    return replace(
        first, source=f"{first.source} and {len(others)} more", columns=columns, lines=None, unreadable=unreadable,
        parts=tuple(of.source for of in tables), left_out=sum(of.left_out for of in tables),
    )  # fmt: skip


def read_columns(*paths: Path, most: float = math.inf) -> Table:
    """Reads all columns of a file of a type in `SUFFIXES`, or of its parts, without the lines of no clear meaning.

    Args:
        most: of each file, as for `read_table`.

    Raises:
        UserError: if a file cannot be read at all, or has columns with another delimiter.
    """
    return join_tables([_read_all_columns(path, most) for path in paths])


def _read_all_columns(path: Path, most: float) -> Table:
    if not path.name.lower().endswith(SUFFIXES):
        raise UserError(
            f"{path} is of no known kind, expected one of {', '.join(SUFFIXES)}; others are checked by a dry run"
        )
    table = read_table(path, skipped={}, most=most)
    if not len(table):
        raise UserError(f"{path} has no examples")
    return table


def has_mark(path: Path) -> bool:
    """Returns whether a text file begins with a byte order mark."""
    with reading_errors(path), open_file(path) as file:
        return file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8


def _read_text(path: Path, wanted: Collection[str] | None, skipped: Skipped | None, most: float) -> Table:
    """Reads the wanted columns of CSV, TSV or JSONL."""
    names, dialect, note = dict[str, None](), None, None
    if is_delimited(path):
        dialect = read_dialect(path)
        with closing(read_fields(path, dialect=dialect)) as fields:
            _, header = next(fields)
        if skipped is not None:
            _check_delimiter(path, header)
        names, note = dict.fromkeys(header), dialect.describe(header)
    columns = {name: list[object]() for name in names if wanted is None or name in wanted}
    lines, samples = array("q"), dict[str, list[object]]()
    size = left_out = 0
    for line, row in read_rows(path, skipped, dialect):
        if size >= most:
            left_out += 1
            continue
        size += len(str(row)) if most < math.inf else 0
        for name in [name for name in row if name not in names]:
            names[name] = None
            if wanted is None or name in wanted:
                columns[name] = [None] * len(lines)
        for name in [name for name in row if name not in columns] if len(lines) < SAMPLED else ():
            samples.setdefault(name, []).append(row[name])
        for name, values in columns.items():
            values.append(row.get(name))
        lines.append(line)
    columns = {name: columns[name] for name in (names if wanted is None else wanted) if name in columns}
    return Table(
        str(path), tuple(names), columns, lines=lines, samples=samples, unreadable=skipped or {}, note=note,
        left_out=left_out,
    )  # fmt: skip


def _check_delimiter(path: Path, names: Sequence[str]) -> None:
    """Raises UserError for a header whose names have another delimiter between them than the type of the file."""
    others = [delimiter for delimiter in _DELIMITERS if len(names) == 1 and delimiter in names[0]]
    if others:
        shown = {"\t": "a tab"}.get(others[0], repr(others[0]))
        kind, expected = (".csv", "commas") if ".csv" in path.name.lower() else (".tsv", "tabs")
        rename = {("\t", ".csv"): "rename it to .tsv", (",", ".tsv"): "rename it to .csv"}
        advice = rename.get((others[0], kind), f"write it again with {expected}")
        raise UserError(
            f"{path} has one column {names[0]!r} with {shown} in its name, expected {expected} between the columns of "
            f"{kind}: {advice}"
        )


def _read_parquet(path: Path, wanted: Collection[str] | None, most: float) -> Table:
    """Reads the wanted columns of Parquet, which has no lines."""
    with open_parquet(path) as file:
        schema = file.schema_arrow
        names = tuple(schema.names)
        check_names(str(path), names)
        chosen = [name for name in names if wanted is None or name in wanted]
        rows = file.metadata.num_rows
        is_whole = most == math.inf or (rows <= FIRST_ROWS and path.stat().st_size <= most)
        table = file.read(columns=chosen) if is_whole else next(file.iter_batches(FIRST_ROWS, columns=chosen))
        others = [name for name in names if name not in chosen and is_string(schema.field(name).type)]
        first = next(file.iter_batches(SAMPLED, columns=others), None) if others else None
    return Table(
        str(path), names, table.to_pydict(), samples={} if first is None else first.to_pydict(), schema=schema,
        left_out=0 if is_whole else rows - len(table),
    )  # fmt: skip


def is_string(kind: object) -> bool:
    """Returns whether the values of a type of Arrow, or of a feature of `datasets`, are strings."""
    return str(getattr(kind, "dtype", kind)) in ("string", "large_string")


BLANK = " \t\r\n"
DOCUMENT = "-DOCSTART-"
_NUMBER = re.compile(r"\d+")
_FURTHER = re.compile(r"\d+[-.]\d+")  # Numbers of CoNLL-U for several words in one, and for a word that is not written.
_TEXT = re.compile(r"#\s*text\s*=")
_MOST_NUMBERS = 0.5  # A larger share of numbers among the words is reported.


class _Line(NamedTuple):
    """A line with its number in the file, from 1."""

    number: int
    fields: list[str]


@dataclass(frozen=True)
class Sentences:
    """The words and the tags of each sentence, its text where a comment `# text = ...` has it, and its first line."""

    words: list[list[str]]
    tags: list[list[str]]
    texts: list[str | None]
    lines: list[int]


@dataclass(frozen=True)
class Conll:
    """The sentences of a CoNLL file, of which all lines have the same number of fields, and their texts."""

    path: Path
    sentences: list[list[_Line]]
    texts: list[str | None]
    notify: Notify

    @property
    def width(self) -> int:
        """The number of fields of a line."""
        return len(self.sentences[0][0].fields)

    def find_words(self, word_column: int | None, column: int) -> int:
        """Returns the column of the words, counted from 0, and notifies which one it is where that is not plain.

        Args:
            word_column: as the user gave it; None takes the first one, or the second one behind the numbers of the
                words.
            column: that of the tags.

        Raises:
            UserError: for a column that there is not, and for one that both words and tags are in.
        """
        chosen, tags = 0 if word_column is None else word_column, self._resolve(column)
        if word_column is None and self.width > 2 and self._has_index():
            chosen = 1
            self.notify(
                f"{self.path}: the first column has the numbers of the words, so that the words are read from the "
                "second one; set task.word_column=0 if the numbers are the words"
            )
        first, words = self.sentences[0][0], self._resolve(chosen)
        if words is None or tags is None or not first.fields[tags]:
            raise self._missing(first, chosen, column)
        if words == tags:
            raise UserError(
                f"{self.path}: the words and the tags are both in column {tags}: set task.word_column and task.column "
                "to different columns"
            )
        return words

    def _resolve(self, column: int) -> int | None:
        """Returns a column counted from 0; None if there is not this one."""
        return column % self.width if -self.width <= column < self.width and self.width > 1 else None

    def _missing(self, line: _Line, word_column: int, column: int) -> UserError:
        word = "a word" if word_column == 0 else f"a word in column {word_column}"
        plain = ("\t" if any(" " in part or not part for part in line.fields) else " ").join(line.fields)
        return UserError(f"{self.path}, line {line.number} is {plain!r}, expected {word} and a tag in column {column}")

    def _has_index(self) -> bool:
        """Returns whether the first fields count the words of each sentence, or of the whole file, from 0 or 1."""
        numbers = [
            [int(line.fields[0]) for line in sentence if not _FURTHER.fullmatch(line.fields[0])]
            if all(_NUMBER.fullmatch(line.fields[0]) or _FURTHER.fullmatch(line.fields[0]) for line in sentence)
            else [-1]
            for sentence in self.sentences
        ]
        whole = [number for of_sentence in numbers for number in of_sentence]
        if len(whole) < 2:
            return False
        return _counts(whole) or all(map(_counts, numbers))

    def read(self, word_column: int | None, column: int) -> Sentences:
        """Returns the words, the tags and the text of each sentence.

        Raises:
            UserError: as `find_words`, and for a line without a word or a tag.
        """
        place = self.find_words(word_column, column)
        read = Sentences([], [], [], [])
        for sentence, text in zip(self.sentences, self.texts, strict=True):
            rows = [line for line in sentence if place == 0 or not _FURTHER.fullmatch(line.fields[0])]
            for line in rows:
                if not line.fields[place] or not line.fields[column]:
                    raise self._missing(line, place, column)
            if rows:
                read.words.append([line.fields[place] for line in rows])
                read.tags.append([line.fields[column] for line in rows])
                read.texts.append(text)
                read.lines.append(rows[0].number)
        if word_column is None:
            self._report_numbers(read.words, place)
        return read

    def _report_numbers(self, words: Sequence[Sequence[str]], place: int) -> None:
        every = [word for of_sentence in words for word in of_sentence]
        share = sum(word.isdecimal() for word in every) / len(every)
        if share > _MOST_NUMBERS:
            self.notify(
                f"{self.path}: {share:.0%} of the words in column {place} are numbers, such as {every[0]}; if the "
                "words are in another column, set task.word_column"
            )


def _counts(numbers: Sequence[int]) -> bool:
    """Returns whether numbers are 0, 1, 2, ... or 1, 2, 3, ...."""
    first = next(iter(numbers), -1)
    return first in (0, 1) and list(numbers) == list(range(first, first + len(numbers)))


def read_conll(path: Path, column: int, word_column: int | None = None, *, notify: Notify) -> Sentences:
    """Returns the words, the tags and the text of each sentence of a CoNLL file.

    A line has a word in `word_column`, and its tag in `column`, between tabs, or in a sentence without a tab between
    spaces. Blank lines and lines of `-DOCSTART-` end a sentence. Lines of `# ...` before its first word are comments.

    Args:
        column: counted from 0, or from the end if below 0.
        word_column: counted alike; None takes the first one that does not count the words.

    Raises:
        UserError: for a file that cannot be read or has no word, a line without the columns, and one with another
            number of fields than the others.
    """
    return parse_conll(path, notify).read(word_column, column)


def parse_conll(path: Path, notify: Notify, skipped: Skipped | None = None) -> Conll:
    """Splits a file into sentences and their lines into fields.

    Args:
        skipped: receives the errors of lines with another number of fields than most, which end the reading without it.

    Raises:
        UserError: as `read_conll`, apart from the columns.
    """
    blocks: list[list[tuple[int, str]]] = [[]]
    for number, line in enumerate(read_lines(path), 1):
        plain = line.strip(BLANK)
        if "\r" in plain:
            raise lone_carriage_return(path, number)
        if plain and DOCUMENT not in plain.split(maxsplit=2)[:2]:
            blocks[-1].append((number, line.strip(" \r\n")))  # The last field between tabs may be empty.
        elif blocks[-1]:
            blocks.append([])
    blocks = list(filter(None, blocks))
    sentences = list(map(_split_fields, blocks))
    counts = Counter(len(line.fields) for sentence in sentences for line in sentence if line.fields[0] != "#")
    if not counts:
        raise UserError(f"{path} is empty, expected a word and its tag on each line")
    [(width, _)] = counts.most_common(1)
    kept, texts, others, comments = [], list[str | None](), list[_Line](), 0
    for block, sentence in zip(blocks, sentences, strict=True):
        first = next((place for place, line in enumerate(sentence) if not _is_comment(line, width)), len(sentence))
        comments += first
        others += [line for line in sentence[first:] if len(line.fields) != width]
        if words := [line for line in sentence[first:] if len(line.fields) == width]:
            kept.append(words)
            texts.append(_find_text([line for _, line in block[:first]]))
    if comments:
        notify(f"{path}: lines of comments (# ...), which are left out: {comments:,}")
    errors = {line.number: _other_width(path, line, usual=kept[0][0]) for line in others}
    if errors and skipped is None:
        raise next(iter(errors.values()))
    if skipped is not None:
        skipped |= errors
    return Conll(path, _drop_empty_ends(kept, width), texts, notify)


def _find_text(comments: Sequence[str]) -> str | None:
    """Returns the text of a sentence from its comments; None if they have none."""
    found = [line.partition("=")[2].strip() for line in comments if _TEXT.match(line)]
    return found[0] if found else None


def _drop_empty_ends(sentences: Sequence[Sequence[_Line]], width: int) -> list[list[_Line]]:
    """Returns the sentences without the last fields that are empty in all lines, as a tab at every end leaves them."""
    while width > 1 and not any(line.fields[width - 1] for sentence in sentences for line in sentence):
        width -= 1
    return [[_Line(line.number, line.fields[:width]) for line in sentence] for sentence in sentences]


def _split_fields(block: Sequence[tuple[int, str]]) -> list[_Line]:
    """Returns the lines of a sentence, whose fields are between tabs if one of them has a tab that is no comment."""
    has_tabs = any("\t" in line for _, line in block if not line.startswith("#")) or all(
        "\t" in line for _, line in block
    )
    if has_tabs:
        # Other white space, such as a no-break space, may be part of a word.
        return [_Line(number, [part.strip(" ") for part in line.split("\t")]) for number, line in block]
    return [_Line(number, [part for part in line.split(" ") if part]) for number, line in block]


def _is_comment(line: _Line, width: int) -> bool:
    """Returns whether a line before the first word of a sentence is none of its words."""
    first, *more = line.fields
    if len(line.fields) == width:
        return first == "#" and more[1:2] == ["="]  # Such as `# text = ...`.
    return first.startswith(("# ", "#\t")) or (first == "#" and bool(more))


def _other_width(path: Path, line: _Line, usual: _Line) -> UserError:
    """Returns the error for a line with another number of fields than most lines have."""
    number = len(line.fields)
    return UserError(
        f"{path}, line {line.number} has {number} field{'s' if number > 1 else ''}, and line {usual.number} has "
        f"{len(usual.fields)}, expected one number of fields in all lines: a word and its tag, between tabs if a word "
        "has a space"
    )
