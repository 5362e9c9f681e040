"""The texts that teacher and exported files write at the end of a run, and what the golden writers compute in it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from distill.edge import Bundle
from distill.kinds.scoring import text_metrics
from tests.jobs.runs import read_record

METRICS = ("exact_match", "rougeL", "chrf", "bleu")
MODELS = ("teacher", "fp32", "int8")
GoldenRun = Callable[[str], Path]


def read_written(directory: Path) -> list[dict[str, Any]]:
    """Returns the rows of dev that texts were written for."""
    rows = pyarrow.parquet.read_table(directory / "predictions.parquet").to_pylist()
    return [row for row in rows if row["split"] == "dev" and row["fp32_written"] is not None]


def test_metrics_are_those_of_the_texts_in_the_predictions(golden_run: GoldenRun) -> None:
    directory = golden_run("seq2seq")
    record, rows = read_record(directory), read_written(directory)
    metrics = {"teacher": record["teacher"]["metrics"]}
    metrics |= {name: record["export"][name]["metrics"] for name in ("fp32", "int8")}
    assert len(rows) == record["texts"]["dev"]["sources"] == 6
    for model in MODELS:
        expected = text_metrics([row[f"{model}_written"] for row in rows], [row["references"] for row in rows])
        found = {name: metrics[model][name] for name in METRICS}
        assert found == pytest.approx({name: expected[name] for name in METRICS})
    of_dev = record["texts"]["dev"]
    difference = of_dev["comparison"]["int8"]["fp32"]["chrf"]
    assert difference["difference"] == pytest.approx(metrics["int8"]["chrf"] - metrics["fp32"]["chrf"])
    assert {model: sum(of["number"] for of in groups.values()) for model, groups in of_dev["lengths"].items()} == (
        dict.fromkeys(MODELS, 6)
    )


def test_files_write_the_texts_that_their_bundle_writes(golden_run: GoldenRun) -> None:
    directory = golden_run("seq2seq")
    rows = read_written(directory)[:4]
    bundle = Bundle(directory / "bundle", model="fp32")
    texts = bundle.generate_all([row["source"] for row in rows], max_new_tokens=16)
    assert [text["text"] for text in texts] == [row["fp32_written"] for row in rows]
    assert bundle.manifest["metrics"]["int8"].keys() >= {*METRICS}
    assert bundle.manifest["teacher"]["metrics"].keys() >= {*METRICS}


def test_logits_are_computed_for_as_many_texts_as_fit_into_memory(
    golden_run: GoldenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle(golden_run("decoder") / "bundle", model="fp32")
    texts, batches = ["Good morning, all of you.", "It is late.", "A film."], []
    expected, run = bundle.item_logits(texts), bundle.session.run

    def count(names: Any, inputs: Any) -> Any:
        batches.append(len(inputs["input_ids"]))
        return run(names, inputs)

    monkeypatch.setattr(bundle.session, "run", count)
    monkeypatch.setattr("distill.edge.prediction.MOST_LOGITS", 1)
    for found, logits in zip(bundle.item_logits(texts), expected, strict=True):
        np.testing.assert_allclose(found, logits, atol=1e-4)
    assert batches == [1, 1, 1]
