"""Tests of whole jobs of a student that fills targets, at toy size, from the teacher's texts to the bundle."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, BartConfig, BartForConditionalGeneration

from distill.edge import Bundle
from tests.jobs.runs import Run, capture_runs, read_record, run_command
from tests.mask_predict import SIZES, WORDS, make_tokenizer

TRAINER = ("trainer.max_steps=4", "trainer.max_epochs=null", "trainer.batch_size=8", "trainer.precision=32-true",
           "trainer.accelerator=cpu", "benchmark.enabled=false")  # fmt: skip


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs of words in the other order, a BART and a cache."""
    root = tmp_path_factory.mktemp("work")
    (root / "data").mkdir()
    for split, number in (("train", 24), ("dev", 8)):
        rows = [f"w{i % WORDS} w{i * 3 % WORDS}\tw{i * 3 % WORDS} w{i % WORDS}" for i in range(number)]
        (root / "data" / f"{split}.tsv").write_text("\n".join(["source\ttarget", *rows]), encoding="utf-8")
    torch.manual_seed(0)
    BartForConditionalGeneration(BartConfig(**SIZES, trained_for="seq2seq")).save_pretrained(root / "bart")
    make_tokenizer().save_pretrained(root / "bart")
    return root


@pytest.fixture
def run(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command; returns its exit code, its output and the run's directory."""

    def run_options(output: Path, *options: str) -> int:
        return run_command(
            "task=mask_predict", "objective=mask_predict", "+teacher=pretrained", "+student=mask_predict",
            f"teacher.path={work / 'bart'}", "task.max_length=8", "task.max_target=8", f"cache_dir={work / 'cache'}",
            f"output_dir={output}", f"task.data_dir={work / 'data'}", "teacher.accept_weak=true", *TRAINER, *options,
        )  # fmt: skip

    return capture_runs(partial(run_options), tmp_path, capsys)


def test_a_student_learns_from_the_teachers_texts_and_fills_on_a_device(run: Run) -> None:
    code, text, directory = run(
        "teacher.beams=2", "task.rounds=3", "task.lengths=2", "task.scored_texts=4", "task.text_metrics=[chrf]",
        "export.max_drop=1",
    )  # fmt: skip
    assert code == 0, text
    record = read_record(directory)
    assert record["task"]["kind"] == "mask_predict"
    assert {"loss", "perplexity", "token_accuracy", "length_accuracy", "length_error"} <= record["student"][
        "metrics"
    ].keys()
    assert {"loss", "chrf"} <= record["teacher"]["metrics"].keys()
    assert "length_error" not in record["teacher"]["metrics"]
    formats = record["export"]
    assert formats["fp32"]["gate"] == "passed"
    assert formats["fp32"]["metrics"]["loss"] == pytest.approx(record["student"]["metrics"]["loss"], abs=1e-4)
    assert {"fp32", "int8"} <= formats.keys()
    assert all("chrf" in of["metrics"] for of in formats.values())
    assert len(list((directory / "bundle").glob("model*.encoder.onnx"))) == 2
    manifest = json.loads((directory / "bundle" / "bundle.json").read_text())
    assert manifest["decoding"] == {
        "before": [1], "after": [2], "mask": 4, "max_target": 8, "rounds": 3, "lengths": 2
    }  # fmt: skip
    prediction = Bundle(directory / "bundle", model="fp32").predict("w1 w2", rounds=2)
    assert 1 <= len(prediction["tokens"]) <= 6
    student = AutoModelForSeq2SeqLM.from_pretrained(directory / "student")
    assert student.config.model_type == "distill_mask_predict"
