"""The HTTP interface of bundles: paths, limits, completions as OpenAI's, and what each error is answered with.

The form of `/v1/completions`: requests and answers as those of OpenAI's interface for completions.
https://platform.openai.com/docs/api-reference/completions
"""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from distill.core.errors import first_line, shorten
from distill.edge.decoder import Prediction, Record
from distill.edge.generation import Writing
from distill.edge.prediction import LongTextError, RecordError
from distill.serve import http
from distill.serve.bundles.requests import (
    BodyReader,
    Form,
    Generation,
    Order,
    RequestMetrics,
    check_records,
    create_order,
    find_ranking,
    find_records,
    read_flag,
    read_keys,
    wait_for,
)
from distill.serve.bundles.served_models import FullError, GenerationJob, Piece, ServedModel, only
from distill.serve.http import AccessMiddleware, HttpService, RefusedError, refuse
from distill.serve.limits import Limits

MOST_TOKENS = 16  # Where the request has no max_tokens.
# Keys that are read, and those with the one value that has no effect here.
READ = ("model", "prompt", "stream", "stream_options", "max_tokens", "temperature", "top_p", "seed", "stop", "user")
FIXED: Mapping[str, Any] = {
    "best_of": 1, "echo": False, "frequency_penalty": 0, "logit_bias": {}, "logprobs": None, "n": 1,
    "presence_penalty": 0, "suffix": None,
}  # fmt: skip


