"""Tags of words, such as named entities and slots: the items are the first pieces of words.

>>> from distill.tasks import TokenClassification
>>> train, dev = ([["to", "boston"]], [["O", "B-city"]]), ([["from", "boston"]], [["O", "B-city"]])
>>> TokenClassification(train=train, dev=dev).read(None).labels
('O', 'B-city')
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import numpy as np
from pydantic import Field

from distill.console import print_notice
from distill.contracts import IGNORED, Batch, Constant, Examples, Items, Outputs, Scores, TaskInfo
from distill.data import tagged
from distill.data.sources import check_memory
from distill.data.tables import LabelledData, Split
from distill.data.tagged import TaggedText, place_sentences, plain_texts, tagged_split
from distill.data.unlabelled import Unlabelled, UnlabelledText
from distill.edge import splitting
from distill.edge.classes import softmax
from distill.edge.splitting import Splitter
from distill.edge.words import TagScheme, locate_entities, score_entities
from distill.errors import OptionError, UserError
from distill.losses import HardLabels
from distill.options import check_arguments, show_value
from distill.tasks import rows
from distill.tasks.class_weights import WEIGHTS, ClassWeights, describe_weights, resolve_class_weights, weight_column
from distill.tasks.offsets import check_offsets
from distill.tasks.overview import ShownTask
from distill.tasks.scoring import Scoring, always, list_by_example
from distill.tasks.words import tokenize_sentences

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

UNTAGGED = -1  # The label in a batch of the first piece of a word without a tag.
SPLIT = 2000  # Sentences of train that splitters of text are compared on.
Labels = Annotated[Sequence[str], Field(min_length=2, description="the names of at least two tags, one of them O")]


@dataclass(frozen=True)
class TagScores(Scoring):
    """The tags of words, and the entities that they make up.

    Args:
        labels: the names of the tags of the data.
        splitter: of plain text.
        weights: of the tags in the loss on the labels, None for equal ones.
    """

    names = ("f1", "precision", "recall", "accuracy")
    labels: tuple[str, ...] = ()
    splitter: Splitter = field(default_factory=Splitter)
    weights: tuple[float, ...] | None = None

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        """Returns the splitter of plain text."""
        return {splitting.NAME: self.splitter.describe()}

    def plain_texts(self, split: Split) -> list[str]:
        """The sentences as they are written."""
        return [text for text, _ in place_sentences(split)]

    def text_metrics(self, split: Split, predictions: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """F1 of entities in plain text, which are right in type and in all characters.

        Entities of words that are cut off count as missed.
        """
        scheme = TagScheme(self.labels)
        sentences = zip(split["tags"], place_sentences(split), strict=True)
        expected = [locate_entities(scheme, tags, spans) for tags, (_, spans) in sentences]
        return {f"text_{self.metric}": score_entities(predictions, expected)["f1"]}

    def metrics(self, scores: Scores) -> dict[str, float]:
        """F1, precision and recall of entities, which count when type, first and last word are right, and accuracy.

        Entities are read by the rule of `TagScheme`, that of conlleval.
        """
        predicted = self.predictions(scores)
        correct, found, expected = (int(counts.sum()) for counts in self._count_entities(scores, predicted))
        return {
            **_f1(correct, found, expected),
            "accuracy": float((predicted == scores.labels).mean()),
        }

    def breakdown(self, scores: Scores) -> dict[str, dict[str, float]]:
        """F1, precision and recall of each type of entity, and the number of its entities in the data."""
        counts = self._count_entities(scores, self.predictions(scores))
        return {
            kind: {**_f1(int(correct), int(found), int(expected)), "number": int(expected)}
            for kind, correct, found, expected in zip(TagScheme(self.labels).types, *counts, strict=True)
        }

    def _count_entities(self, scores: Scores, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The numbers of correct, predicted and true entities of each type, `[types]` each."""
        scheme, starts = TagScheme(self.labels), np.diff(scores.example_id, prepend=-1) != 0
        found, expected = (scheme.find(tags, starts) for tags in (predicted, scores.labels))
        last, kind = np.zeros(len(predicted), dtype=int), np.full(len(predicted), -1)
        last[expected.first], kind[expected.first] = expected.last, expected.kind
        is_right = (kind[found.first] == found.kind) & (last[found.first] == found.last)
        kinds = (found.kind[is_right], found.kind, expected.kind)
        correct, of_found, of_expected = (np.bincount(of, minlength=len(scheme.types)) for of in kinds)
        return correct, of_found, of_expected

    def tabulate(self, scores: Scores, splits: LabelledData, *, examples: int) -> dict[str, list[Any]]:
        """The tags of the words of each sentence that were not cut off."""
        probabilities = softmax(scores.columns["logits"].astype(np.float64))
        predicted = probabilities.argmax(axis=-1)
        values = {"label": scores.labels, "prediction": predicted, "probability": probabilities.max(axis=-1)}
        columns = list_by_example(values, scores.example_id, examples)
        for name in ("label", "prediction"):
            columns[name] = [[splits.labels[tag] for tag in tags] for tags in columns[name]]
        return columns

    def spoil(self, scores: Scores) -> Scores | None:
        """The least probable tag of each word."""
        return replace(scores, columns={**scores.columns, "logits": -scores.columns["logits"]})

    def hits(self, scores: Scores) -> dict[str, np.ndarray]:
        """Whether each entity was found, with its type, first and last word."""
        scheme, starts = TagScheme(self.labels), np.diff(scores.example_id, prepend=-1) != 0
        found, expected = (scheme.find(tags, starts) for tags in (self.predictions(scores), scores.labels))
        last, kind = np.zeros(len(scores.labels), dtype=int), np.full(len(scores.labels), -1)
        last[found.first], kind[found.first] = found.last, found.kind
        is_found = (kind[expected.first] == expected.kind) & (last[expected.first] == expected.last)
        return {name: is_found[expected.kind == number] for number, name in enumerate(scheme.types)}

    def hit_rows(self, scores: Scores) -> dict[str, np.ndarray]:
        """The example of each entity."""
        scheme, starts = TagScheme(self.labels), np.diff(scores.example_id, prepend=-1) != 0
        expected = scheme.find(scores.labels, starts)
        rows = self.rows(scores)[expected.first]
        return {name: rows[expected.kind == number] for number, name in enumerate(scheme.types)}

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


