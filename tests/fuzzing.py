"""Damages files at random."""

import os
from collections.abc import Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st


def fuzz(examples: int) -> settings:
    """Returns the settings of a test: always the same `examples`, or `DISTILL_FUZZ` new ones."""
    count = os.environ.get("DISTILL_FUZZ")
    return settings(
        max_examples=int(count or examples), derandomize=count is None, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip


@st.composite
def damages(draw: st.DrawFn, content: bytes, tokens: Sequence[bytes] = ()) -> bytes:
    """Bytes that are flipped, deleted, inserted or cut off; some of those inserted are tokens."""
    damaged = bytearray(content)
    random = st.binary(min_size=1, max_size=8)
    for _ in range(draw(st.integers(1, 3))):
        position = draw(st.integers(0, max(0, len(damaged) - 1)))
        kind = draw(st.sampled_from(["flip", "delete", "insert", "truncate"]))
        if kind == "flip" and damaged:
            damaged[position] ^= draw(st.integers(1, 255))
        elif kind == "delete":
            del damaged[position : position + draw(st.integers(1, 8))]
        elif kind == "insert":
            damaged[position:position] = draw(st.one_of(random, st.sampled_from(tokens)) if tokens else random)
        else:
            del damaged[position:]
    return bytes(damaged)
