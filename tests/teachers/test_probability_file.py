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
from tests.teachers.test_zero_shot import WORDS, options, read_run, write_data

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


def file_options(root: Path, path: Path, encoder: Path, *further: str) -> list[str]:
    given = [
        option
        for option in options(root, encoder)
        if not option.startswith(("+teacher", "teacher.path", "teacher.labels"))
    ]
    return ["+teacher=file", f"teacher.path={path}", f"teacher.encoder={encoder}", *given, *further]


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


def test_a_student_learns_from_probabilities_of_anywhere(encoder_dir: Path, tmp_path: Path, command: Command) -> None:
    path = write_rows(tmp_path / "probabilities.csv", probability_rows())
    data = write_data(tmp_path)
    code, _, error = command(*file_options(tmp_path, path, encoder_dir, f"task.data_dir={data}"))
    assert code == 0, error
    record = read_run(tmp_path)
    teacher = record["teacher"]
    assert (teacher["resolved"], teacher["origin"]) == ("probabilities.csv", "probabilities of probabilities.csv")
    assert teacher["metrics"]["accuracy"] == 1.0
    assert teacher["parameters"] is None
    assert {row["model"] for row in record["benchmark"]} == {"student"}
    card = next((tmp_path / "runs").rglob("bundle/README.md")).read_text(encoding="utf-8")
    report = next((tmp_path / "runs").rglob("report.md")).read_text(encoding="utf-8")
    assert "times as fast" not in card + report
    assert "smaller than" not in card + report


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


@pytest.mark.parametrize("same", [True, False])
def test_an_id_has_one_text(same: bool) -> None:
    """Before, the later text took the place of the first one."""
    columns = {"id": ["7", "8", "7"], "text": ["one", "two", "one" if same else "three"]}
    table = Table("texts.csv", tuple(columns), columns, lines=[2, 3, 4])
    if same:
        assert map_ids(table, ["text"]) == {"7": ("one",), "8": ("two",)}
        return
    with pytest.raises(UserError, match="texts.csv, line 2, and line 4: the id 7 is there twice with diff"):
        map_ids(table, ["text"])


def test_probabilities_are_joined_by_an_id(encoder_dir: Path, tmp_path: Path, command: Command) -> None:
    rows = probability_rows()
    texts = write_rows(tmp_path / "texts.csv", [{"id": n, "sentence": row["sentence"]} for n, row in enumerate(rows)])
    nested = [
        {"id": number, "probabilities": {word: row[word] for word in WORDS}}
        for number, row in reversed(list(enumerate(rows)))
    ]
    path = write_rows(tmp_path / "probabilities.jsonl", nested)
    given = file_options(
        tmp_path, path, encoder_dir, f"teacher.texts={texts}", f"task.data_dir={write_data(tmp_path)}",
        "export.enabled=false", "objective=hinton",
    )  # fmt: skip
    code, _, error = command(*given)
    assert code == 0, error
    assert read_run(tmp_path)["teacher"]["metrics"]["accuracy"] == 1.0


Change = Callable[[list[Row]], list[Row]]


def without(name: str) -> Change:
    return lambda rows: [{key: value for key, value in row.items() if key != name} for row in rows]


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
    "a sum that is not 1": (
        changed(2, lovely=0.5),
        "line 4: the probabilities dull 0.9, lovely 0.5 have a sum of 1.4, expected 1",
    ),
    "a sum far below 1": (
        changed(3, lovely=0.5),
        "line 5: the probabilities dull 0.1, lovely 0.5 have a sum of 0.6, expected 1",
    ),
    "no number": (changed(2, lovely="high"), "line 4: column lovely is 'high', expected a probability"),
    "no probability": (
        changed(2, lovely=1.5, dull=-0.5),
        "line 4: got dull -0.5, lovely 1.5, expected probabilities from 0 to 1",
    ),
    "not a number": (changed(2, lovely="nan"), "line 4: got dull 0.9, lovely nan, expected probabilities from 0 to 1"),
    "a text twice with different values": (
        lambda rows: [*rows, {**rows[3], "dull": rows[3]["lovely"], "lovely": rows[3]["dull"]}],
        "probabilities.csv, line 5, and line 66: the text ",
    ),
    "a text twice in other letters, which the encoder does not see": (
        lambda rows: [
            {**rows[3], "sentence": f" {str(rows[3]['sentence']).upper()}", "dull": 0.5, "lovely": 0.5},
            *rows,
        ],
        "different probabilities, dull 0.5, lovely 0.5 and dull 0.1, lovely 0.9, expected them once",
    ),
    "no texts": (without("sentence"), "has the columns dull, lovely, expected the texts in sentence, or id and"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_of_a_file_are_refused(
    encoder_dir: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase, mistake: str
) -> None:
    change, message = MISTAKES[mistake]
    path = write_rows(tmp_path / "probabilities.csv", change(probability_rows()))
    teacher = ProbabilityFile(name="file", path=str(path), encoder=str(encoder_dir))
    task = Classification(text=["sentence"], data_dir=str(write_data(tmp_path)), max_length=40)
    with pytest.raises(UserError, match=re.escape(message)):
        teacher.load(task, task.read(tmp_path), tokenizer, tmp_path)


def test_a_missing_file_and_an_unknown_id_are_refused(encoder_dir: Path, tmp_path: Path, command: Command) -> None:
    data = f"task.data_dir={write_data(tmp_path)}"
    code, _, error = command(*file_options(tmp_path, tmp_path / "none.csv", encoder_dir, data))
    assert code == 2
    assert "none.csv is no such file, expected a table of probabilities in " in error
    path = write_rows(tmp_path / "ids.csv", [{"id": 7, "dull": 1, "lovely": 0}])
    texts = write_rows(tmp_path / "texts.csv", [{"id": 8, "sentence": "a film"}])
    code, _, error = command(*file_options(tmp_path, path, encoder_dir, f"teacher.texts={texts}", data))
    assert code == 2
    assert "texts.csv has no row with the id 7, expected its text" in error


def test_copies_and_banks_are_refused_because_they_have_no_probabilities(
    encoder_dir: Path, tmp_path: Path, command: Command
) -> None:
    path, data = write_rows(tmp_path / "probabilities.csv", probability_rows()), write_data(tmp_path)
    for option in ("augment=tang", f"task.bank={data}"):
        code, _, error = command(*file_options(tmp_path, path, encoder_dir, f"task.data_dir={data}", option))
        assert code == 2
        assert f"{option.partition('=')[0]} adds texts that teacher file has no probabilities of: leave it out" in error
