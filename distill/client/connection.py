"""Requests to the service, their errors in one line, and its server-sent events."""

import http.client
import json
import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import SplitResult, urlsplit

from distill.errors import UserError, first_line

LONGEST_ERROR = 1 << 16  # Bytes of a refusal that are read.

Json = dict[str, Any]


class ServiceError(UserError):
    """A refusal of the service, in its own words; `status` is that of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class UnreachableServiceError(UserError):
    """A service that does not answer, or whose answer was cut off."""


@dataclass(frozen=True)
class Event:
    """An event of a job. Numbers increase by 1; kinds are state, stage, step, metrics, run and notice."""

    number: int
    kind: str
    data: Json


class Connection:
    """Requests to one service, each by a connection of its own, without proxies and redirects.

    Args:
        token: of the person; None sends none.
        timeout: seconds without a byte after which a request has failed.
    """

    def __init__(self, url: str, token: str | None, *, timeout: float) -> None:
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            raise UserError("the token of the service has a space or a character that no header can have")
        self.url, self.timeout = url.rstrip("/"), timeout
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._parts = _split_url(url)

    def ask(
        self,
        method: str,
        path: str,
        content: Mapping[str, Any] | None = None,
        *,
        file: IO[bytes] | None = None,
    ) -> Json:
        """Returns the JSON of an answer, an empty object for one without a body; sends JSON or a file."""
        body = file if content is None else json.dumps(content).encode()
        kind = "application/octet-stream" if content is None else "application/json"
        with self.open(method, path, body=body, headers={"Content-Type": kind} if body else {}) as answer:
            try:
                value: Json = json.loads(answer.read() or b"{}")
            except ValueError as error:
                raise UserError(f"{self.url} is no service of distill: it did not answer with JSON") from error
        return value

    @contextmanager
    def open(
        self, method: str, path: str, *, body: bytes | IO[bytes] | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Sends a request and yields the answer.

        Raises:
            ServiceError: for a refusal.
            UnreachableServiceError: for a connection that cannot be opened, or that ends within the answer.
        """
        secure = self._parts.scheme == "https"
        connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = connect(str(self._parts.hostname), self._parts.port, timeout=self.timeout, blocksize=1 << 16)
        try:
            with closing(connection):
                # A service that refuses an upload answers, and closes before it has read all of it.
                connection.connect()
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(method, self._parts.path.rstrip("/") + path, body, self._prepare(body, headers))
                with connection.getresponse() as answer:
                    if answer.status >= 300:
                        raise _read_refusal(answer, self.url)
                    yield answer
        except (http.client.HTTPException, socket.gaierror, ssl.SSLError, ConnectionError, TimeoutError) as error:
            raise UnreachableServiceError(
                f"no answer from the service at {self.url} ({first_line(error)}): is it running, and is this its "
                "address?"
            ) from error

    def _prepare(self, body: bytes | IO[bytes] | None, headers: Mapping[str, str] | None) -> dict[str, str]:
        """Returns all headers; those of a file have its length, without which it would be sent in chunks."""
        size = {} if body is None or isinstance(body, bytes) else {"Content-Length": str(_measure(body))}
        return {**self._headers, **size, **(headers or {})}

    def events(self, path: str, after: int) -> Iterator[Event]:
        """Yields the server-sent events of one connection, those after a number."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        with self.open("GET", path, headers=headers) as answer:
            fields: dict[str, str] = {}
            for line in answer:
                name, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(":")
                if name:
                    fields[name] = value.removeprefix(" ")
                elif line.strip():  # A comment, which keeps the connection open.
                    continue
                elif {"id", "data"} <= fields.keys():  # A blank line ends an event.
                    yield Event(int(fields["id"]), fields.get("event", "message"), json.loads(fields["data"]))
                    fields = {}


def _split_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # Of a port or an address of IPv6.
        known = False
    if not known or "@" in parts.netloc or parts.query or parts.fragment:
        raise UserError("the address of the service is http://HOST:PORT or https://HOST, without a user or a password")
    return parts


def _measure(file: IO[bytes]) -> int:
    """Returns the bytes of a file, and goes to its start."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


def _read_refusal(answer: http.client.HTTPResponse, url: str) -> ServiceError:
    """Returns a refusal with the line of the service."""
    try:
        line = str(json.loads(answer.read(LONGEST_ERROR))["error"])
    except (ValueError, TypeError, KeyError):
        line = f"{url} answered with the status {answer.status}: is it a service of distill?"
    wait = answer.headers.get("Retry-After", "")
    return ServiceError(line + (f" (try again in {wait} s)" if wait.isdigit() else ""), answer.status)
