"""Tests that job=cache lists the cache, and removes whole entries, the least recently used first."""

import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distill import __main__ as command_line
from distill.core.errors import UserError
from distill.core.files import atomic_directory
from distill.core.storage import LEASE, lease, leases
from distill.data import docstrings
from distill.jobs import cache_entries
from distill.jobs.cache_entries import KINDS, remove, scan, select_for_removal

HEX = "0123456789abcdef"
TEMPORARY = "0" * 32
# Entry -> days since its last use; each has 1 MB.
ENTRIES = {
    f"teachers/minilm-sst2-{HEX}": 40,
    f"outputs/{HEX}0123": 30,
    f"onnx/{HEX}-channel-7": 20,
    f"tokens/{HEX}0123": 10,
    f"augmented/{HEX}0123": 5,
    f"data/docstrings-{HEX}": 1,
}


def write(path: Path, *, days: float = 0.0, size: int = 1_000_000) -> Path:
    """Writes a file that was last used and changed some days ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    age(path, days)
    return path


def age(path: Path, days: float) -> None:
    """Sets the times of a file and of its directories back."""
    moment = time.time() - days * cache_entries.DAY
    for changed in (path, *list(path.parents)[:3]):
        os.utime(changed, (moment, moment))


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    root = tmp_path / "cache"
    for name, days in ENTRIES.items():
        write(root / name / "file.bin", days=days)
    return root


@pytest.fixture
def distill(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process; returns its exit code, stdout and stderr."""

    def run(*options: str) -> tuple[int, str, str]:
        defaults = [] if any(option.startswith("cache_dir=") for option in options) else [f"cache_dir={cache_dir}"]
        monkeypatch.setattr("sys.argv", ["distill", "job=cache", *defaults, *options])
        code = command_line.main()
        return code, *capsys.readouterr()

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    return run


def names(cache_dir: Path) -> set[str]:
    return {entry.name for entry in scan(cache_dir)}


def test_listing_shows_every_entry_and_the_total_and_writes_nothing(
    distill: Any, cache_dir: Path, tmp_path: Path
) -> None:
    before = set(tmp_path.rglob("*"))
    code, out, _ = distill()
    assert code == 0
    lines = [" ".join(line.replace("│", " ").split()) for line in out.splitlines()]
    assert lines[0].startswith("Cache ")
    rows = [line for line in lines if line.endswith("ago")]
    assert rows[0] == f"fine-tuned teacher teachers/minilm-sst2-{HEX} 1.0 MB 40 days ago"
    assert rows[-1] == f"built-in data data/docstrings-{HEX} 1.0 MB 24 h ago"
    assert [row.split("/")[0].split()[-1] for row in rows] == [name.split("/")[0] for name in ENTRIES]
    assert "total 6 entries 6.0 MB" in lines
    assert set(tmp_path.rglob("*")) == before


