"""Writes the texts of many requests together: they join between two steps, and leave when they have ended."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from distill.edge.generation import Writing
from distill.edge.generation_options import GenerationOptions
from distill.edge.prompts import Prompt
from distill.errors import first_line
from distill.serve.batcher import FullError, ModelError
from distill.serve.worker import Worker


class Stepper(Protocol):
    """Writes several texts, one token of each in a step, as `distill.edge.generation.Generator` does."""

    def start(
        self, prompts: Sequence[str | Prompt], options: GenerationOptions, *, numbers: Sequence[int] | None = None
    ) -> list[Writing]:
        """Starts texts and chooses the first token of each."""
        ...

    def step(self) -> None:
        """Chooses the next token of every text that has not ended."""
        ...

    def drop(self, writing: Writing) -> None:
        """Ends a text before its time."""
        ...


@dataclass(frozen=True)
class Piece:
    """A part of a text of a job; `writing` is the whole text, once this is its last piece."""

    number: int
    text: str
    writing: Writing | None


class Job:
    """The texts of one request, whose pieces come as they are written.

    Args:
        stepper: writes the texts.
        prompts: of the texts.
    """

    def __init__(self, stepper: Stepper, prompts: Sequence[Prompt], options: GenerationOptions) -> None:
        self.stepper, self.options = stepper, options
        self.texts = [_Text(self, number, prompt) for number, prompt in enumerate(prompts)]
        self.is_cancelled = self._has_failed = False
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pieces: asyncio.Queue[Piece | Exception | None] = asyncio.Queue()
        self._open = len(self.texts)

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for its texts any more."""
        return self.is_cancelled or self._has_failed

    def cancel(self) -> None:
        """Ends the pieces. The texts are dropped before the next step."""
        self.is_cancelled = True
        self._pieces.put_nowait(None)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yields pieces until all texts have ended, or the job is cancelled; raises what the model raised."""
        while self._open:
            piece = await self._pieces.get()
            if isinstance(piece, Exception):
                raise piece
            if piece is None or self.is_cancelled:
                return
            self._open -= piece.writing is not None
            yield piece

    def put(self, piece: Piece) -> None:
        """Hands on a piece."""
        self._pieces.put_nowait(piece)

    def fail(self, error: Exception) -> None:
        """Ends the pieces with an error."""
        self._has_failed = True
        self._pieces.put_nowait(error)


@dataclass(eq=False)
class _Text:
    """A text that waits or is written, with what was added to it in the last step."""

    job: Job
    number: int
    prompt: Prompt
    writing: Writing | None = None
    added: str = ""
    error: Exception | None = None

    @property
    def rows(self) -> int:
        """The rows that the model reads for the text in a step."""
        return self.job.options.beams or 1

    def read(self) -> None:
        if self.writing is not None:
            self.added = self.writing.read()


class Scheduler(Worker):
    """A queue of texts, and one thread that writes those that have left it, all in one pass of the model for a token.

    Args:
        waiting: number of texts that may wait.
        rows: that the model reads in a step, one for each text or for each of its beams; a text of more is written
            alone.
    """

    def __init__(self, *, waiting: int, rows: int) -> None:
        super().__init__()
        self.most, self.rows = waiting, rows
        self.sizes: list[Callable[[int], object]] = []  # Called with the number of texts of each step.
        self.lengths: list[Callable[[int], object]] = []  # Called with the number of tokens of each text at its end.
        self._waiting: deque[_Text] = deque()
        self._running: list[_Text] = []

    def waiting(self) -> int:
        """Returns the number of texts that wait."""
        return sum(not text.job.is_over for text in self._waiting)

    def running(self) -> int:
        """Returns the number of texts that are written."""
        return len(self._running)

    def submit(self, job: Job) -> None:
        """Has the texts of a job written.

        Raises:
            FullError: if as many texts wait as may.
        """
        if self.waiting() >= self.most:
            raise FullError
        self._waiting.extend(job.texts)
        self._wake()

    async def _work_on(self) -> bool:
        leaving = [text for text in self._running if text.job.is_over]
        joining = self._take(sum(text.rows for text in self._running if not text.job.is_over))
        if leaving or joining:
            await self._run_in_thread(_change, leaving, joining)
            self._running = [text for text in self._running if text not in leaving] + joining
            self._report(leaving)
            self._hand_on()
        if self._running:
            for report in self.sizes:
                report(len(self._running))
            await self._run_in_thread(_step, list(self._running))
            self._hand_on()
        return bool(self._waiting or self._running)

    def _take(self, rows: int) -> list[_Text]:
        """Returns the texts that join those with some rows, and takes them out of the queue, the oldest first."""
        taken: list[_Text] = []
        while self._waiting:
            text = self._waiting[0]
            if not text.job.is_over:
                rows += text.rows
                if rows > self.rows and rows > text.rows:
                    break
                taken.append(text)
                if not text.job.joined.done():
                    text.job.joined.set_result(None)
            self._waiting.popleft()
        return taken

    def _hand_on(self) -> None:
        """Hands on what was added to each text, and leaves out those that have ended."""
        ended = []
        for text in self._running:
            if text.error is not None:
                text.job.fail(text.error)
                ended.append(text)
                continue
            assert text.writing is not None
            is_last = text.writing.finish is not None
            if is_last:
                ended.append(text)
            if text.added or is_last:
                text.job.put(Piece(text.number, text.added, text.writing if is_last else None))
                text.added = ""
        self._running = [text for text in self._running if text not in ended]
        self._report(ended)

    def _report(self, ended: Sequence[_Text]) -> None:
        for text in ended:
            if text.writing is not None:
                for report in self.lengths:
                    report(len(text.writing.tokens))


def _change(leaving: Sequence[_Text], joining: Sequence[_Text]) -> None:
    """Drops texts, and starts others; those with the same options are started together."""
    for text in leaving:
        _drop(text)
    by_start = itertools.groupby(joining, key=lambda text: (text.job.stepper, text.job.options))
    for (stepper, options), group in by_start:
        texts = list(group)
        try:
            prompts, numbers = [text.prompt for text in texts], [text.number for text in texts]
            writings = stepper.start(prompts, options, numbers=numbers)
            for text, writing in zip(texts, writings, strict=True):
                text.writing = writing
                text.read()
        except BaseException as error:  # A panic of the tokenizer is no `Exception`.
            _fail(texts, error)


def _step(texts: Sequence[_Text]) -> None:
    """Adds a token to each text. Texts of a bundle that has been replaced have another stepper."""
    for stepper in dict.fromkeys(text.job.stepper for text in texts):
        own = [text for text in texts if text.job.stepper is stepper]
        try:
            stepper.step()
            for text in own:
                text.read()
        except BaseException as error:
            _fail(own, error)
            for text in own:
                _drop(text)


def _drop(text: _Text) -> None:
    if text.writing is not None:
        text.job.stepper.drop(text.writing)


def _fail(texts: Sequence[_Text], error: BaseException) -> None:
    for text in texts:
        text.error = error if isinstance(error, Exception) else ModelError(first_line(error))
