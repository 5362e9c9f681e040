"""Storage that runs and machines share: directories at URLs, the Hugging Face Hub, and entries of the cache.

Listings of directories at URLs that are right or end with an error, so that an error is never taken for absence.
`fsspec` takes any error for absence in `exists`, and leaves directories whose listing fails out of `find` and `walk`.

Directories that are given as URLs, and their copies on this machine. `cache_dir` and `output_dir` may be URLs of any
file system that fsspec knows, such as `s3://bucket/runs`. All of distill works on paths: a URL has a copy below
`root()`, in a directory that spells it, so that each path there says by itself what it is a copy of. `fetch` brings a
directory from its URL and `send` takes it there. They do nothing for other paths.

A file is replaced by renaming, here and there, so that nobody reads half of one. Hidden files are not copied. A file
counts as removed only if a listing that succeeded lacks it.

Entries of the cache directory, each of which is written once, whole, and read by all later runs. If the cache is at a
URL, an entry that is missing here is fetched, and a new one is sent. A run holds a shared lock of each entry that it
reads, so that `job=cache` does not remove it. A complete cache may be read-only.
"""

import contextlib
import datetime
import fnmatch
import hashlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from distill.core import files
from distill.core.errors import UnreachableError, UserError, describe_refusal, first_line
from distill.core.files import (
    CHECKSUMS,
    TEMPORARY,
    atomic_directory,
    atomic_file,
    is_intact,
    make_directory,
    write_json,
)

# What file systems call the property of a file that changes with its content, in the order in which it is taken.
_STAMPS = (
    "ETag", "etag", "md5Hash", "generation", "mtime", "LastModified", "last_modified", "updated", "modificationTime",
    "modify", "created",
)  # fmt: skip


@dataclass(frozen=True)
class Listing:
    """The content of a directory at a URL. Names are relative to it.

    Attributes:
        files: the version of each file that is not hidden.
        empty: directories that seem to have no files. File systems such as FTP list nothing for some errors, so that
            files of these are not known to be removed.
        temporary: files whose upload was not finished.
    """

    files: dict[str, list[Any]] = field(default_factory=dict)
    empty: set[str] = field(default_factory=set)
    temporary: set[str] = field(default_factory=set)

    def add(self, name: str, info: Mapping[str, Any]) -> None:
        """Adds a file."""
        if not is_hidden(name):
            self.files[name] = read_version(info)
        elif TEMPORARY.fullmatch(name.rpartition("/")[2]):
            self.temporary.add(name)

    def below(self, folder: str) -> "Listing":
        """Returns the listing of one of its directories."""
        if folder == ".":
            return self
        start = f"{folder}/"
        files = {name.removeprefix(start): version for name, version in self.files.items() if name.startswith(start)}
        return Listing(files, {name.removeprefix(start) for name in self.empty if name.startswith(start)})

    def lacks(self, name: str) -> bool:
        """Returns whether a file certainly is not there."""
        folders = {parent.as_posix() for parent in Path(name).parents}
        return bool(self.files) and name not in self.files and not folders & self.empty


def list_files(fs: Any, there: str, *, deep: bool = True) -> Listing:
    """Returns the files at a URL; none for one that is not there.

    Args:
        deep: whether files of directories below are listed, too.
    """
    listing = Listing()
    try:
        if deep and _lists_at_once(fs):
            prefix = there.rstrip("/") + "/"
            for path, info in fs.find(there, detail=True).items():
                listing.add(path.removeprefix(prefix), info)
            return listing
        children = fs.ls(there, detail=True)
    except FileNotFoundError:
        return listing
    _add_children(fs, there, ".", children, listing, deep=deep)
    return listing


