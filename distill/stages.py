"""The stages of one student, from its training to its measured bundle, and their fields of run.json."""

import copy
import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill import preflight, seeds
from distill.benchmark.comparison import compare_models
from distill.console import console, print_line, print_notice
from distill.contracts import EncodedSplits, Examples, Loader, Scores, Splits, Task
from distill.data import batching
from distill.data.mixing import MixedExamples, labelled_only
from distill.depth_ladder import warn_of_size
from distill.edge.bundle import session
from distill.edge.processor import weight_bits
from distill.errors import first_line
from distill.export.bundle import FILES, write_bundle
from distill.export.gate import UNDECIDED, ExportedFile, recommended
from distill.export.onnx import export_onnx
from distill.export.quantization import Material, write_dynamic
from distill.export.recipe_ladder import closest, describe
from distill.export.sensitivity import describe_sensitivity
from distill.files import JsonObject, atomic_directory, is_full_disk, is_intact, replace_file, write_text
from distill.losses import Objective
from distill.models import checks
from distill.models.forward import exported_inputs
from distill.models.pooling import write_modules
from distill.plan import Plan
from distill.records import report
from distill.records.predictions import write_predictions
from distill.records.record import Run
from distill.records.run_report import write_report
from distill.teaching.output_cache import CachedOutputs
from distill.teaching.outputs import ComputedOutputs, earlier_decision, outputs_for_training, teacher_logits
from distill.teaching.teacher import PreparedTeacher, TeacherSource
from distill.training import fitting
from distill.training.auto import describe_choices
from distill.training.evaluate import evaluate_splits, split_metrics
from distill.training.fake_quantization import fake_quantized
from distill.training.module import DistillationModule

QAT_RATE = 0.2  # Of the learning rate of the training before.
FITTED, FITTED_DRY = 20_000, 64  # Examples of train that a term is fitted to, at most, and in a dry run.
ENOUGH_MASS = 0.98  # Of a teacher's probability, in the logits that are cached.


