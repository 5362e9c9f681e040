"""The student of convolutions: windows over the teacher's word pieces for texts, dilated layers for tokens."""

from collections.abc import Mapping, Sequence
from typing import Literal

from transformers import PreTrainedModel

from distill.core.contracts import Task
from distill.core.errors import UserError
from distill.models.architectures.modeling_cnn import CnnConfig, CnnPreTrainedModel
from distill.models.forward import model_class

from .bilstm import get_embeddings, inherit_embeddings

EMBEDDING_DIM = 200  # At most, where the width is not given.


def from_teacher(
    teacher: PreTrainedModel,
    *,
    task: Task,
    embedding_dim: int | None = None,
    hidden_dim: int = 300,
    widths: Sequence[int] = (3, 4, 5),
    tag_width: int = 3,
    dilations: Sequence[int] = (1, 2, 4),
    classifier_dim: int = 200,
    dropout: float = 0.1,
    init: Literal["teacher", "random"] = "teacher",
) -> PreTrainedModel:
    """Creates a CNN for the teacher's tokens, in training mode and float32.

    Its windows are those of arXiv 1408.5882, its layers for tokens those of arXiv 1702.02098, and its embeddings the
    teacher's, rescaled. Its `inherited` maps the names of its tensors to the teacher's that they were made from.

    Args:
        task: its `auto_class` determines the head, its `pair` whether a head for whole texts compares two of them, and
            its `max_length` how far a window can reach.
        embedding_dim: width of the embeddings, which start from the principal components of the teacher's; None uses
            the teacher's width, at most `EMBEDDING_DIM`.
        hidden_dim: outputs of all `widths` together, or of each layer for tokens.
        widths: tokens of the windows over a whole text.
        tag_width: inputs of a layer for tokens, an odd number.
        dilations: distance between neighbouring inputs of each layer for tokens.
        classifier_dim: width of the ReLU layer of the head for whole texts.
        init: initial embeddings, those of the `teacher` or `random` ones.

    Raises:
        UserError: if an option is invalid, no CNN has the task's head, or pairs have no separator.
    """
    layers = {"widths": _read_sizes("widths", widths), "dilations": _read_sizes("dilations", dilations)}
    sizes = {"hidden_dim": hidden_dim, "tag_width": tag_width, "classifier_dim": classifier_dim}
    _check_options(sizes, dropout=dropout, init=init)
    student_class = _find_class(task)
    layers = {name: values if name == student_class.layers_by else [] for name, values in layers.items()}
    _check_layers(layers, hidden_dim=hidden_dim, tag_width=tag_width, max_length=task.info.max_length)
    vocabulary, width = get_embeddings(teacher).shape
    config = CnnConfig(
        vocab_size=vocabulary, embedding_dim=_choose_width(embedding_dim, width), hidden_dim=hidden_dim,
        tag_width=tag_width, classifier_dim=classifier_dim, dropout=dropout, pair=task.info.pair,
        sep_token_id=_find_separator(teacher, task), pad_token_id=teacher.config.pad_token_id,
        problem_type=teacher.config.problem_type, id2label=dict(teacher.config.id2label),
        label2id={label: index for index, label in teacher.config.id2label.items()}, **layers,
    )  # fmt: skip
    student = student_class(config)
    student.inherited = inherit_embeddings(student, teacher) if init == "teacher" else {}  # type: ignore[assignment]
    return student.float().train()


def _check_options(sizes: Mapping[str, int], *, dropout: float, init: str) -> None:
    """Raises UserError if a size is below 1 or even, a share is out of range or a name is unknown."""
    for name, value in sizes.items():
        if not _is_size(value):
            raise UserError(f"got student.{name}={value}, expected a whole number of at least 1")
    if sizes["tag_width"] % 2 == 0:
        raise UserError(
            f"got student.tag_width={sizes['tag_width']}, expected an odd number, because a tag belongs to the "
            f"token in the middle: take {sizes['tag_width'] + 1}"
        )
    if not 0 <= dropout < 1:
        raise UserError(f"got student.dropout={dropout}, expected a share from 0 to below 1")
    if init not in ("teacher", "random"):
        raise UserError(f"student.init={init} is unknown, expected one of teacher, random")


def _read_sizes(name: str, values: Sequence[int]) -> list[int]:
    """Returns an option that lists sizes; raises UserError if it is no list, is empty, or has a size below 1."""
    if isinstance(values, str) or not isinstance(values, Sequence) or not values or not all(map(_is_size, values)):
        raise UserError(f"got student.{name}={values}, expected a list of whole numbers of at least 1")
    return list(values)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _choose_width(embedding_dim: int | None, teacher_width: int) -> int:
    """Returns the width of the embeddings; raises UserError if it is below 1 or above the teacher's."""
    if embedding_dim is None:
        return min(teacher_width, EMBEDDING_DIM)
    if not _is_size(embedding_dim):
        raise UserError(f"got student.embedding_dim={embedding_dim}, expected a whole number of at least 1")
    if embedding_dim > teacher_width:
        raise UserError(
            f"got student.embedding_dim={embedding_dim}, expected at most {teacher_width}, the width of the teacher's "
            "embeddings"
        )
    return embedding_dim


def _find_separator(teacher: PreTrainedModel, task: Task) -> int | None:
    """Returns the id between two texts; raises UserError if there is none and the task is for pairs."""
    separator: int | None = getattr(teacher.config, "sep_token_id", None)
    if task.info.pair and separator is None:
        raise UserError(f"the tokenizer of {type(teacher).__name__} has no separator between two texts to tell them by")
    return separator


def _find_class(task: Task) -> type[CnnPreTrainedModel]:
    """Returns the class with the task's head; raises UserError if there is none."""
    found = model_class(task.info.auto_class, CnnConfig)
    if found is None:
        raise UserError(
            f"student cnn has no head for task {task.info.name} ({task.info.kind}), only for labels and numbers of "
            "texts and for tags: take +student=distilbert"
        )
    assert issubclass(found, CnnPreTrainedModel)
    return found


def _check_layers(layers: Mapping[str, Sequence[int]], *, hidden_dim: int, tag_width: int, max_length: int) -> None:
    """Raises UserError if the widths have unequal shares, or a convolution reaches beyond the longest text."""
    widths, furthest = layers["widths"], max(layers["dilations"], default=0)
    if widths and hidden_dim % len(widths):
        raise UserError(
            f"got student.hidden_dim={hidden_dim} for {len(widths)} widths (student.widths={widths}), expected a "
            f"multiple of {len(widths)}"
        )
    if max(widths, default=0) > max_length:
        raise UserError(
            f"got student.widths={widths}, expected at most task.max_length={max_length}, the tokens of the "
            "longest text: take narrower windows, or raise task.max_length"
        )
    if (reach := tag_width // 2 * furthest) >= max_length:
        raise UserError(
            f"got student.tag_width={tag_width} and student.dilations={layers['dilations']}, which reach {reach} "
            f"tokens far, expected less than task.max_length={max_length}: take smaller ones, or raise task.max_length"
        )
