"""Tags of words, such as named entities and slots: the items are the first pieces of words.

>>> from distill.kinds import TokenClassification
>>> train, dev = ([["to", "boston"]], [["O", "B-city"]]), ([["from", "boston"]], [["O", "B-city"]])
>>> TokenClassification(train=train, dev=dev).read(None).labels
('O', 'B-city')
"""

import reprlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, Unpack

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from transformers.modeling_outputs import ModelOutput

from distill.core.console import print_notice
from distill.core.contracts import IGNORED, Batch, Constant, Items, Match, Outputs, Scores
from distill.core.errors import OptionError, UserError
from distill.core.options import check_arguments, show_value
from distill.data import sources
from distill.data.batches import TokenizedExamples
from distill.data.pool import Unlabelled, UnlabelledText
from distill.data.sources import TableSource, check_columns, check_memory, text_keys
from distill.data.splits import LabelledData, Split, create_data
from distill.data.tokenization import check_offsets, tokenize_sentences
from distill.edge.decoder import softmax
from distill.edge.words import (
    IOB1,
    Entities,
    Span,
    Splitter,
    TagScheme,
    choose_splitter,
    locate_entities,
    locate_in_text,
    name_scheme,
    place_words,
    score_entities,
    split_letters,
)
from distill.edge.words import NAME as SPLITTER
from distill.kinds import labelled_rows
from distill.kinds.kind import WEIGHTS, Encoder, Kind
from distill.kinds.known import SCORE, SPANS, TAGS, Found, KnownTable, spread
from distill.kinds.labelled_rows import ClassWeights, describe_weights, resolve_class_weights, show_names, weight_column
from distill.kinds.scoring import Scoring, always, list_by_example
from distill.labelling.forms import SpanForm
from distill.losses import HardLabels
from distill.rows.columns import BLANK, Table, read_conll
from distill.rows.formats import check_surrogates, is_without_label

OUTSIDE = "O"
CONLL = (".conll", ".txt", ".conll.gz", ".txt.gz")
SUFFIXES = (*CONLL, ".jsonl", ".jsonl.gz", ".parquet")
_PREFIXES = ("B", "I", "E", "S")
TEXT = "text"  # The column of a table with the plain text of each sentence, which it may have.
ADVICE = "name yours with task.tokens=... and task.tags=..."


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
            text: Any = texts[row] if texts else None  # That of a sentence has its words and nothing else.
            is_plain = isinstance(text, str) and locate_in_text(sentences.rows[-1][0], text) is not None
            sentences.plain.append(text if is_plain else None)
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


def read_tagged_file(
    path: Path, wanted: Collection[str], *, tokens: str, tags: str, column: int, word_column: int | None
) -> Table:
    """Reads a file of a type in `SUFFIXES`. The columns of a CoNLL file are called `tokens` and `tags`.

    Raises:
        UserError: if the file cannot be read, or a line of it has no clear meaning.
    """
    if not path.name.endswith(CONLL):
        return sources.read_file(path, wanted)
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
        raise UserError(
            f"the tags are {show_names(names)}, expected {OUTSIDE} among them, for words outside of entities"
        )
    if unnamed := sorted(used - set(names)):
        raise UserError(
            f"the tags {show_names(unnamed)} are not among those of train ({show_names(names)}): write them alike"
        )
    return names


def _check_sets(sets: Mapping[str, _Sentences], labels: Sequence[str]) -> None:
    """Raises UserError for a tag of a further set that the splits lack, because sets add no classes."""
    for name, of_set in sets.items():
        if strange := sorted(of_set.counts().keys() - set(labels)):
            raise UserError(
                f"{of_set.place(strange[0])}: tag {strange[0]} of the set {name} is unknown, expected one of "
                f"{show_names(labels)}"
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
                f"{show_names(sorted(types))}: correct it, or move sentences of this type to train"
            )
        if unseen:
            print_notice(
                f"{of_split.source}: words with a tag that train lacks, which count as missed: "
                f"{sum(unseen.values()):,} ({show_names(sorted(unseen))})"
            )


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
            raise UserError(f"{place}: tag {reprlib.repr(value)} is unknown, expected one of {show_names(names)}")
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"{place}: tag {reprlib.repr(value)} is no name and no number of a tag")
    if names is None:
        raise UserError(f"{place}: tag {value} is a number, expected names: name them with task.labels=[O,B-TYPE,...]")
    if not 0 <= value < len(names):
        raise UserError(
            f"{place}: tag {value} is no index of the tags {show_names(names)}, expected 0 to {len(names) - 1}"
        )
    return names[value]


