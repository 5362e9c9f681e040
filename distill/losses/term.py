"""The contract of a loss term, and the sums that several terms share."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from distill.contracts import IGNORED, Items, Likelihood, Outputs

Half = Literal["encoder", "decoder"]  # Of an encoder-decoder; other models are encoders alone.


@dataclass(frozen=True)
class EncoderSize:
    """The size of a model's encoder.

    Args:
        width: of the hidden states.
        layers: number of layers.
        heads: attention heads of a layer; None without attention.
        attention_width: of the queries, keys and values of all heads; None without attention.
        is_nested: whether prefixes of the vectors of texts are to be vectors themselves; `width` may be that of one.
        decoder_layers: number of layers of the decoder of an encoder-decoder, None without one.
    """

    width: int
    layers: int
    heads: int | None = None
    attention_width: int | None = None
    is_nested: bool = False
    decoder_layers: int | None = None

    def depth_of(self, half: Half) -> int:
        """Returns the number of layers of one half; 0 for the decoder of a model without one."""
        return self.layers if half == "encoder" else self.decoder_layers or 0


class Term(nn.Module):
    """A loss `sum / count`, where `forward(student, teacher, items)` returns the sum `[]` and the count `[]`.

    `student.logits` and `teacher.logits` are `[n, C]`, one row for each item. `hidden_states` exist if they are in
    `needs`. The count depends only on the items, because a step divides by the count of all its micro-batches.

    Attributes:
        weight: factor of the term in the objective's sum, 0 or more; a term of weight 0 is left out.
        needs: outputs that the term reads besides logits: a subset of `hidden_states`, `attentions`,
            `attention_vectors`, and of an encoder-decoder `decoder_hidden_states` and `cross_attentions`.
        maps_layers: whether the term reads hidden states of several layers. Both models must then give those of the
            embeddings and of every layer, all of one width.
        compares_heads: whether the term compares attention scores head by head. They must be plain products of
            queries and keys, and both models must have the same number of heads.
        needs_teacher: whether the term reads the teacher's outputs.
        reads_logits: whether the term reads logits of the items.
        reads_every_token: whether the term reads logits of all tokens of a task over a vocabulary.
        accepts_top_k: whether the top k of the teacher's logits over a vocabulary are enough. `get_logits` and
            `logits_at` then restore `[n, C]`, which `teacher.logits` has not.
        likelihoods: the meanings of logits that the term can learn from.
        tokens_only: whether the term is only for tasks whose classes are tokens.
        replaced_only: whether the term is for tasks with replaced tokens alone, which no other term can learn.
        across_examples: whether the term compares the examples of a micro-batch with each other.
        needs_data: the examples that the term learns from, in words, if not every task has them; else empty.
        label_columns: the columns of batches with labels that the term reads by their name. A task must have them.
        targets: the option of the task with another model whose outputs the term learns from, for some terms.
        student_share: the share of micro-batches whose targets the student writes, from 0 to 1.
        sampling_temperature: of that writing.
        fits_teacher: whether `fit` must be called with the teacher's logits before the training, after `connect`.
    """

    needs: frozenset[str] = frozenset()
    maps_layers = False
    compares_heads = False
    needs_teacher = True
    reads_logits = True
    reads_every_token = False
    accepts_top_k = False
    likelihoods: frozenset[Likelihood] = frozenset({"softmax", "sigmoid", "gaussian"})
    tokens_only = False
    replaced_only = False
    across_examples = False
    needs_data = ""
    label_columns: frozenset[str] = frozenset()
    targets = ""
    fits_teacher = False
    student_share = 0.0
    sampling_temperature = 1.0

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__()
        if not weight >= 0:
            raise ValueError(f"got weight {weight} for {type(self).__name__}, expected 0 or more")
        self.weight = float(weight)

    @property
    def drawn_at(self) -> float | None:
        """Returns the temperature of the draws that can replace the teacher's logits over a vocabulary, or None."""
        return None

    def check_sizes(self, student: EncoderSize, teacher: EncoderSize) -> None:
        """Raises UserError if the options of the term do not suit encoders of these sizes."""

    def connect(self, student: EncoderSize, teacher: EncoderSize) -> None:
        """Prepares for encoders of these sizes. Terms that compare only logits ignore it."""

    def fit(self, teacher_logits: Iterable[Tensor]) -> None:
        """Takes what the term needs from the teacher's logits on train, batches of `[n, C]`."""

    def attention_layers(self, student_depth: int, teacher_depth: int) -> tuple[tuple[int, int], ...]:
        """Returns pairs of a student's and a teacher's layer, from 1, whose attention vectors the term compares."""
        return ()

    def teacher_layers(self, student_depth: int, teacher_depth: int) -> tuple[int, ...]:
        """Returns the indices of the teacher's hidden states that the term reads; 0 is the output of the embeddings."""
        return ()

    def suits(self, *, likelihood: Likelihood, classes_are_tokens: bool) -> bool:
        """Returns whether the term can learn a task of this kind."""
        knows_logits = likelihood in self.likelihoods or not self.reads_logits
        return knows_logits and (classes_are_tokens or not self.tokens_only)

    def count(self, items: Items) -> Tensor:
        """Returns the number of items that the term averages over, `[]`."""
        return count_items(items) if items.chosen is None else items.chosen.sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        """Returns the sum of the loss over the items and their count."""
        raise TypeError(f"{type(self).__name__} has no forward(student, teacher, items)")


