"""The stages of one student, from its training to its measured bundles, and their fields of run.json."""

import copy
import functools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger
from transformers import PreTrainedModel

from distill.chain import summary
from distill.chain.part import BASELINE, Part, data_digest
from distill.chain.plan import Plan
from distill.console import console, print_line, print_notice
from distill.contracts import EncodedSplits, Examples, Loader, Scores
from distill.data import several
from distill.edge.processor import weight_bits
from distill.export.sharing import share_weights
from distill.losses import Objective
from distill.losses.term import EncoderSize
from distill.models import checks
from distill.models.heads import heads_of
from distill.records import report
from distill.records.headline import describe_verdict
from distill.records.loggers import OpenLoggers
from distill.records.record import Run
from distill.records.run_report import write_report
from distill.storage.files import atomic_directory, replace_file, write_checksums, write_text
from distill.teaching.output_cache import CachedOutputs
from distill.teaching.outputs import ComputedOutputs, earlier_decision, outputs_for_training, teacher_logits
from distill.teaching.several import join_outputs
from distill.teaching.teacher import PreparedTeacher, TeacherSource
from distill.training import averaging, fitting
from distill.training.auto import describe_choices
from distill.training.evaluate import evaluate_splits, split_metrics
from distill.training.fake_quantization import fake_quantized
from distill.training.module import DistillationModule

QAT_RATE = 0.2  # Of the learning rate of the training before.
FITTED, FITTED_DRY = 20_000, 64  # Examples of train that a term is fitted to, at most, and in a dry run.
ENOUGH_MASS = 0.98  # Of a teacher's probability, in the logits that are cached.


