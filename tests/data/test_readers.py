"""Tests that files of rows are read as they are at that moment, and files without a clear meaning are refused."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distill.core.errors import UserError
from distill.data.check import profile_files
from distill.data.labelled_text import RowRules
from distill.data.sources import read_file
from distill.data.splits import LabelledData
from distill.kinds import Classification, Regression
from distill.rows import formats
from distill.rows.columns import Table, read_columns
from distill.rows.formats import read_rows

WANTED = ("text", "label")
LONG = "word " * 30_000  # Above the limit of `csv`, 131,072 characters.


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Table]:
    """Writes a file and reads its text and label."""

    def write_and_read(name: str, content: bytes | str | pa.Table) -> Table:
        path = tmp_path / name
        if isinstance(content, pa.Table):
            pq.write_table(content, path)
        else:
            data = content.encode() if isinstance(content, str) else content
            path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return read_file(path, WANTED)

    return write_and_read


Read = Callable[..., Table]


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_long_first_row_of_csv_is_read_and_the_limit_of_other_readers_is_kept(read: Read, quote: str) -> None:
    before = csv.field_size_limit()
    rows = f"text,label\n{quote}{LONG}{quote},1\nb,0\n"
    assert read("a.csv", rows).columns == {"text": [LONG, "b"], "label": ["1", "0"]}
    assert read("a.tsv", f"text\tlabel\n{LONG}\t1\n").columns["text"] == [LONG]
    with pytest.raises(UserError, match="opens a quote that is never closed"):
        read("a.csv", f'text,label\n"{LONG},1\nb,0\n')
    assert csv.field_size_limit() == before == 131_072


def test_fields_are_read_as_they_are(read: Read) -> None:
    content = 'id,text,label,\r\n1,"a ""quoted"", text",x,\r\n\r\n2,"two\r\nlines",5" disk,\r\n3, b ,NA,\n'
    table = read("a.csv", content)
    assert table.names == ("id", "text", "label", "")
    assert table.columns == {"text": ['a "quoted", text', "two\r\nlines", " b "], "label": ["x", '5" disk', "NA"]}
    table = read("a.tsv", 'text\tlabel\n"a\t1\n  \n\x0b\x0c\u2028\x85b\t"0"')
    assert table.columns == {"text": ['"a', "\x0b\x0c\u2028\x85b"], "label": ["1", '"0"']}


def test_json_strings_that_look_like_other_types_stay_strings(read: Read) -> None:
    texts = ["2020-01-01", "007", "1.50", "true", "null", "2020-01-01T00:00:00Z"]
    rows = [{"text": text, "label": index % 2} for index, text in enumerate(texts)]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    assert read("a.jsonl", content).columns["text"] == texts


def test_json_rows_may_have_other_columns_of_any_type(read: Read) -> None:
    rows = [{"text": "a", "meta": {"x": 1}}, {"meta": [1, "x"], "text": "b", "label": 1}, {"text": None, "more": 2.5}]
    table = read("a.jsonl", "\n\n".join(map(json.dumps, rows)))
    assert table.names == ("text", "meta", "label", "more")
    assert table.columns == {"text": ["a", "b", None], "label": [None, 1, None]}


def test_a_parquet_file_has_values_of_categories_and_no_columns_of_its_path(read: Read, tmp_path: Path) -> None:
    (tmp_path / "id=1").mkdir()
    frame = pandas.DataFrame({"text": ["a", "b"], "label": pandas.Categorical(["yes", "no"])})
    table = read("id=1/train.parquet", pa.Table.from_pandas(frame))
    assert (table.names, table.columns["label"]) == (("text", "label"), ["yes", "no"])


ROW = b"text,label\na,1\n"
UNREADABLE: dict[str, tuple[str, Any, str]] = {
    "a NUL byte": ("a.csv", ROW + b"b\0,1\n", "line 3 has a NUL byte, expected text in UTF-8: is it UTF-16"),
    "a NUL byte in JSON": ("a.jsonl", b'{"text": "a\0", "label": 1}\n', "line 1 has a NUL byte"),
    "UTF-16": ("a.csv", ROW.decode().encode("utf-16"), "a.csv is in UTF-16 or UTF-32, expected UTF-8: convert it with"),
    "Latin-1": ("a.jsonl", b'{"text": "caf\xe9"}\n', "line 1 is not UTF-8 (byte 0xe9), expected UTF-8: convert the"),
    "a lone carriage return in TSV": (
        "a.tsv", b"text\tlabel\na\rb\t1\n",
        r"line 2 has a carriage return (\r) without a line feed, which may end a row or belong to a text: expected",
    ),
    "a lone carriage return in CSV": ("a.csv", ROW + b"b\rc,0\n", r"line 3 has a carriage return (\r) without"),
    "a doubled column": ("a.csv", b"text,label,text\na,1,b\n", "has the column text twice, expected different names"),
    "a doubled key": (
        "a.jsonl", b'{"text": "a", "label": 1}\n{"text": "b", "label": 0, "label": 1}\n',
        "line 2 has the key 'label' twice, expected it once",
    ),
    "a doubled column in Parquet": (
        "a.parquet", pa.Table.from_arrays([pa.array(["a"])] * 2, names=["text", "text"]), "has the column text twice",
    ),
    "white space after a column": ("a.csv", b"text,label,label \na,1,2\n", "has the columns 'label' and 'label ', exp"),
    "a header alone": ("a.csv", b"text,label\n\n  \n", "a.csv has a header and no examples"),
    "blank lines alone": ("a.csv", b"\n\n", "a.csv is empty, expected a header and examples"),
    "blank JSON": ("a.jsonl", b"\n\n", "a.jsonl has no examples, expected an object on every line"),
    "a field too many": ("a.csv", ROW + b"b,1,\n", "line 3 has 3 fields, its header 2: expected as many in every row"),
    "a field too few in TSV": ("a.tsv", b"text\tlabel\na\t1\nb\nc\t0\n", "line 3 has 1 field, its header 2"),
    "a quote that is never closed": ("a.csv", ROW + b'"b,1\nc,0\n', "line 3 opens a quote that is never closed"),
    "text behind a quote": ("a.csv", ROW + b'"b" c,1\n', "line 3: ',' expected after '\"'; a quote inside of a quoted"),
    "JSON that ends early": ("a.jsonl", b'{"text": "a", "label": 1}\n{"text": "b', "line 2 is not valid JSON: Unterm"),
    "a JSON array": ("a.jsonl", b'[{"text": "a", "label": 1}]\n', "line 1 is [{'label': 1, 'text': 'a'}], expected an"),
    "two objects in a line": ("a.jsonl", b'{"text": "a"}{"text": "b"}\n', "line 1 is not valid JSON: Extra data"),
    "a number of 5,000 digits": ("a.jsonl", b'{"label": ' + b"1" * 5_000 + b"}\n", "line 1 is not valid JSON: Exceeds"),
    "deep JSON": ("a.jsonl", b"[" * 200_000 + b"]" * 200_000, "line 1 is not valid JSON: maximum recursion depth"),
    "no Parquet": ("a.parquet", b"text,label", "a.parquet cannot be read: Parquet magic bytes not found"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_file_without_a_clear_meaning_is_refused(read: Read, case: str) -> None:
    name, content, message = UNREADABLE[case]
    with pytest.raises(UserError) as caught:
        read(name, content)
    assert message in str(caught.value)
    assert name in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.exit_code == 2


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    for end in (-1, -8, -20, 15, 3):
        (tmp_path / "a.csv.gz").write_bytes(gzip.compress(ROW + b"b,0\n" * 500)[:end])
        with pytest.raises(UserError, match=r"a\.csv\.gz cannot be read: "):
            read_file(tmp_path / "a.csv.gz", WANTED)


def test_damaged_metadata_of_a_parquet_file_is_refused(read: Read) -> None:
    table = pa.table({"text": ["a"], "label": [1]})
    for content in (b'{"info": "features"}', b'{"info": {"features": [1]}}', b'{"info"'):
        with pytest.raises(UserError, match=r"a\.parquet has damaged metadata of the datasets library"):
            read("a.parquet", table.replace_schema_metadata({b"huggingface": content}))


def test_a_flipped_byte_of_a_parquet_file_with_checksums_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["a lovely film"], "label": [1]})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    path.write_bytes(path.read_bytes().replace(b"lovely", b"lonely"))
    with pytest.raises(UserError, match=r"a\.parquet cannot be read: .*CRC"):
        read_file(path, WANTED)


def test_a_file_without_read_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_bytes(ROW)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(formats, "open", refuse, raising=False)
    with pytest.raises(UserError, match=r"a\.csv cannot be read: Permission denied"):
        read_file(tmp_path / "a.csv", WANTED)


def test_doubled_columns_of_data_in_memory_are_refused() -> None:
    data = datasets.Dataset.from_dict({"text": ["a"], "label ": [1], "label": [1]})
    with pytest.raises(UserError, match="the split train has the columns 'label ' and 'label', expected different"):
        Classification(text="text", train=data, dev=data).read(Path("nowhere"))


def test_a_missing_column_is_shown_with_its_white_space_and_long_names_are_shortened(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(f"text , label,{LONG}\na,1,2\n")
    (tmp_path / "dev.csv").write_text("text,label\na,1\n")
    with pytest.raises(UserError, match=r"train\.csv has no column text, label: it has 'text ', ' label', ") as caught:
        Classification(text="text", data=tmp_path).read(tmp_path)
    assert len(str(caught.value)) < 500


# Texts


def read_pairs(pairs: list[tuple[Any, Any]], kind: Any = Classification, **options: Any) -> LabelledData:
    labels = [index % 2 for index in range(len(pairs))]
    columns = {"first": [pair[0] for pair in pairs], "second": [pair[1] for pair in pairs], "label": labels}
    splits = {"train": columns, "dev": ([("e", "f")], [0])}
    data: LabelledData = kind(text=["first", "second"], **splits, **options).read(Path("nowhere"))
    return data


@pytest.mark.parametrize("kind", [Classification, Regression])
def test_one_text_of_a_pair_may_be_empty(capsys: pytest.CaptureFixture[str], kind: Any) -> None:
    data = read_pairs([("a", "b"), ("", "c"), ("d", " ")], kind)
    assert data.splits["train"].records() == [["a", "b"], ["", "c"], ["d", " "]]
    printed = [line for line in capsys.readouterr().out.splitlines() if "pairs" in line]
    assert printed == ["Notice: the split train: pairs with one empty text, which are used as they are: 2"]
    for pair, message in (
        (("", " "), "no text in either column of the pair"),
        ((None, "c"), "no text but None or the"),
    ):
        with pytest.raises(UserError, match=rf"1 of 2 rows has {message} .*\(example 2\): "):
            read_pairs([("a", "b"), pair], kind, missing="error")


def test_an_unpaired_surrogate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dev.jsonl").write_text('{"text": "a", "label": "x"}\n')
    for text, label in (("\\ud800", "y"), ("b", "\\ud800")):
        rows = f'{{"text": "a", "label": "x"}}\n{{"text": "{text}", "label": "{label}"}}\n'
        (tmp_path / "train.jsonl").write_text(rows)
        with pytest.raises(UserError, match=r"train\.jsonl, line 2: .* unpaired surrogate"):
            Classification(text="text", data=tmp_path).read(tmp_path)


# Semicolons and decimal commas, as Excel writes them in Europe

EXCEL = 'Satz;Note;Tag\n"gut; sehr gut";3,5;1,5\nes geht;-1,25;-\nschlecht, leider;2;3\n'


def write_sheet(path: Path, content: str, encoding: str = "utf-8-sig") -> Path:
    path.write_text(content, encoding=encoding, newline="")
    return path


@pytest.mark.parametrize("first", ["", "sep=;\r\n"])
def test_semicolons_and_decimal_commas_are_read_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: str
) -> None:
    path = write_sheet(tmp_path / "rows.csv", first + EXCEL.replace("\n", "\r\n"))
    table = read_file(path, ["Satz", "Note"])
    assert table.names == ("Satz", "Note", "Tag")
    assert table.columns == {"Satz": ["gut; sehr gut", "es geht", "schlecht, leider"], "Note": ["3.5", "-1.25", "2"]}
    assert list(table.lines or ()) == [2 + bool(first), 3 + bool(first), 4 + bool(first)]
    note = "the columns are read as separated by ';', and 3,5 in Note is the number 3.5"
    assert capsys.readouterr().out == f"Notice: {path}: {note}\n"
    assert [row["Tag"] for _, row in read_rows(path)] == ["1,5", "-", "3"]  # Not all of them are numbers.
    profile = profile_files({"data": (path,)}, RowRules(text=("Satz",), label=("Note",)))
    assert (profile.chosen.task, profile.numbers) == ("regression", (-1.25, pytest.approx(4.25 / 3), 3.5))
    assert note in [problem.summary for problem in profile.problems]


@pytest.mark.parametrize(
    ("content", "names", "first"),
    [
        ("text,label\na;b,1\nc;d,2\n", ("text", "label"), "a;b"),
        ('"text;note",label\na;b,"1,5"\n', ("text;note", "label"), "a;b"),
        ("text, kurz;label\na, b, c;1\nd;2\n", ("text, kurz", "label"), "a, b, c"),
        ("text;label\na;1\nb;2\nragged\nc;3\n", ("text", "label"), "a"),
        ("text\na; b\n", ("text",), "a; b"),
        ("text,label\na;b,1\nragged;one\n", ("text", "label"), "a;b"),
    ],
)
def test_the_delimiter_is_the_one_that_gives_columns(
    tmp_path: Path, content: str, names: tuple[str, ...], first: str
) -> None:
    table = read_columns(write_sheet(tmp_path / "rows.csv", content))
    assert (table.names, table.columns[names[0]][0]) == (names, first)


def test_a_row_of_another_length_and_an_open_quote_are_still_refused_with_their_lines(tmp_path: Path) -> None:
    path = write_sheet(tmp_path / "rows.csv", 'sep=;\ntext;label\na;1\nb;2;3\nc;"4\n')
    with pytest.raises(UserError, match=r"rows.csv, line 4 has 3 fields, its header 2"):
        read_file(path, ["text"])
    path = write_sheet(tmp_path / "rows.csv", 'sep=;\ntext;label\na;1\nc;"4\n')
    with pytest.raises(UserError, match=r"rows.csv, line 4 opens a quote that is never closed"):
        read_file(path, ["text"])
