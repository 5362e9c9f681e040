"""Reads the words and tags of a CoNLL file: which of its fields are words, and which of its lines are none."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from distill.errors import UserError
from distill.readers.lines import lone_carriage_return, read_lines

Notify = Callable[[str], None]  # Is called with each notice.

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


def parse_conll(path: Path, notify: Notify) -> Conll:
    """Splits a file into sentences and their lines into fields.

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
    kept, texts, comments = [], list[str | None](), 0
    for block, sentence in zip(blocks, sentences, strict=True):
        first = next((place for place, line in enumerate(sentence) if not _is_comment(line, width)), len(sentence))
        comments += first
        if sentence[first:]:
            kept.append(sentence[first:])
            texts.append(_find_text([line for _, line in block[:first]]))
    if comments:
        notify(f"{path}: lines of comments (# ...), which are left out: {comments:,}")
    _check_width(path, kept, width)
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


def _check_width(path: Path, sentences: Sequence[Sequence[_Line]], width: int) -> None:
    """Raises UserError for the first line with another number of fields than most lines have."""
    lines = [line for sentence in sentences for line in sentence]
    usual = next(line.number for line in lines if len(line.fields) == width)
    for line in lines:
        if len(line.fields) != width:
            number = len(line.fields)
            raise UserError(
                f"{path}, line {line.number} has {number} field{'s' if number > 1 else ''}, and line {usual} has "
                f"{width}, expected one number of fields in all lines: a word and its tag, between tabs if a word has "
                "a space"
            )