class TokenClassification(ShownTask):
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
        options: those of `rows.TableOptions`.

    Raises:
        OptionError: for an option that got a value it cannot take.
        UserError: for data of a type that cannot be read.
    """

    kinds = ("token_classification",)
    auto_class = "AutoModelForTokenClassification"

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
        max_length: rows.MaxLength = 128,
        **options: Unpack[rows.TableOptions],
    ) -> None:
        if tokens == tags:
            raise OptionError("tags", show_value(tags), "another column than that of task.tokens")
        if labels is not None and (len(set(labels)) < len(labels) or tagged.OUTSIDE not in labels):
            raise OptionError("labels", show_value(labels), "the names of at least two tags, each once, one of them O")
        source = rows.table_source(
            name=name, text=(tokens,), label=(tags,), further=(tagged.TEXT,), suffixes=tagged.SUFFIXES,
            read_file=partial(tagged.read_file, tokens=tokens, tags=tags, column=column, word_column=word_column),
            **options,
        )  # fmt: skip
        check_memory(source, [(tokens,), (tags,)], tagged.ADVICE)
        self.rows = TaggedText(source, tokens, tags, label_names=None if labels is None else tuple(labels))
        self.pool = rows.pool_source(options, lambda sentences: partial(self._add_unlabelled, sentences))
        self.class_weights = class_weights
        self._reported: set[str] = set()  # Splits whose words without a token were reported.
        self.info = TaskInfo(
            name=name, kind=self.kinds[0], auto_class=self.auto_class, likelihood="softmax", decoder="tags",
            max_length=max_length, can_augment=True, has_mentions=True, **self.pool.info(),
        )  # fmt: skip

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads every split; a tag that train lacks is a class too, so that its words count as missed.

        Raises:
            UserError: for data that is missing or unusable, and for class weights that do not fit the tags.
        """
        data = self.rows.read(cache_dir)
        scoring = TagScores(data.labels, _choose_splitter(data.splits["train"]))
        data = self.pool.add_to(replace(data, scoring=scoring, terms={"hard": HardLabels()}))
        self._reported.clear()
        if self.class_weights is None:
            return data
        tags = np.concatenate(data.splits["train"]["tags"])
        weights = resolve_class_weights(self.class_weights, data.labels, tags)
        return replace(data, scoring=replace(scoring, weights=weights)).with_option(f"class_weights={weights}")

    def encode(
        self, data: LabelledData, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path | None
    ) -> dict[str, Examples]:
        """Tokenizes every split; the label of a word is that of its first piece.

        Raises:
            UserError: for a tokenizer whose tokens stand for other characters than it tells, and words that do not fit.
        """
        from distill.data.batching import TokenizedExamples

        check_offsets(tokenizer, data.splits["train"].texts)

        def encode(name: str, split: Split) -> TokenizedExamples:
            tokens = tokenize_sentences(split["words"], tokenizer, self.info.max_length, cache_dir)
            words = tokens.columns["words"]
            if not (words >= 0).any():
                raise UserError(f"no word of {name} fits into task.max_length={self.info.max_length} tokens: raise it")
            if tokens.wordless and name not in self._reported:
                self._reported.add(name)
                print_notice(f"{name}: words that have no token, which are left out: {tokens.wordless:,}")
            columns = {column: values for column, values in tokens.columns.items() if column != "words"}
            labels = _label_pieces(words, np.diff(tokens.offsets), split)
            return TokenizedExamples(
                replace(tokens, columns=columns), tokenizer,
                per_token={"labels": labels} | weight_column(data.scoring.weights, labels),
                items_per_example=float((words >= 0).sum() / len(split)),
            )  # fmt: skip

        return rows.encode_splits(data, encode, lambda pool: tagged_split([text.split() for text in pool.texts]))

    def select(self, batch: Batch) -> Items:
        labels = batch["labels"].flatten()
        index = (labels != IGNORED).nonzero().squeeze(-1)
        chosen = labels[index]
        chosen = chosen.where(chosen != UNTAGGED, IGNORED)
        weights = batch.get(WEIGHTS)
        return Items(
            batch=batch, row=index // batch["labels"].shape[1], labels=chosen, labelled=chosen != IGNORED, index=index,
            weights=None if weights is None else weights.flatten()[index],
        )  # fmt: skip

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        from distill.models.forward import collect_outputs, run_model

        output = run_model(model, batch, needs)
        return collect_outputs(output, output.logits.flatten(0, 1)[items.index])

    def _add_unlabelled(self, sentences: Unlabelled, data: LabelledData) -> LabelledData:
        """Returns the data with sentences without tags, whose texts are split as by a bundle."""

        def split_words(text: str) -> list[str]:
            return [text[start:end] for start, end in data.scoring.splitter.split(text)]

        text, label = (self.rows.tokens,), (self.rows.tags,)
        return UnlabelledText(sentences, text, label, option="task.tokens={}", split_words=split_words).add_to(data)


def _choose_splitter(train: Split) -> Splitter:
    """Returns the splitter of plain text that finds most of the words of train."""
    chosen = np.unique(np.linspace(0, len(train) - 1, SPLIT).astype(int))
    sample = train.select(chosen)
    return splitting.choose_splitter(sample["words"], plain_texts(sample), train["words"])


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


def _f1(correct: int, found: int, expected: int) -> dict[str, float]:
    """Returns F1, precision and recall, 0 where nothing is found or expected."""
    precision, recall = correct / max(1, found), correct / max(1, expected)
    return {"f1": 2 * correct / max(1, found + expected), "precision": precision, "recall": recall}
