"""Tests of job=benchmark: its files, the dev split of the run beside a bundle, a teacher, and invalid options."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.export import bundle_benchmark
from tests.edge.conftest import write_toy_bundle
from tests.jobs.conftest import Command

QUICK = ("benchmark.batches=[1]", "benchmark.lengths=[4]", "benchmark.seconds=0.001", "benchmark.threads=1")


@pytest.fixture
def bundle(tmp_path: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle in the directory of a run."""
    monkeypatch.setattr(bundle_benchmark, "SIZES", ((8, 16, 24),))
    bundle = tmp_path / "runs" / "sst2" / "large-small" / "2026" / "bundle"
    bundle.mkdir(parents=True)
    teacher = {"name": "large", "metrics": {"accuracy": 0.9}}
    write_toy_bundle(bundle, tokenizer, task="sst2", metrics={"fp32": {"accuracy": 0.5}}, teacher=teacher)
    # A stranger's: whatever it names is not read.
    (bundle.parent / "config.yaml").write_text("task: {_target_: os._exit, status: 1}")
    columns = {"split": ["dev", "dev", "test"], "text": ["a dull film", "a film", "left out"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), bundle.parent / "predictions.parquet")
    (bundle.parent / "run.json").write_text("{}")
    return bundle


@pytest.mark.usefixtures("drawn")
def test_a_bundle_and_a_teacher_are_measured(
    command: Command, bundle: Path, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    for part in (teacher, tokenizer):
        part.save_pretrained(tmp_path / "teacher")
    code, output, error = command(
        "job=benchmark", f"bundles=[{bundle}]", *QUICK, "+teacher=pretrained", f"teacher.path={tmp_path / 'teacher'}"
    )
    assert code == 0, error
    [directory] = (tmp_path / "runs" / "benchmarks").iterdir()
    content = json.loads((directory / "benchmark.json").read_text())
    assert [(row["model"], row["format"]) for row in content["timings"]] == [
        ("teacher", "torch"), ("teacher", "onnx-fp32"), ("teacher", "onnx-int8"), ("large-small", "onnx-fp32"),
    ]  # fmt: skip
    assert content["timings"][0]["share_of_peak"] is None
    assert [row["model"] for row in content["texts"]] == ["large-small"]
    assert content["bundles"][0]["models"]["fp32"]["metrics"] == {"accuracy": 0.5}
    table = (directory / "benchmark.md").read_text()
    for text in ("| large-small | fp32 | accuracy 0.5000 |", "| teacher | torch | 1 | 4 | 1 |", "## Texts of dev"):
        assert text in table
    plot = (directory / "latency-sst2.svg").read_text()
    assert "large-small fp32" in plot
    assert "teacher (torch)" in plot
    assert "Results  " in output
    assert "Threads: 1 for each of onnxruntime, torch" in output
    assert "every runtime has the same number of threads" in table


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["bundles=nowhere", "seed=2"], "job=benchmark reads only job=, job., bundles=, benchmark., output_dir="),
        (["bundles=[nowhere]", "job.threads=[0]"], "got job.threads=[0], expected whole numbers of at least 1"),
        (["bundles=[nowhere]", "job.threads=2"], "got job.threads=2, expected whole numbers of at least 1 in a list"),
        (["bundles=[nowhere]", "benchmark.max_lengths=[8]"], "benchmark.max_lengths is for job=distill, which has the"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused(command: Command, options: list[str], expected: str) -> None:
    code, _, error = command("job=benchmark", *options)
    assert code == 2
    assert expected in error
    assert len(error.splitlines()) == 1
