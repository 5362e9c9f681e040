"""The data sets of language modelling: packed sequences, masked when they are asked for; kept, or made on the way."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from distill.console import say
from distill.data import docstrings, token_cache
from distill.data.batching import Batch, LengthBuckets, padded, places_of
from distill.errors import UserError
from distill.files import atomic_directory, is_intact
from distill.tasks import LanguageModelTask
from distill.text.corpus import Corpus, Position, choose_held_out, is_held_out
from distill.text.masking import IGNORED, Masker
from distill.text.packing import Packer, find_continuations

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEPT_FORMAT = 1
BUFFER = 8192  # Sequences of a stream, at least, that are shuffled together.


class Sequences(Dataset[Batch]):
    """Packed sequences; an index is a list of them, and of visits, as `LengthBuckets` numbers them.

    What is masked depends on the task's seed, the sequence and the visit alone. `lengths [N]` are in tokens.
    """

    truncated = 0

    def __init__(
        self,
        kept: token_cache.Tokens,
        task: LanguageModelTask,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        rows: np.ndarray | None = None,
        first: int = 0,
        visits: int | None = 1,
    ) -> None:
        chosen = slice(None) if rows is None else rows
        self.task, self.visits, self.first = task, visits, first
        self.lengths = np.diff(kept.offsets)[chosen]
        self.longest = int(self.lengths.max())
        part = None if rows is None else rows.tolist()
        self.digest = _digest([kept.digest, part, _masks(task, tokenizer), visits])
        self._columns, self._starts = kept.columns, kept.offsets[:-1][chosen]
        self._pair_labels = None if kept.pair_labels is None else kept.pair_labels[chosen]
        self._padding = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
        self._padding["labels"] = IGNORED
        self._pads_left = tokenizer.padding_side == "left"
        self._masker, self._continues = _masker(task, tokenizer), _continues(task, tokenizer)

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
        batch |= {"items": batch["labels"] != IGNORED, "example_id": called}
        if self._pair_labels is not None:
            batch["pair_labels"] = self._pair_labels[chosen].astype(np.int64)
        return {name: torch.from_numpy(array) for name, array in batch.items()}


class Stream(IterableDataset[list[Batch]]):
    """Optimizer steps out of a corpus that is read as they are asked for, again from its beginning at its end.

    Some thousand sequences at a time are shuffled and masked like those that are kept. Each process reads its own
    documents. Its length is that of the whole training.

    `place` says, in plain values, where the last step stands that it gave: a stream that is given it, and in `skip` how
    many steps there were so far, begins with the next one. Of what is behind it, one file at most is read again.

    Raises:
        UserError: for a process whose documents make no sequence.
    """

    def __init__(
        self,
        corpus: Corpus,
        task: LanguageModelTask,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        steps: int,
        batches: Mapping[str, Any],
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.corpus, self.task, self.tokenizer = corpus, task, tokenizer
        self.steps, self.batches, self.rank, self.world = steps, dict(batches), rank, world
        self.skip = 0
        self.place: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """To another process goes what is read, and nothing of what it says."""
        return {name: value for name, value in vars(self).items() if name not in ("sample", "is_wanted")}

    @cached_property
    def sample(self) -> Sequences:
        """The first sequences."""
        return next(self._buffers())[1]

    @cached_property
    def is_wanted(self) -> Callable[[str], bool]:
        """Whether a document is trained on, by its key."""
        held_out = held_out_of(self.corpus, self.task)
        return lambda key: not held_out(key)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[Batch]]:
        done, place, size = self.skip, self.place, self.batches["accumulate"]
        self.skip, self.place = 0, None
        if done and place is not None:
            micro_batches = self._micro_batches(place["buffer"])
            next(itertools.islice(micro_batches, place["micro_batch"] + size - 1, None))
        else:
            micro_batches = self._micro_batches()
        for _ in range(done, self.steps):
            # Of whichever buffers they are: all processes need as many.
            step = list(itertools.islice(micro_batches, size))
            self.place = step[0][0]
            yield [examples[rows] for _, examples, rows in step]

    def buckets(self, examples: Sequences, epoch: int = 0) -> LengthBuckets:
        """The steps of so many sequences."""
        buckets = LengthBuckets(examples.lengths, **self.batches)
        buckets.set_epoch(epoch)
        return buckets

    def _micro_batches(
        self, beginning: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[dict[str, Any], Sequences, list[int]]]:
        """Endlessly: where each stands, and its rows of which sequences."""
        for buffer, examples in self._buffers(beginning):
            steps = self.buckets(examples, buffer["number"])
            for number, rows in enumerate(itertools.chain.from_iterable(steps)):
                yield {"buffer": buffer, "micro_batch": number}, examples, rows

    def _buffers(self, beginning: Mapping[str, Any] | None = None) -> Iterator[tuple[dict[str, Any], Sequences]]:
        """Endlessly: sequences that are shuffled together, and what it takes to begin with them."""
        state = beginning or {"number": 0, "visit": 0}
        number = state["number"]
        for visit in itertools.count(state["visit"]):
            packer = _packer(self.task, self.tokenizer, self.task.seed, visit, self.rank)
            place = Position(**state.get("corpus", {}))
            if "packer" in state:
                packer.load_state_dict(state["packer"])
            state = {}
            documents = self.corpus.read_documents(
                rank=self.rank, world_size=self.world, select=self.is_wanted, position=place
            )
            ended = False
            while not ended:
                at = {"number": number, "visit": visit, "corpus": asdict(place), "packer": packer.state_dict()}
                some: list[Any] = []
                for document in documents:
                    some += packer.add_document(document)
                    if len(some) >= BUFFER:
                        break
                else:
                    some += packer.finish()
                    ended = True
                if some:
                    # No two processes, and no two buffers, have sequences of one number.
                    first = (number * self.world + self.rank) << 32
                    yield at, Sequences(_in_memory(some, self.task), self.task, self.tokenizer, first=first)
                    number += 1
                elif not at["corpus"]["parts"] and not at["corpus"]["file"]:
                    raise UserError(_too_short(self.corpus, self.task, rank=self.rank, world=self.world))


def read(
    task: LanguageModelTask, tokenizer: "PreTrainedTokenizerBase", *, cache_dir: Path
) -> tuple[dict[str, Sequences], Corpus | None]:
    """`train` and `dev` in packed sequences; of a corpus to be streamed only `dev`, and the corpus.

    Raises:
        UserError: for a corpus that is empty, a single document, or shorter than one sequence, and for what a stream
            cannot give.
    """
    corpus = open_corpus(task, cache_dir)
    if is_streamed(task, corpus):
        kept = _in_memory(_dev_of_stream(corpus, task, tokenizer), task, _kept_digest(corpus, task, tokenizer))
        return {"dev": Sequences(kept, task, tokenizer)}, corpus
    splits = _keep(corpus, task, tokenizer, cache_dir)
    dev_rows = None
    if task.dev_examples is not None and task.dev_examples < len(splits["dev"]):
        order = np.random.default_rng(task.seed).permutation(len(splits["dev"]))
        dev_rows = np.sort(order[: task.dev_examples])
    visits = task.masks if task.masking == "static" else None
    return {
        "train": Sequences(splits["train"], task, tokenizer, visits=visits),
        "dev": Sequences(splits["dev"], task, tokenizer, rows=dev_rows),
    }, None


def open_corpus(task: LanguageModelTask, cache_dir: Path) -> Corpus:
    """The task's documents."""
    builtin_file = None
    if task.data_dir is None and task.hub_id is None and task.builtin:
        # Without dev.jsonl, on which the classification task is scored.
        builtin_file = docstrings.prepare_dataset(cache_dir, seed=0) / "train.jsonl"
    return Corpus(
        data_dir=task.data_dir, hub_id=task.hub_id, builtin_file=builtin_file, column=task.text,
        split_by=task.documents,
    )  # fmt: skip


