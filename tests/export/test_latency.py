"""Tests of timings: inputs and threads that all models share, work of others, and the seconds of a pass over dev."""

import json
import math
import os
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import Examples, Task
from distill.core.errors import UserError
from distill.core.files import hash_file, write_json
from distill.edge import bundle_files
from distill.edge.bundle_files import OpenVinoSession, session
from distill.edge.text_decoders import WholeTexts
from distill.export import bundle_benchmark, latency
from distill.export.bundle_benchmark import MeasuredBundle, measure_bundles, measure_joules, read_joules
from distill.export.latency import BenchmarkSettings, check_threads, count_threads, load_candidate, runtime_of
from distill.export.quantization import RecipeInput, write_openvino
from distill.kinds import Classification, MultipleChoice
from tests.conftest import toy_bert
from tests.edge.conftest import Output, Patch, write_toy_bundle

ONE: dict[str, Any] = {"batches": [1], "lengths": [1], "threads": 2, "seconds": 0, "vocabulary": 9}


def candidate(name: str, seconds: float, seen: list[Any], inputs: tuple[str, ...]) -> latency.Candidate:
    def run(feed: latency.Inputs) -> None:
        seen.append({key: array.shape for key, array in feed.items()})
        time.sleep(seconds)

    return latency.Candidate(name, "torch", inputs, 123, run, lambda: 1)


def test_rows_contain_the_timings_of_each_model_and_shape() -> None:
    slow_feeds: list[Any] = []
    fast_feeds: list[Any] = []
    candidates = [
        candidate("teacher", 0.02, slow_feeds, ("input_ids", "attention_mask", "token_type_ids")),
        candidate("student", 0.004, fast_feeds, ("input_ids",)),
    ]
    rows = latency.measure_latency(candidates, batches=[1, 3], lengths=[7], threads=2, seconds=0.05, vocabulary=50)
    assert [(row["model"], row["batch"], row["length"]) for row in rows] == [
        ("teacher", 1, 7), ("student", 1, 7), ("teacher", 3, 7), ("student", 3, 7),
    ]  # fmt: skip
    for row, sleep in zip(rows, (20, 4, 20, 4), strict=True):
        assert sleep <= row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"]
        assert (row["threads"], row["bytes"]) == (2, 123)
        assert row["runs"] >= latency.TURNS * latency.RUNS_PER_TURN
    assert set(fast_feeds[0]) == {"input_ids"}
    assert {feed["input_ids"] for feed in slow_feeds} == {(1, 7), (3, 7)}
    # One run per turn is a warm-up and not counted.
    assert len(slow_feeds) == rows[0]["runs"] + rows[2]["runs"] + 2 * latency.TURNS


def test_all_timings_together_keep_a_limit_but_for_the_least_number_of_runs() -> None:
    """A candidate of 1 ms would run 1,000 times in a second; a limit of no time leaves the least number of runs."""
    feeds: list[Any] = []
    options: dict[str, Any] = {"batches": [1, 3], "lengths": [7], "threads": 1, "vocabulary": 50}
    rows = latency.measure_latency([candidate("student", 0.001, feeds, ())], seconds=1.0, within=0.0, **options)
    assert [row["runs"] for row in rows] == [latency.TURNS * latency.RUNS_PER_TURN] * 2
    rows = latency.measure_latency([candidate("student", 0.001, feeds, ())], seconds=1.0, within=1.0, **options)
    timed = sum(row["runs"] * row["p50_ms"] / 1000 for row in rows)
    assert 0.1 < timed < 1.0


