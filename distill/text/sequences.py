"""Packed and masked sequences of raw text, whose tokens are cached on disk."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Unpack, get_args

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch.utils.data import Dataset

from distill.core.console import print_line
from distill.core.contracts import IGNORED, PROMPT_TOKENS, TARGET_MASK, BatchOptions, Loader
from distill.core.errors import UserError
from distill.core.files import write_json
from distill.core.options import STRICT, check_options
from distill.core.storage import entry_key, has_entry, new_entry
from distill.data import docstrings, tokenization
from distill.data.batches import CollatedBatch, bucket_loader, pad_columns, padding_values, token_positions
from distill.data.prose import WebCleaner, describe_cleaning
from distill.text.corpus import Corpus, Document, TextSides, choose_held_out, digest_text, is_held_out
from distill.text.corruptions import Corruption, Corruptor
from distill.text.masking import Masker, Masking, check_masking
from distill.text.packing import Packer, TokenSequence, find_continuations, find_separator

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
SIZE_COLUMNS = ("text_bytes", "text_words")  # Of the tokens of dev, where none is masked.
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


class Sequences(Dataset[CollatedBatch]):
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

    truncated = 0
    classes_per_item = None

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
        chosen = slice(None) if rows is None else rows
        self.visits, self.first, self.cleaned = visits, first, cleaned
        self.lengths = self.tokens = np.diff(tokens.offsets)[chosen]
        self.sequences, self.longest = np.ones_like(self.lengths), int(self.lengths.max())
        mask, mean = settings.mask, float(self.lengths.mean())
        self.items_per_example = mean - 1 if mask is None else mean * (mask.probability + mask.shuffle)
        chosen_rows = None if rows is None else rows.tolist()
        masks = _describe_masks(settings, tokenizer)
        self.digest = entry_key("masked", FORMAT, tokens.digest, chosen_rows, masks, visits)
        self._columns, self._starts = tokens.columns, tokens.offsets[:-1][chosen]
        self._pair_labels = None if tokens.pair_labels is None else tokens.pair_labels[chosen]
        self._pair_column = None if settings.pair is None else PAIR_COLUMNS[settings.pair]
        self._sizes = self.lengths  # Tokens in the cache.
        self._corruptor = self._corrupt_with(settings, tokenizer)
        self._padding = padding_values(tokenizer) | dict.fromkeys(SIZE_COLUMNS, 0) | {"labels": IGNORED}
        self._pads_left, self._prompt = tokenizer.padding_side == "left", settings.prompt
        self.mask_token, self.vocabulary = tokenizer.mask_token, len(tokenizer)
        self._masker = None if mask is None else _create_masker(mask, settings.seed, tokenizer)
        self._continues = None if mask is None else _find_continuations(mask, tokenizer)
        self._predicted = np.ones(_vocabulary_size(tokenizer), dtype=bool)  # Without masks special tokens are too.
        if mask is not None:
            self._predicted[tokenizer.all_special_ids] = False

    def _corrupt_with(self, settings: SequenceSettings, tokenizer: "PreTrainedTokenizerBase") -> Corruptor | None:
        """Returns the corruption of the settings, and makes every example of its tokens and those of its target."""
        if settings.corruption is None:
            return None
        corruptor = Corruptor(settings.corruption, tokenizer, seed=settings.seed)
        corruptor.check_lengths(self._sizes)
        targets = corruptor.count_targets(self._sizes)
        self.lengths = self.tokens = self._sizes + targets
        self.items_per_example, self._longest_target = float(targets.mean()), int(targets.max())
        self.digest = entry_key("corrupted", FORMAT, self.digest, corruptor.describe())
        return corruptor

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def token_counts(self) -> np.ndarray:
        """Number of times that each token occurs which may have to be predicted, `[V]`; -1 for one that never has to.

        They are those of the whole split, and are counted when they are read for the first time. Of a corruption they
        are those in the targets of the first sequences.
        """
        if self._corruptor is not None:
            labels = self[range(min(len(self), _COUNTED_TARGETS))]["labels"].numpy()
            return np.bincount(labels[labels != IGNORED], minlength=len(self._predicted))
        ids, size = self._columns["input_ids"], len(self._predicted)
        parts = (np.bincount(ids[start : start + _COUNTED], minlength=size) for start in range(0, len(ids), _COUNTED))
        return np.where(self._predicted, sum(parts, np.zeros(size, dtype=np.int64)), -1)

    def __getitem__(self, indices: Sequence[int]) -> CollatedBatch:
        example_id = np.asarray(indices)
        visits, chosen = np.divmod(example_id, len(self))
        lengths = self._sizes[chosen]
        positions = token_positions(self._starts[chosen], lengths)
        columns = {name: values[positions] for name, values in self._columns.items()}
        if self._corruptor is not None:
            batch = self._corrupt(columns["input_ids"], lengths, chosen, visits)
            batch["example_id"] = example_id
            return {name: torch.from_numpy(array) for name, array in batch.items()}
        if self._masker is not None and self._continues is not None:
            masked = []
            sequences = np.split(columns["input_ids"], lengths.cumsum()[:-1])
            for ids, row, visit in zip(sequences, chosen, visits, strict=True):
                masked.append(self._masker(ids, self._continues[ids], example=self.first + int(row), visit=int(visit)))
            columns["input_ids"], columns["labels"] = (np.concatenate(arrays) for arrays in zip(*masked, strict=True))
        batch = pad_columns(columns, lengths, longest=self.longest, padding=self._padding, left=self._pads_left)
        batch["example_id"] = example_id
        if self._prompt is not None:
            batch[PROMPT_TOKENS] = count_prompt(lengths, self._prompt)
        if self._pair_labels is not None and self._pair_column is not None:
            batch[self._pair_column] = self._pair_labels[chosen].astype(np.int64)
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def _corrupt(
        self, ids: np.ndarray, lengths: np.ndarray, chosen: np.ndarray, visits: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Returns the padded sources and targets of these sequences, whose ids follow one another.

        Targets are padded behind their tokens, because a decoder reads from left to right.
        """
        assert self._corruptor is not None
        pairs = [
            self._corruptor(sequence, example=self.first + int(row), visit=int(visit))
            for sequence, row, visit in zip(np.split(ids, lengths.cumsum()[:-1]), chosen, visits, strict=True)
        ]
        sources, targets = zip(*pairs, strict=True)
        source_lengths, target_lengths = (np.array([len(one) for one in of]) for of in (sources, targets))
        # Masks that stand for no tokens may make a source longer than its text.
        longest = max(self.longest, int(source_lengths.max()))
        batch = pad_columns(
            {"input_ids": np.concatenate(sources)}, source_lengths, longest=longest, padding=self._padding,
            left=self._pads_left,
        )  # fmt: skip
        written = pad_columns(
            {"labels": np.concatenate(targets).astype(np.int64)}, target_lengths,
            longest=max(self._longest_target, int(target_lengths.max())), padding=self._padding, left=False,
        )  # fmt: skip
        return {**batch, "labels": written["labels"], TARGET_MASK: written["attention_mask"]}

    def list_tokens(self) -> list[np.ndarray]:
        """Returns the tokens `[L]` of each sequence before they are masked."""
        ids = self._columns["input_ids"]
        return [ids[start : start + size] for start, size in zip(self._starts, self._sizes, strict=True)]

    def share_of(self, token: int) -> float:
        """Returns the share of a token among those of all sequences before they are masked."""
        return float((self._columns["input_ids"] == token).mean())

    def pieces(self) -> None:
        """Returns None, because masks put random tokens into the batches."""

    def training_loader(self, *, steps: int | None, **batches: Unpack[BatchOptions]) -> Loader:
        """Returns a loader of shuffled optimizer steps; `batches` are arguments of `LengthBuckets`."""
        return bucket_loader(self, **batches)


