"""Packed sequences of raw text with their masks, cached on disk."""

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np
import torch
from torch.utils.data import Dataset

from distill.console import print_line
from distill.contracts import IGNORED, BatchOptions, Loader
from distill.data import docstrings, token_cache
from distill.data.batching import Batch, bucket_loader, padded, padding_of, places_of
from distill.errors import UserError
from distill.files import atomic_directory, is_intact
from distill.text.corpus import DOCUMENT_UNITS, Corpus, choose_held_out, is_held_out
from distill.text.masking import Masker, Masking, check_span
from distill.text.packing import Packer, TokenSequence, find_continuations

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEPT_FORMAT = 1
PACKINGS = ("full_sentences", "doc_sentences", "segment_pair", "sentence")
PAIRS = ("nsp", "sop")


@dataclass(frozen=True)
class SequenceSettings:
    """Where raw text comes from, and how it becomes masked sequences: plain values, as the YAML has them.

    Args:
        mask: the tokens that are chosen, and their replacement.
        data_dir: a file, or a folder of text files, JSONL (these also `.gz`) and Parquet; None takes the Hub's
            `hub_id`.
        builtin: the text comes with the program.
        text: the column of JSONL, Parquet and the Hub that holds the text.
        documents: the unit of a text file that is a document: the `file`, a `paragraph` between blank lines, or a
            `line`.
        packing: one of `PACKINGS`, as in `packing.Packer`.
        pair: for `segment_pair`, the second objective: `nsp`, `sop` or none.
        max_length: tokens of a sequence.
        masking: `dynamic` draws new masks in every epoch; `static` has `masks` fixed ones of every sequence, another
            one in each epoch until they are used up, so that teacher outputs can be cached.
        dev_fraction: share of the documents held out as dev.
        dev_examples: sequences of dev, always the same ones; None scores all.
        seed: decides which documents are held out, and draws masks and pairs.
        streaming: reads, tokenizes and masks during the training; `auto` does so for a data set of the Hub and for
            more than `keep_gb` of files.
    """

    mask: Masking
    data_dir: str | None = None
    hub_id: str | None = None
    builtin: bool = False
    text: str = "text"
    documents: str = "file"
    packing: str = "full_sentences"
    pair: str | None = None
    max_length: int = 128
    masking: str = "dynamic"
    masks: int = 10
    dev_fraction: float = 0.05
    dev_examples: int | None = 1000
    seed: int = 0
    streaming: bool | str = "auto"
    keep_gb: float = 4.0

    def __post_init__(self) -> None:
        for option, value, known in (
            ("packing", self.packing, PACKINGS),
            ("pair", self.pair, (None, *PAIRS)),
            ("masking", self.masking, ("dynamic", "static")),
            ("streaming", self.streaming, ("auto", True, False)),
            ("documents", self.documents, DOCUMENT_UNITS),
        ):
            if value not in known:
                choices = ", ".join("null" if choice is None else str(choice) for choice in known)
                raise ValueError(f"got task.{option}={value}, expected one of {choices}")
        if self.pair is not None and self.packing != "segment_pair":
            raise ValueError(
                f"got task.pair={self.pair} and task.packing={self.packing}: pairs want task.packing=segment_pair"
            )
        if not 0 < self.dev_fraction < 1:
            raise ValueError(f"got task.dev_fraction={self.dev_fraction}, expected a share between 0 and 1")
        if self.max_length < 8:
            raise ValueError(f"got task.max_length={self.max_length}, expected at least 8 tokens")
        for option, number in (("masks", self.masks), ("dev_examples", self.dev_examples)):
            if number is not None and number < 1:
                raise ValueError(f"got task.{option}={number}, expected at least 1")
        if self.streaming is True and self.masking == "static":
            raise ValueError("got task.masking=static and task.streaming=true: a stream shows a text once only")
        check_span(self.mask, self.max_length)


class Sequences(Dataset[Batch]):
    """Packed sequences; an index is a list of them, and of visits, as `LengthBuckets` numbers them.

    The masks depend on the seed, the sequence and the visit alone. `lengths [N]` are in tokens.
    """

    truncated = 0

    def __init__(
        self,
        kept: token_cache.Tokens,
        settings: SequenceSettings,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        rows: np.ndarray | None = None,
        first: int = 0,
        visits: int | None = 1,
    ) -> None:
        chosen = slice(None) if rows is None else rows
        self.visits, self.first = visits, first
        self.lengths = np.diff(kept.offsets)[chosen]
        self.longest = int(self.lengths.max())
        self.items_per_example = float(self.lengths.mean()) * settings.mask.probability
        part = None if rows is None else rows.tolist()
        self.digest = _digest([kept.digest, part, _masks(settings, tokenizer), visits])
        self._columns, self._starts = kept.columns, kept.offsets[:-1][chosen]
        self._pair_labels = None if kept.pair_labels is None else kept.pair_labels[chosen]
        self._padding = padding_of(tokenizer) | {"labels": IGNORED}
        self._pads_left = tokenizer.padding_side == "left"
        self._masker, self._continues = _masker(settings, tokenizer), _continues(settings, tokenizer)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, indices: Sequence[int]) -> Batch:
        called = np.asarray(indices)
        visits, chosen = np.divmod(called, len(self))
        lengths = self.lengths[chosen]
        places = places_of(self._starts[chosen], lengths)
        rows = {name: values[places] for name, values in self._columns.items()}
        masked = []
        for ids, row, visit in zip(np.split(rows["input_ids"], lengths.cumsum()[:-1]), chosen, visits, strict=True):
            masked.append(self._masker(ids, self._continues[ids], example=self.first + int(row), visit=int(visit)))
        rows["input_ids"], rows["labels"] = (np.concatenate(parts) for parts in zip(*masked, strict=True))
        batch = padded(rows, lengths, longest=self.longest, padding=self._padding, left=self._pads_left)
        batch["example_id"] = called
        if self._pair_labels is not None:
            batch["pair_labels"] = self._pair_labels[chosen].astype(np.int64)
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def training_loader(self, *, steps: int | None, **batches: Unpack[BatchOptions]) -> Loader:
        """A loader of shuffled optimizer steps; `batches` are arguments of `LengthBuckets`."""
        return bucket_loader(self, **batches)


