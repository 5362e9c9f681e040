"""Reads sentences of words with a tag each: CoNLL files, tables with a list of words and one of tags, and the Hub."""

import reprlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from distill.console import print_notice
from distill.data import readers
from distill.data.columns import check_surrogates
from distill.data.held_out import text_keys
from distill.data.sources import TableSource, check_columns
from distill.data.tables import LabelledData, Split, create_data
from distill.edge.splitting import locate_in_text, place_words, split_letters
from distill.edge.words import Span
from distill.errors import UserError
from distill.readers.columns import Table
from distill.readers.conll import BLANK, read_conll
from distill.readers.missing import is_without_label

OUTSIDE = "O"
CONLL = (".conll", ".txt", ".conll.gz", ".txt.gz")
SUFFIXES = (*CONLL, ".jsonl", ".jsonl.gz", ".parquet")
_PREFIXES = ("B", "I", "E", "S")
TEXT = "text"  # The column of a table with the plain text of each sentence, which it may have.
ADVICE = "name yours with task.tokens=... and task.tags=..."
_SHOWN = 8  # Tags in a message.


def tagged_split(
    words: list[list[str]], tags: list[np.ndarray] | None = None, plain: list[str | None] | None = None
) -> Split:
    """Returns sentences as words, and the tag of each word as an index, `[words]` for each sentence.

    Args:
        tags: None for a pool.
        plain: the text that the data has of each sentence, None for one without; None if it has none at all.
    """
    columns: dict[str, list[Any]] = {"text": [" ".join(sentence) for sentence in words], "words": words}
    columns |= {} if tags is None else {"tags": tags}
    columns |= {} if plain is None else {"plain": plain}
    return Split(columns, ("text",), _create_record)


def _list_content(splits: Mapping[str, Split]) -> dict[str, list[Any]]:
    return {name: [split["words"], [tags.tolist() for tags in split["tags"]]] for name, split in splits.items()}


def _create_record(row: Mapping[str, Any]) -> dict[str, list[str]]:
    return {"tokens": row["words"]}


def plain_texts(sentences: Split) -> list[str | None]:
    """Returns the text that the data has of each sentence, None for one without."""
    return list(sentences.columns.get("plain", [None] * len(sentences)))


def place_sentences(sentences: Split) -> list[tuple[str, tuple[Span, ...]]]:
    """Returns the plain text of each sentence and the characters of its words: that of the data, or its words."""
    return [place_words(words, text) for words, text in zip(sentences["words"], plain_texts(sentences), strict=True)]


