"""Quotes around the texts of a command line that Hydra's grammar does not read, such as `task.text=[Größe,it's]`.

The grammar takes letters of ASCII and a few signs. A text with others is unambiguous as long as no comma stands inside
of brackets: it ends at the next comma, or at the end of its list.

    task.text=[Größe,naïve (old)]   ->   task.text=['Größe','naïve (old)']
    task.label=price=€,#5           ->   task.label='price=€','#5', which are two values of a sweep
"""

import re
from collections.abc import Iterator, Sequence

from distill.errors import UserError

_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_ESCAPE = re.compile(r"\\([\\()\[\]{}:=, \t])")  # As Hydra reads a text without quotes.
_QUOTED = re.compile(r"""(["'])(?:(?:\\\\)*|.*?[^\\](?:\\\\)*)\1""", re.DOTALL)
_CALL = re.compile(r"(\w+)\s*\(.*\)", re.DOTALL)


class _Ambiguous(Exception):
    """A value that can be read in two ways, or in none."""


def quote_overrides(arguments: Sequence[str], valued: Sequence[str]) -> list[str]:
    """Returns the arguments of a command, in which Hydra reads every text.

    Args:
        valued: options of Hydra that are followed by a value.

    Raises:
        UserError: for a value that can be read in several ways.
    """
    return [
        argument if argument.startswith("-") or before in valued else _quote(argument)
        for before, argument in zip(["", *arguments], arguments, strict=False)
    ]


def _quote(argument: str) -> str:
    key, equals, value = argument.partition("=")
    if not equals or _is_read(argument):
        return argument
    if not _is_read(f"{key}="):
        if key.isascii():
            return argument  # Hydra says what is wrong with it.
        raise UserError(f"the name {key} has letters outside ASCII, which a name of an option cannot have: rename it")
    try:
        elements, end = _read_elements(value, 0, "")
        quoted = f"{key}={','.join(elements)}"
        if end == len(value) and _is_read(quoted):
            return quoted
    except _Ambiguous:
        pass
    raise UserError(
        f"{argument} can be read in several ways: put each text in double quotes and the whole option in single ones, "
        f'as in \'{key}="a text, (old)"\' or \'{key}=["one, two","three"]\''
    )


def _is_read(argument: str) -> bool:
    """Returns whether Hydra reads an override."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        OverridesParser.create().parse_override(argument)
    except HydraException:
        return False
    return True


def _read_elements(text: str, start: int, closing: str) -> tuple[list[str], int]:
    """Returns the elements from `start` on with quotes where they need them, and the position after `closing`."""
    elements: list[str] = []
    while True:
        element, start = _read_element(text, _skip_spaces(text, start), closing)
        elements.append(element)
        start = _skip_spaces(text, start)
        if start == len(text) or text[start] == closing:
            if (start == len(text)) != (closing == ""):
                raise _Ambiguous
            return elements, start + len(closing)
        if text[start] != ",":
            raise _Ambiguous
        start += 1


def _read_element(text: str, start: int, closing: str) -> tuple[str, int]:
    """Returns a list, a mapping, a text in quotes, or any other text, and the position after it."""
    if text.startswith("[", start):
        if text.startswith("]", _skip_spaces(text, start + 1)):
            return "[]", _skip_spaces(text, start + 1) + 1
        elements, end = _read_elements(text, start + 1, "]")
        return f"[{','.join(elements)}]", end
    if text.startswith("{", start):
        return _read_mapping(text, start)
    quoted = _QUOTED.match(text, start)
    if quoted:
        return quoted.group(), quoted.end()
    end = _find_end(text, start, closing)
    return _quote_text(text[start:end].strip()), end


def _read_mapping(text: str, start: int) -> tuple[str, int]:
    """Returns a mapping, whose keys have letters of ASCII alone, and the position after it."""
    items: list[str] = []
    while True:
        key = re.compile(r"[{,]\s*([\w./$%*@?|+-]+)\s*:", re.ASCII).match(text, start)
        if key is None:
            raise _Ambiguous
        value, start = _read_element(text, _skip_spaces(text, key.end()), "}")
        items.append(f"{key.group(1)}:{value}")
        start = _skip_spaces(text, start)
        if text.startswith("}", start):
            return f"{{{','.join(items)}}}", start + 1


def _find_end(text: str, start: int, closing: str) -> int:
    """Returns the end of a text without quotes: the next comma, or the end of its list."""
    opened: list[str] = []
    for position, sign in _significant(text, start):
        if sign == closing and closing not in opened:
            return position
        if sign == ",":
            if opened:
                raise _Ambiguous
            return position
        if sign in _BRACKETS:
            opened.append(_BRACKETS[sign])
        elif opened and sign == opened[-1]:
            opened.pop()
    return len(text)


def _significant(text: str, start: int) -> Iterator[tuple[int, str]]:
    """Yields the characters of a text that may end it, without those that are escaped or in a reference `${...}`."""
    end = start
    for position in range(start, len(text)):
        if position < end:
            continue
        if text[position] == "\\":
            end = position + 2
        elif text.startswith("${", position):
            end = (text.find("}", position) + 1) or len(text)
        else:
            yield position, text[position]


def _quote_text(text: str) -> str:
    """Returns a text without quotes as it is, if Hydra reads it, or in quotes."""
    from hydra.core.override_parser.overrides_parser import create_functions
    from hydra.core.override_parser.types import Quote, QuotedString

    if _is_read(f"name={text}") and text:
        return text
    call = _CALL.fullmatch(text)
    if not text or text[0] in "\"'" or (call and call.group(1) in create_functions().functions):
        raise _Ambiguous
    return QuotedString(_ESCAPE.sub(r"\1", text), Quote.single).with_quotes()


def _skip_spaces(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start
