"""Measures exported bundles: latency at every size and on real texts, start, memory, and share of the peak."""

import contextlib
import functools
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from distill.core.console import print_line, print_notice
from distill.core.errors import UserError
from distill.edge import Bundle
from distill.edge.bundle_files import (
    ANY,
    can_load,
    count_bytes,
    needs_openvino,
    read_manifest,
    runs,
    this_target,
    timed_name,
)
from distill.edge.decoder import MaskedTokens, Record
from distill.export import latency
from distill.export.latency import BenchmarkSettings, check_threads, count_threads, percentiles, runtime_of

# The peak of this program alone; `ru_maxrss` would begin with that of the process that starts it.
PROGRAM = """
import json, sys, time
begun = time.perf_counter()
from distill.edge import Bundle
imported = time.perf_counter()
bundle = Bundle(sys.argv[1], model=sys.argv[2], threads=int(sys.argv[3]))
loaded = time.perf_counter()
bundle.predict([json.loads(sys.argv[4])])
answered = time.perf_counter()
try:
    with open("/proc/self/status") as file:
        peak = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
except OSError:
    peak = None
print(json.dumps({
    "import_s": imported - begun, "load_s": loaded - imported, "first_answer_s": answered - loaded,
    "peak_bytes": peak,
}))
"""


def measure_start(bundle: Path, model: str, *, threads: int, record: Record) -> dict[str, float | None]:
    """Starts a process that loads a bundle and answers one record.

    Returns:
        `total_s` from the start of Python to the answer, `import_s` of the import of `distill.edge`, `load_s` of
        loading the bundle with the SHA-256 of its files, `first_answer_s` of one record, and `peak_bytes`, the peak of
        resident memory, None where the system does not tell.

    Raises:
        UserError: if it fails.
    """
    command = [sys.executable, "-c", PROGRAM, str(bundle), model, str(threads), json.dumps(record)]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begun
    if done.returncode:
        reason = next(iter(done.stderr.strip().splitlines()[-1:]), "")
        raise UserError(f"{bundle} cannot be started with the model {model}: {reason}")
    return {"total_s": seconds, **json.loads(done.stdout)}


SIZES = ((256, 1024, 1024), (1024, 1024, 1024), (1024, 768, 3072))  # Rows, inner, columns of a product.
RUNS = 8
GATES = {"LSTM": 4, "GRU": 3}


def measure_peak(threads: int) -> dict[str, float]:
    """Returns the operations per second of ONNX Runtime's fastest product, in `fp32` and in `int8`."""
    return {
        kind: max(2 * float(np.prod(size)) / _time_product(kind, size, threads) for size in SIZES)
        for kind in ("fp32", "int8")
    }


