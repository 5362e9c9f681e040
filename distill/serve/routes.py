"""Routes whose endpoints get the request as it came."""

from collections.abc import Callable
from typing import Any

from fastapi.routing import APIRoute
from starlette.routing import request_response


class PlainRoute(APIRoute):
    """A route whose endpoint gets the request as it came.

    FastAPI would look for its arguments and a form for its answer, for as long as a short text takes in a batch.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = request_response(endpoint)
