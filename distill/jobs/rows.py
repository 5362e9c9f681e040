"""The jobs: fine-tune a teacher; distil a student, export it, check it, time it, and write all of it down."""

import copy
from pathlib import Path
from typing import Any, cast

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import CSVLogger
from omegaconf import DictConfig
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.benchmark import latency
from distill.benchmark.settings import BenchmarkSettings
from distill.console import console, notice, quiet, say
from distill.data import batching, tables
from distill.export import exporting
from distill.export.settings import ExportSettings
from distill.files import is_intact, make_directory, rewrite, whole_directory, write_text
from distill.jobs import build, preflight
from distill.losses import HardLabels, Objective
from distill.models import checks
from distill.models.forward import input_names
from distill.records import report
from distill.records.record import Run
from distill.tasks import SequenceTask
from distill.teaching import finetune
from distill.teaching.outputs import ask_for_training, check_cache, check_size
from distill.training import fitting
from distill.training.module import DistillationModule, predict_splits
from distill.training.settings import Settings, check_budget, check_processes


def run_finetune(config: DictConfig, run: Run) -> None:
    """The job `finetune`: a teacher that fits the task, kept in the cache."""
    task: SequenceTask = build.instantiate(config.task)
    settings: Settings = build.instantiate(config.trainer)
    _, teacher, _ = _prepare(
        config, run, task, device=settings.device(), cache=build.cache(config), rehearse=lambda *of_the_teacher: None
    )
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in teacher.metrics.items())
    say(f"Teacher {teacher.resolved} on {task.name} ({teacher.origin}): dev {metrics}")
    build.save(teacher.model, teacher.tokenizer, run.directory / "teacher" / "model")
    say(f"Saved in {run.directory / 'teacher' / 'model'}")


def run_distill(config: DictConfig, run: Run) -> None:
    """The job `distill`: the whole chain from a teacher to a measured bundle."""
    # What can be wrong with the options is found before a teacher is trained for them.
    settings: Settings = build.instantiate(config.trainer)
    objective: Objective = build.instantiate(config.objective)
    export_settings: ExportSettings = build.instantiate(config.export)
    timing: BenchmarkSettings = build.instantiate(config.benchmark)
    task: SequenceTask = build.instantiate(config.task)
    cache = build.cache(config)
    preflight.check_objective(objective, task)
    check_budget(settings.batch_tokens, task, "trainer")
    check_processes(settings, "trainer")
    check_cache(cache, objective, task)

    def rehearse(
        model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: dict[str, batching.Examples]
    ) -> None:
        student = build.student(config, model)
        checks.check_vocabulary(model, student, tokenizer)
        checks.check_length(student, tokenizer, task, who="student")
        checks.check_outputs(objective, teacher=model, student=student)
        check_size(objective, task, model, examples["train"], cache)

    splits, teacher, examples = _prepare(config, run, task, device=settings.device(), cache=cache, rehearse=rehearse)
    rehearse(teacher.model, teacher.tokenizer, examples)
    L.seed_everything(config.seed, verbose=False)
    student = build.student(config, teacher.model)
    start = copy.deepcopy(student) if config.baseline else None
    truncated = {name: split.truncated for name, split in examples.items()}
    run.update(task=_task_record(task, splits, truncated), objective=build.objective_record(config, objective))
    loaders = batching.loaders(examples, **settings.batches())
    answers, why_not = ask_for_training(
        teacher, objective, task, examples["train"], cache=cache, directory=build.cache_dir(config) / "outputs"
    )
    module = build.module(student, objective, task, settings, loaders, teacher, answers)
    _preflight(teacher, module, splits, loaders, settings, baseline=start is not None, why_not=why_not)
    if module.teacher is None:
        teacher.release()  # What it says is known; the benchmark loads it again.
    identity = {"data": splits.sha256, "teacher": teacher.fingerprint}
    fit = fitting.fit(
        module, loaders["train"], loaders["dev"], settings=settings, checkpoints=run.directory / "checkpoints",
        logger=build.logger(config, run.directory), title="student", identity=identity, resume=bool(config.resume),
    )  # fmt: skip
    student = module.student.eval().cpu()
    logits = predict_splits(student, loaders)
    student_metrics = task.split_metrics(logits, splits.scored_labels())
    run.update(
        training=build.training_record(fit, module, answers),
        student=build.student_record(config, student, student_metrics),
    )
    build.save(student, teacher.tokenizer, run.directory / "student")
    if start is not None:
        run.update(
            baseline=_train_baseline(
                start, task, splits, settings, loaders, run, identity=identity, resume=bool(config.resume)
            )
        )
    _publish(config, run, task, splits, teacher, student, logits, export_settings, timing)


