"""Memory of a training, not that of everything the process did before."""

import mmap

import pytest

from distill.training import processes


@pytest.mark.skipif(not processes.reset_peak(), reason="this system cannot measure it")
def test_peak_is_that_since_the_reset() -> None:
    with mmap.mmap(-1, 200_000_000) as large:
        large.write(b"1" * len(large))
        before = processes.peak_mb()
    processes.reset_peak()
    assert processes.peak_mb() < before - 150
