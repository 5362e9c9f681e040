"""Tests of directories behind URLs, whose copies two machines have: what is fetched, sent, removed and given up."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from distill.core import storage
from distill.core.errors import UserError
from distill.core.storage import has_entry, new_entry


class Machine:
    """A machine with copies of its own; all of its calls see the same URL."""

    def __init__(self, root: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.url, self.monkeypatch = root, url, monkeypatch

    @property
    def copy(self) -> Path:
        """The copy of the URL on this machine, on which all calls work until that of another one is asked for."""
        self.monkeypatch.setenv("DISTILL_MIRROR", str(self.root))
        return storage.local_path(self.url)

    def write(self, **files: str) -> None:
        for name, text in files.items():
            path = self.copy / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def read(self) -> dict[str, str]:
        paths = [path for path in self.copy.rglob("*") if path.is_file() and path.name != storage.STATE]
        return {path.relative_to(self.copy).as_posix(): path.read_text() for path in paths}


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A URL of a file system with directories, and of one without them, as object stores are."""
    yield f"file://{tmp_path}/there" if request.param == "file" else f"memory://bucket/{tmp_path.name}"
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def machines(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Machine, Machine]:
    return Machine(tmp_path / "first", url, monkeypatch), Machine(tmp_path / "second", url, monkeypatch)


def list_there(url: str) -> list[str]:
    fs, there = fsspec.url_to_fs(url)
    return sorted(path.removeprefix(f"{there}/") for path in fs.find(there))