@dataclass(frozen=True)
class Stages:
    """The stages of the distillation of one student, once its teacher is ready."""

    plan: Plan
    run: Run
    student_name: str
    splits: Splits
    examples: EncodedSplits
    loaders: Mapping[str, Loader]
    teacher: PreparedTeacher

    def distill(
        self, model: PreTrainedModel, start: PreTrainedModel | None, source: TeacherSource, *, shows: bool = False
    ) -> None:
        """Distils one student. `start` is its copy for the baseline; `shows` prints the summary before training."""
        plan, run = self.plan, self.run
        module, outputs = self.prepare_training(model, source)
        if shows:
            self.show(module, outputs)
        if plan.dry_run:
            return
        run.update(teacher_outputs={"cached": outputs.outputs is not None, "reason": outputs.reason})
        if module.teacher is None:
            self.teacher.release()  # Its outputs are cached; later stages load it again.
        scores, baseline = self.train(module, outputs), None
        if start is not None:
            record, baseline = self.train_baseline(start)
            run.update(baseline=record)
        teacher = self.teacher.scores.get("dev")
        run.update(comparison=seeds.compare(plan.task, scores["dev"], baseline=baseline, teacher=teacher, plan=plan))
        if plan.exports:
            self.publish(module.student, scores, source)

    def prepare_training(
        self, student: PreTrainedModel, source: TeacherSource
    ) -> tuple[DistillationModule, "_OutputsOrReason"]:
        """The module to train, and the teacher's cached outputs or the reason why it runs in every step."""
        plan, teacher, settings = self.plan, self.teacher, self.plan.trainer
        steps, last = len(self.loaders["train"]), self.run.directory / "checkpoints" / "last.ckpt"
        if plan.dry_run:
            outputs, reason = None, "nothing is computed in a dry run" if plan.objective.needs_teacher else None
        else:
            outputs, reason = outputs_for_training(
                teacher, plan.objective, plan.task, self.examples["train"], cache=source.cache,
                directory=plan.cache_dir / "outputs", epochs=settings.total_steps(steps) / steps, student=student,
                earlier=earlier_decision(self.run.record, last) if plan.resume else None,
            )  # fmt: skip
        cached = outputs.outputs if outputs is not None else None
        mass = cached.mass() if isinstance(cached, CachedOutputs) and cached.top_k else 1.0
        if plan.objective.reads_teacher_logits and mass < ENOUGH_MASS:
            print_notice(
                f"the {source.cache.top_k} largest logits hold {mass:.1%} of the teacher's probability, and the "
                "student learns nothing of the rest: raise teacher.cache.top_k, or set teacher.cache.enabled=false"
            )
        plan.objective.connect(checks.encoder_size(student), checks.encoder_size(teacher.model))
        if plan.objective.fits_teacher:
            most = FITTED_DRY if plan.dry_run else FITTED
            plan.objective.fit(teacher_logits(teacher, plan.task, self.examples["train"], cached, most=most))
        runs_teacher = plan.objective.needs_teacher and outputs is None
        module = DistillationModule(
            student=student, objective=plan.objective, task=plan.task,
            teacher=teacher.running() if runs_teacher else None,
            cached_outputs=cached, **settings.optimization(steps),
        )  # fmt: skip
        return module, _OutputsOrReason(outputs, reason)

    def show(self, module: DistillationModule, outputs: "_OutputsOrReason") -> None:
        """Prints the summary before training."""
        plan, teacher, task = self.plan, self.teacher, self.plan.task
        seconds = fitting.estimate_seconds(module, self.loaders["train"], self.loaders["dev"], plan.trainer)
        seconds *= plan.seeds * (2 if plan.baseline else 1)
        score = f", {task.metric} {teacher.metrics[task.metric]:.4f} on dev" if teacher.metrics else ""
        preflight.show(
            [
                ("teacher", f"{teacher.resolved} ({teacher.origin}){score}"),
                ("student", preflight.describe_student(teacher.model, module.student)),
                ("vocabulary", checks.check_vocabulary(teacher.model, module.student, teacher.tokenizer)),
                ("task", preflight.describe_task(task, self.run.record["task"], self.splits)),
                ("tokens", preflight.describe_lengths(self.examples, task.max_length)),
                ("batches", preflight.describe_batches(self.loaders["train"], plan.trainer)),
                ("teacher outputs", preflight.describe_outputs(module, outputs.reason)),
                ("objective", f"{module.objective.name}: {', '.join(module.objective.names)}"),
                ("training", preflight.describe_training(module, plan.trainer, seconds, seeds=plan.seeds)),
                *(("chosen", line) for line in describe_choices(plan.chosen)),
            ]
        )
        preflight.warn_of_stream(self.loaders["train"], plan.trainer)
        preflight.warn_of_head(plan.objective)
        preflight.warn_of_parts(plan.objective, plan.trainer)

    def train(self, module: DistillationModule, outputs: "_OutputsOrReason") -> dict[str, Scores]:
        """Trains, evaluates and saves the student; returns its scores on every split that is scored."""
        fit = self._fit(module, self.run.directory, self.plan.logger(self.run.directory), title="student")
        student, task = module.student.eval(), self.plan.task
        reference = self.teacher.running() if task.compares_with_teacher else None
        student.to("cpu" if reference is None else self.plan.trainer.device())
        scores = evaluate_splits(student, task, self.loaders, reference=reference)
        metrics = split_metrics(task, scores)
        student.cpu()
        self.run.update(
            training=training_record(fit, module, outputs.outputs) | {"chosen": self.plan.chosen},
            student={
                "name": self.student_name, "parameters": checks.count_parameters(student), "metrics": metrics,
                "layers": getattr(student.config, "teacher_layers", None),
            },
        )  # fmt: skip
        save_model(student, self.teacher.tokenizer, self.run.directory / "student")
        return scores

    def train_baseline(self, student: PreTrainedModel) -> tuple[dict[str, Any], Scores]:
        """The same student from the same start, with the same steps, trained on the hard labels alone.

        Returns its record and its scores on dev.
        """
        objective = Objective(name="supervised", terms=self.plan.task.supervised_terms())
        size = checks.encoder_size(student)
        objective.connect(size, size)
        module = DistillationModule(
            student=student, objective=objective, task=self.plan.task,
            **self.plan.trainer.optimization(len(self.loaders["train"])),
        )  # fmt: skip
        examples = labelled_only(self.examples)
        if examples is not self.examples:
            loaders = batching.all_loaders(examples, steps=module.total_steps, **self.plan.trainer.batches())
            return replace(self, examples=examples, loaders=loaders)._train_baseline(module)
        return self._train_baseline(module)

    def _train_baseline(self, module: DistillationModule) -> tuple[dict[str, Any], Scores]:
        directory = self.run.directory / "baseline"
        fit = self._fit(module, directory, CSVLogger(str(directory), name="", version=""), title="baseline")
        scores = evaluate_splits(module.student.cpu(), self.plan.task, self.loaders)
        return {"metrics": split_metrics(self.plan.task, scores), "seconds": fit.seconds}, scores["dev"]

    def publish(self, student: PreTrainedModel, scores: dict[str, Scores], source: TeacherSource) -> None:
        """Exports, checks and times the student, and writes the bundle with its model card."""
        run, plan = self.run, self.plan
        bundle, splits = run.directory / "bundle", plan.task.scored_data(self.splits, lambda: self.examples)
        # A stream has no epoch that quantization-aware distillation could train for.
        retrain = (lambda: self.retrain(student, source)) if isinstance(self.examples["train"], Examples) else None
        print_line(f"Exporting to ONNX, and quantizing until a file passes its gate on {', '.join(scores)}")
        with atomic_directory(bundle) as directory:
            exported = write_bundle(
                directory, model=student, tokenizer=self.teacher.tokenizer, task=plan.task, splits=splits,
                scores=scores, settings=plan.export, retrain=retrain,
                teacher={"name": self.teacher.resolved, "metrics": self.teacher.metrics},
            )  # fmt: skip
            formats = exported.formats
            retention = _retention(run.record, plan.task, formats)
            run.update(export=formats, ladder=exported.ladder, retention=retention)
            write_text(directory / "README.md", report.render_model_card(run.record, splits.labels))
        models = {"teacher": self.teacher.scores, "student": scores, **exported.scores}
        run.update(breakdown=break_down(models, plan.task))
        write_predictions(run.directory, models, task=plan.task, splits=splits, settings=plan.record)
        # The bundle is whole already, whatever becomes of the timing.
        run.update(benchmark=self._time(student, bundle, formats))
        replace_file(bundle, "README.md", report.render_model_card(run.record, splits.labels))

    def retrain(self, student: PreTrainedModel, source: TeacherSource) -> PreTrainedModel:
        """Quantization-aware distillation: a copy of the student, trained with the rounding errors of int8."""
        plan, directory = self.plan, self.run.directory / "qat"
        shutil.rmtree(directory, ignore_errors=True)
        settings = replace(
            plan.trainer, max_epochs=plan.export.qat_epochs, max_steps=None, min_steps=None, soup=1, ema=0.0,
            patience=None, learning_rate=QAT_RATE * plan.trainer.learning_rate,
        )  # fmt: skip
        plan = replace(plan, trainer=settings, objective=copy.deepcopy(plan.objective), resume=False)
        stages = replace(self, plan=plan)
        module, _ = stages.prepare_training(copy.deepcopy(student).train(), source)
        with fake_quantized(module.student, bits=min(map(weight_bits, plan.export.targets()))):
            stages._fit(module, directory, CSVLogger(str(directory), name="", version=""), title="int8")
        return module.student.cpu().eval()

    def close(self) -> None:
        """Writes the report and prints where everything is."""
        run, formats = self.run, self.run.record["export"]
        page = write_report(run.directory, {**run.record, "status": "finished"})
        if formats and self.plan.seeds > 1:  # The first student was published before the others were trained.
            card = report.render_model_card(run.record, self.splits.labels)
            replace_file(run.directory / "bundle", "README.md", card)
        console.print()
        console.print(report.summary_table(run.record))
        for sentence in report.comparison_sentences(run.record):
            print_line(sentence)
        print_line(f"Report   {page}")
        print_line(f"Student  {run.directory / 'student'}")
        if not formats:
            return
        chosen, bundle = recommended(formats), run.directory / "bundle"
        if chosen is None:
            print_notice("no exported file passed its gate; report.md has the differences")
        elif formats[chosen]["gate"] == UNDECIDED:
            print_notice(f"{formats[chosen]['file']} kept the metric, but dev is too small to be sure of it")
        elif (rung := closest(run.record["ladder"])) is not None:
            print_notice(f"no recipe of quantization passed its gate; closest came {describe(rung)}")
        warn_of_size(self.plan, formats, chosen)
        if chosen is not None and formats[chosen].get("batch_sensitivity"):  # Earlier versions did not measure it.
            file = formats[chosen]
            sentence = describe_sensitivity(file["file"], file["batch_sensitivity"], file["batch_size"])
            print_line(f"Batches  {sentence}")
        print_line(f"Bundle   {bundle}" + (f"  (recommended: {formats[chosen]['file']})" if chosen else ""))
        print_line(f"Try it   python -m distill.edge {bundle} {report.example_argument(run.record['task'])}")

    def _fit(self, module: DistillationModule, directory: Path, logger: Logger, *, title: str) -> fitting.Fit:
        data = data_digest(self.plan.task, self.splits, self.examples)
        return fitting.fit(
            module, self.loaders["train"], self.loaders["dev"], settings=self.plan.trainer,
            checkpoints=directory / "checkpoints", logger=logger, title=title, resume=self.plan.resume,
            identity={"data": data, "teacher": self.teacher.fingerprint},
        )  # fmt: skip

    def _time(
        self, student: PreTrainedModel, bundle: Path, formats: Mapping[str, ExportedFile]
    ) -> list[dict[str, Any]]:
        """Latencies of student and, unless it is left out, teacher in torch and in ONNX, measured in turns."""
        if not self.plan.benchmark.enabled:
            return []
        student_files = {format: bundle / row["file"] for format, row in formats.items()}
        is_timed = self.plan.benchmark.teacher and len(self.teacher.members) == 1
        models = {"teacher": (self.teacher.model, self._teacher_files())} if is_timed else {}
        models["student"] = (student, student_files)
        return compare_models(
            models, tokenizer=self.teacher.tokenizer, settings=self.plan.benchmark, choices=self.plan.task.choices
        )

    def _teacher_files(self) -> dict[str, Path]:
        """The teacher's own ONNX files, cached under its weights, its inputs and the recipe; none if they fail."""
        bits = weight_bits(self.plan.export.targets()[0])
        teacher, tokenizer = self.teacher.model, self.teacher.tokenizer
        key = hashlib.sha256(
            " ".join([self.teacher.weights, *exported_inputs(teacher, tokenizer)]).encode()
        ).hexdigest()
        directory = self.plan.cache_dir / "onnx" / f"{key[:16]}-rows-{bits}"
        if not is_intact(directory):
            try:
                with atomic_directory(directory, reuse_intact=True) as temporary:
                    export_onnx(teacher, temporary / FILES["fp32"], tokenizer=tokenizer)
                    write_dynamic(Material(temporary / FILES["fp32"], bits), temporary / FILES["int8"])
                    for file in FILES.values():
                        session(temporary / file)
            except Exception as error:  # Of any library. The run needs these files for some rows of a table alone.
                if is_full_disk(error):
                    raise
                reason = first_line(error)
                print_notice(f"the teacher is timed in torch alone, because its ONNX files cannot be made: {reason}")
                return {}
        return {format: directory / file for format, file in FILES.items()}


