"""The options of a student that is narrower than its teacher."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.models.narrowing import Importance, Sizes, narrow, take_strongest


@dataclass(frozen=True)
class Width:
    """The width of a student.

    Args:
        heads: number of heads of a layer, of the teacher's size each, or one number for each layer; None for the
            teacher's. The most important ones are copied.
        ffn: number of inner neurons of a layer, as `heads`.
        embedding_dim: width of the embeddings of words, which are the teacher's by a truncated singular value
            decomposition, with a projection to the width of the layers; None for the teacher's.
        prune: `iterative` for a student that reaches its sizes in `prune_steps` steps, between which it is trained for
            `prune_share` of its training's steps; then the numbers of `heads` and `ffn` are means over the layers.
    """

    heads: int | Sequence[int] | None
    ffn: int | Sequence[int] | None
    embedding_dim: int | None
    prune: Literal["iterative"] | None
    prune_steps: int
    prune_share: float

    def __post_init__(self) -> None:
        steps, share = self.prune_steps, self.prune_share
        if self.prune not in (None, "iterative"):
            raise UserError(f"student.prune={self.prune} is unknown, expected iterative or null")
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise UserError(f"got student.prune_steps={steps}, expected a whole number of at least 1")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise UserError(f"got student.prune_share={share}, expected a number above 0 and at most 1")

    @property
    def is_set(self) -> bool:
        """Returns whether a student is changed at all, now or in steps."""
        return (self.heads, self.ffn, self.embedding_dim, self.prune) != (None, None, None, None)

    def check(self, *, copies: bool, can_be_cut: bool) -> None:
        """Raises UserError if the student starts from random weights, or is one that cannot be cut."""
        if self.is_set and not can_be_cut:
            raise UserError(
                "student.heads, ffn, embedding_dim and prune cut no student for long texts, and none of features: "
                "leave out student.attention, student.positions and student.chunk, or take another teacher"
            )
        if self.prune is not None and not copies:
            raise UserError("student.prune=iterative removes parts of the teacher, and student.init=random copies none")

    def apply(self, student: PreTrainedModel, importance: Callable[[], Importance] | None) -> PreTrainedModel:
        """Returns the student with the most important heads and inner neurons, and with narrow embeddings.

        Args:
            student: has some layers of its teacher, named in its configuration.
            importance: of the teacher; None keeps the first heads and neurons.

        Raises:
            UserError: for sizes that the student cannot have.
        """
        if not self.is_set:
            return student
        whole = Sizes.of(student)
        heads, neurons = choose_counts("heads", self.heads, whole.heads), choose_counts("ffn", self.ffn, whole.neurons)
        check_rank(student, self.embedding_dim)
        scores = _no_importance(whole)
        if importance is not None and (heads, neurons) != (whole.heads, whole.neurons):
            scores = importance().of_layers(student.config.teacher_layers)
        return narrow(
            student, heads=take_strongest(scores.heads, heads), neurons=take_strongest(scores.neurons, neurons),
            embedding_dim=self.embedding_dim,
        )  # fmt: skip


def _no_importance(whole: Sizes) -> Importance:
    """Returns the importance of a model of which nothing is known: all are alike."""
    zeros: list[list[Tensor]] = [[torch.zeros(size) for size in sizes] for sizes in (whole.heads, whole.neurons)]
    return Importance(*zeros)


def choose_counts(option: str, given: int | Sequence[int] | None, whole: Sequence[int]) -> list[int]:
    """Returns the number of heads or inner neurons of each layer.

    Args:
        given: the value of the option, one number or one for each layer; None for all.
        whole: how many each layer has in the teacher.

    Raises:
        UserError: for no whole number, one out of range, or more or fewer numbers than layers.
    """
    if given is None:
        return list(whole)
    counts = [given] * len(whole) if not isinstance(given, Sequence) or isinstance(given, str) else list(given)
    if len(counts) != len(whole):
        raise UserError(
            f"student.{option}={counts} has {len(counts)} numbers, expected one for each of {len(whole)} layers"
        )
    for count, most in zip(counts, whole, strict=True):
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= most:
            shown = "heads" if option == "heads" else "inner neurons"
            raise UserError(
                f"got student.{option}={given}, expected a whole number from 1 to {most}: a layer of the teacher has "
                f"{most} {shown}"
            )
    return counts


def check_rank(student: PreTrainedModel, embedding_dim: int | None) -> None:
    """Raises UserError for a width of embeddings that a student cannot have."""
    if embedding_dim is None:
        return
    width = int(student.config.hidden_size)
    if isinstance(embedding_dim, bool) or not isinstance(embedding_dim, int) or not 1 <= embedding_dim < width:
        raise UserError(
            f"got student.embedding_dim={embedding_dim}, expected a whole number from 1 to {width - 1}, below the "
            f"width {width} of the layers: leave it out for embeddings of this width"
        )
    if student.get_output_embeddings() is not None:
        raise UserError(
            f"student.embedding_dim is for students without a head over the vocabulary, and a "
            f"{type(student).__name__} has one, which reads the table: leave it out, or take +student=albert"
        )