@dataclass(frozen=True)
class Stages:
    """The stages of the distillation of one student, once its teachers are ready.

    Args:
        parts: the tasks of the run, of which the student has a head each.
        examples: those of all tasks.
        teacher: those of all tasks.
    """

    plan: Plan
    run: Run
    student_name: str
    parts: Sequence[Part]
    examples: EncodedSplits
    loaders: Mapping[str, Loader]
    teacher: PreparedTeacher

    def distill(self, model: PreTrainedModel, source: TeacherSource, *, shows: bool = False) -> None:
        """Distils one student, and trains its baseline if there is one; `shows` prints the summary before training."""
        plan, run = self.plan, self.run
        start = copy.deepcopy(model) if plan.baseline and not plan.dry_run else None
        with run.timed("teacher"):
            module, outputs = self.prepare_training(model, source)
        if shows:
            self.show(module, outputs)
        if plan.dry_run:
            return
        run.update(teacher_outputs={"cached": outputs.outputs is not None, "reason": outputs.reason})
        if module.teacher is None:
            self.teacher.release()  # Its outputs are cached; later stages load it again.
        scoring = plan.task.scoring
        with plan.tracking.open(run.directory, metric=scoring.metric, selects=scoring.selects) as loggers:
            self._train_and_publish(module, outputs, start, source, loggers)

    def _train_and_publish(
        self,
        module: DistillationModule,
        outputs: "_OutputsOrReason",
        start: PreTrainedModel | None,
        source: TeacherSource,
        loggers: OpenLoggers,
    ) -> None:
        """Trains, compares and exports one student, and logs its results."""
        run = self.run
        with run.timed("training"):
            scores = self.train(module, outputs, loggers.lightning)
        baseline = None
        if start is not None:
            with run.timed("baseline"):
                baseline = self.train_baseline(start)
        baselines = [None] * len(self.parts) if baseline is None else [of for _, of in self._of_parts(baseline)]
        for (part, of_student), of_baseline in zip(self._of_parts(scores), baselines, strict=True):
            part.compare(of_student, of_baseline)
        if self.plan.exports:
            self.publish(module.student, scores, source)
        loggers.log_results(run.record, run.directory / "bundle" if self.plan.exports else None)

    def prepare_training(
        self, student: PreTrainedModel, source: TeacherSource
    ) -> tuple[DistillationModule, "_OutputsOrReason"]:
        """The module to train, and the teacher's cached outputs or the reason why it runs in every step."""
        plan, teacher, settings = self.plan, self.teacher, self.plan.trainer
        steps, last = len(self.loaders["train"]), self.run.directory / "checkpoints" / "last.ckpt"
        if plan.dry_run:
            outputs, reason = None, "nothing is computed in a dry run" if plan.objective.needs_teacher else None
        else:
            of_parts = [
                outputs_for_training(
                    part.teacher, plan.objective, part.task, part.examples["train"], cache=source.cache,
                    directory=plan.cache_dir / "outputs", epochs=epochs, student=student,
                    earlier=earlier_decision(self.run.record, last) if plan.resume else None,
                )
                for part, epochs in zip(
                    self.parts, several.epochs_of_tasks(self.loaders["train"], settings.total_steps(steps)), strict=True
                )
            ]  # fmt: skip
            for part, (of_part, _) in zip(self.parts, of_parts, strict=True):
                part.record_sureness(of_part)
            outputs, reason = join_outputs(of_parts)
        cached = outputs.outputs if outputs is not None else None
        mass = cached.mass() if isinstance(cached, CachedOutputs) and cached.top_k else 1.0
        if plan.objective.reads_teacher_logits and mass < ENOUGH_MASS:
            print_notice(
                f"the {source.cache.top_k} largest logits hold {mass:.1%} of the teacher's probability, and the "
                "student learns nothing of the rest: raise teacher.cache.top_k, or set teacher.cache.enabled=false"
            )
        plan.objective.connect(_encoder_size(student), checks.encoder_size(teacher.model))
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
        plan = self.plan
        seconds = fitting.estimate_seconds(module, self.loaders["train"], self.loaders["dev"], plan.trainer)
        seconds *= plan.seeds * (2 if plan.baseline else 1)
        first = self.parts[0].teacher
        summary.show(
            [
                *(("teacher", part.describe_teacher()) for part in self.parts),
                ("student", summary.describe_student(first.model, module.student)),
                ("vocabulary", checks.check_vocabulary(first.model, module.student, first.tokenizer)),
                *(row for part in self.parts for row in part.describe_data()),
                ("batches", summary.describe_batches(self.loaders["train"], plan.trainer)),
                ("teacher outputs", summary.describe_outputs(module, outputs.reason)),
                ("objective", f"{module.objective.name}: {', '.join(module.objective.names)}"),
                ("training", summary.describe_training(module, plan.trainer, seconds, seeds=plan.seeds)),
                *(("baseline", line) for line in summary.describe_baseline(self.run.record["baseline_choice"])),
                *(("chosen", line) for line in describe_choices(plan.chosen)),
            ]
        )
        summary.warn_of_stream(self.loaders["train"], plan.trainer)
        summary.warn_of_head(plan.objective)
        summary.warn_of_parts(plan.objective, plan.trainer)

    def train(
        self, module: DistillationModule, outputs: "_OutputsOrReason", loggers: Sequence[Logger]
    ) -> dict[str, Scores]:
        """Trains, evaluates and saves the student; returns its scores on every split that is scored."""
        fit = self._fit(module, self.run.directory, loggers, title="student")
        student, task = module.student.eval(), self.plan.task
        reference = self.teacher.running() if task.scoring.compares_with_teacher else None
        student.to("cpu" if reference is None else self.plan.trainer.device())
        scores = evaluate_splits(student, task, self.loaders, reference=reference)
        student.cpu()
        self.run.update(training=training_record(fit, module, outputs.outputs) | {"chosen": self.plan.chosen})
        for (part, of_part), model in zip(self._of_parts(scores), heads_of(student).values(), strict=True):
            part.record_student(model, of_part, name=self.student_name)
        if self._is_joint:
            row = {"name": self.student_name, "parameters": checks.count_parameters(student)}
            self.run.update(student=row | {"metrics": split_metrics(task, scores)})
        return scores

    def train_baseline(self, student: PreTrainedModel) -> dict[str, Scores]:
        """Trains the same student from the same start, with the same steps, on the hard labels alone.

        Returns its scores on every split that is scored.
        """
        stages, module = self._supervise(student)
        directory = self.run.directory / BASELINE
        fit = stages._fit(module, directory, CSVLogger(str(directory), name="", version=""), title="baseline")
        scores = evaluate_splits(module.student.cpu(), self.plan.task, self.loaders)
        self.run.update(baseline={"metrics": split_metrics(self.plan.task, scores), "seconds": fit.seconds})
        for part, of_part in self._of_parts(scores) if self._is_joint else ():
            part.run.update(baseline={"metrics": split_metrics(part.task, of_part), "seconds": fit.seconds})
        return scores

    def _supervise(self, student: PreTrainedModel) -> tuple["Stages", DistillationModule]:
        """Returns the stages of the baseline's training, and the module that trains `student` in them."""
        stages = self.without_unlabelled()
        objective = Objective(name="supervised", terms=self.plan.task.supervised_terms())
        size = _encoder_size(student)
        objective.connect(size, size)
        module = DistillationModule(
            student=student, objective=objective, task=self.plan.task,
            **stages.plan.trainer.optimization(len(stages.loaders["train"])),
        )  # fmt: skip
        return stages, module

    def publish_baselines(self, create: Callable[[], PreTrainedModel]) -> None:
        """Saves and exports the baseline of each task whose student is worse than it, once all seeds are compared.

        Args:
            create: returns a student of the first seed, which the trained weights are loaded into.
        """
        if not any(part.is_worse for part in self.parts):
            return
        with self.run.timed("baseline"):
            _, module = self._supervise(create())
            averaging.load_best_weights(module, self.run.directory / BASELINE / "checkpoints")
            scores = evaluate_splits(module.student.cpu().eval(), self.plan.task, self.loaders)
            heads = heads_of(module.student)
            for part, of_part in self._of_parts(scores):
                if part.is_worse:
                    part.publish_baseline(heads[part.name], of_part)

    def without_unlabelled(self) -> "Stages":
        """Returns the stages of a training on the labelled rows alone, as long as this one.

        It has as many steps of the same size, and is evaluated after the same ones, although its epochs are shorter.
        """
        examples = several.without_unlabelled(self.examples)
        if examples is self.examples:
            return self
        trainer, whole = self.plan.trainer, len(self.loaders["train"])
        steps = trainer.total_steps(whole)
        loaders = several.all_loaders(examples, steps=steps, **trainer.batches())
        evaluations = trainer.evaluations * len(loaders["train"]) / whole
        trainer = replace(trainer, max_steps=steps, max_epochs=None, min_steps=None, evaluations=evaluations)
        return replace(self, plan=replace(self.plan, trainer=trainer), examples=examples, loaders=loaders)

    def publish(self, student: PreTrainedModel, scores: Mapping[str, Scores], source: TeacherSource) -> None:
        """Exports, checks and times the heads of the student, and writes the bundle of each with its model card."""
        bundle, heads = self.run.directory / "bundle", heads_of(student)
        retrain = functools.cache(lambda: heads_of(self.retrain(student, source)))
        # A stream has no epoch that quantization-aware distillation could train for.
        can_retrain = isinstance(self.examples["train"], Examples)
        results = []
        with self.run.timed("export"), atomic_directory(bundle) as directory:
            for part, of_part in self._of_parts(scores):
                own = directory / part.name
                own.mkdir(exist_ok=True)
                retrain_head = functools.partial(_pick, retrain, part.name) if can_retrain else None
                exported = part.export(own, heads[part.name], of_part, retrain_head)
                results.append((part, of_part, exported))
            if self._is_joint:
                self._join(directory)
        # The bundle is whole already, whatever becomes of the timing.
        with self.run.timed("benchmark"):
            for part, of_part, exported in results:
                part.measure(heads[part.name], of_part, exported)
        if self._is_joint:
            replace_file(bundle, "README.md", report.render_overview_card(self.run.record))

    def _join(self, directory: Path) -> None:
        """Moves the weights that all heads have into files that they share, and records the sizes."""
        names = [part.name for part in self.parts]
        self.run.update(shared=share_weights(directory, names), retention=self._mean_retention())
        write_text(directory / "README.md", report.render_overview_card(self.run.record))
        for name in names:
            write_checksums(directory / name)

    def _mean_retention(self) -> dict[str, float | None]:
        """Returns the mean of the shares kept of all tasks, of each format that every task has."""
        shares = [part.run.record["retention"] for part in self.parts]
        names = [name for name in shares[0] if all(name in of_part for of_part in shares)]
        columns = {name: [of_part[name] for of_part in shares] for name in names}
        return {name: None if None in values else sum(values) / len(values) for name, values in columns.items()}

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
        run = self.run
        page = write_report(run.directory, {**run.record, "status": "finished"})
        for part in self.parts:
            # They were written before the baseline, the timing or further seeds.
            part.replace_cards()
        console.print()
        console.print(report.summary_table(run.record))
        for sentence in (*describe_verdict(run.record), *report.seed_sentences(run.record)):
            print_line(sentence)
        print_line(f"Report   {page}")
        for part in self.parts:
            print_line(f"Student  {part.student}")
        for part in self.parts:
            if part.run.record["export"]:
                part.print_bundle()
        for part in self.parts:
            part.print_baseline()

    @property
    def _is_joint(self) -> bool:
        """Returns whether the run has several tasks."""
        return len(self.parts) > 1

    def _of_parts(self, scores: Mapping[str, Scores]) -> Iterator[tuple[Part, dict[str, Scores]]]:
        """Yields the parts with their scores by split, of the scores of one model."""
        if not self._is_joint:
            yield self.parts[0], dict(scores)
            return
        for number, part in enumerate(self.parts):
            yield (
                part,
                {
                    split: replace(of_split.by_task[number], decoding=of_split.decoding[part.name])
                    for split, of_split in scores.items()
                    if number in of_split.by_task
                },
            )

    def _fit(
        self, module: DistillationModule, directory: Path, logger: Logger | Sequence[Logger], *, title: str
    ) -> fitting.Fit:
        data = "-".join(data_digest(part.task, part.splits, part.examples) for part in self.parts)
        return fitting.fit(
            module, self.loaders["train"], self.loaders["dev"], settings=self.plan.trainer,
            checkpoints=directory / "checkpoints", logger=logger, title=title, resume=self.plan.resume,
            identity={"data": data, "teacher": self.teacher.fingerprint},
        )  # fmt: skip


@dataclass(frozen=True)
class _OutputsOrReason:
    """The teacher's cached outputs, or the reason why it runs in every step; neither if no term needs it."""

    outputs: ComputedOutputs | None
    reason: str | None


def _encoder_size(student: PreTrainedModel) -> EncoderSize:
    return checks.encoder_size(next(iter(heads_of(student).values())))


def _pick(models: Callable[[], Mapping[str, PreTrainedModel]], name: str) -> PreTrainedModel:
    return models()[name]


def training_record(
    fit: fitting.Fit, module: DistillationModule, outputs: ComputedOutputs | None = None
) -> dict[str, Any]:
    """The `training` of run.json."""
    return {
        **asdict(fit),
        "teacher_seconds": module.teacher_seconds + (outputs.seconds if outputs else 0.0),
        "teacher_cache": outputs.record() if outputs else None,
    }
