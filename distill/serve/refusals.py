"""Requests that are refused, with the status and the reason in words."""

from collections.abc import Iterable, Mapping

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from distill.edge.strings import escape

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