@dataclass(frozen=True)
class _OutputsOrReason:
    """The teacher's cached outputs, or the reason why it runs in every step; neither if no term needs it."""

    outputs: ComputedOutputs | None
    reason: str | None


def _retention(record: JsonObject, task: Task, formats: Mapping[str, ExportedFile]) -> dict[str, float | None]:
    """The share of the teacher's metric that each file keeps, as `report.share_kept`."""
    metric, teacher = task.metric, record["teacher"]["metrics"][task.metric]
    values = {"torch": record["student"]["metrics"][metric]}
    values |= {name: row["metrics"][metric] for name, row in formats.items()}
    return {name: report.share_kept(value, teacher, record["task"]) for name, value in values.items()}


def task_record(task: Task, splits: Splits, examples: EncodedSplits) -> dict[str, Any]:
    """The `task` of run.json."""
    sizes = splits.sizes() or {name: len(split) for name, split in examples.items() if isinstance(split, Examples)}
    truncated = {name: split.truncated for name, split in examples.items() if isinstance(split, Examples)}
    train = examples["train"]
    unlabelled = {"unlabelled": train.unlabelled} if isinstance(train, MixedExamples) else {}
    return {
        "name": task.name, "kind": task.kind, "metric": task.metric, "selects": task.selects,
        "pair": task.pair, **task.describe(splits),
        "examples": {"train": 0, "dev": 0, "test": 0} | sizes, "truncated": truncated,
        "sha256": data_digest(task, splits, examples), **unlabelled,
    }  # fmt: skip


