"""The jobs `distill`, `finetune` and `pretrain`, which train models."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from distill.chain import breakdowns, student_setup
from distill.chain import distillation as chain
from distill.chain.breakdowns import break_down_scores_by_length
from distill.chain.plan import check_export, check_hooks, check_terms, check_text_baseline
from distill.chain.task_run import save_model, task_record
from distill.chain.train import training_record
from distill.core.console import console, print_line, print_notice, silence_libraries
from distill.core.contracts import Scores
from distill.core.errors import OptionError, UserError
from distill.core.files import atomic_directory, write_text
from distill.core.storage import open_cache
from distill.export.bundle_writer import write_bundle
from distill.export.quantization import ExportSettings
from distill.export.wheel import write_wheel
from distill.jobs import execution
from distill.kinds import CausalLM, MaskedLM
from distill.kinds.multitask import Tasks
from distill.kinds.scoring import Scoring
from distill.losses import Objective
from distill.models import compatibility
from distill.models.surgery.embeddings import check_option, grow_vocabulary
from distill.models.wrappers import heads_of
from distill.records import report
from distill.records.pages import write_report
from distill.records.prediction_analysis import write_predictions
from distill.records.run import Run
from distill.teachers import preparation as teaching
from distill.teachers.language_modeling import TextTraining, choose_growth, load_language_model, trained_model
from distill.teachers.prepared import compare_with_constant, measure_constant
from distill.teachers.source import TeacherSource, check_source, locate
from distill.training import fitting, hyperparameters
from distill.training.hyperparameters import TrainerSettings, check_budget, check_processes
from distill.training.module import evaluate_splits


def run_distill(config: DictConfig, run: Run) -> None:
    """Distils the configured student in the run's directory."""
    # Checks the options before reading any data.
    plan = execution.build_plan(config)
    chain.distill(execution.build_source(config), execution.build_student(config), plan, run)


def run_pretrain(config: DictConfig, run: Run) -> None:
    """Trains a language model and its vocabulary from random weights."""
    TextJob.read(config, run, from_scratch=True).train()


