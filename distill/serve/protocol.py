"""The HTTP protocol with limits on connections and on what a client sends beside the body of a request."""

from asyncio import Transport
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from distill.serve.settings import Limits

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
