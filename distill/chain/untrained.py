"""Students before their training: that of a run, and its baseline."""

from collections.abc import Sequence
from dataclasses import replace

import lightning as L
from lightning.pytorch.utilities.seed import isolate_rng
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.chain.plan import SAME_START, Plan, Student
from distill.chain.task_run import TaskRun
from distill.console import print_notice
from distill.contracts import Data, Task
from distill.models import checks
from distill.models.heads import share_encoder
from distill.models.origins import Origins
from distill.teaching.prepared import TEACHER


def make_student(
    student: Student,
    teacher: PreTrainedModel,
    task: Task,
    data: Data,
    tokenizer: PreTrainedTokenizerBase,
    origins: Origins,
) -> tuple[PreTrainedModel, str | None]:
    """Returns a new student, and in words whether it was given other rows of embeddings than it had."""
    model = student.make(teacher, task, data, origins)
    return model, checks.match_spare_rows(model, teacher, tokenizer) if task.info.classes_are_tokens else None


def create_model(student: Student, tasks: Sequence[TaskRun], plan: Plan) -> PreTrainedModel:
    """Returns the student of all tasks with the weights of the plan's seed."""
    L.seed_everything(plan.seed, verbose=False)
    models: dict[str, PreTrainedModel] = {}
    for task_run in tasks:
        models[task_run.name], change = make_student(
            student, task_run.teacher.model, task_run.task, task_run.data, task_run.teacher.tokenizer,
            Origins(task_run.teacher.tokenizer) if plan.dry_run else task_run.start,
        )  # fmt: skip
        if change is not None:
            print_notice(change)
    return share_encoder(models, name=student.name) if len(tasks) > 1 else models[tasks[0].name]


def create_baseline(student: Student, tasks: Sequence[TaskRun], plan: Plan) -> PreTrainedModel:
    """Returns the baseline: the same architecture with the layers of the encoder before its training on the task.

    It has nothing that was fitted to the teacher: neither a head nor changes of a general stage. With
    `baseline=same_start` it is the student itself. The state of the random numbers stays as it is.
    """
    with isolate_rng():
        if plan.baseline == SAME_START:
            return create_model(student, tasks, plan)
        return create_model(replace(student, head=None, encoder_changes=None), untaught(tasks, plan), plan)


def untaught(tasks: Sequence[TaskRun], plan: Plan) -> list[TaskRun]:
    """Returns the tasks with the teachers whose layers the baseline starts from."""
    if plan.baseline == SAME_START:
        return list(tasks)
    return [replace(task_run, teacher=task_run.teacher.untrained()) for task_run in tasks]


def name_start(student: Student, tasks: Sequence[TaskRun], plan: Plan) -> str | None:
    """Returns the weights that the baseline starts from: `pretrained` or `teacher`; None if it copies none."""
    copies_nothing = student.option("path") is not None or "random" in (student.option("init"), student.option("start"))
    if isinstance(student.build, PreTrainedModel) or copies_nothing:
        return None
    starts = {task_run.teacher.start for task_run in tasks}
    return TEACHER if plan.baseline == SAME_START else TEACHER if TEACHER in starts else starts.pop()
