"""Tests of predictions.parquet: its rows by hand, and whole runs whose metrics follow from it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from sklearn.metrics import accuracy_score
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import distill as d
from distill.core.contracts import Scores
from distill.core.errors import UserError
from distill.data.splits import LabelledData, text_split
from distill.kinds import MaskedLM
from distill.kinds.classification import OneClass
from distill.kinds.masked_lm import TokenScores
from distill.kinds.regression import NumberScores
from distill.kinds.scoring import Scoring
from distill.kinds.token_classification import TagScores, tagged_split
from distill.records.loggers import tracked
from distill.records.prediction_analysis import FILE, write_predictions
from distill.records.run import create_run_in
from distill.records.verdict import RecordSettings
from tests.conftest import LABELS, LOOSE, sentences
from tests.golden.runs import golden_output, golden_root, golden_run

assert golden_output
assert golden_root
assert golden_run

LOGITS = np.log([[0.9, 0.1], [0.2, 0.8]])


def scores_of(logits: np.ndarray, labels: Any, example_id: Any = None) -> Scores:
    return Scores({"logits": logits}, np.array(labels), np.arange(len(labels)) if example_id is None else example_id)


def read_rows(directory: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(directory / FILE).to_pylist()
    return rows


def data_of(scoring: Scoring, *labels: str, **splits: object) -> LabelledData:
    return LabelledData(labels=labels, splits={"train": None, **splits}, sha256="", scoring=scoring)


def test_an_example_of_a_classification_is_a_row_of_names(tmp_path: Path) -> None:
    dev, test = text_split(["one", "two"], labels=np.array([0, 0])), text_split(["three"], labels=np.array([1]))
    models = {
        "teacher": {"dev": scores_of(LOGITS, [0, 0]), "test": scores_of(LOGITS[:1], [1])},
        "int8": {"dev": scores_of(LOGITS[::-1], [0, 0]), "test": scores_of(LOGITS[1:], [1])},
    }
    splits = data_of(OneClass(("accuracy",)), "no", "yes", dev=dev, test=test)
    write_predictions(tmp_path, models, splits=splits, settings=RecordSettings())
    rows = read_rows(tmp_path)
    columns = ("split", "index", "text", "label", "teacher_prediction", "int8_prediction")
    assert list(rows[0]) == [*columns[:5], "teacher_probability", "int8_prediction", "int8_probability"]
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("dev", 0, "one", "no", "no", "yes"), ("dev", 1, "two", "no", "yes", "no"),
        ("test", 0, "three", "yes", "no", "yes"),
    ]  # fmt: skip
    assert [row["teacher_probability"] for row in rows] == pytest.approx([0.9, 0.8, 0.9])
    assert [row["int8_probability"] for row in rows] == pytest.approx([0.8, 0.9, 0.8])
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_number_has_no_probability_and_a_pair_two_texts(tmp_path: Path) -> None:
    dev = text_split(["one", "two"], ["three", "four"], labels=np.array([1.5, 2.0]))
    models = {"student": {"dev": scores_of(np.array([[1.0], [2.5]]), [1.5, 2.0])}}
    arguments: Any = {"splits": data_of(NumberScores(("pearson",)), "score", dev=dev)}
    write_predictions(tmp_path, models, settings=RecordSettings(), **arguments)
    assert read_rows(tmp_path)[1] == {
        "split": "dev", "index": 1, "text": "two", "second_text": "four", "label": 2.0, "student_prediction": 2.5,
        "student_probability": None,
    }  # fmt: skip
    arguments["written"] = {"dev": {"references": [["five"], ["six"]]}}
    write_predictions(tmp_path, models, settings=RecordSettings(texts=False), **arguments)
    assert list(read_rows(tmp_path)[0]) == [
        "split", "index", "label", "student_prediction", "student_probability",
    ]  # fmt: skip


def test_tags_are_lists_also_of_a_sentence_that_was_cut_off(tmp_path: Path) -> None:
    dev = tagged_split([["a", "b"], ["x"], ["c"], ["y"]])
    scores = scores_of(np.concatenate([LOGITS, LOGITS[:1]]), [0, 1, 1], np.array([0, 0, 2]))
    write_predictions(
        tmp_path,
        {"fp32": {"dev": scores}},
        splits=data_of(TagScores(("O", "B-x")), "O", "B-x", dev=dev),
        settings=RecordSettings(),
    )
    rows = read_rows(tmp_path)
    assert [row["text"] for row in rows] == ["a b", "x", "c", "y"]
    assert [row["label"] for row in rows] == [["O", "B-x"], [], ["B-x"], []]
    assert [row["fp32_prediction"] for row in rows] == [["O", "B-x"], [], ["O"], []]
    assert rows[0]["fp32_probability"] == pytest.approx([0.9, 0.8])


def test_a_vocabulary_has_the_tokens_of_each_example() -> None:
    columns = {"prediction": np.array([7, 5, 9]), "probability": np.array([0.5, 0.25, 0.75])}
    scoring = TokenScores(MaskedLM().settings)
    table = scoring.tabulate(
        Scores(columns, np.array([7, 8, 9]), np.array([0, 0, 2])), data_of(scoring), examples=3  # type: ignore[arg-type]
    )  # fmt: skip
    assert table == {
        "label": [[7, 8], [], [9]], "prediction": [[7, 5], [], [9]], "probability": [[0.5, 0.25], [], [0.75]],
    }  # fmt: skip


def test_the_metrics_of_a_run_follow_from_its_predictions(golden_run: Callable[[str], Path]) -> None:
    run = golden_run("classes")
    table = pyarrow.parquet.read_table(run / FILE).to_pandas()
    record = json.loads((run / "run.json").read_text())
    models = {"teacher": record["teacher"], "student": record["student"], **record["export"]}
    assert set(models) == {"teacher", "student", "fp32", "int8"}
    for name, model in models.items():
        predicted = table[f"{name}_prediction"]
        assert accuracy_score(table["label"], predicted) == model["metrics"]["accuracy"]
        assert table[f"{name}_probability"].between(0.5, 1).all()


def test_the_rest_of_a_file_that_abstains_has_the_metrics_of_its_sure_predictions_and_no_texts_are_left(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    splits: Any = {
        name: ([f"{text} {name}" for text, _ in rows], [LABELS[label] for _, label in rows])
        for name, rows in (("train", sentences(32)), ("dev", sentences(24)), ("test", sentences(9)))
    }
    task = d.tasks.Classification(text="sentence", labels=LABELS, max_length=64, **splits)
    result = d.distill(
        d.Teacher(teacher, tokenizer, accept_weak=True, cache_dir=tmp_path / "cache"), d.students.distilbert(), task,
        trainer=d.TrainerSettings(max_steps=2, batch_size=16, precision="32-true", learning_rate=1e-3),
        export=replace(LOOSE, abstain=0.25, formats=["fp32"]), benchmark=d.BenchmarkSettings(enabled=False),
        record=d.RecordSettings(texts=False), directory=tmp_path / "run",
    )  # fmt: skip
    table = pyarrow.parquet.read_table(result.directory / FILE).to_pandas()
    abstention = result.record["export"]["fp32"]["abstain"]
    for split, prefix, texts in (("dev", "", splits["dev"][0]), ("test", "test/", splits["test"][0])):
        rows = table[table["split"] == split]
        sure = rows[rows["fp32_probability"] >= abstention["threshold"]]
        assert abstention["share"][split] == pytest.approx(1 - len(sure) / len(rows))
        assert abstention["metrics"][f"{prefix}accuracy"] == (sure["label"] == sure["fp32_prediction"]).mean()
        predictions = d.Bundle(result.directory / "bundle", model="fp32").predict(texts)
        withheld = [index for index, prediction in enumerate(predictions) if prediction["label"] is None]
        assert withheld == [index for index in rows["index"] if index not in set(sure["index"])]
    assert abstention["share"]["dev"] == 6 / 24
    for document in (result.report(), (result.directory / "bundle" / "README.md").read_text()):
        columns = "| file | threshold | abstains on dev | abstains on test | accuracy of the rest |"
        assert columns in document
        assert f"| model.onnx | {abstention['threshold']:.4f} | 25.0% |" in document
    assert "text" not in table.columns
    text = splits["dev"][0][3].encode()
    assert not [path for path in result.directory.rglob("*") if path.is_file() and text in path.read_bytes()]


@pytest.mark.parametrize("texts", [True, False])
def test_the_message_of_an_error_is_recorded_unless_texts_are_left_out(texts: bool, tmp_path: Path) -> None:
    run = create_run_in(tmp_path, job="distill")
    with pytest.raises(UserError, match="a secret"), tracked(run, resume_with="", texts=texts):
        raise UserError("example 3: a secret, expected text")
    expected = "example 3: a secret, expected text" if texts else "left out, because record.texts=false"
    assert json.loads((tmp_path / "run.json").read_text())["error"] == f"UserError: {expected}"
