"""Tests of a file of class probabilities as the teacher."""

import csv
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from distill.builtin.teachers.file import ProbabilityFile, check_repeated, map_ids
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.kinds import Classification
from distill.models.wrappers import KnownLogits
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


def test_logits_are_the_logarithms_of_the_probabilities_by_the_tokens_of_a_text() -> None:
    """The two texts of the same tokens have the mean of 0.9 and 0.7."""
    tokens, probabilities = [[2, 7, 3], [2, 8, 9, 3], [2, 7, 3]], np.array([[0.9, 0.1], [0.0, 1.0], [0.7, 0.3]])
    known = KnownLogits(tokens, probabilities, independent=False)
    ids, mask = torch.tensor([[2, 8, 9, 3], [0, 2, 7, 3]]), torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])
    torch.testing.assert_close(known(ids, mask).exp(), torch.tensor([[1e-6, 1.0], [0.8, 0.2]]))
    odds = KnownLogits(tokens, probabilities, independent=True)(ids, mask)
    torch.testing.assert_close(odds.sigmoid(), torch.tensor([[1e-6, 1 - 1e-6], [0.8, 0.2]]))
    assert known.find_missing([[2, 7, 3], [2, 3]]) == [1]
    with pytest.raises(UserError, match="a text has no probabilities in teacher.path"):
        known(ids[:, 1:], mask[:, 1:])


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
    assert (teacher["resolved"], teacher["origin"]) == ("probabilities.jsonl", "probabilities of probabilities.jsonl")
    assert (teacher["metrics"]["accuracy"], teacher["parameters"]) == (1.0, None)
    for option in ("augment=tang", f"task.bank={films}"):
        code, _, error = command(*options, option)
        assert code == 2
        assert f"{option.partition('=')[0]} adds texts that teacher file has no probabilities of: leave it out" in error


def test_equal_rows_may_be_there_twice_and_texts_of_equal_tokens_have_the_mean(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The encoder reads two tokens, and the texts differ in the third word."""
    rows = [["one two", 0.9], ["one two", 0.9], ["one two three", 0.7], ["One  two", 0.9]]
    table = Table("file.csv", ("text", "a", "b"), {"text": [text for text, _ in rows]}, lines=[2, 3, 4, 5])
    probabilities = np.array([[float(p), 1 - float(p)] for _, p in rows])
    tokens = [np.array([5, 6])] * 4
    check_repeated(table, [[str(text) for text, _ in rows]], tokens, probabilities, ["a", "b"])
    KnownLogits(tokens, probabilities, independent=False).report_alike(table.source)
    assert "the same tokens of both, have other probabilities: 1; the mean" in " ".join(capsys.readouterr().out.split())


def test_an_id_has_one_text() -> None:
    """Before, the later text took the place of the first one."""
    columns = {"id": ["7", "8", "7"], "text": ["one", "two", "one"]}
    assert map_ids(Table("texts.csv", tuple(columns), columns, lines=[2, 3, 4]), ["text"]) == {
        "7": ("one",),
        "8": ("two",),
    }
    columns["text"][2] = "three"
    with pytest.raises(UserError, match="texts.csv, line 2, and line 4: the id 7 is there twice with diff"):
        map_ids(Table("texts.csv", tuple(columns), columns, lines=[2, 3, 4]), ["text"])


Change = Callable[[list[Row]], list[Row]]


def changed(row: int, **values: object) -> Change:
    return lambda rows: [*rows[:row], {**rows[row], **values}, *rows[row + 1 :]]


MISTAKES: dict[str, tuple[Change, str]] = {
    "other labels": (
        lambda rows: [{"sentence": row["sentence"], "dull": row["dull"], "good": row["lovely"]} for row in rows],
        "has no probabilities of lovely: it has sentence, dull, good, and the classes of the task are dull, lovely",
    ),
    "missing rows": (
        lambda rows: rows[:60],
        "probabilities.csv has no probabilities for 4 of 64 texts of train, the first of them 'stale",
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
        "different probabilities, dull 0.5, lovely 0.5 and dull 0.1, lovely 0.9, expected them once",
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
def test_mistakes_of_a_file_are_refused(
    encoder_dir: Path, films: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase, mistake: str
) -> None:
    change, message = MISTAKES[mistake]
    path = write_rows(tmp_path / "probabilities.csv", change(probability_rows()))
    texts = write_rows(tmp_path / "texts.csv", [{"id": 8, "sentence": "a film"}])
    teacher = ProbabilityFile(name="file", path=str(path), encoder=str(encoder_dir), texts=str(texts))
    task = Classification(text=["sentence"], data_dir=str(films), max_length=40)
    with pytest.raises(UserError, match=re.escape(message)):
        teacher.load(task, task.read(tmp_path), tokenizer, tmp_path)


def test_a_missing_file_is_refused(encoder_dir: Path, films: Path, tmp_path: Path, command: Command) -> None:
    given = teacher_options(tmp_path, "+teacher=file", "teacher.path=none.csv", f"teacher.encoder={encoder_dir}")
    code, _, error = command(*given, f"task.data_dir={films}")
    assert code == 2
    assert "none.csv is no such file, expected a table of probabilities in " in error
