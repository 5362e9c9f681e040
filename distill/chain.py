"""The whole chain, free of Hydra: from a teacher to students that are trained, exported, checked and timed."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import lightning as L
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill import seeds
from distill.console import silence_libraries
from distill.contracts import EncodedSplits, Examples, Loader, Splits
from distill.data import batching
from distill.depth_ladder import DepthLadder
from distill.edge import Bundle
from distill.export.abstention import check_dev
from distill.export.bundle import check_calibration
from distill.export.vocabulary import check_cut
from distill.files import make_directory
from distill.models import checks
from distill.plan import Encoding, Plan, Student, check_plan, choose_for_text, choose_training
from distill.records.record import Run
from distill.stages import Stages, task_record
from distill.teaching import teacher as teaching
from distill.teaching.outputs import check_size
from distill.teaching.teacher import TeacherSource


def distill(source: TeacherSource, student: Student, plan: Plan, run: Run) -> None:
    """Distils a student in a run's directory, and keeps its record up to date after every stage.

    Raises:
        UserError: for options, data or models that do not fit, before anything is trained.
    """
    task = plan.task
    plan = choose_for_text(plan)
    check_plan(source, plan)
    seeds.check(plan)
    silence_libraries()
    make_directory(plan.cache_dir)
    found, substituted = teaching.locate(source, task)
    splits = task.read(plan.cache_dir)
    encode, ladder = Encoding(plan, splits), DepthLadder(student, plan, run)
    _check_splits(splits, plan)
    preparation = teaching.Preparation(
        task=task, splits=splits, cache_dir=plan.cache_dir, run_directory=run.directory,
        device=plan.trainer.device(), resume=plan.resume, dry_run=plan.dry_run,
        rehearse=lambda model, tokenizer, examples: _choose_student(
            ladder, plan, source, model, tokenizer, lambda: encode(tokenizer) if plan.augment else examples
        ),
    )  # fmt: skip
    teacher = teaching.prepare(found, preparation, requested=source.weights.name, substituted=substituted)
    student, examples = _choose_student(
        ladder, plan, source, teacher.model, teacher.tokenizer, lambda: encode(teacher.tokenizer)
    )
    model, start, loaders = _create(student, teacher.model, plan, examples)
    if isinstance(examples["train"], Examples):
        rows = splits.sizes().get("train", 0)
        steps, scored = len(loaders["train"]), len(cast(Examples, examples["dev"]))
        plan = choose_training(plan, model, examples=rows, steps_per_epoch=steps, scored=scored)
    if not plan.dry_run:
        teaching.score(teacher, task, examples, source=source, directory=plan.cache_dir / "outputs")
    run.update(task=task_record(task, splits, examples), teacher=teacher.record(), objective=plan.objective.record())
    stage = Stages(plan, run, student.name, splits, examples, loaders, teacher)
    further_plans = seeds.further_plans(plan)
    if not seeds.is_finished(run, plan):
        stage.distill(model, start, source, shows=True)
        if further_plans and not plan.dry_run:
            seeds.add(run, {**run.record, "seed": plan.seed})
    if plan.dry_run:
        return
    if further_plans:
        del model, start
        for seed_plan, seed_run in seeds.unfinished(run, further_plans):
            _distill_further(source, student, stage, seed_plan, seed_run)
        seeds.summarize(run, task)
    stage.close()


def _check_splits(splits: Splits, plan: Plan) -> None:
    """Raises UserError for data that is too little for an option, or that a baseline cannot learn from."""
    sizes = splits.sizes()
    check_dev(sizes.get("dev", 0), plan.export.abstain)
    if plan.exports and "train" in sizes:
        check_calibration(sizes["train"], plan.export)
    if plan.baseline:
        plan.task.supervised_terms()


def _distill_further(source: TeacherSource, student: Student, first: Stages, plan: Plan, run: Run) -> None:
    """Distils the student of a further seed from the teacher and the data of the first stage."""
    model, start, loaders = _create(student, first.teacher.model, plan, first.examples)
    replace(first, plan=plan, run=run, loaders=loaders).distill(model, start, source)


def _create(
    student: Student, teacher: PreTrainedModel, plan: Plan, examples: EncodedSplits
) -> tuple[PreTrainedModel, PreTrainedModel | None, dict[str, Loader]]:
    """Returns a student with the weights of the plan's seed, its copy for the baseline if there is one, and loaders."""
    L.seed_everything(plan.seed, verbose=False)
    model = student.make(teacher, plan.task)
    start = copy.deepcopy(model) if plan.baseline else None
    return model, start, batching.all_loaders(examples, steps=plan.trainer.max_steps, **plan.trainer.batches())


def _choose_student(
    ladder: DepthLadder,
    plan: Plan,
    source: TeacherSource,
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    encode: Callable[[], EncodedSplits],
) -> tuple[Student, EncodedSplits]:
    """Returns the student within the budget and the tokenized splits.

    Raises:
        UserError: for a student that cannot follow the teacher. This is called before the teacher is fine-tuned too.
    """
    student = ladder.choose(teacher, tokenizer)
    model = student.make(teacher, plan.task)
    _check_student(model, student.name, plan, teacher, tokenizer)
    examples = encode()
    if isinstance(examples["train"], Examples):
        checks.check_data(plan.objective, plan.task, examples["train"])
        check_size(
            plan.objective, plan.task, teacher, examples["train"], source.cache, student=model,
            epochs=plan.trainer.fixed_epochs,
        )  # fmt: skip
    return student, examples


def _check_student(
    student: PreTrainedModel, name: str, plan: Plan, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Raises UserError for a student that cannot follow the teacher."""
    checks.check_vocabulary(teacher, student, tokenizer)
    checks.check_length(student, tokenizer, plan.task.max_length, who="student")
    checks.check_outputs(plan.objective, teacher=teacher, student=student)
    checks.check_sizes(plan.objective, teacher=teacher, student=student)
    checks.check_head(student, teacher, name=name, likelihood=plan.task.likelihood)
    if plan.export.vocabulary == "task" and plan.exports:
        check_cut(tokenizer)


@dataclass(frozen=True)
class Result:
    """A finished distillation, as plain values.

    Attributes:
        directory: of the run.
        record: the content of run.json.
    """

    directory: Path
    record: dict[str, Any]

    @property
    def metrics(self) -> dict[str, float]:
        """The student's metrics in torch."""
        return cast(dict[str, float], self.record["student"]["metrics"])

    @property
    def retention(self) -> dict[str, float | None] | None:
        """The student's metric over the teacher's, in torch and of each exported file."""
        return cast("dict[str, float | None] | None", self.record["retention"])

    @property
    def summary(self) -> dict[str, Any]:
        """Mean and standard deviation of every metric over the seeds; empty for one seed."""
        return cast(dict[str, Any], self.record["summary"])

    @property
    def comparison(self) -> dict[str, Any]:
        """The student's difference from its baseline and its teacher, with 95% interval and p."""
        return cast(dict[str, Any], self.record["comparison"])

    @property
    def bundle(self) -> Bundle:
        """The exported student, with the recommended model.

        Raises:
            UserError: for a student that was not exported, or where no file passed its gate.
        """
        return Bundle(self.directory / "bundle")

    def report(self) -> str:
        """The text of report.md."""
        return (self.directory / "report.md").read_text(encoding="utf-8")