def keep_sequences(
    corpus: Corpus, settings: SequenceSettings, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path
) -> dict[str, Sequences]:
    """Returns the packed sequences of `train` and `dev`, tokenized once and cached.

    Raises:
        UserError: if the corpus is empty, a single document, or shorter than one sequence.
    """
    splits, cleaned = _cache_tokens(corpus, settings, tokenizer, cache_dir)
    dev_rows = None
    if settings.dev_examples is not None and settings.dev_examples < len(splits["dev"]):
        order = np.random.default_rng(settings.seed).permutation(len(splits["dev"]))
        dev_rows = np.sort(order[: settings.dev_examples])
    return {
        "train": Sequences(splits["train"], settings, tokenizer, visits=settings.visits, cleaned=cleaned),
        "dev": Sequences(splits["dev"], settings, tokenizer, rows=dev_rows, cleaned=cleaned),
    }


def dev_of_stream(
    corpus: Corpus, settings: SequenceSettings, tokenizer: "PreTrainedTokenizerBase"
) -> tuple[Sequences, frozenset[int]]:
    """Returns the `dev` of a streamed corpus, the first sequences of its held-out documents, and their texts by digest.

    There are no digests of a corpus with files of dev, whose texts may be in train too.

    Raises:
        UserError: if a stream does not support the settings, or the held-out documents are shorter than one sequence.
    """
    (dev, texts), digest = _pack_stream_dev(corpus, settings, tokenizer), _compute_digest(corpus, settings, tokenizer)
    return Sequences(join_sequences(dev, settings, digest), settings, tokenizer), texts