class CompletionForm(Form):
    """The form of OpenAI's completions."""

    def __init__(self, models: Mapping[str, ServedModel], limits: Limits) -> None:
        self.models, self.limits = models, limits
        self.name = next(iter(models)) if len(models) == 1 else "unknown"
        self._id, self._created = f"cmpl-{uuid.uuid4().hex}", int(time.time())
        self._has_usage = False

    def read(self, content: object) -> Order:
        given = read_keys(content, (*READ, *FIXED), required="prompt")
        for name, value in FIXED.items():
            if given.get(name, value) not in (value, None):
                raise RefusedError(422, f"got {name}={shorten(given[name])}, expected {json.dumps(value)}")
        model = self._find_model(given.get("model"))
        self.name = model.name
        is_streamed = given.get("stream") is not None and read_flag(given, "stream", default=False)
        self._has_usage = self._read_usage(given.get("stream_options"))
        prompts = given["prompt"] if isinstance(given["prompt"], list) else [given["prompt"]]
        if not prompts:
            raise RefusedError(422, "got prompt=[], expected a text or a list of texts")
        return create_order(model, prompts, self._read_options(given), self.limits, is_streamed=is_streamed)

    def _find_model(self, name: object) -> ServedModel:
        model = only(self.models) if name is None else self.models.get(name) if isinstance(name, str) else None
        if model is None:
            raise RefusedError(404, f"there is no model {shorten(name)}, expected one of {', '.join(self.models)}")
        return model

    @staticmethod
    def _read_usage(options: object) -> bool:
        if options is None:
            return False
        if not isinstance(options, dict) or set(options) - {"include_usage"}:
            raise RefusedError(422, f"got stream_options={shorten(options)}, expected an object with include_usage")
        return read_flag(options, "include_usage", default=False)

    @staticmethod
    def _read_options(given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options; a temperature of 0 is the most probable token each time, and none is 1."""
        names = {"max_tokens": "max_new_tokens", "temperature": "temperature", "top_p": "top_p", "seed": "seed"}
        values = {own: given[name] for name, own in names.items() if given.get(name) is not None}
        options = {"max_new_tokens": MOST_TOKENS, "temperature": 1.0, **values, "stop": given.get("stop") or ()}
        temperature = options["temperature"]
        if isinstance(temperature, int | float) and not isinstance(temperature, bool) and temperature == 0:
            for name in ("temperature", "top_p", "seed"):
                options.pop(name, None)
            options["beams"] = 1
        return options

    def refuse(self, status: int, reason: str) -> Response:
        """Returns an error of this form. What is wrong with a request has the status 400."""
        headers = {"Retry-After": "1"} if status == 503 else None
        content = self.describe_error(status, reason)
        return JSONResponse(content, status_code=400 if status == 422 else status, headers=headers)

    def whole(self, job: GenerationJob) -> dict[str, Any]:
        choices = [self._choice(number, writing.text, writing) for number, writing in enumerate(job.writings)]
        return self._object(choices, usage=self._count(job))

    def piece(self, piece: Piece) -> list[object]:
        usage = {"usage": None} if self._has_usage else {}
        return [self._object([self._choice(piece.number, piece.text, piece.writing)], **usage)]

    def end(self, job: GenerationJob) -> list[str]:
        usage = [json.dumps(self._object([], usage=self._count(job)))] if self._has_usage else []
        return [*usage, "[DONE]"]

    @staticmethod
    def _count(job: GenerationJob) -> dict[str, int]:
        """Returns the tokens of the prompts and of the texts, with their end tokens."""
        read = sum(len(text.prompt.tokens) for text in job.texts)
        written = sum(len(writing.tokens) for writing in job.writings)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def describe_error(self, status: int, reason: str) -> dict[str, Any]:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        code = "model_not_found" if status == 404 else None
        words = reason.encode("utf-8", "backslashreplace").decode()  # Half of a character is escaped.
        return {"error": {"message": words, "type": kind, "param": None, "code": code}}

    def _object(self, choices: Sequence[object], **more: Any) -> dict[str, Any]:
        return {
            "id": self._id, "object": "text_completion", "created": self._created, "model": self.name,
            "choices": choices, **more,
        }  # fmt: skip

    @staticmethod
    def _choice(number: int, text: str, writing: Writing | None) -> dict[str, Any]:
        finish = None if writing is None else "length" if writing.finish == "length" else "stop"
        return {"text": text, "index": number, "logprobs": None, "finish_reason": finish}


def _describe_body(
    description: str, properties: dict[str, Any], example: dict[str, Any], *, required: list[str] | None = None
) -> dict[str, Any]:
    """Returns the body of a request, an object in JSON, as OpenAPI describes it."""
    schema = {"type": "object", "description": description, "properties": properties}
    if required is not None:
        schema["required"] = required
    return {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}


STRING, NUMBER, INTEGER, FLAG = ({"type": kind} for kind in ("string", "number", "integer", "boolean"))
STRINGS = {"type": "array", "items": STRING}
STRING_OR_STRINGS = {"description": "a text, or a list of texts"}
BODY = _describe_body(
    "One of texts, pairs and inputs.",
    {
        "texts": STRINGS,
        "pairs": {"type": "array", "items": {**STRINGS, "minItems": 2, "maxItems": 2}},
        "inputs": {"type": "array", "items": {}, "description": "records, as distill.edge reads them"},
    },
    {"texts": ["a lovely film"]},
)
RANKING_BODY = _describe_body(
    "A query and the documents to rank.",
    {"query": STRING, "documents": STRINGS},
    {"query": "heat transfer to a wing", "documents": ["the flow over a wing", "a heated wing"]},
    required=["query", "documents"],
)
TEXT_BODY = _describe_body(
    "A prompt with the options of Bundle.generate. With stream (the default), the answer is server-sent events.",
    {
        "prompt": STRING, "stream": FLAG, "max_new_tokens": INTEGER, "temperature": NUMBER, "top_k": INTEGER,
        "top_p": NUMBER, "seed": INTEGER, "beams": INTEGER, "stop": STRINGS, "repetition_penalty": NUMBER,
        "truncate": STRING,
    },
    {"prompt": "Once upon a time", "max_new_tokens": 40},
    required=["prompt"],
)  # fmt: skip
COMPLETION_BODY = _describe_body(
    "As OpenAI's completions.",
    {
        "model": STRING, "prompt": STRING_OR_STRINGS, "max_tokens": INTEGER, "temperature": NUMBER, "top_p": NUMBER,
        "seed": INTEGER, "stop": STRING_OR_STRINGS, "stream": FLAG, "stream_options": {"type": "object"},
    },
    {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0},
    required=["prompt"],
)  # fmt: skip
NAME = {"name": "name", "in": "path", "required": True, "schema": STRING}
# What models do, by the last part of the path: its body, and its summary for the only model and for one of several.
ACTIONS: Mapping[str, tuple[dict[str, Any], str, str]] = {
    "predict": (BODY, "Predictions of the only model", "Predictions of one of several models"),
    "rank": (
        RANKING_BODY, "The order of documents for a query by the only model", "That order by one of several models"
    ),
    "generate": (
        TEXT_BODY, "The text that the only model writes after a prompt", "That text by one of several models"
    ),
}  # fmt: skip

Answer = Callable[[ServedModel, Request], Awaitable[Response]]


class BundleService(HttpService):
    """Answers requests for some models.

    Args:
        models: by name.
        limits: of the requests.
        token: that requests must bear; None for none.
        hosts: names by which a server without a token may be addressed beside those of loopback; None for any.
        reload_seconds: time between two looks at the directories of the models; 0 for none.
        log: is called with what happened, in words.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        *,
        limits: Limits,
        token: str | None = None,
        hosts: Collection[str] | None = None,
        reload_seconds: float = 1.0,
        log: Any = print,
    ) -> None:
        super().__init__(limits, hosts, log, token)
        self.models, self.reload_seconds = models, reload_seconds
        self.measurements = RequestMetrics(models)
        self._reader = BodyReader(limits)
        self._generation = Generation(self._reader, self.measurements, log)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Starts the queues; at the end, answers all that waits in them."""
        for model in self.models.values():
            model.batcher.start()
            model.scheduler.start()
        watch = asyncio.create_task(self._watch()) if self.reload_seconds else None
        self.is_ready = True
        yield
        self.is_ready = False
        if watch is not None:
            watch.cancel()
        for model in self.models.values():
            await model.batcher.stop(self.limits.seconds)
            await model.scheduler.stop(self.limits.seconds)
            if model.escalation is not None:
                model.escalation.stop()
        self._reader.stop()

    @property
    def title(self) -> str:
        """Returns what is served, in words."""
        return ", ".join(self.models)

    def find_fault(self) -> str | None:
        """Returns why requests are not answered, None if they are."""
        if not self.is_ready:
            return "the server is stopping"
        stuck = [name for name, model in self.models.items() if not model.is_working(self.limits.seconds)]
        return f"{', '.join(stuck)} does not answer" if stuck else None

    async def predict(self, model: ServedModel, request: Request) -> Response:
        """Answers with the predictions, in the order of the records."""
        if model.generator is not None:
            return refuse(422, f"the model {model.name} writes text: post to /generate")
        return await self._answer(model, request, find_records, lambda predictions: {"predictions": predictions})

    async def rank(self, model: ServedModel, request: Request) -> Response:
        """Answers with the order of the documents of a query and their scores."""
        if not model.bundle.decoder.ranks:
            return refuse(422, f"the model {model.name} ranks no documents: post to /predict")
        return await self._answer(model, request, find_ranking, lambda predictions: predictions[0])

    async def generate(self, model: ServedModel, request: Request) -> Response:
        """Answers with the text that follows a prompt, or its pieces as they come."""
        return await self._generation.answer(request, Form(model, self.limits))

    async def complete(self, request: Request) -> Response:
        """Answers with texts in the form of OpenAI's completions."""
        return await self._generation.answer(request, CompletionForm(self.models, self.limits))

    async def _answer(
        self,
        model: ServedModel,
        request: Request,
        find: Callable[[object], list[Any]],
        present: Callable[[list[Prediction]], Any],
    ) -> Response:
        with self.measurements.time(model.name) as measured:
            try:
                records, costs = await self._reader.read(
                    request, lambda content: check_records(find(content), model.bundle, self.limits)
                )
                predictions = await self._wait(model, records, costs, request)
                if model.escalation is not None:
                    predictions = await model.escalation.improve(model.bundle, records, predictions)
                    self.measurements.count_escalated(model.name, predictions)
                response = JSONResponse(present(predictions))
            except RefusedError as error:
                response = refuse(error.status, str(error))
            measured.status = response.status_code
        return response

    async def _wait(
        self, model: ServedModel, records: list[Record], costs: list[int], request: Request
    ) -> list[Prediction]:
        """Returns the predictions; gives up if the time is over or the client has gone."""
        if not records:
            return []
        if not model.batcher.is_alive():
            raise RefusedError(503, f"the model {model.name} does not answer: restart the server")
        try:
            answer = model.batcher.submit(records, costs)
        except FullError:
            raise RefusedError(503, f"{self.limits.waiting} requests wait already: try again in a second") from None
        reason = f"no answer within {self.limits.seconds:g} s: send fewer or shorter texts"
        try:
            await wait_for(answer, request, self.limits.seconds, reason)
        finally:
            answer.cancel()  # One that is done stays.
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


