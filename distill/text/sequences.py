"""Packed and masked sequences of raw text, whose tokens are cached on disk."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from distill.core.console import print_line
from distill.core.contracts import IGNORED, PROMPT_TOKENS
from distill.core.errors import UserError
from distill.core.files import write_json
from distill.core.options import STRICT, check_options
from distill.core.storage import entry_key, has_entry, new_entry
from distill.data import docstrings, tokenization
from distill.data.batches import TokenizedExamples, TokenRows
from distill.data.prose import WebCleaner, describe_cleaning
from distill.text.corpus import Corpus, Document, TextSides, choose_held_out, digest_text, is_held_out
from distill.text.corruptions import Corruption, Corruptor
from distill.text.masking import Masker, Masking, check_masking
from distill.text.packing import SIZE_COLUMNS, Packer, TokenSequence, find_continuations, find_separator

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


FORMAT = 2
_COUNTED = 2**22  # Tokens that are counted at a time.
_COUNTED_TARGETS = 2000  # Sequences whose targets are counted.
Packing = Literal["full_sentences", "doc_sentences", "segment_pair", "sentence"]
PACKINGS = get_args(Packing)
Count = Annotated[int, Field(ge=1, description="at least 1")]
Prompt = Annotated[
    Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)] | None,
    Field(description="a whole number of tokens of at least 1, or a share between 0 and 1"),
]
_CLEANING = "cleaning.json"  # Beside the tokens of a corpus.
# The column of batches with the labels of pairs: of two orders, which a head of the model predicts, or of three.
PAIR_COLUMNS = {"nsp": "pair_labels", "sop": "pair_labels", "three_way": "order_labels"}


@check_options("task")
@dataclass(frozen=True, config=STRICT)
class SequenceSettings:
    """Settings of raw text and of the masked sequences made from it, the keys of `conf/task/mlm.yaml`.

    Args:
        mask: selection and replacement of the masked tokens; None masks none, for a model that predicts every token
            from those before it.
        data_dir: a file, or a folder of text files, JSONL (these also `.gz`) and Parquet. None uses the Hub's
            `hub_id`.
        hub_id: a data set of the Hub, `owner/name` or `owner/name:configuration`.
        builtin: whether to use the built-in text.
        text: column of the text in JSONL, Parquet and the Hub.
        documents: unit of the documents in a text file: the `file`, a `paragraph` between blank lines, or a `line`.
        packing: one of `PACKINGS`, as in `packing.Packer`.
        pair: second objective of `segment_pair`: `nsp`, `sop`, `three_way` or None.
        max_length: number of tokens in a sequence.
        masking: `dynamic` draws new masks in every epoch. `static` draws `masks` fixed ones for each sequence and
            uses them in turn, one in each epoch, so that teacher outputs can be cached.
        masks: number of the fixed masks of each sequence.
        dev_fraction: share of the documents that is held out as dev.
        dev_examples: number of sequences in dev, always the same ones; None uses all.
        seed: seed of the held-out documents, the masks and the pairs.
        streaming: whether to read, tokenize and mask during the training. `auto` streams a data set of the Hub and
            more than `keep_gb` of files.
        keep_gb: size of files in GB.
        clean: `web` drops what is no prose, as `WebCleaner`; None keeps the text as it is.
        corruption: of the sources of an encoder-decoder, which writes the text in targets; None for other models.
            `masking` and `masks` are then of the corruption.
        prompt: the first tokens of each sequence that a model continues, as their number or as a share; None for models
            that continue none.
    """

    mask: Masking | None
    data_dir: str | None = None
    hub_id: str | None = None
    builtin: bool = False
    text: str = "text"
    documents: Literal["file", "paragraph", "line"] = "file"
    packing: Packing = "full_sentences"
    pair: Literal[None, "nsp", "sop", "three_way"] = None
    max_length: Annotated[int, Field(ge=8, description="at least 8 tokens")] = 128
    masking: Annotated[Literal["dynamic", "static"], Field(description="one of dynamic, static")] = "dynamic"
    masks: Count = 10
    dev_fraction: Annotated[float, Field(gt=0, lt=1, description="a share between 0 and 1")] = 0.05
    dev_examples: Count | None = 1000
    seed: int = 0
    streaming: Literal["auto"] | bool = "auto"
    keep_gb: float = 4.0
    clean: Annotated[Literal["web"] | None, Field(description="one of null, web")] = None
    corruption: Corruption | None = None
    prompt: Prompt = None

    def __post_init__(self) -> None:
        if self.pair is not None and self.packing != "segment_pair":
            raise ValueError(
                f"got task.pair={self.pair} and task.packing={self.packing}: pairs need task.packing=segment_pair"
            )
        if self.streaming is True and self.masking == "static":
            raise ValueError("got task.masking=static and task.streaming=true: a stream shows a text once only")
        if self.mask is not None:
            check_masking(self.mask, self.max_length)
        if self.prompt is not None and self.prompt >= self.max_length:
            raise ValueError(
                f"got task.prompt={self.prompt} and task.max_length={self.max_length}: expected a prompt of fewer "
                "tokens, which leaves some to be written"
            )

    @property
    def visits(self) -> int | None:
        """Ways in which a sequence is shown, one an epoch; None for a new one in each."""
        if self.mask is None and self.corruption is None:
            return 1
        return self.masks if self.masking == "static" else None


def count_prompt(lengths: np.ndarray, prompt: int | float) -> np.ndarray:
    """Returns the first tokens `[N]` of sequences of these lengths `[N]` that a model continues.

    A share leaves at least one token to be written, and a number of tokens none of a sequence that is not longer.
    """
    shares: np.ndarray = np.round(lengths * prompt).astype(np.int64).clip(1, np.maximum(lengths - 1, 1))
    numbers: np.ndarray = np.minimum(lengths, int(prompt))
    return numbers if prompt >= 1 else shares


class Sequences(TokenizedExamples):
    """Packed sequences, masked on access. An index is a list of sequences and visits, as `LengthBuckets` yields it.

    Settings without a mask leave all tokens as they are, and there are no labels. The masks depend only on the seed,
    the sequence and the visit. `lengths [N]` are in tokens.

    With a corruption `input_ids [B, L]` are of the corrupted sources, and `labels [B, T]` the targets, which count
    among the lengths.

    Args:
        tokens: the packed sequences.
        rows: indices of the sequences to use; None uses all.
        first: number of the first sequence, on which its masks depend.
        visits: number of different masks of a sequence; None draws new ones in every epoch.
        cleaned: the counts of the cleaning of the corpus; None if it was not cleaned, or is a stream.

    Attributes:
        mask_token: of the tokenizer.
        vocabulary: the number of its tokens.
    """

    def __init__(
        self,
        tokens: tokenization.Tokens,
        settings: SequenceSettings,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        rows: np.ndarray | None = None,
        first: int = 0,
        visits: int | None = 1,
        cleaned: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(tokens, tokenizer, rows=rows)
        self.visits, self.first, self.cleaned = visits, first, cleaned
        mask, mean = settings.mask, float(self.lengths.mean())
        self.items_per_example = mean - 1 if mask is None else mean * (mask.probability + mask.shuffle)
        chosen_rows = None if rows is None else rows.tolist()
        special = tokenizer.all_special_ids
        masks = mask and [asdict(mask), settings.seed, tokenizer.mask_token_id, sorted(special)]
        self.digest = entry_key("masked", FORMAT, tokens.digest, chosen_rows, masks, visits)
        self.padding |= dict.fromkeys(SIZE_COLUMNS, 0) | {"labels": IGNORED}
        per_example = self._rows.per_example
        if settings.prompt is not None:
            per_example[PROMPT_TOKENS] = count_prompt(self.lengths, settings.prompt)
        if settings.pair is not None and tokens.pair_labels is not None:
            labels = tokens.pair_labels if rows is None else tokens.pair_labels[rows]
            per_example[PAIR_COLUMNS[settings.pair]] = labels.astype(np.int64)
        self.mask_token, self.vocabulary = tokenizer.mask_token, len(tokenizer)
        self._masker: Masker | None = None
        size = int(max(tokenizer.get_vocab().values())) + 1  # Some ids may have no token.
        self._predicted = np.ones(size, dtype=bool)  # Without masks special tokens are too.
        self._continues = np.zeros(size, dtype=bool)  # Tokens that continue a word.
        if mask is not None:
            if tokenizer.mask_token_id is None:
                raise UserError(
                    f"the tokenizer ({type(tokenizer).__name__}) has no mask token, which masked language modelling "
                    "needs"
                )
            self._predicted[special] = False
            self._masker = Masker(
                mask, mask_id=tokenizer.mask_token_id, special_ids=special, vocabulary_size=size, seed=settings.seed
            )
            if mask.unit != "token":
                self._continues = find_continuations(tokenizer)
        self._corruptor = None
        if settings.corruption is not None:
            self._corruptor = Corruptor(settings.corruption, tokenizer, seed=settings.seed)
            self._corruptor.check_lengths(self.lengths)
            self._add_targets(self._corruptor.count_targets(self.lengths))
            self.digest = entry_key("corrupted", FORMAT, self.digest, self._corruptor.describe())

    @cached_property
    def token_counts(self) -> np.ndarray:
        """Number of times that each token occurs which may have to be predicted, `[V]`; -1 for one that never has to.

        They are those of the whole split, and are counted when they are read for the first time. Of a corruption they
        are those in the targets of the first sequences.
        """
        if self._corruptor is not None:
            labels = self[range(min(len(self), _COUNTED_TARGETS))]["labels"].numpy()
            return np.bincount(labels[labels != IGNORED], minlength=len(self._predicted))
        ids, size = self._rows.columns["input_ids"], len(self._predicted)
        parts = (np.bincount(ids[start : start + _COUNTED], minlength=size) for start in range(0, len(ids), _COUNTED))
        return np.where(self._predicted, sum(parts, np.zeros(size, dtype=np.int64)), -1)

    def take(self, chosen: np.ndarray) -> TokenRows:
        """Returns these sequences, masked or corrupted as in their visits."""
        visits, numbers = np.divmod(chosen, len(self))
        rows = super().take(numbers)
        if self._masker is None and self._corruptor is None:
            return rows
        sequences = np.split(rows.columns["input_ids"], rows.starts[1:])
        changed = itertools.starmap(self._change, zip(sequences, numbers.tolist(), visits.tolist(), strict=True))
        sources, labels = zip(*changed, strict=True)
        ids, joined = np.concatenate(sources), np.concatenate(labels)
        if self._corruptor is None:
            return replace(rows, columns={**rows.columns, "input_ids": ids, "labels": joined})
        # Masks that stand for no tokens may make a source longer than its text.
        lengths, target_lengths = (np.array([len(one) for one in of]) for of in (sources, labels))
        return replace(
            rows, columns={"input_ids": ids}, starts=lengths.cumsum() - lengths, lengths=lengths,
            targets=(joined.astype(np.int64), target_lengths),
        )  # fmt: skip

    def _change(self, ids: np.ndarray, number: int, visit: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the inputs and the labels of a sequence, or its source and its target."""
        if self._corruptor is not None:
            return self._corruptor(ids, example=self.first + number, visit=visit)
        assert self._masker is not None
        return self._masker(ids, self._continues[ids], example=self.first + number, visit=visit)

    def list_tokens(self) -> list[np.ndarray]:
        """Returns the tokens `[L]` of each sequence before they are masked."""
        rows = self._rows
        ids = rows.columns["input_ids"]
        return [ids[start : start + size] for start, size in zip(rows.starts, rows.lengths, strict=True)]

    def share_of(self, token: int) -> float:
        """Returns the share of a token among those of all sequences before they are masked."""
        return float((self._rows.columns["input_ids"] == token).mean())

    def pieces(self) -> None:
        """Returns None, because masks put random tokens into the batches."""


