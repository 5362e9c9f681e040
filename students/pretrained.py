"""A student that exists already: an earlier run's, or any small encoder that reads the teacher's tokens."""

from pathlib import Path

from transformers import PreTrainedModel

from distill.errors import UserError
from distill.models.loading import auto_class_of, check_directory, load_directory


def from_teacher(teacher: PreTrainedModel, *, path: str | None, trust_remote_code: bool = False) -> PreTrainedModel:
    """The model saved in `path`, with a head for the teacher's task, in training mode and float32.

    A head of another number of labels is begun anew; one of the same labels in another order is put in order. The
    student's `vocabulary` maps the tokens that it was trained with to their ids.

    Args:
        path: a directory that `save_pretrained` wrote, weights in safetensors, with the tokenizer's files.

    Raises:
        UserError: for no path, or a directory that holds no such model.
    """
    if path is None:
        raise UserError("student pretrained does not say which weights: give student.path=DIR")
    directory = Path(str(path)).expanduser()
    check_directory(directory, f"student.path={path}")
    over_vocabulary = teacher.get_output_embeddings() is not None
    labels = [str(teacher.config.id2label[index]) for index in sorted(teacher.config.id2label)]
    start = load_directory(
        directory,
        auto_class_of(teacher),
        None if over_vocabulary else labels,
        trust_remote_code=trust_remote_code,
    )
    student = start.model
    # Plain attributes of the object: they say where this student came from, they are no part of the model.
    inherited = {name: name for name, _ in student.named_parameters() if name not in start.fresh}
    student.inherited = inherited  # type: ignore[assignment]
    student.vocabulary = start.tokenizer.get_vocab()  # type: ignore[assignment]
    return student.train()
