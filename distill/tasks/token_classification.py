"""Tags of words, such as named entities and slots: the items are the first pieces of words.

>>> from distill.tasks import TokenClassification
>>> TokenClassification(data="data/atis").metric
'f1'
"""

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from distill.contracts import IGNORED, Batch, Items, Likelihood, Outputs, Scores
from distill.data.tables import STEMS, LabelledData
from distill.edge.decode import find_entities, find_first_pieces, locate_words, softmax
from distill.errors import UserError
from distill.options import check_arguments
from distill.tasks import rows
from distill.tasks.class_weights import ClassWeights, describe_weights, item_weights, resolve_class_weights

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distill.data.batching import TokenizedExamples
    from distill.models.forward import FullPass

SUFFIXES = (".conll", ".txt", ".conll.gz", ".txt.gz")
OUTSIDE = "O"


@dataclass(frozen=True)
class TaggedSplit:
    """Sentences as words, and the tag of each word as an index."""

    words: list[list[str]]
    tags: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.words)

    @property
    def texts(self) -> list[str]:
        """The words of each sentence with a space between them."""
        return [" ".join(words) for words in self.words]

    @property
    def pairs(self) -> None:
        """A sentence has no second text."""
        return None

    def records(self) -> list[dict[str, list[str]]]:
        """The sentences as a bundle reads them."""
        return [{"tokens": words} for words in self.words]


