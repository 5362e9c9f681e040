"""Memory of a training, not that of everything the process did before."""

import mmap

import pytest

from distill.training import memory


@pytest.mark.skipif(not memory.reset_peak(), reason="this system cannot measure it")
def test_peak_is_that_since_the_reset() -> None:
    with mmap.mmap(-1, 200_000_000) as large:
        large.write(b"1" * len(large))
        before = memory.peak_mb()
    memory.reset_peak()
    assert memory.peak_mb() < before - 150
