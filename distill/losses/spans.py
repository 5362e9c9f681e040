"""The loss term that predicts the tokens of a masked span from the two tokens at its boundary."""

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from distill.contracts import IGNORED, Items, Outputs
from distill.losses.term import EncoderSize, Term, cross_entropy_sum
from distill.options import check_arguments

INITIAL_DEVIATION = 0.02  # Of new weights, as in BERT.


class SpanBoundary(Term):
    """Cross-entropy of the tokens of a span, each predicted from the tokens before and behind the span.

    The span boundary objective of SpanBERT (Joshi et al., arXiv 1907.10529, section 3.2):
    `y_i = f(x_{s-1}, x_{e+1}, p_{i-s+1})` for the token i of the span from s to e, with the last hidden states x and
    learned vectors p of the position in the span. f is two layers, each `LayerNorm(GeLU(W h))`.

    A span is a run of tokens chosen for prediction, so that a single token is one too, and adjacent spans are joined as
    in the authors' code. At the edge of a text the boundary is a special token. A run that reaches the first or the
    last token of a sequence has no boundary and is left out.

    The head of the model decodes y_i. Unlike in the paper, that is its whole head, with the layer before the decoder,
    because the decoder of some models is narrower than their hidden states.

    Args:
        position_width: width of the vectors p; 200 in the paper.
        positions: number of these vectors. Tokens further from the beginning of a span share the last one, whereas the
            authors' code leaves them out.
    """

    needs_teacher = False
    tokens_only = True
    needs_data = "tokens that are hidden and chosen for prediction (task=mlm)"
    label_columns = frozenset({"labels"})

    @check_arguments
    def __init__(self, *, weight: float = 1.0, position_width: PositiveInt = 200, positions: PositiveInt = 20) -> None:
        super().__init__(weight=weight)
        self.position_width, self.positions = position_width, positions
        self.predictor: BoundaryPredictor | None = None

    def connect(self, student: EncoderSize, teacher: EncoderSize) -> None:
        """Creates f with random weights. It is trained with the model and is no part of it."""
        self.predictor = BoundaryPredictor(
            width=student.width, position_width=self.position_width, positions=self.positions
        )

    def count(self, items: Items) -> Tensor:
        if "labels" not in items.batch:
            return torch.zeros((), dtype=torch.long, device=items.labels.device)
        return find_boundaries(items["labels"], items["attention_mask"])[2].sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if student.decode is None or student.last_hidden_state is None or items.index is None:
            raise ValueError("boundary got outputs without decode, expected those of a task whose classes are tokens")
        if self.predictor is None:
            raise ValueError("boundary has no layers yet: call connect() with the size of the encoder first")
        left, right, offsets, bounded = _locate(items)
        states = student.last_hidden_state.flatten(0, 1)
        predicted = self.predictor(states[left], states[right], offsets)
        return cross_entropy_sum(student.decode(predicted), items.labels[bounded]), self.count(items)


class BoundaryPredictor(nn.Module):
    """The function f of `SpanBoundary`.

    Args:
        width: of the hidden states.
        position_width: of the vectors of positions.
        positions: number of these vectors.
    """

    def __init__(self, *, width: int, position_width: int, positions: int) -> None:
        super().__init__()
        self.positions = nn.Embedding(positions, position_width)
        self.layers = nn.Sequential(
            nn.Linear(2 * width + position_width, width), nn.GELU(), nn.LayerNorm(width),
            nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width),
        )  # fmt: skip
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=INITIAL_DEVIATION)

    def forward(self, left: Tensor, right: Tensor, offsets: Tensor) -> Tensor:
        """Returns y `[n, H]`.

        Args:
            left, right: hidden states `[n, H]` before and behind the span.
            offsets: `[n]`, the position of the token in its span, from 0.
        """
        last = self.positions.num_embeddings - 1
        states = torch.cat([left, right, self.positions(offsets.clamp(max=last))], dim=-1)
        predicted: Tensor = self.layers(states)
        return predicted


def find_boundaries(labels: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the tokens before and behind the span of each chosen token, and whether there are both, `[B, L]` each.

    Args:
        labels: `[B, L]`, -100 at tokens that are not chosen.
        attention_mask: `[B, L]`, 0 at padding, which is no boundary.
    """
    length = labels.shape[1]
    chosen = labels != IGNORED
    outside = ~chosen & attention_mask.bool()
    position = torch.arange(length, device=labels.device).expand_as(labels)
    left = position.where(outside, -1).cummax(dim=1).values
    right = position.where(outside, length).flip(1).cummin(dim=1).values.flip(1)
    return left, right, chosen & (left >= 0) & (right < length)


def _locate(items: Items) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns, of the items with a boundary, the tokens before and behind the span, and the position in the span.

    Tokens are counted over the whole batch, as in `Items.index`. The fourth tensor `[n]` is whether an item has a
    boundary.
    """
    left, right, bounded = (
        each.flatten()[items.index] for each in find_boundaries(items["labels"], items["attention_mask"])
    )
    assert items.index is not None
    start = items.row * items["labels"].shape[1]
    left, right, index = (each[bounded] for each in (start + left, start + right, items.index))
    return left, right, index - left - 1, bounded
