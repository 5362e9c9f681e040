"""The training of one student and of its baseline, and their fields of run.json."""

import copy
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.utilities.seed import isolate_rng
from transformers import PreTrainedModel

from distill.chain import student_setup
from distill.chain.plan import SAME_START, Plan, Student
from distill.chain.student_search import Pruner, Pruning, describe_general, describe_search, record_end
from distill.chain.task_run import BASELINE, TaskRun, data_digest
from distill.core.console import print_line, print_notice, stages
from distill.core.contracts import Data, EncodedSplits, Loader, Scores, Signal, Task
from distill.core.files import write_json
from distill.core.storage import entry_key, has_intact_entry, is_writable, new_entry
from distill.edge.bundle_files import weight_bits
from distill.kinds import multitask
from distill.kinds.multitask import join_scorings
from distill.kinds.scoring import Scoring
from distill.losses import Objective
from distill.losses.term import supervised_objective
from distill.models import compatibility
from distill.models.surgery.initialization import Origins
from distill.models.surgery.layers import Importance
from distill.models.vectors import vector_settings
from distill.models.wrappers import heads_of, share_encoder
from distill.records.run import Run
from distill.teachers.output_cache import Cached, digest_tensors, library_versions
from distill.teachers.prepared import PRETRAINED, TEACHER, PreparedTeacher
from distill.teachers.signal import earlier_decision, join_signals, outputs_for_training, run_live, teacher_logits
from distill.teachers.source import TeacherSource
from distill.training import fitting, lightning_callbacks
from distill.training.hyperparameters import describe_choices
from distill.training.lightning_callbacks import fake_quantized
from distill.training.module import NOTHING, DistillationModule, evaluate_splits, split_metrics


def make_student(
    student: Student, teacher: PreTrainedModel, task: Task, data: Data, origins: Origins
) -> tuple[PreTrainedModel, str | None]:
    """Returns a new student, and in words whether it was given other rows of embeddings than it had."""
    model, reads_tokens = student.make(teacher, task, data, origins), task.info.classes_are_tokens
    return model, compatibility.match_spare_rows(model, teacher, origins.tokenizer) if reads_tokens else None


def create_model(student: Student, tasks: Sequence[TaskRun], plan: Plan) -> PreTrainedModel:
    """Returns the student of all tasks with the weights of the plan's seed."""
    L.seed_everything(plan.seed, verbose=False)
    models: dict[str, PreTrainedModel] = {}
    for task_run in tasks:
        parent = task_run.parent
        origins = Origins(parent.tokenizer) if plan.dry_run else task_run.start
        models[task_run.name], change = make_student(student, parent.model, task_run.task, task_run.data, origins)
        if change is not None:
            print_notice(change)
    return share_encoder(models, name=student.name) if len(tasks) > 1 else models[tasks[0].name]


def untaught(student: Student, tasks: Sequence[TaskRun], plan: Plan) -> tuple[Student, Sequence[TaskRun]]:
    """Returns the student of the baseline, and the tasks with the teachers whose layers it starts from.

    It has nothing that was fitted to the teacher: neither a head nor changes of a general stage. With
    `baseline=same_start` it is the student itself.
    """
    if plan.baseline == SAME_START:
        return student, tasks
    student = replace(student, head=None, encoder_changes=None)
    return student, [task_run.untaught() for task_run in tasks]


def name_start(student: Student, tasks: Sequence[TaskRun], plan: Plan) -> str | None:
    """Returns the weights that the baseline starts from: `pretrained` or `teacher`; None if it copies none."""
    copies_nothing = student.option("path") is not None or "random" in (student.option("init"), student.option("start"))
    if isinstance(student.build, PreTrainedModel) or copies_nothing:
        return None
    starts = {task_run.teacher.start if task_run.own_parent is None else PRETRAINED for task_run in tasks}
    return TEACHER if plan.baseline == SAME_START else TEACHER if TEACHER in starts else starts.pop()


_FORMAT = 2
_METADATA = "baseline.json"
# What a run keeps of the training of its baseline but the checkpoint to resume from. There is a soup in some trainings.
_FILES = ("metrics.csv", "checkpoints/best.ckpt", "checkpoints/soup.ckpt")


