"""Everything a distillation is made of, as plain values, and the checks of values that exclude each other."""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedModel

from distill.benchmark.budget import Budget
from distill.benchmark.settings import BenchmarkSettings
from distill.console import print_notice
from distill.contracts import SeveralTasks, Task, tasks_of
from distill.data.augmentation import Augmentation, AutoAugmentation
from distill.edge.decode import DECODERS
from distill.errors import OptionError, UserError, first_line
from distill.export.abstention import check_abstention
from distill.export.formats import check_formats
from distill.export.settings import ExportSettings
from distill.losses import (
    Cosine,
    EmbeddingMSE,
    HardLabels,
    MaskedLanguageModelling,
    Objective,
    PairwiseSimilarity,
    SoftTargets,
    Term,
)
from distill.models.loading import start_head
from distill.models.pooling import configure
from distill.options import show_value
from distill.records.loggers import Tracking
from distill.records.settings import RecordSettings
from distill.teaching.outputs import check_cache
from distill.teaching.source import TeacherSource, check_features
from distill.training import auto
from distill.training.settings import AUTO, TrainerSettings, check_budget, check_processes

# Builds a student; `task` is given to a function that has a parameter of this name.
StudentFactory = Callable[..., PreTrainedModel]


@dataclass(frozen=True)
class Plan:
    """Everything that a distillation is made of besides its teacher and student, as plain values.

    Args:
        task: the task, or in its place `contracts.SeveralTasks`.
        seed: sets the student's fresh weights.
        seeds: number of students, with the seeds `seed`, `seed` + 1, ... of the weights and of the training.
        baseline: whether to train the same student from the same start without the teacher too; `auto` does on small
            data if it is a small share of the run.
        budget: limits of the exported student, which choose its depth.
        record: determines what the run's directory holds.
        cache_dir: holds what runs share: tokens, fine-tuned teachers, teacher outputs.
        resume: goes on from the run's checkpoints.
        dry_run: checks and estimates everything and trains nothing.
        chosen: values of the trainer's options that were `auto`, with their reasons.
        tracking: the loggers of the training.
        augment: makes changed copies of the training texts, which the teacher labels; an `AutoAugmentation` where the
            task chooses its texts without labels, as many as suit the data.
    """

    task: Task
    objective: Objective
    trainer: TrainerSettings
    export: ExportSettings
    benchmark: BenchmarkSettings
    cache_dir: Path
    budget: Budget = field(default_factory=Budget)
    record: RecordSettings = field(default_factory=RecordSettings)
    seed: int = 0
    seeds: int = 1
    baseline: bool | Literal["auto"] = False
    resume: bool = False
    dry_run: bool = False
    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)
    tracking: Tracking = field(default_factory=Tracking)
    augment: Augmentation | AutoAugmentation | None = None

    @property
    def exports(self) -> bool:
        """Returns whether the student is exported."""
        return self.export.enabled is not False


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
        model = self._make(teacher, task)
        configure(model, task.model_settings)
        inherited = getattr(model, "inherited", None)  # Of a loaded model nothing is new.
        if task.head_bias is not None and inherited is not None:
            start_head(model, task.head_bias, inherited=inherited)
        return model

    def _make(self, teacher: PreTrainedModel, task: Task) -> PreTrainedModel:
        if isinstance(self.build, PreTrainedModel):
            return copy.deepcopy(self.build).float().train()
        takes_task = "task" in inspect.signature(self.build).parameters
        try:
            return self.build(teacher, task=task) if takes_task else self.build(teacher)
        except (TypeError, ValueError) as error:
            raise UserError(f"student {self.name} cannot be built: {first_line(error)}") from error


def default_objective(task: Task | SeveralTasks) -> Objective:
    """DistilBERT's triple loss (arXiv 1910.01108), with hard labels in place of masked tokens for other tasks.

    For vectors of texts it is the teacher's vectors and their similarities. Several tasks have the same one.
    """
    first = next(iter(tasks_of(task).values()))
    if first.likelihood == "vector":
        vectors: dict[str, Term] = {"embedding": EmbeddingMSE(), "similarity": PairwiseSimilarity()}
        return Objective(name="embedding", terms=vectors)
    hard: dict[str, Any] = (
        {"mlm": MaskedLanguageModelling(weight=2.0)} if first.over_vocabulary else {"hard": HardLabels(weight=2.0)}
    )
    terms = {"soft": SoftTargets(temperature=2.0, weight=5.0), **hard, "cosine": Cosine(weight=1.0)}
    return Objective(name="language_model" if first.over_vocabulary else "distilbert", terms=terms)


def choose_training(plan: Plan, student: PreTrainedModel, *, examples: int, steps_per_epoch: int, scored: int) -> Plan:
    """Returns the plan with a value for every option of the trainer that is `auto`, as `auto.Facts` describes them."""
    if not plan.trainer.unresolved():
        return plan
    facts = auto.Facts(examples, steps_per_epoch, *auto.describe_student(student), scored=scored)
    trainer, chosen = auto.resolve(plan.trainer, facts)
    return replace(plan, trainer=trainer, chosen=chosen)


def choose_for_text(plan: Plan) -> Plan:
    """Returns the plan with a value for every option of the trainer that is `auto`, if the task is on raw text."""
    return replace(plan, trainer=auto.for_text(plan.trainer)) if plan.task.over_vocabulary else plan


def choose_augmentation(plan: Plan) -> Plan:
    """Returns the plan without an automatic augmentation where it has no use, and the plan of a task in any case.

    It needs a task that chooses its texts without labels, and an objective that learns from the teacher.
    """
    if not isinstance(plan.augment, AutoAugmentation):
        return plan
    tasks = tasks_of(plan.task)
    has_use = len(tasks) == 1 and all(task.can_augment and task.auto_unlabelled for task in tasks.values())
    return plan if has_use and plan.objective.needs_teacher else replace(plan, augment=None)


