"""Unpacks and looks through an upload in a process with limits.

`python -m distill.serve.jobs.uploads FILE FORMAT LIMIT` unpacks a zip, reads the columns, the first rows, the labels,
the lengths and the problems, and prints them as JSON. A file of a stranger that takes all memory, or crashes a library,
ends this process and not the service.
"""

import errno
import gzip
import json
import os
import resource
import stat
import struct
import sys
import unicodedata
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from distill.core.errors import UserError, first_line
from distill.core.files import is_full_disk
from distill.data.problems import Problem
from distill.data.sources import find_files
from distill.rows.columns import SUFFIXES
from distill.rows.formats import reading_errors
from distill.serve.jobs import previews
from distill.serve.jobs.allowed_options import show_escaped

PART = 1_048_576  # Bytes that are unpacked at once.
DATA_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt", ".conll", ".conllu", ".bio", ".iob")
_LINKS_AND_DEVICES = (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK)
# What the library raises for a damaged zip, or one that it cannot read.
_DAMAGES = (zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError, EOFError, ValueError)
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
    except _DAMAGES as error:
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
    target = path.with_name(f".{path.name}")
    too_large = f"{path.name} has more than {limit:,} bytes when it is unpacked, the limit"
    too_dense = f"{path.name} is over {ZipLimits.ratio} times as large when it is unpacked"
    try:
        with gzip.open(path) as packed, open(target, "xb") as file:
            _copy(packed, file, (limit, too_large), (path.stat().st_size * ZipLimits.ratio, too_dense))
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
            raise UserError(f"the zip has {show_escaped(entry.filename)} twice, or names that differ in case alone")
        seen.add(plain)
        if not _is_data(entry.filename):
            left_out.append(entry.filename)
            continue
        written += _write(archive, entry, directory, limits, room=limits.bytes - written)
    if len(left_out) == len(seen):
        raise UserError(f"the zip has no file of data: expected {', '.join(DATA_SUFFIXES)}")
    return left_out


def _check_entry(entry: zipfile.ZipInfo, limits: ZipLimits) -> None:
    """Raises UserError for an entry that would be written elsewhere, is no file, or needs a password."""
    name = entry.filename
    parts = PurePosixPath(name).parts
    is_plain = name.isprintable() and not {"\\", ":"} & set(name) and not name.startswith("/")
    is_short = all(len(part.encode(errors="replace")) <= _LONGEST_PART for part in parts)
    # The name in the file may be cut off at a NUL, so that two programs see two names.
    if not parts or ".." in parts or not is_plain or not is_short or entry.orig_filename != name:
        raise UserError(
            f"the zip has an entry with the name {show_escaped(entry.orig_filename)}, which is no plain one"
        )
    if len(parts) > limits.depth:
        raise UserError(
            f"the zip has {show_escaped(name)} in {len(parts) - 1} directories, the limit is {limits.depth - 1}"
        )
    if stat.S_IFMT(entry.external_attr >> 16) in _LINKS_AND_DEVICES:
        raise UserError(f"the zip has {show_escaped(name)}, which is a link or a device and no file")
    if entry.flag_bits & _ENCRYPTED:
        raise UserError(f"the zip has {show_escaped(name)}, which needs a password: pack it without one")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(
            f"the zip has {show_escaped(name)} in a method of compression that is not deflate: pack it with that"
        )


def _is_data(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return name.lower().endswith(DATA_SUFFIXES) and not any(part.startswith((".", "__MACOSX")) for part in parts)


def _write(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, directory: Path, limits: ZipLimits, *, room: int) -> int:
    """Writes a file; returns its bytes, which its entry may have told wrongly."""
    target = directory.joinpath(*PurePosixPath(entry.filename).parts)
    too_large = f"the zip has more than {limits.bytes:,} bytes when it is unpacked, the limit"
    too_dense = f"the zip has {show_escaped(entry.filename)}, which is over {limits.ratio} times as large unpacked"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"the zip has {show_escaped(entry.filename)} as a file and as a directory") from error
    with open(descriptor, "wb") as file, archive.open(entry) as packed:
        return _copy(packed, file, (room, too_large), (entry.compress_size * limits.ratio, too_dense))


def _copy(packed: gzip.GzipFile | IO[bytes], file: IO[bytes], room: tuple[int, str], dense: tuple[int, str]) -> int:
    """Copies a file while it is unpacked, and returns its bytes.

    Args:
        room: most bytes, and the reason to refuse more.
        dense: likewise where the file has more than a part.

    Raises:
        UserError: with the reason.
    """
    written = 0
    while part := packed.read(PART):
        written += len(part)
        if written > room[0]:
            raise UserError(room[1])
        if written > max(PART, dense[0]):
            raise UserError(dense[1])
        file.write(part)
    return written