@dataclasses.dataclass(frozen=True)
class TextJob:
    """The training of a language model on raw text with the `trainer`, which is saved in the run's directory."""

    config: DictConfig
    run: Run
    settings: TrainerSettings
    task: MaskedLM | CausalLM
    source: TeacherSource
    export: ExportSettings
    from_scratch: bool

    @classmethod
    def read(cls, config: DictConfig, run: Run, *, from_scratch: bool) -> "TextJob":
        """Creates the objects of the job."""
        settings, task = execution.instantiate(config.trainer), execution.instantiate(config.task)
        source, export = execution.build_single_source(config), execution.instantiate(config.export)
        return cls(config, run, settings, task, source, export, from_scratch)

    def train(self) -> None:
        """Trains the model, and saves it with its report and its bundle."""
        config, run, task, source = self.config, self.run, self.task, self.source
        tracking, cache_dir = execution.build_tracking(config), execution.cache_dir(config)
        self._check()
        chosen = self._chosen_objective()
        silence_libraries()
        open_cache(cache_dir)
        with run.timed("data"):
            data: Any = task.read(cache_dir)
        start = load_language_model(source.weights, task, data, seed=config.seed)
        growth = choose_growth(start.tokenizer, data, execution.added_words(config))
        start = start if growth is None else grow_vocabulary(start, growth.words)
        fresh = hyperparameters.describe_fresh(start.model) if self.from_scratch else None
        settings = hyperparameters.for_text(self.settings, fresh)
        with run.timed("data"):
            training = TextTraining.prepare(task, data, start, objective=chosen, settings=settings, cache_dir=cache_dir)
        scoring, module = training.data.scoring, training.module
        run.update(task=task_record(task, training.data, training.examples), objective=module.objective.record())
        before = training.measure() if start.fits else None
        self._show(training, before)
        if config.dry_run:
            return
        directory, bundle = run.directory / "teacher" / "model", run.directory / "bundle"
        with tracking.open(run.directory, metric=scoring.metric, selects=scoring.selects) as loggers:
            with run.timed("training"):
                fit = training.fit(
                    run.directory / "checkpoints", logger=loggers.lightning, title="teacher",
                    resume=bool(config.resume),
                    identity={"data": run.record["task"]["sha256"], "start": source.weights.fingerprint()},
                )  # fmt: skip
                scores = training.evaluate()
                losses = {"dev_losses": module.mean_losses(training.loaders["dev"])}
            teacher = {
                "requested": source.weights.name, "resolved": source.weights.resolved(), "substituted": False,
                "origin": "from random weights" if self.from_scratch else "adapted",
                "precision": source.weights.precision,
                "parameters": compatibility.count_parameters(trained_model(start.model)), "before": before,
                **({} if growth is None else {"vocabulary": growth.record()}),
            }  # fmt: skip
            run.update(
                training=training_record(fit, module) | losses, teacher=teacher | _measure(scoring, scores, losses)
            )
            first, *further = heads_of(module.student.eval().cpu()).items()
            for name, model in (("", first[1]), *further):  # Those trained with it are in folders of their names.
                save_model(model, start.tokenizer, directory / name)
            if self.export.enabled is True:
                self._export(training)
            loggers.log_results(run.record, bundle if self.export.enabled is True else None)
        self._close(directory, bundle)

    def _close(self, model: Path, bundle: Path) -> None:
        """Writes the report, and prints where everything is."""
        run = self.run
        page = write_report(run.directory, {**run.record, "status": "finished"})
        console.print()
        console.print(report.summary_table(run.record))
        print_line(f"Report  {page}")
        print_line(f"Model   {model}")
        if run.record["export"]:
            print_line(f"Bundle  {bundle}")
            print_line(f"Try it  python -m distill.edge {bundle} {report.example_argument(run.record['task'])}")

    def _check(self) -> None:
        """Raises UserError for options that contradict each other, before anything is read."""
        settings, info, teacher = self.settings, self.task.info, self.config.teacher.name
        check_source(self.source, self.task)
        check_option(execution.added_words(self.config), "adapt.add_words")
        check_text_baseline(self.config.baseline, info)
        if self.export.enabled is True:
            check_export(self.export, self.task)
            if info.pair:
                raise UserError("a bundle fills the masks of single texts: set task.pair=null, or export.enabled=auto")
        if info.replaces_tokens and settings.strategy == "fsdp":
            raise OptionError("trainer.strategy", "fsdp", f"ddp, because the models of task={info.name} share weights")
        check_processes(settings, "trainer")
        check_budget(settings.batch_tokens, info.max_length, "trainer")
        if self.source.weights.is_new != self.from_scratch:
            raise UserError(
                f"job=pretrain begins with random weights, and teacher {teacher} is trained already: "
                "job=finetune trains it further"
                if self.from_scratch
                else f"job=finetune begins with a trained model, and teacher {teacher} has random weights: "
                "job=pretrain trains it"
            )

    def _chosen_objective(self) -> Objective | None:
        """Returns the objective that the user chose, None for the terms of the task.

        Raises:
            UserError: if it has a term that needs a teacher, or cannot learn the task.
        """
        objective, task = execution.chosen_objective(self.config), self.task
        if objective is None:
            return None
        without = "leave out objective= for the terms of the task"
        check_terms(objective, task.info, alternative=without)
        taught = objective.names_where(lambda term: term.needs_teacher)
        if taught:
            raise UserError(
                f"objective {objective.name} has the term {', '.join(taught)}, which learns from a teacher, and "
                f"job={self.config.job.name} has none: {without}, or set objective.terms.{taught[0]}.weight=0"
            )
        if unread := task.info.label_columns - {"labels"} - objective.label_columns:
            raise UserError(
                f"task.pair={task.settings.pair} gives pairs of segments with a label ({', '.join(unread)}), and no "
                f"term of objective {objective.name} learns from it: set task.pair=null, or {without}"
            )
        check_hooks(objective, self.settings)
        return objective

    def _show(self, training: TextTraining, before: dict[str, float] | None) -> None:
        """Prints the summary before training: the model, the text, and what token frequencies reach on dev."""
        task, module, settings, train = self.task, training.module, training.settings, training.loaders["train"]
        unigram = measure_constant(training.data.scoring, task, training.loaders["dev"])
        metric, (model, *further) = module.scoring.metric, heads_of(module.student).items()
        total = compatibility.count_parameters(module.student) / 1e6
        sizes = [
            f"{self.source.weights.resolved()}, {compatibility.count_parameters(model[1]) / 1e6:.1f} M parameters",
            *(f"with its {key} {total:.1f} M" for key, _ in further),  # Models that are trained together with it.
        ]
        lengths = student_setup.describe_lengths(
            training.examples, task.info.max_length, max_target=task.info.max_target
        )
        embeddings = fitting.choose_rows(module, train, settings).describe()
        student_setup.show_summary(
            [
                ("model", ", ".join(sizes)),
                ("vocabulary", f"{len(training.start.tokenizer):,} tokens"),
                *([("before", f"{metric} {before[metric]:.2f} on dev")] if before else []),
                ("task", student_setup.describe_task(task, self.run.record["task"], training.data)),
                ("tokens", lengths),
                *([] if unigram is None else [("unigram", student_setup.describe_unigram(unigram))]),
                *([("embeddings", embeddings)] if embeddings else []),
                ("batches", student_setup.describe_batches(train, settings)),
                ("objective", f"{module.objective.name}: {', '.join(module.objective.names)}"),
                ("training", student_setup.describe_training(module, settings, training.estimate_seconds())),
            ]
        )
        student_setup.warn_of_stream(train, settings)

    def _export(self, training: TextTraining) -> None:
        """Writes the bundle of the trained model, with its model card."""
        run, model, data = self.run, training.module.student, training.data
        scores = evaluate_splits(model, self.task, data.scoring, {"dev": training.loaders["dev"]})
        with run.timed("export"), atomic_directory(run.directory / "bundle") as directory:
            exported = write_bundle(
                directory, model=model, tokenizer=training.start.tokenizer, task=self.task, splits=data,
                scores=scores, settings=self.export,
            )  # fmt: skip
            run.update(export=exported.formats, attempts=exported.attempts)
            write_text(directory / "README.md", report.render_model_card(run.record, data.labels))
            write_wheel(run.directory)


