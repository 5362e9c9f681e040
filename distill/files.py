"""Atomic writes of files and directories, with checksums of their content."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distill.errors import UserError

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
JsonObject = Mapping[str, Any]  # The content of run.json or bundle.json, or an object inside of it.
CHECKSUMS = "SHA256SUMS"  # In the format of the command `sha256sum --check`.


def is_full_disk(error: BaseException | None) -> bool:
    """Returns whether an error, or one that caused it, means a full disk. Libraries wrap the original error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
            return True
        if any(os.strerror(number) in str(error) for number in DISK_FULL_ERRNOS):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields a temporary file in the same directory, which replaces `path` on success.

    If the process fails or is killed, `path` is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: JsonObject) -> None:
    """Writes indented JSON atomically.

    Raises:
        ValueError: for NaN and infinite numbers, which JSON cannot represent.
    """
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def hash_file(path: Path) -> str:
    """Returns the SHA-256 of a file's content in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def atomic_directory(target: Path, *, reuse_intact: bool = False) -> Iterator[Path]:
    """Yields a temporary directory, which replaces `target` on success, with a file of checksums.

    Several processes may write the same target at once. By default the last one replaces the directories of the others.

    Args:
        reuse_intact: leave `target` unchanged if another process has completed it, because readers may have opened it.
    """
    make_directory(target.parent)
    # mkdtemp would make a shared cache readable by its creator alone.
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    draft.mkdir()
    try:
        yield draft
        write_checksums(draft)
        _replace_directory(draft, target, reuse_intact=reuse_intact)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def replace_file(directory: Path, name: str, text: str) -> None:
    """Replaces one file of an atomic directory and updates the checksums."""
    write_text(directory / name, text)
    write_checksums(directory)


def write_checksums(directory: Path) -> None:
    """Writes the checksums of all files in the directory."""
    lines = [f"{hash_file(directory / name)}  {name}\n" for name in _list_files(directory)]
    write_text(directory / CHECKSUMS, "".join(lines))


def _list_files(directory: Path) -> list[str]:
    """Returns the names of all files in the directory and below, except that of the checksums."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    return sorted(path.relative_to(directory).as_posix() for path in files)


def _replace_directory(draft: Path, target: Path, *, reuse_intact: bool) -> None:
    """Renames `draft` to `target`. Other processes may do the same at the same time."""
    while True:
        try:
            os.replace(draft, target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if reuse_intact and is_intact(target):
            return
        old = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        with contextlib.suppress(FileNotFoundError):  # Another process has already renamed it.
            os.replace(target, old)
        shutil.rmtree(old, ignore_errors=True)


def read_checksums(directory: Path) -> dict[str, str] | None:
    """Returns the SHA-256 of each file that `atomic_directory` wrote, None for another directory.

    Names that are not UTF-8 are replaced, so that they match no file.
    """
    path = directory / CHECKSUMS
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines if line)}


def is_intact(directory: Path) -> bool:
    """Returns whether `atomic_directory` wrote this directory and all checksums match.

    Files that are not listed count as damage because the list itself may be cut off. Hidden ones may be the system's.
    """
    try:
        checksums = read_checksums(directory)
        if not checksums or any(
            name not in checksums and not Path(name).name.startswith(".") for name in _list_files(directory)
        ):
            return False
        return all(hash_file(directory / name) == digest for name, digest in checksums.items())
    except (OSError, ValueError):  # A damaged name may have a NUL.
        return False


def make_directory(path: Path) -> None:
    """Creates a writable directory with its parents.

    Raises:
        UserError: if the directory cannot be created or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be created ({error.strerror}): set another output_dir or cache_dir") from error
    if not os.access(path, os.W_OK):
        raise UserError(f"{path} cannot be written: set another output_dir or cache_dir")
