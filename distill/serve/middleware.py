"""What every request passes: the host and the token are checked, and its memory is counted."""

import hmac
from collections.abc import Collection, Iterable
from typing import Protocol

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from distill.edge.strings import shorten
from distill.serve.hosts import is_known_host
from distill.serve.refusals import RefusedError, read_bearer, refuse

OPEN_PATHS = ("/health", "/ready", "/")  # Without a token: they tell nothing of the models, and the page asks for it.
PART = 65_536  # Bytes of an answer that are handed on at once, so that its memory is counted until the client has it.
BUSY = "the server holds as many bytes of requests and answers as it may: try again in a second"


class Guarded(Protocol):
    """The attribute of a service that the middleware reads."""

    is_ready: bool


class Held:
    """Counts the bytes of bodies and answers in memory."""

    def __init__(self, most: int) -> None:
        self.most, self.bytes = most, 0


class AccessMiddleware:
    """Asks for the host and the token, and limits the memory of all requests together.

    Once the server is stopping, each answer tells that the connection ends. HEAD is answered as GET, without a body.

    Args:
        is_ready: whether the server is not stopping.
        token: that requests must bear; None for none.
        hosts: names by which a server without a token may be addressed; None for any.
        most: bytes of bodies and answers in memory.
    """

    def __init__(
        self, app: ASGIApp, *, service: Guarded, token: str | None, hosts: Collection[str] | None, most: int
    ) -> None:
        self.app, self.service, self.token, self.hosts, self.held = app, service, token, hosts, Held(most)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        own = _Request(receive, send, self.held, self.service)
        try:
            await self._answer(scope, own)
        finally:
            own.release()

    async def _answer(self, scope: Scope, own: "_Request") -> None:
        headers = Headers(scope=scope)
        app: ASGIApp
        if not is_known_host(headers.get("host"), self.hosts):
            host = shorten(headers.get("host"))
            app = refuse(403, f"the host {host} is not served: start the server with --allow-host NAME")
        elif scope["path"] not in OPEN_PATHS and not is_allowed(scope["headers"], self.token):
            app = refuse(401, "the bearer token is missing or wrong", {"WWW-Authenticate": "Bearer"})
        else:
            app = self.app
        method = "GET" if scope["method"] == "HEAD" else scope["method"]  # The protocol leaves out the body.
        await app({**scope, "method": method}, own.receive, own.send)


class _Request:
    """The channels of one request, with the bytes that it holds."""

    def __init__(self, receive: Receive, send: Send, held: Held, service: Guarded) -> None:
        self._receive, self._send, self.held, self.service, self.bytes = receive, send, held, service, 0

    async def receive(self) -> Message:
        message = await self._receive()
        self._hold(len(message.get("body", b"")))
        if self.held.bytes > self.held.most and self.bytes > PART:  # Small requests always pass.
            raise RefusedError(503, BUSY)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and not self.service.is_ready:
            MutableHeaders(scope=message)["Connection"] = "close"
        body = message.get("body", b"")
        if len(body) <= PART:
            await self._send(message)
            return
        self._hold(len(body))
        for start in range(0, len(body), PART):
            is_last = start + PART >= len(body)
            more = not is_last or message.get("more_body", False)
            await self._send({"type": message["type"], "body": body[start : start + PART], "more_body": more})

    def _hold(self, number: int) -> None:
        self.bytes += number
        self.held.bytes += number

    def release(self) -> None:
        self.held.bytes -= self.bytes


def is_allowed(headers: Iterable[tuple[bytes, bytes]], token: str | None) -> bool:
    """Returns whether a request bears the token, or none is asked for.

    A token with letters beyond ASCII is compared as UTF-8 and, as some clients send it, as Latin-1.
    """
    if token is None:
        return True
    given = read_bearer(headers)
    forms = [token.encode("utf-8", "surrogateescape")]
    if not token.isascii() and all(ord(letter) < 256 for letter in token):
        forms.append(token.encode("latin-1"))
    is_right = [hmac.compare_digest(given or b"", form) for form in forms]
    return given is not None and any(is_right)
