"""Serves an app over HTTP: bodies, refusals, access, the page of its documentation, and the process that listens.

The page `/docs`: the interface (OpenAPI) as one HTML page without scripts, so that it needs no other host. FastAPI's
own page loads Swagger UI from a content delivery network. Its files in a package would be 8 MB for a handful of paths,
which a page of plain HTML lists as well, and `/` is the page to try the models with.
"""

import asyncio
import contextlib
import hmac
import json
import math
import signal
from abc import ABC, abstractmethod
from asyncio import Transport
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from html import escape as escape_html
from importlib.resources import files
from string import Template
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import request_response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from distill import __version__
from distill.core.errors import UserError, escape, first_line, shorten
from distill.serve.limits import Limits, is_known_host


class HttpService(ABC):
    """A service that is served over HTTP.

    Args:
        limits: of requests and connections.
        hosts: names by which it may be addressed beside those of loopback; None for any.
        log: is called with what happened, in words.
        token: that requests must bear, where `AccessMiddleware` asks for it; None for none.

    Attributes:
        is_ready: whether it has started and is not stopping.
    """

    def __init__(self, limits: Limits, hosts: Collection[str] | None, log: Any, token: str | None = None) -> None:
        self.limits, self.hosts, self.log, self.token = limits, hosts, log, token
        self.is_ready = False

    @property
    @abstractmethod
    def title(self) -> str:
        """What is served, in words."""

    @abstractmethod
    def lifespan(self, app: FastAPI) -> AbstractAsyncContextManager[None]:
        """Returns the context in which requests are answered."""


class PlainRoute(APIRoute):
    """A route whose endpoint gets the request as it came.

    FastAPI would look for its arguments and a form for its answer, for as long as a short text takes in a batch.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = request_response(endpoint)


_LONGEST = 200  # Characters of a path in a reason.


class RefusedError(Exception):
    """A request that is not answered as it asks, with the status and the reason in words."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def refuse(status: int, reason: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Returns an answer with the reason in one line; half of a character is escaped in it."""
    retry = {"Retry-After": "1"} if status == 503 else {}
    words = escape(reason.encode("utf-8", "backslashreplace").decode())
    return JSONResponse({"error": words}, status_code=status, headers={**retry, **(headers or {})})


async def refuse_path(request: Request, error: Exception) -> Response:
    """Answers a request for a path that there is not, or with another method."""
    assert isinstance(error, HTTPException)
    path = request.url.path if len(request.url.path) <= _LONGEST else f"{request.url.path[:_LONGEST]}..."
    return refuse(error.status_code, f"{request.method} {path}: {error.detail}", error.headers)


