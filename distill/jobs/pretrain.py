"""The job `pretrain`, and the job `finetune` on raw text, which train a language model without a teacher."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.chain import summary
from distill.chain.plan import SAME_START, check_export, check_hooks, check_terms
from distill.chain.task_run import save_model, task_record
from distill.chain.train import training_record
from distill.console import console, print_line, print_notice, silence_libraries
from distill.contracts import EncodedSplits, Loader, Scores
from distill.errors import OptionError, UserError
from distill.export.bundle import write_bundle
from distill.export.settings import ExportSettings
from distill.export.wheel import write_wheel
from distill.jobs import build
from distill.losses import Objective
from distill.models import checks
from distill.models.added_words import check_option, grow_vocabulary
from distill.models.heads import heads_of
from distill.models.loading import Start
from distill.records import report
from distill.records.record import Run
from distill.records.run_report import write_report
from distill.storage.cache import open_cache
from distill.storage.files import atomic_directory, write_text
from distill.tasks import CausalLM, MaskedLM
from distill.tasks.masked_lm import TextData
from distill.tasks.scoring import Scoring
from distill.teaching.constants import compare_with_constant, measure_constant
from distill.teaching.language_model import TextTraining, choose_growth, load_language_model, trained_model
from distill.teaching.source import TeacherSource, check_source
from distill.training import auto
from distill.training.evaluate import evaluate_splits
from distill.training.settings import TrainerSettings, check_budget, check_processes


def run_pretrain(config: DictConfig, run: Run) -> None:
    """Trains a language model and its vocabulary from random weights."""
    train_language_model(config, run, from_scratch=True)


def train_language_model(config: DictConfig, run: Run, *, from_scratch: bool) -> None:
    """Trains a language model on raw text with the `trainer`, and saves it in the run's directory."""
    given: TrainerSettings = build.instantiate(config.trainer)
    task: MaskedLM | CausalLM = build.instantiate(config.task)
    source, export, tracking = build.single_source(config), build.instantiate(config.export), build.tracking(config)
    _check(config, given, task, source, export, from_scratch=from_scratch)
    chosen = _chosen_objective(config, given, task)
    silence_libraries()
    open_cache(build.cache_dir(config))
    with run.timed("data"):
        data: Any = task.read(build.cache_dir(config))
    start = load_language_model(source.weights, task, data, seed=config.seed)
    growth = choose_growth(start.tokenizer, data, build.added_words(config))
    start = start if growth is None else grow_vocabulary(start, growth.words)
    settings = auto.for_text(given, auto.describe_fresh(start.model) if from_scratch else None)
    with run.timed("data"):
        training = TextTraining.prepare(
            task, data, start, objective=chosen, settings=settings, cache_dir=build.cache_dir(config)
        )
    data, dev, module = training.data, training.loaders["dev"], training.module
    run.update(task=task_record(task, data, training.examples), objective=module.objective.record())
    before = data.scoring.metrics(training.evaluate()) if start.fits else None
    about = _describe_text(task, data, training.examples, dev, run)
    _show(training, about, source.weights.resolved(), before)
    if config.dry_run:
        return
    with tracking.open(run.directory, metric=data.scoring.metric, selects=data.scoring.selects) as loggers:
        with run.timed("training"):
            fit = training.fit(
                run.directory / "checkpoints", loggers.lightning, title="teacher", resume=bool(config.resume),
                identity={"data": run.record["task"]["sha256"], "start": source.weights.fingerprint()},
            )  # fmt: skip
            scores = training.evaluate()
            losses = {"dev_losses": module.mean_losses(dev)}
        described = _teacher_record(source, start, from_scratch=from_scratch) | {"before": before}
        described |= {} if growth is None else {"vocabulary": growth.record()}
        run.update(
            training=training_record(fit, module) | losses, teacher=described | _measure(data.scoring, scores, losses)
        )
        directory = run.directory / "teacher" / "model"
        _save(module.student.eval().cpu(), start.tokenizer, directory)
        if export.enabled is True:
            _export(module.student, start.tokenizer, task, data, dev, run, export)
        loggers.log_results(run.record, run.directory / "bundle" if export.enabled is True else None)
    _close(run, directory)


def _teacher_record(source: TeacherSource, start: Start, *, from_scratch: bool) -> dict[str, Any]:
    """Returns the `teacher` of run.json without its metrics."""
    return {
        "requested": source.weights.name, "resolved": source.weights.resolved(), "substituted": False,
        "origin": "from random weights" if from_scratch else "adapted", "precision": source.weights.precision,
        "parameters": checks.count_parameters(trained_model(start.model)),
    }  # fmt: skip


