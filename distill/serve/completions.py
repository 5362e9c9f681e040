"""The form of `/v1/completions`: requests and answers as those of OpenAI's interface for completions.

https://platform.openai.com/docs/api-reference/completions
"""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.responses import JSONResponse, Response

from distill.edge.generation import Writing
from distill.edge.strings import shorten
from distill.serve.generation import Order, create_order, read_flag, read_keys
from distill.serve.models import ServedModel, only
from distill.serve.refusals import RefusedError
from distill.serve.scheduler import Piece
from distill.serve.settings import Limits

MOST_TOKENS = 16  # Where the request has no max_tokens.
# Keys that are read, and those with the one value that has no effect here.
READ = ("model", "prompt", "stream", "stream_options", "max_tokens", "temperature", "top_p", "seed", "stop", "user")
FIXED: Mapping[str, Any] = {
    "best_of": 1, "echo": False, "frequency_penalty": 0, "logit_bias": {}, "logprobs": None, "n": 1,
    "presence_penalty": 0, "suffix": None,
}  # fmt: skip


class CompletionForm:
    """The form of one request and its answer."""

    def __init__(self, models: Mapping[str, ServedModel], limits: Limits) -> None:
        self.models, self.limits = models, limits
        first = only(models)
        self.name = first.name if first is not None else "unknown"
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
        return refuse_completion(status, reason)

    def whole(self, order: Order, writings: Sequence[Writing]) -> object:
        choices = [self._choice(number, writing.text, writing) for number, writing in enumerate(writings)]
        return self._object(choices, usage=count_usage(order, writings))

    def piece(self, piece: Piece) -> list[object]:
        usage = {"usage": None} if self._has_usage else {}
        return [self._object([self._choice(piece.number, piece.text, piece.writing)], **usage)]

    def end(self, order: Order, writings: Sequence[Writing]) -> list[str]:
        usage = [json.dumps(self._object([], usage=count_usage(order, writings)))] if self._has_usage else []
        return [*usage, "[DONE]"]

    def failure(self, reason: str) -> object:
        return describe_error(500, reason)

    def _object(self, choices: Sequence[object], **more: Any) -> dict[str, Any]:
        return {
            "id": self._id, "object": "text_completion", "created": self._created, "model": self.name,
            "choices": choices, **more,
        }  # fmt: skip

    @staticmethod
    def _choice(number: int, text: str, writing: Writing | None) -> dict[str, Any]:
        finish = None if writing is None else "length" if writing.finish == "length" else "stop"
        return {"text": text, "index": number, "logprobs": None, "finish_reason": finish}


def count_usage(order: Order, writings: Sequence[Writing]) -> dict[str, int]:
    """Returns the tokens of the prompts and of the texts, with their end tokens."""
    read = sum(len(prompt.tokens) for prompt in order.prompts)
    written = sum(len(writing.tokens) for writing in writings)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def refuse_completion(status: int, reason: str) -> Response:
    """Returns an error of this form. What is wrong with a request has the status 400."""
    response = JSONResponse(describe_error(status, reason), status_code=400 if status == 422 else status)
    if status == 503:
        response.headers["Retry-After"] = "1"
    return response


def describe_error(status: int, reason: str) -> dict[str, Any]:
    """Returns the content of an error; half of a character is escaped in it."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    code = "model_not_found" if status == 404 else None
    words = reason.encode("utf-8", "backslashreplace").decode()
    return {"error": {"message": words, "type": kind, "param": None, "code": code}}
