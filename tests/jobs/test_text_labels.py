"""Whole runs on labels as words, from the command line: several tasks, the bundle, and words that are refused."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import BertConfig, BertModel, PreTrainedTokenizerBase, T5Config, T5ForConditionalGeneration

from distill.edge import Bundle
from tests.conftest import run_here
from tests.jobs.runs import read_record
from tests.jobs.test_text_export import write_tokenizer

STEPS = ("trainer.max_epochs=null", "trainer.max_steps=3", "trainer.learning_rate=3e-3", "trainer.evaluations=1")
WORDS = ("fine", "dull")


def write_tasks(directory: Path) -> list[str]:
    """Writes films with a label and pairs with another one, in the columns of SST-2 and MRPC; returns all texts."""
    texts = []
    for split, number in {"train": 24, "dev": 40}.items():
        films = [{"sentence": f"film {row} is {WORDS[row % 2]}", "label": 1 - row % 2} for row in range(number)]
        pairs = [
            {"sentence1": f"film {row}", "sentence2": f"film {row + row % 2}", "label": 1 - row % 2}
            for row in range(number)
        ]
        for name, rows in {"sst2": films, "mrpc": pairs}.items():
            (directory / name).mkdir(exist_ok=True)
            (directory / name / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            texts += [str(value) for row in rows for value in row.values()]
    return texts


def options(directory: Path, names: Sequence[str]) -> list[str]:
    listed = [f"task.tasks.{name}.data_dir={directory / name}" for name in names]
    return [
        "task=text_labels", f"task.tasks=[{','.join(names)}]", *listed, "task.max_length=32", "task.scored_texts=6",
        *STEPS, f"output_dir={directory / 'runs'}", f"cache_dir={directory / 'cache'}", "trainer.precision=32-true",
        "trainer.accelerator=cpu", "benchmark.enabled=false", "baseline=false",
    ]  # fmt: skip


def test_several_tasks_have_one_model_and_one_bundle(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "t5", write_tasks(tmp_path), start=False)
    config = T5Config(
        vocab_size=400, d_model=32, d_kv=16, d_ff=32, num_layers=2, num_decoder_layers=2, num_heads=2,
        pad_token_id=0, eos_token_id=2, decoder_start_token_id=0,
    )  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    done = run_here(
        "+teacher=pretrained", f"teacher.path={tmp_path / 't5'}", "teacher.finetune=false", "teacher.accept_weak=true",
        "+student=distilbert", "objective=seq2seq", *options(tmp_path, ["sst2", "mrpc"]),
        "task.words={mrpc: {not_equivalent: different, equivalent: same}}", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [path] = (tmp_path / "runs").rglob("run.json")
    record = read_record(path.parent)
    metrics, fp32 = record["student"]["metrics"], record["export"]["fp32"]
    assert list(metrics) == ["mean", "sst2/accuracy", "mrpc/accuracy", "mrpc/f1"]
    assert metrics["mean"] == pytest.approx((metrics["sst2/accuracy"] + metrics["mrpc/accuracy"]) / 2)
    assert record["task"]["metric"] == "mean"
    assert fp32["gate"] == "passed"
    assert {name: fp32["metrics"][name] for name in metrics} == pytest.approx(metrics)
    assert 0 <= fp32["metrics"]["written_accuracy"] <= 1 - fp32["metrics"]["no_label"] <= 1
    assert "`no_label` of those that are no word of a label" in (path.parent / "report.md").read_text()
    bundle = Bundle(path.parent / "bundle", model="fp32")
    rows = [json.loads(line) for line in (tmp_path / "mrpc" / "dev.jsonl").read_text().splitlines()]
    given = bundle.predict([{"task": "mrpc", **{name: row[name] for name in row if name != "label"}} for row in rows])
    labels = ["not_equivalent", "equivalent"]
    right = [labels[row["label"]] == prediction["label"] for row, prediction in zip(rows, given, strict=True)]
    assert sum(right) / len(right) == pytest.approx(metrics["mrpc/accuracy"])


@pytest.mark.slow
def test_an_encoder_learns_to_write_labels(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    write_tasks(tmp_path)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=40,
    )  # fmt: skip
    BertModel(config).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    encoder = tmp_path / "encoder"
    done = run_here(
        "+teacher=encoder_decoder", f"teacher.path={encoder}", "teacher.accept_weak=true",
        *(f"teacher.finetune.{step.removeprefix('trainer.')}" for step in STEPS),
        "+student=encoder_decoder", f"student.path={encoder}", "student.decoder_depth=1", "objective=supervised",
        *options(tmp_path, ["sst2"]), cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [path] = (tmp_path / "runs").rglob("run.json")
    record = read_record(path.parent)
    assert list(record["student"]["metrics"]) == ["accuracy"]
    assert {file: of["gate"] != "failed" for file, of in record["export"].items()}["fp32"]
    prediction = Bundle(path.parent / "bundle", model="fp32").predict("film 3 is fine")
    assert prediction.keys() == {"label", "probability", "probabilities"}
    assert list(prediction["probabilities"]) == ["negative", "positive"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("task.words={0: ☃, 1: dull}", "the vocabulary cannot write the word ☃ of the label negative: give it a word"),
    ],
)
def test_words_that_cannot_be_written_end_a_run_before_its_training(
    given: str, message: str, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    write_tasks(tmp_path)
    BertModel(
        BertConfig(
            vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
        )
    ).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    done = run_here(
        "+teacher=encoder_decoder", f"teacher.path={tmp_path / 'encoder'}", "+student=distilbert",
        *options(tmp_path, ["sst2"]), given, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert message in done.stderr
    assert "step 1/" not in done.stdout
