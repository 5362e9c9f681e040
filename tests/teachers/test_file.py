"""Tests of a file of outputs as the teacher."""

import csv
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from distill.builtin.teachers.file import OutputFile

from distill.core.errors import UserError
from distill.edge import Bundle
from distill.kinds import Classification, TokenClassification
from distill.kinds.known import join_texts
from distill.rows.columns import Table
from tests.conftest import sentences
from tests.jobs.conftest import Command, command
from tests.teachers.conftest import WORDS, read_run, teacher_options

assert command

Row = dict[str, object]


def probability_rows() -> list[Row]:
    """Returns the probabilities of all rows of the data, which are right and 0.9 sure."""
    return [{"sentence": text, "dull": 0.9 - 0.8 * label, "lovely": 0.1 + 0.8 * label} for text, label in sentences(64)]


def write_rows(path: Path, rows: Sequence[Row]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


def test_a_student_learns_from_probabilities_that_are_joined_by_an_id(
    inference: Path, films: Path, tmp_path: Path, command: Command
) -> None:
    rows = probability_rows()
    texts = write_rows(tmp_path / "texts.csv", [{"id": n, "sentence": row["sentence"]} for n, row in enumerate(rows)])
    nested = [
        {"id": number, "probabilities": {word: row[word] for word in WORDS}}
        for number, row in reversed(list(enumerate(rows)))
    ]
    path = write_rows(tmp_path / "probabilities.jsonl", nested)
    path.with_suffix(".json").write_text(json.dumps(LABELLING | {"texts": 64}), encoding="utf-8")
    teacher_of_file = ("+teacher=file", f"teacher.path={path}", f"teacher.encoder={inference}")
    given = teacher_options(tmp_path, *teacher_of_file, is_timed=True)
    options = [*given, f"task.data_dir={films}", "objective=hinton", f"teacher.texts={texts}"]
    code, _, error = command(*options)
    assert code == 0, error
    record = read_run(tmp_path)
    teacher = record["teacher"]
    assert {row["model"] for row in record["benchmark"]} == {"student"}
    report = next((tmp_path / "runs").rglob("report.md")).read_text(encoding="utf-8")
    assert "times as fast" not in report
    assert "smaller than" not in report
    assert (teacher["resolved"], teacher["origin"]) == ("probabilities.jsonl", "outputs of probabilities.jsonl")
    assert (teacher["metrics"]["accuracy"], teacher["parameters"]) == (1.0, None)
    known = {name: teacher[name] for name in ("model", "dollars_per_million_texts", "milliseconds")}
    assert known == {"model": "llm", "dollars_per_million_texts": 12.5, "milliseconds": None}
    [sure, *_, last] = record["export"]["fp32"]["escalate"]
    assert (sure["accuracy"]["dev"], sure["left"]["dev"]) == (record["export"]["fp32"]["metrics"]["accuracy"], 0.0)
    assert "## What is left to the teacher\n\nAt 10% left to the teacher: " in report
    assert f"| 30% | {last['accuracy']['dev']:.4f} | " in report
    [bundle] = (tmp_path / "runs").rglob("bundle")
    rows = pyarrow.parquet.read_table(bundle.parent / "predictions.parquet").to_pandas().query("split == 'dev'")
    marked = [of["escalate"] for of in Bundle(bundle, model="fp32").predict(rows["text"].tolist(), escalate=0.3)]
    assert marked == (rows["fp32_probability"] < last["threshold"]).tolist()
    assert sum(marked) == round(last["left"]["dev"] * len(rows)) == int(0.3 * len(rows))
    by_both = rows["fp32_prediction"].where(rows["fp32_probability"] >= last["threshold"], rows["teacher_prediction"])
    assert last["accuracy"]["dev"] == (by_both == rows["label"]).mean()
    for option in ("augment=tang", f"task.bank={films}"):
        code, _, error = command(*options, option)
        assert code == 2
        assert f"{option.partition('=')[0]} adds texts that teacher file has no probabilities of: leave it out" in error


LABELLING: Row = {"schema": 1, "model": "llm", "dollars_per_million_texts": 12.5, "milliseconds": None}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"schema"', "Invalid JSON"), ('["schema", "model"]', "Input should be an object"),
        (LABELLING | {"schema": 2}, "schema: Input should be 1"), ({"schema": 1}, "model: Field required"),
        (LABELLING | {"dollars_per_million_texts": -1}, "dollars_per_million_texts: Input should be greater than"),
        (LABELLING | {"milliseconds": "2"}, "milliseconds: Input should be a valid number"),
        (LABELLING | {"milliseconds": float("nan")}, "milliseconds: Input should be a finite number"),
    ],
)  # fmt: skip
def test_a_damaged_record_of_a_labelling_is_named(tmp_path: Path, content: str | Row, reason: str) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "outputs.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"outputs.json is no record of a labelling \(.*\), expected schema 1") as error:
        read_outputs(tmp_path, probability_rows(), "sentence", ["dull", "lovely"])
    assert reason in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_equal_rows_may_be_there_twice(tmp_path: Path) -> None:
    rows = [*probability_rows(), probability_rows()[3]]
    found = read_outputs(tmp_path, rows, "sentence", ["dull", "lovely"])
    assert len(found) == len({text for text, _ in sentences(64)})


