"""Tests of data sets: an upload is whole or not there, and belongs to its owner alone."""

import asyncio
import errno
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pyarrow
import pyarrow.parquet
import pytest
from starlette.requests import ClientDisconnect

from distill.core.errors import UserError
from distill.rows import columns
from distill.serve.http import RefusedError
from distill.serve.jobs import data_sets, previews
from distill.serve.jobs.data_sets import DataSets
from distill.serve.jobs.previews import preview_rows
from tests.serve.jobs.conftest import look
from tests.serve.jobs.test_zips import make_zip

T = TypeVar("T")
ROWS = "".join(f"this is the film that was number {n} of the year,{'good' if n % 3 else 'bad'}\n" for n in range(60))
CSV = f"text,label\n{ROWS}"


async def stream(content: bytes, size: int = 1_000) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def put(
    data: DataSets, name: str, content: str | bytes, format: str = "csv", owner: str = "ada", **options: Any
) -> Any:
    encoded = content.encode() if isinstance(content, str) else content
    return run(data.put(owner, name, stream(encoded), format, **options))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataSets:
    found = DataSets(tmp_path / "data")
    monkeypatch.setattr(found, "_look", look)
    return found


@pytest.fixture
def looked(data: DataSets, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replaces the look through an upload."""
    found: list[Path] = []

    async def note(path: Path, format: str, limit: int) -> dict[str, Any]:
        found.append(path)
        return {"path": path.name, "rows": 3, "preview": {"columns": ["text"], "problems": []}}

    monkeypatch.setattr(data, "_look", note)
    return found


def list_files(data: DataSets) -> list[str]:
    return sorted(path.relative_to(data.directory).as_posix() for path in data.directory.rglob("*") if path.is_file())


def test_an_upload_is_looked_through_listed_and_deleted(data: DataSets) -> None:
    found = put(data, "films", CSV)
    assert (found.name, found.format, found.bytes, found.rows, found.columns) == (
        "films", "csv", len(CSV), 60, ("text", "label"),
    )  # fmt: skip
    preview = data.preview("ada", "films")
    assert preview["first_rows"][0] == {"text": "this is the film that was number 0 of the year", "label": "bad"}
    assert len(preview["first_rows"]) == 10
    assert preview["label_counts"] == {"label": {"bad": 20, "good": 40}}
    assert preview["lengths"] == {"text": {"median": 11, "p95": 11, "longest": 11}}
    assert preview["splits"] == {"data": 60}
    assert preview["problems"] == []
    assert "path" not in preview
    assert data.path("ada", "films").read_text() == CSV
    assert list_files(data) == ["ada/films/about.json", "ada/films/content/films.csv"]
    assert [one.name for one in data.list("ada")] == ["films"]
    assert data.used("ada") == len(CSV)
    data.delete("ada", "films")
    assert data.list("ada") == []
    assert list_files(data) == []


def test_a_process_with_limits_looks_through_an_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataSets(tmp_path / "data")
    assert put(data, "films", CSV).rows == 60
    assert data.preview("ada", "films")["label_counts"] == {"label": {"bad": 20, "good": 40}}
    with pytest.raises(UserError, match="^spans.json needs too much memory to be looked through"):
        put(data, "spans", "[" * 1_000_000, "squad")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UserError, match="the upload cannot be read as csv: it needs too much memory, or it is damaged"):
        put(data, "dead", CSV)
    rest = data.directory / ".uploads" / "abc" / "content"  # As a service leaves it that is killed.
    rest.mkdir(parents=True)
    (rest / "half.csv").write_text("half")
    assert [one.name for one in DataSets(data.directory).list("ada")] == ["films"]
    assert list_files(data) == ["ada/films/about.json", "ada/films/content/films.csv"]


@pytest.mark.parametrize(
    ("content", "format", "reason"),
    [
        (b"", "csv", "the upload has no bytes"),
        (b"not json\n", "jsonl", "films.jsonl has no examples|films.jsonl, line 1 is not valid JSON"),
        (b"PK\x03\x04 zip", "csv", "films.csv looks like zip and not like csv: name its format with format=NAME"),
        (b"PAR1", "parquet", "films.parquet cannot be read"),
        (b"text,label\n", "parquet", "films.parquet does not look like parquet"),
        (b"text,label\n", "zip", "the zip cannot be read: File is not a zip file"),
        (b'{"data": 1}', "squad", "films.json is not in the format of SQuAD"),
        (b"\n\n", "conll", "films.conll is empty, expected a word and its tag on each line"),
        (b"\n\n", "text", "films.txt is empty, expected a text on each line"),
        (b"x\n", "xlsx", "got format='xlsx', expected one of csv, tsv, jsonl"),
        (b"x\n", "../x", "got format='../x', expected one of csv"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_refused_and_nothing_is_left(
    data: DataSets, content: bytes, format: str, reason: str
) -> None:
    with pytest.raises((UserError, RefusedError), match=reason) as caught:
        put(data, "films", content, format)
    assert str(data.directory) not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert list_files(data) == []
    assert list((data.directory / ".uploads").iterdir()) == []


@pytest.mark.parametrize("name", ["", "..", ".x", "a/b", "/etc", "a\0b", "a" * 10_000, "Größe", "-m", "a\n"])
def test_a_wrong_name_is_refused_everywhere(data: DataSets, looked: list[Path], name: str) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: put(data, name, CSV), lambda: put(data, "films", CSV, owner=name), lambda: data.get("ada", name),
        lambda: data.preview("ada", name), lambda: data.path("ada", name), lambda: data.delete("ada", name),
        lambda: data.list(name), lambda: data.path(name, "films"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(UserError, match="expected a name of 1 to 100 letters") as caught:
            call()
        assert len(str(caught.value)) < 300
    assert looked == []


def test_the_same_upload_twice_is_one_data_set_and_others_see_nothing_of_it(data: DataSets, looked: list[Path]) -> None:
    first = put(data, "films", CSV)
    assert put(data, "films", CSV) == first
    for content, format in ((CSV + "x,good\n", "csv"), (CSV, "tsv")):
        with pytest.raises(RefusedError, match="there is a data set films with other content: delete it") as caught:
            put(data, "films", content, format)
        assert caught.value.status == 409
    assert len(looked) == 1
    assert (data.list("bo"), data.used("bo")) == ([], 0)
    for call in (data.get, data.preview, data.path, data.delete):
        with pytest.raises(RefusedError, match="there is no data set films") as caught:
            call("bo", "films")
        assert caught.value.status == 404
    assert put(data, "films", "text\nother\n", owner="bo").bytes == 11
    assert data.path("ada", "films").read_text() == CSV


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ClientDisconnect(), 499, "the upload was cut off"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), None, os.strerror(errno.ENOSPC)),
        (None, 408, r"no bytes of the upload arrived for 0.01 s"),
    ],
)
def test_an_upload_that_ends_early_leaves_nothing(
    data: DataSets, looked: list[Path], monkeypatch: pytest.MonkeyPatch, error: Exception | None,
    status: int | None, reason: str,
) -> None:  # fmt: skip
    async def cut_off() -> AsyncIterator[bytes]:
        yield CSV.encode()[:100]
        if error is not None:
            raise error
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(data_sets, "_IDLE_SECONDS", 0.01)
        with pytest.raises((RefusedError, OSError), match=reason) as caught:
            run(data.put("ada", "films", cut_off(), "csv"))
    assert getattr(caught.value, "status", None) == status
    assert (list_files(data), looked) == ([], [])
    assert put(data, "films", CSV).name == "films"


def test_an_upload_of_exactly_the_limit_is_taken_and_a_larger_one_refused_before_it_is_whole(
    data: DataSets, looked: list[Path]
) -> None:
    data.limit = len(CSV)
    assert put(data, "films", CSV, room=len(CSV)).bytes == len(CSV)
    taken = list[int]()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            taken.append(1)
            yield bytes(2**20)

    for room, status, reason in (
        (None, 413, f"the upload has more than {len(CSV):,} bytes, the limit"),
        (900, 409, "more than the 900 bytes that are left"),
    ):
        with pytest.raises(RefusedError, match=reason) as caught:
            run(data.put("ada", "others", endless(), "csv", room=room))
        assert caught.value.status == status
    assert len(taken) <= 4
    assert list_files(data) == ["ada/films/about.json", "ada/films/content/films.csv"]


@pytest.mark.parametrize(
    ("name", "room", "status", "reason"),
    [
        ("films", None, 409, "the data set films is being uploaded"),
        ("other", 10**6, 503, "other uploads are under way: try again"),
    ],
)
def test_two_uploads_do_not_meet(
    data: DataSets, looked: list[Path], name: str, room: int | None, status: int, reason: str
) -> None:
    async def both() -> RefusedError:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"text\n"
            begun.set()
            await go_on.wait()
            yield b"a\n"

        first = asyncio.create_task(data.put("ada", "films", slow(), "csv"))
        await begun.wait()
        with pytest.raises(RefusedError, match=reason) as caught:
            await data.put("ada", name, stream(b"x"), "csv", room=room)
        assert (await data.put("bo", name, stream(b"x"), "csv", room=room)).bytes == 1
        go_on.set()
        assert (await first).bytes == 7
        return caught.value

    assert run(both()).status == status


def test_a_data_set_that_a_job_reads_is_not_deleted(data: DataSets, looked: list[Path]) -> None:
    put(data, "films", CSV)
    reading = DataSets(data.directory, is_read=lambda owner, name: (owner, name) == ("ada", "films"))
    with pytest.raises(RefusedError, match="a job reads the data set films: wait for its end or cancel it") as caught:
        reading.delete("ada", "films")
    assert caught.value.status == 409
    with data.hold("ada", ["films"]), pytest.raises(RefusedError, match="a job reads the data set films"):
        data.delete("ada", "films")
    data.delete("ada", "films")


def test_a_zip_becomes_a_directory_of_splits(data: DataSets) -> None:
    files = {"train.csv": CSV, "dev.csv": CSV, "LICENSE": "x", "notes.txt": "hi"}
    packed = make_zip(*((f"films/{name}", content) for name, content in files.items()))
    found = put(data, "films", packed, "zip")
    assert (found.rows, found.columns) == (120, ("text", "label"))
    path = data.path("ada", "films")
    assert sorted(file.name for file in path.iterdir()) == ["dev.csv", "notes.txt", "train.csv"]
    preview = data.preview("ada", "films")
    assert preview["splits"] == {"train": 60, "dev": 60}
    assert preview["files"][0] == {"name": "dev.csv", "bytes": len(CSV)}
    assert "files that are no data are left out: films/LICENSE: this needs no action" in preview["problems"]
    assert any("dev" in problem for problem in preview["problems"])  # It has the texts of train.
    data.delete("ada", "films")
    assert list_files(data) == []


def test_the_files_of_a_zip_are_splits_as_a_training_finds_them(data: DataSets) -> None:
    put(data, "parts", make_zip(*((f"train-0000{part}-of-00002.csv", CSV) for part in (0, 1))), "zip")
    assert data.preview("ada", "parts")["splits"] == {"train": 120}
    put(data, "two", make_zip(("train.csv", CSV), ("train.tsv", CSV)), "zip")
    [problem] = data.preview("ada", "two")["problems"]
    assert problem.startswith("two has train.csv and train.tsv, expected one file for train: move the others away")


def test_the_other_formats_are_previewed(data: DataSets, tmp_path: Path) -> None:
    conll = "-DOCSTART- O\n\nThe O\nHague B-LOC\n\nis O\nin O extra\n"
    assert put(data, "tags", conll, "conll").rows == 2
    preview = data.preview("ada", "tags")
    assert preview["label_counts"] == {"1": {"O": 2, "B-LOC": 1}}
    assert preview["first_rows"][0] == {"0": "The Hague", "1": "O B-LOC"}
    assert preview["problems"][0].startswith("1 line cannot be read (line 7): line 7 has 3 fields, and line 3 has")

    context = "A film of 1999."
    questions = [
        {"question": "When?", "answers": [{"text": "1999", "answer_start": 10}]}, {"question": "Who?", "answers": []},
        {"question": "What?", "answers": [{"text": "film", "answer_start": 5}]},
    ]  # fmt: skip
    squad = json.dumps({"data": [{"paragraphs": [{"context": context, "qas": questions}]}]})
    assert put(data, "spans", squad, "squad").rows == 3
    preview = data.preview("ada", "spans")
    assert preview["label_counts"] == {"answers": {"with an answer": 2, "without an answer": 1}}
    assert preview["problems"] == [
        "spans.json, example 3: the answer 'film' is not in its context at answer_start 5, where the context has "
        "'m of': it is at 2; answer_start counts code points"
    ]

    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a b", "c"], "score": [float("nan"), 2.0]}), path)
    assert put(data, "table", path.read_bytes(), "parquet").rows == 2
    assert data.preview("ada", "table")["first_rows"] == [{"text": "a b", "score": "nan"}, {"text": "c", "score": 2.0}]

    assert put(data, "lines", "one text\n\nand two\n", "text").rows == 2
    rows = [{"text": "<script>alert(1)</script>", "n": 2**70}, {"text": "\ud800", "n": None}]
    assert put(data, "objects", "\n".join(map(json.dumps, rows)), "jsonl").rows == 2
    preview = data.preview("ada", "objects")
    assert preview["first_rows"] == [
        {"text": "<script>alert(1)</script>", "n": str(2**70)},
        {"text": "\\ud800", "n": None},
    ]
    json.dumps(preview, ensure_ascii=False).encode()


def test_of_a_large_file_the_first_rows_are_looked_through_and_all_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(previews, "LARGEST", 1_000)
    monkeypatch.setattr(columns, "FIRST_ROWS", 20)
    rows = [f"this is the film that was number {number} of the year" for number in range(60)]
    table = pyarrow.table({"text": rows, "label": ["good", "bad"] * 30})
    files = {
        "x.csv": CSV, "x.tsv": CSV.replace(",", "\t"),
        "x.jsonl": "\n".join(json.dumps({"text": row, "label": "good"}) for row in rows),
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    for name in (*files, "x.parquet"):
        preview = preview_rows({"data": (tmp_path / name,)})
        assert preview["splits"] == {"data": 60}, name
        assert any("of 60 rows are looked through: a job reads all of them" in one for one in preview["problems"])
        assert preview["first_rows"][0]["text"].startswith("this is the film that was number 0")
    assert {path.name for path in tmp_path.iterdir()} == {*files, "x.parquet"}
