"""Directories that are given as URLs, and their copies on this machine.

`cache_dir` and `output_dir` may be URLs of any file system that fsspec knows, such as `s3://bucket/runs`. All of
distill works on paths: a URL has a copy below `root()`, in a directory that spells it, so that each path there says by
itself what it is a copy of. `fetch` brings a directory from its URL and `send` takes it there. They do nothing for
other paths.

A file is replaced by renaming, here and there, so that nobody reads half of one. Hidden files are not copied. A file
counts as removed only if a listing that succeeded lacks it.
"""

import contextlib
import fnmatch
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from distill.credentials import describe_refusal
from distill.errors import UserError, first_line
from distill.storage.files import CHECKSUMS, atomic_file, make_directory, write_json
from distill.storage.listing import Listing, is_hidden, list_files, read_version

# In a copy: for each file its size and time here when it was last copied, and its size and stamp there.
STATE = ".copied.json"
LAST = (CHECKSUMS, "run.json")  # They say that other files are complete, so that they are copied after those.
BELOW = ("*/*",)  # The pattern of all files that are not right in a directory.
_URL = re.compile(r"(?P<protocol>[a-z][a-z0-9+.-]+)://(?P<rest>.*)")
_NO_HOST = "-"  # In place of the host, where a URL has none: file:///data.
State = dict[str, Any]


def is_url(place: object) -> bool:
    """Returns whether an option is a URL and no path."""
    return _URL.fullmatch(str(place)) is not None


def root() -> Path:
    """Returns the directory of all copies: `DISTILL_MIRROR`, or `~/.cache/distill/mirror`."""
    return Path(os.environ.get("DISTILL_MIRROR", "~/.cache/distill/mirror")).expanduser().absolute()


def local_path(place: object) -> Path:
    """Returns the directory on this machine of an option that is a path or a URL.

    Raises:
        UserError: for a URL of several file systems, or with a password.
    """
    if refusal := describe_refusal("a directory", str(place)):
        raise UserError(refusal)
    if re.match(r"[a-z0-9+.-]+::", str(place)):
        raise UserError(f"{place} joins several file systems: give the URL of one, such as s3://bucket/runs")
    url = _URL.fullmatch(str(place))
    if url is None:
        return Path(str(place)).expanduser()
    rest = url["rest"] if not url["rest"].startswith("/") else _NO_HOST + url["rest"]
    return root() / url["protocol"] / rest


def address(path: Path) -> str:
    """Returns the URL that a directory is a copy of, and any other path as it is."""
    parts = path.absolute().relative_to(root()).parts if path.absolute().is_relative_to(root()) else ()
    if len(parts) < 2:
        return str(path)
    protocol, *rest = parts
    if rest[:1] == [_NO_HOST]:
        rest[0] = ""
    return f"{protocol}://{'/'.join(rest)}"


def is_copy(path: Path) -> bool:
    """Returns whether a directory is the copy of a URL."""
    return is_url(address(path))


def check(path: Path) -> None:
    """Raises UserError for a copy whose URL cannot be read, or whose bucket is missing: a typo would make one."""
    if is_copy(path):
        with _connected(path, "read") as (fs, there):
            with contextlib.suppress(FileNotFoundError):  # It is created later; any other error is one of the URL.
                fs.info(there)
            bucket = there.partition("/")[0]  # Empty where directories can be anywhere.
            with contextlib.suppress(PermissionError):  # Of keys that are for a part of the bucket.
                if bucket and not fs.exists(bucket):
                    raise FileNotFoundError(f"there is no bucket {bucket}")


def fetch(directory: Path, *, skip: Sequence[str] = ()) -> None:
    """Fetches the files that are missing here or changed at the URL, and removes those that were removed there.

    If a file changed there, changes here that were not sent are given up: the files of a run belong together, and
    another machine has gone on.

    Args:
        skip: patterns of names that are not fetched.

    Raises:
        UserError: if the URL cannot be read, or has none of the files that were copied.
    """
    if is_copy(directory):
        with _connected(directory, "read") as (fs, there):
            _fetch(fs, there, directory, list_files(fs, there), skip)


