"""Loss terms that compare relations: between texts, between classes, and between the states of all tokens."""

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from distill.core.contracts import POOLED, Items, Likelihood, Outputs
from distill.core.options import check_arguments
from distill.losses.hidden_states import Layers, match_layers
from distill.losses.term import EncoderSize, Term, get_logits, mask_logits, select_chosen


class RelationalKD(Term):
    """Distances and angles between the texts of a micro-batch (Park et al., arXiv 1904.05068, section 3.2).

    With the mean last hidden states `t_i [H_teacher]` and `s_i [H_student]` of the texts, whose widths may differ,
    `distance * mean_ij l(||s_i - s_j|| / mu_s, ||t_i - t_j|| / mu_t) + angle * mean_ijk l(cos s_ijk, cos t_ijk)`. Here
    l is the Huber loss with delta 1, mu the mean distance of all pairs, and `cos s_ijk` the cosine of the angle at
    `s_j` between `s_i` and `s_k`. The means are over pairs and triplets of different texts; two texts have no angle.

    Args:
        distance: weight of the distances.
        angle: weight of the angles. In the paper it is twice that of the distances.
    """

    needs = frozenset({POOLED})
    reads_logits = False
    across_examples = True

    @check_arguments
    def __init__(self, *, weight: float = 1.0, distance: NonNegativeFloat = 1.0, angle: NonNegativeFloat = 2.0) -> None:
        super().__init__(weight=weight)
        self.distance, self.angle = float(distance), float(angle)

    def count(self, items: Items) -> Tensor:
        return torch.tensor(len(items["attention_mask"]), device=items.labels.device)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if student.pooled is None or teacher.pooled is None:
            raise ValueError("got outputs without pooled states, expected [B, H] of both models")
        count = self.count(items)
        differences, expected = (of.float()[None] - of.float()[:, None] for of in (student.pooled, teacher.pooled))
        of_pairs = F.huber_loss(_relative_lengths(differences), _relative_lengths(expected), reduction="sum")
        of_triplets = F.huber_loss(_cosines(differences), _cosines(expected), reduction="sum")
        texts = len(differences)
        pairs, triplets = texts * (texts - 1), texts * (texts - 1) * (texts - 2)
        total = self.distance * of_pairs / max(1, pairs) + self.angle * of_triplets / max(1, triplets)
        return total * count, count


def _relative_lengths(differences: Tensor) -> Tensor:
    """Returns the lengths of differences `[B, B, H]` divided by the mean of all pairs, `[B, B]`; 0 on the diagonal."""
    squares = differences.square().sum(dim=-1)
    lengths = squares.where(squares > 0, 1.0).sqrt() * (squares > 0)  # A root has no gradient at 0.
    pairs = len(lengths) * (len(lengths) - 1)
    return lengths / (lengths.sum() / max(1, pairs)).clamp(min=1e-12)


def _cosines(differences: Tensor) -> Tensor:
    """Returns the cosine of the angle at j between i and k, `[B, B, B]` in the order j, i, k; 0 where two are the same.

    Args:
        differences: `[B, B, H]`, from the text of the first axis to that of the second.
    """
    directions = F.normalize(differences, dim=-1)
    others = 1 - torch.eye(len(directions), device=directions.device)
    return torch.matmul(directions, directions.transpose(1, 2)) * others


