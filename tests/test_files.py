"""Files that another run may read are whole or not there."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from distill import files
from distill.errors import UserError


def test_a_directory_appears_whole_and_replaces_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "cache" / "entry"
    for content in ("old", "new"):
        with files.atomic_directory(target) as draft:
            (draft / "sub").mkdir()
            (draft / "sub" / "file").write_text(content)
            assert not target.exists() or (target / "sub" / "file").read_text() == "old"
    assert (target / "sub" / "file").read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["entry"]


def test_an_entry_that_others_may_read_is_kept_while_it_is_intact(tmp_path: Path) -> None:
    target = tmp_path / "entry"
    for content, expected in (("first", "first"), ("second", "first"), ("third", "third")):
        if content == "third":
            (target / "file").write_text("damaged")
        with files.atomic_directory(target, reuse_intact=True) as draft:
            (draft / "file").write_text(content)
        assert (target / "file").read_text() == expected
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_text(path, "old")

    def break_off() -> None:
        with files.atomic_file(path) as temporary:
            temporary.write_text("ha")
            assert path.read_text() == "old"
            raise RuntimeError("half")

    with pytest.raises(RuntimeError, match="half"):
        break_off()
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("file", "old")]


def test_what_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    def break_off() -> None:
        with files.atomic_directory(tmp_path / "entry") as draft:
            (draft / "file").write_text("half")
            raise RuntimeError("half")

    with pytest.raises(RuntimeError, match="half"):
        break_off()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["change", "truncate", "remove", "unseal"])
def test_damage_is_noticed(tmp_path: Path, damage: str) -> None:
    target = tmp_path / "entry"
    with files.atomic_directory(target) as draft:
        (draft / "file").write_text("content")
    assert files.is_intact(target)
    if damage == "change":
        (target / "file").write_text("Content")
    elif damage == "truncate":
        (target / "file").write_text("")
    elif damage == "remove":
        (target / "file").unlink()
    else:
        (target / files.CHECKSUMS).unlink()
    assert not files.is_intact(target)


def test_many_writers_of_one_directory_all_end_well(tmp_path: Path) -> None:
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


def test_json_is_json_or_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        files.write_json(tmp_path / "record.json", {"value": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be created .* another output_dir or cache_dir"):
        files.make_directory(tmp_path / "file" / "below")


def test_the_checksums_are_those_of_the_usual_command(tmp_path: Path) -> None:
    with files.atomic_directory(tmp_path / "entry") as draft:
        (draft / "file").write_text("content")
    program = "import hashlib; print(hashlib.sha256(b'content').hexdigest() + '  file')"
    expected = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert (tmp_path / "entry" / files.CHECKSUMS).read_text() == expected
