"""Names of accounts, data sets and teachers, each of which is a directory of that name or less."""

import re
import reprlib

from distill.errors import UserError

LONGEST = 100
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST - 1}}}", re.ASCII)


def is_name(text: object) -> bool:
    """Returns whether a text is a name, which is never a path, a hidden file or an option of a command."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def check_name(text: object, noun: str) -> str:
    """Returns the text; raises UserError if it is no name.

    Args:
        noun: of the thing with that name, such as `data set`.
    """
    if isinstance(text, str) and is_name(text):
        return text
    raise UserError(
        f"got the {noun} {show(text)}, expected a name of 1 to {LONGEST} letters from a to z, digits, dots, hyphens "
        "and underscores, the first one a letter or a digit"
    )


def show(value: object) -> str:
    """Returns a value as a short part of one line, in which all but ASCII is escaped."""
    return reprlib.repr(value).encode("ascii", "backslashreplace").decode()