def fetch_files(directory: Path, pattern: str) -> None:
    """Fetches the files right in a directory whose names match, if they are missing here or changed at the URL.

    Each is on its own: what changed here alone stays.

    Raises:
        UserError: if the URL cannot be read.
    """
    if is_copy(directory):
        with _connected(directory, "read") as (fs, there):
            listed = list_files(fs, there, deep=False).files
            wanted = {name: listed[name] for name in fnmatch.filter(listed, pattern)}
            state, missing = _read_state(directory), wanted.keys() - _list_local(directory).keys()
            _download(fs, there, directory, missing | _changed_there(wanted, state), wanted, state)


def fetch_holders(directory: Path, name: str, *, skip: Sequence[str] = ()) -> None:
    """Fetches each directory below this one that holds a file of this name, as `fetch` does.

    Raises:
        UserError: if the URL cannot be read.
    """
    if not is_copy(directory):
        return
    with _connected(directory, "read") as (fs, there):
        listed = list_files(fs, there)
        holders = {Path(file).parent.as_posix() for file in listed.files if Path(file).name == name}
        for holder in sorted(holders):
            _fetch(fs, f"{there}/{holder}".removesuffix("/."), directory / holder, listed.below(holder), skip)


def send(directory: Path, *, skip: Sequence[str] = ()) -> None:
    """Sends the files that changed here since they were last copied, and removes those that were removed here.

    Args:
        skip: patterns of names that are left alone.

    Raises:
        UserError: if the URL cannot be written; everything is still here.
    """
    if is_copy(directory):
        with _connected(directory, "written") as (fs, there):
            _send(fs, there, directory, skip)


def send_changes(path: Path) -> None:
    """Sends the directory around `path` that was sent before. Without a connection it prints that it was not sent."""
    if is_copy(path):
        for directory in (path, *path.parents):
            if (directory / STATE).is_file():
                _or_notice(send, directory)
                return


def try_fetch(directory: Path) -> None:
    """Fetches a directory that can also be computed. Without a connection it prints that it was not fetched."""
    _or_notice(fetch, directory)


def try_send(directory: Path, *, skip: Sequence[str] = ()) -> None:
    """Sends a directory that is of use here alone, too. Without a connection it prints that it was not sent."""
    _or_notice(partial(send, skip=skip), directory)


@contextmanager
def sent(directory: Path) -> Iterator[None]:
    """Sends a directory at the start and at the end, also after an error.

    Uploads that a killed process did not finish are removed, so that no other machine may work in the directory.

    Raises:
        UserError: if the URL cannot be written at the start, or at the end of what raised no error.
    """
    _remove_unfinished(directory)
    send(directory)
    try:
        yield
    except BaseException:
        try_send(directory)
        raise
    send(directory)


def _remove_unfinished(directory: Path) -> None:
    if is_copy(directory):
        with _connected(directory, "written") as (fs, there):
            for name in list_files(fs, there).temporary:
                fs.rm_file(f"{there}/{name}")


def _or_notice(copy: Callable[[Path], None], directory: Path) -> None:
    from distill.console import print_notice

    try:
        copy(directory)
    except UserError as error:
        print_notice(str(error))


@contextmanager
def _connected(directory: Path, verb: str) -> Iterator[tuple[Any, str]]:
    """Yields what `_connect` returns, and raises any error of the file system as a UserError: each has own classes."""
    try:
        yield _connect(directory)
    except UserError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{address(directory)} cannot be {verb} ({reason}); its copy is {directory}") from error


