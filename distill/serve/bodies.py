"""Reads the body of a request, which is JSON, and refuses one that is too large, too slow or of another type."""

import asyncio
import json
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from distill.edge.strings import shorten
from distill.errors import first_line
from distill.serve.refusals import RefusedError
from distill.serve.settings import Limits

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
