"""What a test printed, without its line breaks."""

from collections.abc import Callable

import pytest

Printed = Callable[[], str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """Returns a function that returns what was printed since its last call."""
    return lambda: " ".join(capsys.readouterr().out.split())
