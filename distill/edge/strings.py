"""Strings: whether they are Unicode, and their forms on one line."""

from distill.errors import UserError

# The characters at which `str.splitlines` splits, and the tab, with their escapes.
ESCAPES = {ord(character): ascii(character)[1:-1] for character in "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"}
SHOWN = 80  # Characters of a record in a message.


def escape(text: str, *, tab: bool = True) -> str:
    """Returns a text in which line breaks, and by default tabs, are escaped as in Python."""
    return text.translate(ESCAPES if tab else {code: words for code, words in ESCAPES.items() if code != ord("\t")})


def shorten(record: object) -> str:
    """Returns a record as one line of a message."""
    text = ascii(record) if find_surrogate(repr(record)) is not None else repr(record)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def find_surrogate(text: str) -> int | None:
    """Returns the position of the first half of a character, which UTF-8 cannot encode; None if there is none."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None


def check_text(text: str) -> str:
    """Returns the text; raises UserError if it is not Unicode."""
    position = find_surrogate(text)
    if position is not None:
        raise UserError(f"got {shorten(text)}, expected Unicode: character {position + 1} is a lone surrogate")
    return text