class TokenClassification:
    """Tags of words out of CoNLL files: a word and its tag on each line, a blank line between sentences.

    Args:
        name: names the task in records and directories.
        data: a directory, as `data_dir`.
        data_dir: a directory with `train` and `dev` (or `validation`), each `.conll` or `.txt`, also `.gz`.
        column: the column of the tag, counted from 0, or from the end if below 0.
        class_weights: weights of the tags in the loss on the labels, as in `Classification`; the words of train count.
        max_length: tokens that a sentence is cut to. Words beyond it are not scored; cut sentences are counted.

    Raises:
        OptionError: for an option that got a value it cannot take.
    """

    kind = "token_classification"
    auto_class = "AutoModelForTokenClassification"
    metric = "f1"
    selects: Literal["max", "min"] = "max"
    likelihood: Likelihood = "softmax"
    fixed_inputs = True
    over_vocabulary = False
    decoder: str | None = "tags"
    fine_tunes_teacher = True
    can_abstain = False
    compares_with_teacher = False
    takes_unlabelled = False
    has_unlabelled = False
    pair = False
    builtin = False

    @check_arguments
    def __init__(
        self,
        *,
        name: str = "token_classification",
        data: str | Path | None = None,
        data_dir: str | Path | None = None,
        column: int = -1,
        class_weights: ClassWeights | None = None,
        max_length: rows.MaxLength = 128,
    ) -> None:
        directory = data_dir if data is None else data
        self.name, self.max_length, self.column = name, max_length, column
        self.data_dir = None if directory is None else Path(directory).expanduser()
        self.labels: tuple[str, ...] = ()  # Set by `read`.
        self.class_weights = class_weights
        self._weights: tuple[float, ...] | None = None  # Set by `read`.

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads every split; the tags of all of them are the classes, so that a tag that train lacks counts as missed.

        Raises:
            UserError: for a directory, file or line that is missing or unusable, and for class weights that do not fit
                the tags.
        """
        sentences = {name: list(_sentences(path, self.column)) for name, path in self._files().items()}
        names = {tag for split in sentences.values() for _, tags in split for tag in tags}
        labels = (OUTSIDE, *sorted(names - {OUTSIDE}))
        if len(labels) < 2:
            raise UserError(
                f"{self.data_dir} has the tag {OUTSIDE} alone, expected tags such as B-city: set task.column"
            )
        index = {label: number for number, label in enumerate(labels)}
        splits = {
            name: TaggedSplit(
                [words for words, _ in split], [np.array([index[tag] for tag in tags]) for _, tags in split]
            )
            for name, split in sentences.items()
        }
        self.labels = labels
        content: list[object] = [labels, sentences]
        if self.class_weights is not None:
            self._weights = resolve_class_weights(self.class_weights, labels, np.concatenate(splits["train"].tags))
            content.append(self._weights)
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        return LabelledData(labels=labels, splits=splits, sha256=digest)

    def _files(self) -> dict[str, Path]:
        if self.data_dir is None or not self.data_dir.is_dir():
            raise UserError(f"task.data_dir={self.data_dir} does not exist, expected a directory with train and dev")
        files: dict[str, Path] = {}
        for split, stems in STEMS.items():
            candidates = (self.data_dir / f"{stem}{suffix}" for stem in stems for suffix in SUFFIXES)
            path = next((candidate for candidate in candidates if candidate.is_file()), None)
            if path is not None:
                files[split] = path
            elif split in ("train", "dev"):
                present = ", ".join(sorted(entry.name for entry in self.data_dir.iterdir())) or "nothing"
                raise UserError(
                    f"{self.data_dir} has no {' or '.join(stems)} file (found {present}), expected one of "
                    f"{', '.join(SUFFIXES)}"
                )
        return files

    def encode(
        self, splits: LabelledData, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path | None
    ) -> "dict[str, TokenizedExamples]":
        """Tokenizes every split; the label of a word is that of its first piece."""
        from distill.data import token_cache
        from distill.data.batching import TokenizedExamples
        from distill.data.tables import Split

        encoded = {}
        for name, split in {"train": splits.splits["train"], **splits.scored()}.items():
            texts = Split(split.texts, None, np.zeros(len(split)))
            tokens = token_cache.tokenize_split(texts, tokenizer, self.max_length, cache_dir)
            labels = np.full(int(tokens.offsets[-1]), IGNORED)
            for example, text in enumerate(split.texts):
                first, last = (int(offset) for offset in tokens.offsets[example : example + 2])
                pieces = _pieces(tokenizer, text, split.words[example], last - first)
                for piece, tag in zip(pieces, split.tags[example], strict=True):
                    if piece is not None:
                        labels[first + piece] = tag
            if not (labels != IGNORED).any():
                raise UserError(f"no word of {name} fits into task.max_length={self.max_length} tokens: raise it")
            encoded[name] = TokenizedExamples(
                tokens, tokenizer, per_token={"labels": labels},
                items_per_example=float((labels != IGNORED).sum() / len(split)),
            )  # fmt: skip
        return encoded

    def select(self, batch: Batch, *, every_token: bool = False) -> Items:
        labels = batch["labels"].flatten()
        index = (labels != IGNORED).nonzero().squeeze(-1)
        chosen = labels[index]
        return Items(
            batch=batch, row=index // batch["labels"].shape[1], labels=chosen, labelled=chosen != IGNORED, index=index,
            weights=item_weights(self._weights, chosen),
        )  # fmt: skip

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> "FullPass":
        from distill.models.forward import FullPass, run_model

        output = run_model(model, batch, needs)
        return FullPass(output, output.logits.flatten(0, 1)[items.index])

    def score(self, outputs: Outputs, items: Items, reference: Outputs | None = None) -> "dict[str, Tensor]":
        if outputs.logits is None:
            raise ValueError("got outputs without logits, expected [n, C] at the items")
        return {"logits": outputs.logits.float()}

    def metrics(self, scores: Scores) -> dict[str, float]:
        """F1, precision and recall of entities, which count when type, first and last word are right, and accuracy.

        A sequence is read by the rule of conlleval: an `I-X` without its beginning starts an entity of its own.
        """
        predicted = scores.columns["logits"].argmax(axis=-1)
        starts = np.flatnonzero(np.diff(scores.example_id, prepend=-1))
        found, expected = (self._entities(tags, starts) for tags in (predicted, scores.labels))
        correct = len(found & expected)
        precision, recall = correct / max(1, len(found)), correct / max(1, len(expected))
        return {
            "f1": 2 * precision * recall / max(precision + recall, 1e-12),
            "precision": precision,
            "recall": recall,
            "accuracy": float((predicted == scores.labels).mean()),
        }

    def _entities(self, tags: np.ndarray, starts: np.ndarray) -> set[tuple[int, str, int, int]]:
        """Sentence, type, first and last (excluded) word of every entity; sentences begin at `starts`."""
        return {
            (sentence, *entity)
            for sentence, of_sentence in enumerate(np.split(tags, starts[1:]))
            for entity in find_entities([self.labels[tag] for tag in of_sentence])
        }

    def confidences(self, scores: Scores) -> np.ndarray:
        raise TypeError(f"a {self.kind} cannot abstain, because a sentence has many tags")

    def tabulate(self, scores: Scores, splits: LabelledData, *, examples: int) -> dict[str, list[Any]]:
        """The tags of the words of each sentence that were not cut off."""
        probabilities = softmax(scores.columns["logits"].astype(np.float64))
        predicted = probabilities.argmax(axis=-1)
        values = {"label": scores.labels, "prediction": predicted, "probability": probabilities.max(axis=-1)}
        ends = np.bincount(scores.example_id, minlength=examples).cumsum()[:-1]
        columns: dict[str, list[Any]] = {
            name: [of_sentence.tolist() for of_sentence in np.split(of, ends)] for name, of in values.items()
        }
        for name in ("label", "prediction"):
            columns[name] = [[splits.labels[tag] for tag in tags] for tags in columns[name]]
        return columns

    def example_metric(self, scores: Scores) -> np.ndarray | None:
        """None, because F1 is no mean."""
        return None

    def agreement(self, scores: Scores, reference: Scores) -> float:
        """Share of the words to which both give the same tag."""
        tags, expected = (of.columns["logits"].argmax(axis=-1) for of in (scores, reference))
        return float((tags == expected).mean())

    def probability_diff(self, scores: Scores, reference: Scores) -> float:
        return rows.probability_diff(scores, reference)

    def calibration_error(self, scores: Scores) -> float | None:
        return rows.calibration_error(scores)

    def weakness(self, scores: Scores) -> str | None:
        return "finds no entity of dev" if self.metrics(scores)["f1"] == 0 else None

    def describe(self, splits: LabelledData) -> dict[str, Any]:
        return {
            "labels": list(splits.labels),
            "class_weights": None if self._weights is None else list(self._weights),
            "answer": "tags",
            "pipeline_tag": "token-classification",
            "prediction": f"Tags words: {', '.join(splits.labels)}.",
        }

    def summary(self, splits: LabelledData) -> str:
        shown = ", ".join(splits.labels[:8])
        tags = f"{len(splits.labels)} tags: {shown}{', ...' if len(splits.labels) > 8 else ''}"
        return tags + describe_weights(self._weights, splits.labels)


def _pieces(tokenizer: "PreTrainedTokenizerBase", text: str, words: Sequence[str], length: int) -> list[int | None]:
    """The first token of each word among the `length` tokens of a sentence; None for a word that was cut off."""
    # The backend itself would truncate and pad as its file or its last call says.
    encoding = tokenizer(text, truncation=False, padding=False, verbose=False).encodings[0]
    special = encoding.special_tokens_mask
    pieces = find_first_pieces(locate_words(words), encoding.offsets, special)
    left = tokenizer.truncation_side == "left"
    ordered = special if left else special[::-1]
    kept = next((number for number, is_special in enumerate(ordered) if not is_special), len(special))
    if left:  # The special tokens at the start are kept, and those behind them are cut.
        cut = len(special) - length
        return [piece - cut if piece is not None and piece >= kept + cut else None for piece in pieces]
    return [piece if piece is not None and piece < length - kept else None for piece in pieces]


def _sentences(path: Path, column: int) -> Iterator[tuple[list[str], list[str]]]:
    """Words and tags of every sentence of a CoNLL file.

    Raises:
        UserError: for a line without the column, and a file without a sentence.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8-sig") as lines:
            words: list[str] = []
            tags: list[str] = []
            for number, line in enumerate(_with_end(lines), 1):
                fields = line.split()
                if not fields or fields[0] == "-DOCSTART-":
                    if words:
                        yield words, tags
                    words, tags = [], []
                    continue
                if len(fields) < 2 or not -len(fields) <= column < len(fields):
                    raise UserError(
                        f"{path}, line {number} is {line.strip()!r}, expected a word and a tag in column {column}"
                    )
                words.append(fields[0])
                tags.append(fields[column])
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read after line {number}: {error}") from error
    if number < 2:
        raise UserError(f"{path} is empty, expected a word and its tag on each line")


def _with_end(lines: Iterable[str]) -> Iterator[str]:
    """The lines, and a blank one that ends the last sentence."""
    yield from lines
    yield ""
