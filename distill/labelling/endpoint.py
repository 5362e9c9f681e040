"""A language model at an endpoint with the protocol of OpenAI: a question, its reply, and faults that are counted."""

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from distill.core.errors import OptionError, UserError, install_command
from distill.labelling.probabilities import Token, as_bytes

KEY = "OPENAI_API_KEY"  # The environment variable of the key.
LONGEST_PAUSE = 60.0  # s before a request is repeated.
SHOWN = 200  # Characters of what a server says.
SETTINGS = ("temperature", "seed")
# What a request asks for besides the reply: a schema, the log-probabilities of so many tokens at each place, and the
# settings of the sampling. From the most to the least, of which a server takes the first that it can.
_FORMS = (
    *((is_schemed, tokens, True) for is_schemed in (True, False) for tokens in (20, 5, 0)),
    (True, 0, False), (False, 0, False),
)  # fmt: skip
# Errors of what is read from a reply that is HTML, or not whole.
_NO_COMPLETION = (json.JSONDecodeError, AttributeError, TypeError, IndexError)


class Fault(Exception):
    """A request without a reply; the message is its reason in a few words."""


@dataclass(frozen=True)
class Reply:
    """What the model says to a question.

    Args:
        text: of the reply.
        tokens: with their log-probabilities; none from a server that gives no log-probabilities.
        read, written: number of tokens of the question and of the reply, by the server's count; 0 without one.
        seconds: from the question to the reply, with all repetitions.
        refusal: the reason for which there is no text, or the text is not whole; None where it is.
    """

    text: str
    tokens: Sequence[Token]
    read: int
    written: int
    seconds: float
    refusal: str | None = None