def check_plan(source: TeacherSource, plan: Plan) -> None:
    """Raises UserError for options that contradict each other, before anything is read."""
    tasks = tasks_of(plan.task)
    if plan.baseline not in (True, False, AUTO):
        raise OptionError("baseline", show_value(plan.baseline), "auto, true or false")
    if len(tasks) > 1:
        _check_several(plan)
    if source.by_task and source.by_task.keys() != tasks.keys():
        expected = ", ".join(tasks) if len(tasks) > 1 else f"one path, because task={plan.task.name} is one task"
        raise OptionError("teacher.paths", show_value(list(source.by_task)), f"a directory for each task: {expected}")
    for name, task in tasks.items():
        _check_task(source.of_task(name), replace(plan, task=task))
    check_processes(plan.trainer, "trainer")
    check_hooks(plan.objective, plan.trainer)


def _check_several(plan: Plan) -> None:
    """Raises UserError for options that a run on several tasks does not have."""
    refused = {
        "budget": (plan.budget.is_set, "chooses the depth of a student with one head"),
        "augment": (plan.augment is not None, "changes the texts of one task"),
        "bank": (any(task.bank is not None for task in tasks_of(plan.task).values()), "is for the texts of one task"),
        "trainer.devices": (plan.trainer.processes() > 1, "would give each process another head"),
        f"trainer.strategy={plan.trainer.strategy}": (
            plan.trainer.strategy in ("fsdp", "ray"),
            "is for several processes",
        ),
    }
    for option, (is_set, reason) in refused.items():
        if is_set:
            raise UserError(f"{option} {reason}, and task={plan.task.name} has several: leave it out")


def _check_task(source: TeacherSource, plan: Plan) -> None:
    """Raises UserError for options that contradict each other in a plan for one task."""
    task, objective = plan.task, plan.objective
    if task.over_vocabulary and plan.baseline is True:
        raise UserError(f"baseline=true is for other tasks than task={task.name}: +ablation=mlm_alone has no teacher")
    if source.others and (task.over_vocabulary or task.likelihood == "vector"):
        raise UserError(f"an ensemble is for other tasks than task={task.name}: give one teacher")
    if task.over_vocabulary and task.pair:
        raise UserError(f"task.pair is for job=pretrain: a student of task={task.name} learns from tokens alone")
    unsuited = objective.unsuited(likelihood=task.likelihood, over_vocabulary=task.over_vocabulary)
    if unsuited:
        raise UserError(
            f"objective {objective.name} has the term {', '.join(unsuited)}, which cannot learn task {task.name} "
            f"({task.kind}): take objective={default_objective(task).name} or another one, or set "
            f"objective.terms.{unsuited[0]}.weight=0"
        )
    for name in set(task.further_teachers) - objective.targets:
        raise UserError(
            f"task.{name} is given, and no term of objective {objective.name} learns from it: raise the weight of a "
            f"term with targets={name}, or leave out task.{name}"
        )
    _check_unlabelled(plan)
    check_features(source, task)
    check_budget(plan.trainer.batch_tokens, task.max_length, "trainer")
    check_cache(source.cache, objective, task, is_ensemble=bool(source.others))
    if plan.budget.is_set and not plan.exports:
        raise UserError(f"{plan.budget} is for exported students, and export.enabled=false: leave one of them out")
    if plan.budget.is_set and "int8" not in plan.export.formats:
        raise UserError(f"{plan.budget} is of the int8 file, and export.formats has no int8: leave one of them out")
    check_abstention(task, plan.export.abstain)
    check_export(plan.export, task)


def check_export(export: ExportSettings, task: Task) -> None:
    """Raises UserError for settings of an export that a task excludes, or whose packages are missing."""
    if export.enabled is not False:
        check_formats(export.formats)
    if export.vocabulary == "task" and DECODERS[task.decoder].classes_are_tokens:
        raise OptionError("export.vocabulary", "task", f"full, because the predictions of task {task.name} "
                          f"({task.kind}) are tokens of a text, which another vocabulary changes")  # fmt: skip


def check_hooks(objective: Objective, trainer: TrainerSettings) -> None:
    """Raises UserError if attention vectors, which hooks read inside the layers, are needed where hooks fail."""
    terms = ", ".join(objective.needing("attention_vectors"))
    if terms and trainer.compile:
        raise UserError(
            f"the term {terms} reads attention vectors, which torch.compile hides: set trainer.compile=false"
        )
    if terms and trainer.strategy == "fsdp" and trainer.processes() > 1:
        # The backward pass of a layer would begin before its weights are gathered.
        raise UserError(f"the term {terms} reads attention vectors inside of sharded layers: set trainer.strategy=ddp")


def _check_unlabelled(plan: Plan) -> None:
    """Raises UserError if the augmentation cannot run; prints a notice if texts without labels have no use."""
    task, objective = plan.task, plan.objective
    augmentation = None if isinstance(plan.augment, AutoAugmentation) else plan.augment
    has_bank = task.bank is not None
    given = f"augment={augmentation.name}" if augmentation else "task.bank" if has_bank else "task.unlabelled"
    if (task.has_unlabelled or has_bank or augmentation) and not objective.needs_teacher:
        print_notice(
            f"objective {objective.name} learns from labels alone, and the texts of {given} have none: they are left "
            "out, in as many steps as with them"
        )
    if augmentation is None:
        return
    if not task.can_augment:
        raise UserError(f"{given} is for tasks with labelled texts, and task {task.name} is {task.kind}: leave it out")
    augmentation.check()