def count_items(items: Items) -> Tensor:
    """Returns the number of all items, `[]`."""
    return torch.tensor(len(items), device=items.labels.device)


def in_chunks(compute: Callable[[Items], Tensor], items: Items, size: int | None) -> Iterator[Tensor]:
    """Yields `compute(items)`, or where there are more than `size` items its results for chunks of so many.

    The values inside `compute` are freed after a chunk and computed again in the backward pass, so that memory does not
    grow with the number of items.
    """
    for part in items.parts(size):
        if part is items:
            yield compute(items)
        else:
            yield checkpoint(compute, part, use_reentrant=False, preserve_rng_state=False)  # type: ignore[misc]


def get_logits(outputs: Outputs) -> Tensor:
    """Returns the logits `[n, C]` of the items.

    Raises:
        ValueError: if the outputs have no logits.
    """
    logits = outputs.logits_at(1.0)
    if logits is None:
        raise ValueError("got outputs without logits, expected [n, C] at the items")
    return logits


def divisors(counts: Tensor) -> Tensor:
    """Returns the counts `[terms]` to divide sums by: 1 in place of 0, because a sum over nothing is 0.

    A count of weighted items may be between 0 and 1.
    """
    return counts.where(counts > 0, 1.0)


def select_chosen(values: Tensor, items: Items) -> Tensor:
    """Returns the rows `[n, ...]` of the items that the task scores."""
    return values if items.chosen is None else values[items.chosen]


def cross_entropy_sum(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns the sum of the cross-entropies at labels `[n]` other than -100, with a gradient even for none of them.

    `weights [n]` multiply the cross-entropies.
    """
    labelled = labels != IGNORED
    if weights is not None:
        losses = F.cross_entropy(_at_least_float32(logits[labelled]), labels[labelled], reduction="none")
        return (losses * weights[labelled]).sum()
    return F.cross_entropy(_at_least_float32(logits[labelled]), labels[labelled], reduction="sum")


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def binary_cross_entropy_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """Returns the sum over the items of the mean binary cross-entropy of their labels.

    Args:
        logits: `[n, C]`, the log-odds of each label.
        targets: `[n, C]`, the probability of each label, 0 or 1 for true labels.
    """
    losses = F.binary_cross_entropy_with_logits(logits.float(), targets.float(), reduction="none")
    return losses.mean(dim=-1).sum()


def binary_divergence_sum(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Returns the sum over the items of the mean KL divergence of their labels from those of the teacher.

    Args:
        logits, teacher_logits: `[n, C]`, the log-odds of each label.
    """
    targets = teacher_logits.sigmoid()
    losses, entropies = (
        F.binary_cross_entropy_with_logits(each, targets, reduction="none") for each in (logits, teacher_logits)
    )
    return (losses - entropies).mean(dim=-1).sum()


def squared_error_sum(values: Tensor, targets: Tensor) -> Tensor:
    """Returns the sum of the squared differences of `[n, 1]`."""
    return (values.float() - targets.float()).square().sum()


def scatter_logits(logits: Tensor, valid: Tensor) -> Tensor:
    """Returns `[n, C]` with the logits of the classes that are `valid [n, C]`, which are given one after another.

    The other classes have the smallest finite number, as in `mask_logits`.
    """
    return logits.new_full(valid.shape, torch.finfo(logits.dtype).min).masked_scatter(valid, logits)


def mask_logits(logits: Tensor, valid: Tensor | None) -> Tensor:
    """Returns the logits `[n, C]` with the smallest finite number at classes that an item cannot have."""
    return logits if valid is None else logits.masked_fill(~valid, torch.finfo(logits.dtype).min)