def test_a_run_gives_the_timing_a_tenth_of_its_time_unless_the_seconds_are_given() -> None:
    assert BenchmarkSettings().limit(before=120.0) == pytest.approx(12.0)
    assert BenchmarkSettings(seconds=2.0).limit(before=120.0) == math.inf
    assert (BenchmarkSettings().longest(), BenchmarkSettings(seconds=2.0).longest()) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("times", "others", "is_disturbed"),
    [
        ([0.001] * 9 + [0.0019], 0.0, False),
        ([0.001] * 8 + [0.003] * 2, 0.0, True),  # The 90th percentile is three times the median.
        ([0.001] * 10, 2.2, False),  # Of four cores, two of which are measured.
        ([0.001] * 10, 2.3, True),  # The times are steady, and slow.
    ],
)
def test_other_work_on_the_cores_is_recorded(
    times: list[float], others: float, is_disturbed: bool, monkeypatch: Patch
) -> None:
    readings = iter([(5.0, 7.0), (15.0, 7.0 + 10 * others)])
    monkeypatch.setattr(latency._OtherWork, "_read", staticmethod(lambda: next(readings)))
    monkeypatch.setattr(bundle_files, "usable_processors", lambda: frozenset({0, 1, 5, 6}))
    monkeypatch.setattr(latency, "_time_in_turns", lambda *arguments: [times])
    [row] = latency.measure_latency([candidate("student", 0, [], ())], **ONE)
    assert row["disturbed"] == is_disturbed
    assert (row["p50_ms"], row["runs"]) == (pytest.approx(1.0), 10)
    assert row["p99_ms"] == pytest.approx({0.0019: 1.819, 0.003: 3.0, 0.001: 1.0}[times[-1]])