def break_down(models: Mapping[str, Mapping[str, Scores]], task: Task) -> dict[str, dict[str, Any]]:
    """The `breakdown` of run.json: of each split, the metrics of each model for each type of answer."""
    splits = models["student"]
    by_split = {split: {name: task.breakdown(scores[split]) for name, scores in models.items()} for split in splits}
    return {split: of_models for split, of_models in by_split.items() if of_models["student"]}


def data_digest(task: Task, splits: Splits, examples: EncodedSplits) -> str:
    """Stands for the data that a training depends on: of labelled rows the content, of raw text the sequences."""
    train = examples["train"]
    if not task.over_vocabulary:
        return f"{splits.sha256}-{train.digest}" if isinstance(train, MixedExamples) else splits.sha256
    return "-".join(split.digest for split in examples.values() if isinstance(split, Examples))


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Writes an ordinary checkpoint directory, whole or not at all; sentence-transformers loads that of an encoder."""
    with atomic_directory(directory) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        write_modules(model, temporary)


def training_record(
    fit: fitting.Fit, module: DistillationModule, outputs: ComputedOutputs | None = None
) -> dict[str, Any]:
    """The `training` of run.json."""
    return {
        **asdict(fit),
        "teacher_seconds": module.teacher_seconds + (outputs.seconds if outputs else 0.0),
        "teacher_cache": outputs.record() if outputs else None,
    }