def _check(
    config: DictConfig,
    settings: TrainerSettings,
    task: MaskedLM | CausalLM,
    source: TeacherSource,
    export: ExportSettings,
    *,
    from_scratch: bool,
) -> None:
    """Raises UserError for options that contradict each other, before anything is read."""
    if not task.info.raw_text:
        raise UserError(f"job={config.job.name} is not for task={task.info.name}: take a task over text, task=mlm")
    check_source(source, task)
    check_option(build.added_words(config), "adapt.add_words")
    if config.baseline in (True, SAME_START):
        raise UserError(
            f"baseline={str(config.baseline).lower()} is for other tasks than task={task.info.name}: "
            "+ablation=mlm_alone has no teacher"
        )
    if export.enabled is True:
        check_export(export, task)
        if task.info.pair:
            raise UserError("a bundle fills the masks of single texts: set task.pair=null, or export.enabled=auto")
    if task.info.replaces_tokens and settings.strategy == "fsdp":
        raise OptionError("trainer.strategy", "fsdp", f"ddp, because the models of task={task.info.name} share weights")
    check_processes(settings, "trainer")
    check_budget(settings.batch_tokens, task.info.max_length, "trainer")
    if source.weights.is_new != from_scratch:
        raise UserError(
            f"job=pretrain begins with random weights, and teacher {config.teacher.name} is trained already: "
            "job=finetune trains it further"
            if from_scratch
            else f"job=finetune begins with a trained model, and teacher {config.teacher.name} has random weights: "
            "job=pretrain trains it"
        )


def _describe_text(
    task: MaskedLM | CausalLM, data: TextData, examples: EncodedSplits, dev: Loader, run: Run
) -> dict[str, str]:
    """Returns the rows of the summary on the text: its size, its lengths, and what token frequencies reach on dev."""
    rows = {
        "task": summary.describe_task(task, run.record["task"], data),
        "tokens": summary.describe_lengths(examples, task.info.max_length, max_target=task.info.max_target),
    }
    unigram = measure_constant(data.scoring, task, dev)
    return rows if unigram is None else rows | {"unigram": summary.describe_unigram(unigram)}


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


def _chosen_objective(config: DictConfig, settings: TrainerSettings, task: MaskedLM | CausalLM) -> Objective | None:
    """Returns the objective that the user chose, None for the terms of the task.

    Raises:
        UserError: if it has a term that needs a teacher, or cannot learn the task.
    """
    objective = build.chosen_objective(config)
    if objective is None:
        return None
    without = "leave out objective= for the terms of the task"
    check_terms(objective, task.info, alternative=without)
    taught = objective.names_where(lambda term: term.needs_teacher)
    if taught:
        raise UserError(
            f"objective {objective.name} has the term {', '.join(taught)}, which learns from a teacher, and "
            f"job={config.job.name} has none: {without}, or set objective.terms.{taught[0]}.weight=0"
        )
    if unread := task.info.label_columns - {"labels"} - objective.label_columns:
        raise UserError(
            f"task.pair={task.settings.pair} gives pairs of segments with a label ({', '.join(unread)}), and no term "
            f"of objective {objective.name} learns from it: set task.pair=null, or {without}"
        )
    check_hooks(objective, settings)
    return objective


def _close(run: Run, model: Path) -> None:
    """Writes the report and prints where everything is."""
    page = write_report(run.directory, {**run.record, "status": "finished"})
    console.print()
    console.print(report.summary_table(run.record))
    print_line(f"Report  {page}")
    print_line(f"Model   {model}")
    if run.record["export"]:
        bundle = run.directory / "bundle"
        print_line(f"Bundle  {bundle}")
        print_line(f"Try it  python -m distill.edge {bundle} {report.example_argument(run.record['task'])}")


def _export(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: MaskedLM | CausalLM,
    data: TextData,
    dev: Loader,
    run: Run,
    settings: ExportSettings,
) -> None:
    """Writes the bundle of the trained model, with its model card."""
    scores = evaluate_splits(model, task, data.scoring, {"dev": dev})
    with run.timed("export"), atomic_directory(run.directory / "bundle") as directory:
        exported = write_bundle(
            directory, model=model, tokenizer=tokenizer, task=task, splits=data, scores=scores, settings=settings
        )
        run.update(export=exported.formats, attempts=exported.attempts)
        write_text(directory / "README.md", report.render_model_card(run.record, data.labels))
        write_wheel(run.directory)


def _describe_models(training: TextTraining, name: str) -> str:
    """Describes the model and, after it, one that is trained together with it."""
    model, *further = heads_of(training.module.student).items()
    sizes = [f"{name}, {checks.count_parameters(model[1]) / 1e6:.1f} M parameters"]
    total = checks.count_parameters(training.module.student)
    sizes += [f"with its {key} {total / 1e6:.1f} M" for key, _ in further]
    return ", ".join(sizes)


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Saves the model, and those that were trained together with it in folders of their names beside its files."""
    first, *further = heads_of(model).items()
    save_model(first[1], tokenizer, directory)
    for name, other in further:
        save_model(other, tokenizer, directory / name)


def _show(training: TextTraining, about: Mapping[str, str], name: str, before: dict[str, float] | None) -> None:
    """Prints the summary before training."""
    module, start, train, settings = training.module, training.start, training.loaders["train"], training.settings
    metric = module.scoring.metric
    summary.show(
        [
            ("model", _describe_models(training, name)),
            ("vocabulary", f"{len(start.tokenizer):,} tokens"),
            *([("before", f"{metric} {before[metric]:.2f} on dev")] if before else []),
            *about.items(),
            *summary.describe_embeddings(module, train, settings),
            ("batches", summary.describe_batches(train, settings)),
            ("objective", f"{module.objective.name}: {', '.join(module.objective.names)}"),
            ("training", summary.describe_training(module, settings, training.estimate_seconds())),
        ]
    )
    summary.warn_of_stream(train, settings)
