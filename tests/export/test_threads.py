"""Tests that all runtimes of a benchmark compute with the same number of threads, before anything is timed."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.core.files import hash_file, write_json
from distill.edge.bundle_files import OpenVinoSession, session
from distill.edge.text_decoders import WholeTexts
from distill.export import bundle_benchmark
from distill.export.bundle_benchmark import MeasuredBundle, measure_bundles
from distill.export.latency import (
    BenchmarkSettings,
    check_threads,
    count_threads,
    load_candidate,
    runtime_of,
    torch_candidate,
)
from distill.export.quantization import RecipeInput, write_openvino
from tests.conftest import toy_bert
from tests.edge.conftest import write_toy_bundle

needs_openvino = pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino, of the extra openvino")


def test_the_threads_of_a_file_are_those_of_its_session(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    write_toy_bundle(tmp_path, tokenizer)
    path = tmp_path / json.loads((tmp_path / "bundle.json").read_text())["models"]["fp32"]
    for threads in (1, 3):
        loaded = session(path, threads)
        assert count_threads(loaded) == count_threads(WholeTexts(loaded, None)) == threads
        assert load_candidate("toy", "fp32", path, (), threads).count_threads() == threads


def test_the_threads_of_torch_are_those_at_the_time_of_the_measurement() -> None:
    before = torch.get_num_threads()
    candidate = torch_candidate("toy", from_teacher(toy_bert(64), layers=[0]), ["input_ids"])
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert candidate.count_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_runtimes_with_other_threads_are_refused() -> None:
    assert list(map(runtime_of, ("torch", "onnx-int8-avx2", "openvino", "openvino-full"))) == [
        "torch", "onnxruntime", "openvino", "openvino",
    ]  # fmt: skip
    assert check_threads([("torch", 2), ("onnxruntime", 2), ("onnxruntime", 2)], 2) == (
        "Threads: 2 for each of onnxruntime, torch"
    )
    with pytest.raises(UserError) as error:
        check_threads([("onnxruntime", 8), ("openvino", 4)], 8)
    assert str(error.value) == (
        "openvino computes with 4 thread(s), expected 8 as all others: set job.threads to at most the cores of this "
        "machine, or leave its files out with job.formats"
    )


@needs_openvino
@pytest.mark.alone  # As the tests of OpenVINO's formats.
def test_openvino_with_fewer_threads_is_refused_before_the_first_timing(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes with at most as many threads as there are cores."""
    write_toy_bundle(tmp_path, tokenizer)
    content = json.loads((tmp_path / "bundle.json").read_text())
    write_openvino(RecipeInput(tmp_path / content["models"]["fp32"], 8), tmp_path / "model.openvino.xml")
    content["models"]["openvino"] = "model.openvino.xml"
    content["files"] |= {path.name: hash_file(path) for path in tmp_path.glob("model.openvino.*")}
    write_json(tmp_path / "bundle.json", content)
    loaded = session(tmp_path / "model.openvino.xml", 1)
    assert isinstance(loaded, OpenVinoSession)
    assert count_threads(loaded) == 1
    timed: list[int] = []
    monkeypatch.setattr(bundle_benchmark, "measure_peak", timed.append)
    measured = MeasuredBundle("toy", tmp_path, ["fp32", "openvino"])
    settings = BenchmarkSettings(batches=[1], lengths=[4], seconds=0.001)
    many = (os.cpu_count() or 1) + 1
    with pytest.raises(UserError, match=f"openvino computes with .* expected {many} as all others"):
        measure_bundles([measured], settings, threads=[1, many])
    assert timed == []