WORDS = "words"  # The column of batches with the number of the word that begins with a token, -1 for other tokens.
PREDICTION, WORST = "prediction", "worst"  # The columns of condensed scores.
UNTAGGED = -1  # The label in a batch of the first piece of a word without a tag.
SPLIT = 2000  # Sentences of train that splitters of text are compared on.
Labels = Annotated[Sequence[str], Field(min_length=2, description="the names of at least two tags, one of them O")]


@dataclass(frozen=True)
class TagScores(Scoring):
    """The tags of words, and the entities that they make up.

    Args:
        labels: the names of the tags of the data.
        splitter: of plain text.
        scheme_name: of the tags, as `name_scheme` returns it; None where it follows from the labels.
        weights: of the tags in the loss on the labels, None for equal ones.
    """

    names = ("f1", "precision", "recall", "accuracy")
    labels: tuple[str, ...] = ()
    splitter: Splitter = field(default_factory=Splitter)
    weights: tuple[float, ...] | None = None
    scheme_name: str | None = None

    @cached_property
    def scheme(self) -> TagScheme:
        """The scheme of the tags."""
        return TagScheme(self.labels, self.scheme_name)

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        """Returns the splitter of plain text, and the name of the scheme."""
        return {SPLITTER: self.splitter.describe(), "scheme": self.scheme.name}

    def plain_texts(self, split: Split) -> list[str]:
        """The sentences as they are written."""
        return [text for text, _ in place_sentences(split)]

    def text_metrics(self, split: Split, predictions: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """F1 of entities in plain text, which are right in type and in all characters.

        Entities of words that are cut off count as missed.
        """
        sentences = zip(split["tags"], place_sentences(split), strict=True)
        expected = [locate_entities(self.scheme, tags, spans) for tags, (_, spans) in sentences]
        return {f"text_{self.metric}": score_entities(self.scheme, predictions, expected)["f1"]}

    def metrics(self, scores: Scores) -> dict[str, float]:
        """F1, precision and recall of entities, which count when type, first and last word are right, and accuracy.

        Predicted tags are the likeliest valid ones, and those of the data are read by the rule of conlleval.
        """
        predicted = self.predictions(scores)
        correct, found, expected = (int(counts.sum()) for counts in self._count_entities(scores, predicted))
        return {**_f1(correct, found, expected), "accuracy": float((predicted == scores.labels).mean())}

    def breakdown(self, scores: Scores) -> dict[str, dict[str, float]]:
        """F1, precision and recall of each type of entity, and the number of its entities in the data."""
        counts = self._count_entities(scores, self.predictions(scores))
        return {
            kind: {**_f1(int(correct), int(found), int(expected)), "number": int(expected)}
            for kind, correct, found, expected in zip(self.scheme.types, *counts, strict=True)
        }

    def _count_entities(self, scores: Scores, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The numbers of correct, predicted and true entities of each type, `[types]` each."""
        found, expected = (self._find_entities(scores, tags) for tags in (predicted, scores.labels))
        kinds = (found.kind[_are_in(found, expected, len(predicted))], found.kind, expected.kind)
        correct, of_found, of_expected = (np.bincount(of, minlength=len(self.scheme.types)) for of in kinds)
        return correct, of_found, of_expected

    def tabulate(self, scores: Scores, splits: LabelledData, *, examples: int) -> dict[str, list[Any]]:
        """The tags of the words of each sentence that were not cut off."""
        probabilities = softmax(scores.columns["logits"].astype(np.float64))
        predicted = self.predictions(scores)
        chosen = np.take_along_axis(probabilities, predicted[:, None], axis=-1)[:, 0]
        values = {"label": scores.labels, "prediction": predicted, "probability": chosen}
        columns = list_by_example(values, scores.example_id, examples)
        for name in ("label", "prediction"):
            columns[name] = [[splits.labels[tag] for tag in tags] for tags in columns[name]]
        return columns

    def predictions(self, scores: Scores) -> np.ndarray:
        """The tag of each word in the likeliest valid sequence of its sentence, `[n]`."""
        if PREDICTION in scores.columns:
            return scores.columns[PREDICTION]
        return self.scheme.decode(scores.columns["logits"], _find_starts(scores))

    def condense(self, scores: Scores) -> Scores:
        """The predicted tags, which every resample of sentences has, and the least probable ones."""
        if PREDICTION in scores.columns:
            return scores
        worst = scores.columns["logits"].argmin(axis=-1)
        return replace(scores, columns={PREDICTION: self.predictions(scores), WORST: worst})

    def spoil_all(self, scores: Scores) -> Scores:
        """The least probable tag of each word."""
        return scores.with_columns(**{PREDICTION: scores.columns[WORST]})

    def _find_entities(self, scores: Scores, tags: np.ndarray) -> Entities:
        return self.scheme.find(tags, _find_starts(scores))

    def right_answers(self, scores: Scores) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Whether each entity was found, with its type, first and last word, and its example."""
        found, expected = (self._find_entities(scores, tags) for tags in (self.predictions(scores), scores.labels))
        is_found, rows = _are_in(expected, found, len(scores.labels)), self.rows(scores)[expected.first]
        kinds = {name: expected.kind == number for number, name in enumerate(self.scheme.types)}
        return {name: (is_found[of_kind], rows[of_kind]) for name, of_kind in kinds.items()}

    def type_recalls(self, scores: Scores) -> dict[str, tuple[int, float]]:
        """Those of each type of entity that the split has."""
        return {name: (len(hits), float(hits.mean())) for name, hits in self.hits(scores).items() if len(hits)}

    def constants(self, scores: Scores) -> Sequence[Constant]:
        """The most frequent tag, which is usually that of words without an entity."""
        index = int(np.bincount(scores.labels).argmax())
        return [always(f"always {self.labels[index]}", index)]

    def describe(self, splits: LabelledData) -> dict[str, Any]:
        return {
            "labels": list(splits.labels),
            "class_weights": None if self.weights is None else list(self.weights),
            "splitter": self.splitter.name,
            "split_differently": {name: self._share_split_differently(of) for name, of in splits.splits.items()},
            "answer": "tags",
            "pipeline_tag": "token-classification",
            "prediction": f"Tags words: {', '.join(splits.labels)}.",
        }

    def summary(self, splits: LabelledData) -> str:
        shown = ", ".join(splits.labels[:8])
        tags = f"{len(splits.labels)} tags: {shown}{', ...' if len(splits.labels) > 8 else ''}"
        dev = self._share_split_differently(splits.splits["dev"])
        text = f"; plain text is split by {self.splitter.name}, {dev:.1%} of dev into other words"
        return tags + describe_weights(self.weights, splits.labels) + text

    def _share_split_differently(self, split: Split) -> float:
        """Returns the share of the sentences whose text a bundle splits into other words than theirs."""
        written = place_sentences(split)
        return sum(self.splitter.split(text) != spans for text, spans in written) / len(written)


class TokenClassification(Kind):
    """Tags of words in BIO, IOB1 or BIOES, in CoNLL files or in tables with lists of words and of tags.

    A CoNLL file has a word and its tag on each line, and a blank line between sentences.

    Args:
        tokens: the column of a table with the words of each sentence.
        tags: the column of a table with their tags: names, or numbers with `labels` or a `datasets.ClassLabel`.
        column: the column of the tag in a CoNLL file, counted from 0, or from the end if below 0.
        word_column: the column of the word, counted alike; None takes the first one that does not number the words.
        labels: names of the tags in the order of the data's numbers; None takes those of the data.
        class_weights: weights of the tags in the loss on the labels, as in `Classification`; the words of train count.
        max_length: tokens that a sentence is cut to, between two words. Words beyond it are not scored; cut sentences
            are counted.
        data: a path as `data_dir`, a table, or split -> table; a table is a pandas frame, a `datasets.Dataset`, a
            mapping of columns, or `(sentences, tags)`. Of a single table `dev_fraction` is held out as dev.
        data_dir: a directory with `train` and `dev` (or `validation`), each `.conll`, `.txt` (CoNLL too), `.jsonl` or
            `.parquet`, all but Parquet also `.gz`; or one such file, of which `dev_fraction` is held out as dev.
        unlabelled: more sentences, which only the teacher tags, as in `Classification`: lists of words, or texts, which
            are split into words as by the bundle.
        name: names the task in records and directories.
        options: those of `labelled_rows.TableOptions`.

    Raises:
        OptionError: for an option that got a value it cannot take.
        UserError: for data of a type that cannot be read.
    """

    kinds = ("token_classification",)
    auto_class = "AutoModelForTokenClassification"
    decoder = "tags"
    can_augment = has_mentions = True
    answer_form = SpanForm

    @check_arguments
    def __init__(
        self,
        *,
        tokens: str = "tokens",
        tags: str = "tags",
        column: int = -1,
        word_column: int | None = None,
        name: str = "token_classification",
        labels: Labels | None = None,
        class_weights: ClassWeights | None = None,
        max_length: labelled_rows.MaxLength = 128,
        **options: Unpack[labelled_rows.TableOptions],
    ) -> None:
        if tokens == tags:
            raise OptionError("tags", show_value(tags), "another column than that of task.tokens")
        if labels is not None and (len(set(labels)) < len(labels) or OUTSIDE not in labels):
            raise OptionError("labels", show_value(labels), "the names of at least two tags, each once, one of them O")
        self.source = labelled_rows.table_source(
            name=name, text=(tokens,), label=(tags,), further=(TEXT,), suffixes=SUFFIXES, options=options,
            read_file=partial(read_tagged_file, tokens=tokens, tags=tags, column=column, word_column=word_column),
        )  # fmt: skip
        check_memory(self.source, [(tokens,), (tags,)], ADVICE)
        self.rows = TaggedText(self.source, tokens, tags, label_names=None if labels is None else tuple(labels))
        pool = labelled_rows.pool_source(options, lambda sentences: partial(self._add_unlabelled, sentences))
        super().__init__(name, max_length, pool=pool)
        self.class_weights = class_weights
        self._reported: set[str] = set()  # Splits whose words without a token were reported.

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads every split; a tag that train lacks is a class too, so that its words count as missed.

        Raises:
            UserError: for data that is missing or unusable, and for class weights that do not fit the tags.
        """
        data = self.rows.read(cache_dir)
        train = data.splits["train"]
        sample = train.select(np.unique(np.linspace(0, len(train) - 1, SPLIT).astype(int)))
        splitter = choose_splitter(sample["words"], plain_texts(sample), train["words"])
        scoring = TagScores(data.labels, splitter, scheme_name=name_scheme(data.labels, train["tags"]))
        data = self.pool.add_to(replace(data, scoring=scoring, terms={"hard": HardLabels()}))
        self._reported.clear()
        if self.class_weights is None:
            return data
        tags = np.concatenate(data.splits["train"]["tags"])
        weights = resolve_class_weights(self.class_weights, data.labels, tags)
        return replace(data, scoring=replace(scoring, weights=weights)).with_option(f"class_weights={weights}")

    def encode_split(self, encoder: Encoder, data: LabelledData, name: str, split: Split) -> TokenizedExamples:
        """Tokenizes the words of a split; the label of a word is that of its first piece.

        Raises:
            UserError: for a tokenizer whose tokens stand for other characters than it tells, and words that do not fit.
        """
        if name == "train":
            check_offsets(encoder.tokenizer, split.texts)
        tokens = tokenize_sentences(split["words"], encoder.tokenizer, self.max_length, encoder.cache_dir)
        words = tokens.columns[WORDS]
        if not (words >= 0).any():
            raise UserError(f"no word of {name} fits into task.max_length={self.max_length} tokens: raise it")
        if tokens.wordless and name not in self._reported:
            self._reported.add(name)
            print_notice(f"{name}: words that have no token, which are left out: {tokens.wordless:,}")
        labels = _label_pieces(words, np.diff(tokens.offsets), split)
        return TokenizedExamples(
            tokens, encoder.tokenizer, per_token={"labels": labels} | weight_column(data.scoring.weights, labels),
            items_per_example=float((words >= 0).sum() / len(split)),
        )  # fmt: skip

    def create_unlabelled(self, pool: Split, data: LabelledData) -> Split:
        return tagged_split([text.split() for text in pool.texts])

    def select(self, batch: Batch) -> Items:
        """The first pieces of words."""
        labels = batch["labels"].flatten()
        index = (labels != IGNORED).nonzero().squeeze(-1)
        chosen = labels[index]
        chosen = chosen.where(chosen != UNTAGGED, IGNORED)
        weights = batch.get(WEIGHTS)
        return Items(
            batch=batch, row=index // batch["labels"].shape[1], labels=chosen, labelled=chosen != IGNORED, index=index,
            weights=None if weights is None else weights.flatten()[index],
        )  # fmt: skip

    def select_logits(self, output: ModelOutput, batch: Batch, items: Items) -> Tensor:
        logits: Tensor = output.logits.flatten(0, 1)[items.index]
        return logits

    def match(self, student: "TokenizedExamples", teacher: "TokenizedExamples") -> Match:
        """Finds the words that the teacher reads too; one that is cut off, or has no token, has no output of it."""
        words, known = (
            _number_words(examples.example_of_tokens(), examples.column(WORDS)) for examples in (student, teacher)
        )
        taught = np.isin(words, known) | (student.column(WORDS) < 0)
        return Match(taught=None if taught.all() else taught.astype(np.int8))

    def align(self, outputs: Outputs, own: Items, items: Items) -> Outputs:
        """Returns the logits at the first piece of the same word, 0 for a word that the teacher does not read."""
        assert outputs.logits is not None
        known, wanted = (_number_words(of.row, of[WORDS].flatten()[of.index]) for of in (own, items))
        place = torch.searchsorted(known, wanted).clamp(max=len(known) - 1)  # Items are in the order of their words.
        logits = outputs.logits[place] * (known[place] == wanted).unsqueeze(-1)
        return Outputs(logits=logits)

    @property
    def known_columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return (TEXT,)

    def read_known(self, known: KnownTable, data: LabelledData) -> Found:
        """Yields the logits of the words of each sentence: of their tags, or of spans of characters in its text.

        The words of a text are those of the data, if it has that text, and else those that a bundle splits it into.
        """
        words_of = {text: spans for split in data.splits.values() for text, spans in place_sentences(split)}
        own = self.rows.tokens
        if known.has(own) and own != TEXT:
            texts = [" ".join(known.words(row, own)) for row in range(len(known.table))]
        else:
            texts = [text for (text,) in known.texts((TEXT,))]
        astray = list[str]()
        for row, text in enumerate(texts):
            words = words_of.get(text) or data.scoring.splitter.split(text)
            if known.has(SPANS):
                logits = _tag_spans(known, row, text, words, astray, scheme=data.scoring.scheme.name)
            else:
                logits = _read_tags(known, row, len(words))
            yield row, (" ".join(text[start:end] for start, end in words),), logits
        if astray:
            print_notice(
                f"{known.table.source}: spans that begin or end within a word, which is taken whole: {len(astray):,}, "
                f"the first of them {astray[0]}"
            )

    def place(self, items: Items) -> "torch.Tensor":
        """Returns the number of the word of each item in its sentence, `[n]`."""
        assert items.index is not None
        return items[WORDS].flatten()[items.index]

    def _add_unlabelled(self, sentences: Unlabelled, data: LabelledData) -> LabelledData:
        """Returns the data with sentences without tags, whose texts are split as by a bundle."""

        def split_words(text: str) -> list[str]:
            return [text[start:end] for start, end in data.scoring.splitter.split(text)]

        text, label = (self.rows.tokens,), (self.rows.tags,)
        return UnlabelledText(sentences, text, label, option="task.tokens={}", split_words=split_words).add_to(data)


def _read_tags(known: KnownTable, row: int, words: int) -> np.ndarray:
    """Returns the logits of the tags that a row names, or has probabilities of, `[words, C]`."""
    values = known.value(row, TAGS)
    if not isinstance(values, list | tuple | np.ndarray) or len(values) != words:
        raise known.fail(row, f"{TAGS} is {reprlib.repr(values)}, expected a list of {words} tags, one for each word")
    logits = []
    for value in values:
        if str(value) not in known.labels:
            raise known.fail(row, f"tag {reprlib.repr(value)} is unknown, expected one of {show_names(known.labels)}")
        logits.append(spread([known.labels.index(str(value))], len(known.labels), known.trust))
    return np.stack(logits)


def _tag_spans(
    known: KnownTable, row: int, text: str, words: Sequence[Span], astray: list[str], *, scheme: str
) -> np.ndarray:
    """Returns the logits of the words of a text whose spans of characters have a type, `[words, C]`.

    Args:
        astray: receives the spans that fit no border of words.
    """
    labels, size = known.labels, len(known.labels)
    logits = np.tile(spread([labels.index(OUTSIDE)], size, known.trust), (len(words), 1))
    spans = known.value(row, SPANS)
    if not isinstance(spans, list | tuple):
        raise known.fail(row, f"{SPANS} is {reprlib.repr(spans)}, expected a list of start, end and type")
    for span in spans:
        if not isinstance(span, Mapping) or not {"start", "end", "type"} <= span.keys():
            raise known.fail(row, f"the span {reprlib.repr(span)} has no start, end and type")
        start, end, kind = span["start"], span["end"], span["type"]
        if not (isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= len(text)):
            raise known.fail(row, f"the span {start} to {end} is not within the {len(text)} characters of the text")
        inside = [number for number, (first, last) in enumerate(words) if first < end and start < last]
        borders = {border for first, last in words for border in (("start", first), ("end", last))}
        if not inside or ("start", start) not in borders or ("end", end) not in borders:
            astray.append(f"{known.table.place(row)}: {text[start:end]!r}")
        trust = known.number(row, SCORE, span.get(SCORE, known.trust), "a probability")
        before = labels[logits[inside[0] - 1].argmax()] if inside and inside[0] else OUTSIDE
        begins = "I" if scheme == IOB1 and before.partition("-")[2] != kind else "B"
        for tag, word in zip(_name_tags(kind, len(inside), labels, begins=begins), inside, strict=True):
            if tag not in labels:
                raise known.fail(row, f"type {kind!r} has no tag {tag}, expected one of {show_names(labels)}")
            logits[word] = spread([labels.index(tag)], size, trust)
    return logits


def _name_tags(kind: str, words: int, labels: Sequence[str], *, begins: str) -> list[str]:
    """Returns the tags of the words of an entity in the scheme of the labels, the first one with `begins` or `S`."""
    has_ends = any(label.startswith(("E-", "S-")) for label in labels)
    if words == 1:
        first = "S" if has_ends else begins
        return [f"{first}-{kind}" if f"{first}-{kind}" in labels else f"I-{kind}"]
    first = begins if f"{begins}-{kind}" in labels else "I"
    last = "E" if has_ends else "I"
    return [f"{first}-{kind}", *[f"I-{kind}"] * (words - 2), f"{last}-{kind}"][:words]


Numbers = TypeVar("Numbers", np.ndarray, torch.Tensor)


def _number_words(examples: Numbers, words: Numbers) -> Numbers:
    """Returns a number for each word that no other one has, from its example and its place there, `[n]`."""
    numbers: Numbers = (examples << 32) + words
    return numbers


def _label_pieces(words: np.ndarray, lengths: np.ndarray, split: Split) -> np.ndarray:
    """Returns the label of every token `[tokens]`, `IGNORED` for tokens that begin no word.

    Args:
        words: the number of the word that begins with a token, -1 for other tokens, `[tokens]`.
        lengths: of the sentences in tokens.
        split: with the tags of the words, or without tags.
    """
    if "tags" not in split.columns:
        return np.where(words >= 0, UNTAGGED, IGNORED)
    counts = np.array([len(tags) for tags in split["tags"]])
    first_words = np.repeat(counts.cumsum() - counts, lengths)  # Of the sentence of each token, among all words.
    return np.where(words >= 0, np.concatenate(split["tags"])[first_words + np.maximum(words, 0)], IGNORED)


def _find_starts(scores: Scores) -> np.ndarray:
    """Returns whether a sentence begins at an item, `[n]`."""
    return np.asarray(np.diff(scores.example_id, prepend=-1) != 0)


def _are_in(entities: Entities, others: Entities, words: int) -> np.ndarray:
    """Returns whether each of the entities `[m]` in so many words is one of the others too."""
    last, kind = np.zeros(words, dtype=int), np.full(words, -1)
    last[others.first], kind[others.first] = others.last, others.kind
    return np.asarray((kind[entities.first] == entities.kind) & (last[entities.first] == entities.last))


def _f1(correct: int, found: int, expected: int) -> dict[str, float]:
    """Returns F1, precision and recall, 0 where nothing is found or expected."""
    precision, recall = correct / max(1, found), correct / max(1, expected)
    return {"f1": 2 * correct / max(1, found + expected), "precision": precision, "recall": recall}