MEMORY = 6 * 2**30  # Bytes of address space.
SECONDS = 300  # Of the processor.
# Names of files of each split, which the tasks read.
STEMS = {"train": ("train",), "dev": ("dev", "validation", "valid", "testa"), "test": ("test", "testb")}
_MOST_FILES = 200  # Of a directory that are listed.
_OTHERS = {".conll": "conll", ".conllu": "conll", ".bio": "conll", ".iob": "conll", ".json": "squad", ".txt": "text"}
_MAGIC = {b"PK\x03\x04": "zip", b"PAR1": "parquet", b"%PDF": "PDF"}


def main(arguments: Sequence[str]) -> int:
    """Prints what `answer` returns, with limits of memory and time."""
    path, format, limit = Path(arguments[0]), arguments[1], int(arguments[2])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    real, sys.stdout = sys.stdout, sys.stderr  # Notices of the readers are no part of the answer.
    print(json.dumps(answer(path, format, limit), allow_nan=False), file=real)
    return 0


def answer(path: Path, format: str, limit: int) -> dict[str, Any]:
    """Returns the path, the rows and the preview of an upload, `{"error": line}`, or `{"full": true}` for the disk."""
    try:
        about = inspect(path, format, limit)
    except UserError as error:
        about = {"error": str(error).replace(f"{path.parent}/", "")}
    except OSError as error:
        if not is_full_disk(error):
            raise
        about = {"full": True}
    except (MemoryError, RecursionError):
        about = {"error": f"{path.name} needs too much memory to be looked through"}
    encoded: dict[str, Any] = _encode(about)
    return encoded


def _encode(value: Any) -> Any:
    """Returns a value of JSON whose texts are Unicode: halves of characters, as JSON may have, are escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encode(str(key)): _encode(item) for key, item in value.items()}
    return list(map(_encode, value)) if isinstance(value, list | tuple) else value


def inspect(path: Path, format: str, limit: int) -> dict[str, Any]:
    """Returns the path, the rows and the preview of an upload; a zip is replaced by its files, and gzip is unpacked.

    Raises:
        UserError: for a file that cannot be read as its format, and for a zip that exceeds a limit.
    """
    if format != "zip":
        if format != "parquet":
            unpack_gzip(path, limit)
        preview = preview_file(path, format)
        return _describe(path, preview, path.parent)
    directory = path.with_suffix("")
    directory.mkdir()
    left_out = unpack(path, directory, ZipLimits(bytes=limit))
    path.unlink()
    inner = directory
    while len(entries := list(inner.iterdir())) == 1 and entries[0].is_dir():  # A zip of a directory has its name.
        inner = entries[0]
    return _describe(inner, preview_directory(inner, left_out), path.parent)


def _describe(place: Path, preview: dict[str, Any], content: Path) -> dict[str, Any]:
    rows = sum(preview["splits"].values()) if preview["splits"] else None
    preview["problems"] = [
        problem.replace(f"{place}/", "").replace(f"{content}/", "") for problem in preview["problems"]
    ]
    return {"path": place.relative_to(content).as_posix(), "rows": rows, "preview": preview}


def preview_file(path: Path, format: str) -> previews.Preview:
    """Returns the preview of one file.

    Raises:
        UserError: for a file that cannot be read as its format.
    """
    with open(path, "rb") as file:
        start = file.read(4)
    kind = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)
    if kind not in (None, format) or (kind is None and format == "parquet"):
        looks = f"looks like {kind} and not" if kind else "does not look"
        raise UserError(f"{path} {looks} like {format}: name its format with format=NAME")
    read = {"conll": previews.preview_conll, "squad": previews.preview_squad, "text": previews.preview_text}.get(format)
    with reading_errors(path):
        return previews.preview_rows({"data": (path,)}) if read is None else read(path)


def preview_directory(directory: Path, left_out: Sequence[str] = ()) -> previews.Preview:
    """Returns the preview of the files of a directory: of train, dev and test, or of its first file.

    Args:
        left_out: files of the zip that were not unpacked.
    """
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    try:
        splits = find_files(directory, STEMS, DATA_SUFFIXES)
        if "train" not in splits:
            splits = {"data": (files[0],)}
        first = next(iter(splits.values()))[0]
        if first.name.lower().endswith(SUFFIXES):
            preview = previews.preview_rows(splits)
        else:
            preview = preview_file(first, _OTHERS[first.suffix.lower()])
    except UserError as error:
        preview = previews.create_preview({}, problems=[Problem(str(error), "it is kept as it is", is_error=True)])
    if left_out:
        names = ", ".join(left_out[:5]) + (f" and {len(left_out) - 5} more" if len(left_out) > 5 else "")
        problem = Problem(f"files that are no data are left out: {names}", "this needs no action")
        preview["problems"].append(str(problem))
    listed = [{"name": path.relative_to(directory).as_posix(), "bytes": path.stat().st_size} for path in files]
    return {**preview, "files": listed[:_MOST_FILES], "number_of_files": len(listed)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