@dataclass(frozen=True)
class SharedBaseline:
    """The baseline of a training: its weights, the log and the seconds, in the cache of all runs.

    Args:
        directory: the entry of the cache.
    """

    directory: Path

    @classmethod
    def of(cls, module: DistillationModule, prepared: "Prepared") -> "SharedBaseline":
        """Returns the entry of the baseline that `module` is before its training on labels alone."""
        plan, examples = prepared.plan, sorted(prepared.examples.items())
        start = {key: tensor.detach().cpu() for key, tensor in module.student.state_dict().items()}
        splits = [f"{name} {split.digest}" for name, split in examples if name in ("train", "dev")]
        data = [*(task_run.data.sha256 for task_run in prepared.tasks), *splits, f"sampling {plan.tasks.sampling}"]
        key = entry_key(
            "baselines", _FORMAT, library_versions(), digest_tensors(start), module.objective.record(),
            plan.trainer.key(), module.scoring.metric, [module.total_steps, module.frozen_steps], data,
            *filter(None, (vector_settings(model.config) for model in heads_of(module.student).values())),
        )  # fmt: skip
        return cls(plan.cache_dir / "baselines" / f"{plan.tasks.name}-{key[:16]}")

    def fetch(self, run_directory: Path) -> dict[str, Any] | None:
        """Copies what a run keeps into its directory; returns the record of the training, None without an entry."""
        if not has_intact_entry(self.directory, "the baseline", needed=False):
            return None
        _copy_files(self.directory, run_directory)
        print_line(f"Baseline: trained before, reused from {self.directory}")
        record: dict[str, Any] = json.loads((self.directory / _METADATA).read_text(encoding="utf-8"))
        return record

    def save(self, run_directory: Path, record: Mapping[str, Any]) -> None:
        """Caches the baseline that a run has trained, unless the cache is read-only."""
        if not is_writable(self.directory):
            return
        with new_entry(self.directory) as temporary:
            _copy_files(run_directory, temporary)
            write_json(temporary / _METADATA, dict(record))


def _copy_files(source: Path, target: Path) -> None:
    for name in _FILES:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


QAT_RATE = 0.2  # Of the learning rate of the training before.
FITTED, FITTED_DRY = 20_000, 64  # Examples of train that a term is fitted to, at most, and in a dry run.
ENOUGH_MASS = 0.98  # Of a teacher's probability, in the logits that are cached.


