"""A vocabulary that is chosen before the training: teacher and student read the pieces of the task's texts alone."""

import json

import numpy as np

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
from distill.tasks.scoring import Scoring
from distill.teaching.prepared import PreparedTeacher
from distill.teaching.source import TeacherSource

OPTION = "export.vocabulary=trained"


def check_pieces(student: Student, source: TeacherSource, plan: Plan) -> None:
    """Raises UserError for a student or a teacher whose vocabulary cannot be chosen before the training."""
    if not plan.trains_pieces:
        return
    if starts_generally(student):
        raise UserError(
            f"{OPTION} trains other pieces than student.init=general, whose encoder reads all of the teacher's: leave "
            "one of them out"
        )
    if source.features is not None or source.labeller is not None:
        raise UserError(
            f"{OPTION} needs a teacher that is one model with the head of the task, because it takes rows of its "
            "embeddings: leave it out"
        )


def cut_teacher(teacher: PreparedTeacher, data: Data, settings: ExportSettings) -> tuple[PreparedTeacher, Cut]:
    """Returns the teacher that reads the pieces of the texts of `data`, and these pieces.

    A labelled training text has the same pieces as before, and the teacher the same outputs for it.
    """
    cut = choose_vocabulary(teacher.model, teacher.tokenizer, settings, data)
    digest = entry_key("vocabulary", 1, json.dumps(read_vocabulary(cut.tokenizer)))
    return teacher.with_vocabulary(cut.tokenizer, cut.apply, digest), cut


def compare_readings(teacher: PreparedTeacher, scoring: Scoring) -> None:
    """Notes what a teacher that has been scored loses by fewer pieces, and gives it the scores that it has with all.

    It keeps its own where the two are of different items, because a cut sentence has other words, or a context other
    windows. A teacher with all of its pieces stays as it is.
    """
    whole, metric = teacher.whole, scoring.metric
    if whole is None:
        return
    for member in teacher.members:
        if member is not teacher:
            compare_readings(member, scoring)
    teacher.notices.append(
        f"it teaches by {len(teacher.tokenizer):,} of its {len(whole.tokenizer):,} pieces, those of the task: its "
        f"{metric} on dev is {teacher.metrics[metric]:.4f} with them, and {whole.metrics[metric]:.4f} with all"
    )
    pairs = [(scores, teacher.scores[name]) for name, scores in whole.scores.items()]
    if all(np.array_equal(one.example_id, other.example_id) for one, other in pairs):
        teacher.scores, teacher.metrics, teacher.comparison = whole.scores, whole.metrics, whole.comparison


def check_cut_student(student: Student, teacher: PreparedTeacher, task: Task, data: Data) -> None:
    """Raises UserError for a student that has embeddings of its own, and not those that the teacher has now."""
    rows = student.make(teacher.model, task, data, Origins(teacher.tokenizer)).config.vocab_size
    if rows != teacher.model.config.vocab_size:
        raise UserError(
            f"{OPTION} is for a student that is made from its teacher, and student {student.name} has {rows:,} rows of "
            f"embeddings for the {len(teacher.tokenizer):,} pieces of the task: leave it out"
        )
