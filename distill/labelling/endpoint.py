"""A language model at an endpoint with the protocol of OpenAI: a question, its reply, and faults that are counted."""

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distill.core.errors import UserError, install_command
from distill.labelling.probabilities import Token

KEY = "OPENAI_API_KEY"  # The environment variable of the key.
MOST_ALTERNATIVES = 20  # Tokens at a place whose log-probabilities are asked for.
ASKS = 2  # Times that a question is asked whose replies have no answer.
LONGEST_PAUSE = 60.0  # s before a request is repeated.
# Errors of what is read from a reply that is HTML, or not whole.
_NO_COMPLETION = (json.JSONDecodeError, AttributeError, TypeError, IndexError)
# What a request asks for besides the reply, from the most to the least, of which a server takes the first that it can.
_EXTRAS = ((True, True), (True, False), (False, True), (False, False))


class Fault(Exception):
    """A request without a reply; the message is its reason in a few words."""


@dataclass(frozen=True)
class Reply:
    """What the model says to a question.

    Args:
        text: of the reply.
        tokens: with their log-probabilities; none from a server that gives no log-probabilities.
        read, written: number of tokens of the question and of the reply, by the server's count.
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

    Attributes:
        faults: number of faults by their reason.
    """

    url: str
    model: str
    timeout: float = 60
    retries: int = 5
    faults: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        try:
            import openai
        except ModuleNotFoundError as error:
            raise UserError(f"openai is not installed: {install_command('label')}") from error
        self._key = os.environ.get(KEY)
        self._lock, self._extras = threading.Lock(), list(_EXTRAS)
        self._openai: Any = openai
        self._client: Any = openai.OpenAI(
            base_url=self.url, api_key=self._key or "none", timeout=self.timeout, max_retries=0
        )  # fmt: skip

    def count(self, reason: str) -> None:
        """Counts a fault."""
        with self._lock:
            self.faults[reason] += 1

    def ask(self, request: Mapping[str, object], schema: Mapping[str, object], key: str) -> Reply:
        """Returns the reply to a request.

        The first requests find out whether the server takes a schema and gives log-probabilities.

        Args:
            request: the messages and the settings.
            schema: of the answer.
            key: stands for the question, so that a server that knows it answers, and is paid, once.

        Raises:
            Fault: where all repetitions fail, and for a request that the server refuses, such as one that is too long.
            UserError: for a key or a model that is not accepted.
        """
        refused: Exception | None = None
        for extras in tuple(self._extras):
            try:
                reply = self._ask(request, schema, key, *extras)
            except self._openai.BadRequestError as error:
                refused = error
                if _is_about_length(error):
                    break
                continue
            with self._lock:
                self._extras = self._extras[self._extras.index(extras) :] if extras in self._extras else self._extras
            return reply
        assert refused is not None
        raise Fault(f"refused: {self._describe(refused)}")

    def _ask(
        self, request: Mapping[str, object], schema: Mapping[str, object], key: str, is_schemed: bool, is_probable: bool
    ) -> Reply:
        options: dict[str, Any] = {}
        if is_schemed:
            form = {"name": "answer", "strict": True, "schema": dict(schema)}
            options["response_format"] = {"type": "json_schema", "json_schema": form}
        if is_probable:
            options |= {"logprobs": True, "top_logprobs": MOST_ALTERNATIVES}
        started = time.monotonic()
        for attempt in range(self.retries + 1):
            try:
                got = self._client.chat.completions.create(
                    model=self.model, **request, **options, extra_headers={"Idempotency-Key": key}
                )
                return self._read(got, time.monotonic() - started)
            except (self._openai.OpenAIError, *_NO_COMPLETION) as error:
                reason, pause = self._judge(error, attempt)
            self.count(reason)
            if attempt < self.retries:
                time.sleep(pause)
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
            case openai.BadRequestError():
                raise error
            case openai.APIStatusError():
                asked = error.response.headers.get("retry-after", "")
                is_number = asked.replace(".", "", 1).isdecimal()
                return f"status {error.status_code}", min(float(asked), LONGEST_PAUSE) if is_number else backoff
            case openai.APITimeoutError():
                return f"no reply in {self.timeout:g} s", backoff
            case openai.APIConnectionError():
                return "no connection, or half a reply", backoff
            case _:
                return "a reply that is no completion", 0.0

    def _read(self, got: Any, seconds: float) -> Reply:
        """Returns the reply of a completion; raises AttributeError, TypeError or IndexError for what is none."""
        choice = got.choices[0]
        message, usage = choice.message, got.usage
        text, tokens = message.content or "", list[Token]()
        if choice.logprobs is not None and choice.logprobs.content:
            tokens = [
                (token.token, token.logprob, [(other.token, other.logprob) for other in token.top_logprobs])
                for token in choice.logprobs.content
            ]
        refusal = None
        if getattr(message, "refusal", None) or choice.finish_reason == "content_filter":
            refusal = "a refusal"
        elif choice.finish_reason == "length":
            refusal = "a reply that is cut off"
        elif not text.strip():
            refusal = "an empty reply"
        read, written = (0, 0) if usage is None else (usage.prompt_tokens, usage.completion_tokens)
        return Reply(text, tokens, read, written, seconds, refusal)

    def _describe_missing(self, error: Exception) -> str:
        """Returns the message for a model, or an address, that is not there."""
        try:
            names: Sequence[str] = [model.id for model in self._client.with_options(max_retries=0).models.list()]
        except (self._openai.OpenAIError, ValueError, AttributeError, TypeError):
            return f"{self.url} has no model {self.model}: {self._describe(error)}"
        shown = ", ".join(names[:8]) or "none"
        return f"{self.url} has no model {self.model}, expected label.model to be one of {shown}"

    def _describe(self, error: Exception) -> str:
        """Returns the first line of what a server says, without the key."""
        body = getattr(error, "body", None)
        said = body.get("message") if isinstance(body, dict) else None
        line = str(said or error).strip().partition("\n")[0][:200]
        return line.replace(self._key, "***") if self._key else line


def _is_about_length(error: Exception) -> bool:
    """Returns whether a server refuses a request because it is too long."""
    return getattr(error, "code", None) == "context_length_exceeded" or "context" in str(error).lower()
