"""The student below all others: a text is the weighted mean of the vectors of its pieces, with a small head."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import VECTOR_SETTINGS, Task
from distill.core.errors import UserError
from distill.models.architectures.modeling_static import StaticConfig, StaticPreTrainedModel
from distill.models.forward import model_class
from distill.models.surgery.initialization import Origins, encode_pieces

STARTS = ("sentence", "teacher", "random")
SMOOTHING = 1e-3  # a of the weights a / (a + p). The paper has 1e-4, with which rare pieces outweigh all others.


def from_teacher(
    teacher: PreTrainedModel,
    *,
    task: Task,
    origins: Origins,
    dim: int | None = 256,
    buckets: int = 131072,
    bucket_dim: int = 64,
    classifier_dim: int = 512,
    dropout: float = 0.2,
    token_dropout: float = 0.1,
    smoothing: float = SMOOTHING,
    start: Literal["sentence", "teacher", "random"] = "sentence",
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
        bucket_dim: width of these vectors.
        classifier_dim: width of the ReLU layer of a head for whole texts.
        token_dropout: share of the pieces of a text that a training step leaves out.
        smoothing: a of the initial weights.
        start: initial vectors, those of the teacher before its fine-tuning (`sentence`), of the teacher, or random.

    Raises:
        UserError: if an option is out of range, there is no head for the task, vectors are not pooled by the mean, or
            the task is for pairs and the teacher has no separator.
    """
    _check_options(smoothing=smoothing, start=start, dropout=dropout, token_dropout=token_dropout)
    sizes = {"buckets": buckets, "bucket_dim": bucket_dim, "classifier_dim": classifier_dim}
    _check_sizes(dim, sizes)
    student = _create(teacher, task, dim=dim, dropout=dropout, token_dropout=token_dropout, **sizes)
    if origins.shares is not None and origins.sentence_vectors is not None:
        shares = origins.shares()
        _start_weights(student, shares, origins.tokenizer, smoothing=smoothing)
        if start != "random":
            vectors = origins.sentence_vectors() if start == "sentence" else encode_pieces(teacher, origins.tokenizer)
            _start_vectors(student, vectors, shares)
    student.inherited = {}  # type: ignore[assignment]  # No tensor is one of the teacher's.
    return student.float().train()


def _check_sizes(dim: int | None, sizes: Mapping[str, int]) -> None:
    """Raises UserError if a size is out of range."""
    if sizes["buckets"] and dim == 0:
        raise UserError(
            f"student.buckets={sizes['buckets']} has vectors of two pieces beside a table of single ones, and "
            "student.dim=0 leaves no table: set student.dim=256"
        )
    for name, value in (sizes if dim is None else {"dim": dim, **sizes}).items():
        least = 0 if name == "buckets" else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"got student.{name}={value}, expected a whole number of at least {least}")


def _check_options(*, smoothing: float, start: str, **shares: float) -> None:
    """Raises UserError if a number is out of range or a name is unknown."""
    for name, value in shares.items():
        if not 0 <= value < 1:
            raise UserError(f"got student.{name}={value}, expected a share from 0 to below 1")
    if not smoothing > 0:
        raise UserError(f"got student.smoothing={smoothing}, expected a number above 0, such as {SMOOTHING:g}")
    if start not in STARTS:
        raise UserError(f"student.start={start} is unknown, expected one of {', '.join(STARTS)}")


def _create(teacher: PreTrainedModel, task: Task, *, dim: int | None, **options: float) -> StaticPreTrainedModel:
    """Returns the student with random vectors; raises UserError if it cannot tell the texts of a pair apart."""
    student_class, config = _find_class(task), teacher.config
    separator = getattr(config, "sep_token_id", None)
    if task.info.pair and separator is None:
        raise UserError(f"the tokenizer of {type(teacher).__name__} has no separator between two texts to tell them by")
    width = int(config.hidden_size)
    sizes: dict[str, Any] = {"embedding_dim": min(dim or width, width), **options}
    student = student_class(StaticConfig(
        vocab_size=config.vocab_size, pair=task.info.pair, sep_token_id=separator, pad_token_id=config.pad_token_id,
        id2label=dict(config.id2label), label2id={label: index for index, label in config.id2label.items()},
        problem_type=config.problem_type, **sizes,
    ))  # fmt: skip
    assert isinstance(student, StaticPreTrainedModel)
    return student


def _find_class(task: Task) -> type[PreTrainedModel]:
    """Returns the class with the task's head; raises UserError if there is none, or vectors have another pooling."""
    info = task.info
    found = model_class(info.auto_class, StaticConfig)
    if found is None:
        raise UserError(
            f"student static has no head for task {info.name} ({info.kind}), because it reads a text without the order "
            "of its words: take +student=distilbert"
        )
    settings: Mapping[str, object] | None = info.model_settings.get(VECTOR_SETTINGS)
    if settings is not None and settings["pooling"] != "mean":
        raise UserError(
            f"student static has the mean of vectors, and task.pooling={settings['pooling']}: set task.pooling=mean"
        )
    return found


@torch.no_grad()
def _start_weights(
    student: StaticPreTrainedModel, shares: Tensor, tokenizer: PreTrainedTokenizerBase, *, smoothing: float
) -> None:
    """Sets the weights to a / (a + p), those of special tokens to 0."""
    student.weights.weight[: len(shares), 0] = smoothing / (smoothing + shares)
    student.counted[torch.tensor(sorted(set(tokenizer.all_special_ids)), dtype=torch.long)] = 0


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
