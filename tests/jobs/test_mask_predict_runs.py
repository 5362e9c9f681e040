"""Tests of whole jobs of a student that fills targets, at toy size, from the teacher's texts to the bundle."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, BartConfig, BartForConditionalGeneration

from distill.edge import Bundle
from tests.jobs.runs import Run, capture_runs, read_record, run_command
from tests.mask_predict import SIZES, WORDS, make_model, make_tokenizer

TRAINER = ("trainer.max_steps=4", "trainer.max_epochs=null", "trainer.batch_size=8", "trainer.precision=32-true",
           "trainer.accelerator=cpu", "benchmark.enabled=false")  # fmt: skip


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs of words in the other order, a trained and an untrained BART, a student, and a cache."""
    root = tmp_path_factory.mktemp("work")
    (root / "data").mkdir()
    for split, number in (("train", 24), ("dev", 8)):
        rows = [f"w{i % WORDS} w{i * 3 % WORDS}\tw{i * 3 % WORDS} w{i % WORDS}" for i in range(number)]
        (root / "data" / f"{split}.tsv").write_text("\n".join(["source\ttarget", *rows]), encoding="utf-8")
    torch.manual_seed(0)
    models = {
        "bart": BartForConditionalGeneration(BartConfig(**SIZES, trained_for="seq2seq")),
        "untrained": BartForConditionalGeneration(BartConfig(**SIZES)),
        "filled": make_model(),
    }
    for name, model in models.items():
        model.save_pretrained(root / name)
        make_tokenizer().save_pretrained(root / name)
    return root


@pytest.fixture
def run(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command; returns its exit code, its output and the run's directory."""

    def run_options(output: Path, *options: str) -> int:
        student = [] if "+student=distilbert" in options else ["+student=mask_predict"]
        return run_command(
            "task=mask_predict", "objective=mask_predict", "+teacher=pretrained", *student,
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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("objective=seq2seq",), "the term soft compares outputs with those of the teacher, which writes"),
        (("teacher.path={work}/untrained",), "train it with python -m distill job=finetune task=seq2seq"),
        (("teacher.path={work}/filled",), "fills all tokens of a target at once, and teaches no model: take one that"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(run: Run, work: Path, options: tuple[str, ...], expected: str) -> None:
    given = [option.format(work=work) for option in options]
    code, text, _ = run(*given)
    assert code == 2
    assert expected in " ".join(text.split())


def test_the_loss_of_lengths_is_for_targets_with_masks(run: Run) -> None:
    code, text, _ = run("task=seq2seq", "+student=distilbert")
    assert code == 2
    assert "the term length learns from the lengths of targets with masks (task=mask_predict)" in " ".join(text.split())


def test_labels_alone_teach_too(run: Run) -> None:
    code, text, directory = run("export.enabled=false", "task.scored_texts=0", "student.decoder_depth=2")
    assert code == 0, text
    record = read_record(directory)
    assert record["student"]["metrics"]["loss"] > 0
    assert record["objective"]["name"] == "mask_predict"
