"""Tests of job=check: the profile of data, its exit code, and the command that it suggests."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from distill import __main__ as command_line
from distill.core.errors import UserError
from distill.data import profile
from distill.data.profile import print_rows_profile, profile_data
from distill.data.sources import STEMS
from distill.jobs.command_line import quote_overrides
from tests.data.test_profile import GERMAN, labelled, sentence, write_rows
from tests.jobs.conftest import Command

HEAVY = ("torch", "transformers", "datasets", "lightning", "matplotlib")


def test_a_check_prints_columns_classes_texts_and_a_command(command: Command, tmp_path: Path) -> None:
    write_rows(tmp_path / "reviews.csv", [[*labelled()[0], "price"], *([*row, 5] for row in labelled()[1:])])
    code, output, error = command("job=check", "data=reviews.csv")
    assert (code, error) == (0, "")
    lines = output.splitlines()
    assert lines[0] == "reviews.csv: 60 rows, 3 columns"
    for cells in (
        ("review", "text", "60", "0", "60", "text"),
        ("stars", "class label", "60", "0", "2", "bad", "label"),
        ("price", "constant", "60", "0", "1", "5"),
        ("bad", "30", "50.0%"),
    ):
        assert any(set(cells) <= {cell.strip() for cell in line.split("│")} for line in lines), cells
    assert lines[-9:] == [
        "Columns  text and label are guesses from names and values: text=NAME and label=NAME choose others",
        "Reached  50.0% by the most frequent class, 26.7% (17.1% to 39.0%) by TF-IDF and logistic regression",
        "Lengths  median 7 words, 95% up to 7, longest 7; no row exceeds 128 tokens",
        "Scripts  Latin 100.0%; looks like English",
        "No problems",
        "Teacher  a small BERT that is trained on the texts, because the Hub is not there",
        "Time     dry_run=true says how long each student of the command takes",
        "Go on with",
        "python -m distill +teacher=embedded +student=auto task=classification task.data_dir=reviews.csv "
        "task.text=[review] task.label=stars",
    ]
    assert max(map(len, lines[:-1])) <= 101


@pytest.mark.parametrize(
    ("header", "labels", "options"),
    [
        (("text", "label"), ["spam", "ham"] * 30, {"positive": "spam"}),
        (("the, text", "größe [cm]"), [1, 2, 3] * 20, {}),
        (("text", 'a "label"'), ["sun;sea", "sun", "sea"] * 20, {"multi_label": True, "separator": ";"}),
        (("text", "price"), [row / 7 for row in range(60)], {}),
    ],
)
def test_the_command_is_read_as_it_was_meant(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: tuple[str, str], labels: list[object],
    options: dict[str, object],
) -> None:  # fmt: skip
    monkeypatch.setattr(profile, "check_hub_file", lambda *_: None)  # The Hub is there.
    long = " ".join(GERMAN * 12)
    rows = [{header[0]: f"{sentence(row, GERMAN)} {long}", header[1]: label} for row, label in enumerate(labels)]
    path = tmp_path / "my data.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    code, output, error = command("job=check", f"data={path}")
    assert (code, error) == (0, "")
    python, _, module, *overrides = shlex.split(output.splitlines()[-1])
    assert (python, module) == ("python", "distill")
    assert "Teacher  google-bert/bert-base-multilingual-cased, 178 M parameters, downloaded from the Hub" in output
    overrides = ["+student=distilbert" if option == "+student=auto" else option for option in overrides]
    with initialize_config_dir(str(command_line.config_directory()), version_base="1.3"):
        config = compose("config", quote_overrides(overrides, ()))
    assert config.teacher.id == "google-bert/bert-base-multilingual-cased"
    task = instantiate(config.task, _convert_="all")
    assert (task.rows.text, task.rows.label, task.rows.source.data_dir) == (header[:1], header[1:], str(path))
    assert task.info.max_length == 512
    assert {name: config.task[name] for name in options} == options
    assert task.info.name == ("regression" if header[1] == "price" else "classification")


def test_problems_that_stop_a_training_end_with_exit_code_2(command: Command, tmp_path: Path) -> None:
    rows = labelled()
    rows[5][1] = ""
    write_rows(tmp_path / "rows.csv", rows)
    code, output, error = command("job=check", "data=rows.csv")
    assert (code, error) == (0, "")
    assert "1. 1 of 60 rows has no label (line 6)" in output
    assert "Go on with" in output
    write_rows(tmp_path / "rows.csv", [*rows, ["one field"]])
    code, output, error = command("job=check", "data=rows.csv")
    assert (code, error) == (2, "error: a training on rows.csv would stop at problem 1\n")
    assert "1. error: 1 line cannot be read (line 62)" in output
    assert "2. 1 of 60 rows has no label (line 6)" in output
    assert "Go on with" not in output


def test_the_verdict_is_that_of_the_training(command: Command, tmp_path: Path) -> None:
    from distill.kinds import Classification

    rows = [["text", "label"], *([sentence(row), "positive"] for row in range(92)), [sentence(92), "positve"]]
    rows += [[sentence(100 + row), "negative"] for row in range(12)]
    path = write_rows(tmp_path / "rows.csv", rows)
    code, output, error = command("job=check", f"data={path}")
    slip = "positve (1: line 94, a likely slip for positive with 92 rows)"
    assert (code, error) == (2, f"error: a training on {path} would stop at problem 1\n")
    assert slip in " ".join(output.split())
    assert "Go on with" not in output
    with pytest.raises(UserError) as caught:
        Classification(text="text", data_dir=str(path)).read(tmp_path)
    assert slip in str(caught.value)
    assert str(caught.value) in " ".join(output.split())
    rows[93][1] = "positive"
    write_rows(path, rows)
    code, output, _ = command("job=check", f"data={path}")
    assert (code, "Go on with" in output) == (0, True)
    write_rows(path, rows[:2])
    assert command("job=check", f"data={path}")[0] == 2
    write_rows(path, [["text", "label"], [sentence(1), 0.5]])  # Of a regression nothing is left for dev.
    code, output, _ = command("job=check", f"data={path}", "label=label")
    assert (code, "Go on with" in output) == (2, False)


def test_a_directory_is_checked_with_its_splits(command: Command, tmp_path: Path) -> None:
    write_rows(tmp_path / "train.csv", labelled())
    code, output, error = command("job=check", f"data={tmp_path}")
    assert (code, error) == (2, f"error: a training on {tmp_path} would stop at problem 1\n")
    assert "1. error: dev is missing" in output
    write_rows(tmp_path / "validation.csv", [["review", "stars"], ["an unseen text", "bad"]])
    code, output, error = command("job=check", f"data={tmp_path}")
    assert (code, error) == (0, "")
    assert output.splitlines()[0] == f"{tmp_path}: 60 rows of train, 1 row of dev, 2 columns"


def test_a_dev_that_the_data_never_has_is_not_missing(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.csv", labelled())
    profile = profile_data(str(tmp_path), stems=STEMS | {"dev": ()})
    assert "dev is missing" not in [problem.summary for problem in profile.problems]


def test_more_classes_and_columns_than_a_screen_holds_are_counted(command: Command, tmp_path: Path) -> None:
    rows = [[sentence(row), f"class {row % 30}", *[row] * 22] for row in range(300)]
    write_rows(tmp_path / "rows.csv", [["text", "label", *(f"c{number}" for number in range(22))], *rows])
    code, output, _ = command("job=check", "data=rows.csv")
    assert code == 0
    assert "and 4 more" in output
    assert "and 10 more" in output
    assert "class 29" not in output


def test_json_has_the_same_in_names_and_numbers(command: Command, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.csv", labelled())
    code, output, error = command("job=check", "data=rows.csv", "json=true")
    assert (code, error) == (0, "")
    record = json.loads(output)
    assert record["rows"] == {"data": 60}
    assert [(column["name"], column["kind"]) for column in record["columns"]] == [
        ("review", "text"),
        ("stars", "class"),
    ]
    assert record["classes"] == {"bad": {"data": 30}, "good": {"data": 30}}
    assert record["problems"] == []
    assert record["command"][-2:] == ["task.text=[review]", "task.label=stars"]
    assert sentence(0) not in output
    write_rows(tmp_path / "rows.csv", [*labelled(), ["one field"]])
    code, output, error = command("job=check", "data=rows.csv", "json=true")
    assert (code, json.loads(output)["command"]) == (2, None), error


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "job=check has no data to check: add data=FILE, or data=DIR with train and dev"),
        (["data=rows.csv", "text=[a,b,c]"], "got text=[a,b,c], expected one column or the two of a pair"),
        (["data=rows.csv", "label=true"], "got label=True, expected the name of a column, or a list of names"),
        (["data=rows.csv", "json=1"], "got json=1, expected true or false"),
        (["data=rows.csv", "seeds=2"], "job=check reads only data, text, label and json: leave out seeds=2"),
    ],
)
def test_mistakes_are_reported_in_one_line(command: Command, tmp_path: Path, options: list[str], expected: str) -> None:
    write_rows(tmp_path / "rows.csv", labelled())
    (tmp_path / "empty.csv").touch()
    (tmp_path / "rows.txt").write_text("a text\n")
    (tmp_path / "folder").mkdir()
    code, _, error = command("job=check", *options)
    assert (code, len(error.strip().splitlines())) == (2, 1)
    assert expected in error


def test_a_check_imports_no_large_library(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.csv", labelled())
    program = (
        "import sys\n"
        "from distill.__main__ import main\n"
        "sys.argv[1:] = ['job=check', 'data=rows.csv']\n"
        "code = main()\n"
        f"print(code, sorted(set({HEAVY!r}) & sys.modules.keys()))\n"
    )
    root = Path(command_line.__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(root), "PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == ["0 []"], done.stderr


def test_a_task_has_a_short_profile_of_its_own_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from distill.kinds import Classification

    rows = [[*row, sentence(number + 500)] for number, row in enumerate(labelled()[1:])]
    path = write_rows(tmp_path / "rows.csv", [["review", "stars", "text"], *rows])
    task = Classification(text="review", label=["label", "stars"], data_dir=str(path))
    print_rows_profile(task.rows)
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: 60 rows, 3 columns",
        "Classes  bad 30, good 30",
        "Lengths  median 7 words, 95% up to 7, longest 7; no row exceeds 128 tokens",
        "Scripts  Latin 100.0%; looks like English",
        "No problems",
    ]
    print_rows_profile(Classification(text="text", train=(["good", "bad"], [1, 0]), dev=(["fine"], [1])).rows)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("rows", "code", "expected"),
    [
        (
            [[f"text {number} about {'war' if number < 3 else 'peace'}", number < 3] for number in range(200)], 0,
            ["Reached  98.5% by the most frequent class", "has fewer than 10 rows: True (3: lines 2, 3 and 4)"],
        ),
        (
            [[f"text {number} about {'war' if number % 2 else 'peace'}", number % 2] for number in range(40)], 0,
            ["Reached  50.0% by the most frequent class, 100.0% (91.2% to 100.0%) by TF-IDF", "40 rows"],
        ),
        ([["one text", number % 2] for number in range(60)], 2, ["error: no column looks like text"]),
    ],
)  # fmt: skip
def test_small_skewed_and_equal_rows(
    command: Command, tmp_path: Path, rows: list[list[object]], code: int, expected: list[str]
) -> None:
    write_rows(tmp_path / "rows.csv", [["text", "label"], *rows])
    found, output, error = command("job=check", "data=rows.csv")
    assert found == code
    shown = " ".join((output + error).split())
    assert [words for words in expected if " ".join(words.split()) not in shown] == []
