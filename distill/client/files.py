"""Files on their way to the service and back: a directory as a zip, and downloads that are whole or not there."""

import contextlib
import hashlib
import http.client
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from distill.client.connection import UnreachableServiceError
from distill.errors import UserError, first_line

CHUNK = 1 << 20  # Bytes.


@contextmanager
def open_data(path: Path) -> Iterator[tuple[IO[bytes], str]]:
    """Opens a file, or a directory as a temporary zip, and yields it with its format, the ending of its name.

    Raises:
        UserError: if it cannot be read.
    """
    with contextlib.ExitStack() as stack:
        with _detecting_unreadable(path):
            file: IO[bytes]
            if path.is_dir():
                file = stack.enter_context(tempfile.TemporaryFile())
                _pack(path, file)
            else:
                file = stack.enter_context(path.open("rb"))
        yield file, "zip" if path.is_dir() else path.suffix[1:].lower()


@contextmanager
def _detecting_unreadable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _list_files(directory: Path) -> list[tuple[str, Path]]:
    """Returns the files of a directory with their names in it, hidden ones left out."""
    named = [(path.relative_to(directory), path) for path in sorted(directory.rglob("*")) if path.is_file()]
    return [(name.as_posix(), path) for name, path in named if not any(part.startswith(".") for part in name.parts)]


def _pack(directory: Path, file: IO[bytes]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, path in _list_files(directory):
            packed.write(path, name)


def hash_data(path: Path) -> str:
    """Returns the SHA-256 of a file, or of the names and contents of a directory's files.

    Raises:
        UserError: if it cannot be read.
    """
    digest = hashlib.sha256()
    for name, file in _list_files(path) if path.is_dir() else [("", path)]:
        with _detecting_unreadable(path), file.open("rb") as content:
            digest.update(f"{name}\0{hashlib.file_digest(content, 'sha256').hexdigest()}\0".encode())
    return digest.hexdigest()


def download(answer: http.client.HTTPResponse, target: Path, *, unpack: bool) -> None:
    """Writes the body of an answer to a path that does not exist, unpacked into a directory if it is a zip.

    Raises:
        UserError: if the path cannot be written, or the service sent no zip.
        UnreachableServiceError: if the answer was cut off.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as draft:
            file, directory = Path(draft, "file"), Path(draft, "directory")
            _copy(answer, file)
            if unpack:
                with zipfile.ZipFile(file) as packed:
                    packed.extractall(directory)
            (directory if unpack else file).rename(target)
    except zipfile.BadZipFile as error:
        raise UserError(f"the service did not send a zip: {first_line(error)}") from error
    except (ConnectionError, TimeoutError):  # Of the connection, which names them.
        raise
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}") from error


def _copy(answer: http.client.HTTPResponse, file: Path) -> None:
    expected = answer.headers.get("Content-Length")
    with file.open("wb") as output:
        while content := answer.read(CHUNK):
            output.write(content)
        if expected is not None and output.tell() != int(expected):
            raise UnreachableServiceError(f"the service sent {output.tell():,} of {int(expected):,} bytes: try again")