@dataclasses.dataclass(frozen=True)
class PackedText:
    """A corpus whose documents are packed into sequences of a tokenizer's tokens, with the settings of both."""

    corpus: Corpus
    settings: SequenceSettings
    tokenizer: "PreTrainedTokenizerBase"

    def keep(self, cache_dir: Path) -> dict[str, Sequences]:
        """Returns the packed sequences of `train` and `dev`, tokenized once and cached.

        Raises:
            UserError: if the corpus is empty, a single document, or shorter than one sequence.
        """
        settings, digest = self.settings, self._compute_digest()
        directory = cache_dir / "tokens" / digest[:20]
        if not has_entry(directory):
            print_line(f"Tokens: {self.corpus.describe()} is tokenized once, in {directory}")
            with new_entry(directory) as temporary:
                self._write(temporary)
        train, dev = (
            tokenization.read_tokens(directory / f"{split}.arrow", f"{digest}-{split}") for split in ("train", "dev")
        )
        cleaned = dev_rows = None
        if settings.clean:
            cleaned = json.loads((directory / _CLEANING).read_text(encoding="utf-8"))
            print_line(f"Cleaning: {describe_cleaning(cleaned)}")
        if settings.dev_examples is not None and settings.dev_examples < len(dev):
            order = np.random.default_rng(settings.seed).permutation(len(dev))
            dev_rows = np.sort(order[: settings.dev_examples])
        return {
            "train": Sequences(train, settings, self.tokenizer, visits=settings.visits, cleaned=cleaned),
            "dev": Sequences(dev, settings, self.tokenizer, rows=dev_rows, cleaned=cleaned),
        }

    def _write(self, directory: Path) -> None:
        """Writes the tokens of both splits, and the counts of a cleaning."""
        settings, splits = self.settings, ("train", "dev")
        divide = TextSides(held_out_of(self.corpus, settings), compares=not self.corpus.has_dev)
        packers = {split: self.create_packer(settings.seed, measures=split == "dev") for split in splits}
        writers = {split: tokenization.TokenWriter(directory / f"{split}.arrow") for split in splits}

        def write(split: str, sequences: Iterable[TokenSequence]) -> None:
            for sequence in sequences:
                writers[split].write_example(sequence.columns(), sequence.pair_label if settings.pair else None)

        cleaner = WebCleaner() if settings.clean else None
        for document in self.corpus.read_documents(cleaner=cleaner):
            split = "dev" if divide(document) else "train"
            write(split, packers[split].add_document(document))
        for split, packer in packers.items():
            write(split, packer.finish())
            if not len(writers[split]):
                raise UserError(self.too_short(split) + divide.describe())
            writers[split].close()
        if cleaner is not None:
            write_json(directory / _CLEANING, cleaner.record())
        counts = [(packer.dropped_token_count, packer.token_count) for packer in packers.values()]
        dropped, read = map(sum, zip(*counts, strict=True))
        if dropped >= 0.01 * read:
            print_line(
                f"Tokens: {dropped / read:.1%} are in no sequence, cut off or too few for one "
                f"(task.packing={settings.packing})"
            )

    def read_dev(self) -> tuple[Sequences, frozenset[int]]:
        """Returns the `dev` of a streamed corpus, the first sequences of its held-out documents, and their digests.

        There are no digests of a corpus with files of dev, whose texts may be in train too.

        Raises:
            UserError: if a stream does not support the settings, or the held-out documents are shorter than one
                sequence.
        """
        corpus, settings = self.corpus, self.settings
        if settings.masking == "static":
            raise UserError(
                f"{corpus.describe()} is streamed, which shows a text once only: set task.masking=dynamic, or "
                "task.streaming=false to cache all of it on disk"
            )
        if settings.dev_examples is None:
            raise UserError(f"{corpus.describe()} is streamed: give task.dev_examples, or dev would be read to its end")
        held_out = held_out_of(corpus, settings)
        packer = self.create_packer(settings.seed, measures=True)
        texts: dict[str, int] = {}

        def read() -> Iterator[Document]:
            for document in corpus.read_documents(select=held_out):
                if document.key not in texts and not corpus.has_dev:
                    texts[document.key] = digest_text(document.text)
                yield document

        dev = list(itertools.islice(packer.pack_documents(read()), settings.dev_examples))
        if not dev:
            raise UserError(self.too_short("dev"))
        return self.join(dev, digest=self._compute_digest()), frozenset(texts.values())

    def join(self, sequences: Sequence[TokenSequence], *, first: int = 0, digest: str = "") -> Sequences:
        """Returns packed sequences as a split; `first` is the number of the first one."""
        columns = [sequence.columns() for sequence in sequences]
        lengths = [len(sequence.ids) for sequence in sequences]
        tokens = tokenization.Tokens(
            columns={name: np.concatenate([column[name] for column in columns]) for name in columns[0]},
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            truncated=0,
            digest=digest,
            pair_labels=np.array([sequence.pair_label for sequence in sequences]) if self.settings.pair else None,
        )
        return Sequences(tokens, self.settings, self.tokenizer, first=first)

    def create_packer(self, *seed: int, measures: bool = False) -> Packer:
        """Returns the packer of the settings.

        Args:
            measures: whether the sequences of a text without masks have the sizes of their tokens.
        """
        settings, masks = self.settings, self.settings.mask is not None
        return Packer(
            self.tokenizer, packing=settings.packing, max_length=settings.max_length, pair=settings.pair, seed=seed,
            wraps=masks, measures=measures and not masks,
        )  # fmt: skip

    def too_short(self, split: str = "train", *, rank: int = 0, world: int = 1) -> str:
        """Returns the message for a corpus, or the part of one rank, that is shorter than one sequence."""
        name, settings = self.corpus.describe(), self.settings
        if world > 1:
            return (
                f"{name}: process {rank} of {world} has no sequence to train on, as there are too few documents for "
                f"{world} processes or its own are too short: start fewer processes, set task.documents=paragraph or "
                "line, or give more text"
            )
        part = "its held-out part" if split == "dev" else "what is left to train on"
        if settings.packing == "segment_pair":
            return (
                f"{name}: {part} has no document of two sentences, which make a pair: set task.documents=file "
                "or paragraph, give more text, or set another task.packing"
            )
        return (
            f"{name}: {part} is shorter than one sequence of task.max_length={settings.max_length} tokens: "
            "give more text, a smaller task.max_length or another task.dev_fraction, or set task.packing=sentence"
        )

    def _compute_digest(self) -> str:
        """Returns a digest of everything that the sequences depend on except masks."""
        settings, tokenizer = self.settings, self.tokenizer
        options = [
            settings.packing,
            settings.pair,
            settings.max_length,
            settings.dev_fraction,
            settings.seed,
            find_separator(tokenizer),
            *(SIZE_COLUMNS if settings.mask is None else ()),
        ]
        described = tokenization.describe_tokenizer(tokenizer)
        return entry_key("sequences", FORMAT, self.corpus.compute_fingerprint(), options, described)


