"""The map from a student's layers to the teacher's layers that they learn from."""

from collections.abc import Sequence
from typing import Literal

from pydantic import PositiveInt

from distill.errors import UserError
from distill.options import show_value

Layers = Literal["uniform", "last"] | Sequence[PositiveInt]


def match_layers(
    layers: str | Sequence[int], student_depth: int, teacher_depth: int, *, last_layer: bool = True
) -> tuple[tuple[int, int], ...]:
    """Returns pairs of a student's layer and its teacher's layer, both counted from 1.

    `uniform` matches layer m of M with the teacher's layer m * N / M, rounded down, and `last` with the last M of the
    teacher's N layers. A list names the teacher's layer of each student layer.

    >>> match_layers("uniform", 3, 6)
    ((1, 2), (2, 4), (3, 6))

    Args:
        last_layer: whether the student's last layer is matched too.

    Raises:
        UserError: for a list of another length or layers that the teacher lacks, or a student deeper than the teacher.
    """
    number = student_depth if last_layer else student_depth - 1
    if not isinstance(layers, str):
        if len(layers) != number or not all(1 <= layer <= teacher_depth for layer in layers):
            raise UserError(
                f"got layers={show_value(list(layers))}, expected a list of {number} of the teacher's layers 1 to "
                f"{teacher_depth}, one for each layer of the student{'' if last_layer else ' except the last'}; "
                "or uniform or last"
            )
        matched = list(layers)
    elif student_depth > teacher_depth:
        raise UserError(
            f"got layers={layers} for a student of {student_depth} layers and a teacher of {teacher_depth}, expected "
            f"at most as many as the teacher's: set layers to a list of {number} of the teacher's layers 1 to "
            f"{teacher_depth}"
        )
    elif layers == "uniform":
        matched = [layer * teacher_depth // student_depth for layer in range(1, student_depth + 1)]
    else:
        matched = list(range(teacher_depth - student_depth + 1, teacher_depth + 1))
    return tuple(zip(range(1, number + 1), matched, strict=False))