def keep_sequences(
    corpus: Corpus, settings: SequenceSettings, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path
) -> dict[str, Sequences]:
    """`train` and `dev` in packed sequences, tokenized once and cached.

    Raises:
        UserError: for a corpus that is empty, a single document, or shorter than one sequence.
    """
    splits = _keep(corpus, settings, tokenizer, cache_dir)
    dev_rows = None
    if settings.dev_examples is not None and settings.dev_examples < len(splits["dev"]):
        order = np.random.default_rng(settings.seed).permutation(len(splits["dev"]))
        dev_rows = np.sort(order[: settings.dev_examples])
    visits = settings.masks if settings.masking == "static" else None
    return {
        "train": Sequences(splits["train"], settings, tokenizer, visits=visits),
        "dev": Sequences(splits["dev"], settings, tokenizer, rows=dev_rows),
    }


def dev_of_stream(corpus: Corpus, settings: SequenceSettings, tokenizer: "PreTrainedTokenizerBase") -> Sequences:
    """The `dev` of a corpus that is streamed: the first sequences of its held-out documents.

    Raises:
        UserError: for settings that a stream cannot follow, or held-out documents shorter than one sequence.
    """
    cached = in_memory(_dev_of_stream(corpus, settings, tokenizer), settings, _kept_digest(corpus, settings, tokenizer))
    return Sequences(cached, settings, tokenizer)


def open_corpus(settings: SequenceSettings, cache_dir: Path) -> Corpus:
    """The documents of the corpus."""
    builtin_file = None
    if settings.data_dir is None and settings.hub_id is None and settings.builtin:
        # Without dev.jsonl, on which the classification task is scored.
        builtin_file = docstrings.prepare_dataset(cache_dir, seed=0) / "train.jsonl"
    return Corpus(
        data_dir=settings.data_dir,
        hub_id=settings.hub_id,
        builtin_file=builtin_file,
        column=settings.text,
        split_by=settings.documents,
    )


def is_streamed(settings: SequenceSettings, corpus: Corpus) -> bool:
    """Whether it is read on the way, and not once and for all."""
    if settings.streaming != "auto":
        return bool(settings.streaming)
    size = corpus.count_bytes()
    return size is None or size > settings.keep_gb * 1e9


def _keep(
    corpus: Corpus, settings: SequenceSettings, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path
) -> dict[str, token_cache.Tokens]:
    """Both splits, tokenized and packed once and found again in the cache."""
    digest = _kept_digest(corpus, settings, tokenizer)
    directory = cache_dir / "tokens" / digest[:20]
    if not is_intact(directory):
        print_line(f"Tokens: {corpus.describe()} is tokenized once, in {directory}")
        held_out = held_out_of(corpus, settings)
        with atomic_directory(directory, reuse_intact=True) as temporary:
            packers = {split: make_packer(settings, tokenizer, settings.seed) for split in ("train", "dev")}
            writers = {split: token_cache.TokenWriter(temporary / f"{split}.arrow") for split in packers}
            for document in corpus.read_documents():
                split = "dev" if held_out(document.key) else "train"
                for sequence in packers[split].add_document(document):
                    writers[split].write_example(_columns(sequence), sequence.pair_label if settings.pair else None)
            for split, packer in packers.items():
                for sequence in packer.finish():
                    writers[split].write_example(_columns(sequence), sequence.pair_label if settings.pair else None)
                if not len(writers[split]):
                    raise UserError(too_short(corpus, settings, split))
                writers[split].close()
        lost = sum(packer.dropped_token_count for packer in packers.values()) / sum(
            packer.token_count for packer in packers.values()
        )
        if lost >= 0.01:
            print_line(
                f"Tokens: {lost:.1%} are in no sequence, cut off or too few for one (task.packing={settings.packing})"
            )
    return {
        split: token_cache.read_tokens(directory / f"{split}.arrow", f"{digest}-{split}") for split in ("train", "dev")
    }


