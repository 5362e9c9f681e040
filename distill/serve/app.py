"""The HTTP interface: paths, limits, and what each error is answered with."""

import asyncio
import contextlib
import hmac
import json
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.routing import request_response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from distill import __version__
from distill.edge.bundle import LongTextError, RecordError
from distill.edge.decoder import Prediction, Record
from distill.edge.strings import SHOWN, shorten
from distill.errors import UserError, first_line
from distill.serve.batcher import FullError
from distill.serve.measurements import Measurements
from distill.serve.models import ServedModel, only
from distill.serve.settings import Limits

OPEN_PATHS = ("/health", "/ready", "/")  # Without a token: they tell nothing of the models, and the page asks for it.
FORMS = ("texts", "pairs", "inputs")
GONE = 499  # A status for the log of a proxy; the client does not see it any more.
BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "description": "One of texts, pairs and inputs.",
                "properties": {
                    "texts": {"type": "array", "items": {"type": "string"}},
                    "pairs": {
                        "type": "array",
                        "items": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
                    },
                    "inputs": {"type": "array", "items": {}, "description": "records, as distill.edge reads them"},
                },
            },
            "example": {"texts": ["a lovely film"]},
        }
    },
}
NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
OF_ONLY, OF_NAMED = {"requestBody": BODY}, {"requestBody": BODY, "parameters": [NAME]}  # In the description (OpenAPI).


