"""The jobs `benchmark` and `inspect`, which measure bundles and look inside trained models.

The texts of dev that a bundle is timed on, from the predictions.parquet of its run. Nothing is created from the run's
config.yaml, because a bundle may be a stranger's, unless the command trusts it.
"""

import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from rich.table import Table
from transformers import PreTrainedTokenizerBase

from distill import __version__
from distill.core import storage
from distill.core.console import console, print_line, print_notice, silence_libraries
from distill.core.contracts import Data, Task
from distill.core.errors import UserError, first_line
from distill.core.files import JsonObject, write_json, write_text
from distill.edge import Bundle, bundle_files
from distill.edge.bundle_files import this_target, timed_name, weight_bits
from distill.edge.decoder import Record
from distill.export import latency
from distill.export.bundle_benchmark import (
    CHOICES,
    MeasuredBundle,
    list_formats,
    measure_bundles,
    measure_joules,
    time_texts,
)
from distill.export.bundle_writer import FILES
from distill.export.latency import load_candidates
from distill.export.onnx import export_onnx
from distill.export.quantization import RecipeInput, write_dynamic
from distill.inspection.inspection import inspect_models
from distill.inspection.inspection_report import write_inspection
from distill.inspection.subjects import Subject, create_subject, open_subject, open_subjects
from distill.jobs import execution
from distill.jobs.execution import read_run
from distill.jobs.preflight import check_targets, given_options, read_trust, refuse_other_options
from distill.kinds import find_auto_class
from distill.kinds.multitask import Tasks
from distill.records.choice import Candidate
from distill.records.plots import Point, draw_cost, standalone
from distill.records.prediction_analysis import FILE, draw_cost_by_length
from distill.records.report import render_table
from distill.records.run import CONFIG, RECORD, Run, create_run, read_config
from distill.records.schema import read_record
from distill.records.verdict import MISSING, Results, recommend
from distill.teachers import preparation as teaching
from distill.teachers.source import locate

SAMPLED = 256  # Records of dev.
# Columns of texts that predictions.parquet may have, in the forms in which a bundle reads records.
_FORMS: tuple[tuple[str, ...], ...] = (
    ("question", "context", "choices"), ("question", "choices"), ("question", "context"), ("texts",),
    ("text", "second_text"), ("text",), ("query", "documents"),
)  # fmt: skip


def read_dev_records(bundle: Path, *, trust: Sequence[str]) -> tuple[list[Record], int | None]:
    """Returns records of dev, and the number of choices of an example; none with a notice where there are no texts.

    Args:
        bundle: its directory, in that of its run.
        trust: what the command trusts; where predictions.parquet has no texts, the task of config.yaml reads them anew.
    """
    try:
        absolute = bundle.absolute()
        places = [absolute.parent, absolute.parents[1] / "tasks" / absolute.name]  # Of a task among several.
        path = next((place / FILE for place in places if (place / FILE).is_file()), None)
        records = _read_predictions(path) if path is not None else []
        if not records and trust:
            records = _read_task(bundle.absolute().parent, trust)
    except UserError as error:
        print_notice(f"the lengths of the dev split of {bundle} are not measured: {error}")
        return [], None
    if not records:
        reason = f"its run has no {FILE}" if path is None else f"{path} has no texts"
        print_notice(f"the lengths of the dev split of {bundle} are not measured, because {reason}")
    number = min(SAMPLED, len(records))
    sampled = [records[row] for row in np.random.default_rng(0).choice(len(records), number, replace=False)]
    choices = [len(record["choices"]) for record in sampled if isinstance(record, Mapping) and "choices" in record]
    return sampled, max(choices, default=None)


def _read_predictions(path: Path) -> list[Record]:
    """Returns the records of dev; raises UserError for a file that is damaged."""
    import pyarrow
    import pyarrow.parquet

    try:
        names = set(pyarrow.parquet.read_schema(path).names)
        form = next((form for form in _FORMS if names.issuperset(form)), None)
        if form is None or "split" not in names:
            return []
        table = pyarrow.parquet.read_table(path, columns=[*form, "split"], filters=[("split", "=", "dev")])
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    rows = [tuple(row[name] for name in form) for row in table.to_pylist()]
    rows = [row for row in rows if all(isinstance(text, str) for value in row for text in _to_list(value))]
    if form[0] in ("question", "query"):
        return [dict(zip(form, row, strict=True)) for row in rows]
    return [row[0] if len(row) == 1 else list(row) for row in rows]


