"""The job `benchmark`, which measures exported bundles, and a teacher beside them, and writes tables and plots."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from rich.table import Table
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill import __version__
from distill.benchmark import latency
from distill.benchmark.bundles import CHOICES, MeasuredBundle, list_formats, measure_bundles
from distill.benchmark.comparison import load_candidates
from distill.console import console, print_line, silence_libraries
from distill.edge import cores
from distill.edge.model_files import timed_name
from distill.edge.processor import this_target, weight_bits
from distill.errors import UserError
from distill.export.bundle import FILES
from distill.export.onnx import export_onnx
from distill.export.quantization import Material, write_dynamic
from distill.jobs import build
from distill.jobs.dev_records import read_dev_records
from distill.jobs.overrides import refuse_other_options
from distill.jobs.trust import read_trust
from distill.records.figures import standalone
from distill.records.measures import MISSING
from distill.records.record import RECORD, create_run
from distill.records.report import render_table
from distill.records.run_report import draw_cost_by_length
from distill.records.sweep_plots import Point, draw_cost
from distill.storage import mirror
from distill.storage.files import JsonObject, write_json, write_text
from distill.tasks import find_auto_class

TEACHER = "teacher"


def run_benchmark(config: DictConfig) -> None:
    """Measures `bundles` and writes `benchmark.json`, `benchmark.md` and a plot for each task below `output_dir`.

    Raises:
        UserError: for options that have no effect, and bundles that cannot be measured together.
    """
    _check_options(config)
    settings = build.instantiate(config.benchmark)
    threads = _counts(config.job.threads) or [settings.threads or cores.count_cores()]
    bundles = _open_bundles(config)
    silence_libraries()
    print_line(f"Measuring {', '.join(each.name for each in bundles)} with {' and '.join(map(str, threads))} thread(s)")
    if OmegaConf.is_missing(config, "teacher"):
        result = measure_bundles(bundles, settings, threads=threads)
    else:
        with _load_teacher(config, bundles[0]) as teacher:
            result = measure_bundles(
                bundles, settings, threads=threads, others=teacher.candidates, vocabulary=teacher.vocabulary
            )
    run = create_run(mirror.local_path(config.output_dir) / "benchmarks", job="benchmark", seed=0)
    content = {
        "schema": 1, "version": __version__, "command": ["python", "-m", "distill", *sys.argv[1:]],
        "environment": run.record["environment"], **result,
    }  # fmt: skip
    write_json(run.directory / "benchmark.json", content)
    _write_tables(content, run.directory)
    _write_plots(content, run.directory)
    mirror.send(run.directory)
    print_line(f"Results  {mirror.address(run.directory)}")


def _check_options(config: DictConfig) -> None:
    refuse_other_options("benchmark")
    if not config.bundles:
        raise UserError("job=benchmark has no bundles to measure: add bundles=[DIR,...], directories with bundle.json")
    if config.benchmark.max_lengths is not None:
        raise UserError(
            "benchmark.max_lengths is for job=distill, which has the labels of the texts: leave it out, or score a "
            "bundle with python -m distill.edge BUNDLE --evaluate FILE --max-length N"
        )


def _counts(value: object) -> list[int]:
    """Returns the numbers of threads; raises UserError for other values."""
    counts = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    if counts is None:
        return []
    if isinstance(counts, list) and counts and all(type(count) is int and count > 0 for count in counts):
        return list(dict.fromkeys(counts))
    raise UserError(f"got job.threads={counts}, expected whole numbers of at least 1 in a list like [1,2]")


def _open_bundles(config: DictConfig) -> list[MeasuredBundle]:
    given = [config.bundles] if isinstance(config.bundles, str) else list(config.bundles)
    directories = [Path(str(name)).expanduser() for name in dict.fromkeys(given)]
    wanted = None if config.job.formats is None else list(map(str, config.job.formats))
    names, trust, bundles = [_name(directory) for directory in directories], read_trust(config), []
    for name, directory in zip(names, directories, strict=True):
        formats = list_formats(directory, wanted)
        records, choices = read_dev_records(directory, trust=trust)
        unique = name if names.count(name) == 1 else str(directory)
        bundles.append(MeasuredBundle(unique, directory, formats, records, choices or CHOICES))
    return bundles


def _name(directory: Path) -> str:
    """Returns the teacher and the student of a run, else the name of the directory."""
    absolute = directory.absolute()
    return absolute.parents[1].name if (absolute.parent / RECORD).is_file() else absolute.name


@dataclass(frozen=True)
class _Teacher:
    """A teacher in torch, and its ONNX files by format."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    files: dict[str, Path]

    @property
    def vocabulary(self) -> int:
        return len(self.tokenizer)

    def candidates(self, threads: int) -> list[latency.Candidate]:
        """Returns the teacher in every format, with so many threads."""
        torch.set_num_threads(threads)
        return load_candidates({TEACHER: (self.model, self.files)}, self.tokenizer, threads)


@contextmanager
def _load_teacher(config: DictConfig, bundle: MeasuredBundle) -> Iterator[_Teacher]:
    """Yields the teacher with the head of a bundle's task, whose weights do not matter here, and its ONNX files."""
    manifest, threads = bundle.manifest, torch.get_num_threads()
    auto_class = find_auto_class(manifest["kind"])
    start = build.source(config).weights.load(auto_class, manifest["labels"] or None, ())
    with tempfile.TemporaryDirectory() as directory:
        files = {name: Path(directory) / file for name, file in FILES.items()}
        export_onnx(start.model, files["fp32"], tokenizer=start.tokenizer)
        write_dynamic(Material(files["fp32"], weight_bits(this_target())), files["int8"])
        try:
            yield _Teacher(start.model.eval(), start.tokenizer, files)
        finally:
            torch.set_num_threads(threads)


