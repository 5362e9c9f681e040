"""A server that replies like a language model, with faults, and counts what it was paid for."""

import json
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Tokens = Sequence[tuple[str, float, Sequence[tuple[str, float]]]]
# A fault of a reply by its name; `None` is none.
FAULTS = ("429", "503", "hang", "broken", "html", "refusal", "empty", "half", "prose", "no class")


class LlmServer:
    """A server at `url` while its context is open.

    Args:
        answer: returns the reply to the texts of a question.
        fault: returns the fault of the n-th request about a text; None has no faults.
        tokens: returns the tokens of a reply with their log-probabilities; None has none.
        takes_schema, takes_logprobs: whether a request may ask for them.
        key: that is expected; None takes any.
        context: characters of a text, above which a request is refused.

    Attributes:
        requests: number of requests by the text.
        paid: number of replies that were sent whole, with an answer, by the text and its setting.
    """

    def __init__(
        self,
        answer: Callable[[str], str],
        *,
        fault: Callable[[str, int], str | None] = lambda text, number: None,
        tokens: Callable[[str], Tokens] | None = None,
        takes_schema: bool = True,
        takes_logprobs: bool = True,
        key: str | None = None,
        context: float = math.inf,
        model: str = "tiny",
        counts_tokens: bool = True,
    ) -> None:
        self.answer, self.fault, self.tokens = answer, fault, tokens
        self.takes_schema, self.takes_logprobs, self.key, self.context = takes_schema, takes_logprobs, key, context
        self.model, self.counts_tokens = model, counts_tokens
        self.requests: Counter[str] = Counter()
        self.paid: Counter[tuple[str, object]] = Counter()
        self.bodies: list[Mapping[str, Any]] = []
        self.usage = [0, 0]
        self.known: dict[str, bytes] = {}  # Replies by their idempotency key.
        self.lock = threading.Lock()
        self.released = threading.Event()  # Ends the requests that hang.

    def __enter__(self) -> Self:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                """Prints nothing."""

            def do_GET(self) -> None:
                owner.send(self, 200, {"object": "list", "data": [{"id": owner.model, "object": "model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.reply(self, body)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.handle_error = lambda request, address: None  # type: ignore[method-assign]  # A killed client.
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.released.set()
        self.http.shutdown()
        self.http.server_close()

    def send(
        self, handler: Any, status: int, body: Any, *, headers: Mapping[str, str] | None = None, cut: int = 0
    ) -> None:
        """Sends JSON, or bytes as they are; with `cut`, without the last bytes."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[: len(content) - cut])
        handler.wfile.flush()
        if cut:
            handler.close_connection = True

    def refuse(self, handler: Any, status: int, message: str, code: str | None = None) -> None:
        """Sends an error."""
        error = {"message": message, "type": "invalid_request_error", "code": code}
        self.send(handler, status, {"error": error}, headers={"Retry-After": "0.01"} if status != 400 else {})

    def reply(self, handler: Any, body: Mapping[str, Any]) -> None:
        """Replies to a request."""
        text = "\n".join(re.findall(r"<\w+>\n(.*?)\n</\w+>", body["messages"][-1]["content"], re.DOTALL))
        given = handler.headers["Authorization"]
        if self.key is not None and given != f"Bearer {self.key}":
            return self.refuse(handler, 401, f"Incorrect API key provided: {given}")
        if body["model"] != self.model:
            return self.refuse(handler, 404, f"The model {body['model']} does not exist", "model_not_found")
        if len(text) > self.context:
            return self.refuse(handler, 400, "too long: the maximum context length is 10", "context_length_exceeded")
        if not self.takes_schema and "response_format" in body:
            return self.refuse(handler, 400, "response_format is not supported")
        if not self.takes_logprobs and "logprobs" in body:
            return self.refuse(handler, 400, "logprobs are not supported")
        with self.lock:
            self.bodies.append(body)
            self.requests[text] += 1
            fault = self.fault(text, self.requests[text])
        return self._reply(handler, body, text, fault)

    def _reply(self, handler: Any, body: Mapping[str, Any], text: str, fault: str | None) -> None:
        key = handler.headers["Idempotency-Key"]
        if fault == "429":
            return self.refuse(handler, 429, "slow down")
        if fault == "503":
            return self.refuse(handler, 503, "overloaded")
        if fault == "hang":
            self.released.wait(30)
            return None
        if fault == "broken":
            return self.send(handler, 200, b'{"choices": [')
        if fault == "html":
            return self.send(handler, 200, b"<html>Bad gateway</html>", headers={"Content-Type": "text/html"})
        with self.lock:
            known = self.known.get(key)
        if known is not None:
            return self.send(handler, 200, known)
        content = {
            "refusal": None, "empty": "", "prose": "I think it is about money.", "no class": '{"label": "nothing"}',
        }.get(str(fault), self.answer(text))  # fmt: skip
        message = {"role": "assistant", "content": content, "refusal": "no" if fault == "refusal" else None}
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "stop"}
        if self.tokens is not None and "logprobs" in body and content:
            choice["logprobs"] = {
                "content": [
                    {
                        "token": piece, "logprob": logprob, "bytes": None,
                        "top_logprobs": [{"token": other, "logprob": of, "bytes": None} for other, of in others],
                    }
                    for piece, logprob, others in self.tokens(content)
                ]
            }  # fmt: skip
        read = sum(len(message["content"].split()) for message in body["messages"])
        written = len((content or "").split()) + 4
        usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        whole = json.dumps({
            "id": "1", "object": "chat.completion", "created": 0, "model": self.model, "choices": [choice],
            "usage": usage if self.counts_tokens else None,
        }).encode()  # fmt: skip
        if fault == "half":
            return self.send(handler, 200, whole, cut=20)
        with self.lock:
            self.known[key] = whole
            self.usage[0] += read
            self.usage[1] += written
            if fault is None:
                self.paid[text, body.get("seed")] += 1
        return self.send(handler, 200, whole)
