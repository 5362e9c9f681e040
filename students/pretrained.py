"""A student that exists already: an earlier run's, or any small encoder that reads the teacher's tokens."""

from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel

from distill.errors import UserError


def from_teacher(teacher: PreTrainedModel, *, path: str | None, trust_remote_code: bool = False) -> PreTrainedModel:
    """The model saved in `path`, with a head for the teacher's task, in training mode and float32.

    What the saved model has is kept, a head for other labels is begun anew. The student's `vocabulary` maps the tokens
    that it was trained with to their ids.

    Args:
        path: a directory that `save_pretrained` wrote, weights in safetensors, with the tokenizer's files.

    Raises:
        UserError: for no path, or a directory that is no such model.
    """
    if path is None:
        raise UserError("student pretrained does not say which weights: give student.path=DIR")
    directory = Path(path).expanduser()
    if not (directory / "config.json").is_file() or not list(directory.glob("*.safetensors")):
        raise UserError(f"student.path={path} holds no model, expected config.json and weights in safetensors")
    auto_class = f"AutoModelFor{type(teacher).__name__.partition('For')[2]}"
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # Its report of a fresh head; the preflight counts fresh tensors.
    try:
        student, info = getattr(transformers, auto_class).from_pretrained(
            directory,
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            trust_remote_code=trust_remote_code,
            id2label=dict(teacher.config.id2label),
            label2id=dict(teacher.config.label2id),
            problem_type=teacher.config.problem_type,
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"student.path={path} cannot be loaded: {str(error).splitlines()[0]}") from error
    finally:
        transformers.logging.set_verbosity(verbosity)
    fresh = {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}
    # Plain attributes of the object: they say where this student came from, they are no part of the model.
    student.inherited = {name: name for name, _ in student.named_parameters() if name not in fresh}
    student.vocabulary = tokenizer.get_vocab()
    started: PreTrainedModel = student.train()
    return started