def create_app(service: BundleService) -> FastAPI:
    """Returns the application with its paths."""
    app = http.create_app(service, "Predictions of exported students.", show_page)
    app.add_middleware(AccessMiddleware, service=service)
    for action, answer in (("predict", service.predict), ("rank", service.rank), ("generate", service.generate)):
        _add_action(app, service, action, answer)

    @app.post("/v1/completions", openapi_extra={"requestBody": COMPLETION_BODY}, summary="Texts, as OpenAI has them")
    async def complete(request: Request) -> Response:
        return await service.complete(request)

    @app.get("/models", summary="The models and what they predict")
    async def models(request: Request) -> Response:
        return JSONResponse({"models": [model.describe() for model in service.models.values()]})

    @app.get("/health", summary="Whether the process runs")
    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/ready", summary="Whether requests are answered")
    async def ready(request: Request) -> Response:
        reason = service.find_fault()
        return JSONResponse({"status": "ready"}) if reason is None else refuse(503, reason)

    @app.get("/metrics", summary="Counters for Prometheus")
    async def metrics(request: Request) -> Response:
        return Response(generate_latest(service.measurements.registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _add_action(app: FastAPI, service: BundleService, action: str, answer: Answer) -> None:
    """Adds the paths of an action, one for the only model and one for one of several."""
    body, of_only, of_named = ACTIONS[action]

    async def answer_with(request: Request) -> Response:
        name = request.path_params.get("name")
        model = only(service.models) if name is None else service.models.get(name)
        if model is not None:
            return await answer(model, request)
        if name is None:
            return refuse(404, f"there are several models: post to /NAME/{action}, NAME one of {service.title}")
        return refuse(404, f"there is no model {shorten(name)}, expected one of {service.title}")

    app.post(f"/{action}", name=action, openapi_extra={"requestBody": body}, summary=of_only)(answer_with)
    extra = {"requestBody": body, "parameters": [NAME]}
    app.post(f"/{{name}}/{action}", name=f"{action}_with", openapi_extra=extra, summary=of_named)(answer_with)


def show_page() -> Response:
    """Returns the page to try the models with."""
    return HTMLResponse(files("distill.serve").joinpath("page.html").read_text(encoding="utf-8"))