def test_an_empty_cache_is_listed_too(distill: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, out, _ = distill(f"cache_dir={tmp_path / 'empty'}")
    assert code == 0
    assert "0 entries" in out


def test_entries_older_than_a_limit_are_removed(distill: Any, cache_dir: Path) -> None:
    code, out, _ = distill("job.older_than_days=15")
    assert code == 0
    assert names(cache_dir) == set(list(ENTRIES)[3:])
    removed = [line.split()[1] for line in out.splitlines() if line.startswith("Removed  ")]
    assert removed == list(ENTRIES)[:3]
    assert f"(fine-tuned teacher, 1.0 MB, last used 40 days ago)\nRemoved  outputs/{HEX}" in out
    assert f"Removed 3 entries, 3.0 MB; 3.0 MB left in {cache_dir}\n" in out
    assert not list(cache_dir.glob("*/.*"))


def test_the_least_recently_used_entries_are_removed_down_to_a_size(distill: Any, cache_dir: Path) -> None:
    assert distill("job.to_gb=0.0041")[0] == 0
    assert names(cache_dir) == set(list(ENTRIES)[2:])
    assert distill("job.to_gb=0.004")[0] == 0  # It is already below the limit.
    assert len(names(cache_dir)) == 4


def test_the_age_limit_and_the_size_limit_both_apply(distill: Any, cache_dir: Path) -> None:
    assert distill("job.to_gb=0.005", "job.older_than_days=25")[0] == 0
    assert names(cache_dir) == set(list(ENTRIES)[2:])
    assert distill("job.to_gb=0.002", "job.older_than_days=25")[0] == 0
    assert names(cache_dir) == set(list(ENTRIES)[4:])


def test_a_dry_run_removes_nothing(distill: Any, cache_dir: Path) -> None:
    code, out, _ = distill("job.older_than_days=15", "job.dry_run=true")
    assert code == 0
    assert f"Would remove  teachers/minilm-sst2-{HEX}" in out
    assert "Would remove 3 entries, 3.0 MB; 3.0 MB left" in out
    assert names(cache_dir) == set(ENTRIES)


def test_an_access_counts_as_the_last_use(cache_dir: Path) -> None:
    file = cache_dir / f"teachers/minilm-sst2-{HEX}" / "file.bin"
    os.utime(file, (time.time(), file.stat().st_mtime))
    assert scan(cache_dir)[-1].name == f"teachers/minilm-sst2-{HEX}"
    assert [entry.name for entry in select_for_removal(scan(cache_dir), older_than_days=35)] == []


def test_old_temporary_files_are_removed_and_recent_ones_are_not(distill: Any, cache_dir: Path) -> None:
    old = [
        write(cache_dir / f"tokens/.{HEX}4567.{TEMPORARY}/train.arrow", days=2),
        write(cache_dir / f"outputs/{HEX}0123/.00001.safetensors.{TEMPORARY}/00001.safetensors", days=2),
        write(cache_dir / f"augmented/.{HEX}4567.{TEMPORARY}/copies.arrow", days=2),
    ]
    young = write(cache_dir / f"teachers/.minilm-sst2-{HEX}.{TEMPORARY}/model.safetensors", days=0.9)
    code, out, _ = distill()
    assert code == 0
    assert "tokens, unfinished" in out
    assert "6 entries and 4 unfinished" in out
    assert all(path.exists() for path in old)  # Listing removes nothing.
    code, out, _ = distill("job.older_than_days=365")
    assert code == 0
    assert "Removed 0 entries and 3 unfinished, 3.0 MB; 7.0 MB left" in out
    assert not any(path.exists() for path in old)
    assert young.exists()
    assert set(ENTRIES) <= names(cache_dir)


@pytest.mark.parametrize(
    "file",
    [f"outputs/{HEX}0123/.00001.safetensors.{TEMPORARY}/00001.safetensors", f"outputs/{HEX}0123/00001.safetensors"],
)
def test_files_being_written_by_another_process_are_not_removed(distill: Any, cache_dir: Path, file: str) -> None:
    written = write(cache_dir / file)
    code, out, _ = distill("job.to_gb=0")
    assert code == 0
    assert written.exists()
    assert {path.parent.name for path in cache_dir.rglob("file.bin")} == {Path(file).parts[1]}
    assert "not removed, because another process may be reading or writing" in out
    age(written, 2)
    assert distill("job.to_gb=0")[0] == 0
    assert not written.exists()


def test_entries_that_a_run_reads_are_not_removed(distill: Any, cache_dir: Path) -> None:
    """Their files were last used long ago, because some file systems do not record it."""
    teacher, onnx = (cache_dir / name for name in (f"teachers/minilm-sst2-{HEX}", f"onnx/{HEX}-channel-7"))
    with leases():
        for entry in (teacher, onnx):
            assert lease(entry)
            age(entry / "file.bin", 40)
            age(entry / LEASE, 40)
        code, out, _ = distill("job.to_gb=0")
        assert code == 0
        assert names(cache_dir) == {f"teachers/minilm-sst2-{HEX}", f"onnx/{HEX}-channel-7"}
        assert "Notice: 2 entries not removed, because another process may be reading or writing: teachers" in out
        assert "Removed 4 entries, 4.0 MB; 2.0 MB left" in out
    assert distill("job.to_gb=0")[0] == 0
    assert names(cache_dir) == set()


def test_an_entry_that_a_run_began_to_read_after_listing_is_not_removed(cache_dir: Path) -> None:
    listed, *_ = scan(cache_dir)
    with leases():
        assert lease(listed.path)
        age(listed.path / LEASE, 100)
        assert not remove(listed)
    assert remove(listed)


def test_unfinished_writes_of_killed_processes_are_removed_at_once(distill: Any, cache_dir: Path) -> None:
    folder = cache_dir / "tokens"
    for number in range(2):
        write(folder / f".{HEX}456{number}.{TEMPORARY}" / "train.arrow")
    (folder / f".{HEX}4560.{TEMPORARY}" / ".owner").write_text(socket.gethostname())
    with atomic_directory(folder / f"{HEX}9999") as draft:
        age(write(draft / "train.arrow", days=9), 9)
        assert distill("job.older_than_days=365")[0] == 0
        assert draft.exists()  # It is locked.
    assert not (folder / f".{HEX}4560.{TEMPORARY}").exists()
    assert (folder / f".{HEX}4561.{TEMPORARY}").exists()  # It may be one of another machine.


def test_an_entry_used_after_listing_is_not_removed(cache_dir: Path) -> None:
    first, second, *_ = scan(cache_dir)
    file = first.path / "file.bin"
    os.utime(file, (time.time(), file.stat().st_mtime))
    assert not remove(first)
    assert file.exists()
    shutil.rmtree(second.path)  # By another process.
    assert not remove(second)


def test_an_entry_is_renamed_before_it_is_deleted(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, *_ = scan(cache_dir)

    def interrupted(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(cache_entries.shutil, "rmtree", interrupted)
    with pytest.raises(UserError, match="cannot be removed .Operation not permitted.: check its permissions"):
        remove(entry)
    assert not entry.path.exists()
    monkeypatch.undo()
    [leftover] = [entry for entry in scan(cache_dir) if entry.temporary]
    assert (leftover.name, leftover.in_use) == (entry.name, False)  # Its files are old.
    assert remove(leftover)
    assert not list(cache_dir.glob("teachers/.*"))


def test_files_that_are_no_cache_entries_are_not_removed(distill: Any, cache_dir: Path) -> None:
    others = [
        write(cache_dir / name, days=100)
        for name in ("data/train.tsv", "data/mine/train.tsv", "tokens/mine/notes.txt", "models/big/weights.bin")
    ]
    (cache_dir / f"tokens/{HEX}aaaa").symlink_to(cache_dir / "data" / "mine")
    assert distill("job.to_gb=0")[0] == 0
    assert all(path.exists() for path in others)
    assert names(cache_dir) == set()


def test_the_directory_of_the_built_in_data_matches_its_pattern() -> None:
    assert KINDS["data"].names.fullmatch(f"docstrings-{docstrings.compute_fingerprint(3000, 0)}")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["job.to_gb=-0.5"], "job.to_gb=-0.5, expected a number of 0 or more, or null"),
        (["job.to_gb=nan"], "job.to_gb=nan, expected a number of 0 or more, or null"),
        (["job.to_gb=true"], "job.to_gb=True, expected a number of 0 or more, or null"),
        (["job.to_gb=1", "job.dry_run=maybe"], "job.dry_run=maybe, expected true or false"),
        (["job.dry_run=true"], "job.dry_run=true has no effect alone: add job.older_than_days=DAYS or job.to_gb=GB"),
        (["cache_dir=nowhere"], "cache_dir=nowhere is not a directory, expected the cache of earlier runs"),
        (["+teacher=embedded"], "job=cache reads only cache_dir and job.*: leave out +teacher=embedded"),
        (["job.older_than=1"], "there is no option job.older_than (did you mean job.older_than_days?)"),
    ],
)
def test_invalid_options_are_reported_in_one_line(
    options: list[str], expected: str, distill: Any, cache_dir: Path, tmp_path: Path
) -> None:
    before = set(tmp_path.rglob("*"))
    code, out, err = distill(*options)
    assert code == 2
    assert expected in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""
    assert set(tmp_path.rglob("*")) == before