Cells = list[tuple[str, ...]]


def _write_tables(content: JsonObject, directory: Path) -> None:
    """Prints the tables, and writes them as Markdown."""
    tables: dict[str, Cells] = {
        "Bundles": _bundle_cells(content), "Latency": _timing_cells(content), "Texts of dev": _text_cells(content),
    }  # fmt: skip
    parts = ["# Benchmark", _describe_machine(content)]
    for title, (header, *rows) in tables.items():
        if not rows:
            continue
        table = Table(*header, title=title, title_justify="left", title_style="bold")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        parts.append(f"## {title}\n\n{render_table(header, rows)}")
    write_text(directory / "benchmark.md", "\n\n".join(parts) + "\n")


def _describe_machine(content: JsonObject) -> str:
    peaks = [
        f"{peak['fp32'] / 1e9:,.0f} GFLOP/s in float32 and {peak['int8'] / 1e9:,.0f} GOP/s in int8 with "
        f"{peak['threads']} thread(s)"
        for peak in content["peak"]
    ]
    environment = content["environment"]
    return (
        f"{environment['cpu']}, {environment['cores']} cores, onnxruntime {environment['onnxruntime']}. The fastest "
        f"matrix product reached {'; '.join(peaks)}. Files take turns, and every runtime has the same number of "
        "threads. A share of the peak counts the matrix products of the float32 file."
    )


def _bundle_cells(content: JsonObject) -> Cells:
    rows: Cells = [("bundle", "format", "metric", "MB", "start s", "load s", "first answer s", "peak MB")]
    for bundle in content["bundles"]:
        for format, model in bundle["models"].items():
            name, value = next(iter(model["metrics"].items()), ("", None))
            start, peak = model["start"], model["start"]["peak_bytes"]
            rows.append(
                (
                    bundle["name"], format, MISSING if value is None else f"{name} {value:.4f}",
                    f"{model['bytes'] / 1e6:.1f}", f"{start['total_s']:.2f}", f"{start['load_s']:.2f}",
                    f"{start['first_answer_s']:.3f}", MISSING if peak is None else f"{peak / 1e6:.0f}",
                )
            )  # fmt: skip
    return rows


def _timing_cells(content: JsonObject) -> Cells:
    rows: Cells = [("model", "format", "batch", "length", "threads", "p50 ms", "p90 ms", "p99 ms", "of the peak")]
    for row in content["timings"]:
        share = row["share_of_peak"]
        rows.append(
            (
                row["model"], row["format"], str(row["batch"]), str(row["length"]), str(row["threads"]),
                *(f"{row[name]:.2f}" for name in ("p50_ms", "p90_ms", "p99_ms")),
                MISSING if share is None else f"{share:.2f}",
            )
        )  # fmt: skip
    return rows


def _text_cells(content: JsonObject) -> Cells:
    names = ("tokenize_p50_ms", "model_p50_ms", "p50_ms", "p90_ms", "p99_ms")
    rows: Cells = [
        ("model", "format", "batch", "tokens", "threads", "tokens ms", "model ms", "p50 ms", "p90 ms", "p99 ms")
    ]
    for row in content["texts"]:
        words = (row["model"], row["format"], str(row["batch"]), f"{row['mean_length']:.1f}", str(row["threads"]))
        rows.append((*words, *(f"{row[name]:.2f}" for name in names)))
    return rows


def _write_plots(content: JsonObject, directory: Path) -> None:
    """Writes latency against metric for each task, at the first number of threads, batch size and length.

    Latency against length is written too, where there are enough lengths.
    """
    for task in dict.fromkeys(bundle["task"] for bundle in content["bundles"]):
        bundles = [bundle for bundle in content["bundles"] if bundle["task"] == task]
        measured = [(of["name"], format, model) for of in bundles for format, model in of["models"].items()]
        metric = next((name for _, _, model in measured for name in model["metrics"]), None)
        if metric is None:
            continue
        points = [
            Point(timing["p50_ms"], model["metrics"][metric], f"{name} {format}")
            for name, format, model in measured
            if (timing := _first_timing(content, name, timed_name(format, model["file"]))) is not None
            and metric in model["metrics"]
        ]
        teacher = next((bundle["teacher"] for bundle in bundles if bundle["teacher"]), None)
        value = teacher["metrics"].get(metric) if teacher else None
        timing = _first_timing(content, TEACHER, "torch")
        if value is not None and timing is not None:
            points.append(Point(timing["p50_ms"], value, f"{TEACHER} (torch)"))
        if not points:
            continue
        row = content["timings"][0]
        conditions = f"batch {row['batch']}, length {row['length']}, {row['threads']} thread(s)"
        figure = draw_cost(
            points, metric=metric, cost=f"p50 in ms: {conditions}", caption=f"{task}: {metric} against latency",
            references={} if value is None else {"teacher's metric": value},
        )  # fmt: skip
        write_text(directory / f"latency-{task}.svg", standalone(figure))
    if (by_length := draw_cost_by_length(content["timings"])) is not None:
        write_text(directory / f"{by_length.name}.svg", standalone(by_length))


def _first_timing(content: JsonObject, model: str, format: str) -> JsonObject | None:
    """Returns the timing of a model at the first number of threads, batch size and length; None without one."""
    rows = (row for row in content["timings"] if (row["model"], row["format"]) == (model, format))
    return next(rows, None)
