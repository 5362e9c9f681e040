"""Streaming of raw text, which is read, packed and masked during the training."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, TypedDict, Unpack

import numpy as np

from distill.core.contracts import BatchOptions, Loader
from distill.core.errors import UserError
from distill.data.batches import CollatedBatch, LengthBuckets
from distill.data.streams import StepStream
from distill.text.corpus import Position, leave_out
from distill.text.packing import TokenSequence
from distill.text.sequences import PackedText, Sequences, held_out_of

BUFFER = 8192  # Least number of sequences that are shuffled together.


class BufferPosition(TypedDict, total=False):
    """Position of a buffer, the sequences that are shuffled together, in plain values for checkpoints.

    Attributes:
        number: index of the buffer in the training.
        visit: number of earlier passes over the corpus.
        corpus: the fields of `Position`.
        packer: the state of the `Packer`.
    """

    number: int
    visit: int
    corpus: dict[str, Any]
    packer: dict[str, Any]


class StepPosition(TypedDict):
    """Position of a step: its buffer and the index of its first micro-batch in it."""

    buffer: BufferPosition
    micro_batch: int


@dataclass(frozen=True)
class StreamedText(PackedText):
    """The training split of a corpus that is too large to be cached as tokens.

    Args:
        of_dev: digests of the texts of dev, which are not trained on, wherever they are.
    """

    of_dev: frozenset[int] = frozenset()
    visits = None

    @cached_property
    def digest(self) -> str:
        """Returns the fingerprint of the corpus."""
        return self.corpus.compute_fingerprint()

    def sample(self) -> Sequences:
        """Returns the first sequences that are trained on."""
        return CorpusStream(self, steps=1, batches={}).sample

    @cached_property
    def token_counts(self) -> np.ndarray:
        """As in `Sequences`, of the first sequences that are trained on."""
        return self.sample().token_counts

    def training_loader(self, *, steps: int | None, **batches: Unpack[BatchOptions]) -> Loader:
        """Returns a loader of `steps` optimizer steps.

        Raises:
            UserError: without a number of steps, or if there are fewer documents than processes.
        """
        if steps is None:
            raise UserError(
                f"{self.corpus.describe()} is streamed, so that its length is not known: give trainer.max_steps"
            )
        world = batches.pop("world", 1)
        stream = CorpusStream(self, steps=steps, batches=batches, world=world)
        count = len(list(itertools.islice(filter(stream.is_training_document, self.corpus.read_keys()), world)))
        if count < world:
            raise UserError(
                f"{self.corpus.describe()} has {count} documents to train on, fewer than the {world} processes: start "
                "fewer, set task.documents=paragraph or line, or give more text"
            )
        return stream.loader()


class CorpusStream(StepStream):
    """Optimizer steps of a corpus that is read during the training, repeatedly if it is too short.

    A buffer of sequences is shuffled and masked like cached sequences. Each rank reads its own documents. After a
    place at most one file is read again.

    Raises:
        UserError: if the documents of a rank are shorter than one sequence.
    """

    place: StepPosition | None

    def __init__(self, text: StreamedText, **options: Any) -> None:
        super().__init__(**options)
        self.text = text

    @cached_property
    def sample(self) -> Sequences:
        """Returns the first buffer."""
        return next(self._buffers())[1]

    @cached_property
    def is_training_document(self) -> Callable[[str], bool]:
        """Returns the function that tells by its key whether a document is in the training split."""
        held_out = held_out_of(self.text.corpus, self.text.settings)
        return lambda key: not held_out(key)

    def read_steps(self, place: StepPosition | None) -> Iterator[tuple[StepPosition, list[CollatedBatch]]]:
        size = self.batches["accumulate"]
        micro_batches = self._micro_batches(None if place is None else place["buffer"])
        if place is not None:
            next(itertools.islice(micro_batches, place["micro_batch"] + size - 1, None))
        while True:
            # A step may continue in the next buffer, because all ranks need equally many micro-batches.
            step = list(itertools.islice(micro_batches, size))
            yield step[0][0], [examples[rows] for _, examples, rows in step]

    def buckets(self, examples: Sequences, epoch: int = 0) -> LengthBuckets:
        """Returns the steps of these sequences."""
        buckets = LengthBuckets(examples.lengths, **self.batches)
        buckets.set_epoch(epoch)
        return buckets

    def _micro_batches(
        self, beginning: BufferPosition | None = None
    ) -> Iterator[tuple[StepPosition, Sequences, list[int]]]:
        """Yields, endlessly, each micro-batch as its position, its buffer and its rows in the buffer."""
        for buffer, examples in self._buffers(beginning):
            steps = self.buckets(examples, buffer["number"])
            for number, rows in enumerate(itertools.chain.from_iterable(steps)):
                yield {"buffer": buffer, "micro_batch": number}, examples, rows

    def _buffers(self, beginning: BufferPosition | None = None) -> Iterator[tuple[BufferPosition, Sequences]]:
        """Yields, endlessly, each buffer with its position, from which the stream can be resumed."""
        state: BufferPosition = beginning or {"number": 0, "visit": 0}
        number = state["number"]
        for visit in itertools.count(state["visit"]):
            packer = self.text.create_packer(self.text.settings.seed, visit, self.rank)
            corpus_position = Position(**state.get("corpus", {}))
            if "packer" in state:
                packer.load_state_dict(state["packer"])
            state = {}
            read = self.text.corpus.read_documents(
                rank=self.rank, world_size=self.world, select=self.is_training_document, position=corpus_position
            )
            documents = leave_out(read, self.text.of_dev)
            ended = False
            while not ended:
                position: BufferPosition = {
                    "number": number,
                    "visit": visit,
                    "corpus": asdict(corpus_position),
                    "packer": packer.state_dict(),
                }
                sequences: list[TokenSequence] = []
                for document in documents:
                    sequences += packer.add_document(document)
                    if len(sequences) >= BUFFER:
                        break
                else:
                    sequences += packer.finish()
                    ended = True
                if sequences:
                    # Unique among all ranks and buffers.
                    first = (number * self.world + self.rank) << 32
                    yield position, self.text.join(sequences, first=first)
                    number += 1
                elif not position["corpus"]["parts"] and not position["corpus"]["file"]:
                    raise UserError(self.text.too_short(rank=self.rank, world=self.world))