def _measure(scoring: Scoring, scores: Scores, losses: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Returns the metrics of the model on dev beside those of token frequencies, and prints them.

    Args:
        losses: `dev_losses`, the mean of each term.
    """
    record: dict[str, Any] = {"metrics": scoring.metrics(scores)}
    terms = ", ".join(f"{name} {value:.3f}" for name, value in losses["dev_losses"].items())
    comparison = compare_with_constant(scoring, {"dev": scores})
    if comparison is None:
        print_line(f"Losses on dev: {terms}")
        return record
    print_line(f"Losses on dev: {terms}; by {comparison.answer} {comparison.metrics['loss']:.3f}")
    if comparison.weakness is not None:
        print_notice(f"the model {comparison.weakness}: it has not learned yet, train it longer")
    return record | comparison.record()


def run_finetune(config: DictConfig, run: Run) -> None:
    """Fine-tunes the teacher if its head does not fit. On raw text, trains a pre-trained model further."""
    tasks = Tasks.of(execution.instantiate(config.task))
    if len(tasks) > 1:
        raise UserError(
            f"job=finetune trains a teacher for one task, and task={tasks.name} has {', '.join(tasks)}: run it for "
            "each, or leave it to job=distill"
        )
    [task] = tasks.values()
    if task.info.raw_text:
        TextJob.read(config, run, from_scratch=False).train()
        return
    silence_libraries()
    requested, cache_dir = execution.build_single_source(config), execution.cache_dir(config)
    check_source(requested, task)
    settings: TrainerSettings = requested.finetune or execution.instantiate(config.trainer)
    open_cache(cache_dir)
    with run.timed("data"):
        data = task.read(cache_dir)
    source = locate(requested, task)
    preparation = teaching.Preparation(
        task=task, splits=data, cache_dir=cache_dir, run_directory=run.directory, device=settings.device(),
        resume=bool(config.resume), dry_run=config.dry_run,
    )  # fmt: skip
    with run.timed("teacher"):
        teacher = teaching.prepare(source, preparation)
    if config.dry_run:
        print_line(f"Teacher {teacher.resolved} ({teacher.origin})")
        return
    with run.timed("data"):
        examples = task.encode(data, teacher.tokenizer, cache_dir)
    with run.timed("teacher"):
        teaching.score(teacher, task, data.scoring, examples, source=source, directory=cache_dir / "outputs")
    by_length = break_down_scores_by_length({"teacher": teacher.scores}, data, teacher.tokenizer)
    parts = breakdowns.record_parts(data.scoring, {"teacher": teacher.scores})
    run.update(task=task_record(task, data, examples), teacher=teacher.record(), lengths=by_length, parts=parts)
    write_predictions(
        run.directory, {"teacher": teacher.scores}, splits=data, settings=execution.instantiate(config.record)
    )
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in teacher.metrics.items())
    print_line(f"Teacher {teacher.resolved} on {task.info.name} ({teacher.origin}): dev {metrics}")
    directory = run.directory / "teacher" / "model"
    save_model(teacher.model, teacher.tokenizer, directory)
    print_line(f"Report in {write_report(run.directory, {**run.record, 'status': 'finished'})}")
    print_line(f"Saved in {directory}")