@dataclass(frozen=True)
class TaggedText:
    """A source of sentences with tags in BIO, IOB1 or BIOES.

    Args:
        source: the tables of the splits, with the columns `tokens` and `tags`.
        tokens: the column with the words of each sentence.
        tags: the column with the tags of each sentence.
        label_names: names of the tags in the order of the data's integers; None takes those of a `datasets.ClassLabel`,
            or else the tags of all splits.
    """

    source: TableSource
    tokens: str
    tags: str
    label_names: tuple[str, ...] | None = None

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads `train`, `dev` and the other splits with tags.

        A tag that train lacks is a class too, so that its words count as missed.

        Raises:
            UserError: if a directory, file, column, word or tag is missing or invalid, and for a tag of dev whose type
                train lacks.
            UnreachableError: if the data is not in the cache and cannot be downloaded.
        """
        tables = self.source.read(cache_dir, self._hold_out_dev, self._is_tagged)
        sentences = {name: self._read_sentences(table) for name, table in tables.items()}
        named = self.label_names or tables["train"].classes.get(self.tags)
        if named is None:
            sentences = _cut_letters(sentences)
        _check_unseen(sentences, strict=named is None and not self.source.is_single)
        own = {name: of_split for name, of_split in sentences.items() if name not in self.source.transfer}
        labels = _name_labels(named, own)
        _check_sets({name: sentences[name] for name in self.source.transfer}, labels)
        index = {label: number for number, label in enumerate(labels)}
        splits = {
            name: tagged_split(
                [words for words, _ in of_split.rows],
                [np.array([index[tag] for tag in tags], dtype=np.int64) for _, tags in of_split.rows],
                of_split.plain if any(text is not None for text in of_split.plain) else None,
            )
            for name, of_split in sentences.items()
        }
        return create_data(self.source, labels, splits, lambda splits: [[labels, _list_content(splits)]])

    def _hold_out_dev(self, table: Table) -> dict[str, Table]:
        self._check_columns(table)
        sentences = [" ".join(map(str, of)) if isinstance(of, list) else of for of in table.columns[self.tokens]]
        return self.source.hold_out_dev(table, together=[text_keys(sentences)])

    def _is_tagged(self, table: Table) -> bool:
        """Returns whether a split has tags. The hidden tags of a test split may be missing, or all -1."""
        if self.tags not in table.names:
            return False
        rows = (value if isinstance(value, list) else [value] for value in table.columns[self.tags])
        return any(not is_without_label(value) for row in rows for value in row)

    def _check_columns(self, table: Table) -> None:
        check_columns(table, [(self.tokens,), (self.tags,)], ADVICE)

    def _read_sentences(self, table: Table) -> "_Sentences":
        """Returns the words and the names of the tags of each sentence."""
        self._check_columns(table)
        sentences, names = _Sentences(table.source), self.label_names or table.classes.get(self.tags)
        empty, texts = 0, [] if self.tokens == TEXT else table.columns.get(TEXT, [])
        for row, (tokens, tags) in enumerate(zip(table.columns[self.tokens], table.columns[self.tags], strict=True)):
            place = table.place(row)
            words, values = _as_list(tokens, place, self.tokens, "words"), _as_list(tags, place, self.tags, "tags")
            if len(words) != len(values):
                raise UserError(
                    f"{place}: {self.tokens} has {len(words)} entries and {self.tags} {len(values)}, expected a tag "
                    "for each word"
                )
            if not words and self.source.is_on_hub:  # The user cannot correct it.
                empty += 1
                continue
            if not words:
                raise UserError(f"{place}: column {self.tokens} is [], expected words: remove the sentence")
            _check_words(words, place, self.tokens)
            sentences.rows.append(([str(word) for word in words], [_name_tag(value, names, place) for value in values]))
            sentences.places.append(place)
            sentences.plain.append(_read_text(texts[row], sentences.rows[-1][0]) if texts else None)
        if empty:
            print_notice(f"{table.source}: sentences without a word, which are left out: {empty:,}")
        if texts and (others := sum(text is None for text in sentences.plain)):
            print_notice(
                f"{table.source}: sentences without a text of the same words, so that their text is the words with "
                f"spaces between: {others:,} of {len(sentences.rows):,}"
            )
        sentences.check_tags()
        return sentences


@dataclass(frozen=True)
class _Sentences:
    """The words and the names of the tags of each sentence of a split, and its name in messages."""

    source: str
    rows: list[tuple[list[str], list[str]]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    plain: list[str | None] = field(default_factory=list)

    def counts(self) -> Counter[str]:
        """Returns the number of words of each tag."""
        return Counter(tag for _, tags in self.rows for tag in tags)

    def place(self, tag: str) -> str:
        """Returns the name of the first sentence with a tag in messages."""
        return self.places[next(row for row, (_, tags) in enumerate(self.rows) if tag in tags)]

    def check_tags(self) -> None:
        """Raises UserError for a tag of another scheme than BIO, IOB1 and BIOES."""
        for tag in self.counts():
            prefix, hyphen, name = tag.partition("-")
            if tag != OUTSIDE and (prefix not in _PREFIXES or bool(hyphen) != bool(name)):
                raise UserError(
                    f"{self.place(tag)}: tag {reprlib.repr(tag)} is of no known scheme, expected {OUTSIDE}, B-TYPE, "
                    "I-TYPE, E-TYPE or S-TYPE (BIO, IOB1 or BIOES): set task.column, or task.tags, to the column of "
                    "the tags"
                )


def read_file(
    path: Path, wanted: Collection[str], *, tokens: str, tags: str, column: int, word_column: int | None
) -> Table:
    """Reads a file of a type in `SUFFIXES`. The columns of a CoNLL file are called `tokens` and `tags`.

    Raises:
        UserError: if the file cannot be read, or a line of it has no clear meaning.
    """
    if not path.name.endswith(CONLL):
        return readers.read_file(path, wanted)
    sentences = read_conll(path, column, word_column, notify=print_notice)
    columns: dict[str, list[Any]] = {tokens: sentences.words, tags: sentences.tags}
    if TEXT not in columns and any(sentences.texts):
        columns[TEXT] = sentences.texts
    return Table(str(path), tuple(columns), columns, lines=sentences.lines)


def _name_labels(named: Sequence[str] | None, sentences: Mapping[str, _Sentences]) -> tuple[str, ...]:
    """Returns the tags that there are in order: those that are named, or else `O` and the others alphabetically."""
    used = {tag for of_split in sentences.values() for tag in of_split.counts()}
    names = tuple(named or (OUTSIDE, *sorted(used - {OUTSIDE})))
    if OUTSIDE not in names:
        raise UserError(f"the tags are {_show(names)}, expected {OUTSIDE} among them, for words outside of entities")
    if unnamed := sorted(used - set(names)):
        raise UserError(f"the tags {_show(unnamed)} are not among those of train ({_show(names)}): write them alike")
    return names


def _check_sets(sets: Mapping[str, _Sentences], labels: Sequence[str]) -> None:
    """Raises UserError for a tag of a further set that the splits lack, because sets add no classes."""
    for name, of_set in sets.items():
        if strange := sorted(of_set.counts().keys() - set(labels)):
            raise UserError(
                f"{of_set.place(strange[0])}: tag {strange[0]} of the set {name} is unknown, expected one of "
                f"{_show(labels)}"
            )


def _cut_letters(sentences: Mapping[str, _Sentences]) -> dict[str, _Sentences]:
    """Returns the sentences with the letters of languages without spaces as words, as plain text of them is split.

    Their entities are the same. Other sentences stay as they are.
    """
    cut = {
        name: _Sentences(of.source, [_cut_words(*row) for row in of.rows], of.places, of.plain)
        for name, of in sentences.items()
    }
    changed = sum(row != other for row, other in zip(sentences["train"].rows, cut["train"].rows, strict=True))
    if not changed:
        return dict(sentences)
    print_notice(
        f"{sentences['train'].source}: sentences in a language without spaces, whose words are tagged letter by "
        f"letter, as plain text is split: {changed:,} of {len(cut['train'].rows):,}; name the tags with "
        "task.labels=[...] to keep the words"
    )
    return cut


def _cut_words(words: Sequence[str], tags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the words and the tags of a sentence, where each letter of a language without spaces is a word."""
    rows: list[tuple[str, str]] = []
    for word, tag in zip(words, tags, strict=True):
        parts, (prefix, hyphen, name) = split_letters(word), tag.partition("-")
        first, last = {"S": ("B", "E"), "E": ("I", "E"), "B": ("B", "I"), "I": ("I", "I")}.get(prefix, (prefix, prefix))
        inner = prefix if prefix == OUTSIDE else "I"
        prefixes = [prefix] if len(parts) == 1 else [first, *[inner] * (len(parts) - 2), last]
        rows += [(part, f"{of_part}{hyphen}{name}") for part, of_part in zip(parts, prefixes, strict=True)]
    return [part for part, _ in rows], [tag for _, tag in rows]


