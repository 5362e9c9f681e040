"""Limits of a server on requests, and the names by which it may be addressed."""

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass


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


@dataclass(frozen=True)
class Limits:
    """The limits of a request and of a connection; one that exceeds a limit is refused, and nothing of it is computed.

    Args:
        body: bytes of a request.
        records: number of records in a request.
        characters: of a text.
        total: characters of all texts of a request, as `cost` counts them.
        rows: of the model for a record: windows of a context, choices, masks, documents, or texts of a list; and for a
            request to write texts: prompts, or beams of all prompts.
        new_tokens: of a text that is written.
        waiting: requests of a model that wait for their turn, and likewise texts to write; one more gets the status
            503.
        seconds: for the body of a request to arrive, again for its answer, or for a text to write to begin, and again
            for the client to read it.
        batch_size: records in a forward pass, or texts that are written together; None for as many as the bundle
            recommends.
        batch_records: records of all requests that run together.
        batch_characters: of all requests that run together, or those of one record.
        refuse_long: whether to refuse a record of more tokens than the bundle reads, which is cut otherwise.
        held: bytes of the bodies and answers of all requests that are in memory at once.
        connections: that are open at once; the one that has waited longest for a request makes room for another.
        head: bytes of the headers of a request.
        head_seconds: for the headers to arrive.
    """

    body: int = 4_000_000
    records: int = 1_000
    characters: int = 20_000
    total: int = 1_000_000
    rows: int = 100
    new_tokens: int = 1_024
    waiting: int = 256
    seconds: float = 30.0
    batch_size: int | None = None
    batch_records: int = 256
    batch_characters: int = 32_000
    refuse_long: bool = False
    held: int = 32_000_000
    connections: int = 512
    head: int = 32_768
    head_seconds: float = 10.0
