"""Writing files that other runs may read: whole or not at all."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distill.errors import UserError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CHECKSUMS = "SHA256SUMS"  # In the format of the command `sha256sum --check`.


def is_full_disk(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, says that there is no room to write; libraries wrap it in their own."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return True
        if any(os.strerror(number) in str(error) for number in NO_ROOM):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A file to write beside `path`, which takes its place at the end; a killed process leaves what was there."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole file, or none."""
    with replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write JSON that a person can read too; NaN is no JSON and raises ValueError."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def sha256(path: Path) -> str:
    """Digest of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def whole_directory(target: Path, *, keep_intact: bool = False) -> Iterator[Path]:
    """A directory to fill, which becomes `target` at the end, with checksums; what was there before is replaced.

    When several processes fill the same target, each does so whole and the last one stays; with `keep_intact` the
    first one, so that what another process has begun to read stays where it is.
    """
    make_directory(target.parent)
    # Not mkdtemp: a cache that several people share must not be readable by its maker alone.
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    draft.mkdir()
    try:
        yield draft
        _seal(draft)
        if not (keep_intact and is_intact(target)):
            _move(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def rewrite(directory: Path, name: str, text: str) -> None:
    """Give one file of a whole directory another content."""
    write_text(directory / name, text)
    _seal(directory)


def _seal(directory: Path) -> None:
    """Write the checksums of all files."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    names = sorted(path.relative_to(directory).as_posix() for path in files)
    write_text(directory / CHECKSUMS, "".join(f"{sha256(directory / name)}  {name}\n" for name in names))


def _move(draft: Path, target: Path) -> None:
    """Put `draft` in the place of `target`, whoever else is doing the same."""
    while True:
        try:
            os.replace(draft, target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        old = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        with contextlib.suppress(FileNotFoundError):  # Another process has taken it away already.
            os.replace(target, old)
        shutil.rmtree(old, ignore_errors=True)


def is_intact(directory: Path) -> bool:
    """Whether `whole_directory` made this directory, and every file still is what it was then."""
    try:
        lines = (directory / CHECKSUMS).read_text(encoding="utf-8").splitlines()
        return all(sha256(directory / name) == digest for digest, _, name in (line.partition("  ") for line in lines))
    except (OSError, UnicodeDecodeError):
        return False


def make_directory(path: Path) -> None:
    """Create the directory with its parents; UserError where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be created ({error.strerror}): give another output_dir or cache_dir") from error
    if not os.access(path, os.W_OK):
        raise UserError(f"{path} cannot be written: give another output_dir or cache_dir")