def _kept_digest(corpus: Corpus, settings: SequenceSettings, tokenizer: "PreTrainedTokenizerBase") -> str:
    """Stands for everything that the sequences depend on, masks aside."""
    how = [
        settings.packing,
        settings.pair,
        settings.max_length,
        settings.dev_fraction,
        settings.seed,
        tokenizer.sep_token_id,
    ]
    return _digest(
        [
            KEPT_FORMAT,
            token_cache.FORMAT_VERSION,
            corpus.compute_fingerprint(),
            how,
            token_cache.describe_tokenizer(tokenizer),
        ]
    )


def held_out_of(corpus: Corpus, settings: SequenceSettings) -> Callable[[str], bool]:
    """Whether a document is held out, by its key; where the draw takes none or all of them, at least one is.

    Reads the corpus up to the first document that is held out and the first that is not.
    """
    drawn = partial(is_held_out, fraction=settings.dev_fraction, seed=settings.seed)
    keys: list[str] = []
    for key in corpus.read_keys():
        keys.append(key)
        if drawn(keys[0]) != drawn(key):
            return drawn
    return choose_held_out(keys, fraction=settings.dev_fraction, seed=settings.seed).__contains__


def _dev_of_stream(
    corpus: Corpus, settings: SequenceSettings, tokenizer: "PreTrainedTokenizerBase"
) -> list[TokenSequence]:
    """The first sequences of held-out documents, as many as dev is to have."""
    if settings.masking == "static":
        raise UserError(
            f"{corpus.describe()} is streamed, which shows a text once only: set task.masking=dynamic, or "
            "task.streaming=false to keep all of it on disk"
        )
    if settings.dev_examples is None:
        raise UserError(f"{corpus.describe()} is streamed: give task.dev_examples, or dev would be read to its end")
    held_out = held_out_of(corpus, settings)
    found = make_packer(settings, tokenizer, settings.seed).pack_documents(corpus.read_documents(select=held_out))
    dev = list(itertools.islice(found, settings.dev_examples))
    if not dev:
        raise UserError(too_short(corpus, settings, "dev"))
    return dev


def in_memory(sequences: Sequence[TokenSequence], settings: SequenceSettings, digest: str = "") -> token_cache.Tokens:
    columns = [_columns(sequence) for sequence in sequences]
    lengths = [len(sequence.ids) for sequence in sequences]
    return token_cache.Tokens(
        columns={name: np.concatenate([column[name] for column in columns]) for name in columns[0]},
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        truncated=0,
        digest=digest,
        pair_labels=np.array([sequence.pair_label for sequence in sequences]) if settings.pair else None,
    )


def _columns(sequence: TokenSequence) -> dict[str, np.ndarray]:
    columns = {"input_ids": sequence.ids}
    return columns if sequence.type_ids is None else {**columns, "token_type_ids": sequence.type_ids}


def make_packer(settings: SequenceSettings, tokenizer: "PreTrainedTokenizerBase", *seed: int) -> Packer:
    return Packer(tokenizer, packing=settings.packing, max_length=settings.max_length, pair=settings.pair, seed=seed)


def _masker(settings: SequenceSettings, tokenizer: "PreTrainedTokenizerBase") -> Masker:
    if tokenizer.mask_token_id is None:
        raise UserError(
            f"the tokenizer ({type(tokenizer).__name__}) has no mask token, which masked language modelling needs"
        )
    return Masker(
        settings.mask, mask_id=tokenizer.mask_token_id, special_ids=tokenizer.all_special_ids,
        vocabulary_size=_size(tokenizer), seed=settings.seed,
    )  # fmt: skip


def _continues(settings: SequenceSettings, tokenizer: "PreTrainedTokenizerBase") -> np.ndarray:
    """Of every token whether it goes on with a word; nobody asks where single tokens are masked."""
    return np.zeros(_size(tokenizer), dtype=bool) if settings.mask.unit == "token" else find_continuations(tokenizer)


def _size(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Ids up to the largest; not all of them need be tokens."""
    return int(max(tokenizer.get_vocab().values())) + 1


def _masks(settings: SequenceSettings, tokenizer: "PreTrainedTokenizerBase") -> list[object]:
    return [asdict(settings.mask), settings.seed, tokenizer.mask_token_id, sorted(tokenizer.all_special_ids)]


def too_short(
    corpus: Corpus, settings: SequenceSettings, split: str = "train", *, rank: int = 0, world: int = 1
) -> str:
    if world > 1:
        return (
            f"{corpus.describe()}: process {rank} of {world} has no sequence to train on, as there are too few "
            f"documents for {world} processes or its own are too short: start fewer processes, set "
            "task.documents=paragraph or line, or give more text"
        )
    part = "its held-out part" if split == "dev" else "what is left to train on"
    if settings.packing == "segment_pair":
        return (
            f"{corpus.describe()}: {part} has no document of two sentences, which make a pair: set task.documents=file "
            "or paragraph, give more text, or take another task.packing"
        )
    return (
        f"{corpus.describe()}: {part} is shorter than one sequence of task.max_length={settings.max_length} tokens: "
        "give more text, a smaller task.max_length or another task.dev_fraction, or take task.packing=sentence"
    )


def _digest(parts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
