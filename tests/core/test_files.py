"""Tests of atomic writes and checksums."""

import contextlib
import errno
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from distill.core import files
from distill.core.errors import UserError


def test_a_directory_is_replaced_atomically_or_reused_if_it_is_intact(tmp_path: Path) -> None:
    target = tmp_path / "entry"
    for content, expected in (("old", "old"), ("new", "new")):
        with files.atomic_directory(target) as draft:
            (draft / "sub").mkdir()
            (draft / "sub" / "file").write_text(content)
            assert not target.exists() or (target / "sub" / "file").read_text() == "old"
            assert len(list(tmp_path.rglob("entry"))) == target.exists()  # A search finds none that is being written.
        assert (target / "sub" / "file").read_text() == expected
    assert (target / files.CHECKSUMS).read_text() == f"{hashlib.sha256(b'new').hexdigest()}  sub/file\n"
    for content, expected in (("second", "new"), ("third", "third")):
        if content == "third":
            (target / "sub" / "file").write_text("damaged")
        with files.atomic_directory(target, reuse_intact=True) as draft:
            (draft / "sub").mkdir()
            (draft / "sub" / "file").write_text(content)
        assert (target / "sub" / "file").read_text() == expected
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
            assert [found.read_text() for found in tmp_path.rglob("file")] == ["old"]
            raise RuntimeError("half")

    with pytest.raises(RuntimeError, match="half"):
        raise_while_writing()
    with pytest.raises(ValueError, match="Out of range float"):
        files.write_json(path, {"value": float("nan")})
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("file", "old")]
    with pytest.raises(UserError, match="cannot be created .* another output_dir or cache_dir"):
        files.make_directory(path / "below")


def change_list(target: Path) -> None:
    """Cuts the list of checksums off behind its first line."""
    checksums = (target / files.CHECKSUMS).read_text()
    (target / files.CHECKSUMS).write_text(checksums[: checksums.index("\n") + 1])


@pytest.mark.parametrize(
    "damage",
    [
        lambda target: (target / "file").write_text("Content"),
        lambda target: (target / "file").write_text(""),
        lambda target: (target / "folder" / "other").unlink(),
        lambda target: (target / files.CHECKSUMS).unlink(),
        change_list,
    ],
)
def test_damage_is_detected(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    target = tmp_path / "entry"
    with files.atomic_directory(target) as draft:
        (draft / "folder").mkdir()
        for name in ("file", "folder/other"):
            (draft / name).write_text("content")
    (target / ".DS_Store").write_text("hidden files are the system's")
    assert files.is_intact(target)
    damage(target)
    assert not files.is_intact(target)


# A process that is killed while it writes a file and a directory.
KILLED = """
import os, pathlib, signal, sys
from distill.core.files import atomic_directory, atomic_file
root = pathlib.Path(sys.argv[1])
with atomic_file(root / "run" / "last.ckpt") as file, atomic_directory(root / "run" / "bundle") as directory:
    file.write_text("half")
    (file.parent / ".tmp1a2b").write_text("of a library")
    (directory / "model.onnx").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_writer(root: Path) -> None:
    (root / "run").mkdir(exist_ok=True)
    process = subprocess.run([sys.executable, "-c", KILLED, str(root)], check=False)
    assert process.returncode == -9


def test_what_killed_processes_were_writing_is_swept_and_what_others_write_stays(tmp_path: Path) -> None:
    kill_writer(tmp_path)
    left = sorted(path.name.rpartition(".")[0] for path in (tmp_path / "run").iterdir())
    assert left == [".bundle", ".last.ckpt"]
    assert {files.is_abandoned(path) for path in (tmp_path / "run").iterdir()} == {True}
    other = tmp_path / "run" / ".bundle.not-ours"
    other.mkdir()
    with files.atomic_directory(tmp_path / "run" / "sub" / "entry") as draft:
        (draft / "file").write_text("content")
        assert files.is_abandoned(draft.parent) is False
        files.sweep(tmp_path)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".bundle.not-ours", "sub"]
    assert (tmp_path / "run" / "sub" / "entry" / "file").read_text() == "content"


def test_the_next_write_of_a_target_removes_what_killed_processes_left_of_it(tmp_path: Path) -> None:
    kill_writer(tmp_path)
    with files.atomic_directory(tmp_path / "run" / "bundle") as first:
        (first / "file").write_text("first")
        with files.atomic_directory(tmp_path / "run" / "bundle") as second:  # As another process may.
            (second / "file").write_text("second")
        assert first.exists()
    assert sorted(path.name.rpartition(".")[0] for path in (tmp_path / "run").iterdir()) == ["", ".last.ckpt"]
    assert (tmp_path / "run" / "bundle" / "file").read_text() == "first"


def test_a_temporary_directory_of_another_machine_is_not_known_to_be_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_writer(tmp_path)
    [directory] = (tmp_path / "run").glob(".bundle.*")
    monkeypatch.setattr(files.socket, "gethostname", lambda: "another")
    assert files.is_abandoned(directory) is None
    with files.atomic_directory(tmp_path / "run" / "bundle"):
        assert directory.exists()  # The other machine may be writing it.
    shutil.rmtree(tmp_path / "run" / "bundle")
    files.sweep(tmp_path)  # Nobody else writes here.
    assert list((tmp_path / "run").iterdir()) == []


def test_temporary_files_are_no_part_of_the_directory_in_which_they_are(tmp_path: Path) -> None:
    target = tmp_path / "entry"
    with files.atomic_directory(target) as draft:
        (draft / "file").write_text("content")
    with files.atomic_file(target / "other") as temporary:
        temporary.write_text("half")
        assert files.is_intact(target)
        files.write_checksums(target)
    assert files.read_checksums(target) == {"file": files.hash_file(target / "file")}


@pytest.mark.parametrize("write", [files.atomic_file, files.atomic_directory])
@pytest.mark.parametrize(("free", "is_full"), [(0, True), (10**9, False)])
def test_an_error_on_a_full_disk_is_one_of_the_full_disk(
    write: Callable[[Path], contextlib.AbstractContextManager[Path]], free: int, is_full: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Libraries write what fits, and fail when they read it."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: usage._replace(free=free))
    with pytest.raises((OSError, ValueError)) as caught, write(tmp_path / "target"):
        raise ValueError("Wire format was corrupt")
    assert files.is_full_disk(caught.value) is is_full
    assert (getattr(caught.value, "errno", None) == errno.ENOSPC) is is_full
    assert list(tmp_path.iterdir()) == []
