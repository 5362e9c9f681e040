"""Settings of the server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The limits of a request; one that exceeds a limit is refused, and nothing of it is computed.

    Args:
        body: bytes of a request.
        records: number of records in a request.
        characters: of a text.
        waiting: requests of a model that wait for their turn; one more gets the status 503.
        seconds: for the body of a request to arrive, and again for its answer.
        batch_size: records in a forward pass; None for as many as the bundle recommends.
        batch_records: records of all requests that run together.
        refuse_long: whether to refuse a record of more tokens than the bundle reads, which is cut otherwise.
    """

    body: int = 4_000_000
    records: int = 1_000
    characters: int = 20_000
    waiting: int = 256
    seconds: float = 30.0
    batch_size: int | None = None
    batch_records: int = 256
    refuse_long: bool = False
