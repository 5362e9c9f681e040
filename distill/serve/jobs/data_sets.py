"""The data sets of the owners: they are uploaded, listed, previewed and deleted, and each is a directory of its own.

    data/OWNER/NAME/content/NAME.csv     the file, or a directory NAME with the files of a zip
    data/OWNER/NAME/about.json           format, bytes, rows, digest and the preview

An upload is written to `data/.uploads/` and looked through by a process with limits of memory and time
(`distill.serve.jobs.uploads`), and only then renamed: a data set is whole or not there, and it never changes.
"""

import asyncio
import contextlib
import errno
import json
import os
import shutil
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect

from distill.core.errors import UserError
from distill.core.files import hash_file, write_json
from distill.serve.http import GONE, RefusedError
from distill.serve.jobs.allowed_options import check_name, is_name, show_escaped

# The suffix of each format; a zip becomes a directory.
FORMATS: Mapping[str, str] = {
    "csv": ".csv", "tsv": ".tsv", "jsonl": ".jsonl", "parquet": ".parquet", "conll": ".conll", "squad": ".json",
    "text": ".txt", "zip": ".zip",
}  # fmt: skip
LIMIT = 2**30  # Bytes of an upload, and of all files of a zip.
UPLOADS = ".uploads"  # No name of an owner begins with a dot.
_PART = 2**20  # Bytes that are written at once.
_IDLE_SECONDS = 60.0  # Within which the next bytes of an upload must arrive.
_LOOK_SECONDS = 300.0  # Within which an upload must be looked through.
_MOST_UPLOADS = 16
_MOST_LOOKS = 2  # Processes that look through uploads at once.


@dataclass(frozen=True)
class DataSet:
    """A data set.

    Args:
        format: a key of `FORMATS`.
        bytes: of its files.
        rows: of all its files together; None for files that no reader knows.
        columns: names of the columns of its first file.
        created: in seconds since 1970.
        digest: the SHA-256 of the upload.
        path: of the file or directory for `task.data_dir`, below the data set's own directory.
        preview: its first rows, labels, lengths and problems.
    """

    name: str
    format: str
    bytes: int
    rows: int | None
    columns: tuple[str, ...]
    created: float
    digest: str
    path: str
    preview: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        """Returns the data set as the service answers it."""
        return {key: value for key, value in vars(self).items() if key not in ("path", "preview")}


IsRead = Callable[[str, str], bool]  # Returns whether a job that has not ended reads a data set of an owner.