def open_corpus(settings: SequenceSettings, cache_dir: Path) -> Corpus:
    """Returns the corpus of the settings."""
    options: dict[str, Any] = {"data_dir": settings.data_dir, "hub_id": settings.hub_id, "column": settings.text}
    if settings.data_dir is not None:
        options["hub_id"] = None
    elif settings.hub_id is None and settings.builtin:
        # dev.jsonl is excluded because the classification task is scored on it.
        builtin_file = docstrings.prepare_dataset(cache_dir, seed=0) / "train.jsonl"
        options = {"builtin_file": builtin_file, "column": "sentence"}
    return Corpus(**options, split_by=settings.documents, clean=settings.clean)


def is_streamed(settings: SequenceSettings, corpus: Corpus) -> bool:
    """Returns whether the corpus is read during the training instead of cached before it."""
    if settings.streaming != "auto":
        return bool(settings.streaming)
    size = corpus.count_bytes()
    return size is None or size > settings.keep_gb * 1e9


def held_out_of(corpus: Corpus, settings: SequenceSettings) -> Callable[[str], bool]:
    """Returns the function that tells by its key whether a document is held out: at least one and never all.

    Of a folder with files of dev those are held out. Else reads the keys up to the first document that is held out and
    the first one that is not.
    """
    if corpus.has_dev:
        return corpus.is_of_dev
    is_drawn = partial(is_held_out, fraction=settings.dev_fraction, seed=settings.seed)
    keys: list[str] = []
    for key in corpus.read_keys():
        keys.append(key)
        if is_drawn(keys[0]) != is_drawn(key):
            return is_drawn
    return choose_held_out(keys, fraction=settings.dev_fraction, seed=settings.seed).__contains__