def _check_unseen(sentences: Mapping[str, _Sentences], *, strict: bool) -> None:
    """Prints the number of words whose tag train lacks.

    Raises:
        UserError: if train has no entity, and with `strict` if dev has a type that train lacks.
    """
    train = sentences["train"]
    known = set(train.counts()) - {OUTSIDE}
    if not known:
        raise UserError(
            f"{train.source} has the tag {OUTSIDE} alone, expected tags such as B-city: set task.column, or task.tags, "
            "to the column of the tags"
        )
    types = {tag.partition("-")[2] for tag in known}
    for name, of_split in sentences.items():
        unseen = {tag: count for tag, count in of_split.counts().items() if tag not in {OUTSIDE, *known}}
        strange = sorted(tag for tag in unseen if tag.partition("-")[2] not in types)
        if strange and name == "dev" and strict:
            raise UserError(
                f"{of_split.place(strange[0])}: tag {strange[0]} is of a type that train lacks, expected one of "
                f"{_show(sorted(types))}: correct it, or move sentences of this type to train"
            )
        if unseen:
            print_notice(
                f"{of_split.source}: words with a tag that train lacks, which count as missed: "
                f"{sum(unseen.values()):,} ({_show(sorted(unseen))})"
            )


def _read_text(value: object, words: Sequence[str]) -> str | None:
    """Returns the text of a sentence; None unless it has these words and nothing else."""
    return value if isinstance(value, str) and locate_in_text(words, value) is not None else None


def _as_list(value: object, place: str, column: str, content: str) -> list[object]:
    if not isinstance(value, list):
        raise UserError(f"{place}: column {column} is {reprlib.repr(value)}, expected a list of {content}")
    return value


def _check_words(words: Sequence[object], place: str, column: str) -> None:
    for number, word in enumerate(words, 1):
        if not isinstance(word, str) or not word.strip(BLANK):
            raise UserError(f"{place}: word {number} of column {column} is {reprlib.repr(word)}, expected text")
        if not word.isascii():
            check_surrogates(word, f"{place}: column {column}")


def _name_tag(value: object, names: Sequence[str] | None, place: str) -> str:
    """Returns the name of a tag, which is a name or the index of one."""
    if isinstance(value, str):
        if names is not None and value not in names:
            raise UserError(f"{place}: tag {reprlib.repr(value)} is unknown, expected one of {_show(names)}")
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"{place}: tag {reprlib.repr(value)} is no name and no number of a tag")
    if names is None:
        raise UserError(f"{place}: tag {value} is a number, expected names: name them with task.labels=[O,B-TYPE,...]")
    if not 0 <= value < len(names):
        raise UserError(f"{place}: tag {value} is no index of the tags {_show(names)}, expected 0 to {len(names) - 1}")
    return names[value]


def _show(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