@pytest.mark.parametrize(
    ("usable", "others"),
    [({0}, 9.5), ({1}, 46.0), ({0, 1}, 59.5), ({0, 2}, 59.5)],  # Of two listed processors none is the third one.
)
def test_processor_time_of_others_is_that_of_the_usable_processors_without_our_own(
    usable: set[int], others: float, monkeypatch: Patch
) -> None:
    """A process that is pinned to one of two processors is not disturbed by work on the other one."""
    first = SimpleNamespace(user=10.0, nice=1.0, system=2.0, idle=99.0, iowait=5.0, steal=0.5, guest=4.0)
    second = SimpleNamespace(user=50.0, idle=1.0, system=0.0)
    monkeypatch.setattr(latency.psutil, "cpu_times", lambda percpu: [first, second])
    monkeypatch.setattr(bundle_files, "usable_processors", lambda: frozenset(usable))
    own = SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=3.0, system=1.0))
    monkeypatch.setattr(latency.psutil, "Process", lambda: own)
    assert latency._OtherWork._read()[1] == others


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batches": []}, r"got batches=\[\], expected whole numbers of at least 1 in a list like \[1,8\]"),
        ({"lengths": [0]}, r"got lengths=\[0\], expected whole numbers"),
        ({"lengths": 8}, r"got lengths=8, expected whole numbers"),
        ({"lengths": [True]}, r"got lengths=\[true\], expected whole numbers"),
        ({"threads": 0}, "got threads=0, expected a whole number of at least 1 or null"),
        ({"threads": True}, "got threads=true, expected a whole number"),
        ({"teacher": "no"}, "got teacher=no, expected true or false"),
        ({"seconds": 0}, "got seconds=0, expected a number above 0 or auto"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        BenchmarkSettings(**{"batches": [1], "lengths": [8]} | options)


@pytest.mark.parametrize("is_noisy", [False, True])
def test_timings_of_a_busy_machine_come_with_a_notice(
    is_noisy: bool, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, monkeypatch: Patch,
    capsys: Output,
) -> None:  # fmt: skip
    rows = [{"p50_ms": 1.0, "disturbed": False}, {"p50_ms": 1.0, "disturbed": is_noisy}]
    monkeypatch.setattr(latency, "measure_latency", lambda *arguments, **options: rows)
    settings = BenchmarkSettings(batches=[1], lengths=[8])
    assert latency.compare_models({"teacher": (teacher, {})}, tokenizer=tokenizer, settings=settings) == rows
    assert ("the machine was busy during 1 of 2 timings" in capsys.readouterr().out) == is_noisy


# A pass over dev

TEXTS = ["good", "good bad good bad good", "bad good", "good bad good bad good bad good bad good bad good bad"]


def encode(task: Task, tokenizer: PreTrainedTokenizerBase) -> Examples:
    dev = task.encode(task.read(Path()), tokenizer, None)["dev"]
    assert isinstance(dev, Examples)
    return dev


def test_each_example_is_read_once_alone_and_in_its_own_length(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, monkeypatch: Patch
) -> None:
    rows = {"text": TEXTS * 2, "label": [0, 1] * len(TEXTS)}
    dev = encode(Classification(text="text", label="label", train=rows, dev=rows), tokenizer)
    clock, shapes = [0.0], list[tuple[int, ...]]()

    def create(name: str, model: PreTrainedModel, inputs: list[str]) -> latency.Candidate:
        def run(feed: latency.Inputs) -> Any:
            assert feed["attention_mask"].all()
            shapes.append(feed["input_ids"].shape)
            clock[0] += 1.0

        return latency.Candidate(name, "torch", inputs, 0, run, lambda: 1)

    monkeypatch.setattr(latency, "torch_candidate", create)
    monkeypatch.setattr(latency.time, "perf_counter", lambda: clock[0])
    found = latency.time_dev_pass({"student": (teacher, {})}, dev, tokenizer=tokenizer, threads=1)
    lengths = [len(tokenizer(text)["input_ids"]) for text in TEXTS] * 2
    assert found == [
        {"model": "student", "format": "torch", "seconds": 8.0, "examples": 8, "tokens": sum(lengths), "threads": 1}
    ]
    # Each of the four turns begins with a warm-up, which is not counted.
    expected = [length for start in range(0, 8, 2) for length in (lengths[start], *lengths[start : start + 2])]
    assert shapes == [(1, length) for length in expected]


def test_choices_are_read_in_the_length_of_the_longest_one(tokenizer: PreTrainedTokenizerBase) -> None:
    choices = ["a", "bad a good"]
    rows = {"question": ["good"], "choices": [choices], "answer": [0]}
    [feed] = latency._read_feeds(encode(MultipleChoice(train=rows, dev=rows), tokenizer), len(tokenizer))
    short, long = (len(tokenizer("good", choice)["input_ids"]) for choice in choices)
    assert feed["attention_mask"].tolist() == [[1] * short + [0] * (long - short), [1] * long]


# Threads


def test_the_threads_of_a_file_are_those_of_its_session(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    write_toy_bundle(tmp_path, tokenizer)
    for threads in (1, 3):
        loaded = session(tmp_path / "model.onnx", threads)
        assert count_threads(loaded) == count_threads(WholeTexts(loaded, None)) == threads
        loaded_candidate = load_candidate("toy", "fp32", tmp_path / "model.onnx", (), threads)
        assert loaded_candidate.count_threads() == threads
        # Those of the file, whatever the tokenizer of another model has.
        assert loaded_candidate.inputs == [entry.name for entry in loaded.get_inputs()]


def test_the_threads_of_torch_are_those_at_the_time_of_the_measurement() -> None:
    before = torch.get_num_threads()
    candidate = latency.torch_candidate("toy", from_teacher(toy_bert(64), layers=[0]), ["input_ids"])
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


@pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino, of the extra openvino")
@pytest.mark.alone(last=True)  # As the tests of OpenVINO's formats.
def test_openvino_with_fewer_threads_is_refused_before_the_first_timing(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: Patch
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


class Counting:
    """Stands for a bundle whose every prediction takes 3 J of the counters of two packages."""

    def __init__(self, counters: list[Path], joules: int = 3) -> None:
        self.counters, self.joules = counters, joules

    def predict(self, records: list[str]) -> None:
        counter = self.counters[0]
        counter.write_text(str(int(counter.read_text()) + self.joules * 1_000_000))


def test_joules_of_a_prediction_are_those_of_all_packages(tmp_path: Path) -> None:
    counters = [tmp_path / f"intel-rapl:{number}" / "energy_uj" for number in range(2)]
    part = tmp_path / "intel-rapl:0:0" / "energy_uj"  # A part of a package, which is counted there.
    for counter in (*counters, part):
        counter.parent.mkdir()
        counter.write_text("5000000")
    assert read_joules(tmp_path) == 10
    assert read_joules(tmp_path / "none") is None
    bundles: Any = {"three": Counting(counters), "again": Counting(counters, -4)}  # The counter begins anew.
    assert measure_joules(bundles, ["a", "b"], seconds=0, counters=tmp_path) == {"three": 3.0}
    assert measure_joules(bundles, ["a"], seconds=0, counters=tmp_path / "none") == {}
