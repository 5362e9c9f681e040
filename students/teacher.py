"""The teacher itself as the student, which is exported and quantized, to see what a smaller student is worth."""

import copy

from transformers import PreTrainedModel


def from_teacher(teacher: PreTrainedModel) -> PreTrainedModel:
    """Returns a copy of the teacher, which is not trained further."""
    student = copy.deepcopy(teacher)
    # Attributes of the object only, which are not saved.
    student.inherited = {name: name for name, _ in student.named_parameters()}  # type: ignore[assignment]
    student.fitted = "the teacher as it is"  # type: ignore[assignment]
    return student