class RefusedError(Exception):
    """A request that is not answered with predictions, with the status and the reason in words."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Service:
    """Answers requests for some models.

    Args:
        models: by name.
        limits: of the requests.
        token: that requests must bear; None for none.
        reload_seconds: time between two looks at the directories of the models; 0 for none.
        log: is called with what happened, in words.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        *,
        limits: Limits,
        token: str | None = None,
        reload_seconds: float = 1.0,
        log: Any = print,
    ) -> None:
        self.models, self.limits, self.token = models, limits, token
        self.reload_seconds, self.log = reload_seconds, log
        self.measurements = Measurements(models)
        self.is_ready = False

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Starts the queues; at the end, answers all that waits in them."""
        for model in self.models.values():
            model.batcher.start()
        watch = asyncio.create_task(self._watch()) if self.reload_seconds else None
        self.is_ready = True
        yield
        self.is_ready = False
        if watch is not None:
            watch.cancel()
        for model in self.models.values():
            await model.batcher.stop()

    async def predict(self, model: ServedModel, request: Request) -> Response:
        """Answers with the predictions, in the order of the records."""
        with self.measurements.time(model.name) as measured:
            try:
                records = await self._read(model, request)
                predictions = await self._wait(model, records, request)
                response = JSONResponse({"predictions": predictions})
            except RefusedError as error:
                response = refuse(error.status, str(error))
            measured.status = response.status_code
        return response

    async def _read(self, model: ServedModel, request: Request) -> list[Record]:
        """Returns the records of a request; refuses one that is no JSON, too large, too slow or of another form."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RefusedError(415, f"got the content type {kind or 'none'}, expected application/json")
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > self.limits.body:
                        raise RefusedError(413, f"the body has more than {self.limits.body:,} bytes, the limit")
        except TimeoutError:
            raise RefusedError(408, f"the body did not arrive within {self.limits.seconds:g} s") from None
        try:
            content = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RefusedError(400, f"the body is no JSON: {error}") from error
        return self._check(model, content)

    def _check(self, model: ServedModel, content: object) -> list[Record]:
        given = [name for name in FORMS if isinstance(content, dict) and content.get(name) is not None]
        if not isinstance(content, dict) or len(given) != 1 or len(content) != 1:
            names = ", ".join(map(str, content)) or "nothing" if isinstance(content, dict) else "no object"
            raise RefusedError(422, f"got {names[:SHOWN]}, expected an object with one of {', '.join(FORMS)}")
        records = content[given[0]]
        if not isinstance(records, list):
            raise RefusedError(422, f"got {given[0]}={shorten(records)}, expected a list")
        size = sum(map(_count_texts, records)) if model.bundle.decoder.encodes else len(records)
        if size > self.limits.records:
            unit = "texts" if model.bundle.decoder.encodes else "records"
            raise RefusedError(413, f"got {size:,} {unit}, the limit of a request is {self.limits.records:,}")
        for number, record in enumerate(records, 1):
            try:
                model.bundle.decoder.read(record)
            except (UserError, RecursionError) as error:
                raise RefusedError(422, f"record {number}: {first_line(error)}") from error
            if longest(record) > self.limits.characters:
                raise RefusedError(
                    413, f"a text of record {number} has more than {self.limits.characters:,} characters, the limit"
                )
        return records

    async def _wait(self, model: ServedModel, records: list[Record], request: Request) -> list[Prediction]:
        """Returns the predictions; gives up if the time is over or the client has gone."""
        if not records:
            return []
        try:
            answer = model.batcher.submit(records)
        except FullError:
            raise RefusedError(503, f"{self.limits.waiting} requests wait already: try again in a second") from None
        gone = asyncio.ensure_future(wait_for_disconnect(request))
        either: set[asyncio.Future[Any]] = {answer, gone}
        await asyncio.wait(either, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
        has_gone = gone.done()
        gone.cancel()
        if not answer.done():
            answer.cancel()
            if has_gone:
                raise RefusedError(GONE, "the client has gone")
            raise RefusedError(504, f"no answer within {self.limits.seconds:g} s: send fewer or shorter texts")
        error = answer.exception()
        if isinstance(error, RecordError):
            raise RefusedError(413 if isinstance(error, LongTextError) else 422, str(error))
        if error is not None:  # Such as of a bundle that has changed since the records were checked.
            self.log(f"{model.name} failed: {first_line(error)}")
            raise RefusedError(500, f"the model failed: {first_line(error)}")
        return answer.result()

    async def _watch(self) -> None:
        """Loads changed bundles again."""
        last: dict[str, str | None] = {}
        with ThreadPoolExecutor(max_workers=1) as thread:
            while True:
                await asyncio.sleep(self.reload_seconds)
                for name, model in self.models.items():
                    words = await model.reload_if_changed(thread)
                    if words is not None and words != last.get(name):
                        self.log(words)
                    last[name] = words


class PlainRoute(APIRoute):
    """A route whose endpoint gets the request as it came.

    FastAPI would look for its arguments and a form for its answer, for as long as a short text takes in a batch.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = request_response(endpoint)


def create_app(service: Service) -> FastAPI:
    """Returns the application with its paths."""
    app = FastAPI(
        title="distill", version=__version__, lifespan=service.lifespan, redoc_url=None,
        description="Predictions of exported students.",
    )  # fmt: skip
    app.router.route_class = PlainRoute
    app.add_middleware(Door, service=service)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        return refuse(error.status_code, f"{request.method} {request.url.path}: {error.detail}", error.headers)

    @app.post("/predict", openapi_extra=OF_ONLY, summary="Predictions of the only model")
    async def predict(request: Request) -> Response:
        model = only(service.models)
        if model is None:
            return refuse(404, f"there are several models: post to /NAME/predict, NAME one of {names(service)}")
        return await service.predict(model, request)

    @app.post("/{name}/predict", openapi_extra=OF_NAMED, summary="Predictions of one of several models")
    async def predict_with(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in service.models:
            return refuse(404, f"there is no model {shorten(name)}, expected one of {names(service)}")
        return await service.predict(service.models[name], request)

    @app.get("/models", summary="The models and what they predict")
    async def models(request: Request) -> Response:
        return JSONResponse({"models": [model.describe() for model in service.models.values()]})

    @app.get("/health", summary="Whether the process runs")
    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/ready", summary="Whether requests are answered")
    async def ready(request: Request) -> Response:
        return JSONResponse({"status": "ready"}) if service.is_ready else refuse(503, "the server is stopping")

    @app.get("/metrics", summary="Counters for Prometheus")
    async def metrics(request: Request) -> Response:
        return Response(generate_latest(service.measurements.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return HTMLResponse(files("distill.serve").joinpath("page.html").read_text(encoding="utf-8"))

    return app


class Door:
    """Asks for the token, and once the server is stopping, tells with each answer that the connection ends."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start" and not self.service.is_ready:
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        if scope["path"] in OPEN_PATHS or is_allowed(Headers(scope=scope), self.service.token):
            await self.app(scope, receive, send_last)
        else:
            denied = refuse(401, "the bearer token is missing or wrong", {"WWW-Authenticate": "Bearer"})
            await denied(scope, receive, send_last)


def refuse(status: int, reason: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Returns an answer with the reason."""
    retry = {"Retry-After": "1"} if status == 503 else {}
    return JSONResponse({"error": reason}, status_code=status, headers={**retry, **(headers or {})})


def names(service: Service) -> str:
    """Returns the names of the models in words."""
    return ", ".join(service.models)


def is_allowed(headers: Headers, token: str | None) -> bool:
    """Returns whether a request bears the token, or none is asked for."""
    if token is None:
        return True
    kind, _, given = headers.get("authorization", "").partition(" ")
    return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def _count_texts(record: object) -> int:
    """Returns the number of texts of a record that is one text or a list of them."""
    return len(record) if isinstance(record, list) else 1


def longest(record: object) -> int:
    """Returns the characters of the longest text anywhere in a record."""
    if isinstance(record, str):
        return len(record)
    if isinstance(record, Mapping):
        return max(map(longest, record.values()), default=0)
    if isinstance(record, list):
        return max(map(longest, record), default=0)
    return 0


async def wait_for_disconnect(request: Request) -> None:
    """Returns when the client has closed the connection; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