def read_bearer(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Returns the bearer token of a request; None where it has none."""
    value = next((value for name, value in headers if name.lower() == b"authorization"), b"")
    kind, _, given = value.partition(b" ")
    return given.strip() if kind.lower() == b"bearer" else None


GONE = 499  # A status for the log of a proxy; the client does not see it any more.


async def read_body(request: Request, limits: Limits) -> bytearray:
    """Returns the body of a request; refuses one of another type, that is too large or too slow."""
    _check_headers(request, limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.seconds):
            async for part in request.stream():
                body += part
                if len(body) > limits.body:
                    raise RefusedError(413, f"the body has more than {limits.body:,} bytes, the limit")
    except TimeoutError:
        raise RefusedError(408, f"the body did not arrive within {limits.seconds:g} s") from None
    except ClientDisconnect:
        raise RefusedError(GONE, "the client has gone") from None
    return body


def _check_headers(request: Request, limits: Limits) -> None:
    """Refuses what its headers tell, before the body is read."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(415, f"got the content type {kind or 'none'}, expected application/json")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise RefusedError(415, f"got the content encoding {encoding}, expected none: send the JSON as it is")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > limits.body:
        raise RefusedError(413, f"the body has more than {limits.body:,} bytes, the limit")


def parse_body(body: bytearray) -> object:
    """Returns the JSON of a body."""
    try:
        return json.loads(body, object_pairs_hook=_join_pairs)
    except ValueError as error:
        raise RefusedError(400, f"the body is no JSON: {first_line(error)}") from error


def _join_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {shorten(double)} is given twice in one object")
    return content


OPEN_PATHS = ("/health", "/ready", "/")  # Without a token: they tell nothing of the models, and the page asks for it.
PART = 65_536  # Bytes of an answer that are handed on at once, so that its memory is counted until the client has it.
BUSY = "the server holds as many bytes of requests and answers as it may: try again in a second"


class AccessMiddleware:
    """Asks for the host and the token of a service, and limits the memory of all requests together.

    Once the server is stopping, each answer tells that the connection ends. HEAD is answered as GET, without a body.

    Attributes:
        held: bytes of bodies and answers in memory.
    """

    def __init__(self, app: ASGIApp, service: HttpService) -> None:
        self.app, self.service, self.held = app, service, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        own = _Request(receive, send, self)
        try:
            await self._answer(scope, own)
        finally:
            self.held -= own.bytes

    async def _answer(self, scope: Scope, own: "_Request") -> None:
        headers = Headers(scope=scope)
        app: ASGIApp
        if not is_known_host(headers.get("host"), self.service.hosts):
            host = shorten(headers.get("host"))
            app = refuse(403, f"the host {host} is not served: start the server with --allow-host NAME")
        elif scope["path"] not in OPEN_PATHS and not is_allowed(scope["headers"], self.service.token):
            app = refuse(401, "the bearer token is missing or wrong", {"WWW-Authenticate": "Bearer"})
        else:
            app = self.app
        method = "GET" if scope["method"] == "HEAD" else scope["method"]  # The protocol leaves out the body.
        await app({**scope, "method": method}, own.receive, own.send)


class _Request:
    """The channels of one request, with the bytes that it holds."""

    def __init__(self, receive: Receive, send: Send, access: AccessMiddleware) -> None:
        self._receive, self._send, self.access, self.bytes = receive, send, access, 0

    async def receive(self) -> Message:
        message = await self._receive()
        self._hold(len(message.get("body", b"")))
        if self.access.held > self.access.service.limits.held and self.bytes > PART:  # Small requests always pass.
            raise RefusedError(503, BUSY)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and not self.access.service.is_ready:
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
        self.access.held += number


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


Schema = Mapping[str, Any]
_PATH = """<section>
<h2><code>{method} {path}</code></h2>
<p>{summary}.</p>
{details}<pre tabindex="0">{command}</pre>
</section>"""


def render_documentation(schema: Schema, *, address: str) -> str:
    """Returns the page of an interface.

    Args:
        schema: of OpenAPI.
        address: of the server, in the commands of the page.
    """
    paths = [
        _describe_path(method, path, operation, address.rstrip("/"))
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    info = schema["info"]
    page = Template(files("distill.serve").joinpath("docs.html").read_text(encoding="utf-8"))
    title, description = f"{info['title']} {info['version']}", info.get("description", "")
    return page.substitute(title=escape_html(title), description=escape_html(description), paths="\n".join(paths))


def create_app(service: HttpService, description: str, page: Callable[[], Response]) -> FastAPI:
    """Returns the application of a service, with its page for people and the description of its interface.

    Args:
        page: returns the page at `/`.
    """
    app = FastAPI(
        title="distill", version=__version__, lifespan=service.lifespan, docs_url=None, redoc_url=None,
        description=f'{description} An error is answered with {{"error": "the reason"}}.',
    )  # fmt: skip
    app.router.route_class = PlainRoute
    app.add_exception_handler(HTTPException, refuse_path)

    @app.get("/", include_in_schema=False)
    async def show_page(request: Request) -> Response:
        return page()

    @app.get("/docs", include_in_schema=False)
    async def show_documentation(request: Request) -> Response:
        return HTMLResponse(render_documentation(app.openapi(), address=str(request.base_url)))

    return app


def _describe_path(method: str, path: str, operation: Schema, address: str) -> str:
    """Returns a path with the fields of its body, and a command that sends the example of it."""
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    details, command = "", f"curl {address}{path}"
    if body is not None:
        fields = "\n".join(
            f"<li><code>{escape_html(name)}</code>: {escape_html(_describe_type(of))}</li>"
            for name, of in body["schema"]["properties"].items()
        )
        words = f"The body is application/json. {body['schema']['description']}"
        details = f"<p>{escape_html(words)}</p>\n<ul>\n{fields}\n</ul>\n"
        command += f" -H 'Content-Type: application/json' -d '{json.dumps(body['example'])}'"
    return _PATH.format(
        method=escape_html(method.upper()), path=escape_html(path), summary=escape_html(operation.get("summary", "")),
        details=details, command=escape_html(command),
    )  # fmt: skip


def _describe_type(schema: Schema) -> str:
    """Returns a type in words: `array of string`."""
    words = str(schema.get("type", "any value"))
    if schema.get("items"):
        words += f" of {_describe_type(schema['items'])}"
    if schema.get("minItems"):
        words += f", {schema['minItems']} of them"
    return words + (f" ({schema['description']})" if "description" in schema else "")


PIPELINE = 16  # Requests on one connection that wait for the answer to the one before.
REST_SECONDS = 2.0  # For the rest of a body to arrive that nobody reads, so that the client sees why.
MESSAGES = {
    408: (b"Request Timeout", b"the headers did not arrive in time"),
    431: (b"Request Header Fields Too Large", b"the headers have more bytes than the limit"),
    503: (b"Service Unavailable", b"too many connections are open: try again in a second"),
}


class GuardedProtocol(HttpToolsProtocol):
    """Closes a connection whose headers are too large or too slow, and one that does not read its answer.

    Where there are too many connections, the one that has waited longest for a request is closed.

    Attributes:
        limits: of the server, set in a subclass.
        most: number of connections.
    """

    limits: Limits
    most: int

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unread = 0  # Bytes since the last that were headers or a body as a whole.
        self._is_between = True  # Whether the headers of a request are not complete.
        self._waits_since: float | None = self.loop.time()
        self._timer: Any = self.loop.call_later(self.limits.head_seconds, self._give_up_head)
        self._write_timer: Any = None
        if len(self.connections) > self.most:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _make_room(self) -> None:
        others = [one for one in self.connections if one is not self and getattr(one, "_waits_since", None) is not None]
        if others:
            longest = min(others, key=lambda one: one._waits_since)  # type: ignore[union-attr]
            self.connections.discard(longest)
            longest.transport.abort()  # type: ignore[union-attr]
        else:
            self._refuse(503)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_between and self._timer is None:
            self._set_timer(self.limits.head_seconds, self._give_up_head)
        self._unread += len(data)
        super().data_received(data)
        if self._unread > self.limits.head and not self.transport.is_closing():
            self._refuse(431)

    def on_headers_complete(self) -> None:
        self._set_timer(None, None)
        self._unread, self._is_between, self._waits_since = 0, False, None
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self.limits.head:
            self._refuse(431)
            raise ValueError("the headers are too large")  # It stops the parser.
        if len(self.pipeline) >= PIPELINE:
            self.transport.abort()
            raise ValueError("too many requests wait for their answers")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread, self._is_between = 0, True
        self._set_timer(None, None)  # Of the rest of a body.
        if self.cycle.response_complete:
            self._waits_since = self.loop.time()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if not self._is_between:
            self._set_timer(REST_SECONDS, self.transport.abort)
        elif not self.pipeline:
            self._waits_since = self.loop.time()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def _set_timer(self, seconds: float | None, action: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, action)

    def _give_up_head(self) -> None:
        if self._unread:
            self._refuse(408)
        else:
            self.transport.abort()

    def _refuse(self, status: int) -> None:
        """Answers a request that has no headers yet, and closes the connection."""
        if self.transport.is_closing():
            return
        reason, words = MESSAGES[status]
        body = b'{"error":"%s"}' % words
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (status, reason, len(body), body)
        )
        self.transport.close()


def create_protocol(limits: Limits, most: int) -> type[GuardedProtocol]:
    """Returns the protocol with its limits, as uvicorn takes it."""
    return type("Protocol", (GuardedProtocol,), {"limits": limits, "most": most})


DRAIN_SECONDS = 2.0  # For a client with an open connection to send another request, and to be told to close it.
TICK_SECONDS = 0.02
OTHER_FILES = 64  # Open files that are no connections.
KEEP_ALIVE_SECONDS = 75  # Longer than the 60 s of common proxies, which would reuse a connection that we have closed.


class Server(uvicorn.Server):
    """A server that does not close a connection over which a request may be on its way.

    After a signal it accepts no connection. The answer to the next request of each open one says that it ends.
    """

    def __init__(self, service: HttpService, app: ASGIApp, *, host: str, port: int) -> None:
        super().__init__(
            uvicorn.Config(
                app, host=host, port=port, log_level="warning", access_log=False, server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS, proxy_headers=False, ws="none",
                http=create_protocol(service.limits, most_connections(service.limits.connections)),
                timeout_graceful_shutdown=math.ceil(2 * service.limits.seconds),
            )
        )  # fmt: skip
        self.service = service

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        address = f"[{host}]" if ":" in host else host
        self.service.log(f"serving {self.service.title} at http://{address}:{port}")

    async def shutdown(self, sockets: Any = None) -> None:
        self.service.is_ready = False
        for server in self.servers:
            server.close()
        end = asyncio.get_running_loop().time() + DRAIN_SECONDS
        while self.server_state.connections and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(TICK_SECONDS)
        await super().shutdown(sockets)


def most_connections(most: int) -> int:
    """Returns how many connections may be open, which are files for the system."""
    with contextlib.suppress(ModuleNotFoundError):  # Windows has no limit that a program could read.
        import resource

        most = min(most, max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OTHER_FILES))
    return most


def run(service: HttpService, app: ASGIApp, *, host: str, port: int) -> None:
    """Serves until SIGTERM or Ctrl-C.

    Raises:
        UserError: if it cannot listen.
    """
    # uvicorn raises the signal that stopped it once more, and the process would end as if it had been killed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        Server(service, app, host=host, port=port).run()
    except SystemExit as error:  # uvicorn has logged the reason.
        raise UserError(f"cannot listen on {host}, port {port}: choose another --host or --port") from error
