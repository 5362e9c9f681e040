"""Tests of the texts of errors."""

import pytest

from distill.core.errors import first_line


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("one\ntwo"), "one"), (ValueError("\n one\ntwo"), "one"), (ValueError(), "ValueError")],
)
def test_the_first_line_of_an_error_is_never_empty(error: Exception, line: str) -> None:
    assert first_line(error) == line