@dataclass
class Endpoint:
    """A model at an endpoint. Several threads may ask at once.

    Args:
        url: of the endpoint, such as `http://localhost:8000/v1`.
        model: its name there.
        timeout: s that a request may take.
        retries: how often a request is repeated without a reply, behind the pause that the server asks for.

    Raises:
        UserError: if openai is not installed, and for a URL or a key that cannot be.
    """

    url: str
    model: str
    timeout: float = 60
    retries: int = 5
    _faults: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        try:
            import openai
        except ModuleNotFoundError as error:
            raise UserError(f"openai is not installed: {install_command('label')}") from error
        try:
            parts = urlsplit(self.url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise OptionError("label.endpoint", self.url, "a URL such as http://localhost:8000/v1")
        self._key = os.environ.get(KEY)
        if self._key is not None and not (self._key.isascii() and self._key.isprintable()):
            raise UserError(f"{KEY} has a character that no header can have: set it to the key alone")
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._form: tuple[bool, int, bool] | None = None
        self._openai: Any = openai
        self._client: Any = openai.OpenAI(
            base_url=self.url, api_key=self._key or "none", timeout=self.timeout, max_retries=0
        )  # fmt: skip

    def count(self, reason: str) -> None:
        """Counts a fault."""
        with self._lock:
            self._faults[reason] += 1

    def faults(self) -> Counter[str]:
        """Returns the number of faults by their reason."""
        with self._lock:
            return self._faults.copy()

    def stop(self) -> None:
        """Ends the requests of other threads, with a fault each."""
        self._stopped.set()
        self._client.close()

    def describe_lacks(self) -> str:
        """Returns in words what the server does not give; nothing if it gives all."""
        is_schemed, tokens, has_settings = self._form or _FORMS[0]
        lacks = {"JSON schemas": is_schemed, "log-probabilities": tokens, f"{' and '.join(SETTINGS)}": has_settings}
        return ", ".join(name for name, is_given in lacks.items() if not is_given)

    def ask(self, request: Mapping[str, object], schema: Mapping[str, object], key: str) -> Reply:
        """Returns the reply to a request; that of a request which is too long, or refused by itself, has no text.

        The first requests find out what the server takes.

        Args:
            request: the messages and the settings.
            schema: of the answer.
            key: stands for the question, so that a server that knows it answers, and is paid, once.

        Raises:
            Fault: where all repetitions fail.
            UserError: for a key or a model that is not accepted.
        """
        known, refused = self._form, ""
        started = time.monotonic()
        for form in _FORMS if known is None else (known,):
            try:
                reply = self._ask(request, schema, key, form)
            except (self._openai.BadRequestError, self._openai.UnprocessableEntityError) as error:
                refused = self._describe(error)
                if known is not None or _is_about_length(error):
                    return Reply(refused, (), 0, 0, time.monotonic() - started, f"refused ({error.status_code})")
                continue
            self._form = self._form or form
            return reply
        raise Fault(f"refused: {refused}")

    def _ask(
        self, request: Mapping[str, object], schema: Mapping[str, object], key: str, form: tuple[bool, int, bool]
    ) -> Reply:
        is_schemed, tokens, has_settings = form
        options: dict[str, Any] = {
            name: value for name, value in request.items() if has_settings or name not in SETTINGS
        }
        if is_schemed:
            described = {"name": "answer", "strict": True, "schema": dict(schema)}
            options["response_format"] = {"type": "json_schema", "json_schema": described}
        if tokens:
            options |= {"logprobs": True, "top_logprobs": tokens}
        started, reason = time.monotonic(), ""
        for attempt in range(self.retries + 1):
            try:
                got = self._client.chat.completions.create(
                    model=self.model, **options, extra_headers={"Idempotency-Key": key}
                )
                return _read(got, time.monotonic() - started)
            except (self._openai.OpenAIError, RuntimeError, *_NO_COMPLETION) as error:
                reason, pause = self._judge(error, attempt)
            self.count(reason)
            if self._stopped.is_set() or (attempt < self.retries and self._stopped.wait(pause)):
                break
        raise Fault(reason)

    def _judge(self, error: Exception, attempt: int) -> tuple[str, float]:
        """Returns the reason for which a request is repeated, and the pause in s; raises what no repetition changes."""
        openai, backoff = self._openai, min(0.5 * 2**attempt, LONGEST_PAUSE)
        match error:
            case openai.AuthenticationError() | openai.PermissionDeniedError():
                wrong = (
                    f"does not accept the key in {KEY}" if self._key else f"needs a key: set {KEY} in the environment"
                )
                raise UserError(f"{self.url} {wrong}") from None
            case openai.NotFoundError():
                raise UserError(self._describe_missing(error)) from None
            case openai.BadRequestError() | openai.UnprocessableEntityError():
                raise error
            case openai.APIStatusError():
                asked = error.response.headers.get("retry-after", "")
                is_number = asked.replace(".", "", 1).isdecimal()
                return f"status {error.status_code}", min(float(asked), LONGEST_PAUSE) if is_number else backoff
            case openai.APITimeoutError():
                return f"no reply in {self.timeout:g} s", backoff
            case openai.APIConnectionError() | RuntimeError():  # The second one of a client that was stopped.
                return "no connection, or half a reply", backoff
            case _:
                return "a reply that is no completion", backoff

    def _describe_missing(self, error: Exception) -> str:
        """Returns the message for a model, or an address, that is not there."""
        try:
            names: Sequence[str] = [model.id for model in self._client.models.list()]
        except (self._openai.OpenAIError, ValueError, AttributeError, TypeError):
            return f"{self.url} has no model {self.model}: {self._describe(error)}"
        shown = ", ".join(names[:8]) or "none"
        return f"{self.url} has no model {self.model}, expected label.model to be one of {shown}"

    def _describe(self, error: Exception) -> str:
        """Returns the first line of what a server says, without the key."""
        body = getattr(error, "body", None)
        said = body.get("message") if isinstance(body, dict) else None
        line = str(said or error).strip().partition("\n")[0]
        return (line.replace(self._key, "***") if self._key else line)[:SHOWN]


def _read(got: Any, seconds: float) -> Reply:
    """Returns the reply of a completion; raises AttributeError, TypeError or IndexError for what is none."""
    choice = got.choices[0]
    message, usage, content = choice.message, got.usage, choice.message.content or ""
    text = content if isinstance(content, str) else "".join(part["text"] for part in content if "text" in part)
    tokens = [
        (as_bytes(token), token.logprob, [(as_bytes(other), other.logprob) for other in token.top_logprobs or ()])
        for token in (choice.logprobs.content if choice.logprobs is not None else None) or ()
    ]
    refusal = None
    if getattr(message, "refusal", None) or choice.finish_reason == "content_filter":
        refusal = "a refusal"
    elif choice.finish_reason == "length":
        refusal = "a reply that is cut off"
    elif not text.strip():
        refusal = "an empty reply"
    read, written = (0, 0) if usage is None else (usage.prompt_tokens or 0, usage.completion_tokens or 0)
    return Reply(text, tokens, int(read), int(written), seconds, refusal)


def _is_about_length(error: Exception) -> bool:
    """Returns whether a server refuses a request because it is too long."""
    return getattr(error, "code", None) == "context_length_exceeded" or "context length" in str(error).lower()
