"""Answers requests for texts: reads them, has them written, and sends the pieces as they come or each text whole."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, Protocol

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from distill.edge.generation import Writing
from distill.edge.generation_options import GenerationOptions
from distill.edge.prompts import Prompt
from distill.edge.strings import SHOWN, shorten
from distill.edge.texts import describe
from distill.errors import UserError, first_line
from distill.serve.batcher import FullError
from distill.serve.bodies import GONE
from distill.serve.measurements import Measured, Measurements
from distill.serve.models import ServedModel
from distill.serve.reading import read_content, show_name, wait_for_disconnect
from distill.serve.refusals import RefusedError, refuse
from distill.serve.scheduler import Job, Piece, Stepper
from distill.serve.settings import Limits

OPTIONS = tuple(field.name for field in fields(GenerationOptions))


@dataclass(frozen=True)
class Order:
    """The texts that a request wants.

    Args:
        model: writes them with `stepper`.
        is_streamed: whether their pieces are sent as they come.
    """

    model: ServedModel
    stepper: Stepper
    prompts: Sequence[Prompt]
    options: GenerationOptions
    is_streamed: bool


class Form(Protocol):
    """The form of a request and of its answer."""

    name: str  # Of the model in the metrics until the request is read.

    def read(self, content: object) -> Order:
        """Returns what a request wants; raises RefusedError for a content that is none."""
        ...

    def refuse(self, status: int, reason: str) -> Response:
        """Returns the answer of a request that is refused, or has failed."""
        ...

    def whole(self, order: Order, writings: Sequence[Writing]) -> object:
        """Returns the answer with all texts."""
        ...

    def piece(self, piece: Piece) -> list[object]:
        """Returns the data of the events of a piece."""
        ...

    def end(self, order: Order, writings: Sequence[Writing]) -> list[str]:
        """Returns the last events' data as text, once all texts have ended."""
        ...

    def failure(self, reason: str) -> object:
        """Returns the data of the event that ends a stream early."""
        ...


class PlainForm:
    """The form of `/generate`: a prompt with options; pieces of the text, then the prediction."""

    def __init__(self, model: ServedModel, limits: Limits) -> None:
        self.model, self.limits, self.name = model, limits, model.name

    def read(self, content: object) -> Order:
        given = read_keys(content, ("prompt", "stream", *OPTIONS), required="prompt")
        is_streamed = read_flag(given, "stream", default=True)
        options = {name: given[name] for name in OPTIONS if name in given}
        return create_order(self.model, [given["prompt"]], options, self.limits, is_streamed=is_streamed)

    def refuse(self, status: int, reason: str) -> Response:
        return refuse(status, reason)

    def whole(self, order: Order, writings: Sequence[Writing]) -> object:
        return describe(writings[0])

    def piece(self, piece: Piece) -> list[object]:
        return [{"piece": piece.text}] if piece.text else []

    def end(self, order: Order, writings: Sequence[Writing]) -> list[str]:
        return [json.dumps(describe(writings[0]))]

    def failure(self, reason: str) -> object:
        return {"error": reason}


class EventStream(StreamingResponse):
    """An answer of server-sent events.

    Args:
        events: the data of each.
        resources: are closed at its end, whatever ends it.
    """

    def __init__(self, events: AsyncIterator[str], resources: contextlib.ExitStack) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # A proxy is to hold no piece back.
        super().__init__(frame(events), media_type="text/event-stream", headers=headers)
        self.resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.resources:
            await self.stream_response(send)


class Generation:
    """Has the texts of requests written.

    Args:
        thread: reads large requests.
        log: is called with what failed, in words.
    """

    def __init__(
        self, limits: Limits, measurements: Measurements, *, thread: ThreadPoolExecutor, log: Callable[[str], Any]
    ) -> None:
        self.limits, self.measurements, self._thread, self.log = limits, measurements, thread, log

    async def answer(self, request: Request, form: Form) -> Response:
        """Returns the answer; where it is a stream, the texts are dropped as soon as the client has gone."""
        with contextlib.ExitStack() as resources:
            measured = resources.enter_context(self.measurements.time(form.name))
            try:
                order = await read_content(request, self.limits, self._thread, form.read)
                measured.model = order.model.name
                job = await self._submit(order, request, resources)
                if order.is_streamed:
                    return EventStream(self._stream(order, job, form, measured), resources.pop_all())
                response: Response = JSONResponse(form.whole(order, await self._collect(order, job)))
            except RefusedError as error:
                response = form.refuse(error.status, str(error))
            measured.status = response.status_code
            return response

    async def _submit(self, order: Order, request: Request, resources: contextlib.ExitStack) -> Job:
        """Returns the job of the texts once the first of them is written; it ends with `resources`."""
        scheduler = order.model.scheduler
        if not scheduler.is_alive():
            raise RefusedError(503, f"the model {order.model.name} does not answer: restart the server")
        job = Job(order.stepper, order.prompts, order.options)
        try:
            scheduler.submit(job)
        except FullError:
            raise RefusedError(503, f"{self.limits.waiting} texts wait already: try again in a second") from None
        resources.callback(job.cancel)
        gone = asyncio.ensure_future(wait_for_disconnect(request))
        resources.callback(gone.cancel)
        either: set[asyncio.Future[Any]] = {job.joined, gone}
        await asyncio.wait(either, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise RefusedError(GONE, "the client has gone")
        if not job.joined.done():
            raise RefusedError(504, f"no turn within {self.limits.seconds:g} s: try again later")
        gone.add_done_callback(lambda _: job.cancel())
        return job

    async def _collect(self, order: Order, job: Job) -> list[Writing]:
        """Returns the texts, in the order of their prompts."""
        writings: dict[int, Writing] = {}
        try:
            async for piece in job.pieces():
                if piece.writing is not None:
                    writings[piece.number] = piece.writing
        except Exception as error:
            raise RefusedError(500, self._explain(order, error)) from error
        if job.is_cancelled:
            raise RefusedError(GONE, "the client has gone")
        return [writings[number] for number in range(len(order.prompts))]

    async def _stream(self, order: Order, job: Job, form: Form, measured: Measured) -> AsyncIterator[str]:
        """Yields the data of the events."""
        writings: dict[int, Writing] = {}
        measured.status = GONE
        try:
            async for piece in job.pieces():
                for data in form.piece(piece):
                    yield json.dumps(data)
                if piece.writing is not None:
                    writings[piece.number] = piece.writing
        except Exception as error:
            measured.status = 500
            yield json.dumps(form.failure(self._explain(order, error)))
            return
        if len(writings) == len(order.prompts):
            measured.status = 200
            for text in form.end(order, [writings[number] for number in range(len(order.prompts))]):
                yield text

    def _explain(self, order: Order, error: Exception) -> str:
        self.log(f"{order.model.name} failed: {first_line(error)}")
        return f"the model failed: {first_line(error)}"


async def frame(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yields server-sent events of data in one line."""
    async for data in events:
        yield f"data: {data}\n\n"


def read_keys(content: object, known: Sequence[str], *, required: str) -> Mapping[str, Any]:
    """Returns the object of a request; raises RefusedError for a key that is unknown or missing."""
    if not isinstance(content, dict):
        raise RefusedError(422, f"got no object, expected one with {required}")
    for name in content:
        if name not in known:
            raise RefusedError(422, f"got the key {show_name(name)[:SHOWN]}, expected {', '.join(known)}")
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