def _to_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _read_task(run: Path, trust: Sequence[str]) -> list[Record]:
    """Returns the records of dev, read by the task of a run.

    Raises:
        UserError: if the run has no task that the command trusts, or its data are gone.
    """
    path = run / CONFIG
    if not path.is_file():
        raise UserError(f"{run} has no {CONFIG}, whose task reads dev")
    config = read_config(path)
    check_targets(config, source=path, trust=trust)
    task, cache_dir = execution.instantiate(config.task), execution.cache_dir(config)
    data = task.read(cache_dir)
    if task.info.raw_text:
        data = data.with_examples(task.encode(data, _load_tokenizer(run), cache_dir))
    return list(data.scored()["dev"].records())


def _load_tokenizer(run: Path) -> PreTrainedTokenizerBase:
    """Returns the tokenizer that is saved with the model of a run."""
    from transformers import AutoTokenizer

    saved = next((path for path in (run / "student", run / "teacher" / "model") if path.is_dir()), None)
    if saved is None:
        raise UserError(f"{run} has neither student nor teacher/model, whose tokenizer makes the sequences of dev")
    return AutoTokenizer.from_pretrained(saved, local_files_only=True)


TEACHER = "teacher"


def run_benchmark(config: DictConfig) -> None:
    """Measures `bundles` and writes `benchmark.json`, `benchmark.md` and a plot for each task below `output_dir`.

    Raises:
        UserError: for options that have no effect, and bundles that cannot be measured together.
    """
    _check_options(config)
    settings = execution.instantiate(config.benchmark)
    threads = _counts(config.job.threads) or [settings.threads or bundle_files.count_cores()]
    bundles = _open_bundles(config)
    silence_libraries()
    print_line(f"Measuring {', '.join(each.name for each in bundles)} with {' and '.join(map(str, threads))} thread(s)")
    has_none = OmegaConf.is_missing(config, "teacher")
    with nullcontext(dict[str, Any]()) if has_none else _load_teacher(config, bundles[0]) as teacher:
        result = measure_bundles(bundles, settings, threads=threads, **teacher)
    run = create_run(storage.local_path(config.output_dir) / "benchmarks", job="benchmark", seed=0)
    content = {
        "schema": 1, "version": __version__, "command": ["python", "-m", "distill", *sys.argv[1:]],
        "environment": run.record["environment"], **result,
    }  # fmt: skip
    write_json(run.directory / "benchmark.json", content)
    _write_tables(content, run.directory)
    _write_plots(content, run.directory)
    storage.send(run.directory)
    print_line(f"Results  {storage.address(run.directory)}")


def measure_candidates(runs: Mapping[str, Path], config: DictConfig) -> list[Candidate]:
    """Returns the students whose bundle recommends a file, with the time and the energy of a text of dev, in turns.

    Where the texts are not recorded, a time is that of the run.
    """
    settings = execution.instantiate(config.benchmark)
    records = {name: read_record(path) for name, path in runs.items()}
    formats = {name: format for name, of in records.items() if (format := recommend(of["export"])) is not None}
    texts = read_dev_records(runs[next(iter(formats))] / "bundle", trust=[])[0] if settings.enabled and formats else []
    milliseconds, joules = dict[str, float](), dict[str, float]()
    if texts:
        threads = settings.threads or bundle_files.count_cores()
        bundles = {name: Bundle(runs[name] / "bundle", model=of, threads=threads) for name, of in formats.items()}
        print_line(f"Timing   {', '.join(formats)} in turns, a text at a time, with {threads} thread(s)")
        rows = time_texts(bundles, texts, replace(settings, batches=[1]))
        milliseconds = {name: row["p50_ms"] for name, row in zip(formats, rows, strict=True)}
        joules = measure_joules(bundles, texts, seconds=settings.longest())
    for name, format in formats.items():
        file = records[name]["export"][format]["file"]
        if (timing := Results(records[name]).timing("student", timed_name(format, file))) is not None:
            milliseconds.setdefault(name, timing["p50_ms"])
    return [
        Candidate(name, runs[name], format, milliseconds.get(name), joules.get(name))
        for name, format in formats.items()
    ]  # fmt: skip


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


