"""Texts without labels, which the teacher labels: of files, and of a bank of sentences."""

import functools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeGuard

import numpy as np
from pydantic import SkipValidation

from distill.core import storage
from distill.core.console import print_line, print_notice
from distill.core.errors import UnreachableError, UserError
from distill.data import sources, splits
from distill.data.labelled_text import read_text_column
from distill.data.prose import WebCleaner, check_left, describe_cleaning, normalize_text, split_sentences
from distill.data.shards import Shards, is_sharded
from distill.data.splits import GIVEN_TEXTS, MOST_IN_BANK, OWN_ROWS, LabelledData, Split, text_split
from distill.rows.columns import SUFFIXES as ROW_SUFFIXES
from distill.rows.columns import Table
from distill.rows.formats import lone_carriage_return, read_lines, show_names

if TYPE_CHECKING:
    import datasets
    import pandas

    # A path or a Hub id, texts or pairs of texts, or a table.
    Unlabelled: TypeAlias = (
        str | Path | Sequence[object] | datasets.Dataset | pandas.DataFrame | Mapping[str, Sequence[object]]
    )
else:
    # `check_arguments` would import the libraries, and copy the data to check it.
    Unlabelled = Annotated[object, SkipValidation]

PLAIN = (".txt", ".txt.gz")
SUFFIXES = (*PLAIN, *ROW_SUFFIXES, *sources.SQUAD)
HUB_SPLITS = ("unsupervised", "unlabelled", "unlabeled", "train")
USUAL = "text"  # The column of a task of one text where the table has no column of the task's name.
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")


def is_hub_id(name: str) -> bool:
    """Returns whether a name may be that of a data set of the Hub."""
    return _HUB_ID.fullmatch(name) is not None and not name.endswith(SUFFIXES)


@dataclass(frozen=True)
class UnlabelledTables:
    """A source of tables without labels: a file, a directory of files, a data set of the Hub, or data in memory.

    Args:
        source: a path, an id of the Hub, rows, or a table. A plain text file has one text a line.
        text: the columns of text that rows in memory have.
        wanted: all columns that may be read.
        label: columns that are ignored with a notice.
        needs: what the task reads in place of single texts, so that it needs a table; None for single texts.
        option: names the source on the command line, for messages.
        nested: whether the folders of a directory are read too.
    """

    source: "Unlabelled"
    text: tuple[str, ...]
    wanted: tuple[str, ...]
    label: tuple[str, ...]
    needs: str | None = None
    option: str = "task.unlabelled"
    nested: bool = False

    @property
    def name(self) -> str:
        """Names the source in messages."""
        return f"{self.option}={self.source}" if isinstance(self.source, str | Path) else self.option.split(".")[-1]

    @property
    def origin(self) -> str:
        """Names the source in records: a file or directory without those that it is in."""
        if not isinstance(self.source, str | Path):
            return "data in memory"
        path = Path(self.source).expanduser()
        return path.resolve().name if path.exists() else str(self.source)

    def read(self) -> Iterator[Table]:
        """Yields the table of each file.

        Raises:
            UserError: if the source is missing or cannot be read.
        """
        for table in self._read():
            for column in self.label:
                if column in table.names:
                    print_notice(
                        f"{table.source}: the column {column} is ignored, because the teacher labels these texts"
                    )
            yield table

    def _read(self) -> Iterator[Table]:
        if not isinstance(self.source, str | Path):
            yield sources.from_dataset(splits.text_table(self.source, self.text), self.name, self.wanted)
            return
        path = Path(self.source).expanduser()
        if path.is_dir():
            yield from map(self._read_file, self._list_files(path))
        elif path.is_file():
            yield self._read_file(path)
        else:
            yield self._read_hub(str(self.source))

    def _list_files(self, directory: Path) -> list[Path]:
        found = directory.rglob("*") if self.nested else directory.iterdir()
        paths = sorted(path for path in found if path.is_file() and not path.name.startswith("."))
        files = [path for path in paths if path.name.endswith(SUFFIXES)]
        if not files:
            content = ", ".join(path.name for path in paths[:10]) or "no file"
            raise UserError(f"{self.name} has no text (found {content}), expected files in {', '.join(SUFFIXES)}")
        return files

    def _read_file(self, path: Path) -> Table:
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty, expected texts without labels ({self.option})")
        if path.name.endswith(PLAIN):
            if self.needs is not None:
                raise UserError(
                    f"{path} has one text a line, and the task has {self.needs}: give a table with the columns "
                    f"{' and '.join(self.text)} as {self.option}"
                )
            return Table(str(path), self.text, {self.text[0]: list(_read_texts(path))})
        sources.check_suffix(path, f"{self.option}={path}", SUFFIXES)
        return sources.read_file(path, self.wanted)

    def _read_hub(self, name: str) -> Table:
        missing = f"{self.option}={name} is no file and no directory"
        if not is_hub_id(name):
            raise UserError(f"{missing}, expected one of them or a data set of the Hub (owner/name)")
        try:
            loaded = storage.load_hub_dataset(name, f"data set {name}", advice="")
        except UnreachableError as error:
            raise UnreachableError(
                f"{missing}, and as a data set of the Hub it is not in the cache and cannot be downloaded: give a file "
                "or directory of texts, or go online once"
            ) from error
        split = next((split for split in HUB_SPLITS if split in loaded), None)
        if split is None:
            raise UserError(f"data set {name} has no split {' or '.join(HUB_SPLITS)}: it has {', '.join(loaded)}")
        return sources.from_dataset(loaded[split], f"{name} {split}", self.wanted)


