"""Tests of the entries of the cache: leases that keep them while they are read, and caches that are read-only."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distill.core import files, storage
from distill.core.errors import UserError
from distill.core.files import CHECKSUMS
from distill.core.storage import LEASE, entry_key, has_entry, leases, new_entry, open_cache

# A process that reads an entry until it is killed.
READER = """
import pathlib, sys, time
from distill.core.storage import has_entry
print(has_entry(pathlib.Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def write_entry(directory: Path) -> Path:
    with leases(), new_entry(directory) as temporary:
        (temporary / "weights").write_text("1")
    return directory


@contextmanager
def reading(directory: Path) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", READER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        try:
            yield process
        finally:
            process.kill()


def test_entries_of_other_kinds_versions_and_parts_have_other_keys() -> None:
    parts = {"a": 1, "b": 2}
    keys = {
        entry_key("tokens", 1, "text", parts), entry_key("tokens", 2, "text", parts),
        entry_key("words", 1, "text", parts), entry_key("tokens", 1, "text", {"a": 1, "b": 3}),
        entry_key("tokens", 1, "text"), entry_key("tokens", 1, "text", {"b": 2, "a": 1}),
    }  # fmt: skip
    assert len(keys) == 5
    assert all(re.fullmatch("[0-9a-f]{64}", key) for key in keys)


def test_an_entry_is_leased_from_its_reading_to_the_end_of_the_run(tmp_path: Path) -> None:
    entry = write_entry(tmp_path / "tokens" / "one")
    assert not files.is_locked(entry / LEASE)
    with leases():
        assert has_entry(entry)
        assert has_entry(entry)
        assert files.is_locked(entry / LEASE)
        with leases():  # Of a run in a run.
            assert has_entry(entry)
            other = tmp_path / "tokens" / "two"
            with new_entry(other) as temporary:
                (temporary / "weights").write_text("1")
            assert files.is_locked(other / LEASE)
        assert files.is_locked(entry / LEASE)
        assert not files.is_locked(other / LEASE)
    assert not files.is_locked(entry / LEASE)


def test_leases_of_several_processes_end_with_them_however_they_end(tmp_path: Path) -> None:
    entry = write_entry(tmp_path / "tokens" / "one")
    with reading(entry) as first:
        with reading(entry):
            assert files.is_locked(entry / LEASE)
        assert files.is_locked(entry / LEASE)
        first.kill()
        first.wait()
        assert not files.is_locked(entry / LEASE)


def test_an_entry_that_is_removed_while_its_reader_waits_is_missing(tmp_path: Path) -> None:
    entry = write_entry(tmp_path / "tokens" / "one")
    removing, found = files.acquire_lock(entry / LEASE), list[bool]()
    assert removing is not None
    reader = threading.Thread(target=lambda: found.append(has_entry(entry)))
    reader.start()
    os.replace(entry, tmp_path / "aside")
    files.release_lock(removing)
    reader.join()
    assert found == [False]


def test_an_entry_that_was_replaced_or_damaged_is_leased_anew(tmp_path: Path) -> None:
    entry = write_entry(tmp_path / "tokens" / "one")
    with leases():
        assert has_entry(entry)
        (entry / "weights").write_text("damaged")
        assert not has_entry(entry)
        assert not files.is_locked(entry / LEASE)
        with new_entry(entry) as temporary:
            (temporary / "weights").write_text("1")
        assert has_entry(entry)
        assert files.is_locked(entry / LEASE)


@pytest.fixture
def make_read_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Refuses to write below a directory; the tests may run as root, which its mode would not stop."""

    def make(directory: Path) -> None:
        opened, made, access = os.open, os.mkdir, os.access

        def is_below(path: object) -> bool:
            return Path(str(path)).is_relative_to(directory)

        def refuse(path: object, flags: int, mode: int = 0o777, **options: int) -> int:
            if is_below(path) and flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
                raise PermissionError(13, "Permission denied", str(path))
            return opened(path, flags, mode, **options)  # type: ignore[call-overload, no-any-return]

        def refuse_directory(path: object, mode: int = 0o777) -> None:
            if is_below(path):
                raise PermissionError(13, "Permission denied", str(path))
            made(path, mode)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "open", refuse)
        monkeypatch.setattr(os, "mkdir", refuse_directory)
        monkeypatch.setattr(
            os, "access", lambda path, mode: not (is_below(path) and mode & os.W_OK) and access(path, mode)
        )

    return make


@pytest.mark.parametrize("was_leased", [True, False])
def test_a_complete_cache_that_is_read_only_is_read_and_an_entry_that_it_lacks_is_refused(
    was_leased: bool, tmp_path: Path, make_read_only: Callable[[Path], None]
) -> None:
    root = tmp_path / "cache"
    entry = write_entry(root / "tokens" / "one")
    if not was_leased:  # It was copied.
        (entry / LEASE).unlink()
    make_read_only(root)
    open_cache(root)
    with leases():
        assert has_entry(entry)
        assert (entry in storage._held) is was_leased
    assert {path.name for path in entry.iterdir()} == {"weights", CHECKSUMS, *([LEASE] if was_leased else [])}
    for missing, existing in ((root / "tokens" / "two", root / "tokens"), (root / "teachers" / "one", root)):
        with pytest.raises(UserError, match=f"^the cache lacks {missing}, and {existing} cannot be written: make it"):
            has_entry(missing)