def is_streamed(task: LanguageModelTask, corpus: Corpus) -> bool:
    """Whether it is read on the way, and not once and for all."""
    if task.streaming != "auto":
        return bool(task.streaming)
    size = corpus.count_bytes()
    return size is None or size > task.keep_gb * 1e9


def stream_loader(
    corpus: Corpus,
    task: LanguageModelTask,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    steps: int,
    world: int = 1,
    **batches: Any,
) -> DataLoader[Any]:
    """Yields one optimizer step at a time, as `batches.loader` does.

    Raises:
        UserError: for fewer documents than processes.
    """
    stream = Stream(corpus, task, tokenizer, steps=steps, batches=batches, world=world)
    found = len(list(itertools.islice(filter(stream.is_wanted, corpus.read_keys()), world)))
    if found < world:
        raise UserError(
            f"{corpus.describe()} has {found} documents to train on, fewer than the {world} processes: start fewer, "
            "set task.documents=paragraph or line, or give more text"
        )
    return DataLoader(stream, batch_size=None, pin_memory=torch.cuda.is_available())


def _keep(
    corpus: Corpus, task: LanguageModelTask, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path
) -> dict[str, token_cache.Tokens]:
    """Both splits, tokenized and packed once and found again in the cache."""
    digest = _kept_digest(corpus, task, tokenizer)
    directory = cache_dir / "tokens" / digest[:20]
    if not is_intact(directory):
        say(f"Tokens: {corpus.describe()} is tokenized once, in {directory}")
        held_out = held_out_of(corpus, task)
        with atomic_directory(directory, reuse_intact=True) as temporary:
            packers = {split: _packer(task, tokenizer, task.seed) for split in ("train", "dev")}
            writers = {split: token_cache.TokenWriter(temporary / f"{split}.arrow") for split in packers}
            for document in corpus.read_documents():
                split = "dev" if held_out(document.key) else "train"
                for sequence in packers[split].add_document(document):
                    writers[split].write_example(_columns(sequence), sequence.pair_label if task.pair else None)
            for split, packer in packers.items():
                for sequence in packer.finish():
                    writers[split].write_example(_columns(sequence), sequence.pair_label if task.pair else None)
                if not len(writers[split]):
                    raise UserError(_too_short(corpus, task, split))
                writers[split].close()
        lost = sum(packer.dropped_token_count for packer in packers.values()) / sum(
            packer.token_count for packer in packers.values()
        )
        if lost >= 0.01:
            say(f"Tokens: {lost:.1%} are in no sequence, cut off or too few for one (task.packing={task.packing})")
    return {
        split: token_cache.read_tokens(directory / f"{split}.arrow", f"{digest}-{split}") for split in ("train", "dev")
    }