def open_corpus(settings: SequenceSettings, cache_dir: Path) -> Corpus:
    """Returns the corpus of the settings."""
    builtin_file = None
    if settings.data_dir is None and settings.hub_id is None and settings.builtin:
        # dev.jsonl is excluded because the classification task is scored on it.
        builtin_file = docstrings.prepare_dataset(cache_dir, seed=0) / "train.jsonl"
    return Corpus(
        data_dir=settings.data_dir,
        hub_id=settings.hub_id,
        builtin_file=builtin_file,
        column=settings.text,
        split_by=settings.documents,
        clean=settings.clean,
    )


def is_streamed(settings: SequenceSettings, corpus: Corpus) -> bool:
    """Returns whether the corpus is read during the training instead of cached before it."""
    if settings.streaming != "auto":
        return bool(settings.streaming)
    size = corpus.count_bytes()
    return size is None or size > settings.keep_gb * 1e9


def _cache_tokens(
    corpus: Corpus, settings: SequenceSettings, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path
) -> tuple[dict[str, tokenization.Tokens], dict[str, object] | None]:
    """Returns the tokens of both splits from the cache, with the counts of a cleaning.

    The corpus is tokenized and packed if they are missing.
    """
    digest = _compute_digest(corpus, settings, tokenizer)
    directory = cache_dir / "tokens" / digest[:20]
    if not has_entry(directory):
        print_line(f"Tokens: {corpus.describe()} is tokenized once, in {directory}")
        held_out = held_out_of(corpus, settings)
        with new_entry(directory) as temporary:
            packers = {
                split: make_packer(settings, tokenizer, settings.seed, measures=split == "dev")
                for split in ("train", "dev")
            }
            writers = {split: tokenization.TokenWriter(temporary / f"{split}.arrow") for split in packers}
            cleaner = WebCleaner() if settings.clean else None
            divide = TextSides(held_out, compares=not corpus.has_dev)
            for document in corpus.read_documents(cleaner=cleaner):
                split = "dev" if divide(document) else "train"
                for sequence in packers[split].add_document(document):
                    writers[split].write_example(_columns(sequence), sequence.pair_label if settings.pair else None)
            for split, packer in packers.items():
                for sequence in packer.finish():
                    writers[split].write_example(_columns(sequence), sequence.pair_label if settings.pair else None)
                if not len(writers[split]):
                    raise UserError(too_short_message(corpus, settings, split) + divide.describe())
                writers[split].close()
            if cleaner is not None:
                write_json(temporary / _CLEANING, cleaner.record())
        dropped = sum(packer.dropped_token_count for packer in packers.values()) / sum(
            packer.token_count for packer in packers.values()
        )
        if dropped >= 0.01:
            print_line(
                f"Tokens: {dropped:.1%} are in no sequence, cut off or too few for one "
                f"(task.packing={settings.packing})"
            )
    splits = {
        split: tokenization.read_tokens(directory / f"{split}.arrow", f"{digest}-{split}") for split in ("train", "dev")
    }
    return splits, _read_cleaning(directory) if settings.clean else None


def _read_cleaning(directory: Path) -> dict[str, object]:
    """Prints and returns the counts of the cleaning of a corpus."""
    cleaned: dict[str, object] = json.loads((directory / _CLEANING).read_text(encoding="utf-8"))
    print_line(f"Cleaning: {describe_cleaning(cleaned)}")
    return cleaned


def _compute_digest(corpus: Corpus, settings: SequenceSettings, tokenizer: "PreTrainedTokenizerBase") -> str:
    """Returns a digest of everything that the sequences depend on except masks."""
    options = [
        settings.packing,
        settings.pair,
        settings.max_length,
        settings.dev_fraction,
        settings.seed,
        find_separator(tokenizer),
        *(SIZE_COLUMNS if settings.mask is None else ()),
    ]
    return entry_key(
        "sequences", FORMAT, corpus.compute_fingerprint(), options, tokenization.describe_tokenizer(tokenizer)
    )


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


