"""Tests of atomic writes and checksums."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from distill import files
from distill.errors import UserError


def test_a_directory_is_replaced_atomically(tmp_path: Path) -> None:
    target = tmp_path / "cache" / "entry"
    for content in ("old", "new"):
        with files.atomic_directory(target) as draft:
            (draft / "sub").mkdir()
            (draft / "sub" / "file").write_text(content)
            assert not target.exists() or (target / "sub" / "file").read_text() == "old"
    assert (target / "sub" / "file").read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["entry"]


def test_an_intact_directory_is_reused(tmp_path: Path) -> None:
    target = tmp_path / "entry"
    for content, expected in (("first", "first"), ("second", "first"), ("third", "third")):
        if content == "third":
            (target / "file").write_text("damaged")
        with files.atomic_directory(target, reuse_intact=True) as draft:
            (draft / "file").write_text(content)
        assert (target / "file").read_text() == expected
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_a_directory_that_another_process_completes_at_the_last_moment_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, replace = tmp_path / "entry", os.replace

    def replace_late(source: Path, destination: Path) -> None:
        if destination == target:
            monkeypatch.undo()
            with files.atomic_directory(target, reuse_intact=True) as other:
                (other / "file").write_text("of the other process, which reads it now")
        replace(source, destination)

    with files.atomic_directory(target, reuse_intact=True) as draft:
        (draft / "file").write_text("late")
        monkeypatch.setattr(os, "replace", replace_late)
    assert (target / "file").read_text() == "of the other process, which reads it now"
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_a_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_text(path, "old")

    def raise_while_writing() -> None:
        with files.atomic_file(path) as temporary:
            temporary.write_text("ha")
            assert path.read_text() == "old"
            raise RuntimeError("half")

    with pytest.raises(RuntimeError, match="half"):
        raise_while_writing()
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("file", "old")]


def test_an_error_leaves_no_directory(tmp_path: Path) -> None:
    def raise_while_writing() -> None:
        with files.atomic_directory(tmp_path / "entry") as draft:
            (draft / "file").write_text("half")
            raise RuntimeError("half")

    with pytest.raises(RuntimeError, match="half"):
        raise_while_writing()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["change", "truncate", "remove", "unseal", "forget"])
def test_damage_is_detected(tmp_path: Path, damage: str) -> None:
    target = tmp_path / "entry"
    with files.atomic_directory(target) as draft:
        for name in ("file", "other"):
            (draft / name).write_text("content")
    (target / ".DS_Store").write_text("hidden files are the system's")
    assert files.is_intact(target)
    if damage == "change":
        (target / "file").write_text("Content")
    elif damage == "truncate":
        (target / "file").write_text("")
    elif damage == "remove":
        (target / "file").unlink()
    elif damage == "forget":  # The list of checksums is cut off behind its first line.
        checksums = (target / files.CHECKSUMS).read_text()
        (target / files.CHECKSUMS).write_text(checksums[: checksums.index("\n") + 1])
    else:
        (target / files.CHECKSUMS).unlink()
    assert not files.is_intact(target)


def test_concurrent_writers_of_one_directory_all_succeed(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for _ in range(20):
                with files.atomic_directory(tmp_path / "entry") as draft:
                    (draft / "file").write_text(str(number))
        except OSError as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    assert files.is_intact(tmp_path / "entry")
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_nan_in_json_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        files.write_json(tmp_path / "record.json", {"value": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_created_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be created .* another output_dir or cache_dir"):
        files.make_directory(tmp_path / "file" / "below")


def test_the_checksums_have_the_format_of_sha256sum(tmp_path: Path) -> None:
    with files.atomic_directory(tmp_path / "entry") as draft:
        (draft / "file").write_text("content")
    program = "import hashlib; print(hashlib.sha256(b'content').hexdigest() + '  file')"
    expected = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert (tmp_path / "entry" / files.CHECKSUMS).read_text() == expected