def _lists_at_once(fs: Any) -> bool:
    """Returns whether a file system, as an object store, lists all files below a directory without its directories."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    if isinstance(fs, AsyncFileSystem):
        return type(fs)._find is not AsyncFileSystem._find
    return type(fs).find is not AbstractFileSystem.find


def _add_children(
    fs: Any, path: str, folder: str, children: list[dict[str, Any]], listing: Listing, *, deep: bool
) -> None:
    """Adds the files of one directory and, if `deep`, of those below; raises an error of any of them."""
    # Names end with a slash in some file systems, and a directory may be its own first entry.
    named = {info["name"].rstrip("/"): info for info in children}
    named.pop(path.rstrip("/"), None)
    if not named:
        listing.empty.add(folder)
    for there, info in named.items():
        name = Path(folder, Path(there).name).as_posix()
        if info["type"] != "directory":
            listing.add(name, info)
        elif deep and not is_hidden(name):
            _add_children(fs, there, name, fs.ls(there, detail=True), listing, deep=True)


def read_version(info: Mapping[str, Any]) -> list[Any]:
    """Returns what changes when a file at a URL changes: its size, and the first property of `_STAMPS`."""
    stamp = next((info[name] for name in _STAMPS if info.get(name) is not None), None)
    # A file system may list a time in another form than the one in which it tells that of one file.
    return [info["size"], str(stamp.timestamp() if isinstance(stamp, datetime.datetime) else stamp)]


def is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


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


def list_names(directory: Path) -> set[str]:
    """Returns the names of the files right in a directory, at its URL if it is a copy.

    Raises:
        UserError: if the URL cannot be read.
    """
    if not is_copy(directory):
        return {path.name for path in directory.iterdir() if path.is_file()}
    with _connected(directory, "read") as (fs, there):
        return set(list_files(fs, there, deep=False).files)


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
    from distill.core.console import print_notice

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


TIMEOUT_S = 3.0


def check_hub_file(name: str, file: str, *, kind: str = "model", revision: str | None = None) -> None:
    """Checks that the Hub has `file` in the `model` or `dataset` called `name`.

    Without this check, a download without a network would be retried for up to 80 seconds.

    Raises:
        UserError: if the repository, revision or file does not exist, or this user has no access to it.
        UnreachableError: if the Hub does not respond within seconds, or HF_HUB_OFFLINE is set.
    """
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(name, file, repo_type=kind, revision=revision), timeout=TIMEOUT_S)
    except errors.HFValidationError as error:
        raise UserError(f"{name!r} is not a valid name on the Hub, expected owner/name") from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        at_revision = f" at revision {revision}" if revision else ""
        raise UserError(
            f"the Hub has no {kind} {name}{at_revision} with a file {file}, or you have no access to it: check the "
            "name, or set HF_TOKEN"
        ) from error
    except (OSError, errors.HTTPError) as error:  # The base class of the errors of the client's HTTP library.
        raise UnreachableError(f"the Hub does not respond: {error}") from error


@contextmanager
def _offline() -> Iterator[None]:
    """Makes `datasets` read its cache only. Later calls ask the Hub again, because one timeout says little."""
    import datasets

    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def load_hub_dataset(hub_id: str, source: str, *, advice: str, streaming: bool = False, **options: object) -> Any:
    """Loads a data set `owner/name[@revision][:configuration]`, from the Hugging Face cache if the Hub is offline.

    The Hub keeps the data sets that a script makes as Parquet at the revision `refs/convert/parquet`.

    Args:
        source: name of the data set in the message of a UserError.
        advice: alternatives for a data set that is not available; follows "set task.data_dir=DIR" in the message.
        streaming: return an IterableDataset, also from the cache; requires the option `split`.

    Raises:
        UserError: if the data set cannot be loaded.
        UnreachableError: if it is not in the cache and cannot be downloaded.
    """
    import datasets

    repository, _, configuration = hub_id.partition(":")
    name, _, revision = repository.partition("@")
    if revision:
        options["revision"] = revision
    reachable = True
    try:
        # Every data set has this file.
        check_hub_file(name, ".gitattributes", kind="dataset", revision=revision or None)
    except UnreachableError:
        reachable = False
    if streaming and reachable:
        options["streaming"] = True
    try:
        with contextlib.nullcontext() if reachable else _offline():
            loaded = datasets.load_dataset(name, configuration or None, **options)
    except (ConnectionError, FileNotFoundError) as error:
        raise UnreachableError(
            f"data set {hub_id} is not in the cache and cannot be downloaded from the Hub: set task.data_dir=DIR "
            f"{advice}"
        ) from error
    except (ValueError, RuntimeError, datasets.exceptions.DatasetGenerationError) as error:
        reason = first_line(error)
        raise UserError(f"{source} cannot be loaded: {reason}") from error
    if streaming and isinstance(loaded, datasets.Dataset):
        return loaded.to_iterable_dataset()
    return loaded


LEASE = ".lease"  # In an entry: the file that its readers lock.
_held: dict[Path, int] = {}  # The descriptors of the locks of this process by entry.


def entry_key(kind: str, version: int, *parts: object) -> str:
    """Returns the SHA-256 of everything that an entry depends on; an entry of another version is never read.

    Args:
        kind: of the entries, whose other versions and kinds have other keys.
        version: of the format of these entries.
        parts: values that JSON can represent.
    """
    return hashlib.sha256(json.dumps(["distill", kind, version, *parts], sort_keys=True).encode()).hexdigest()


def open_cache(directory: Path) -> None:
    """Creates the cache's directory; one that is there may be read-only.

    Raises:
        UserError: if the directory cannot be created.
    """
    if not directory.is_dir():
        make_directory(directory)


def has_entry(directory: Path, *, needed: bool = True) -> bool:
    """Returns whether the cache has this entry and its checksums match; it is then not removed while it is read.

    Args:
        needed: whether the entry would be computed in vain if it cannot be written.

    Raises:
        UserError: if it is missing, needed, and cannot be written.
    """
    if _read(directory):
        return True
    try_fetch(directory)
    if _read(directory):
        return True
    if needed:
        check_writable(directory)
    return False


def has_intact_entry(directory: Path, name: str, *, needed: bool = True) -> bool:
    """Returns `has_entry`, and says of an entry that is damaged that it is made again.

    Args:
        name: of what is cached, in words, such as `the adapted teacher`.
        needed: as in `has_entry`.
    """
    if has_entry(directory, needed=needed):
        return True
    if directory.is_dir():
        from distill.core.console import print_notice  # rich, which a client of the service does not need.

        print_notice(f"{name} {directory} is damaged and made again")
    return False


def check_writable(directory: Path) -> None:
    """Raises UserError if an entry that is missing cannot be written."""
    if not is_writable(directory):
        existing = _find_parent(directory)
        raise UserError(
            f"the cache lacks {directory}, and {existing} cannot be written: make it writable, or set another cache_dir"
        )


def is_writable(directory: Path) -> bool:
    """Returns whether an entry that is missing can be written."""
    return os.access(_find_parent(directory), os.W_OK)


def _find_parent(directory: Path) -> Path:
    """Returns the nearest parent that exists."""
    return next(parent for parent in directory.absolute().parents if parent.exists())


@contextmanager
def new_entry(directory: Path) -> Iterator[Path]:
    """Yields a temporary directory that becomes this entry, unless another process has completed it by then."""
    with atomic_directory(directory, reuse_intact=True) as temporary:
        yield temporary
    lease(directory)
    try_send(directory)


def lease(directory: Path) -> bool:
    """Keeps `job=cache` from removing an entry until `leases` or the process ends; returns whether it is there."""
    held = _held.get(directory)
    if held is not None and _is_lock_of(held, directory):
        return True
    if not directory.is_dir():
        return False
    descriptor = files.acquire_lock(directory / LEASE, shared=True, wait=True)
    if descriptor is None:  # It has none and is read-only, or nothing can be locked.
        return directory.is_dir()
    if not _is_lock_of(descriptor, directory):  # It was removed meanwhile.
        files.release_lock(descriptor)
        return False
    files.release_lock(_held.pop(directory, None))
    _held[directory] = descriptor
    return True


@contextmanager
def leases() -> Iterator[None]:
    """Ends at its end the locks of the entries that were read meanwhile."""
    before = set(_held)
    try:
        yield
    finally:
        for directory in _held.keys() - before:
            files.release_lock(_held.pop(directory))


def _read(directory: Path) -> bool:
    if not lease(directory):
        return False
    if is_intact(directory):
        return True
    files.release_lock(_held.pop(directory, None))
    return False


def _is_lock_of(descriptor: int, directory: Path) -> bool:
    """Returns whether a lock is that of the directory that has this name now."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.stat(directory / LEASE))
    return False
