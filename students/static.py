"""The student below all others: a text is the weighted mean of the vectors of its pieces, with a small head."""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt, SkipValidation
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import VECTOR_SETTINGS, Task
from distill.core.errors import OptionError, UserError
from distill.core.options import Dropout, check_options
from distill.models.architectures.modeling_static import StaticConfig, StaticPreTrainedModel
from distill.models.surgery.initialization import Origins, encode_pieces
from distill.models.vectors import AUTO, vector_width

from .bilstm import describe_texts, find_class

SMOOTHING = 1e-3  # a of the weights a / (a + p). The paper has 1e-4, with which rare pieces outweigh all others.


@check_options("student")
def from_teacher(
    teacher: PreTrainedModel,
    *,
    task: SkipValidation[Task],
    origins: SkipValidation[Origins],
    dim: NonNegativeInt | None = 256,
    buckets: NonNegativeInt = 131072,
    bucket_dim: PositiveInt = 64,
    classifier_dim: PositiveInt = 512,
    dropout: Dropout = 0.2,
    token_dropout: Dropout = 0.1,
    smoothing: Annotated[float, Field(gt=0, description="a number above 0, such as 0.001")] = SMOOTHING,
    start: Literal["sentence", "teacher", "random"] = "sentence",
    tokenizer: str | None = None,
) -> PreTrainedModel:
    """Creates a student that reads a text as a bag of pieces, in training mode and float32.

    The vectors of pieces start from those of an encoder that reads each as a text, cut to `dim` principal components.
    The weight of a piece starts at a / (a + p) for its share p in the training texts (Arora et al., ICLR 2017,
    algorithm 1), and is learned. Two pieces in a row share a vector with others (after fastText, arXiv 1607.01759).

    Args:
        task: its `auto_class` determines the head, and its `pair` whether the head compares two texts.
        origins: the sentence encoder's vectors of pieces and the shares of pieces.
        dim: width of the vectors of pieces, at most the teacher's; None uses the teacher's.
        buckets: number of vectors of two pieces; 0: none.
        bucket_dim, classifier_dim: width of these vectors, and of the ReLU layer of a head for whole texts.
        token_dropout: share of the pieces of a text that a training step leaves out.
        smoothing: a of the initial weights.
        start: initial vectors, those of the teacher before its fine-tuning (`sentence`), of the teacher, or random.
        tokenizer: one of its own, a directory or `pieces`, whose pieces the `teacher` here then has embeddings of.

    Raises:
        UserError: for an option out of range, a task without a head, other pooling, and pairs without a separator.
    """
    _check_table(dim, buckets)
    student_class, width = _find_class(task), vector_width(teacher.config)
    student = student_class(StaticConfig(
        vocab_size=teacher.config.vocab_size, embedding_dim=min(dim or width, width), buckets=buckets,
        bucket_dim=bucket_dim, classifier_dim=classifier_dim, dropout=dropout, token_dropout=token_dropout,
        **describe_texts(teacher, task),
    ))  # fmt: skip
    if origins.shares is not None and origins.sentence_vectors is not None:
        shares = origins.shares()
        _start_weights(student, smoothing / (smoothing + shares), origins.tokenizer)
        if start != "random":
            vectors = origins.sentence_vectors() if start == "sentence" else encode_pieces(teacher, origins.tokenizer)
            _start_vectors(student, vectors, shares)
    student.inherited = {}  # type: ignore[assignment]  # No tensor is one of the teacher's.
    return student.float().train()


@torch.no_grad()
def _start_weights(student: StaticPreTrainedModel, weights: Tensor, tokenizer: PreTrainedTokenizerBase) -> None:
    """Sets the weights of the pieces, `[V]`, those of special tokens to 0."""
    student.weights.weight[: len(weights), 0] = weights
    student.counted[torch.tensor(sorted(set(tokenizer.all_special_ids)), dtype=torch.long)] = 0


def _check_table(dim: int | None, buckets: int) -> None:
    """Raises UserError for a table of pieces without a width."""
    if dim == 0 and buckets:
        raise UserError(
            f"student.buckets={buckets} has vectors of two pieces beside a table of single ones, and student.dim=0 "
            "leaves no table: set student.dim=256"
        )
    if dim == 0:
        raise OptionError("student.dim", "0", "a whole number of at least 1")


def _find_class(task: Task) -> type[StaticPreTrainedModel]:
    """Returns the class with the task's head; raises UserError if there is none, or vectors have another pooling."""
    reason = ", because it reads a text without the order of its words"
    found: type[StaticPreTrainedModel] = find_class(task, StaticConfig, "static", reason)
    settings: Mapping[str, object] | None = task.info.model_settings.get(VECTOR_SETTINGS)
    if settings is not None and settings["pooling"] not in (AUTO, "mean"):
        raise UserError(
            f"student static has the mean of vectors, and task.pooling={settings['pooling']}: set task.pooling=mean"
        )
    return found


@torch.no_grad()
def _start_vectors(student: StaticPreTrainedModel, vectors: Tensor, shares: Tensor) -> None:
    """Sets the vectors of pieces to the principal components of `vectors [V, H]`.

    They are rescaled so that weight times vector has a root mean square of 1 over the pieces of the texts.
    """
    is_piece = student.counted.bool() & vectors.any(dim=1)
    centered = (vectors - vectors[is_piece].mean(dim=0)) * is_piece[:, None]
    _, directions = torch.linalg.eigh(centered.T @ centered)  # Ascending.
    table = centered @ directions.flip(1)[:, : student.config.embedding_dim]
    weighted = (table * student.weights.weight)[: len(shares)].square().mean(dim=1)
    scale = (weighted * shares).sum().sqrt()
    student.embeddings.weight.copy_(table / scale.clamp(min=1e-12))
