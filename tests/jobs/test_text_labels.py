"""A whole run on labels as words, from the command line: several tasks and their bundle."""

import json
from pathlib import Path

import pytest

from distill.edge import Bundle
from tests.jobs.conftest import Run
from tests.jobs.runs import read_record


def test_several_tasks_have_one_model_and_one_bundle(run: Run, tmp_path: Path) -> None:
    rows = [{"sentence1": f"film {n}", "sentence2": f"film {n + n % 2}", "label": 1 - n % 2} for n in range(40)]
    (tmp_path / "mrpc").mkdir()
    for split, part in {"train": rows[:24], "dev": rows}.items():
        (tmp_path / "mrpc" / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in part))
    _, directory = run(
        "+teacher=pretrained teacher.path=toys/bart teacher.finetune.max_steps=1 teacher.accept_weak=true "
        "+student=distilbert student.decoder_depth=1 student.depth=1 objective=seq2seq task=text_labels "
        "task.tasks=[sst2,mrpc] task.tasks.sst2.data_dir=toys/classes task.tasks.mrpc.data_dir=mrpc "
        "task.words={mrpc:{not_equivalent:different,equivalent:same}} task.max_length=32 task.scored_texts=6 "
        "trainer.max_epochs=null trainer.max_steps=3 trainer.precision=32-true trainer.accelerator=cpu "
        "benchmark.enabled=false baseline=false export.formats=[fp32]"
    )
    record = read_record(directory)
    metrics, fp32 = record["student"]["metrics"], record["export"]["fp32"]
    assert list(metrics) == ["mean", "sst2/accuracy", "mrpc/accuracy", "mrpc/f1"]
    assert metrics["mean"] == pytest.approx((metrics["sst2/accuracy"] + metrics["mrpc/accuracy"]) / 2)
    assert record["task"]["metric"] == "mean"
    assert fp32["gate"] == "passed"
    assert {name: fp32["metrics"][name] for name in metrics} == pytest.approx(metrics)
    assert 0 <= fp32["metrics"]["written_accuracy"] <= 1 - fp32["metrics"]["no_label"] <= 1
    assert "`no_label` of those that are no word of a label" in (directory / "report.md").read_text()
    bundle = Bundle(directory / "bundle", model="fp32")
    rows = [json.loads(line) for line in (tmp_path / "mrpc" / "dev.jsonl").read_text().splitlines()]
    given = bundle.predict([{"task": "mrpc", **{name: row[name] for name in row if name != "label"}} for row in rows])
    labels = ["not_equivalent", "equivalent"]
    right = [labels[row["label"]] == prediction["label"] for row, prediction in zip(rows, given, strict=True)]
    assert sum(right) / len(right) == pytest.approx(metrics["mrpc/accuracy"])
