"""The start of a student from a general stage on plain text (`student.init=general`), which all tasks share."""

from dataclasses import replace

from transformers import PreTrainedModel

from distill.chain.plan import Plan, Student
from distill.chain.task_run import TaskRun
from distill.contracts import Data, Task
from distill.errors import OptionError, UserError
from distill.models.general import GeneralSettings, names_general
from distill.records.record import Run
from distill.storage.files import JsonObject
from distill.teaching.general import GeneralStage
from distill.teaching.source import TeacherSource
from distill.training.settings import AUTO


def starts_generally(student: Student) -> bool:
    """Returns whether a student starts from a general stage.

    Raises:
        UserError: for a student without layers that could learn in one.
    """
    if not names_general(student.option("init")):
        return False
    if not student.has_option("general"):
        raise UserError(
            f"student.init=general trains the layers of a student on plain text, and student {student.name} has none "
            "of the teacher's: take +student=distilbert or +student=layers"
        )
    return True


def check_general(student: Student, source: TeacherSource, task: Task, data: Data, plan: Plan) -> None:
    """Raises UserError for a general stage that cannot be, before anything is trained."""
    if starts_generally(student):
        _open(student, source, task, data, plan)


def start_generally(student: Student, task_run: TaskRun, run: Run) -> Student:
    """Returns the student with the changes of its general stage, which is trained unless it is in the cache.

    They are added to the layers of the teacher that has been fine-tuned, so that the student has what that one learned
    for its task too: the sum of two changes of the same weights (arXiv 2212.04089).

    The field `general` of run.json has the record of the training; in a dry run, which trains nothing, what is planned.
    """
    if not starts_generally(student):
        return student
    plan = task_run.plan
    stage = _open(student, task_run.origins.source, task_run.task, task_run.data, plan)
    if plan.dry_run:
        run.update(general={"plan": stage.plan()})
        return student
    stage.train()
    run.update(general=stage.record() | {"entry": stage.directory.name})
    return replace(student, encoder_changes=stage.load_changes())


def describe_general(record: JsonObject) -> str:
    """Describes the stage in the summary before training."""
    if "plan" in record:
        return str(record["plan"])
    before, after = (record["distance"][name] for name in ("before", "after"))
    return (
        f"{record['steps']:,} steps on {record['text']}, once: its distance from the teacher on other text fell from "
        f"{before:.3g} to {after:.3g}; {record['entry']} in the cache"
    )


def _open(student: Student, source: TeacherSource, task: Task, data: Data, plan: Plan) -> GeneralStage:
    """Returns the stage of a student.

    Raises:
        UserError: for a teacher whose weights before its fine-tuning are others, and as `GeneralStage`.
    """
    if source.adaptation is not None:
        raise UserError(
            f"student.init=general learns from the teacher before its fine-tuning, and adapt={source.adaptation.name} "
            "changes that one for its task: leave out one of them"
        )

    if source.weights.precision == AUTO:
        raise OptionError("teacher.precision", AUTO, "float32 or bfloat16 with student.init=general")

    def build(teacher: PreTrainedModel) -> PreTrainedModel:
        return student.build_from(teacher, task)

    settings = GeneralSettings.of(student.option("general"))
    return GeneralStage(
        source.weights, build, settings, data, accelerator=plan.trainer.accelerator, cache_dir=plan.cache_dir
    )
