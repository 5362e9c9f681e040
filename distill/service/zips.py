"""Unpacks the zip of a stranger: nothing outside the directory, no link, and no more than was allowed."""

import errno
import gzip
import os
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from distill.errors import UserError, first_line
from distill.service.names import show

PART = 1_048_576  # Bytes that are unpacked at once.
SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt", ".conll", ".conllu", ".bio", ".iob")
_LINKS_AND_DEVICES = (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK)
_ENCRYPTED = 0x1
_GZIP = b"\x1f\x8b"
_LONGEST_PART = 200  # Bytes of a file's name, which file systems limit to 255.


@dataclass(frozen=True)
class ZipLimits:
    """The limits of a zip.

    Args:
        entries: files and directories.
        bytes: of all unpacked files.
        ratio: of the unpacked to the packed bytes of a file; text has 3 to 20.
        depth: directories within each other.
    """

    entries: int = 10_000
    bytes: int = 2**30
    ratio: int = 200
    depth: int = 8


def unpack(path: Path, directory: Path, limits: ZipLimits) -> list[str]:
    """Unpacks the files of data into an empty directory; returns the names of all others, which are left out.

    Raises:
        UserError: for a file that is no zip or a damaged one, and for one that exceeds a limit or has an entry that
            would be written elsewhere, is no file, or needs a password.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _unpack(archive, directory, limits)
    except UserError:
        raise
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        NotImplementedError,
        RuntimeError,
        EOFError,
        ValueError,
    ) as error:
        raise UserError(f"the zip cannot be read: {first_line(error)}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # Of a place before the beginning, where a damaged zip leads.
            raise
        raise UserError("the zip cannot be read: it is damaged") from error


def unpack_gzip(path: Path, limit: int) -> None:
    """Replaces a file that is compressed with gzip by its content, and leaves any other as it is.

    Raises:
        UserError: for a damaged one, and for one that has more bytes, or many times more, when it is unpacked.
    """
    with open(path, "rb") as file:
        if file.read(2) != _GZIP:
            return
    target, written = path.with_name(f".{path.name}"), 0
    most = max(PART, path.stat().st_size * ZipLimits.ratio)
    try:
        with gzip.open(path) as packed, open(target, "xb") as file:
            while part := packed.read(PART):
                written += len(part)
                if written > limit:
                    raise UserError(f"{path.name} has more than {limit:,} bytes when it is unpacked, the limit")
                if written > most:
                    raise UserError(f"{path.name} is over {ZipLimits.ratio} times as large when it is unpacked")
                file.write(part)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path.name} cannot be unpacked: {first_line(error)}") from error
    os.replace(target, path)


def _unpack(archive: zipfile.ZipFile, directory: Path, limits: ZipLimits) -> list[str]:
    entries = archive.infolist()
    if len(entries) > limits.entries:
        raise UserError(f"the zip has {len(entries):,} entries, the limit is {limits.entries:,}")
    left_out, written, seen = list[str](), 0, set[str]()
    for entry in entries:
        _check_entry(entry, limits)
        if entry.is_dir():
            continue
        plain = unicodedata.normalize("NFC", entry.filename).casefold()
        if plain in seen:
            raise UserError(f"the zip has {show(entry.filename)} twice, or names that differ in case alone")
        seen.add(plain)
        if not _is_data(entry.filename):
            left_out.append(entry.filename)
            continue
        written += _write(archive, entry, directory, limits, room=limits.bytes - written)
    if len(left_out) == len(seen):
        raise UserError(f"the zip has no file of data: expected {', '.join(SUFFIXES)}")
    return left_out


def _check_entry(entry: zipfile.ZipInfo, limits: ZipLimits) -> None:
    """Raises UserError for an entry that would be written elsewhere, is no file, or needs a password."""
    name = entry.filename
    parts = PurePosixPath(name).parts
    is_plain = name.isprintable() and not {"\\", ":"} & set(name) and not name.startswith("/")
    is_short = all(len(part.encode(errors="replace")) <= _LONGEST_PART for part in parts)
    # The name in the file may be cut off at a NUL, so that two programs see two names.
    if not parts or ".." in parts or not is_plain or not is_short or entry.orig_filename != name:
        raise UserError(f"the zip has an entry with the name {show(entry.orig_filename)}, which is no plain one")
    if len(parts) > limits.depth:
        raise UserError(f"the zip has {show(name)} in {len(parts) - 1} directories, the limit is {limits.depth - 1}")
    if stat.S_IFMT(entry.external_attr >> 16) in _LINKS_AND_DEVICES:
        raise UserError(f"the zip has {show(name)}, which is a link or a device and no file")
    if entry.flag_bits & _ENCRYPTED:
        raise UserError(f"the zip has {show(name)}, which needs a password: pack it without one")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(f"the zip has {show(name)} in a method of compression that is not deflate: pack it with that")


def _is_data(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return name.lower().endswith(SUFFIXES) and not any(part.startswith((".", "__MACOSX")) for part in parts)


def _write(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, directory: Path, limits: ZipLimits, *, room: int) -> int:
    """Writes a file; returns its bytes, which its entry may have told wrongly."""
    target = directory.joinpath(*PurePosixPath(entry.filename).parts)
    written, most = 0, max(PART, entry.compress_size * limits.ratio)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"the zip has {show(entry.filename)} as a file and as a directory") from error
    with open(descriptor, "wb") as file:
        for part in _read_parts(archive, entry):
            written += len(part)
            if written > room:
                raise UserError(f"the zip has more than {limits.bytes:,} bytes when it is unpacked, the limit")
            if written > most:
                raise UserError(
                    f"the zip has {show(entry.filename)}, which is over {limits.ratio} times as large unpacked"
                )
            file.write(part)
    return written


def _read_parts(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    with archive.open(entry) as file:
        while part := file.read(PART):
            yield part