def _time_product(kind: str, size: tuple[int, int, int], threads: int) -> float:
    """Returns the seconds of the fastest run of a product with a constant matrix, as in a model."""
    rows, inner, columns = size
    random = np.random.default_rng(0)
    if kind == "fp32":
        matrix, input_type, output_type = random.normal(size=(inner, columns)).astype(np.float32), 1, 1
        node, left = helper.make_node("MatMul", ["x", "w"], ["y"]), random.normal(size=(rows, inner)).astype(np.float32)
    else:
        matrix = random.integers(-64, 64, (inner, columns)).astype(np.int8)
        input_type, output_type = TensorProto.UINT8, TensorProto.INT32
        node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
        left = random.integers(0, 255, (rows, inner)).astype(np.uint8)
    graph = helper.make_graph(
        [node], "product", [helper.make_tensor_value_info("x", input_type, [rows, inner])],
        [helper.make_tensor_value_info("y", output_type, [rows, columns])], [onnx.numpy_helper.from_array(matrix, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        session.run(None, {"x": left})
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def count_operations(path: Path, feed: Mapping[str, np.ndarray]) -> int:
    """Returns the operations of all matrix products of a float32 file, recurrent layers too, for one batch.

    A multiplication and an addition are two. The shapes are those that ONNX Runtime records in a run, so that those of
    attention are counted as well.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as directory:
        options.profile_file_prefix = str(Path(directory) / "profile")
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        session.run(["logits"], dict(feed))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    shapes = [event["args"] for event in events if event.get("cat") == "Node" and "input_type_shape" in event["args"]]
    return sum(_operations_of(node) for node in shapes)


def _operations_of(node: Mapping[str, Any]) -> int:
    """Returns the operations of a node from the shapes of its inputs and outputs."""
    inputs, outputs = ([next(iter(of.values())) for of in node[f"{end}_type_shape"]] for end in ("input", "output"))
    if node["op_name"] in ("MatMul", "Gemm"):
        return 2 * int(np.prod(outputs[0])) * int(inputs[0][-1])
    if node["op_name"] in GATES:  # [L, B, I] -> [L, directions, B, H]; weights are not recorded.
        (length, batch, width), (_, directions, _, hidden) = inputs[0], outputs[0]
        return int(2 * length * batch * directions * GATES[node["op_name"]] * hidden * (width + hidden))
    return 0


def share_of_peak(operations: int, seconds: float, peak: Mapping[str, float], format: str) -> float:
    """Returns the share of the processor's peak that a file with `operations` in `seconds` reaches."""
    kind = "int8" if "int8" in format else "fp32"
    return operations / seconds / peak[kind]


CHOICES = 4  # Of an example with choices, if no run says otherwise.
# Records of every form; a decoder reads one of them at least.
RECORDS: tuple[Record, ...] = (
    "a text", ["a text", "another one"], {"tokens": ["a", "text"]},
    {"question": "which one", "choices": ["this one", "that one"]}, {"question": "which one", "context": "this one"},
    {"query": "which one", "documents": ["this one", "that one"]},
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class MeasuredBundle:
    """A bundle to measure.

    Args:
        name: in tables.
        directory: of the bundle.
        formats: names of its models.
        records: of dev, for the real lengths; empty without the run.
        choices: number of choices of an example.
    """

    name: str
    directory: Path
    formats: Sequence[str]
    records: Sequence[Record] = ()
    choices: int = CHOICES

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """The content of bundle.json."""
        return read_manifest(self.directory)

    def load(self, format: str, threads: int) -> Bundle:
        """Returns the bundle with one of its models."""
        return Bundle(self.directory, model=format, threads=threads)

    def count_operations(self, batch: int, length: int) -> int:
        """Returns the operations of a batch of this size, counted in the float32 file."""
        bundle = self.load("fp32", 1)
        shape = (batch, length) if bundle.decoder.input_axes == 2 else (batch, self.choices, length)
        feed = latency.make_inputs(shape, bundle.tokenizer.get_vocab_size())
        file = self.directory / self.manifest["models"]["fp32"]
        return count_operations(file, {name: feed[name] for name in bundle.input_names})

    def describe(self, threads: int) -> dict[str, Any]:
        """Returns size, start, memory and metrics of the files."""
        models = {}
        for format in self.formats:
            bundle, file = self.load(format, threads), self.manifest["models"][format]
            models[format] = {
                "file": file, "bytes": count_bytes(self.directory / file),
                "metrics": self.manifest["metrics"].get(format, {}),
                "start": measure_start(self.directory, format, threads=threads, record=self._find_record(bundle)),
            }  # fmt: skip
        return {
            "name": self.name, "task": self.manifest.get("task"), "directory": str(self.directory), "models": models,
            "teacher": self.manifest.get("teacher"),
        }  # fmt: skip

    def _find_record(self, bundle: Bundle) -> Record:
        """Returns a record for the command line that the bundle reads, one of dev if it can be."""
        of_dev = [record for record in self.records[:1] if not isinstance(record, MaskedTokens)]
        for record in (*of_dev, *RECORDS, f"a {self.manifest['decoding'].get('mask_token')}"):
            with contextlib.suppress(UserError):
                bundle.decoder.read(record)
                return record
        return RECORDS[0]


def list_formats(directory: Path, wanted: Sequence[str] | None) -> list[str]:
    """Returns the models of a bundle that this processor runs rightly, with packages that are installed.

    Raises:
        UserError: if it has none of the `wanted` ones, or a wanted one needs a package that is not installed.
    """
    manifest = read_manifest(directory)
    models: Mapping[str, str] = manifest["models"]
    right = [name for name in models if runs(manifest["targets"].get(name, ANY), this_target())]
    if wanted is None and (missing := [name for name in right if not can_load(models[name])]):
        print_notice(f"{', '.join(missing)} of {directory} needs openvino and is left out: pip install openvino")
        right = [name for name in right if name not in missing]
    formats = [name for name in right if wanted is None or name in wanted]
    if not formats:
        raise UserError(f"{directory} has {', '.join(right)} for this processor, and none of {', '.join(wanted or ())}")
    return formats


def measure_bundles(
    bundles: Sequence[MeasuredBundle],
    settings: BenchmarkSettings,
    *,
    threads: Sequence[int],
    others: Callable[[int], Sequence[latency.Candidate]] = lambda threads: (),
    vocabulary: int | None = None,
) -> dict[str, Any]:
    """Returns `peak`, `bundles`, `timings` and `texts` of a benchmark.

    Args:
        threads: numbers of threads, each of which is measured.
        others: returns candidates that are timed with the files in turns, such as a teacher, with so many threads.
        vocabulary: number of tokens that the others know; None without others.

    Raises:
        UserError: for bundles whose inputs have different forms, and a runtime that has other than so many threads.
    """
    sessions = {count: _load(bundles, count) for count in threads}
    peaks = {count: measure_peak(count) for count in threads}
    timings, texts = list[dict[str, Any]](), list[dict[str, Any]]()
    for count, loaded in sessions.items():
        known = min(each.tokenizer.get_vocab_size() for each in loaded.values())
        timings += _time_sizes(
            loaded, settings, threads=count, choices=bundles[0].choices, others=others(count),
            vocabulary=min(known, vocabulary or known),
        )  # fmt: skip
        for each in (each for each in bundles if each.records):
            formats = {format: loaded[each.name, format] for format in each.formats}
            texts += [
                {"model": each.name, "threads": count, **row} for row in time_texts(formats, each.records, settings)
            ]
    _add_share_of_peak(timings, bundles, peaks)
    if disturbance := latency.describe_disturbance(timings):
        print_notice(disturbance)
    return {
        "peak": [{"threads": count, **kinds} for count, kinds in peaks.items()],
        "bundles": [each.describe(threads[0]) for each in bundles], "timings": timings, "texts": texts,
    }  # fmt: skip


def _load(bundles: Sequence[MeasuredBundle], threads: int) -> dict[tuple[str, str], Bundle]:
    """Returns each bundle with each of its models; raises UserError for those that are not measured together."""
    loaded = {(each.name, format): each.load(format, threads) for each in bundles for format in each.formats}
    names = {bundle.decoder.input_axes: name for (name, _), bundle in loaded.items()}
    if len(names) > 1:
        raise UserError(
            f"{' and '.join(names.values())} have inputs of different forms, with choices and without: measure them "
            "in two benchmarks"
        )
    check_threads([(runtime_of(_timed_name(each)), count_threads(each.session)) for each in loaded.values()], threads)
    return loaded


def _time_sizes(
    loaded: Mapping[tuple[str, str], Bundle],
    settings: BenchmarkSettings,
    *,
    threads: int,
    choices: int,
    others: Sequence[latency.Candidate],
    vocabulary: int,
) -> list[dict[str, Any]]:
    """Returns the latencies of all files at every batch size and length."""
    limit = min(bundle.manifest["max_length"] for bundle in loaded.values())
    lengths = settings.choose_lengths(limit, "a bundle reads")
    candidates = [
        latency.Candidate.of_file(
            name, _timed_name(bundle), bundle.input_names, bundle.directory / bundle.manifest["models"][format],
            bundle.session,
        )
        for (name, format), bundle in loaded.items()
    ]  # fmt: skip
    candidates = [*others, *candidates]
    print_line(check_threads([(runtime_of(each.format), each.count_threads()) for each in candidates], threads))
    first = next(iter(loaded.values()))
    return latency.measure_latency(
        candidates, batches=settings.batches, lengths=lengths, threads=threads, seconds=settings.longest(),
        vocabulary=vocabulary, choices=choices if first.decoder.input_axes == 3 else None,
    )  # fmt: skip


def _timed_name(bundle: Bundle) -> str:
    return timed_name(bundle.model, bundle.manifest["models"][bundle.model])


def time_texts(
    bundles: Mapping[str, Bundle], records: Sequence[Record], settings: BenchmarkSettings
) -> list[dict[str, Any]]:
    """Returns the latency of a bundle's files on real texts, for every batch size, in turns.

    `p50_ms` and the others are of `Bundle.predict` from the texts on. `tokenize_p50_ms` is of the tokenization and the
    padding alone, `model_p50_ms` of the model alone, both measured in runs of their own.
    """
    rows = []
    for size in settings.batches:
        batches = [records[start : start + size] for start in range(0, len(records) - size + 1, size)] or [records]
        parts, whole = (_time_batches(time_run, bundles, batches, settings) for time_run in (_time_parts, _time_whole))
        tokens = [_count_tokens(next(iter(bundles.values())), batch) for batch in batches]
        for format in bundles:
            tokenize, model = (percentiles(seconds)["p50_ms"] for seconds in np.array(parts[format]).T)
            rows.append({
                "format": _timed_name(bundles[format]), "batch": size,
                "mean_length": sum(tokens) / sum(map(len, batches)), "runs": len(whole[format]),
                "tokenize_p50_ms": tokenize, "model_p50_ms": model, **percentiles(whole[format]),
            })  # fmt: skip
    return rows


def _time_batches(
    time_run: Callable[[Bundle, Sequence[Record]], Sequence[float]],
    bundles: Mapping[str, Bundle],
    batches: Sequence[Sequence[Record]],
    settings: BenchmarkSettings,
) -> dict[str, list[Sequence[float]]]:
    """Returns the seconds of the runs of each file on the batches, one after the other. The first one is a warm-up."""
    times: dict[str, list[Sequence[float]]] = {format: [] for format in bundles}
    end = time.perf_counter() + settings.longest() * len(bundles)
    for number, batch in enumerate(itertools.cycle(batches)):
        for format, bundle in bundles.items():
            seconds = time_run(bundle, batch)
            if number:
                times[format].append(seconds)
        if number >= latency.TURNS and time.perf_counter() > end:
            return times
    raise AssertionError("the batches are repeated without end")


COUNTERS = Path("/sys/class/powercap")


def read_joules(counters: Path = COUNTERS) -> float | None:
    """Returns the energy that the processors have counted so far, in J; None where no counter can be read."""
    found = []
    for path in counters.glob("intel-rapl:?/energy_uj"):  # Of a package; its parts have a second number.
        with contextlib.suppress(OSError, ValueError):
            found.append(int(path.read_text(encoding="ascii")))
    return sum(found) / 1e6 if found else None


def measure_joules(
    bundles: Mapping[str, Bundle], records: Sequence[Record], *, seconds: float, counters: Path = COUNTERS
) -> dict[str, float]:
    """Returns the energy of a prediction with each bundle, in J, that of an idle machine in this time included.

    It is empty where the machine does not count, and lacks a bundle in whose time a counter began anew.
    """
    found = {}
    for name, bundle in bundles.items():
        before, end, number = read_joules(counters), time.perf_counter() + seconds, 0
        while before is not None and (number == 0 or time.perf_counter() < end):
            bundle.predict([records[number % len(records)]])
            number += 1
        after = read_joules(counters)
        if before is not None and after is not None and after > before:
            found[name] = (after - before) / number
    return found


def _time_parts(bundle: Bundle, records: Sequence[Record]) -> tuple[float, float]:
    """Returns the seconds of tokenization and model."""
    begun = time.perf_counter()
    feeds = list(bundle.inputs(records, batch_size=len(records)))
    tokenized = time.perf_counter()
    for feed in feeds:
        bundle.session.run(["logits"], feed)
    return tokenized - begun, time.perf_counter() - tokenized


def _time_whole(bundle: Bundle, records: Sequence[Record]) -> tuple[float]:
    """Returns the seconds of a prediction."""
    begun = time.perf_counter()
    bundle.predict(records, batch_size=len(records))
    return (time.perf_counter() - begun,)


def _count_tokens(bundle: Bundle, records: Sequence[Record]) -> int:
    """Returns the tokens of records without padding."""
    padding = bundle.manifest["padding"]["input_ids"]
    feeds = bundle.inputs(records, batch_size=1)  # One row has no padding, or that of its choices.
    return sum(int(np.count_nonzero(feed.get("attention_mask", feed["input_ids"] != padding))) for feed in feeds)


def _add_share_of_peak(
    timings: Sequence[dict[str, Any]], bundles: Sequence[MeasuredBundle], peaks: Mapping[int, Mapping[str, float]]
) -> None:
    """Adds `share_of_peak` to the timings of files, counted in the float32 file of each bundle.

    It is None for files of OpenVINO, because the peak is that of ONNX Runtime, which has none in bf16.
    """
    count = functools.cache(MeasuredBundle.count_operations)
    files = {each.name: each for each in bundles}
    for row in timings:
        each = files.get(row["model"])
        row["share_of_peak"] = None
        models = {} if each is None else each.manifest["models"]
        openvino = {timed_name(name, file) for name, file in models.items() if needs_openvino(file)}
        if each is not None and "fp32" in models and row["format"] not in openvino:
            operations, peak = count(each, row["batch"], row["length"]), peaks[row["threads"]]
            row["share_of_peak"] = share_of_peak(operations, row["p50_ms"] / 1000, peak, row["format"])