@contextmanager
def _load_teacher(config: DictConfig, bundle: MeasuredBundle) -> Iterator[dict[str, Any]]:
    """Yields `others` and `vocabulary` of `measure_bundles`: a teacher in torch, and its ONNX files.

    It has the head of a bundle's task, whose weights do not matter here.
    """
    manifest, threads = bundle.manifest, torch.get_num_threads()
    auto_class = find_auto_class(manifest["kind"])
    start = execution.build_source(config).weights.load(auto_class, manifest["labels"] or None, ())

    def load(threads: int) -> list[latency.Candidate]:
        torch.set_num_threads(threads)
        return load_candidates({TEACHER: (start.model.eval(), files)}, start.tokenizer, threads)

    with tempfile.TemporaryDirectory() as directory:
        files = {name: Path(directory) / file for name, file in FILES.items()}
        export_onnx(start.model, files["fp32"], tokenizer=start.tokenizer)
        write_dynamic(RecipeInput(files["fp32"], weight_bits(this_target())), files["int8"])
        try:
            yield {"others": load, "vocabulary": len(start.tokenizer)}
        finally:
            torch.set_num_threads(threads)


Cells = list[tuple[str, ...]]
_PERCENTILES = {"p50 ms": "{p50_ms:.2f}", "p90 ms": "{p90_ms:.2f}", "p99 ms": "{p99_ms:.2f}"}
# Columns of the tables -> their cells.
_BUNDLES = {
    "bundle": "{bundle}", "format": "{format}", "metric": "{metric}", "MB": "{mb:.1f}", "start s": "{total_s:.2f}",
    "load s": "{load_s:.2f}", "first answer s": "{first_answer_s:.3f}", "peak MB": "{peak}",
}  # fmt: skip
_TIMINGS = {
    "model": "{model}", "format": "{format}", "batch": "{batch}", "length": "{length}", "threads": "{threads}",
    **_PERCENTILES, "of the peak": "{share}",
}  # fmt: skip
_TEXTS = {
    "model": "{model}", "format": "{format}", "batch": "{batch}", "tokens": "{mean_length:.1f}",
    "threads": "{threads}", "tokens ms": "{tokenize_p50_ms:.2f}", "model ms": "{model_p50_ms:.2f}", **_PERCENTILES,
}  # fmt: skip


def _write_tables(content: JsonObject, directory: Path) -> None:
    """Prints the tables, and writes them as Markdown."""
    tables: dict[str, Cells] = {
        "Bundles": _fill(_BUNDLES, _list_files(content)), "Latency": _fill(_TIMINGS, _list_timings(content)),
        "Texts of dev": _fill(_TEXTS, content["texts"]),
    }  # fmt: skip
    parts = ["# Benchmark", _describe_machine(content)]
    for title, cells in tables.items():
        header, *rows = cells
        if not rows:
            continue
        table = Table(*header, title=title, title_justify="left", title_style="bold")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        parts.append(f"## {title}\n\n{render_table(cells)}")
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


def _list_files(content: JsonObject) -> Iterator[JsonObject]:
    """Yields what the table of bundles shows of each file."""
    for bundle in content["bundles"]:
        for format, model in bundle["models"].items():
            name, value = next(iter(model["metrics"].items()), ("", None))
            peak = model["start"]["peak_bytes"]
            yield {
                **model["start"], "bundle": bundle["name"], "format": format, "mb": model["bytes"] / 1e6,
                "metric": MISSING if value is None else f"{name} {value:.4f}",
                "peak": MISSING if peak is None else f"{peak / 1e6:.0f}",
            }  # fmt: skip


def _list_timings(content: JsonObject) -> Iterator[JsonObject]:
    """Yields the timings with the share of the peak in words."""
    for row in content["timings"]:
        share = row["share_of_peak"]
        yield {**row, "share": MISSING if share is None else f"{share:.2f}"}


