"""The student of convolutions: windows over the teacher's word pieces for texts, dilated layers for tokens."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, SkipValidation
from transformers import PreTrainedModel

from distill.core.contracts import Task
from distill.core.errors import UserError
from distill.core.options import Dropout, check_options
from distill.models.architectures.modeling_cnn import CnnConfig

from .bilstm import describe_texts, find_class, get_embeddings, start_embeddings

EMBEDDING_DIM = 200  # At most, where the width is not given.
SizeList = Annotated[Sequence[PositiveInt], Field(min_length=1, description="a list of whole numbers of at least 1")]


@check_options("student")
def from_teacher(
    teacher: PreTrainedModel,
    *,
    task: SkipValidation[Task],
    embedding_dim: PositiveInt | None = None,
    hidden_dim: PositiveInt = 300,
    widths: SizeList = (3, 4, 5),
    tag_width: PositiveInt = 3,
    dilations: SizeList = (1, 2, 4),
    classifier_dim: PositiveInt = 200,
    dropout: Dropout = 0.1,
    init: Literal["teacher", "random"] = "teacher",
    tokenizer: str | None = None,
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
        tokenizer: one of its own, a directory or `pieces`, whose pieces the `teacher` here then has embeddings of.

    Raises:
        UserError: if an option is invalid, no CNN has the task's head, or pairs have no separator.
    """
    student_class = find_class(task, CnnConfig, "cnn", ", only for labels and numbers of texts and for tags")
    given = {"widths": list(widths), "dilations": list(dilations)}
    layers: dict[str, Any] = {name: of if name == student_class.layers_by else [] for name, of in given.items()}
    _check_layers(layers, hidden_dim=hidden_dim, tag_width=tag_width, max_length=task.info.max_length)
    vocabulary, width = get_embeddings(teacher).shape
    if embedding_dim is not None and embedding_dim > width:
        raise UserError(
            f"got student.embedding_dim={embedding_dim}, expected at most {width}, the width of the teacher's "
            "embeddings"
        )
    config = CnnConfig(
        vocab_size=vocabulary, embedding_dim=embedding_dim or min(width, EMBEDDING_DIM), hidden_dim=hidden_dim,
        tag_width=tag_width, classifier_dim=classifier_dim, dropout=dropout, **describe_texts(teacher, task), **layers,
    )  # fmt: skip
    return start_embeddings(student_class(config), teacher, init)


def _check_layers(layers: Mapping[str, Sequence[int]], *, hidden_dim: int, tag_width: int, max_length: int) -> None:
    """Raises UserError for an even width, unequal shares, and a convolution that reaches beyond the longest text."""
    if tag_width % 2 == 0:
        raise UserError(
            f"got student.tag_width={tag_width}, expected an odd number, because a tag belongs to the token in the "
            f"middle: take {tag_width + 1}"
        )
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