def _publish(
    config: DictConfig,
    run: Run,
    task: SequenceTask,
    splits: tables.TaskData,
    teacher: finetune.Teacher,
    student: PreTrainedModel,
    logits: dict[str, np.ndarray],
    settings: ExportSettings,
    timing: BenchmarkSettings,
) -> None:
    """Export, check and time the student, and write the bundle and the report."""
    bundle = run.directory / "bundle"
    say(f"Exporting to ONNX, quantizing, and scoring both files on {', '.join(logits)}")
    with whole_directory(bundle) as directory:
        formats = exporting.write_bundle(
            directory, model=student, tokenizer=teacher.tokenizer, task=task, labels=splits.labels,
            splits=splits.scored(), logits=logits, settings=settings,
        )  # fmt: skip
        run.update(export=formats, retention=_retention(run.record, task.metric, formats))
        write_text(directory / "README.md", report.model_card(run.record, splits.labels))
    # The bundle is whole already, whatever becomes of the timing.
    run.update(benchmark=_benchmark(config, teacher, student, bundle, formats, settings, timing))
    rewrite(bundle, "README.md", report.model_card(run.record, splits.labels))
    write_text(run.directory / "report.md", report.markdown(run.record))
    _close(run, formats)


def _prepare(
    config: DictConfig,
    run: Run,
    task: SequenceTask,
    *,
    device: torch.device,
    cache: Any,
    rehearse: finetune.Rehearsal,
) -> tuple[tables.TaskData, finetune.Teacher, dict[str, batching.Examples]]:
    """Data, teacher, and the data in its tokens.

    Whether the teacher can be had is asked first: it is the quickest to fail. `rehearse` is called before a teacher
    is trained.
    """
    quiet()
    cache_dir = build.cache_dir(config)
    make_directory(cache_dir)
    requested = build.source(config.teacher)
    source, substituted = finetune.locate(requested, lambda: build.source(config.substitute), task)
    splits = tables.read(task, cache_dir=cache_dir)
    teacher, examples = finetune.prepare(
        source, requested=requested.weights.name, substituted=substituted, task=task, splits=splits,
        cache_dir=cache_dir, run_directory=run.directory, device=device, rehearse=rehearse,
        resume=bool(config.resume),
    )  # fmt: skip
    finetune.score(teacher, task, splits, examples, cache=cache, directory=cache_dir / "outputs")
    run.update(task=_task_record(task, splits, {}), teacher=teacher.record())
    return splits, teacher, examples


def _preflight(
    teacher: finetune.Teacher,
    module: DistillationModule,
    splits: tables.TaskData,
    loaders: dict[str, Any],
    settings: Settings,
    *,
    baseline: bool,
    why_not: str | None,
) -> None:
    task = cast(SequenceTask, module.task)
    score = teacher.metrics[task.metric]
    seconds = fitting.estimate_seconds(module, loaders["train"], loaders["dev"], settings) * (2 if baseline else 1)
    examples = {name: loader.dataset for name, loader in loaders.items()}
    sizes = ", ".join(f"{len(split):,} {name}" for name, split in splits.splits.items())
    preflight.show(
        [
            ("teacher", f"{teacher.resolved} ({teacher.origin}), {task.metric} {score:.4f} on dev"),
            ("student", preflight.describe_student(teacher.model, module.student)),
            ("vocabulary", checks.check_vocabulary(teacher.model, module.student, teacher.tokenizer)),
            ("task", f"{task.name}: {sizes}"),
            ("labels", preflight.describe_labels(task, splits)),
            ("tokens", preflight.describe_lengths(examples, task.max_length)),
            ("batches", preflight.describe_batches(loaders["train"], settings)),
            ("answers", preflight.describe_answers(module, why_not)),
            ("objective", f"{module.objective.name}: {', '.join(module.objective.names)}"),
            ("training", preflight.describe_training(module, settings, seconds)),
        ]
    )  # fmt: skip


def _train_baseline(
    student: PreTrainedModel,
    task: SequenceTask,
    splits: tables.TaskData,
    settings: Settings,
    loaders: dict[str, Any],
    run: Run,
    *,
    identity: dict[str, Any],
    resume: bool,
) -> dict[str, Any]:
    """The same student from the same start, with the same steps, on the hard labels alone."""
    objective = Objective(name="supervised", terms={"hard": HardLabels()})
    module = build.module(student, objective, task, settings, loaders, teacher=None, answers=None)
    directory = run.directory / "baseline"
    fit = fitting.fit(
        module, loaders["train"], loaders["dev"], settings=settings, checkpoints=directory / "checkpoints",
        logger=CSVLogger(str(directory), name="", version=""), title="baseline", identity=identity,
        resume=resume,
    )  # fmt: skip
    logits = predict_splits(module.student.cpu(), loaders)
    return {"metrics": task.split_metrics(logits, splits.scored_labels()), "seconds": fit.seconds}


