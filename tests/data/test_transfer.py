"""Tests of further sets that every model is scored on: they are read as splits, and select nothing."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from omegaconf import OmegaConf

from distill.core.errors import OptionError, UserError
from distill.data.splits import LabelledData
from distill.kinds import Classification, Embedding, MultipleChoice, QuestionAnswering, Regression, TokenClassification
from tests.conftest import LOOSE_OPTIONS, run_here, sentences

ENGLISH = [("a lovely film", "good"), ("a dull film", "bad"), ("what a joy", "good"), ("a bore", "bad")]
GERMAN = [("ein schöner Film", "good"), ("ein öder Film", "bad"), ("so langweilig", "bad")]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def rows(pairs: list[tuple[str, str]], **changes: Any) -> list[dict[str, Any]]:
    return [{"text": text, "label": label} | changes for text, label in pairs]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write(tmp_path / "en" / "train.jsonl", rows(ENGLISH))
    write(tmp_path / "en" / "dev.jsonl", rows(ENGLISH[:2]))
    write(tmp_path / "de" / "test.jsonl", rows(GERMAN))
    write(tmp_path / "de" / "dev.jsonl", rows(GERMAN[:1]))
    return tmp_path


def read(data_dir: Path, transfer: Any, **options: Any) -> LabelledData:
    return Classification(text="text", data_dir=data_dir, transfer=transfer, **options).read(data_dir / "cache")


def test_a_set_is_a_split_that_is_scored_last(directory: Path) -> None:
    data = read(directory / "en", {"de": directory / "de" / "test.jsonl", "few": str(directory / "de" / "dev.jsonl")})
    assert list(data.scored()) == ["dev", "de", "few"]
    assert data.scored()["de"].texts == [text for text, _ in GERMAN]
    assert data.scored()["de"].labels.tolist() == [1, 0, 0]
    assert data.sizes() == {"train": 4, "dev": 2, "de": 3, "few": 1}


def test_of_a_directory_test_is_read_and_else_dev(directory: Path) -> None:
    assert len(read(directory / "en", {"de": directory / "de"}).scored()["de"]) == 3
    (directory / "de" / "test.jsonl").unlink()
    assert len(read(directory / "en", {"de": directory / "de"}).scored()["de"]) == 1
    (directory / "de" / "dev.jsonl").unlink()
    with pytest.raises(UserError, match=r"de has no test or dev or validation or valid file \(found nothing\)"):
        read(directory / "en", {"de": directory / "de"})


def test_teachers_and_outputs_of_a_run_without_the_sets_are_those_of_one_with_them(directory: Path) -> None:
    """What is trained does not depend on the sets, so that the key of a fine-tuned teacher does not."""
    without, other = read(directory / "en", None), read(directory / "en", {"de": directory / "de"})
    assert without.sha256 == other.sha256
    (directory / "en" / "test.jsonl").write_bytes((directory / "de" / "test.jsonl").read_bytes())
    assert read(directory / "en", None).sha256 != without.sha256


def test_a_set_may_be_a_table_in_memory(directory: Path) -> None:
    texts, labels = zip(*GERMAN, strict=True)
    data = read(directory / "en", {"rows": rows(GERMAN), "lists": (list(texts), list(labels))})
    assert data.scored()["rows"].texts == data.scored()["lists"].texts == list(texts)
    assert data.scored()["lists"].labels.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (rows([("schön", "gut")]), "de.jsonl, line 1: label 'gut' is unknown, expected one of bad, good"),
        (rows([("schön", "1")]), "de.jsonl, line 1: label '1' is unknown, expected one of bad, good"),
        (rows(GERMAN, label=None), "de.jsonl has no labels, expected those of task.transfer.de: it is scored"),
        ([{"satz": "schön", "label": "good"}], "de.jsonl has no column text: it has satz, label"),
        (rows([("", "good")]), "the set task.transfer.de has no row with a text and a label, expected at least one"),
    ],
)
def test_a_set_that_does_not_suit_train_is_refused_in_one_line(
    directory: Path, content: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(UserError) as error:
        read(directory / "en", {"de": write(directory / "de.jsonl", content)})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["train", "data", "mine", "de/at", ""])
def test_a_name_that_is_taken_or_no_word_is_refused(directory: Path, name: str) -> None:
    with pytest.raises(OptionError, match=r"transfer=.*expected names of letters, digits, - and _ that are no splits"):
        read(directory / "en", {name: directory / "de"}, splits={"mine": ["mine"]})


def test_a_path_and_a_task_without_sets_are_refused(directory: Path) -> None:
    with pytest.raises(UserError, match="task.transfer.de=nowhere does not exist, expected a file, or a directory"):
        read(directory / "en", {"de": "nowhere"})
    (directory / "de.xlsx").touch()
    with pytest.raises(UserError, match=r"task.transfer.de=.*de.xlsx is of no known kind, expected one of .tsv, "):
        read(directory / "en", {"de": directory / "de.xlsx"})


ANSWERS = {"text": ["Bonn"], "answer_start": [9]}
CHOICES = {"question": "question", "choices": "choices", "answer": "answer"}
TRANSLATIONS = {"metrics": ["accuracy"], "text": ["english", "sentence"], "language": "lang"}
KINDS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "numbers": (Regression, {"text": "text", "label": "score"}, {"text": "schön", "score": 4.0}),
    "tags": (TokenClassification, {}, {"tokens": ["in", "Bonn"], "tags": ["O", "B-place"]}),
    "answers": (QuestionAnswering, {}, {"question": "wo?", "context": "Er lebt (Bonn).", "answers": ANSWERS}),
    "choices": (MultipleChoice, CHOICES, {"question": "wo?", "choices": ["in Bonn", "in Ulm"], "answer": 1}),
    "vectors": (Embedding, {}, {"sentence1": "schön", "sentence2": "hübsch", "score": 5.0}),
    "translations": (Embedding, TRANSLATIONS, {"english": "nice", "sentence": "schön", "lang": "de"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_task_on_rows_reads_a_set(kind: str, tmp_path: Path) -> None:
    make, options, row = KINDS[kind]
    other = row | ({"score": 1.0} if "score" in row else {"answer": 0} if "answer" in row else {})
    for name in ("train", "dev"):
        write(tmp_path / "en" / f"{name}.jsonl", [row, other])
    further = write(tmp_path / "further.jsonl", [other, row, row])
    data = make(**options, data_dir=tmp_path / "en", transfer={"further": further}).read(tmp_path / "cache")
    assert {name: len(split) for name, split in data.scored().items()} == {"dev": 2, "further": 3}


def test_a_set_adds_no_tag_to_those_of_the_splits(tmp_path: Path) -> None:
    for name, tag in (("train", "B-place"), ("dev", "B-place"), ("far", "B-river")):
        write(tmp_path / f"{name}.jsonl", [{"tokens": ["am", "Rhein"], "tags": ["O", tag]}])
    task = TokenClassification(data_dir=tmp_path, transfer={"far": tmp_path / "far.jsonl"})
    with pytest.raises(UserError, match=r"far.jsonl.*: tag B-river of the set far is unknown, expected one of O, B-pl"):
        task.read(tmp_path / "cache")


@pytest.mark.slow
def test_a_run_scores_every_model_on_a_set_and_a_cut_vocabulary_reads_it_as_before(
    tmp_path: Path, data_dir: Path, encoder_dir: Path
) -> None:
    lines = "".join(f"{text}\t{label}\n" for text, label in [*sentences(40)[24:], ("naïve zebras yawn", 1)])
    (tmp_path / "far.tsv").write_text(f"sentence\tlabel\n{lines}", encoding="utf-8")
    command = (
        "+teacher=pretrained", f"teacher.path={encoder_dir}", "+student=distilbert", "task=sst2",
        f"task.data_dir={data_dir}", "task.transfer={far: far.tsv}", "task.max_length=32", "augment=none",
        f"cache_dir={tmp_path / 'cache'}", f"output_dir={tmp_path / 'runs'}", "teacher.finetune.max_epochs=1",
        "teacher.accept_weak=true", "trainer.max_epochs=1", "benchmark.enabled=false", "export.recipes=[dynamic]",
        "export.vocabulary=task", "export.vocabulary_texts=[far.tsv]", *LOOSE_OPTIONS,
    )  # fmt: skip
    done = run_here(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "items read as other pieces: dev 0 of 24, far 0 of 17" in " ".join(done.stdout.split())
    [path] = (tmp_path / "runs").rglob("run.json")
    record = json.loads(path.read_text())
    assert record["task"]["examples"] == {"train": 64, "dev": 24, "test": 0, "far": 17}
    for model in (record["teacher"], record["student"], *record["export"].values()):
        assert 0 <= model["metrics"]["far/accuracy"] <= 1
    assert record["export"]["fp32"]["metrics"]["far/accuracy"] == record["student"]["metrics"]["far/accuracy"]
    assert "| far | 17 |" in (path.parent / "report.md").read_text()
    rows = pyarrow.parquet.read_table(path.parent / "predictions.parquet").to_pylist()
    assert [row["text"] for row in rows if row["split"] == "far"][-1] == "naïve zebras yawn"
    saved = OmegaConf.load(path.with_name("config.yaml"))
    assert [saved.task.transfer.far, *saved.export.vocabulary_texts] == [str(tmp_path / "far.tsv")] * 2