@dataclass(frozen=True)
class Prepared:
    """Everything that the training of one student needs, once the teachers are ready.

    Args:
        student: names the student, and creates one for another seed.
        model: the student with the weights of the plan's seed.
        tasks: those of the run, of which the student has a head each.
        examples: those of all tasks.
        teacher: those of all tasks.
        source: the teachers as they were given, with the settings of their cache.
    """

    plan: Plan
    run: Run
    student: Student
    model: PreTrainedModel
    tasks: Sequence[TaskRun]
    examples: EncodedSplits
    loaders: Mapping[str, Loader]
    teacher: PreparedTeacher
    source: TeacherSource

    @property
    def scoring(self) -> Scoring:
        """Returns the scoring of all tasks."""
        return join_scorings({task_run.name: task_run.scoring for task_run in self.tasks})

    @property
    def fitted(self) -> str | None:
        """The way in which the student was fitted to labels, in words; None for one that is trained."""
        return getattr(self.model, "fitted", None)

    def evaluate(self, student: PreTrainedModel, *, reference: PreTrainedModel | None = None) -> dict[str, Scores]:
        """Returns the scores of a student on every split that is scored."""
        return evaluate_splits(student, self.plan.tasks, self.scoring, self.loaders, reference=reference)

    def supervised_objective(self) -> Objective:
        """Returns the objective of the baseline: the terms of all tasks, which take the items that they suit.

        Raises:
            UserError: for data without labels.
        """
        terms = {key: term for task_run in self.tasks for key, term in task_run.data.terms.items()}
        return supervised_objective(terms, task=self.plan.tasks.name)

    def prepare_training(self, student: PreTrainedModel, signal: Signal | None = None) -> DistillationModule:
        """Returns the module to train, with the signal of the teachers, which is prepared if there is none yet."""
        objective = self.plan.objective
        signal = self._prepare_signal(student) if signal is None else signal
        mass = signal.mass() if isinstance(signal, Cached) else 1.0
        if objective.reads_teacher_logits and mass < ENOUGH_MASS:
            print_notice(
                f"the {self.source.cache.top_k} largest logits hold {mass:.1%} of the teacher's probability, and the "
                "student learns nothing of the rest: raise teacher.cache.top_k, or set teacher.cache.draws=50 or "
                "teacher.cache.enabled=false"
            )
        size = compatibility.encoder_size(next(iter(heads_of(student).values())))
        objective.connect(size, compatibility.encoder_size(self.teacher.model) if objective.needs_teacher else size)
        if objective.fits_teacher:
            most, train = FITTED_DRY if self.plan.dry_run else FITTED, self.examples["train"]
            objective.fit(teacher_logits(self.teacher, self.plan.tasks, train, signal, most=most))
        return DistillationModule(
            student=student, objective=objective, task=self.plan.tasks, scoring=self.scoring, signal=signal,
            settings=self.plan.trainer, steps_per_epoch=len(self.loaders["train"]),
        )  # fmt: skip

    def _prepare_signal(self, student: PreTrainedModel) -> Signal:
        """Returns the outputs of the teachers of all tasks, and records how sure the teachers are."""
        plan, train = self.plan, self.loaders["train"]
        if plan.dry_run:
            return run_live(self.teacher, plan.tasks, plan.objective, "nothing is computed in a dry run")
        last = self.run.directory / "checkpoints" / "last.ckpt"
        signals = []
        for task_run, epochs in zip(
            self.tasks, multitask.epochs_of_tasks(train, plan.trainer.total_steps(len(train))), strict=True
        ):
            signal = outputs_for_training(
                task_run.teacher, plan.objective, task_run.task, task_run.examples["train"], cache=self.source.cache,
                directory=plan.cache_dir / "outputs", epochs=epochs, student=student,
                earlier=earlier_decision(self.run.record, last) if plan.resume else None,
            )  # fmt: skip
            task_run.record_sureness(signal)
            signals.append(signal)
        return join_signals(signals, self.teacher, plan.tasks, plan.objective)

    def warn(self) -> None:
        """Prints notices of settings that limit what the training can reach."""
        student_setup.warn_of_stream(self.loaders["train"], self.plan.trainer)
        student_setup.warn_of_head(self.plan.objective)
        student_setup.warn_of_parts(self.plan.objective, self.plan.trainer)
        if self.fitted is None:
            student_setup.warn_of_long_texts(self.loaders["train"], self.plan.trainer)

    def describe(self, module: DistillationModule) -> list[tuple[str, object]]:
        """Returns the rows of the summary before training."""
        plan = self.plan
        fitted, loaders, settings = self.fitted, self.loaders, plan.trainer
        seconds = 0.0 if fitted else fitting.estimate_seconds(module, loaders["train"], loaders["dev"], settings)
        pruning = Pruning.of(self.student)
        seconds *= plan.seeds * pruning.trainings
        stages.expect(training=seconds, baseline=seconds if plan.baseline else 0.0)
        seconds *= 2 if plan.baseline else 1
        first, record = self.tasks[0], self.run.record
        search, stage = record.get("layer_search"), record.get("general")
        steps = student_setup.describe_training(module, settings, seconds, seeds=plan.seeds)
        rows = [
            *(("teacher", task_run.describe_teacher()) for task_run in self.tasks),
            ("student", student_setup.describe_student(first.parent.model, module.student)),
            ("vocabulary", first.describe_vocabulary(module.student)),
            *(row for task_run in self.tasks for row in task_run.describe_data()),
            ("embeddings", not fitted and fitting.choose_rows(module, loaders["train"], settings).describe()),
            ("batches", not fitted and student_setup.describe_batches(loaders["train"], settings)),
            ("teacher outputs", student_setup.describe_outputs(module.signal)),
            ("objective", f"{module.objective.name}: {', '.join(module.objective.names)}"),
            ("layers", describe_search(search) if search else None),
            ("general stage", describe_general(stage) if stage else None),
            ("pruning", pruning.describe() if pruning else None),
            ("training", f"no step: {fitted}" if fitted else steps),
            ("baseline", student_setup.describe_baseline(record["baseline_choice"])),
            *(row for task_run in self.tasks for row in task_run.describe_precision()),
            *describe_choices(plan.chosen),
        ]
        return [(name, value) for name, value in rows if value]

    def train_student(self, module: DistillationModule, loggers: Sequence[Logger]) -> dict[str, Scores]:
        """Trains, evaluates and saves the student; returns its scores on every split that is scored."""
        if self.fitted is None:
            training = training_record(self._fit(module, self.run.directory, title="student", logger=loggers), module)
        else:
            seconds = self.run.record.get("seconds", {}).get("training", 0.0)
            training = {"seconds": seconds, "steps": 0, "fitted": self.fitted}
        student = module.student.eval()
        reference = self.teacher.running() if self.scoring.compares_with_teacher else None
        student.to("cpu" if reference is None else self.plan.trainer.device())
        scores = self.evaluate(student, reference=reference)
        student.cpu()
        self.run.update(training=training | {"chosen": self.plan.chosen})
        for (task_run, task_scores), model in zip(
            self.scores_of_tasks(scores), heads_of(student).values(), strict=True
        ):
            task_run.record_student(model, task_scores, name=self.student.name)
            record_end(task_run.run, task_run.run.record["student"]["metrics"][task_run.scoring.metric])
        if self.is_joint:
            row = {"name": self.student.name, "parameters": compatibility.count_parameters(student)}
            self.run.update(student=row | {"metrics": split_metrics(self.scoring, scores)})
        return scores

    def untaught(self) -> "Prepared":
        """Returns the training of the baseline: with as many steps, on the hard labels alone.

        Its model is the same architecture with the layers of the encoder before its training on the task. The state of
        the random numbers stays as it is. Call it before the training of the student, which changes the callbacks.
        """
        prepared = self.without_unlabelled()
        with isolate_rng():
            model = create_model(*untaught(self.student, self.tasks, self.plan), self.plan)
        student, tasks = untaught(self.student, self.tasks, self.plan)  # Anew, with no second teacher in memory.
        callbacks = lightning_callbacks.copy_callbacks(self.plan.callbacks)
        plan = replace(prepared.plan, objective=self.supervised_objective(), callbacks=callbacks)
        run = Run(self.run.directory / BASELINE, self.run.record["baseline"] or {"metrics": {}}, parent=self.run)
        return replace(prepared, plan=plan, run=run, student=student, model=model, tasks=tasks)

    def train_baseline(self, baseline: "Prepared") -> dict[str, Scores]:
        """Trains the baseline that `untaught` returned; returns its scores on every split that is scored.

        It is pruned as the student is. One without callbacks that another run has trained is taken from the cache.
        """
        student, directory = baseline.model, baseline.run.directory
        if Pruning.of(self.student):
            self.run.record["baseline"] = baseline.run.record
            student = baseline.pruner(NOTHING, self.tasks[0].importance).run()
        module = baseline.prepare_training(student)
        start = name_start(self.student, self.tasks, self.plan)
        shared = None if baseline.plan.callbacks else SharedBaseline.of(module, baseline)
        record = None if shared is None else shared.fetch(directory)
        if record is None:
            fit = baseline._fit(module, directory, title="baseline", start=start)
            record = {"seconds": fit.seconds, "stopped_early": fit.stopped_early}
            if shared is not None:
                shared.save(directory, record)
        else:
            lightning_callbacks.load_best_weights(module, directory / "checkpoints")
        scores = self.evaluate(module.student.cpu())
        about = {**record, "start": start}
        pruned = {name: steps for name, steps in baseline.run.record.items() if name == "pruning"}
        self.run.update(baseline={"metrics": split_metrics(self.scoring, scores), **about, **pruned})
        for task_run, task_scores in self.scores_of_tasks(scores) if self.is_joint else ():
            task_run.run.update(baseline={"metrics": split_metrics(task_run.scoring, task_scores), **about})
        return scores

    def load_baseline(self) -> PreTrainedModel:
        """Returns the baseline with the weights that `train_baseline` has saved."""
        baseline = self.untaught()
        student = baseline.model
        if Pruning.of(self.student):
            student = baseline.pruner(NOTHING, self.tasks[0].importance).load_last()
        module = baseline.prepare_training(student)
        lightning_callbacks.load_best_weights(module, baseline.run.directory / "checkpoints")
        return module.student.cpu().eval()

    def without_unlabelled(self) -> "Prepared":
        """Returns what a training on the labelled rows alone needs, as long as this one.

        It has as many steps of the same size, and is evaluated after the same ones, although its epochs are shorter.
        """
        examples = multitask.without_unlabelled(self.examples)
        if examples is self.examples:
            return self
        trainer, whole = self.plan.trainer, len(self.loaders["train"])
        steps = trainer.total_steps(whole)
        loaders = multitask.all_task_loaders(examples, steps=steps, **trainer.batches())
        evaluations = trainer.evaluations * len(loaders["train"]) / whole
        trainer = replace(trainer, max_steps=steps, max_epochs=None, min_steps=None, evaluations=evaluations)
        return replace(self, plan=replace(self.plan, trainer=trainer), examples=examples, loaders=loaders)

    def retrain(self, student: PreTrainedModel) -> PreTrainedModel:
        """Quantization-aware distillation: a copy of the student, trained with the rounding errors of int8."""
        directory, export, rate = self.run.directory / "qat", self.plan.export, self.plan.trainer.learning_rate
        shutil.rmtree(directory, ignore_errors=True)
        prepared = self._once_more(
            resume=False, max_epochs=export.qat_epochs, max_steps=None, learning_rate=QAT_RATE * rate,
            frozen_embeddings=0.0,
        )  # fmt: skip
        module = prepared.prepare_training(copy.deepcopy(student).train())
        with fake_quantized(module.student, bits=min(map(weight_bits, export.targets()))):
            prepared._fit(module, directory, title="int8")
        return module.student.cpu().eval()

    def pruner(self, signal: Signal, importance: Callable[[], Importance]) -> Pruner:
        """Returns the pruner of the student in steps to the sizes of `model`, with trainings by `signal` between them.

        Args:
            importance: of the teacher's heads and inner neurons; those that the student loses first, its baseline does.
        """
        [task_run] = self.tasks
        steps = max(
            1, round(Pruning.of(self.student).share * self.plan.trainer.total_steps(len(self.loaders["train"])))
        )

        def train_between(student: PreTrainedModel, directory: Path, title: str) -> None:
            prepared = self._once_more(resume=self.plan.resume, max_epochs=None, max_steps=steps)
            prepared._fit(prepared.prepare_training(student.train(), signal), directory, title=title)

        own = replace(task_run, run=self.run)
        return Pruner(self.student, self.model, own, self.loaders["dev"], train_between, importance)

    def _once_more(self, *, resume: bool, **settings: Any) -> "Prepared":
        """Returns a training besides that of the student, with these settings of the trainer."""
        trainer = replace(self.plan.trainer, min_steps=None, soup=1, ema=0.0, patience=None, **settings)
        objective = copy.deepcopy(self.plan.objective)
        return replace(self, plan=replace(self.plan, trainer=trainer, objective=objective, resume=resume, callbacks=()))

    @property
    def is_joint(self) -> bool:
        """Returns whether the run has several tasks, whose record is more than that of each."""
        return len(self.tasks) > 1

    def scores_of_tasks(self, scores: Mapping[str, Scores]) -> Iterator[tuple[TaskRun, dict[str, Scores]]]:
        """Yields the tasks with their scores by split, of the scores of one model."""
        for number, task_run in enumerate(self.tasks):
            by_split = {split: split_scores.of_task(number, task_run.name) for split, split_scores in scores.items()}
            yield task_run, {split: of_task for split, of_task in by_split.items() if of_task is not None}

    def _fit(
        self,
        module: DistillationModule,
        directory: Path,
        *,
        title: str,
        logger: Sequence[Logger] | None = None,
        start: str | None = None,
    ) -> fitting.Fit:
        """Trains the module in a directory, whose metrics.csv has the metrics without a logger."""
        data = "-".join(data_digest(task_run.task, task_run.data, task_run.examples) for task_run in self.tasks)
        identity = {"data": data, "teacher": self.teacher.fingerprint, **({} if start is None else {"start": start})}
        return fitting.fit(
            module, self.loaders["train"], self.loaders["dev"], settings=self.plan.trainer, title=title,
            checkpoints=directory / "checkpoints", identity=identity, resume=self.plan.resume,
            logger=CSVLogger(str(directory), name="", version="") if logger is None else logger,
            callbacks=self.plan.callbacks,
        )  # fmt: skip


def training_record(fit: fitting.Fit, module: DistillationModule) -> dict[str, Any]:
    """The `training` of run.json."""
    seconds, cache, signal = module.teacher_seconds, None, module.signal
    if signal.bytes:
        seconds, cache = seconds + signal.seconds, {"hit": signal.seconds == 0, "bytes": signal.bytes}
    return {**asdict(fit), "teacher_seconds": seconds, "teacher_cache": cache}