def _benchmark(
    config: DictConfig,
    teacher: finetune.Teacher,
    student: PreTrainedModel,
    bundle: Path,
    formats: dict[str, Any],
    settings: ExportSettings,
    timing: BenchmarkSettings,
) -> list[dict[str, Any]]:
    """Teacher and student in torch and in ONNX, in turns."""
    if not timing.enabled:
        return []
    pinned = timing.threads or latency.cores()
    limit = min(checks.longest(model, teacher.tokenizer) for model in (teacher.model, student))
    lengths = [length for length in timing.lengths if length <= limit] or [limit]
    if len(lengths) < len(timing.lengths):
        notice(f"timed at length {', '.join(map(str, lengths))} only: teacher or student read {limit} tokens at most")
    say(f"Timing teacher and student, each with {pinned} thread(s)")
    files = _teacher_files(config, teacher, settings)
    candidates = []
    for name, model, onnx_files in (
        ("teacher", teacher.model, files),
        ("student", student, {format: bundle / row["file"] for format, row in formats.items()}),
    ):
        names = input_names(model)
        candidates.append(_torch_candidate(name, model))
        for format, path in onnx_files.items():
            candidates.append(latency.onnx_candidate(name, f"onnx-{format}", path, names, pinned))
    threads = torch.get_num_threads()
    torch.set_num_threads(pinned)
    try:
        return latency.measure(
            candidates, batches=timing.batches, lengths=lengths, threads=pinned,
            seconds=timing.seconds, vocabulary=len(teacher.tokenizer),
        )  # fmt: skip
    finally:
        torch.set_num_threads(threads)


def _teacher_files(config: DictConfig, teacher: finetune.Teacher, settings: ExportSettings) -> dict[str, Path]:
    """The teacher's own ONNX files, kept in the cache under its fingerprint and the recipe."""
    recipe = f"{'channel' if settings.per_channel else 'tensor'}-{7 if settings.reduce_range else 8}"
    directory = build.cache_dir(config) / "onnx" / f"{teacher.fingerprint[:16]}-{recipe}"
    if not is_intact(directory):
        with whole_directory(directory, keep_intact=True) as temporary:
            exporting.export_onnx(teacher.model, temporary / exporting.FILES["fp32"])
            exporting.quantize(temporary / exporting.FILES["fp32"], temporary / exporting.FILES["int8"], settings)
    return {format: directory / file for format, file in exporting.FILES.items()}


def _torch_candidate(name: str, model: PreTrainedModel) -> latency.Candidate:
    model = model.cpu().eval()
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())

    def answer(feed: latency.Inputs) -> Any:
        with torch.inference_mode():
            return model(**{key: torch.from_numpy(array) for key, array in feed.items()}).logits

    return latency.Candidate(name, "torch", input_names(model), size, answer)


def _task_record(task: SequenceTask, splits: tables.TaskData, truncated: dict[str, int]) -> dict[str, Any]:
    examples = {"train": 0, "dev": 0, "test": 0} | {name: len(split) for name, split in splits.splits.items()}
    return {
        "name": task.name, "kind": task.kind, "answer": task.answer, "metric": task.metric,
        "pair": len(task.text) == 2,
        "labels": list(splits.labels), "examples": examples, "truncated": truncated, "sha256": splits.sha256,
    }  # fmt: skip


def _retention(record: dict[str, Any], metric: str, formats: dict[str, Any]) -> dict[str, float | None]:
    """The student's metric over the teacher's; None where the teacher's is 0 or below and a share means nothing."""
    teacher = record["teacher"]["metrics"][metric]
    values = {"torch": record["student"]["metrics"][metric]}
    values |= {name: row["metrics"][metric] for name, row in formats.items()}
    return {name: value / teacher if teacher > 0 else None for name, value in values.items()}


def _close(run: Run, formats: dict[str, Any]) -> None:
    console.print()
    console.print(report.summary_table(run.record))
    chosen = exporting.recommended(formats)
    bundle = run.directory / "bundle"
    if chosen is None:
        notice("no exported file passed its gate; report.md says by how much")
    say(f"Report  {run.directory / 'report.md'}")
    say(f"Bundle  {bundle}" + (f"  (recommended: {exporting.FILES[chosen]})" if chosen else ""))
    say(f"Try it  python -m distill.edge {bundle} {report.example(run.record['task'])}")
