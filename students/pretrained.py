"""An existing model as the student: that of an earlier run, or any small encoder with the teacher's tokenizer."""

from transformers import PreTrainedModel

from distill.core.errors import UserError
from distill.models.loading import auto_class_of, find_directory, list_labels, load_directory


def from_teacher(teacher: PreTrainedModel, *, path: str | None, trust_remote_code: bool = False) -> PreTrainedModel:
    """Loads the model in `path` with a head for the teacher's task, in training mode and float32.

    A head with another number of labels is initialized anew. One with the same labels is put in the teacher's order.
    The student's `vocabulary` maps the tokens that it was trained with to their ids.

    Args:
        path: a directory written by `save_pretrained`, with weights in safetensors and the tokenizer's files.

    Raises:
        UserError: if the path is missing, or the directory contains no such model.
    """
    if path is None:
        raise UserError("student pretrained has no weights: give student.path=DIR")
    directory = find_directory(path, "student.path")
    has_labels = teacher.get_output_embeddings() is None and teacher.base_model is not teacher
    labels = list_labels(teacher.config) if has_labels else None
    start = load_directory(directory, auto_class_of(teacher), labels, trust_remote_code=trust_remote_code)
    student = start.model
    # Attributes of the object only, which are not saved.
    inherited = {name: name for name, _ in student.named_parameters() if name not in start.fresh}
    student.inherited = inherited  # type: ignore[assignment]
    student.vocabulary = start.tokenizer.get_vocab()  # type: ignore[assignment]
    return student.train()
