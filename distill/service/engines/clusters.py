"""What the engines of clusters with a client share: names of jobs, and clients that do not reply."""

from collections.abc import Iterator
from contextlib import contextmanager

from distill.errors import first_line

PREFIX = "distill-"  # Of the jobs of a service, among those of others.


def to_id(handle: str) -> str:
    """Returns the name of an attempt in the cluster, where a name has no slash."""
    return PREFIX + handle.replace("/", "-")


def to_handle(id: str) -> str:
    """Returns the attempt of a name in the cluster."""
    return id.removeprefix(PREFIX).replace("-", "/")


@contextmanager
def expecting_replies(cluster: str) -> Iterator[None]:
    """Raises the errors of a client as ConnectionError, after which the service asks again."""
    try:
        yield
    except RuntimeError as error:
        raise ConnectionError(f"{cluster} does not reply as expected: {first_line(error)}") from error