def test_an_id_has_one_text() -> None:
    """Before, the later text took the place of the first one."""
    columns = {"id": ["7", "8", "7"], "text": ["one", "two", "one"]}
    table, texts = (
        Table("file.csv", ("id",), {"id": ["8"]}),
        Table("texts.csv", tuple(columns), columns, lines=[2, 3, 4]),
    )
    assert join_texts(table, texts, ["text"]).columns["text"] == ["two"]
    columns["text"][2] = "three"
    with pytest.raises(UserError, match="texts.csv, line 2, and line 4: the id 7 is there twice with diff"):
        join_texts(table, texts, ["text"])


Change = Callable[[list[Row]], list[Row]]


def changed(row: int, **values: object) -> Change:
    return lambda rows: [*rows[:row], {**rows[row], **values}, *rows[row + 1 :]]


MISTAKES: dict[str, tuple[Change, str]] = {
    "other labels": (
        lambda rows: [{"sentence": row["sentence"], "dull": row["dull"], "good": row["lovely"]} for row in rows],
        "has no probabilities of lovely: it has sentence, dull, good, and the classes of the task are dull, lovely",
    ),
    "a sum above 1": (
        changed(2, lovely=0.5), "line 4: the probabilities dull 0.9, lovely 0.5 have a sum of 1.4, expected 1"
    ),
    "a sum below 1": (
        changed(3, lovely=0.5), "line 5: the probabilities dull 0.1, lovely 0.5 have a sum of 0.6, expected 1"
    ),
    "no number": (changed(2, lovely="high"), "line 4: column lovely is 'high', expected a probability"),
    "no probability": (changed(2, lovely=1.5, dull=-0.5), "line 4: got dull -0.5, lovely 1.5, expected prob"),
    "not a number": (changed(2, lovely="nan"), "line 4: got dull 0.9, lovely nan, expected probabilities from 0 to 1"),
    "a text twice with different values": (
        lambda rows: [*rows, {**rows[3], "dull": rows[3]["lovely"], "lovely": rows[3]["dull"]}],
        "probabilities.csv, line 5, and line 66: the text ",
    ),
    "a text twice in other letters, which the encoder does not see": (
        lambda rows: [{"sentence": f" {str(rows[3]['sentence']).upper()}", "dull": 0.5, "lovely": 0.5}, *rows],
        "with different outputs, expected them once",
    ),
    "no texts": (
        lambda rows: [{"dull": 1, "lovely": 0}],
        "has the columns dull, lovely, expected the texts in sentence, or id and",
    ),
    "an unknown id": (
        lambda rows: [{"id": 7, "dull": 1, "lovely": 0}], "texts.csv has no row with the id 7, expected its text"
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_of_a_file_are_refused(encoder_dir: Path, films: Path, tmp_path: Path, mistake: str) -> None:
    change, message = MISTAKES[mistake]
    path = write_rows(tmp_path / "probabilities.csv", change(probability_rows()))
    texts = write_rows(tmp_path / "texts.csv", [{"id": 8, "sentence": "a film"}])
    teacher = OutputFile(name="file", path=str(path), encoder=str(encoder_dir), texts=str(texts))
    task = Classification(text=["sentence"], data_dir=str(films), max_length=40)
    with pytest.raises(UserError, match=re.escape(message)):
        teacher.read(task, task.read(tmp_path))


def test_a_missing_file_is_refused(encoder_dir: Path, films: Path, tmp_path: Path, command: Command) -> None:
    given = teacher_options(tmp_path, "+teacher=file", "teacher.path=none.csv", f"teacher.encoder={encoder_dir}")
    code, _, error = command(*given, f"task.data_dir={films}")
    assert code == 2
    assert "none.csv is no such file, expected a table of outputs in " in error


def read_outputs(tmp_path: Path, rows: Sequence[Row], text: str, labels: Sequence[str], **options: Any) -> Any:
    """Returns the outputs of a file by their texts, for a task of classes."""
    path = write_rows(tmp_path / "outputs.jsonl", rows)
    data = [{text: str(row[text]), "label": labels[number % len(labels)]} for number, row in enumerate(rows)]
    task = Classification(text=[text], label="label", labels=list(labels), train=data, dev=data)
    file = OutputFile(name="file", path=str(path), encoder=str(tmp_path), **options)
    return file.read(task, task.read(tmp_path)).found


LETTERS = ["a", "b", "c"]


def test_labels_and_candidates_have_the_trust_and_the_others_the_rest(tmp_path: Path) -> None:
    rows: list[Row] = [{"text": "one", "labels": ["a"]}, {"text": "two", "labels": ["a", "c"]}]
    rows.append({"text": "three", "labels": LETTERS})
    found = read_outputs(tmp_path, rows, "text", LETTERS, trust=0.8)
    expected = [[0.8, 0.1, 0.1], [0.4, 0.2, 0.4], [1 / 3] * 3]
    np.testing.assert_allclose([np.exp(found[row["text"],][0]) for row in rows], expected)


def test_measured_trust_is_the_share_of_right_labels(tmp_path: Path) -> None:
    """The labels of the data are a, b, c, a."""
    rows: list[Row] = [{"text": text, "label": label} for text, label in zip("wxyz", "abba", strict=True)]
    found = read_outputs(tmp_path, rows, "text", LETTERS, trust="measured")
    np.testing.assert_allclose(np.exp(found["w",][0]), [0.75, 0.125, 0.125])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"label": "d"}, "line 2: the label 'd' is no class of the task"),
        ({"labels": []}, "line 2: the label none is no class"),
    ],
)
def test_a_label_that_is_no_class_is_refused(tmp_path: Path, row: Row, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_outputs(tmp_path, [{"text": "one", next(iter(row)): ["a"]}, {"text": "two", **row}], "text", LETTERS)


def test_spans_of_characters_become_tags_of_the_words_that_they_cover(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, tags = ["to", "New", "York", "now"], ["O", "B-city", "I-city", "O"]
    task = TokenClassification(train=([words], [tags]), dev=([words], [tags]))
    spans = [{"start": 3, "end": 10, "type": "city"}]  # "New Yor".
    path = write_rows(tmp_path / "spans.jsonl", [{"text": "to New York now", "spans": spans}])
    data = task.read(tmp_path)
    file = OutputFile(name="file", path=str(path), encoder=str(tmp_path))
    [logits] = file.read(task, data).found.values()
    assert [data.labels[tag] for tag in logits.argmax(axis=1)] == tags
    np.testing.assert_allclose(np.exp(logits.max(axis=1)), 0.9)
    assert "begin or end within a word, which is taken whole: 1, the first of them" in " ".join(
        capsys.readouterr().out.split()
    )
    for changed_span, message in (
        ({"start": 3, "end": 16, "type": "city"}, "the span 3 to 16 is not within the 15 characters of the text"),
        ({"start": 3, "end": 6, "type": "river"}, "type 'river' has no tag I-river, expected one of O, B-city, I-city"),
    ):
        write_rows(path, [{"text": "to New York now", "spans": [changed_span]}])
        with pytest.raises(UserError, match=re.escape(message)):
            file.read(task, data)


def test_spans_have_the_tags_of_iob1_where_train_has_them(tmp_path: Path) -> None:
    """In IOB1 a city begins with I-city, and with B-city right behind another city alone."""
    words, tags = ["from", "Oslo", "Bergen", "on"], ["O", "I-city", "B-city", "O"]
    task = TokenClassification(train=([words, words[:2]], [tags, tags[:2]]), dev=([words], [tags]))
    spans = [{"start": 5, "end": 9, "type": "city"}, {"start": 10, "end": 16, "type": "city"}]
    path = write_rows(tmp_path / "spans.jsonl", [{"text": "from Oslo Bergen on", "spans": spans}])
    data = task.read(tmp_path)
    [logits] = OutputFile(name="file", path=str(path), encoder=str(tmp_path)).read(task, data).found.values()
    assert data.scoring.scheme.name == "IOB1"
    assert [data.labels[tag] for tag in logits.argmax(axis=1)] == tags


def test_a_file_labels_dev_where_no_text_has_a_label(
    inference: Path, films: Path, tmp_path: Path, command: Command
) -> None:
    path = write_rows(tmp_path / "outputs.csv", probability_rows())
    given = teacher_options(tmp_path, "+teacher=file", f"teacher.path={path}", f"teacher.encoder={inference}")
    options = ["objective=hinton", "task.label=null", "task.labels=[dull,lovely]"]
    code, _, error = command(*given, f"task.data_dir={films}", *options)
    assert code == 0, error
    assert read_run(tmp_path)["teacher"]["metrics"]["agreement"] == 1.0


def test_rows_without_outputs_learn_from_their_labels(
    inference: Path, films: Path, tmp_path: Path, command: Command
) -> None:
    path = write_rows(tmp_path / "outputs.csv", probability_rows()[:60])
    given = teacher_options(tmp_path, "+teacher=file", f"teacher.path={path}", f"teacher.encoder={inference}")
    code, out, error = command(*given, f"task.data_dir={films}", "objective=hinton")
    assert code == 0, error
    assert "outputs.csv has outputs for 60 of 64 examples of train; the others learn from their labels" in " ".join(
        out.split()
    )