def _pack_stream_dev(
    corpus: Corpus, settings: SequenceSettings, tokenizer: "PreTrainedTokenizerBase"
) -> tuple[list[TokenSequence], frozenset[int]]:
    """Returns the first `dev_examples` sequences of the held-out documents, and the digests of the documents' texts."""
    if settings.masking == "static":
        raise UserError(
            f"{corpus.describe()} is streamed, which shows a text once only: set task.masking=dynamic, or "
            "task.streaming=false to cache all of it on disk"
        )
    if settings.dev_examples is None:
        raise UserError(f"{corpus.describe()} is streamed: give task.dev_examples, or dev would be read to its end")
    held_out = held_out_of(corpus, settings)
    packer = make_packer(settings, tokenizer, settings.seed, measures=True)
    texts: dict[str, int] = {}

    def read() -> Iterator[Document]:
        for document in corpus.read_documents(select=held_out):
            if document.key not in texts and not corpus.has_dev:
                texts[document.key] = digest_text(document.text)
            yield document

    dev = list(itertools.islice(packer.pack_documents(read()), settings.dev_examples))
    if not dev:
        raise UserError(too_short_message(corpus, settings, "dev"))
    return dev, frozenset(texts.values())


def join_sequences(
    sequences: Sequence[TokenSequence], settings: SequenceSettings, digest: str = ""
) -> tokenization.Tokens:
    """Returns the sequences as the columns of one split."""
    columns = [_columns(sequence) for sequence in sequences]
    lengths = [len(sequence.ids) for sequence in sequences]
    return tokenization.Tokens(
        columns={name: np.concatenate([column[name] for column in columns]) for name in columns[0]},
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        truncated=0,
        digest=digest,
        pair_labels=np.array([sequence.pair_label for sequence in sequences]) if settings.pair else None,
    )


def _columns(sequence: TokenSequence) -> dict[str, np.ndarray]:
    columns = {"input_ids": sequence.ids}
    if sequence.type_ids is not None:
        columns["token_type_ids"] = sequence.type_ids
    if sequence.sizes is not None:
        columns |= dict(zip(SIZE_COLUMNS, sequence.sizes.T, strict=True))
    return columns


def make_packer(
    settings: SequenceSettings, tokenizer: "PreTrainedTokenizerBase", *seed: int, measures: bool = False
) -> Packer:
    """Returns the packer of the settings.

    Args:
        measures: whether the sequences of a text without masks have the sizes of their tokens.
    """
    return Packer(
        tokenizer, packing=settings.packing, max_length=settings.max_length, pair=settings.pair, seed=seed,
        wraps=settings.mask is not None, measures=measures and settings.mask is None,
    )  # fmt: skip


def _create_masker(mask: Masking, seed: int, tokenizer: "PreTrainedTokenizerBase") -> Masker:
    if tokenizer.mask_token_id is None:
        raise UserError(
            f"the tokenizer ({type(tokenizer).__name__}) has no mask token, which masked language modelling needs"
        )
    return Masker(
        mask, mask_id=tokenizer.mask_token_id, special_ids=tokenizer.all_special_ids,
        vocabulary_size=_vocabulary_size(tokenizer), seed=seed,
    )  # fmt: skip


def _find_continuations(mask: Masking, tokenizer: "PreTrainedTokenizerBase") -> np.ndarray:
    """Returns for each token whether it continues a word, `[V]`; all False if single tokens are masked."""
    if mask.unit == "token":
        return np.zeros(_vocabulary_size(tokenizer), dtype=bool)
    return find_continuations(tokenizer)


def _vocabulary_size(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Returns the largest id plus one; some ids may have no token."""
    return int(max(tokenizer.get_vocab().values())) + 1


def _describe_masks(settings: SequenceSettings, tokenizer: "PreTrainedTokenizerBase") -> list[object] | None:
    if settings.mask is None:
        return None
    return [asdict(settings.mask), settings.seed, tokenizer.mask_token_id, sorted(tokenizer.all_special_ids)]


def too_short_message(
    corpus: Corpus, settings: SequenceSettings, split: str = "train", *, rank: int = 0, world: int = 1
) -> str:
    """Returns the message for a corpus, or the part of one rank, that is shorter than one sequence."""
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
            "or paragraph, give more text, or set another task.packing"
        )
    return (
        f"{corpus.describe()}: {part} is shorter than one sequence of task.max_length={settings.max_length} tokens: "
        "give more text, a smaller task.max_length or another task.dev_fraction, or set task.packing=sentence"
    )