def _connect(directory: Path) -> tuple[Any, str]:
    """Returns the file system of a copy's URL, and the path of the directory there."""
    import fsspec

    fs, there = fsspec.url_to_fs(address(directory))
    fs.invalidate_cache()  # Other machines change what is listed.
    return fs, there


def _fetch(fs: Any, there: str, directory: Path, listed: Listing, skip: Sequence[str]) -> None:
    wanted = {name: version for name, version in listed.files.items() if not _is_skipped(name, skip)}
    state, here = _read_state(directory), _list_local(directory)
    if state and not listed.files:
        raise UserError(
            f"{address(directory)} has none of the {len(state)} files that were copied: check the URL and its storage; "
            f"if they were removed there, remove their copy {directory}, too"
        )
    changed = _changed_there(wanted, state)
    if changed:
        changed |= {name for name in wanted if name in state and state[name]["here"] != here.get(name)}
    removed = [name for name in state if listed.lacks(name) and state[name]["here"] == here.get(name)]
    for name in removed:
        (directory / name).unlink(missing_ok=True)
        del state[name]
    if removed:
        write_json(directory / STATE, state)
    _download(fs, there, directory, changed | (wanted.keys() - here.keys()), wanted, state)


def _changed_there(listed: Mapping[str, list[Any]], state: State) -> set[str]:
    """Returns the files at a URL whose version is not the one that was copied last."""
    return {name for name, version in listed.items() if name not in state or state[name]["there"] != version}


def _download(
    fs: Any, there: str, directory: Path, names: set[str], listed: Mapping[str, list[Any]], state: State
) -> None:
    """Fetches files, each of which is replaced at once, and writes the state."""
    try:
        for name in _in_order(names):
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(target) as temporary:
                fs.get_file(f"{there}/{name}", str(temporary))
            state[name] = {"here": _stamp(target), "there": listed[name]}
    finally:
        if names:
            write_json(directory / STATE, state)


def _send(fs: Any, there: str, directory: Path, skip: Sequence[str]) -> None:
    make_directory(directory)
    state = _read_state(directory)
    here = {name: stamp for name, stamp in _list_local(directory).items() if not _is_skipped(name, skip)}
    changed = [name for name, stamp in here.items() if name not in state or state[name]["here"] != stamp]
    try:
        for name in _in_order(changed):
            _put(fs, directory / name, f"{there}/{name}")
            state[name] = {"here": here[name], "there": read_version(fs.info(f"{there}/{name}"))}
        for name in [name for name in state if name not in here and not _is_skipped(name, skip)]:
            with contextlib.suppress(FileNotFoundError):
                fs.rm_file(f"{there}/{name}")
            del state[name]
    finally:
        write_json(directory / STATE, state)


def _put(fs: Any, path: Path, target: str) -> None:
    """Uploads a file under another name and renames it."""
    parent, _, name = target.rpartition("/")
    temporary = f"{parent}/.{name}.{uuid.uuid4().hex}"
    fs.makedirs(parent, exist_ok=True)
    try:
        fs.put_file(str(path), temporary)
        fs.mv(temporary, target)
    except BaseException:
        with contextlib.suppress(Exception):
            fs.rm_file(temporary)
        raise


def _list_local(directory: Path) -> dict[str, list[int]]:
    """Returns size and time of each file of a directory, by its name relative to it.

    Raises:
        OSError: for a directory that cannot be read: its files would pass for removed.
    """
    found = {}
    for folder, _, names in os.walk(directory, onerror=_raise_unless_missing):
        for path in (Path(folder, name) for name in names):
            name = path.relative_to(directory).as_posix()
            with contextlib.suppress(FileNotFoundError):  # Another process has removed it.
                if not is_hidden(name) and path.is_file() and not path.is_symlink():
                    found[name] = _stamp(path)
    return found


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _read_state(directory: Path) -> State:
    try:
        state = json.loads((directory / STATE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _in_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (Path(name).name in LAST, Path(name).name == LAST[-1], name))


def _is_skipped(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
