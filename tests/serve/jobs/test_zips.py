"""Tests of zips and gzip of strangers: nothing is written elsewhere, and never more than was allowed."""

import gzip
import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distill.core.errors import UserError
from distill.serve.jobs.uploads import ZipLimits, unpack, unpack_gzip
from tests.fuzzing import damages, fuzz

ROWS = "text,label\n" + "a film,good\n" * 20
LINK = 0o120777 << 16


def make_zip(*entries: tuple[str | zipfile.ZipInfo, str], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for entry, content in entries:
            archive.writestr(entry, content)
    return buffer.getvalue()


def make_entry(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = mode
    return entry


def open_zip(tmp_path: Path, content: bytes, limits: ZipLimits | None = None) -> list[str]:
    path, target = tmp_path / "upload.zip", tmp_path / "inside" / "target"
    target.mkdir(parents=True)
    path.write_bytes(content)
    return unpack(path, target, limits or ZipLimits())


def list_all(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir())


def test_files_of_data_are_unpacked_and_others_are_named(tmp_path: Path) -> None:
    content = make_zip(
        ("set/", ""), ("set/train.csv", ROWS), ("set/sub/Größe.JSONL", "{}"), ("set/README.md", "x"), ("run.py", "x"),
        ("__MACOSX/set/._train.csv", "x"), ("set/.hidden.csv", "x"), ("set/model.bin", "x"), ("set/dev.csv.gz", "x"),
    )  # fmt: skip
    left_out = open_zip(tmp_path, content)
    target = tmp_path / "inside" / "target"
    assert list_all(target) == ["set/sub/Größe.JSONL", "set/train.csv"]
    assert (target / "set" / "train.csv").read_text() == ROWS
    assert "set/README.md" in left_out
    assert len(left_out) == 6
    assert all(path.stat().st_mode & 0o7111 == 0 for path in target.rglob("*") if path.is_file())


def overlong_name() -> bytes:
    """Returns a zip whose directory has another name than its local header has: a NUL cuts it off."""
    content = make_zip(("train.csvXevil.csv", ROWS))
    return content.replace(b"train.csvX", b"train.csv\0")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (make_zip(("../evil.csv", "x")), "an entry with the name '../evil.csv', which is no plain one"),
        (make_zip(("/etc/evil.csv", "x")), "which is no plain one"),
        (make_zip(("a\\evil.csv", "x")), "which is no plain one"),
        (make_zip(("a" * 10_000 + ".csv", "x")), "which is no plain one"),
        (overlong_name(), "which is no plain one"),
        (make_zip(("a/" * 9 + "x.csv", "x")), "in 9 directories, the limit is 7"),
        (make_zip((make_entry("link.csv", LINK), "/etc/passwd")), "is a link or a device and no file"),
        (make_zip(("a.csv", "x"), ("A.CSV", "y")), "twice, or names that differ in case alone"),
        (make_zip(("a.csv", "x"), ("a.csv/b.csv", "y")), "as a file and as a directory"),
        (make_zip(("README.md", "x")), "has no file of data: expected .csv"),
        (make_zip(("x.csv", "x" * 100), compression=zipfile.ZIP_LZMA), "a method of compression that is not deflate"),
        (make_zip(("x.csv", "a" * 10_000_000)), "which is over 200 times as large unpacked"),
        (make_zip(*((f"{n}.csv", "x" * 400) for n in range(4))), "more than 1,500 bytes when it is unpacked"),
        (make_zip(*((f"{n}.csv", "x") for n in range(12))), "has 12 entries, the limit is 10"),
        (b"text,label\n", "the zip cannot be read: File is not a zip file"),
        (make_zip(("x.csv", ROWS))[:-30], "the zip cannot be read"),
    ],
    # An archive tells the time at which it was made: as part of a name it would differ among workers.
    ids=lambda value: value if isinstance(value, str) else "zip",
)  # fmt: skip
def test_a_hostile_zip_is_refused_in_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    small = "1,500" in reason
    limits = ZipLimits(entries=10, bytes=1_500 if small else 2**30)
    with pytest.raises(UserError, match=reason) as caught:
        open_zip(tmp_path, content, limits)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500
    assert {name.partition("/")[0] for name in list_all(tmp_path)} <= {"upload.zip", "inside"}
    assert all(name == "upload.zip" or name.startswith("inside/target/") for name in list_all(tmp_path))


def test_a_zip_with_a_password_or_a_wrong_size_is_refused(tmp_path: Path) -> None:
    content = bytearray(make_zip(("x.csv", ROWS)))
    for signature, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + place] |= 1
    with pytest.raises(UserError, match=r"'x.csv', which needs a password: pack it without one"):
        open_zip(tmp_path / "locked", bytes(content))
    wrong, size = make_zip(("x.csv", "a,b\n" * 1_000_000)), struct.pack("<I", 4_000_000)
    assert wrong.count(size) == 2
    with pytest.raises(UserError, match="the zip cannot be read"):  # Its CRC is of more bytes.
        open_zip(tmp_path / "wrong", wrong.replace(size, struct.pack("<I", 10)))


@fuzz(50)
@given(st.data())
def test_a_damaged_zip_is_unpacked_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = make_zip(
        ("set/train.csv", ROWS), (make_entry("set/link.csv", LINK) if data.draw(st.booleans()) else "b.tsv", "x")
    )
    directory = tmp_path_factory.mktemp("zip")
    try:
        open_zip(directory, data.draw(damages(content)), ZipLimits(bytes=100_000))
    except UserError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
    assert all(name == "upload.zip" or name.startswith("inside/target/") for name in list_all(directory))
    assert not any(path.is_symlink() for path in directory.rglob("*"))


@pytest.mark.parametrize(
    ("damage", "limit", "reason"),
    [
        (lambda content: content, 100, "has more than 100 bytes when it is unpacked, the limit"),
        (lambda content: content[:-10], 10**9, "x.csv cannot be unpacked"),
        (lambda content: content[:20] + b"damage" + content[26:], 10**9, "x.csv cannot be unpacked"),
        (lambda content: gzip.compress(bytes(10**7)), 10**9, "is over 200 times as large when it is unpacked"),
    ],
)
def test_gzip_is_unpacked_in_place_or_refused(
    tmp_path: Path, damage: Callable[[bytes], bytes], limit: int, reason: str
) -> None:
    path = tmp_path / "x.csv"
    for content in (ROWS.encode(), gzip.compress(ROWS.encode())):
        path.write_bytes(content)
        unpack_gzip(path, 1_000)
        assert path.read_text() == ROWS
    path.write_bytes(damage(gzip.compress(ROWS.encode())))
    with pytest.raises(UserError, match=reason):
        unpack_gzip(path, limit)
