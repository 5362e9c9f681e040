"""Shards of texts with the outputs of a teacher, which any number of processes write and a training streams.

A directory has `manifest.json`, which says what the outputs are of, and a Parquet file for each shard of texts in the
order of their source. A shard is whole or not there. The process that writes one holds a lock on a file beside it,
which ends with the process, so that a killed one loses one shard's work at most. Machines that share a directory at a
URL see which one writes a shard by a file there, which counts for an hour.
"""

import hashlib
import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from distill.core import storage
from distill.core.errors import UserError, first_line
from distill.core.files import (
    acquire_lock,
    atomic_file,
    free_bytes,
    make_directory,
    release_lock,
    show_size,
    write_json,
)
from distill.rows.formats import show_names

VERSION = 1
MANIFEST, LOCK = "manifest.json", "manifest.lock"
OUTPUTS, SCALE = "teacher_outputs", "teacher_scale"
Dtype = Literal["float32", "float16", "int8"]
CLAIM = ".claim"  # Ends the name of the file by which a machine tells others that it writes a shard.
NOT_SENT = ("*.lock",)
LEASE = 3600  # Seconds for which a claim counts, so that a machine that is lost keeps no shard.
RESUME = "run its job=teach command again, which writes what is missing"


@dataclass(frozen=True)
class Manifest:
    """What all shards of a directory have in common.

    Args:
        version: of the format.
        kind: of the task.
        columns: the columns of the texts of an example.
        labels: the classes in the order of the outputs; one name for a number, none for vectors.
        teacher: fingerprint of the teacher.
        data: SHA-256 of the labelled rows, whose texts are in no shard.
        source: the files that the texts were read from, with their sizes in bytes.
        texts: of a shard, before any was left out.
        dtype: of the outputs; `int8` has a scale for each row.
        shards: their number; None until the end of the source was read.
    """

    version: int
    kind: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    teacher: str
    data: str
    source: tuple[str, ...]
    texts: int
    dtype: Dtype
    shards: int | None = None

    @classmethod
    def read(cls, directory: Path) -> "Manifest":
        """Returns that of a directory; raises UserError for a damaged one, and one of a later version."""
        path = directory / MANIFEST
        try:
            content = json.loads(path.read_bytes())
            if isinstance(content, dict) and isinstance(version := content.get("version"), int) and version > VERSION:
                raise UserError(
                    f"{path} has version {version}, and this program reads {VERSION} at most: take a newer one"
                )
            return TypeAdapter(cls).validate_python(content)
        except (OSError, ValueError, ValidationError) as error:
            raise UserError(f"{path} is no record of shards ({first_line(error)}): write them anew") from error


def is_sharded(path: Path) -> bool:
    """Returns whether a directory, or its URL, has shards, finished or not."""
    storage.fetch_files(path, MANIFEST)
    return (path / MANIFEST).is_file()