class DataSets:
    """The data sets of all owners below a directory, which one process changes.

    Args:
        directory: `data` of the service.
        limit: bytes of an upload, and of the files of a zip together.
        is_read: whether a job that has not ended reads a data set.
    """

    def __init__(self, directory: Path, limit: int = LIMIT, *, is_read: IsRead = lambda owner, name: False) -> None:
        self.directory, self.limit, self.is_read = directory.resolve(), limit, is_read
        self._held = Counter[tuple[str, str]]()
        self._arriving = set[tuple[str, str]]()
        self._looks = asyncio.Semaphore(_MOST_LOOKS)
        shutil.rmtree(self.directory / UPLOADS, ignore_errors=True)  # Of a service that was killed.
        (self.directory / UPLOADS).mkdir(parents=True)

    async def put(
        self, owner: str, name: str, stream: AsyncIterator[bytes], format: str, *, room: int | None = None
    ) -> DataSet:
        """Adds a data set from the bytes of an upload; the same bytes again are the data set that is there.

        Args:
            room: bytes that the owner may still use; None for any number.

        Raises:
            UserError: for a wrong name or format, and for files that cannot be read.
            RefusedError: for an upload that is too large or too slow, and for a name that has other content.
        """
        check_name(owner, "account"), check_name(name, "data set")
        if format not in FORMATS:
            raise UserError(f"got format={show_escaped(format)}, expected one of {', '.join(FORMATS)}")
        if (owner, name) in self._arriving:
            raise RefusedError(409, f"the data set {name} is being uploaded: wait for that, or take another name")
        is_limited = room is not None and any(other == owner for other, _ in self._arriving)
        if is_limited or len(self._arriving) >= _MOST_UPLOADS:  # Two at once might both have the room that is left.
            raise RefusedError(503, "other uploads are under way: try again in a second")
        self._arriving.add((owner, name))
        staging = self.directory / UPLOADS / uuid.uuid4().hex
        try:
            return await self._put(staging, owner, name, stream, format, room)
        finally:
            self._arriving.discard((owner, name))
            await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)

    async def _put(
        self, staging: Path, owner: str, name: str, stream: AsyncIterator[bytes], format: str, room: int | None
    ) -> DataSet:
        content = staging / "content"
        content.mkdir(parents=True)
        path = content / f"{name}{FORMATS[format]}"
        limit = self.limit if room is None else max(0, min(self.limit, room))
        if limit < self.limit:
            reason = f"the upload has more than the {limit:,} bytes that are left to you: delete some"
            too_large = RefusedError(409, reason)
        else:
            too_large = RefusedError(413, f"the upload has more than {limit:,} bytes, the limit")
        digest = await _receive(stream, path, limit, too_large)
        if self._directory(owner, name).exists():
            found = self.get(owner, name)
            if (found.digest, found.format) == (digest, format):
                return found
            raise RefusedError(409, f"there is a data set {name} with other content: delete it, or take another name")
        about = await self._look(path, format, limit)
        if about.get("full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if "error" in about:
            raise UserError(about["error"])
        size = sum(file.stat().st_size for file in content.rglob("*") if file.is_file())
        preview, place = about["preview"], f"content/{about['path']}"
        columns = tuple(preview["columns"])
        found = DataSet(name, format, size, about["rows"], columns, time.time(), digest, place, preview)
        write_json(staging / "about.json", asdict(found))
        self._directory(owner, name).parent.mkdir(exist_ok=True)
        os.rename(staging, self._directory(owner, name))
        return found

    async def _look(self, path: Path, format: str, limit: int) -> dict[str, Any]:
        """Returns the description of an upload by a process of its own, which also unpacks a zip."""
        command = (sys.executable, "-m", "distill.serve.jobs.uploads", str(path), format, str(limit))
        pipe = asyncio.subprocess.PIPE
        async with self._looks:
            process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
            try:
                output, _ = await asyncio.wait_for(process.communicate(), _LOOK_SECONDS)
            except TimeoutError:
                raise UserError(f"the upload could not be looked through within {_LOOK_SECONDS:g} s") from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode != 0 or not output:
            raise UserError(f"the upload cannot be read as {format}: it needs too much memory, or it is damaged")
        about: dict[str, Any] = json.loads(output)
        return about

    def list(self, owner: str) -> "list[DataSet]":
        """Returns the data sets of an owner by their names."""
        check_name(owner, "account")
        with contextlib.suppress(FileNotFoundError):
            names = sorted(path.name for path in (self.directory / owner).iterdir() if is_name(path.name))
            return [self.get(owner, name) for name in names]
        return []

    def get(self, owner: str, name: str) -> DataSet:
        """Returns a data set.

        Raises:
            RefusedError: if the owner has none of that name.
        """
        try:
            text = (self._directory(owner, name) / "about.json").read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            raise RefusedError(404, f"there is no data set {name}") from None
        about = json.loads(text)
        values = {field.name: about[field.name] for field in fields(DataSet)}
        return DataSet(**{**values, "columns": tuple(values["columns"])})

    def preview(self, owner: str, name: str) -> dict[str, Any]:
        """Returns a data set with its columns, first rows, labels, lengths and problems.

        Raises:
            RefusedError: if the owner has none of that name.
        """
        found = self.get(owner, name)
        return {**found.describe(), **found.preview}

    def path(self, owner: str, name: str) -> Path:
        """Returns the file or directory of a data set, for `task.data_dir`.

        Raises:
            RefusedError: if the owner has none of that name.
        """
        return self._directory(owner, name) / self.get(owner, name).path

    def used(self, owner: str) -> int:
        """Returns the bytes of all data sets of an owner."""
        return sum(found.bytes for found in self.list(owner))

    def delete(self, owner: str, name: str) -> None:
        """Deletes a data set.

        Raises:
            RefusedError: if the owner has none of that name, and while a job reads it.
        """
        self.get(owner, name)
        if self._held[owner, name] or self.is_read(owner, name):
            raise RefusedError(409, f"a job reads the data set {name}: wait for its end or cancel it")
        grave = self.directory / UPLOADS / uuid.uuid4().hex
        os.rename(self._directory(owner, name), grave)
        shutil.rmtree(grave, ignore_errors=True)

    @contextlib.contextmanager
    def hold(self, owner: str, names: Iterable[str]) -> Iterator[None]:
        """Keeps data sets from being deleted, while a job that reads them is checked and not yet in the queue."""
        held = [(owner, name) for name in names]
        self._held.update(held)
        try:
            yield
        finally:
            self._held.subtract(held)

    def _directory(self, owner: str, name: str) -> Path:
        return self.directory / check_name(owner, "account") / check_name(name, "data set")


async def _receive(stream: AsyncIterator[bytes], path: Path, limit: int, too_large: RefusedError) -> str:
    """Writes the bytes of an upload to a new file; returns their SHA-256.

    Raises:
        RefusedError: for more bytes than the limit, for none, and if they stop to arrive.
    """
    size = 0
    with open(path, "xb") as file:
        async for part in _join(stream):
            size += len(part)
            if size > limit:
                raise too_large
            await asyncio.to_thread(file.write, part)
        await asyncio.to_thread(file.flush)
        await asyncio.to_thread(os.fsync, file.fileno())
    if not size:
        raise RefusedError(422, "the upload has no bytes")
    return await asyncio.to_thread(hash_file, path)


async def _join(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields the bytes of a stream in larger parts."""
    parts = bytearray()
    iterator = aiter(stream)
    while True:
        try:
            parts += await asyncio.wait_for(anext(iterator), _IDLE_SECONDS)
        except StopAsyncIteration:
            yield bytes(parts)
            return
        except ClientDisconnect:
            raise RefusedError(GONE, "the upload was cut off") from None
        except TimeoutError:
            raise RefusedError(408, f"no bytes of the upload arrived for {_IDLE_SECONDS:g} s") from None
        if len(parts) >= _PART:
            yield bytes(parts)
            parts.clear()