def _kept_digest(corpus: Corpus, task: LanguageModelTask, tokenizer: "PreTrainedTokenizerBase") -> str:
    """Stands for everything that the sequences depend on, masks aside."""
    how = [task.packing, task.pair, task.max_length, task.dev_fraction, task.seed, tokenizer.sep_token_id]
    return _digest(
        [
            KEPT_FORMAT,
            token_cache.FORMAT_VERSION,
            corpus.compute_fingerprint(),
            how,
            token_cache.describe_tokenizer(tokenizer),
        ]
    )


def held_out_of(corpus: Corpus, task: LanguageModelTask) -> Callable[[str], bool]:
    """Whether a document is held out, by its key; where the draw takes none or all of them, at least one is.

    Reads the corpus up to the first document that is held out and the first that is not.
    """
    drawn = partial(is_held_out, fraction=task.dev_fraction, seed=task.seed)
    keys: list[str] = []
    for key in corpus.read_keys():
        keys.append(key)
        if drawn(keys[0]) != drawn(key):
            return drawn
    return choose_held_out(keys, fraction=task.dev_fraction, seed=task.seed).__contains__


def _dev_of_stream(corpus: Corpus, task: LanguageModelTask, tokenizer: "PreTrainedTokenizerBase") -> list[Any]:
    """The first sequences of held-out documents, as many as dev is to have."""
    if task.masking == "static":
        raise UserError(
            f"{corpus.describe()} is streamed, which shows a text once only: set task.masking=dynamic, or "
            "task.streaming=false to keep all of it on disk"
        )
    if task.dev_examples is None:
        raise UserError(f"{corpus.describe()} is streamed: give task.dev_examples, or dev would be read to its end")
    held_out = held_out_of(corpus, task)
    found = _packer(task, tokenizer, task.seed).pack_documents(corpus.read_documents(select=held_out))
    dev = list(itertools.islice(found, task.dev_examples))
    if not dev:
        raise UserError(_too_short(corpus, task, "dev"))
    return dev