@dataclass(frozen=True)
class UnlabelledText:
    """A source of texts without labels for a task of one text or a pair of texts.

    Args:
        source: as in `UnlabelledTables`, or texts or pairs of texts.
        text: the column of the text, or the two columns of a pair. A table without the one column may have `text`
            instead.
        label: columns that are ignored with a notice.
        option: sets `text` on the command line, for messages.
        split_words: splits a text into words, which are joined with spaces, for a task of words. Its tables may also
            have lists of words. None keeps texts as they are.
        clean: whether only the prose of web text stays, as `WebCleaner` leaves it; for single texts.
    """

    source: "Unlabelled"
    text: tuple[str, ...]
    label: tuple[str, ...]
    option: str = "task.text=[{}]"
    split_words: Callable[[str], Sequence[str]] | None = None
    clean: bool = False

    def add_to(self, data: LabelledData) -> LabelledData:
        """Returns the data with the texts that are in none of its splits, each once, as its pool.

        Raises:
            UserError: if the source is missing, cannot be read, lacks a column, or has no new text.
        """
        may_have_shards = isinstance(self.source, str | Path) and not str(self.source).endswith(SUFFIXES)
        if may_have_shards and is_sharded(path := storage.local_path(self.source)):
            return replace(data, pool=replace(data.pool, shards=Shards.open(path)))
        needs = "pairs of texts" if len(self.text) == 2 else None
        tables = UnlabelledTables(self.source, self.text, (*self.text, USUAL), self.label, needs)
        parts = map(self._select, tables.read())
        return fill_pool(data, tables, _clean_texts(parts, tables.name) if self.clean else parts)

    def _select(self, table: Table) -> Split:
        """Returns the texts of a table; an empty value is an empty text."""
        text = self.text
        if len(text) == 1 and text[0] not in table.names and USUAL in table.names:
            print_notice(f"{table.source} has no column {text[0]}: its column {USUAL} is read")
            text = (USUAL,)
        missing = [column for column in text if column not in table.names]
        if missing:
            pair = f", both columns of the pair {' and '.join(self.text)}" if len(self.text) == 2 else ""
            raise UserError(
                f"{table.source} has no column {', '.join(missing)}: it has {show_names(table.names)}; texts "
                f"without labels need the task's text columns, {self.option.format(','.join(self.text))}{pair}"
            )
        columns = [self._read_column(table, name) for name in text]
        return text_split(*columns)

    def _read_column(self, table: Table, name: str) -> list[str]:
        """Returns the texts of a column, whose words are joined with spaces if the task is one of words."""
        split_words, values = self.split_words, table.columns[name]
        if split_words is None:
            return read_text_column(table, name, may_be_empty=True, optional=True)
        joined = [" ".join(value) if _are_words(value) else value for value in values]
        texts = read_text_column(replace(table, columns={name: joined}), name, may_be_empty=True, optional=True)
        rows = zip(texts, values, strict=True)
        return [text if _are_words(value) else " ".join(split_words(text)) for text, value in rows]


def _clean_texts(parts: Iterable[Split], name: str) -> Iterator[Split]:
    """Yields the single texts of all parts after the cleaning of web text; one of which nothing is left is empty."""
    cleaner = WebCleaner()
    for part in parts:
        yield text_split([cleaner.clean(text).strip() for text in part.texts])
    check_left(cleaner, name)
    print_line(f"{name}: {describe_cleaning(cleaner.record())}")


