"""Tests of the options of quantization with whole commands on a toy teacher."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from distill.edge import Bundle
from tests.jobs.conftest import Command
from tests.jobs.test_run import SMALL, TEACHER


@pytest.fixture
def arguments(tmp_path: Path, data_dir: Path, encoder_dir: Path) -> tuple[str, ...]:
    return (
        "+teacher=pretrained", f"teacher.path={encoder_dir}", "+student=distilbert", "task=sst2",
        f"task.data_dir={data_dir}", f"cache_dir={tmp_path / 'cache'}", f"output_dir={tmp_path / 'runs'}", *SMALL,
        *TEACHER, "benchmark.enabled=false",
    )  # fmt: skip


def only_run(directory: Path) -> tuple[Path, dict[str, Any]]:
    [path] = directory.glob("runs/sst2/*/*/run.json")
    return path.parent, json.loads(path.read_text())


def test_the_last_recipe_trains_with_rounding_errors(
    command: Command, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    options = ("export.recipes=[dynamic,qat]", "export.max_drop=0", "export.min_agreement=1", "export.target=avx2")
    code, output, error = command(*arguments, *options, "export.max_probability_diff=0")
    assert code == 0, error
    directory, record = only_run(tmp_path)
    assert [attempt["recipe"] for attempt in record["attempts"]] == ["dynamic", "qat"]
    assert {attempt["gate"] for attempt in record["attempts"]} == {"failed"}
    [chosen] = [attempt for attempt in record["attempts"] if attempt["chosen"]]
    # Two recipes share the error of a pass, and the file of the bundle is judged as it was in the search.
    assert [attempt["confidence"] for attempt in record["attempts"]] == [0.975, 0.975]
    judged = ("gate", "reason", "confidence", "drop", "interval")
    assert [record["export"]["int8"][name] for name in judged] == [chosen[name] for name in judged]
    assert record["export"]["fp32"]["confidence"] == 0.95
    assert (directory / "qat" / "metrics.csv").is_file()
    # What is published in float is the student of the training, not the retrained one.
    assert record["export"]["fp32"]["gate"] == "passed"
    assert record["export"]["fp32"]["max_abs_diff"] < 1e-4
    assert "no recipe of quantization passed its gate; closest came dynamic int8" in " ".join(output.split())
    report = (directory / "report.md").read_text()
    assert "### Quantization" in report
    assert "| dynamic int8 with smoothed activations after quantization-aware distillation |" in report


def test_a_vocabulary_of_the_task_is_smaller_and_its_files_pass(
    command: Command, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    code, _, error = command(
        *arguments, "export.vocabulary=task", "export.target=[avx2,vnni,arm64]", "export.max_drop=0.5"
    )
    assert code == 0, error
    directory, record = only_run(tmp_path)
    bundle = directory / "bundle"
    sizes = [
        Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab_size() for path in (bundle, directory / "student")
    ]
    assert sizes[0] < sizes[1]
    assert record["export"]["fp32"]["gate"] == "passed"
    assert record["export"]["int8"]["target"] == "avx2"
    # ARM and VNNI share a file, that of the first one.
    assert set(record["export"]) - {"fp16"} == {"fp32", "int8", "int8-vnni"}
    manifest = json.loads((bundle / "bundle.json").read_text())
    assert manifest["targets"] == {"int8-vnni": "vnni"}
    assert Bundle(bundle, model="int8").predict(["a word that nobody has ever seen: zyxw"])[0]["label"]