def _in_memory(sequences: list[Any], task: LanguageModelTask, digest: str = "") -> token_cache.Tokens:
    columns = [_columns(sequence) for sequence in sequences]
    lengths = [len(sequence.ids) for sequence in sequences]
    return token_cache.Tokens(
        columns={name: np.concatenate([column[name] for column in columns]) for name in columns[0]},
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        truncated=0,
        digest=digest,
        pair_labels=np.array([sequence.pair_label for sequence in sequences]) if task.pair else None,
    )


def _columns(sequence: Any) -> dict[str, np.ndarray]:
    columns = {"input_ids": sequence.ids}
    return columns if sequence.type_ids is None else {**columns, "token_type_ids": sequence.type_ids}


def _packer(task: LanguageModelTask, tokenizer: "PreTrainedTokenizerBase", *seed: int) -> Packer:
    return Packer(tokenizer, packing=task.packing, max_length=task.max_length, pair=task.pair, seed=seed)


def _masker(task: LanguageModelTask, tokenizer: "PreTrainedTokenizerBase") -> Masker:
    if tokenizer.mask_token_id is None:
        raise UserError(f"the tokenizer ({type(tokenizer).__name__}) has no mask token, which task={task.name} needs")
    return Masker(
        task.mask, mask_id=tokenizer.mask_token_id, special_ids=tokenizer.all_special_ids,
        vocabulary_size=_size(tokenizer), seed=task.seed,
    )  # fmt: skip


def _continues(task: LanguageModelTask, tokenizer: "PreTrainedTokenizerBase") -> np.ndarray:
    """Of every token whether it goes on with a word; nobody asks where single tokens are masked."""
    return np.zeros(_size(tokenizer), dtype=bool) if task.mask.unit == "token" else find_continuations(tokenizer)


def _size(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Ids up to the largest; not all of them need be tokens."""
    return int(max(tokenizer.get_vocab().values())) + 1


def _masks(task: LanguageModelTask, tokenizer: "PreTrainedTokenizerBase") -> list[Any]:
    return [asdict(task.mask), task.seed, tokenizer.mask_token_id, sorted(tokenizer.all_special_ids)]


def _too_short(corpus: Corpus, task: LanguageModelTask, split: str = "train", *, rank: int = 0, world: int = 1) -> str:
    if world > 1:
        return (
            f"{corpus.describe()}: process {rank} of {world} has no sequence to train on, as there are too few "
            f"documents for {world} processes or its own are too short: start fewer processes, set "
            "task.documents=paragraph or line, or give more text"
        )
    part = "its held-out part" if split == "dev" else "what is left to train on"
    if task.packing == "segment_pair":
        return (
            f"{corpus.describe()}: {part} has no document of two sentences, which make a pair: set task.documents=file "
            "or paragraph, give more text, or take another task.packing"
        )
    return (
        f"{corpus.describe()}: {part} is shorter than one sequence of task.max_length={task.max_length} tokens: give "
        "more text, a smaller task.max_length or another task.dev_fraction, or take task.packing=sentence"
    )


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