class ShardWriter:
    """Writes the shards of a directory, beside other processes.

    Raises:
        UserError: for a directory with shards of other texts, of another teacher, or of other options.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory, self.manifest = directory, manifest
        make_directory(directory)
        with self._sending():
            if is_sharded(directory):
                found = replace(Manifest.read(directory), shards=None)
                if other := [
                    of.name for of in fields(Manifest) if getattr(found, of.name) != getattr(manifest, of.name)
                ]:
                    raise UserError(
                        f"{storage.address(directory)} has shards with other {show_names(other)} than this command's: "
                        "set teach.output to another directory, or remove it"
                    )
            else:
                write_json(directory / MANIFEST, asdict(manifest))

    @contextmanager
    def _sending(self) -> Iterator[None]:
        """Sends what changes in a directory to its URL, while no other process of this machine changes it."""
        lock = acquire_lock(self.directory / LOCK, wait=True)
        try:
            yield
            storage.send(self.directory, skip=NOT_SENT)
        finally:
            release_lock(lock)

    @contextmanager
    def claim(self, number: int) -> Iterator[bool]:
        """Yields whether a shard is for this process to write: it is not there, and no other process writes it."""
        lock = self.directory / f"{number:06}.lock"
        descriptor = None if shard_path(self.directory, number).is_file() else acquire_lock(lock)
        try:
            is_here = descriptor is None or shard_path(self.directory, number).is_file()
            yield not is_here and self._take_from_machines(number)
        finally:
            if descriptor is not None:
                lock.unlink(missing_ok=True)
                release_lock(descriptor)

    def _take_from_machines(self, number: int) -> bool:
        """Returns whether no other machine has written a shard or is writing it, and tells them that this one is.

        Two that ask at the same moment both write it, and the shard of the last one stays, which has the same rows.
        """
        if not storage.is_copy(self.directory):
            return True
        claim = self.directory / f"{number:06}{CLAIM}"
        storage.fetch_files(self.directory, claim.name)
        held = json.loads(claim.read_bytes()) if claim.is_file() else {}
        machine = f"{socket.gethostname()} {storage.root()}"  # Whose processes see each other's locks.
        if held.get("machine", machine) != machine and time.time() - held["time"] < LEASE:
            return False
        if shard_path(self.directory, number).name in storage.list_names(self.directory):
            return False
        with self._sending():
            write_json(claim, {"machine": machine, "time": time.time()})
        return True

    def write(self, number: int, texts: Mapping[str, list[str]], outputs: np.ndarray) -> Path:
        """Writes a shard of texts by column, with their outputs `[N, C]`, and returns its path."""
        path = shard_path(self.directory, number)
        with atomic_file(path) as temporary:
            table = pa.table({**texts, **_pack(outputs, self.manifest.dtype)})
            pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
        with self._sending():
            (self.directory / f"{number:06}{CLAIM}").unlink(missing_ok=True)
        return path

    def finish(self, shards: int) -> int:
        """Records the number of all shards, once the source was read to its end; returns how many are not there yet."""
        with self._sending():
            write_json(self.directory / MANIFEST, asdict(replace(self.manifest, shards=shards)))
        written = storage.list_names(self.directory)
        return sum(shard_path(self.directory, number).name not in written for number in range(shards))


def _pack(outputs: np.ndarray, dtype: Dtype) -> dict[str, pa.Array]:
    """Returns the columns of outputs `[N, C]`."""
    columns = {}
    if dtype == "int8":
        scale = np.abs(outputs).max(axis=1, initial=1e-12).astype(np.float32) / 127
        columns[SCALE] = pa.array(scale)
        outputs = np.round(outputs / scale[:, None])
    values = pa.array(outputs.astype(dtype).ravel())
    return {**columns, OUTPUTS: pa.FixedSizeListArray.from_arrays(values, outputs.shape[1])}


def rounded(outputs: np.ndarray, dtype: Dtype) -> np.ndarray:
    """Returns outputs `[N, C]` as a shard returns them."""
    return _unpack(pa.table(_pack(outputs, dtype)))


def _unpack(table: pa.Table) -> np.ndarray:
    column = table.column(OUTPUTS).combine_chunks()
    flat: np.ndarray = column.flatten().to_numpy(zero_copy_only=False)
    values = flat.astype(np.float32).reshape(len(table), -1)
    if SCALE in table.column_names:
        values = values * table.column(SCALE).to_numpy()[:, None]
    return values


def shard_path(directory: Path, number: int) -> Path:
    """Returns the file of a shard."""
    return directory / f"{number:06}.parquet"


@dataclass(frozen=True)
class Shards:
    """All shards of a directory.

    Args:
        rows: texts of each shard.
    """

    directory: Path
    manifest: Manifest
    rows: tuple[int, ...]

    @cached_property
    def width(self) -> int:
        """Returns the number of outputs of a text."""
        return int(pq.read_schema(shard_path(self.directory, 0)).field(OUTPUTS).type.list_size)

    @classmethod
    def open(cls, directory: Path) -> "Shards":
        """Returns those of a directory, fetched if it is a copy; raises UserError if one is missing or cut off."""
        storage.fetch(directory, skip=(f"*{CLAIM}",))
        manifest = Manifest.read(directory)
        number = manifest.shards
        there = 0 if number is None else sum(shard_path(directory, each).is_file() for each in range(number))
        if number is None or there < number:
            of = "" if number is None else f" {there:,} of {number:,}"
            raise UserError(f"{directory} has not all its shards yet{of}: {RESUME}")
        return cls(directory, manifest, tuple(_count_rows(shard_path(directory, each)) for each in range(number)))

    @cached_property
    def digest(self) -> str:
        """Stands for the texts and their outputs."""
        return hashlib.sha256(json.dumps([asdict(self.manifest), self.rows]).encode()).hexdigest()

    @property
    def bytes(self) -> int:
        """Returns the size of all files."""
        return sum(shard_path(self.directory, number).stat().st_size for number in range(len(self.rows)))

    def read(self, number: int) -> tuple[list[list[str]], np.ndarray]:
        """Returns the texts of a shard by column, and their outputs `[N, C]`; raises UserError for a damaged one."""
        path = shard_path(self.directory, number)
        try:
            table = pq.read_table(path, page_checksum_verification=True)
            return [table.column(name).to_pylist() for name in self.manifest.columns], _unpack(table)
        except (OSError, KeyError, ValueError, pa.ArrowException) as error:
            raise _damaged(path, error) from error

    def check(self, kind: str, columns: tuple[str, ...], labels: tuple[str, ...]) -> None:
        """Raises UserError for shards of another task."""
        given = {"kind": kind, "columns": len(columns), "labels": labels}
        found = {"kind": self.manifest.kind, "columns": len(self.manifest.columns), "labels": self.manifest.labels}
        for name, value in given.items():
            if found[name] != value:
                raise UserError(
                    f"the shards in {self.directory} are of a task with {name} {_show(found[name])}, and this one has "
                    f"{_show(value)}: write shards for this task"
                )

    def check_teacher(self, fingerprint: str) -> None:
        """Raises UserError for shards of another teacher."""
        if fingerprint != self.manifest.teacher:
            raise UserError(
                f"the shards in {self.directory} are of another teacher, or of one that was fine-tuned, tokenized or "
                "rounded otherwise: take the options of their job=teach command, or write shards of this teacher"
            )


def _show(value: Any) -> str:
    return show_names(value) if isinstance(value, tuple) else str(value)


def _count_rows(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is damaged ({first_line(error)}): remove it and {RESUME}")


def check_room(directory: Path, needed: float) -> None:
    """Raises UserError for a disk without room for so many bytes."""
    if needed > (free := free_bytes(directory)):
        raise UserError(
            f"the shards would take {show_size(needed)} and the disk of {directory} has {show_size(free)} left: "
            "set teach.output to a larger one, or teach.dtype=float16"
        )
