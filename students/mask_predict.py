"""The student that fills all tokens of a target at once: a BART without a causal mask, with a head for lengths."""

from typing import Literal

import torch
from torch import nn
from transformers import BartForConditionalGeneration, PreTrainedModel

from distill.core.contracts import Task
from distill.core.errors import UserError
from distill.models.architectures.modeling_mask_predict import MaskPredictConfig, MaskPredictForConditionalGeneration
from distill.models.surgery.copies import pass_on

from .distilbert import from_teacher as take_layers
from .encoder_decoder import from_encoder


def from_teacher(
    teacher: PreTrainedModel,
    *,
    task: Task,
    path: str | None = None,
    depth: int | None = None,
    decoder_depth: int | None = None,
    init: Literal["teacher", "random"] = "teacher",
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Creates a student of Mask-Predict (arXiv 1904.09324), in training mode and float32.

    Its `inherited` maps the names of its tensors to the teacher's that they were copied from.

    Args:
        task: its `max_target` is the largest length of a target.
        path: a directory with an encoder, whose layers both halves begin with; None for those of the teacher, a BART.
        depth, decoder_depth: number of layers of each half. None for half of the teacher's, or all of the encoder's.
        init: `teacher` copies tensors, and `random` none; without a meaning if `path` is given.

    Raises:
        UserError: for a task without targets, a teacher that is no BART if `path` is None, and an encoder that is none
            of those that `build_encoder_decoder` takes.
    """
    if task.info.max_target is None:
        raise UserError(
            f"student mask_predict writes a text for a text, and task={task.info.name} has none: take "
            "task=mask_predict, or another student"
        )
    if path is not None:
        start = from_encoder(path, depth, decoder_depth, trust_remote_code=trust_remote_code)
        return _read_both_sides(start, task.info.max_target)
    if type(teacher) is not BartForConditionalGeneration:
        raise UserError(
            f"student mask_predict begins with the layers of a BART, and the teacher is a {type(teacher).__name__}: "
            "give the directory of an encoder with the teacher's tokenizer as student.path=DIR"
        )
    start = take_layers(teacher, depth=depth, decoder_depth=decoder_depth, init=init)
    return _read_both_sides(start, task.info.max_target)


@torch.no_grad()
def _read_both_sides(bart: PreTrainedModel, max_target: int) -> PreTrainedModel:
    """Returns the model with the tensors of a BART, whose decoder reads a target from both sides."""
    own = {"model_type": MaskPredictConfig.model_type, "most_tokens": max_target, "trained_for": "mask_predict"}
    config = MaskPredictConfig(**{**bart.config.to_dict(), **own, "architectures": None})
    student = MaskPredictForConditionalGeneration(config)
    missing, strange = student.load_state_dict(bart.state_dict(), strict=False)
    assert not strange
    assert all(name.startswith("model.length_head.") for name in missing)
    nn.init.zeros_(student.model.length_head.bias)
    pass_on(bart, student, {name: name for name in bart.state_dict()})
    if hasattr(bart, "vocabulary"):
        student.vocabulary = bart.vocabulary  # type: ignore[assignment]
    return student.float().train()
