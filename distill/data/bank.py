"""A bank of sentences: its texts and prose as single sentences, and those that are near the training texts."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from distill.console import print_line
from distill.data.auto_text import MOST_IN_BANK
from distill.data.columns import read_text_column
from distill.data.unlabelled import USUAL, Unlabelled, UnlabelledTables
from distill.errors import UserError
from distill.readers.cleaning import WebCleaner, check_left, describe_cleaning
from distill.readers.columns import Table
from distill.readers.sentences import split_sentences

FEWEST, MOST = 12, 400  # Characters of a sentence.
LEAST_LETTERS = 0.7  # Share of letters among the characters of a sentence, which a heading or a formula does not have.
WRAPPED, WIDEST = 50, 100  # Characters of a usual and of the longest line of wrapped prose.
BANK_BLOCK, QUERY_BLOCK = 8_192, 1_024  # Rows of the products of vectors, 32 MB each.
_MARKUP = re.compile(r"</?(?:br|p|i|b|em|strong|div|span|a|ul|ol|li|h[1-6])\b[^<>]*>", re.IGNORECASE)
_ENDS = tuple(".!?:;\"'")


@dataclass(frozen=True)
class Bank:
    """The sentences of a bank, each once, and its name in records."""

    sentences: list[str]
    name: str

    def __len__(self) -> int:
        return len(self.sentences)


@dataclass(frozen=True)
class BankSource:
    """A source of sentences: files, a directory with its folders, a data set of the Hub, or data in memory.

    Args:
        column: of the texts in a table, which may also be called `text`.
        clean: whether only the prose of web text is read, as `WebCleaner` leaves it.
    """

    source: Unlabelled
    column: str
    clean: bool = False

    def read(self) -> Bank:
        """Returns the sentences; of more than `MOST_IN_BANK` as many are taken, evenly spaced.

        Raises:
            UserError: if the source is missing, cannot be read, lacks the column, or has no sentence.
        """
        column = self.column
        tables = UnlabelledTables(self.source, (column,), (column, USUAL), (), option="task.bank", nested=True)
        cleaner = WebCleaner() if self.clean else None
        sentences = (sentence for table in tables.read() for sentence in _read_sentences(table, column, cleaner))
        found = list(dict.fromkeys(sentences))
        if cleaner is not None:
            check_left(cleaner, tables.name)
            print_line(f"{tables.name}: {describe_cleaning(cleaner.record())}")
        if not found:
            raise UserError(
                f"{tables.name} has no sentence of {FEWEST} to {MOST} characters: give texts in the domain of the task"
            )
        number, of_all = len(found), ""
        if number > MOST_IN_BANK:
            found = [found[row] for row in np.linspace(0, number - 1, MOST_IN_BANK).astype(int)]
            of_all = f", of which {len(found):,} are read, evenly spaced"
        print_line(f"{tables.name}: {number:,} different sentences{of_all}")
        return Bank(found, tables.origin)


def _read_sentences(table: Table, column: str, cleaner: WebCleaner | None = None) -> Iterator[str]:
    """Yields the sentences of a table; an empty value has none."""
    name = column if column in table.names else USUAL
    if name not in table.names:
        raise UserError(f"{table.source} has no column {column} and no column {USUAL}: rename that of its texts")
    texts = read_text_column(table, name, may_be_empty=True, optional=True)
    # The lines of a plain text are rows; a text of another table may have several lines.
    for lines in [texts] if table.names == (column,) else (text.splitlines() for text in texts):
        passages = join_wrapped_lines([line.strip() for line in lines])
        for passage in passages if cleaner is None else cleaner.clean_lines(passages):
            for sentence in split_sentences(" ".join(_MARKUP.sub(" ", passage).split())):
                if FEWEST <= len(sentence) <= MOST and _is_prose(sentence):
                    yield sentence


def _is_prose(sentence: str) -> bool:
    letters = sum(map(str.isalpha, sentence))
    return letters >= LEAST_LETTERS * (len(sentence) - sentence.count(" "))


def join_wrapped_lines(lines: Sequence[str]) -> list[str]:
    """Returns the paragraphs of prose whose lines are wrapped, and the lines of any other text.

    Wrapped prose has blank lines between paragraphs, and lines of similar lengths, most of which end within a sentence.
    """
    filled = [line for line in lines if line]
    lengths = np.array([len(line) for line in filled])
    within = sum(not line.endswith(_ENDS) for line in filled)
    is_wrapped = len(filled) < len(lines) and 2 * within > len(filled)
    if not is_wrapped or np.median(lengths) < WRAPPED or np.quantile(lengths, 0.95) > WIDEST:
        return filled
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line:
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return [" ".join(paragraph) for paragraph in paragraphs if paragraph]


def find_nearest(bank: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
    """Returns the rows of the `count` nearest vectors of a bank for each query, the nearest first, `[Q, count]`.

    Args:
        bank: vectors of length 1, `[N, H]`.
        queries: vectors of length 1, `[Q, H]`.
    """
    count = min(count, len(bank))
    cosines = np.full((len(queries), 0), -np.inf, dtype=np.float32)
    rows = np.zeros((len(queries), 0), dtype=np.int64)
    for first in range(0, len(bank), BANK_BLOCK):
        block = bank[first : first + BANK_BLOCK].astype(np.float32)
        parts = [
            _take_largest(queries[begin : begin + QUERY_BLOCK].astype(np.float32) @ block.T, count)
            for begin in range(0, len(queries), QUERY_BLOCK)
        ]
        of_block, places = (np.concatenate(part) for part in zip(*parts, strict=True))
        cosines, rows = np.hstack([cosines, of_block]), np.hstack([rows, places + first])
        cosines, kept = _take_largest(cosines, count)
        rows = np.take_along_axis(rows, kept, axis=1)
    return rows


def _take_largest(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `count` largest values of each row and their places, the largest first."""
    count = min(count, values.shape[1])
    places = np.argpartition(-values, count - 1, axis=1)[:, :count]
    places.sort(axis=1)  # Equal values stay in their order.
    largest = np.take_along_axis(values, places, axis=1)
    order = np.argsort(-largest, axis=1, kind="stable")
    return np.take_along_axis(largest, order, axis=1), np.take_along_axis(places, order, axis=1)


def take_in_turns(nearest: np.ndarray) -> np.ndarray:
    """Returns the rows of `nearest [Q, count]`, each once: the first of every query, then the second of every query.

    >>> take_in_turns(np.array([[4, 2], [4, 7]])).tolist()
    [4, 2, 7]
    """
    in_turns = nearest.T.ravel()
    _, first = np.unique(in_turns, return_index=True)
    return np.asarray(in_turns[np.sort(first)])


def balance(classes: np.ndarray, count: int) -> np.ndarray:
    """Returns the places of `count` candidates, as many of each class as there are, in their order.

    Args:
        classes: `[N]`, those of the candidates, the best of which come first.

    >>> balance(np.array([0, 0, 0, 0, 1]), 3).tolist()
    [0, 1, 4]
    """
    turns = np.zeros(len(classes), dtype=np.int64)  # The candidates of the class before each one.
    for name in np.unique(classes):
        of_class = classes == name
        turns[of_class] = np.arange(of_class.sum())
    return np.sort(np.argsort(turns, kind="stable")[:count])
