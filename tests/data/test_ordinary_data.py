"""Tests of files as people have them: each problem is one message with the lines of the file."""

import csv
import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distill.core.errors import UserError
from distill.data.splits import LabelledData
from distill.kinds import Classification

CLASSES = ("bad", "fine", "good")
Row = list[Any]


def make_rows(count: int = 300) -> list[Row]:
    """Returns ids, texts and labels. Each tenth text has a line feed, so that no line has the number of its row."""
    return [
        [f"r-{index:05}", f"review {index} of{chr(10) if index % 10 == 3 else ' '}a film", CLASSES[index % 3]]
        for index in range(count)
    ]


def write_csv(path: Path, rows: list[Row]) -> list[int]:
    """Writes rows with blank lines between some of them; returns the line in which each begins."""
    text, lines = "id,review,stars\n", []
    for index, row in enumerate(rows):
        text += "\n" if index % 50 == 20 else ""
        lines.append(text.count("\n") + 1)
        file = io.StringIO(newline="")
        csv.writer(file, lineterminator="\n").writerow(row)
        text += file.getvalue()
    content = text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return lines


def read(path: Path, *, kind: Any = Classification, **options: Any) -> LabelledData:
    data: LabelledData = kind(**{"text": "review", "label": "stars", "data": path, **options}).read(path.parent)
    return data


