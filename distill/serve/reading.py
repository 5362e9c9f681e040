"""Reads the records of a request, and refuses one that is too large, too slow or of another form."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request

from distill.edge.bundle import Bundle
from distill.edge.decoder import Decoder, Example, Record
from distill.edge.strings import SHOWN, shorten
from distill.errors import UserError, first_line
from distill.serve.bodies import parse_body, read_body
from distill.serve.refusals import RefusedError
from distill.serve.settings import Limits

Read = TypeVar("Read")
FORMS = ("texts", "pairs", "inputs")
RANKING = ("query", "documents")
KEYS = ("text", "top_k", "tokens", "question", "context", "choices", *RANKING)  # Of records; others are dropped.
SMALL = 65_536  # Bytes of a body that is read at once.
# What a sequence of tokens and a piece for a mask cost beside their characters, and a mask for each token of the
# vocabulary.
SEQUENCE, PIECE, MASK = 20, 10, 0.01


async def read_records(
    request: Request,
    bundle: Bundle,
    limits: Limits,
    thread: ThreadPoolExecutor,
    *,
    find: Callable[[object], list[Any]] | None = None,
) -> tuple[list[Record], list[int]]:
    """Returns the records of a request and their costs in characters.

    Args:
        thread: reads large bodies.
        find: returns the records of the content of a request; None for those of one of `FORMS`.
    """
    find = find or _find_records
    return await read_content(request, limits, thread, lambda content: _check_records(find(content), bundle, limits))


async def read_content(
    request: Request, limits: Limits, thread: ThreadPoolExecutor, read: Callable[[object], Read]
) -> Read:
    """Returns what `read` returns for the content of a request.

    Args:
        thread: reads large bodies one after the other, so that small requests are answered meanwhile.
    """
    body = await read_body(request, limits)
    if len(body) <= SMALL:
        return _parse(body, read)
    parsed = asyncio.get_running_loop().run_in_executor(thread, _parse, body, read)
    try:
        return await asyncio.wait_for(parsed, limits.seconds)
    except TimeoutError:
        raise RefusedError(503, "other large requests are read: try again in a second") from None


def _parse(body: bytearray, read: Callable[[object], Read]) -> Read:
    try:
        return read(parse_body(body))
    except RecursionError:
        raise RefusedError(400, "the body has lists or objects in too many others") from None


def _check_records(records: list[Any], bundle: Bundle, limits: Limits) -> tuple[list[Record], list[int]]:
    """Returns the records of a request and their costs in characters."""
    encodes = bundle.decoder.encodes
    size = sum(len(record) if isinstance(record, list) else 1 for record in records) if encodes else len(records)
    if size > limits.records:
        unit = "texts" if encodes else "records"
        raise RefusedError(413, f"got {size:,} {unit}, the limit of a request is {limits.records:,}")
    checked: list[Record] = []
    costs: list[int] = []
    total = 0
    for number, given in enumerate(records, 1):
        record = _simplify(given, number, limits)
        try:
            example = bundle.decoder.read(record)
        except UserError as error:
            raise RefusedError(422, f"record {number}: {first_line(error)}") from error
        _check_size(example, bundle.decoder, number, limits)
        checked.append(record)
        costs.append(cost(example, bundle.decoder))
        total += costs[-1]
        if total > limits.total:
            raise RefusedError(
                413, f"the request counts as more than {limits.total:,} characters, the limit: send several requests"
            )  # fmt: skip
    return checked, costs


def find_ranking(content: object) -> list[Any]:
    """Returns the one record of a request to rank documents."""
    if not isinstance(content, dict) or set(content) != set(RANKING):
        names = ", ".join(map(show_name, content)) or "nothing" if isinstance(content, dict) else "no object"
        raise RefusedError(422, f"got {names[:SHOWN]}, expected an object with {' and '.join(RANKING)}")
    return [content]


def _find_records(content: object) -> list[Any]:
    given = [name for name in FORMS if isinstance(content, dict) and content.get(name) is not None]
    if not isinstance(content, dict) or len(given) != 1 or len(content) != 1:
        names = ", ".join(map(show_name, content)) or "nothing" if isinstance(content, dict) else "no object"
        raise RefusedError(422, f"got {names[:SHOWN]}, expected an object with one of {', '.join(FORMS)}")
    records = content[given[0]]
    if not isinstance(records, list):
        raise RefusedError(422, f"got {given[0]}={shorten(records)}, expected a list")
    return records


def show_name(name: str) -> str:
    return name[:SHOWN].encode("utf-8", "backslashreplace").decode()


def _simplify(record: Any, number: int, limits: Limits) -> Any:
    """Returns a record without the keys that no decoder reads; they would take memory while it waits."""
    if not isinstance(record, dict):
        return record
    known = {key: record[key] for key in KEYS if key in record}
    for key, value in known.items():
        if isinstance(value, dict) or (isinstance(value, list) and not all(isinstance(each, str) for each in value)):
            raise RefusedError(422, f"record {number}: {key} has lists or objects in it, expected texts")
    tokens = known.get("tokens")
    if isinstance(tokens, list) and sum(map(len, tokens)) + len(tokens) - 1 > limits.characters:
        raise _too_long(number, limits)
    return known


def _check_size(example: Example, decoder: Decoder, number: int, limits: Limits) -> None:
    texts = (example.text, example.pair or "", example.context or "", *example.choices, *example.more)
    if max(map(len, texts)) > limits.characters:
        raise _too_long(number, limits)
    for rows, unit in (
        (len(example.choices), "documents" if decoder.ranks else "choices"),
        (len(example.more) + 1, "texts"),
        (_count_masks(example, decoder), "masks"),
    ):
        if rows > limits.rows:
            raise RefusedError(413, f"record {number} has {rows:,} {unit}, the limit of a record is {limits.rows}")


def _too_long(number: int, limits: Limits) -> RefusedError:
    return RefusedError(
        413, f"a text of record {number} has more than {limits.characters:,} characters, the limit"
    )  # fmt: skip


def cost(example: Example, decoder: Decoder) -> int:
    """Returns about how much it takes to compute an example, in characters of text."""
    texts: Sequence[str] = (example.text, example.pair or "", *example.more)
    shared = len(example.context or "") + len(example.text)
    characters = sum(len(choice) + shared + SEQUENCE for choice in example.choices) or sum(
        len(text) + SEQUENCE for text in texts
    )
    masks = _count_masks(example, decoder)
    if masks:
        characters += int(masks * (MASK * decoder.size + PIECE * (example.top_k or decoder.top_k)))  # type: ignore[attr-defined]  # It fills masks.
    return characters


def _count_masks(example: Example, decoder: Decoder) -> int:
    return example.text.count(decoder.mask_token) if decoder.at_positions else 0  # type: ignore[attr-defined]


async def wait_for_disconnect(request: Request) -> None:
    """Returns when the client has closed the connection; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