def _fill(columns: Mapping[str, str], rows: Iterable[JsonObject]) -> Cells:
    """Returns the cells of rows, below the names of the columns."""
    return [tuple(columns), *(tuple(cell.format_map(row) for cell in columns.values()) for row in rows)]


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


def run_inspect(config: DictConfig) -> None:
    """Looks inside `model`, and `other` beside it, and writes `inspect.html` with its tables below `output_dir`.

    Of a run it takes the task, if the command names none, and the teacher beside the student, if there is no `other`.

    Raises:
        UserError: for a model, a split or a file that the questions cannot be asked of.
    """
    refuse_other_options("inspect")
    if not config.model:
        raise UserError("job=inspect has no model to look inside: add model=DIR, and other=DIR for its student")
    questions = execution.instantiate(config.inspect)
    paths = [Path(str(path)).expanduser() for path in (config.model, config.other) if path]
    silence_libraries()
    names_task = any(option.lstrip("+~").startswith(("task=", "task.")) for option in given_options())
    if names_task or not (paths[0] / CONFIG).is_file():
        subjects = open_subjects(paths, _only_task(config), execution.cache_dir(config))
    else:
        subjects = _open_run(*read_run(paths[0], config), paths)
    inspection = inspect_models(subjects, questions, before=_build_student(config, subjects))
    run = create_run(storage.local_path(config.output_dir) / "inspections", job="inspect", seed=0)
    page = write_inspection(inspection, run.directory)
    storage.send(run.directory)
    print_line(f"Results  {storage.address(page)}")


def _only_task(config: DictConfig) -> Task:
    [*tasks] = Tasks.of(execution.instantiate(config.task)).values()
    if len(tasks) > 1:
        raise UserError(
            f"job=inspect looks at a model of one task, and task={config.task.name} has {len(tasks)}: take a model "
            "that was trained for one of them"
        )
    return tasks[0]


def _open_run(config: DictConfig, run: Run, paths: list[Path]) -> list[Subject]:
    """Returns the models of a run, or the first one and that of another directory, with the data of its task.

    Args:
        config: of the run.
    """
    task, cache_dir = _only_task(config), execution.cache_dir(config)
    print_line(f"Task     {task.info.name}, as {run.directory} has it")
    if len(paths) == 2 or config.job.name != "distill":
        return open_subjects(paths, task, cache_dir)
    data = task.read(cache_dir)
    student = open_subject("student", paths[0], task, data, cache_dir)
    try:
        return [_open_teacher(config, run, task, data), student]
    except UserError as error:
        print_notice(f"the student is shown without its teacher: {error}")
        return [student]


def _open_teacher(config: DictConfig, run: Run, task: Task, data: Data) -> Subject:
    """Returns the teacher of a run.

    Raises:
        UserError: if it is no single model, or its fine-tuned weights are not in the cache any more.
    """
    source, cache_dir = execution.build_source(config), execution.cache_dir(config)
    if source.others or source.by_task or source.labeller is not None:
        raise UserError(f"the teacher of {run.directory} is no single model with a head for the task")

    def refuse_training(*_: object) -> None:
        raise UserError(
            f"the teacher of {run.directory} was fine-tuned, and is not in the cache {cache_dir} any more: train it "
            "with job=finetune, and take model=TEACHER other=RUN"
        )

    source = locate(source, task)
    preparation = teaching.Preparation(
        task=task, splits=data, cache_dir=cache_dir, run_directory=run.directory, device=torch.device("cpu"),
        dry_run=True, rehearse=refuse_training,
    )  # fmt: skip
    teacher = teaching.prepare(source, preparation)
    origin = (run.record["teacher"] or {}).get("origin", teacher.origin)
    path = Path(f"{teacher.resolved} ({origin})")
    return create_subject("teacher", path, teacher.model, teacher.tokenizer, task, data, cache_dir)


def _build_student(config: DictConfig, subjects: list[Subject]) -> Subject | None:
    """Returns the student as it is before its training, from the teacher; None where the command names no student."""
    if OmegaConf.is_missing(config, "student"):
        return None
    if len(subjects) < 2:
        raise UserError("+student=NAME shows the layers of other=DIR before its training: add other, or leave it out")
    teacher, student = subjects
    return student.before(execution.build_student(config).make(teacher.model, teacher.task, teacher.data))
