"""Tests of whole inspections: the job, its page and tables, students without attention, and bad input."""

import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest

import distill as d
from distill.inspection.inspection import Questions, inspect_models
from distill.inspection.inspection_report import tables, write_inspection
from distill.inspection.subjects import Subject, open_subject
from students import bilstm
from tests.conftest import LABELS, toy_bert
from tests.golden.runs import golden_output, golden_root, golden_run
from tests.inspection.conftest import Save
from tests.jobs.runs import run_command

assert golden_output
assert golden_root
assert golden_run

QUICK = Questions(masked_rows=8, probe_rows=64, shown=3, attributions=False)
OPTIONS = ("inspect.masked_rows=8", "inspect.shown=3")


@pytest.fixture
def command(subjects: list[Subject], data_dir: Path, tmp_path: Path) -> Callable[..., int]:
    """Returns a function that runs `job=inspect` on the teacher and its student."""
    teacher, student = (str(of.path) for of in subjects)
    common = (
        "job=inspect", f"model={teacher}", "task=classification", f"task.data_dir={data_dir}", "task.text=sentence",
        f"task.labels=[{','.join(LABELS)}]", "task.max_length=32", f"output_dir={tmp_path / 'runs'}",
        f"cache_dir={tmp_path / 'cache'}",
    )  # fmt: skip
    return lambda *options, other=student: run_command(*common, *([f"other={other}"] if other else []), *options)


def read_page(tmp_path: Path) -> tuple[Path, str]:
    [page] = (tmp_path / "runs" / "inspections").glob("*/inspect.html")
    return page.parent, page.read_text(encoding="utf-8")


def test_the_command_writes_a_page_and_tables(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*OPTIONS, "+student=distilbert") == 0
    directory, page = read_page(tmp_path)
    assert f"Results  {directory / 'inspect.html'}" in " ".join(capsys.readouterr().out.split("\n"))
    markdown = (directory / "inspect.md").read_text(encoding="utf-8")
    for section in ("What was lost", "Where they differ", "Attention", "Heads", "Layers that are alike", "Probes"):
        assert f"## {section}" in markdown
        assert f"<h2>{section}</h2>" in page
    assert 'id="attention-data"' in page
    heads = pyarrow.parquet.read_table(directory / "heads.parquet").to_pylist()
    assert [(row["model"], row["layer"], row["head"]) for row in heads[:2]] == [("teacher", 1, 1), ("teacher", 1, 2)]
    assert len(heads) == 16 + 8
    assert all(row["importance"] is not None and row["without"] is not None for row in heads)
    similarity = pyarrow.parquet.read_table(directory / "similarity.parquet").to_pylist()
    assert {row["items"] for row in similarity} == {24}
    # The embeddings and four layers of the teacher, with the embeddings and two layers of the student.
    assert Counter(row["training"] for row in similarity) == {"before": 5 * 3, "after": 5 * 3}
    # The student's embeddings are the teacher's, before and after no training at all.
    alike = [row["cka"] for row in similarity if row["first_layer"] == row["second_layer"] == 0]
    assert alike == pytest.approx([1.0, 1.0])


def test_the_words_of_a_prediction_are_coloured_in_their_sentence(subjects: list[Subject], tmp_path: Path) -> None:
    pytest.importorskip("captum")
    sentence = "a good film"
    found = inspect_models(
        subjects[:1], replace(QUICK, attributions=True, probes=False, masked_rows=0, sentences=[sentence])
    )  # fmt: skip
    page = write_inspection(found, tmp_path / "page").read_text(encoding="utf-8")
    [values] = found.models[0].attributions
    strongest = max(map(abs, values.integrated))
    word = r'<span title="([+-][\d.]+)" style="background: rgba\(([\d, ]+), ([\d.]+)\)[^"]*">(.*?)<'
    coloured = re.findall(word, page)
    assert [text for *_, text in coloured] == ["a", "good", "film"]
    for (title, colour, strength, _), value in zip(coloured, values.integrated, strict=True):
        assert title == f"{value:+.2f}"
        assert (colour == "57, 135, 229") == (value >= 0)
        assert float(strength) == pytest.approx(0.45 * abs(value) / strongest, abs=0.006)


