"""The whole program, free of Hydra: from a teacher to students that are trained, exported, checked and timed."""

from contextlib import ExitStack
from dataclasses import replace

from distill.chain import deliver, seeds
from distill.chain.plan import Plan, Student
from distill.chain.prepare import prepare, prepare_seed
from distill.chain.summary import PlanSummary
from distill.chain.train import Prepared, train
from distill.records.record import Run
from distill.teaching.source import TeacherSource


def distill(source: TeacherSource, student: Student, plan: Plan, run: Run) -> None:
    """Distils a student in a run's directory, and keeps its record up to date after every stage.

    Raises:
        UserError: for options, data or models that do not fit, before anything is trained.
    """
    first = prepare(source, student, plan, run)
    further_plans = seeds.further_plans(first.plan)  # Before the first training, which fits the objective.
    if not seeds.is_finished(run, first.plan):
        _distill_student(first, shows=True)
        if further_plans and not plan.dry_run:
            seeds.add(run, {**run.record, "seed": plan.seed})
    if plan.dry_run:
        return
    for seed_plan, seed_run in seeds.unfinished(run, further_plans):
        _distill_student(prepare_seed(first, seed_plan, seed_run))
    if further_plans:
        seeds.summarize(run)
    deliver.deliver_baselines(first)
    deliver.close(first)


def foresee(source: TeacherSource, student: Student, plan: Plan, run: Run) -> PlanSummary:
    """Checks and estimates everything as a dry run does, and returns the summary that is printed before training.

    Raises:
        UserError: for options, data or models that do not fit.
    """
    prepared = prepare(source, student, replace(plan, dry_run=True), run)
    rows = prepared.describe(prepared.prepare_training(prepared.model))
    prepared.warn()
    return PlanSummary(tuple((name, str(value)) for name, value in rows))


def _distill_student(prepared: Prepared, *, shows: bool = False) -> None:
    """Trains and delivers the student of one seed."""
    with ExitStack() as stack:
        trained = train(prepared, stack, shows=shows)
        if trained is not None:
            deliver.deliver(trained)