def test_a_path_says_what_url_it_is_a_copy_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTILL_MIRROR", str(tmp_path / "mirror"))
    for url, below in {
        "s3://bucket/runs": "s3/bucket/runs", "file:///data/runs": "file/-/data/runs",
        "hdfs://node:8020/runs": "hdfs/node:8020/runs", "hdfs:///runs": "hdfs/-/runs",
    }.items():  # fmt: skip
        path = storage.local_path(url)
        assert path == tmp_path / "mirror" / below
        assert (storage.address(path), storage.address(path / "sst2" / "run")) == (url, f"{url}/sst2/run")
        assert storage.is_copy(path)
    assert storage.local_path("~/runs") == Path.home() / "runs"
    assert not storage.is_copy(tmp_path / "mirror" / "outputs")
    assert (storage.local_path("runs"), storage.address(Path("runs"))) == (Path("runs"), "runs")
    (tmp_path / "file").write_text("here")
    for copy in (storage.fetch, storage.send, storage.send_changes, storage.check):
        copy(tmp_path)  # It is no copy.
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_only_what_changed_is_copied_and_what_was_removed_is_removed(
    machines: tuple[Machine, Machine], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = machines
    first.write(metrics="1", checkpoints__last="a", gone="b", **{".hidden": "c"})
    storage.send(first.copy)
    storage.fetch(second.copy)
    assert second.read() == {"metrics": "1", "checkpoints/last": "a", "gone": "b"}
    second.write(metrics="1 2")
    (second.copy / "gone").unlink()
    copied: list[str] = []
    put = storage._put
    monkeypatch.setattr(storage, "_put", lambda fs, path, target: (copied.append(path.name), put(fs, path, target)))
    storage.send(second.copy)
    assert copied == ["metrics"]
    storage.fetch(first.copy)
    assert first.read() == {"metrics": "1 2", "checkpoints/last": "a", ".hidden": "c"}
    assert list_there(url) == ["checkpoints/last", "metrics"]


def test_changes_that_were_not_sent_stay_until_another_machine_goes_on(machines: tuple[Machine, Machine]) -> None:
    first, second = machines
    first.write(metrics="1", last="1", gone="1")
    storage.send(first.copy)
    first.write(metrics="not sent", last="not sent")
    storage.fetch(first.copy)
    assert first.read() == {"metrics": "not sent", "last": "not sent", "gone": "1"}
    storage.fetch(second.copy)
    second.write(metrics="1 2")
    (second.copy / "gone").unlink()
    storage.send(second.copy)
    first.write(gone="not sent")
    storage.fetch(first.copy)  # Files of two machines would not fit each other; one that was removed there stays.
    assert first.read() == {"metrics": "1 2", "last": "1", "gone": "not sent"}


def test_files_that_are_skipped_come_later_and_are_not_removed(machines: tuple[Machine, Machine], url: str) -> None:
    first, second = machines
    first.write(record="1", checkpoints__last="a")
    storage.send(first.copy)
    storage.fetch(second.copy, skip=storage.BELOW)
    assert second.read() == {"record": "1"}
    second.write(record="2")
    storage.send(second.copy)
    storage.fetch(second.copy)
    assert second.read() == {"record": "2", "checkpoints/last": "a"}
    (second.copy / "checkpoints" / "last").unlink()
    storage.send(second.copy, skip=storage.BELOW)
    assert list_there(url) == ["checkpoints/last", "record"]


def test_files_of_several_processes_are_each_on_their_own(machines: tuple[Machine, Machine]) -> None:
    first, second = machines
    first.write(**{"runs.1.txt": "a", "optuna.db": "1"})
    storage.send(first.copy)
    first.write(**{"runs.1.txt": "a b", "optuna.db": "not sent"})
    storage.fetch_files(second.copy, "runs*.txt")
    assert second.read() == {"runs.1.txt": "a"}
    second.write(**{"runs.2.txt": "c", "sweep__runs.3.txt": "d"})
    storage.send(second.copy)
    storage.fetch_files(first.copy, "runs*.txt")
    assert first.read() == {"runs.1.txt": "a b", "runs.2.txt": "c", "optuna.db": "not sent"}


def test_each_directory_with_a_file_of_a_name_is_fetched(machines: tuple[Machine, Machine]) -> None:
    first, second = machines
    first.write(a__run="1", a__sub__part="2", b__run="3", c__other="4")
    for name in "abc":
        storage.send(first.copy / name)
    storage.fetch_holders(second.copy, "run", skip=("*part",))
    assert second.read() == {"a/run": "1", "b/run": "3"}
    storage.fetch(second.copy / "a")
    assert second.read() == {"a/run": "1", "a/sub/part": "2", "b/run": "3"}


def test_checksums_and_the_record_are_copied_after_what_they_describe(
    machines: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = machines
    first.write(**{"weights": "1", "run.json": "1", "SHA256SUMS": "1", "z__SHA256SUMS": "1", "z__weights": "1"})
    sent, fetched = [], []
    put, atomic_file = storage._put, storage.atomic_file
    monkeypatch.setattr(storage, "_put", lambda fs, path, target: (sent.append(path), put(fs, path, target)))
    storage.send(first.copy)
    monkeypatch.setattr(storage, "atomic_file", lambda path: (fetched.append(path), atomic_file(path))[1])
    storage.fetch(second.copy)
    for machine, paths in ((first, sent), (second, fetched)):
        names = [path.relative_to(machine.copy).as_posix() for path in paths]
        assert names == ["weights", "z/weights", "SHA256SUMS", "z/SHA256SUMS", "run.json"]


def test_an_upload_that_fails_leaves_the_old_file_and_is_sent_later(
    machines: tuple[Machine, Machine], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = machines
    first.write(**{"a": "1", "b": "1", "run.json": "1"})
    storage.send(first.copy)
    first.write(**{"a": "2", "b": "2", "run.json": "2"})
    file_system = type(fsspec.url_to_fs(url)[0])
    moved: Any = file_system.mv

    def move(fs: Any, source: str, target: str, **options: object) -> None:
        if target.endswith("/b"):
            raise OSError("the connection\nis lost")
        moved(fs, source, target, **options)

    with monkeypatch.context() as patch:
        patch.setattr(file_system, "mv", move)
        with pytest.raises(
            UserError, match=r"cannot be written \(OSError: the connection\); its copy is .*first"
        ) as info:
            storage.send(first.copy)
        assert "\n" not in str(info.value)
        assert list_there(url) == ["a", "b", "run.json"]
        storage.send_changes(first.copy / "checkpoints")  # It prints the same as a notice.
    storage.fetch(second.copy)
    assert second.read() == {"a": "2", "b": "1", "run.json": "1"}  # The record never is the first.
    storage.send(first.copy)
    storage.fetch(second.copy)
    assert second.read() == {"a": "2", "b": "2", "run.json": "2"}


class Failing(LocalFileSystem):
    """A file system with directories whose listings and questions about files can fail, as those of a server do."""

    def __init__(self, error: Exception | None, where: str) -> None:
        super().__init__(skip_instance_cache=True)
        self.error, self.where = error, where

    def ls(self, path: str, detail: bool = False, **options: object) -> Any:
        if path.endswith(self.where):
            if self.error is not None:
                raise self.error
            return []
        return super().ls(path, detail=detail, **options)

    def info(self, path: str, **options: object) -> Any:
        if isinstance(path, str) and path.endswith(self.where) and self.error is not None:
            raise self.error
        return super().info(path, **options)


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose copy of `there` is complete."""
    machine = Machine(tmp_path / "first", f"file://{tmp_path}/there", monkeypatch)
    machine.write(metrics="1", checkpoints__last="a")
    storage.send(machine.copy)
    return machine


@pytest.mark.parametrize("where", ["there", "checkpoints"])
@pytest.mark.parametrize("error", [ConnectionResetError("reset"), FileNotFoundError("no answer")])
def test_an_error_of_the_storage_removes_nothing_here_and_is_raised(
    error: Exception, where: str, copied: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, before, is_missing = Failing(error, where), copied.read(), isinstance(error, FileNotFoundError)
    monkeypatch.setattr(storage, "_connect", lambda directory: (fs, storage.address(directory).removeprefix("file://")))
    calls = [storage.fetch, lambda directory: storage.fetch_holders(directory, "metrics")]
    if where == "there" and is_missing:
        storage.fetch_holders(copied.copy, "metrics")  # It is not there, so that no directory is.
        calls.pop()
    elif where == "there":
        calls += [lambda directory: storage.fetch_files(directory, "metrics"), storage.check]
    for call in calls:
        with pytest.raises(UserError, match=r"there cannot be read \(|there has none of the 2 files"):
            call(copied.copy)
        assert copied.read() == before
    storage.try_fetch(copied.copy)  # It prints the same as a notice.
    assert copied.read() == before


@pytest.mark.parametrize("where", ["there", "checkpoints"])
def test_an_empty_listing_removes_nothing_here(where: str, copied: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """FTP lists a directory as empty after some of its errors."""
    monkeypatch.setattr(storage, "_connect", lambda path: (Failing(None, where), str(storage.address(path))[7:]))
    message = f"^{re.escape(copied.url)} has none of the 2 files that were copied: check"
    refused = pytest.raises(UserError, match=f"{message}.*remove their copy {re.escape(str(copied.copy))}")
    with refused if where == "there" else contextlib.nullcontext():
        storage.fetch(copied.copy)
    assert copied.read() == {"metrics": "1", "checkpoints/last": "a"}


def test_a_directory_here_that_cannot_be_read_removes_nothing_there(
    copied: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = os.scandir

    def deny(path: Any) -> Any:
        if str(path).endswith("checkpoints"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", deny)
        with pytest.raises(UserError, match="cannot be written .PermissionError: .*Permission denied"):
            storage.send(copied.copy)
    assert list_there(copied.url) == ["checkpoints/last", "metrics"]


def test_a_directory_is_sent_at_the_start_at_the_end_and_after_an_error(machines: tuple[Machine, Machine]) -> None:
    first, second = machines

    def fail() -> None:
        first.write(run="1")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), storage.sent(first.copy):
        fail()
    storage.fetch(second.copy)
    assert second.read() == {"run": "1"}
    with storage.sent(first.copy):
        first.write(run="2")
        storage.send_changes(first.copy / "seeds" / "1")  # From any directory inside.
        storage.fetch(second.copy)
        assert second.read() == {"run": "2"}
        first.write(run="3")
    storage.fetch(second.copy)
    assert second.read() == {"run": "3"}


def test_uploads_that_a_killed_process_did_not_finish_are_removed_by_the_next_one(
    machines: tuple[Machine, Machine], url: str
) -> None:
    first, _ = machines
    first.write(run="1", checkpoints__last="1")
    storage.send(first.copy)
    fs, there = fsspec.url_to_fs(url)
    for name in (f".run.{'0' * 32}", f"checkpoints/.last.{'a' * 32}", ".ours", f"checkpoints/.{'0' * 31}"):
        fs.pipe_file(f"{there}/{name}", b"half")
    with storage.sent(first.copy):
        assert list_there(url) == [".ours", f"checkpoints/.{'0' * 31}", "checkpoints/last", "run"]


def test_entries_of_a_shared_cache_are_fetched_and_damaged_ones_are_made_again(
    machines: tuple[Machine, Machine], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = machines
    assert not has_entry(first.copy / "teacher")
    with new_entry(first.copy / "teacher") as entry:
        (entry / "weights").write_text("1")
    assert has_entry(second.copy / "teacher")
    assert (second.copy / "teacher" / "weights").read_text() == "1"
    with monkeypatch.context() as patch:  # What is here needs no connection.
        patch.setattr(storage, "_connect", lambda directory: 1 / 0)
        assert has_entry(second.copy / "teacher")
    fs, there = fsspec.url_to_fs(url)
    fs.pipe_file(f"{there}/teacher/weights", b"damaged")
    third = Machine(first.root.parent / "third", url, monkeypatch)
    assert not has_entry(third.copy / "teacher")
    with new_entry(third.copy / "teacher") as entry:
        (entry / "weights").write_text("1")
    fourth = Machine(first.root.parent / "fourth", url, monkeypatch)
    assert has_entry(fourth.copy / "teacher")


def test_a_url_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTILL_MIRROR", str(tmp_path))
    for url, message in {
        "nosuch://bucket": "nosuch://bucket cannot be read (ValueError: Protocol not known: nosuch); its copy is",
        "dropbox://folder": "dropbox://folder cannot be read (ImportError: ",
        "filecache::s3://bucket": "filecache::s3://bucket joins several file systems: give the URL of one",
    }.items():
        with pytest.raises(UserError, match=f"^{re.escape(message)}.*$"):
            storage.check(storage.local_path(url))
    store = SimpleNamespace(exists=lambda path: path == "bucket", info=lambda path: {"name": path})
    monkeypatch.setattr(storage, "_connect", lambda path: (store, storage.address(path).removeprefix("s3://")))
    storage.check(storage.local_path("s3://bucket/runs"))
    with pytest.raises(UserError, match="^s3://typo/runs cannot be read .*: there is no bucket typo"):
        storage.check(storage.local_path("s3://typo/runs"))