def _are_words(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def fill_pool(data: LabelledData, tables: UnlabelledTables, parts: Iterable[Split]) -> LabelledData:
    """Returns the data with the rows of all parts that are in none of its splits, each once, in its pool.

    Args:
        tables: the source of the rows.

    Raises:
        UserError: if there is none.
    """
    rows = functools.reduce(operator.add, parts)
    kept, removed = clean(rows, data)
    if not len(kept):
        reason = f"all {len(rows):,} texts are removed ({describe_removed(removed)})" if len(rows) else "it has no text"
        raise UserError(f"{tables.name} leaves nothing to learn from: {reason}; give texts that are in no split")
    return _add(data, kept, removed, tables.name, (GIVEN_TEXTS, tables.origin))


def clean_pool(data: LabelledData) -> LabelledData:
    """Returns the data whose pool has only those rows that are in none of its splits, each once."""
    if data.pool.rows is None:
        return data
    data, rows = replace(data, pool=replace(data.pool, rows=None)), data.pool.rows
    return _add(data, *clean(rows, data), OWN_ROWS, (OWN_ROWS, "the task's own table"))


def _add(
    data: LabelledData, rows: Split, removed: Mapping[str, int], name: str, source: tuple[str, str]
) -> LabelledData:
    """Returns the data with cleaned rows in its pool, with the name and the origin of their source, and prints both."""
    print_line(f"{name}: {len(rows):,} texts for the teacher to label; removed: {describe_removed(removed)}")
    if not len(rows):
        return data
    counts = {reason: data.pool.removed.get(reason, 0) + number for reason, number in removed.items()}
    return replace(data, pool=replace(data.pool.add(rows, *source), removed=counts))


def clean(rows: Split, data: LabelledData, *, by_sentence: bool = False) -> tuple[Split, dict[str, int]]:
    """Returns the rows that are not empty and new, each once, and the number of those removed by reason.

    Texts are compared without their case and their white space. Reasons are `empty`, a split that has the row,
    scored splits before train, and `doubled` for a row of the pool or an earlier one. Of the scored splits no row stays
    in another order of its texts, such as a pair with its texts exchanged, and no single text of several.

    Args:
        by_sentence: whether no sentence of a text of the scored splits stays either.
    """
    chosen, removed = KnownTexts.of(data, by_sentence=by_sentence).choose_new(rows)
    return rows.select(chosen), removed


@dataclass(frozen=True)
class KnownTexts:
    """The texts of the splits of a task and of its pool, of which none is in further rows.

    Args:
        scored: the scored split of each text and of each row, in any order of its texts.
        found: `train` or `doubled` for each row.
        is_empty: tells a row that has nothing to learn from.
        reasons: all reasons for which a row may be left out.
    """

    scored: Mapping[object, str]
    found: Mapping[object, str]
    is_empty: Callable[[Sequence[str]], bool]
    reasons: tuple[str, ...]

    @classmethod
    def of(cls, data: LabelledData, *, by_sentence: bool = False) -> "KnownTexts":
        """Returns those of the data, with `by_sentence` as in `clean`."""
        scored: dict[object, str] = {}
        for name, split in data.scored().items():
            for texts in split.compared_texts():
                scored.setdefault(tuple(sorted(map(normalize_text, texts))), name)
                sentences = (
                    [of for text in texts for of in split_sentences(" ".join(text.split()))] if by_sentence else []
                )
                for text in (*texts, *sentences):
                    scored.setdefault((normalize_text(text),), name)
        found: dict[object, str] = dict.fromkeys(_keys(data.splits["train"]), "train")
        for key in _keys(data.pool.rows) if len(data.pool) else ():
            found.setdefault(key, "doubled")
        return cls(scored, found, data.is_empty, ("empty", *data.scored(), "train", "doubled"))

    def choose_new(self, rows: Split) -> tuple[np.ndarray, dict[str, int]]:
        """Returns the numbers of the rows that are new, each once, and of those removed by reason, as `clean`."""
        removed = dict.fromkeys(self.reasons, 0)
        chosen, seen = [], set[object]()
        for row, key in enumerate(_keys(rows)):
            reason = "empty" if self.is_empty(key) else self.scored.get(tuple(sorted(key)), self.found.get(key))
            if reason is None and key not in seen:
                chosen.append(row)
                seen.add(key)
            else:
                removed[reason or "doubled"] += 1
        return np.array(chosen, dtype=np.int64), removed


def describe_removed(removed: Mapping[str, int]) -> str:
    """Returns the numbers of the removed texts in words: `24 in dev, 3 doubled`."""
    words = [
        f"{number:,} {reason if reason in ('empty', 'doubled') else f'in {reason}'}"
        for reason, number in removed.items()
        if number
    ]
    return ", ".join(words) or "none"


def _keys(rows: Split) -> Iterator[tuple[str, ...]]:
    """Yields the normalized texts that are compared."""
    return (tuple(map(normalize_text, texts)) for texts in rows.compared_texts())


def _read_texts(path: Path) -> Iterator[str]:
    """Yields the text of each line."""
    for number, line in enumerate(read_lines(path), 1):
        text = line.strip()
        if "\r" in text:
            raise lone_carriage_return(path, number)
        yield text


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
    return np.array(list(dict.fromkeys(nearest.T.ravel().tolist())), dtype=nearest.dtype)


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


def check_texts(paths: Sequence[str], option: str) -> None:
    """Raises UserError for a path that is no file and no directory."""
    for path in paths:
        if not Path(path).expanduser().exists():
            raise UserError(f"{option}={path} does not exist, expected a file or a directory of texts")


def read_texts(paths: Sequence[str], option: str) -> Iterator[str]:
    """Yields every text in any column of the files, and of all files of a directory.

    Args:
        option: names the files on the command line, for messages.

    Raises:
        UserError: for a file that is missing or cannot be read.
    """
    check_texts(paths, option)
    for path in paths:
        named = UnlabelledTables(path, ("text",), wanted=(), label=(), option=option)
        for table in named.read():  # Of each file only the names of the columns, as texts are read by name.
            wanted = replace(named, source=table.source, wanted=table.names)
            for column in (values for found in wanted.read() for values in found.columns.values()):
                yield from (text for value in column for text in _list_texts(value))


def _list_texts(value: object) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str)]
