"""Reads the records of requests, has texts written and sent as they come, and counts both."""

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import Receive, Scope, Send

from distill.core.errors import SHOWN, UserError, first_line, shorten
from distill.edge.bundle import Bundle
from distill.edge.decoder import Decoder, Example, Prediction, Record
from distill.edge.generation import Generator, Prompt
from distill.edge.prediction import ESCALATE
from distill.edge.sampling import GenerationOptions
from distill.edge.text_decoders import describe_writing
from distill.serve.bundles.escalation import ESCALATED
from distill.serve.bundles.served_models import FullError, GenerationJob, Piece, ServedModel
from distill.serve.http import GONE, RefusedError, parse_body, read_body, refuse
from distill.serve.limits import Limits

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
M = TypeVar("M", Counter, Gauge, Histogram)


@dataclass
class MeasuredRequest:
    """A request whose status is known at the end, and its model once it is read."""

    model: str
    status: int = 500


class RequestMetrics:
    """The counters and histograms, in a registry of their own."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self.registry = CollectorRegistry()

        def create(kind: type[M], name: str, words: str, labels: Sequence[str] = ("model",), **options: Any) -> M:
            return kind(f"distill_{name}", words, labels, registry=self.registry, **options)

        self._requests = create(Counter, "requests", "Requests by model and status", ("model", "status"))
        words = "Predictions left to a language model, by whether it has made them"
        self._escalated = create(Counter, "escalated", words, ("model", "made"))
        self._seconds = create(Histogram, "request_seconds", "Time from a request to its answer in s", buckets=SECONDS)
        sizes = create(Histogram, "batch_records", "Records that ran together", buckets=SIZES)
        waiting = create(Gauge, "waiting_requests", "Requests and texts to write in the queue")
        running = create(Gauge, "running_texts", "Texts that are written")
        steps = create(Histogram, "step_texts", "Texts of a step, which adds a token to each", buckets=SIZES)
        tokens = create(Counter, "tokens", "Tokens of texts that have ended")
        for name, model in models.items():
            waiting.labels(name).set_function(model.waiting)
            model.batcher.report_size = sizes.labels(name).observe
            running.labels(name).set_function(model.scheduler.running)
            model.scheduler.report_size = steps.labels(name).observe
            model.scheduler.report_length = tokens.labels(name).inc

    def count_escalated(self, model: str, predictions: Sequence[Prediction]) -> None:
        """Counts the predictions that were left to a language model, by whether it has made them."""
        for prediction in predictions:
            if prediction[ESCALATE]:
                self._escalated.labels(model, str(prediction[ESCALATED]).lower()).inc()

    @contextlib.contextmanager
    def time(self, model: str) -> Iterator[MeasuredRequest]:
        """Counts a request with its status, and how long it took."""
        measured, started = MeasuredRequest(model), time.perf_counter()
        try:
            yield measured
        finally:
            self._seconds.labels(measured.model).observe(time.perf_counter() - started)
            self._requests.labels(measured.model, str(measured.status)).inc()


Read = TypeVar("Read")
FORMS = ("texts", "pairs", "inputs")
RANKING = ("query", "documents")
KEYS = ("text", "top_k", "tokens", "question", "context", "choices", *RANKING)  # Of records; others are dropped.
SMALL = 65_536  # Bytes of a body that is read at once.
# What a sequence of tokens and a piece for a mask cost beside their characters, and a mask for each token of the
# vocabulary.
SEQUENCE, PIECE, MASK = 20, 10, 0.01


class BodyReader:
    """Reads the bodies of requests: large ones one after the other, so that small requests are answered meanwhile."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._thread = ThreadPoolExecutor(max_workers=1)

    async def read(self, request: Request, read: Callable[[object], Read]) -> Read:
        """Returns what `read` returns for the content of a request."""
        body = await read_body(request, self.limits)
        if len(body) <= SMALL:
            return _parse(body, read)
        parsed = asyncio.get_running_loop().run_in_executor(self._thread, _parse, body, read)
        try:
            return await asyncio.wait_for(parsed, self.limits.seconds)
        except TimeoutError:
            raise RefusedError(503, "other large requests are read: try again in a second") from None

    def stop(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _parse(body: bytearray, read: Callable[[object], Read]) -> Read:
    try:
        return read(parse_body(body))
    except RecursionError:
        raise RefusedError(400, "the body has lists or objects in too many others") from None


def check_records(records: list[Any], bundle: Bundle, limits: Limits) -> tuple[list[Record], list[int]]:
    """Returns the records of a request and their costs in characters."""
    encodes = bundle.decoder.encodes
    size = sum(len(record) if isinstance(record, list) else 1 for record in records) if encodes else len(records)
    if size > limits.records:
        unit = "texts" if encodes else "records"
        raise RefusedError(413, f"got {size:,} {unit}, the limit of a request is {limits.records:,}")
    checked: list[Record] = []
    costs: list[int] = []
    total = 0
    for number, given in enumerate(records, 1):
        record = _simplify(given, number, limits)
        try:
            example = bundle.decoder.read(record)
        except UserError as error:
            raise RefusedError(422, f"record {number}: {first_line(error)}") from error
        _check_size(example, bundle.decoder, number, limits)
        checked.append(record)
        costs.append(cost(example, bundle.decoder))
        total += costs[-1]
        if total > limits.total:
            raise RefusedError(
                413, f"the request counts as more than {limits.total:,} characters, the limit: send several requests"
            )  # fmt: skip
    return checked, costs


def find_ranking(content: object) -> list[Any]:
    """Returns the one record of a request to rank documents."""
    if not isinstance(content, dict) or set(content) != set(RANKING):
        raise RefusedError(422, f"got {_list_keys(content)}, expected an object with {' and '.join(RANKING)}")
    return [content]


def find_records(content: object) -> list[Any]:
    """Returns the records of a request to predict."""
    given = [name for name in FORMS if isinstance(content, dict) and content.get(name) is not None]
    if not isinstance(content, dict) or len(given) != 1 or len(content) != 1:
        raise RefusedError(422, f"got {_list_keys(content)}, expected an object with one of {', '.join(FORMS)}")
    records = content[given[0]]
    if not isinstance(records, list):
        raise RefusedError(422, f"got {given[0]}={shorten(records)}, expected a list")
    return records


def _list_keys(content: object) -> str:
    """Returns the keys of an object in words."""
    if not isinstance(content, dict):
        return "no object"
    return ", ".join(map(_show_key, content))[:SHOWN] or "nothing"


def _show_key(key: str) -> str:
    return key[:SHOWN].encode("utf-8", "backslashreplace").decode()


def _simplify(record: Any, number: int, limits: Limits) -> Any:
    """Returns a record without the keys that no decoder reads; they would take memory while it waits."""
    if not isinstance(record, dict):
        return record
    known = {key: record[key] for key in KEYS if key in record}
    for key, value in known.items():
        if isinstance(value, dict) or (isinstance(value, list) and not all(isinstance(each, str) for each in value)):
            raise RefusedError(422, f"record {number}: {key} has lists or objects in it, expected texts")
    tokens = known.get("tokens")
    if isinstance(tokens, list) and sum(map(len, tokens)) + len(tokens) - 1 > limits.characters:
        raise _too_long(number, limits)
    return known


def _check_size(example: Example, decoder: Decoder, number: int, limits: Limits) -> None:
    texts = (example.text, example.pair or "", example.context or "", *example.choices, *example.more)
    if max(map(len, texts)) > limits.characters:
        raise _too_long(number, limits)
    for rows, unit in (
        (len(example.choices), "documents" if decoder.ranks else "choices"),
        (len(example.more) + 1, "texts"),
        (_count_masks(example, decoder), "masks"),
    ):
        if rows > limits.rows:
            raise RefusedError(413, f"record {number} has {rows:,} {unit}, the limit of a record is {limits.rows}")


def _too_long(number: int, limits: Limits) -> RefusedError:
    return RefusedError(
        413, f"a text of record {number} has more than {limits.characters:,} characters, the limit"
    )  # fmt: skip


def cost(example: Example, decoder: Decoder) -> int:
    """Returns about how much it takes to compute an example, in characters of text."""
    texts: Sequence[str] = (example.text, example.pair or "", *example.more)
    shared = len(example.context or "") + len(example.text)
    characters = sum(len(choice) + shared + SEQUENCE for choice in example.choices) or sum(
        len(text) + SEQUENCE for text in texts
    )
    masks = _count_masks(example, decoder)
    if masks:
        characters += int(masks * (MASK * decoder.size + PIECE * (example.top_k or decoder.top_k)))  # type: ignore[attr-defined]  # It fills masks.
    return characters


def _count_masks(example: Example, decoder: Decoder) -> int:
    return example.text.count(decoder.mask_token) if decoder.at_positions else 0  # type: ignore[attr-defined]


async def wait_for_disconnect(request: Request) -> None:
    """Returns when the client has closed the connection; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def wait_for(future: "asyncio.Future[Any]", request: Request, seconds: float, reason: str) -> None:
    """Waits until a future is done.

    Raises:
        RefusedError: 504 with the reason if that takes longer than some seconds, and if the client has gone.
    """
    gone = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait({future, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise RefusedError(GONE, "the client has gone") if gone.done() else RefusedError(504, reason)
    finally:
        gone.cancel()


OPTIONS = tuple(field.name for field in fields(GenerationOptions))


@dataclass(frozen=True)
class Order:
    """The texts that a request wants.

    Args:
        model: writes them with `stepper`.
        is_streamed: whether their pieces are sent as they come.
    """

    model: ServedModel
    stepper: Generator
    prompts: Sequence[Prompt]
    options: GenerationOptions
    is_streamed: bool


class Form:
    """The form of a request to write texts and of its answer; this one is that of `/generate`.

    The answer is the prediction, or events: pieces of the text, and then the prediction.

    Attributes:
        name: of the model in the metrics until the request is read.
    """

    def __init__(self, model: ServedModel, limits: Limits) -> None:
        self.model, self.limits, self.name = model, limits, model.name

    def read(self, content: object) -> Order:
        """Returns what a request wants; raises RefusedError for a content that is none."""
        given = read_keys(content, ("prompt", "stream", *OPTIONS), required="prompt")
        is_streamed = read_flag(given, "stream", default=True)
        options = {name: given[name] for name in OPTIONS if name in given}
        return create_order(self.model, [given["prompt"]], options, self.limits, is_streamed=is_streamed)

    def refuse(self, status: int, reason: str) -> Response:
        """Returns the answer of a request that is refused, or has failed."""
        return refuse(status, reason)

    def whole(self, job: GenerationJob) -> dict[str, Any]:
        """Returns the answer with all texts."""
        return describe_writing(job.writings[0])

    def piece(self, piece: Piece) -> list[object]:
        """Returns the data of the events of a piece."""
        return [{"piece": piece.text}] if piece.text else []

    def end(self, job: GenerationJob) -> list[str]:
        """Returns the last events' data as text, once all texts have ended."""
        return [json.dumps(self.whole(job))]

    def describe_error(self, status: int, reason: str) -> dict[str, Any]:
        """Returns the content of an answer, or of an event, with an error."""
        return {"error": reason}


class EventStream(StreamingResponse):
    """An answer of server-sent events.

    Args:
        events: the data of each, in one line.
        resources: are closed at its end, whatever ends it.
    """

    def __init__(self, events: AsyncIterator[str], resources: contextlib.ExitStack) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # A proxy is to hold no piece back.
        frames = (f"data: {data}\n\n" async for data in events)
        super().__init__(frames, media_type="text/event-stream", headers=headers)
        self.resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.resources:
            await self.stream_response(send)


class Generation:
    """Has the texts of requests written.

    Args:
        log: is called with what failed, in words.
    """

    def __init__(self, reader: BodyReader, measurements: RequestMetrics, log: Callable[[str], Any]) -> None:
        self.limits, self._reader, self.measurements, self.log = reader.limits, reader, measurements, log

    async def answer(self, request: Request, form: Form) -> Response:
        """Returns the answer; where it is a stream, the texts are dropped as soon as the client has gone."""
        with contextlib.ExitStack() as resources:
            measured = resources.enter_context(self.measurements.time(form.name))
            try:
                order = await self._reader.read(request, form.read)
                measured.model = order.model.name
                job = await self._submit(order, request, resources)
                if order.is_streamed:
                    return EventStream(self._stream(job, form, measured), resources.pop_all())
                await self._complete(job, measured)
                response: Response = JSONResponse(form.whole(job))
            except RefusedError as error:
                response = form.refuse(error.status, str(error))
            measured.status = response.status_code
            return response

    async def _submit(self, order: Order, request: Request, resources: contextlib.ExitStack) -> GenerationJob:
        """Returns the job of the texts once the first of them is written; it ends with `resources`."""
        scheduler = order.model.scheduler
        if not scheduler.is_alive():
            raise RefusedError(503, f"the model {order.model.name} does not answer: restart the server")
        job = GenerationJob(order.stepper, order.prompts, order.options)
        try:
            scheduler.submit(job)
        except FullError:
            raise RefusedError(503, f"{self.limits.waiting} texts wait already: try again in a second") from None
        resources.callback(job.cancel)
        reason = f"no turn within {self.limits.seconds:g} s: try again later"
        await wait_for(job.joined, request, self.limits.seconds, reason)
        gone = asyncio.ensure_future(wait_for_disconnect(request))
        gone.add_done_callback(lambda _: job.cancel())
        resources.callback(gone.cancel)
        return job

    async def _complete(self, job: GenerationJob, measured: MeasuredRequest) -> None:
        """Waits until all texts have ended."""
        try:
            async for _ in job.pieces():
                pass
        except Exception as error:
            raise RefusedError(500, self._explain(measured, error)) from error
        if job.is_cancelled:
            raise RefusedError(GONE, "the client has gone")

    async def _stream(self, job: GenerationJob, form: Form, measured: MeasuredRequest) -> AsyncIterator[str]:
        """Yields the data of the events."""
        measured.status = GONE
        try:
            async for piece in job.pieces():
                for data in form.piece(piece):
                    yield json.dumps(data)
        except Exception as error:
            measured.status = 500
            yield json.dumps(form.describe_error(500, self._explain(measured, error)))
            return
        if job.is_whole:
            measured.status = 200
            for text in form.end(job):
                yield text

    def _explain(self, measured: MeasuredRequest, error: Exception) -> str:
        self.log(f"{measured.model} failed: {first_line(error)}")
        return f"the model failed: {first_line(error)}"


def read_keys(content: object, known: Sequence[str], *, required: str) -> Mapping[str, Any]:
    """Returns the object of a request; raises RefusedError for a key that is unknown or missing."""
    if not isinstance(content, dict):
        raise RefusedError(422, f"got no object, expected one with {required}")
    for name in content:
        if name not in known:
            raise RefusedError(422, f"got the key {_show_key(name)[:SHOWN]}, expected {', '.join(known)}")
    if required not in content:
        raise RefusedError(422, f"got no {required}, expected an object with {required}")
    return content


def read_flag(content: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """Returns true or false; raises RefusedError for another value."""
    value = content.get(name, default)
    if not isinstance(value, bool):
        raise RefusedError(422, f"got {name}={shorten(value)}, expected true or false")
    return value


def create_order(
    model: ServedModel, texts: Sequence[Any], options: Mapping[str, Any], limits: Limits, *, is_streamed: bool
) -> Order:
    """Returns the order of a text for each prompt.

    Raises:
        RefusedError: for a model that writes no text, options out of range, and prompts that are too many, too long or
            no texts.
    """
    generator = model.generator
    if generator is None:
        kind = model.bundle.manifest.get("kind")
        raise RefusedError(422, f"the model {model.name} is of a {kind} and writes no text: post to /predict")
    for text in texts:
        if isinstance(text, str) and len(text) > limits.characters:
            raise RefusedError(413, f"a prompt has more than {limits.characters:,} characters, the limit")
    try:
        chosen = generator.prompts.settings.complete(GenerationOptions(**options))
        if len(texts) * (chosen.beams or 1) > limits.rows:
            beams = f" of {chosen.beams} beams" if chosen.beams != 1 else ""
            raise RefusedError(413, f"got {len(texts):,} prompts{beams}, the limit of a request is {limits.rows}")
        if (chosen.max_new_tokens or 0) > limits.new_tokens:
            raise RefusedError(
                413, f"got {chosen.max_new_tokens:,} new tokens, the limit of a text is {limits.new_tokens:,}"
            )
        most = min(generator.prompts.count_new(chosen), limits.new_tokens)
        chosen = dataclasses.replace(chosen, max_new_tokens=most)
        prompts = [generator.prompts.read(text, chosen) for text in texts]
    except UserError as error:
        raise RefusedError(422, first_line(error)) from error
    return Order(model, generator, prompts, chosen, is_streamed)