@pytest.fixture
def notices(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """Returns the notices that were printed."""
    return lambda: [line for line in capsys.readouterr().out.splitlines() if line.startswith("Notice:")]


def test_rows_without_a_label_go_to_the_teacher(tmp_path: Path, notices: Callable[[], list[str]]) -> None:
    rows = make_rows()
    without = [37, 44, 121, 122, 200, 256]
    for row in without:
        rows[row][2] = ""
    lines = write_csv(tmp_path / "a.csv.gz", rows)
    data = read(tmp_path / "a.csv.gz")
    assert data.pool.rows.texts == [rows[row][1] for row in without]
    shown = data.pool.fit_share(data.sizes()["train"])
    assert (shown.share, shown.record()["examples"]) == (6 / (6 + data.sizes()["train"]), 6)
    assert shown.record()["removed"] == {"empty": 0, "dev": 0, "train": 0, "doubled": 0}
    assert sum(data.sizes().values()) == 294
    [notice] = notices()
    first = ", ".join(str(lines[row]) for row in without[:4])
    assert f"a.csv.gz: 6 of 300 rows have no label (lines {first}, {lines[200]} and 1 more): only the teacher" in notice
    write_csv(tmp_path / "b.csv", [[*row[:2], "" if number < 200 else row[2]] for number, row in enumerate(rows)])
    assert len(read(tmp_path / "b.csv").pool) > 200
    assert "this is more than half, so check task.label" in notices()[0]


def test_labelled_rows_are_split_as_without_the_others(tmp_path: Path) -> None:
    write_csv(tmp_path / "clean.csv", make_rows())
    write_csv(tmp_path / "more.csv", [*make_rows(), ["x", "no label", ""], ["y", "", "good"]])
    clean, more = read(tmp_path / "clean.csv"), read(tmp_path / "more.csv")
    assert more.sha256 == clean.sha256
    # The digest, by which teachers are cached, is the same on every machine.
    assert clean.sha256 == "f54d844799bda5f7a34ebb964d1d9060dfd9464464db0b9db28001d2075d8cfd"
    assert more.splits["dev"].texts == clean.splits["dev"].texts
    assert (len(more.pool), len(clean.pool), clean.pool.share) == (1, 0, 0.5)


def test_rows_without_a_label_are_the_first_of_further_texts(tmp_path: Path) -> None:
    rows = make_rows()
    rows[5][2] = rows[6][2] = ""
    rows[6][1] = rows[7][1]  # Also a text of train or dev.
    write_csv(tmp_path / "a.csv", rows)
    data = read(tmp_path / "a.csv", unlabelled=["another text", rows[5][1]], unlabelled_share=0.25)
    assert data.pool.rows.texts == [rows[5][1], "another text"]
    removed = data.pool.removed
    assert (removed["dev"] + removed["train"], removed["doubled"]) == (1, 1)
    assert data.pool.fit_share(10).share == 0.25  # Other texts have the share that is set.


def test_the_sentiments_minus_one_to_one_are_not_guessed(tmp_path: Path) -> None:
    lines = write_csv(tmp_path / "a.csv", [[0, f"text {index}", index % 3 - 1] for index in range(90)])
    expected = rf"line {lines[0]}: label -1 often marks .*-1,0,1\]; task\.missing=drop leaves"
    with pytest.raises(UserError, match=expected):
        read(tmp_path / "a.csv")
    assert read(tmp_path / "a.csv", labels=["-1", "0", "1"]).labels == ("-1", "0", "1")
    dropped = read(tmp_path / "a.csv", missing="drop")
    assert (dropped.labels, sum(dropped.sizes().values())) == (("0", "1"), 60)


def test_missing_says_what_happens_to_rows_without_a_label(tmp_path: Path, notices: Callable[[], list[str]]) -> None:
    rows = make_rows()
    rows[9][2], rows[11][1] = "", " "
    lines = write_csv(tmp_path / "a.csv", rows)
    assert len(read(tmp_path / "a.csv", missing="unlabelled").pool) == 1
    dropped = read(tmp_path / "a.csv", missing="drop")
    assert (len(dropped.pool), sum(dropped.sizes().values())) == (0, 298)
    assert "they are left out; 1 of 300 rows has no label" in notices()[-1]
    with pytest.raises(UserError) as caught:
        read(tmp_path / "a.csv", missing="error")
    assert str(caught.value) == (
        f"{tmp_path / 'a.csv'}: 1 of 300 rows has no text (line {lines[11]}): set task.missing=drop to leave them out; "
        f"1 of 300 rows has no label (line {lines[9]}): set task.missing=drop to leave them out, or "
        "task.missing=unlabelled to have the teacher label those of train"
    )


def test_rows_of_dev_and_test_without_a_label_are_left_out(tmp_path: Path, notices: Callable[[], list[str]]) -> None:
    for split in ("train", "dev", "test"):
        rows = make_rows(60)
        for row in rows:
            row[1] += split
        rows[30][2] = "" if split != "train" else "good"
        lines = write_csv(tmp_path / f"{split}.csv", rows)
    data = read(tmp_path)
    assert (data.sizes(), len(data.pool)) == ({"train": 60, "dev": 59, "test": 59}, 0)
    expected = f"test.csv: 1 of 60 rows has no label (line {lines[30]}): they are left out"
    assert any(expected in notice for notice in notices())


def test_a_class_of_few_rows_is_named_with_its_lines(tmp_path: Path) -> None:
    rows = make_rows()
    rows[52][2] = "odd"
    lines = write_csv(tmp_path / "a.csv", rows)
    with pytest.raises(UserError) as caught:
        read(tmp_path / "a.csv")
    assert "a.csv cannot be split with task.dev_fraction=0.1 so that train and dev hold every" in str(caught.value)
    assert f"1 of 4 classes has fewer than 2 rows: odd (1: line {lines[52]}); add rows, join" in str(caught.value)
    write_csv(tmp_path / "a.csv", [[0, f"text {index}", f"class {index % 20}"] for index in range(60)])
    expected = r"6 of 60 rows would be dev, and there are 20 classes; set task\.dev_fraction=0\.34"
    with pytest.raises(UserError, match=expected):
        read(tmp_path / "a.csv")
    assert read(tmp_path / "a.csv", dev_fraction=0.34).sizes() == {"train": 39, "dev": 21}


def test_ids_as_text_are_named_with_the_columns_of_text(tmp_path: Path, notices: Callable[[], list[str]]) -> None:
    rows = make_rows()
    write_csv(tmp_path / "a.csv", rows)
    read(tmp_path / "a.csv", text="id")
    assert notices() == [
        f"Notice: {tmp_path / 'a.csv'}: the column id looks like ids (r-00000, r-00001, r-00002) and not like text: "
        "name the column of the text, as in task.text=[review]"
    ]
    write_csv(tmp_path / "a.csv", [[12345 + number, *row[1:]] for number, row in enumerate(rows)])
    with pytest.raises(UserError, match=r"the column id looks like ids \(12345, 12346, 12347\).*task\.text=\[review\]"):
        read(tmp_path / "a.csv", text="id")


def test_no_label_of_several_is_none_of_them_unless_it_is_missing(
    tmp_path: Path, notices: Callable[[], list[str]]
) -> None:
    rows = [[0, f"text {index}", "a|b" if index % 2 else "b"] for index in range(60)]
    rows[3][2] = ""
    lines = write_csv(tmp_path / "a.csv", rows)
    data = read(tmp_path / "a.csv", multi_label=True)
    assert (len(data.pool), sum(data.sizes().values())) == (0, 60)
    expected = f"1 of 60 rows has no label (line {lines[3]}): they count as examples with none of the labels"
    assert expected in notices()[0]
    rows[50][2] = "b|rare"
    write_csv(tmp_path / "a.csv", rows)
    read(tmp_path / "a.csv", multi_label=True)
    few, without_row = notices()[-2:]
    assert f"1 of 3 classes has fewer than 10 rows: rare (1: line {lines[50]}): this is too little" in few
    assert "dev has no row of rare" in without_row
    data = read(tmp_path / "a.csv", multi_label=True, missing="unlabelled")
    assert (len(data.pool), sum(data.sizes().values())) == (1, 59)
