"""Everything a distillation is made of, as plain values, and the checks of values that exclude each other."""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger
from transformers import PreTrainedModel

from distill.benchmark.settings import BenchmarkSettings
from distill.contracts import Task
from distill.errors import UserError, first_line
from distill.export.settings import ExportSettings
from distill.losses import Cosine, HardLabels, MaskedLanguageModelling, Objective, SoftTargets
from distill.teaching.outputs import check_cache
from distill.teaching.teacher import TeacherSource
from distill.training.settings import TrainerSettings, check_budget, check_processes

# Builds a student; `task` is given to a function that has a parameter of this name.
StudentFactory = Callable[..., PreTrainedModel]


@dataclass(frozen=True)
class Plan:
    """Everything that a distillation is made of besides its teacher and student, as plain values.

    Args:
        seed: sets the student's fresh weights.
        seeds: number of students, with the seeds `seed`, `seed` + 1, ... of the weights and of the training.
        baseline: trains the same student from the same start without the teacher too.
        cache_dir: holds what runs share: tokens, fine-tuned teachers, teacher outputs.
        resume: goes on from the run's checkpoints.
        dry_run: checks and estimates everything and trains nothing.
        logger: makes the logger of the training in a directory.
    """

    task: Task
    objective: Objective
    trainer: TrainerSettings
    export: ExportSettings
    benchmark: BenchmarkSettings
    cache_dir: Path
    seed: int = 0
    seeds: int = 1
    baseline: bool = False
    resume: bool = False
    dry_run: bool = False
    logger: Callable[[Path], Logger] = field(default=lambda directory: CSVLogger(str(directory), name="", version=""))


@dataclass(frozen=True)
class Student:
    """A student and its name in records: a loaded model, or a function of the teacher."""

    name: str
    build: StudentFactory | PreTrainedModel

    def make(self, teacher: PreTrainedModel, task: Task) -> PreTrainedModel:
        """Returns the student before its training; of a loaded model a copy.

        Raises:
            UserError: for options that its function does not accept.
        """
        if isinstance(self.build, PreTrainedModel):
            return copy.deepcopy(self.build).float().train()
        takes_task = "task" in inspect.signature(self.build).parameters
        try:
            return self.build(teacher, task=task) if takes_task else self.build(teacher)
        except (TypeError, ValueError) as error:
            raise UserError(f"student {self.name} cannot be built: {first_line(error)}") from error


def default_objective(task: Task) -> Objective:
    """DistilBERT's triple loss (arXiv 1910.01108), with hard labels in place of masked tokens for other tasks."""
    hard: dict[str, Any] = (
        {"mlm": MaskedLanguageModelling(weight=2.0)} if task.over_vocabulary else {"hard": HardLabels(weight=2.0)}
    )
    terms = {"soft": SoftTargets(temperature=2.0, weight=5.0), **hard, "cosine": Cosine(weight=1.0)}
    return Objective(name="language_model" if task.over_vocabulary else "distilbert", terms=terms)


def check_plan(source: TeacherSource, plan: Plan) -> None:
    """Raises UserError for options that contradict each other, before anything is read."""
    task, objective = plan.task, plan.objective
    if task.over_vocabulary and plan.baseline:
        raise UserError(f"baseline=true is for other tasks than task={task.name}: +ablation=mlm_alone has no teacher")
    if task.over_vocabulary and task.pair:
        raise UserError(f"task.pair is for job=pretrain: a student of task={task.name} learns from tokens alone")
    unsuited = objective.unsuited(likelihood=task.likelihood, over_vocabulary=task.over_vocabulary)
    if unsuited:
        raise UserError(
            f"objective {objective.name} has the term {', '.join(unsuited)}, which cannot learn task {task.name} "
            f"({task.kind}): take another objective, or set objective.terms.{unsuited[0]}.weight=0"
        )
    check_budget(plan.trainer.batch_tokens, task.max_length, "trainer")
    check_processes(plan.trainer, "trainer")
    check_cache(source.cache, objective, task)
