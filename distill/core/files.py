"""Files that are written whole, checksums of their content, and locks that end with their process.

Locks of files that end with the process that holds them, however it ends. They are those of `flock`, which most network
file systems show to other machines. Without `flock`, as on Windows, nothing is locked.

Atomic writes of files and directories, with checksums of their content. What is being written is in a temporary
directory beside its target, which its process locks. The next write of the target removes those whose processes were
killed, and `sweep` all of them below a directory.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distill.core.errors import UserError

if sys.platform != "win32":
    import fcntl


def acquire_lock(path: Path, *, shared: bool = False, wait: bool = False) -> int | None:
    """Locks a file, which is created if it is missing; returns its descriptor, which `release` takes.

    Returns None where another descriptor has a lock that excludes this one, and where nothing can be locked. A shared
    lock needs no right to write the file.

    Args:
        shared: whether others may hold shared locks at the same time.
        wait: whether to wait until others have released theirs.
    """
    if sys.platform == "win32":
        return None
    descriptor = _open(path)
    if descriptor is None:
        return None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def release_lock(descriptor: int | None) -> None:
    """Ends a lock; None is none."""
    if descriptor is not None:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Returns whether a file may be locked: also where this cannot be found out."""
    if not path.is_file():
        return False
    descriptor = acquire_lock(path)
    release_lock(descriptor)
    return descriptor is None


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        try:
            return os.open(path, os.O_RDONLY)
        except OSError:
            return None


DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
JsonObject = Mapping[str, Any]  # The content of run.json or bundle.json, or an object inside of it.
CHECKSUMS = "SHA256SUMS"  # In the format of the command `sha256sum --check`.
TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{32}")  # The names of temporary directories.
_OWNER = ".owner"  # In a temporary directory: it is locked by its process, and has the name of the machine.
_FULL_BYTES = 1_000_000  # Free space below which an error while writing is taken for one of a full disk.


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
    """Yields the path of a temporary file, which replaces `path` on success.

    If the process fails or is killed, `path` is unchanged.
    """
    with _draft(path) as temporary:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)


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


def free_bytes(directory: Path) -> int:
    """Returns the free space of the disk that has or will have this directory."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def show_size(size: float) -> str:
    """Returns a number of bytes in words."""
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


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
    with _draft(target) as draft:
        draft.mkdir()
        yield draft
        write_checksums(draft)
        _replace_directory(draft, target, reuse_intact=reuse_intact)


@contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """Yields a path for the new content of `target`, in a temporary directory that is removed at the end.

    The directory also takes the temporary files of libraries, such as those of safetensors.
    """
    _remove_abandoned(target)
    # mkdtemp would make a shared cache readable by its creator alone.
    directory = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    directory.mkdir()
    lock = acquire_lock(directory / _OWNER, wait=True)  # It is written once it is locked, as `is_abandoned` expects.
    try:
        with detecting_full_disk(directory):
            (directory / _OWNER).write_text(socket.gethostname(), encoding="utf-8")
            yield directory / f".{target.name}"  # A search for the name of the target must not find it.
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        release_lock(lock)


@contextmanager
def detecting_full_disk(directory: Path) -> Iterator[None]:
    """Raises any error as one of a full disk, if the disk of `directory` or of temporary files is full.

    Libraries in C++ write what fits, and fail later by reading it.
    """
    try:
        yield
    except Exception as error:
        full = None if is_full_disk(error) else _find_full_disk(directory)
        if full is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), full) from error
        raise


def _find_full_disk(directory: Path) -> str | None:
    with contextlib.suppress(OSError):  # One may be missing.
        for place in (str(directory), tempfile.gettempdir()):
            if shutil.disk_usage(place).free < _FULL_BYTES:
                return place
    return None


def is_abandoned(directory: Path) -> bool | None:
    """Returns whether the process of a temporary directory has ended.

    None if that is unknown: for one of another machine, whose locks may be hidden, or one that is being removed.
    """
    owner = directory / _OWNER
    try:
        machine = owner.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    if is_locked(owner):
        return False
    return True if machine == socket.gethostname() else None


def _remove_abandoned(target: Path) -> None:
    """Removes what killed processes of this machine left of earlier attempts to write `target`."""
    for path in target.parent.iterdir():
        match = TEMPORARY.fullmatch(path.name)
        if match and match["name"] == target.name and is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True)


def sweep(root: Path) -> None:
    """Removes the temporary directories of ended processes at any depth below `root`.

    No other process may begin to write there meanwhile, on any machine.
    """
    for folder, names, _ in os.walk(root):
        for name in [name for name in names if TEMPORARY.fullmatch(name)]:
            names.remove(name)
            if is_abandoned(Path(folder, name)) is not False:
                shutil.rmtree(Path(folder, name), ignore_errors=True)


def replace_file(directory: Path, name: str, text: str) -> None:
    """Replaces one file of an atomic directory and updates the checksums."""
    write_text(directory / name, text)
    write_checksums(directory)


def write_checksums(directory: Path) -> None:
    """Writes the checksums of all files in the directory."""
    lines = [f"{hash_file(directory / name)}  {name}\n" for name in _list_files(directory)]
    write_text(directory / CHECKSUMS, "".join(lines))


def _list_files(directory: Path) -> list[str]:
    """Returns the names of all files in the directory and below, except those of checksums and temporary ones."""
    files = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    return sorted(file.as_posix() for file in files if not any(map(TEMPORARY.fullmatch, file.parts)))


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
