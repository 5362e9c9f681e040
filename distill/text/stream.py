"""Optimizer steps out of raw text that is read, packed and masked during the training."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import torch
from torch.utils.data import DataLoader, IterableDataset

from distill.contracts import BatchOptions, Loader
from distill.data.batching import Batch, LengthBuckets
from distill.errors import UserError
from distill.text.corpus import Corpus, Position
from distill.text.packing import TokenSequence
from distill.text.sequences import Sequences, SequenceSettings, held_out_of, in_memory, make_packer, too_short

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BUFFER = 8192  # Sequences of a stream, at least, that are shuffled together.


class BufferPosition(TypedDict, total=False):
    """The beginning of sequences that are shuffled together, in plain values: it is stored in checkpoints.

    Attributes:
        number: of the buffer, counted from the beginning of the training.
        visit: earlier passes over the corpus.
        corpus: the fields of `Position`.
        packer: the state of the `Packer`.
    """

    number: int
    visit: int
    corpus: dict[str, Any]
    packer: dict[str, Any]


class StepPosition(TypedDict):
    """The position of a step in the corpus: its buffer, and its first micro-batch in that."""

    buffer: BufferPosition
    micro_batch: int


@dataclass(frozen=True)
class StreamedText:
    """The training split of a corpus that is too large to be kept as tokens."""

    corpus: Corpus
    settings: SequenceSettings
    tokenizer: "PreTrainedTokenizerBase"
    visits = None

    @cached_property
    def digest(self) -> str:
        """Stands for the corpus."""
        return self.corpus.compute_fingerprint()

    def training_loader(self, *, steps: int | None, **batches: Unpack[BatchOptions]) -> Loader:
        """Yields one optimizer step at a time, `steps` in all.

        Raises:
            UserError: without a number of steps, and for fewer documents than processes.
        """
        if steps is None:
            raise UserError(
                f"{self.corpus.describe()} is streamed, so that its length is not known: give trainer.max_steps"
            )
        world = batches.pop("world", 1)
        stream = Stream(self.corpus, self.settings, self.tokenizer, steps=steps, batches=batches, world=world)
        found = len(list(itertools.islice(filter(stream.is_wanted, self.corpus.read_keys()), world)))
        if found < world:
            raise UserError(
                f"{self.corpus.describe()} has {found} documents to train on, fewer than the {world} processes: start "
                "fewer, set task.documents=paragraph or line, or give more text"
            )
        return DataLoader(stream, batch_size=None, pin_memory=torch.cuda.is_available())


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
        settings: SequenceSettings,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        steps: int,
        batches: BatchOptions,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.corpus, self.settings, self.tokenizer = corpus, settings, tokenizer
        self.steps, self.batches, self.rank, self.world = steps, batches.copy(), rank, world
        self.skip = 0
        self.place: StepPosition | None = None

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
        held_out = held_out_of(self.corpus, self.settings)
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
        self, beginning: BufferPosition | None = None
    ) -> Iterator[tuple[StepPosition, Sequences, list[int]]]:
        """Endlessly: where each stands, and its rows of which sequences."""
        for buffer, examples in self._buffers(beginning):
            steps = self.buckets(examples, buffer["number"])
            for number, rows in enumerate(itertools.chain.from_iterable(steps)):
                yield {"buffer": buffer, "micro_batch": number}, examples, rows

    def _buffers(self, beginning: BufferPosition | None = None) -> Iterator[tuple[BufferPosition, Sequences]]:
        """Endlessly: sequences that are shuffled together, and what it takes to begin with them."""
        state: BufferPosition = beginning or {"number": 0, "visit": 0}
        number = state["number"]
        for visit in itertools.count(state["visit"]):
            packer = make_packer(self.settings, self.tokenizer, self.settings.seed, visit, self.rank)
            place = Position(**state.get("corpus", {}))
            if "packer" in state:
                packer.load_state_dict(state["packer"])
            state = {}
            documents = self.corpus.read_documents(
                rank=self.rank, world_size=self.world, select=self.is_wanted, position=place
            )
            ended = False
            while not ended:
                at: BufferPosition = {
                    "number": number,
                    "visit": visit,
                    "corpus": asdict(place),
                    "packer": packer.state_dict(),
                }
                some: list[TokenSequence] = []
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
                    yield at, Sequences(in_memory(some, self.settings), self.settings, self.tokenizer, first=first)
                    number += 1
                elif not at["corpus"]["parts"] and not at["corpus"]["file"]:
                    raise UserError(too_short(self.corpus, self.settings, rank=self.rank, world=self.world))
