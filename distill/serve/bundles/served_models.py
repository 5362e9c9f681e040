"""The bundles that are served, and the threads in which requests that wait together are run."""

import asyncio
import contextlib
import heapq
import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from distill.core.errors import DistillError, UserError, first_line
from distill.edge import Bundle
from distill.edge.bundle_files import NAME, fingerprint
from distill.edge.decoder import Prediction, Record
from distill.edge.generation import Generator, Prompt, Writing
from distill.edge.prediction import RecordError
from distill.edge.sampling import GenerationOptions
from distill.serve.bundles.escalation import Escalation
from distill.serve.limits import Limits

Result = TypeVar("Result")
Report = Callable[[int], object]


def ignore(number: int) -> None:
    """Reports nothing."""


class Worker(ABC):
    """Does the work of a queue in one thread, one part after the other."""

    def __init__(self) -> None:
        self._arrived, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._worker: asyncio.Task[None] | None = None
        self._since: float | None = None

    def start(self) -> None:
        """Starts to work; needs a running event loop."""
        self._worker = asyncio.create_task(self._work())

    async def stop(self, seconds: float) -> None:
        """Does all that waits, for at most some seconds, and ends the thread."""
        if self._worker is not None:
            idle = asyncio.ensure_future(self._idle.wait())
            await asyncio.wait({idle, self._worker}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            idle.cancel()
            self._worker.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def is_working(self, seconds: float) -> bool:
        """Returns whether work is done, and the part that runs has not taken longer than some seconds."""
        return self.is_alive() and (
            self._since is None or asyncio.get_running_loop().time() - self._since <= seconds
        )  # fmt: skip

    def is_alive(self) -> bool:
        """Returns whether the task that works has not ended."""
        return self._worker is not None and not self._worker.done()

    async def _work(self) -> None:
        while True:
            await self._arrived.wait()
            if not await self._work_on():
                self._arrived.clear()
                self._idle.set()

    @abstractmethod
    async def _work_on(self) -> bool:
        """Does the next part of the work, and returns whether some is left."""

    def _wake(self) -> None:
        """Says that there is work."""
        self._arrived.set()
        self._idle.clear()

    async def _run_in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Calls a function in the thread, and notes for how long it has run."""
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        try:
            return await loop.run_in_executor(self._thread, work, *arguments)
        finally:
            self._since = None


Predict = Callable[[list[Record]], list[Prediction]]
SHARE = 8_000  # Characters that a request gets computed before others have a turn, or one record.


class FullError(Exception):
    """As many requests wait as may."""


class ModelError(Exception):
    """A model ended with something that is no `Exception`, such as a panic of the tokenizer."""


@dataclass
class PredictionRequest:
    """Records with their costs, and the future of their predictions. A cancelled future is not computed any more.

    Attributes:
        taken: number of records that are computed, or in the batch that is.
        turn: the time of the queue at which the next records have their turn, in characters.
    """

    records: Sequence[Record]
    costs: Sequence[int]
    answer: "asyncio.Future[list[Prediction]]"
    turn: int
    taken: int = 0
    predictions: list[Prediction] = field(default_factory=list)

    def next_share(self, most: int) -> "Share":
        """Returns the next records, one at least and `most` at most."""
        last, cost = self.taken + 1, self.costs[self.taken]
        end = min(len(self.records), self.taken + most)
        while last < end and cost + self.costs[last] <= SHARE:
            cost += self.costs[last]
            last += 1
        return Share(self, self.taken, last, cost)


@dataclass(frozen=True)
class Share:
    """Records of a request that run in one batch, from `first` to `last` (exclusive)."""

    request: PredictionRequest
    first: int
    last: int
    cost: int

    @property
    def records(self) -> Sequence[Record]:
        return self.request.records[self.first : self.last]

    def fail(self, error: Exception) -> None:
        if isinstance(error, RecordError):  # It counts from the beginning of the share.
            error = type(error)(error.number + self.first, error.reason)
        self.request.answer.set_exception(error)


class Batcher(Worker):
    """A queue of requests and one thread that answers them.

    No request waits for others to come: a batch is what gathered while the one before was computed. A large request
    runs in shares, between which others have their turns: the next share is the one that would end first if all
    requests ran at once (start-time fair queueing), so that a small request does not wait for the end of large ones.

    Args:
        predict: returns the predictions of records in their order; it is called in the thread.
        waiting: number of requests that may wait.
        records: of all requests of a batch, at most.
        characters: likewise; a single share may have more.
    """

    def __init__(self, predict: Predict, *, waiting: int, records: int, characters: int = 32_000) -> None:
        super().__init__()
        self.predict, self.most, self.records, self.characters = predict, waiting, records, characters
        self.report_size: Report = ignore  # Called with the number of records of each batch.
        self._queue: list[tuple[int, int, PredictionRequest]] = []
        self._numbers, self._clock = itertools.count(), 0

    def waiting(self) -> int:
        """Returns the number of requests that wait."""
        return len(self._queue)

    def submit(
        self, records: Sequence[Record], costs: Sequence[int] | None = None
    ) -> "asyncio.Future[list[Prediction]]":
        """Returns the future of the predictions.

        Args:
            costs: of each record, in characters; None for 1 each.

        Raises:
            FullError: if as many requests wait as may.
        """
        if len(self._queue) >= self.most:
            raise FullError
        answer = asyncio.get_running_loop().create_future()
        request = PredictionRequest(records, [1] * len(records) if costs is None else costs, answer, self._clock)
        self._push(request)
        return request.answer

    def _push(self, request: PredictionRequest) -> None:
        end = request.turn + request.next_share(self.records).cost
        heapq.heappush(self._queue, (end, next(self._numbers), request))
        self._wake()

    async def _work_on(self) -> bool:
        await self._answer(self._take())
        return bool(self._queue)

    def _take(self) -> list[Share]:
        """Returns the shares of the next batch, and takes them out of the queue."""
        shares: list[Share] = []
        records = cost = 0
        while self._queue:
            _, _, request = self._queue[0]
            if request.answer.done():  # It was cancelled.
                heapq.heappop(self._queue)
                continue
            share = request.next_share(self.records)
            records, cost = records + len(share.records), cost + share.cost
            if shares and (records > self.records or cost > self.characters):
                break
            heapq.heappop(self._queue)
            shares.append(share)
            self._clock = max(self._clock, request.turn)
            request.taken, request.turn = share.last, request.turn + share.cost
            if request.taken < len(request.records):
                self._push(request)
        return shares

    async def _answer(self, shares: Sequence[Share]) -> None:
        """Computes a batch; where that fails, each of its shares alone, so that only the cause of it fails."""
        shares = [share for share in shares if not share.request.answer.done()]
        if not shares:
            return
        records = [record for share in shares for record in share.records]
        self.report_size(len(records))
        try:
            predictions = await self._run_in_thread(self._run, records)
        except Exception as error:
            if len(shares) > 1:
                for share in shares:
                    await self._answer([share])
            elif not shares[0].request.answer.done():
                shares[0].fail(error)
            return
        remaining = iter(predictions)
        for share in shares:
            request = share.request
            request.predictions += itertools.islice(remaining, len(share.records))
            # It may have been cancelled while it was computed.
            if len(request.predictions) == len(request.records) and not request.answer.done():
                request.answer.set_result(request.predictions)

    def _run(self, records: list[Record]) -> list[Prediction]:
        """Returns the predictions, or raises an `Exception`: another one would end the task that waits for it."""
        try:
            return self.predict(records)
        except Exception:
            raise
        except BaseException as error:
            raise ModelError(first_line(error)) from error


@dataclass(frozen=True)
class Piece:
    """A part of a text of a job; `writing` is the whole text, once this is its last piece."""

    number: int
    text: str
    writing: Writing | None


class GenerationJob:
    """The texts of one request, whose pieces come as they are written.

    Args:
        stepper: writes the texts.
        prompts: of the texts.
    """

    def __init__(self, stepper: Generator, prompts: Sequence[Prompt], options: GenerationOptions) -> None:
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

    @property
    def is_whole(self) -> bool:
        """Whether the last piece of each text has been yielded."""
        return not self._open

    @property
    def writings(self) -> list[Writing]:
        """The texts that have begun, which are all once the job is whole."""
        return [text.writing for text in self.texts if text.writing is not None]

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

    job: GenerationJob
    number: int
    prompt: Prompt
    writing: Writing | None = None
    added: str = ""
    error: Exception | None = None

    @property
    def rows(self) -> int:
        """The rows that the model reads for the text in a step."""
        return self.job.options.beams or 1

    def drop(self) -> None:
        """Ends the writing, where it has begun."""
        if self.writing is not None:
            self.job.stepper.drop(self.writing)


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
        self.report_size: Report = ignore  # Called with the number of texts of each step.
        self.report_length: Report = ignore  # Called with the number of tokens of each text at its end.
        self._waiting: deque[_Text] = deque()
        self._running: list[_Text] = []

    def waiting(self) -> int:
        """Returns the number of texts that wait."""
        return sum(not text.job.is_over for text in self._waiting)

    def running(self) -> int:
        """Returns the number of texts that are written."""
        return len(self._running)

    def submit(self, job: GenerationJob) -> None:
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
            self.report_size(len(self._running))
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
            whole = text.writing if text.writing is not None and text.writing.finish is not None else None
            if text.error is not None:
                text.job.fail(text.error)
            elif text.added or whole is not None:
                text.job.put(Piece(text.number, text.added, whole))
                text.added = ""
            if text.error is not None or whole is not None:
                ended.append(text)
        self._running = [text for text in self._running if text not in ended]
        self._report(ended)

    def _report(self, ended: Sequence[_Text]) -> None:
        for text in ended:
            if text.writing is not None:
                self.report_length(len(text.writing.tokens))


def _change(leaving: Sequence[_Text], joining: Sequence[_Text]) -> None:
    """Drops texts, and starts others; those with the same options are started together."""
    for text in leaving:
        text.drop()
    by_start = itertools.groupby(joining, key=lambda text: (text.job.stepper, text.job.options))
    for (stepper, options), group in by_start:
        texts = list(group)
        with _noting_errors(texts):
            prompts, numbers = [text.prompt for text in texts], [text.number for text in texts]
            writings = stepper.start(prompts, options, numbers=numbers)
            for text, writing in zip(texts, writings, strict=True):
                text.writing, text.added = writing, writing.read()


def _step(texts: Sequence[_Text]) -> None:
    """Adds a token to each text. Texts of a bundle that has been replaced have another stepper."""
    for stepper in dict.fromkeys(text.job.stepper for text in texts):
        own = [text for text in texts if text.job.stepper is stepper]
        with _noting_errors(own):
            stepper.step()
            for text in own:
                assert text.writing is not None
                text.added = text.writing.read()
        for text in own:
            if text.error is not None:
                text.drop()


@contextlib.contextmanager
def _noting_errors(texts: Sequence[_Text]) -> Iterator[None]:
    """Notes an error at each of the texts. A panic of the tokenizer is no `Exception`."""
    try:
        yield
    except BaseException as error:
        for text in texts:
            text.error = error if isinstance(error, Exception) else ModelError(first_line(error))


Signature = tuple[int, int, int]
# A record of each form.
PROBES: Sequence[Record] = (
    "a", ["a", "b"], {"question": "a", "context": "b"}, {"question": "a", "choices": ["b", "c"]},
    {"query": "a", "documents": ["b"]},
)  # fmt: skip


class ServedModel:
    """A bundle with its queues.

    Args:
        name: of the model in paths.
        directory: of the bundle.
        model: one of the bundle's files, None for the recommended one.
        threads: of each model; None for as many as the process may use cores.
        limits: of the requests.
        escalation: makes the predictions of which the bundle is least sure; None without.

    Raises:
        UserError: if the directory is not a bundle, lacks the file or is damaged.
    """

    def __init__(
        self, name: str, directory: Path, *, model: str | None, threads: int | None, limits: Limits,
        escalation: Escalation | None = None,
    ) -> None:  # fmt: skip
        self.name, self.directory, self.limits, self.escalation = name, directory, limits, escalation
        self._model, self._threads = model, threads
        self._signature = _sign(directory)
        self.bundle = self._load()
        self.generator = self.bundle.generator() if self.bundle.generates else None
        self.batcher = Batcher(
            self._predict, waiting=limits.waiting, records=limits.batch_records, characters=limits.batch_characters
        )  # fmt: skip
        self.scheduler = Scheduler(waiting=limits.waiting, rows=self.batch_size)

    @property
    def batch_size(self) -> int:
        """The records in a forward pass, or the texts that are written together."""
        return self.limits.batch_size or self.bundle.batch_size

    def describe(self) -> dict[str, object]:
        """Returns what a client may want to know of the model."""
        manifest = self.bundle.manifest
        fields = {name: manifest.get(name) for name in ("task", "kind", "labels", "pair", "max_length")}
        return {
            "name": self.name, "file": self.bundle.model, "gate": self.bundle.caution or "passed",
            "fingerprint": fingerprint(manifest),
            "batch_size": self.batch_size, "generates": self.bundle.generates, **fields,
        }  # fmt: skip

    def waiting(self) -> int:
        """Returns the number of requests that wait, and of texts that wait to be written."""
        return self.batcher.waiting() + self.scheduler.waiting()

    def is_working(self, seconds: float) -> bool:
        """Returns whether requests are answered, and nothing has been computed for longer than some seconds."""
        return self.batcher.is_working(seconds) and self.scheduler.is_working(seconds)

    async def reload_if_changed(self, thread: ThreadPoolExecutor) -> str | None:
        """Loads the bundle again if bundle.json is another file than before; requests go on with the old one.

        A bundle that cannot be loaded or cannot predict, as while it is being written, is tried again in the next call.

        Returns:
            What happened in words, None if nothing did.
        """
        signature = _sign(self.directory)
        if signature is None or signature == self._signature:
            return None
        try:
            bundle = await asyncio.get_running_loop().run_in_executor(thread, self._load)
        except DistillError as error:
            return f"{self.name} changed and cannot be loaded, the old one is served: {error}"
        self.bundle, self.generator = bundle, bundle.generator() if bundle.generates else None
        self.scheduler.rows = self.batch_size
        self._signature = signature
        return f"{self.name} changed and was loaded again"

    def _load(self) -> Bundle:
        """Returns the bundle, which has predicted a record."""
        try:
            bundle = Bundle(self.directory, model=self._model, threads=self._threads)
            check_predicts(bundle)
            if self.escalation is not None:
                self.escalation.check(bundle)
        except (DistillError, KeyboardInterrupt):
            raise
        except BaseException as error:  # A panic of the tokenizer is no `Exception`.
            raise UserError(f"{self.directory} cannot predict: {first_line(error)}") from error
        return bundle

    def _predict(self, records: list[Record]) -> list[Prediction]:
        limits = self.limits
        return self.bundle.predict(
            records, batch_size=limits.batch_size, truncate=not limits.refuse_long, most_rows=limits.rows,
            escalate=None if self.escalation is None else self.escalation.share,
        )  # fmt: skip


def check_predicts(bundle: Bundle) -> None:
    """Predicts a record of the form that the bundle reads, or writes a token; raises what that raises."""
    if bundle.generates:
        bundle.generate_all(["a"], max_new_tokens=1)
        return
    mask = getattr(bundle.decoder, "mask_token", None)
    for record in PROBES if mask is None else [mask]:
        try:
            bundle.decoder.read(record)
        except UserError:  # It is of another form.
            continue
        with contextlib.suppress(RecordError):  # The letter may have no token.
            bundle.predict([record])
        return


def load_models(
    bundles: Sequence[str], *, model: str | None, threads: int | None, limits: Limits,
    escalation: Escalation | None = None,
) -> dict[str, ServedModel]:  # fmt: skip
    """Returns the models by name. A bundle is `DIR`, whose name is that of its task, or `NAME=DIR`.

    Raises:
        UserError: for a directory that is no bundle, and for two models of one name.
    """
    models: dict[str, ServedModel] = {}
    for entry in bundles:
        name, separator, directory = entry.partition("=")
        if not separator or Path(entry).exists():
            name, directory = "", entry
        loaded = ServedModel(
            name, Path(directory), model=model, threads=threads, limits=limits, escalation=escalation
        )  # fmt: skip
        loaded.name = name or str(loaded.bundle.manifest.get("task") or Path(directory).resolve().name)
        if not loaded.name.replace("-", "_").isidentifier():
            raise UserError(f"got the name {loaded.name!r} of {directory}, expected letters and digits: give NAME=DIR")
        if loaded.name in models:
            raise UserError(
                f"{models[loaded.name].directory} and {directory} have one name, {loaded.name}: give NAME=DIR"
            )
        models[loaded.name] = loaded
    return models


def only(models: Mapping[str, ServedModel]) -> ServedModel | None:
    """Returns the model if there is just one."""
    return next(iter(models.values())) if len(models) == 1 else None


def _sign(directory: Path) -> Signature | None:
    """Returns what changes with every write of bundle.json, which is written last; None if it is missing."""
    try:
        status = (directory / NAME).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
