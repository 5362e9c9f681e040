"""The student with some of the teacher's layers in the teacher's own class, whatever its family and its head.

A GPT-2 follows a GPT-2, and a Llama a Llama, with the same embeddings, positions and head.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel

from .distilbert import Layers, check_init, copy_layers


def from_teacher(
    teacher: PreTrainedModel,
    *,
    layers: Layers = "alternate",
    depth: int | None = None,
    init: str | Sequence[str] = "teacher",
    general: Mapping[str, Any] | None = None,
    start: str | None = None,
) -> PreTrainedModel:
    """Creates a model of the teacher's class with some of its layers, in training mode and float32.

    The student's `inherited` maps the names of its tensors to those of the teacher's tensors that they were copied
    from.

    Args:
        layers, depth, init, general, start: as those of the student `distilbert`.

    Raises:
        UserError: if the student cannot have these layers.
    """
    return copy_layers(teacher, layers, depth, copies=check_init(init, general), own_class=True)
