"""The texts that teacher and exported files write at the end of a run: their metrics, differences and samples."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from distill.edge import Bundle
from distill.kinds.scoring import text_metrics
from tests.jobs.runs import capture_runs, read_record
from tests.jobs.test_text_export import COMMON, EXPORT, make_teacher, run_in, write_pairs

METRICS = ("exact_match", "rougeL", "chrf", "bleu")
MODELS = ("teacher", "fp32", "int8")
pytestmark = pytest.mark.xdist_group("test_written_texts.directory")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs of texts, of which one source is HTML, a T5 and a cache."""
    root = tmp_path_factory.mktemp("work")
    texts = write_pairs(root / "data")
    dev = root / "data" / "dev.jsonl"
    lines = dev.read_text(encoding="utf-8").splitlines()
    (root / "data" / "test.jsonl").write_text("\n".join(lines[:6]), encoding="utf-8")
    lines[0] = '{"source": "<b>1 | 2</b> *3*", "target": ["1 2 3", "one"]}'
    dev.write_text("\n".join(lines), encoding="utf-8")
    make_teacher(root / "t5", "t5", texts)
    return root


@pytest.fixture(scope="module")
def directory(work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    output = tmp_path_factory.mktemp("runs")
    assert run_in(work, output, *options(work), "task.scored_texts=20") == 0
    [path] = output.rglob("run.json")
    return path.parent


def options(work: Path) -> tuple[str, ...]:
    return (
        *COMMON, "task=seq2seq", f"task.data_dir={work / 'data'}", "task.max_length=32", "task.max_target=12",
        "+teacher=pretrained", f"teacher.path={work / 't5'}", "teacher.finetune=false", "+student=distilbert",
        "objective=supervised", "teacher.accept_weak=true", *EXPORT, "trainer.max_epochs=15",
    )  # fmt: skip


def read_written(directory: Path, split: str) -> list[dict[str, Any]]:
    """Returns the rows of a split that texts were written for."""
    rows = pyarrow.parquet.read_table(directory / "predictions.parquet").to_pylist()
    return [row for row in rows if row["split"] == split and row["int8_written"] is not None]


def test_metrics_are_those_of_the_texts_in_the_predictions(directory: Path) -> None:
    record = read_record(directory)
    metrics = {"teacher": record["teacher"]["metrics"]}
    metrics |= {name: record["export"][name]["metrics"] for name in ("fp32", "int8")}
    for split, prefix, number in (("dev", "", 20), ("test", "test/", 6)):
        rows = read_written(directory, split)
        assert len(rows) == record["texts"][split]["sources"] == number
        for model in MODELS:
            expected = text_metrics([row[f"{model}_written"] for row in rows], [row["references"] for row in rows])
            found = {name: metrics[model][f"{prefix}{name}"] for name in METRICS}
            assert found == pytest.approx({name: expected[name] for name in METRICS})
    assert {row["index"] for row in read_written(directory, "dev")} >= {0, 47}


def test_files_write_the_texts_that_their_bundle_writes(directory: Path) -> None:
    rows = read_written(directory, "dev")[:4]
    for model in ("fp32", "int8"):
        texts = Bundle(directory / "bundle", model=model).generate_all(
            [row["source"] for row in rows], max_new_tokens=12
        )
        assert [text["text"] for text in texts] == [row[f"{model}_written"] for row in rows]
    manifest = Bundle(directory / "bundle", model="fp32").manifest
    assert manifest["metrics"]["int8"].keys() >= {*METRICS, "test/chrf"}
    assert manifest["teacher"]["metrics"].keys() >= {*METRICS, "test/chrf"}


def test_differences_have_intervals_and_lengths_have_metrics(directory: Path) -> None:
    record = read_record(directory)
    of_dev = record["texts"]["dev"]
    assert {model: list(of) for model, of in of_dev["comparison"].items()} == {
        "fp32": ["teacher"], "int8": ["teacher", "fp32"],
    }  # fmt: skip
    chrf = {name: file["metrics"]["chrf"] for name, file in record["export"].items()}
    difference = of_dev["comparison"]["int8"]["fp32"]["chrf"]
    assert difference["difference"] == pytest.approx(chrf["int8"] - chrf["fp32"])
    low, high = difference["interval"]
    assert low < difference["difference"] < high
    assert {model: sum(of["number"] for of in groups.values()) for model, groups in of_dev["lengths"].items()} == (
        dict.fromkeys(MODELS, 20)
    )


def test_the_report_shows_the_texts_beside_each_other(directory: Path) -> None:
    report = (directory / "report.md").read_text(encoding="utf-8")
    section = report.split("## Written texts")[1].split("\n## ")[0]
    assert "On 20 sources of dev, with 1 beam:" in section
    assert "| student int8 | student fp32 | chrf |" in section
    assert "| up to 8 words | 20 | chrf |" in section
    header, _, *rows = section.split("### Samples")[1].strip().splitlines()[2:]
    assert header == "| row of dev | source | target | teacher | student fp32 | student int8 |"
    assert len(rows) == 12
    assert rows[0].startswith(r"| 0 | \<b>1 \| 2\</b> \*3\* | 1 2 3 \| one |")
    page = (directory / "report.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;1 | 2&lt;/b&gt; *3*" in page


@pytest.mark.slow
def test_the_plan_counts_the_texts_and_a_run_writes_none_where_none_are_scored(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = capture_runs(partial(run_in, work), tmp_path, capsys)
    code, text, _ = run(*options(work), "task.scored_texts=7", "task.beams=2", "dry_run=true")
    assert code == 0, text
    expected = "sources 7 of 48 in dev, 6 of 6 in test: the teacher writes a text for each, about "
    assert expected in " ".join(text.split())
    code, text, directory = run(*options(work), "task.scored_texts=0", "trainer.max_epochs=1")
    assert code == 0, text
    assert "written texts" not in text
    assert read_record(directory)["texts"] == {}
    assert "int8_written" not in pyarrow.parquet.read_schema(directory / "predictions.parquet").names
    assert "## Written texts" not in (directory / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("task.beams=0", "got task.beams=0, expected"),
        ("task.scored_texts=-1", "got task.scored_texts=-1, expected"),
        ("task.text_metrics=[meteor]", "meteor"),
        ("task.text_metrics=[]", "got task.text_metrics=[], expected"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, expected: str
) -> None:
    code = run_in(work, tmp_path, *options(work), option)
    printed = capsys.readouterr()
    error = (printed.out + printed.err).strip().splitlines()[-1]
    assert code == 2, printed
    assert error.startswith("error: ")
    assert expected in error


def test_a_missing_library_is_named_before_a_training(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    run = capture_runs(partial(run_in, work), tmp_path, capsys)
    code, text, _ = run(*options(work))
    assert code == 2
    assert "texts are scored with rouge-score, which is not installed" in " ".join(text.split())
    assert "Before training" not in text