class DIST(Term):
    """Correlations between classes and within classes (Huang et al., arXiv 2205.10536).

    `T^2 * (between * mean_i (1 - r(p_s[i], p_t[i])) + within * mean_c (1 - r(p_s[:, c], p_t[:, c])))` with Pearson's r
    and the probabilities `p [n, C]` of the items of a micro-batch, the softmax of the logits divided by T. The factor
    T^2 is that of the authors' code. Unlike a divergence it lets the student scale and shift its probabilities.

    Args:
        between: weight of the correlation over the classes of an item.
        within: weight of the correlation over the items of a class; a single item has none.
        temperature: T above 0.
    """

    likelihoods: frozenset[Likelihood] = frozenset({"softmax"})
    across_examples = True

    @check_arguments
    def __init__(
        self,
        *,
        weight: float = 1.0,
        between: NonNegativeFloat = 1.0,
        within: NonNegativeFloat = 1.0,
        temperature: PositiveFloat = 1.0,
    ) -> None:
        super().__init__(weight=weight)
        self.between, self.within, self.temperature = float(between), float(within), float(temperature)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        valid = None if items.valid is None else select_chosen(items.valid, items)
        probabilities, expected = (
            F.softmax(mask_logits(select_chosen(get_logits(of), items).float() / self.temperature, valid), dim=-1)
            for of in (student, teacher)
        )
        total = self.between * _correlation_loss(probabilities, expected).sum()
        if len(probabilities) > 1:
            of_classes = _correlation_loss(probabilities.T, expected.T)
            total = total + self.within * of_classes.mean() * len(probabilities)
        return self.temperature**2 * total, self.count(items)


def _correlation_loss(values: Tensor, expected: Tensor) -> Tensor:
    """Returns `1 - r` of each row of `[n, m]`, with Pearson's correlation; 1 for a row of equal numbers."""
    centred, other = (of - of.mean(dim=-1, keepdim=True) for of in (values, expected))
    return 1 - F.cosine_similarity(centred, other, dim=-1)


class CKA(Term):
    """`1 - CKA` of the hidden states of matched layers, which may have any widths.

    Linear centred kernel alignment (Kornblith et al., arXiv 1905.00414, section 3) of the states of all N tokens of a
    micro-batch except padding, `X [N, H_student]` and `Y [N, H_teacher]` with columns of mean 0:
    `||Y^T X||^2 / (||X^T X|| ||Y^T Y||)` with Frobenius norms. It is 1 for states that are equal up to a rotation and
    a factor, so that no projection is learned. The loss is the mean over the pairs of layers.

    Args:
        layers: the teacher's layer of each student layer: `uniform`, `last`, or a list of layers counted from 1.
    """

    needs = frozenset({"hidden_states"})
    reads_logits = False
    maps_layers = True
    across_examples = True

    @check_arguments
    def __init__(self, *, weight: float = 1.0, layers: Layers = "uniform") -> None:
        super().__init__(weight=weight)
        self.layers = layers if isinstance(layers, str) else list(layers)

    def check_sizes(self, student: EncoderSize, teacher: EncoderSize) -> None:
        match_layers(self.layers, student.layers, teacher.layers)

    def teacher_layers(self, student_depth: int, teacher_depth: int) -> tuple[int, ...]:
        return tuple(sorted({layer for _, layer in match_layers(self.layers, student_depth, teacher_depth)}))

    def count(self, items: Items) -> Tensor:
        return items["attention_mask"].sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if student.hidden_states is None or teacher.hidden_states is None:
            raise ValueError("got outputs without hidden states, expected [B, L, H] of both models")
        tokens, count = items["attention_mask"].bool(), self.count(items)
        pairs = match_layers(self.layers, len(student.hidden_states) - 1, len(teacher.hidden_states) - 1)
        of_layers = [
            1 - _alignment(student.hidden_states[one][tokens], teacher.hidden_states[other][tokens])
            for one, other in pairs
        ]
        return torch.stack(of_layers).mean() * count, count


def _alignment(states: Tensor, expected: Tensor) -> Tensor:
    """Returns the linear CKA of states `[N, H]` and `[N, G]`; 0 without variance."""
    with torch.autocast(states.device.type, enabled=False):
        first, second = (of.float() - of.float().mean(dim=0) for of in (states, expected))
        own, other = (torch.linalg.matrix_norm(of.T @ of) for of in (first, second))
        aligned: Tensor = (second.T @ first).square().sum() / (own * other).clamp(min=1e-12)
        return aligned
