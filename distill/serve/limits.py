"""Limits of a server on requests, and the names by which it may be addressed."""

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any


def is_known_host(host: str | None, hosts: Collection[str] | None) -> bool:
    """Returns whether a server may be addressed so: with any of `hosts`, as localhost, or by a loopback address.

    A page whose name leads to this machine could otherwise ask the server. Browsers always name the host.
    """
    if hosts is None or host is None:
        return True
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    name = name.lower().removesuffix(".")
    return name in hosts or is_loopback(name)


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _limit(default: Any, description: str) -> Any:
    """Returns a field of limits that is an option of the command."""
    return field(default=default, metadata={"description": description})


@dataclass(frozen=True)
class Limits:
    """The limits of a request and of a connection; one that exceeds a limit is refused, and nothing of it is computed.

    Those with a description are options of the command too, by their names.

    Args:
        batch_records: the limit of a forward pass over several requests.
        waiting: requests of a model that wait for their turn, and likewise texts to write.
        total: characters of all texts of a request, as `cost` counts them.
        rows: of the model for a record, and for a request to write texts prompts, or beams of all prompts.
        seconds: for the body of a request to arrive, again for its answer, or for a text to write to begin, and again
            for the client to read it.
        connections: the one that has waited longest for a request makes room for another.
        batch_size: records in a forward pass, or texts that are written together; None for as many as the bundle
            recommends.
        batch_characters: of all requests that run together, or those of one record.
        refuse_long: whether to refuse a record of more tokens than the bundle reads, which is cut otherwise.
    """

    batch_records: int = _limit(256, "records of all requests that run together")
    waiting: int = _limit(256, "requests that may wait; others get the status 503")
    records: int = _limit(1_000, "most records in a request")
    characters: int = _limit(20_000, "most characters in a text")
    total: int = _limit(1_000_000, "most characters of all texts in a request")
    rows: int = _limit(
        100, "most windows, choices, masks, documents, or texts of a list, in a record, and most prompts in a request"
    )
    new_tokens: int = _limit(1_024, "most tokens of a text that is written")
    body: int = _limit(4_000_000, "most bytes in a request")
    seconds: float = _limit(30.0, "most for a body to arrive, for an answer, and for a client to read it")
    held: int = _limit(32_000_000, "most bytes of requests and answers in memory; others get the status 503")
    connections: int = _limit(512, "most connections that are open")
    head: int = _limit(32_768, "most bytes of the headers of a request")
    head_seconds: float = _limit(10.0, "most for headers to arrive")
    batch_size: int | None = None
    batch_characters: int = 32_000
    refuse_long: bool = False
