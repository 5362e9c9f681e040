"""Listings of directories at URLs that are right or end with an error, so that an error is never taken for absence.

`fsspec` takes any error for absence in `exists`, and leaves directories whose listing fails out of `find` and `walk`.
"""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distill.storage.files import TEMPORARY

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
