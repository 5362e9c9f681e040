"""A vocabulary that is chosen before the training: teacher and student read the pieces of the task's texts alone."""

import json
from collections.abc import Callable

from distill.chain.general import starts_generally
from distill.chain.plan import Plan, Student
from distill.contracts import Data, Task
from distill.errors import UserError
from distill.export.bundle import choose_vocabulary
from distill.export.settings import ExportSettings
from distill.export.vocabulary import Cut
from distill.models.origins import Origins
from distill.models.tokenizer import read_vocabulary
from distill.storage.cache import entry_key
from distill.teaching.prepared import PreparedTeacher
from distill.teaching.source import TeacherSource

OPTION = "export.vocabulary=trained"


def check_pieces(student: Student, source: TeacherSource, plan: Plan) -> None:
    """Raises UserError for a student or a teacher whose vocabulary cannot be chosen before the training."""
    if not plan.trains_pieces:
        return
    if starts_generally(student):
        raise UserError(
            f"{OPTION} trains other pieces than student.init=general, whose encoder reads all of the teacher's: set "
            "export.vocabulary=task, or leave student.init out"
        )
    if source.features is not None or source.labeller is not None:
        raise UserError(
            f"{OPTION} needs a teacher that is one model with the head of the task, because it takes rows of its "
            "embeddings: set export.vocabulary=task, which changes the file of the student alone"
        )


def cut_teacher(
    teacher: PreparedTeacher, data: Data, settings: ExportSettings, *, score: Callable[[], None]
) -> tuple[PreparedTeacher, Cut]:
    """Returns the teacher that reads the pieces of the texts of `data`, and these pieces.

    A labelled training text has the same pieces as before, and the teacher the same outputs for it. Texts of dev may
    have shorter ones, so that a notice has the teacher's metric with all of its pieces.

    Args:
        score: sets the teacher's metrics; does nothing in a dry run.
    """
    notices, metric = list(teacher.notices), data.scoring.metric
    score()
    cut = choose_vocabulary(teacher.model, teacher.tokenizer, settings, data)
    digest = entry_key("vocabulary", 1, json.dumps(read_vocabulary(cut.tokenizer)))
    smaller = teacher.with_vocabulary(cut.tokenizer, cut.apply, digest)
    before = f"; with all of them its {metric} is {teacher.metrics[metric]:.4f}" if teacher.metrics else ""
    reads = f"it reads {len(cut.tokenizer):,} of its {len(teacher.tokenizer):,} pieces, those of the task{before}"
    smaller.notices = [*notices, reads]
    return smaller, cut


def check_cut_student(student: Student, teacher: PreparedTeacher, task: Task, data: Data) -> None:
    """Raises UserError for a student that has embeddings of its own, and not those that the teacher has now."""
    rows = student.make(teacher.model, task, data, Origins(teacher.tokenizer)).config.vocab_size
    if rows != teacher.model.config.vocab_size:
        raise UserError(
            f"{OPTION} is for a student that is made from its teacher, and student {student.name} has {rows:,} rows of "
            f"embeddings for the {len(teacher.tokenizer):,} pieces of the task: set export.vocabulary=task"
        )
