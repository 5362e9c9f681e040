"""Reads every text of files, whatever their columns, for the pieces of a vocabulary that they hold."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from distill.data.unlabelled import UnlabelledTables
from distill.errors import UserError


def check_texts(paths: Sequence[str], option: str) -> None:
    """Raises UserError for a path that is no file and no directory."""
    for path in paths:
        if not Path(path).expanduser().exists():
            raise UserError(f"{option}={path} does not exist, expected a file or a directory of texts")


def read_texts(paths: Sequence[str], option: str) -> Iterator[str]:
    """Yields every text in any column of the files, and of all files of a directory.

    Args:
        option: names the files on the command line, for messages.

    Raises:
        UserError: for a file that is missing or cannot be read.
    """
    check_texts(paths, option)
    for path in paths:
        named = UnlabelledTables(path, ("text",), wanted=(), label=(), option=option)
        for table in named.read():  # Of each file only the names of the columns, as texts are read by name.
            wanted = replace(named, source=table.source, wanted=table.names)
            for column in (values for found in wanted.read() for values in found.columns.values()):
                yield from (text for value in column for text in _list_texts(value))


def _list_texts(value: object) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str)]