def test_the_table_of_heads_begins_with_what_a_head_is_worth_and_a_word_is_compared_in_its_contexts(
    subjects: list[Subject], tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("good film\nbad film\nfilm good bad\n", encoding="utf-8")
    found = inspect_models(subjects[:1], replace(QUICK, probes=False, word="film", corpus=corpus, shown=20))
    page = write_inspection(found, tmp_path / "page").with_suffix(".md").read_text(encoding="utf-8")
    assert "\n| model | layer | head | accuracy without it | importance | confidence |" in page
    change = found.models[0].masked[0][0] - (found.models[0].whole or 0)
    importance = found.models[0].importance[0][0]
    assert f"\n| teacher | 1 | 1 | {change:+.4f} | {importance:.2f} |" in page
    rows = tables(found)["contexts"]
    assert {row["layer"] for row in rows} == {0, 1, 2, 3, 4}
    assert {row["of"] for row in rows} == {"good [film]", "bad [film]", "[film] good bad"}
    assert len(found.sentences) == len(found.models[0].views) == 20


def test_a_run_knows_its_task_and_compares_its_student_with_its_teacher(
    golden_run: Callable[[str], Path], golden_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run = golden_run("pairs")  # Of a CNN.
    monkeypatch.chdir(golden_root)  # The run has the paths of its teacher and its data from here.
    quick = ("inspect.probe_rows=64", "inspect.masked_rows=0", "inspect.word=film", f"output_dir={tmp_path / 'runs'}")
    assert run_command("job=inspect", f"model={run}", *quick) == 0
    directory, page = read_page(tmp_path)
    assert "Looking inside teacher and student on stsb" in page
    assert "Not known: student returns no states of layers." in page
    # Without the weights of its fine-tuning the teacher is left out, with the reason.
    shutil.rmtree(directory)
    copy = shutil.copytree(run, tmp_path / "copy")
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace(str(golden_root / "cache"), str(tmp_path / "cache")))
    capsys.readouterr()
    assert run_command("job=inspect", f"model={copy}", *quick) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "the student is shown without its teacher: the teacher of" in printed
    assert "was fine-tuned, and is not in the cache" in printed
    assert "Looking inside student on stsb" in read_page(tmp_path)[1]


def test_one_model_alone_with_a_sentence_that_is_escaped(command: Callable[..., int], tmp_path: Path) -> None:
    sentence = "good </script><b>film</b>"
    options = ("inspect.probes=false", "inspect.masked_rows=0", f"inspect.sentences=['{sentence}']")
    assert command(*options, other=None) == 0
    _, page = read_page(tmp_path)
    assert "<h2>Heads</h2>" in page
    assert "What was lost" not in page
    assert "<h2>Probes</h2>" not in page
    assert sentence not in page
    assert "good \\u003c/script>" in page


def test_bad_input_is_one_line(
    command: Callable[..., int], encoder_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases: list[tuple[list[str], dict[str, Path], str]] = [
        (
            ["inspect.split=test"],
            {},
            "inspect.split=test is no split of task=classification, expected one of train, dev",
        ),
        (["inspect.sentences=['" + "good " * 100 + "']"], {}, "has 402 tokens, and teacher reads 80 at most: cut it"),
        (["inspect.relations=none.conllu"], {}, "none.conllu cannot be read"),
        (["trainer.max_epochs=1"], {}, "job=inspect reads only model, other, inspect.*"),
        ([], {"other": encoder_dir}, "has no trained head for task=classification"),
    ]
    for options, other, message in cases:
        assert command(*options, **other) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_a_bilstm_has_no_attention_and_the_rest_works(subjects: list[Subject], save: Save, tmp_path: Path) -> None:
    teacher = subjects[0]
    student = bilstm.from_teacher(teacher.model, task=teacher.task, hidden_dim=8, embedding_dim=8)
    other = open_subject("student", save(student, "bilstm"), teacher.task, teacher.data, tmp_path / "cache")
    assert not other.has_attention
    found = inspect_models([teacher, other], QUICK)
    assert {row["model"] for row in tables(found)["heads"]} == {"teacher"}
    assert {row["model"] for row in tables(found)["probes"]} == {"teacher", "student"}
    markdown = write_inspection(found, tmp_path / "page").with_suffix(".md").read_text(encoding="utf-8")
    assert "student has no attention." in markdown
    assert "No group has items of at least 20 texts inside and outside." in markdown


def test_two_vocabularies_are_compared_by_items(subjects: list[Subject], tmp_path: Path) -> None:
    teacher = subjects[0]
    tokenizer = teacher.tokenizer.train_new_from_iterator(teacher.data.splits["train"].texts, 60)
    toy_bert(len(tokenizer), layers=2, width=16).save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    assert len(tokenizer) < len(teacher.tokenizer)
    other = open_subject("student", tmp_path / "other", teacher.task, teacher.data, tmp_path / "cache")
    found = inspect_models([teacher, other], replace(QUICK, probes=False))
    assert found.similarity is not None
    assert found.similarity.shape == (5, 3)
    assert found.agreement is not None


def test_the_python_door_gives_the_answers_and_writes_the_page(
    subjects: list[Subject], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTILL_CACHE", str(tmp_path / "cache"))
    teacher, student = subjects
    found = d.inspect(
        teacher.path, student.path, task=teacher.task, student=d.students.distilbert(), directory=tmp_path / "looked",
        probes=False, masked_rows=0, shown=2,
    )  # fmt: skip
    assert [of.subject.name for of in found.models] == ["teacher", "student"]
    assert found.before is not None
    assert (tmp_path / "looked" / "inspect.html").is_file()
