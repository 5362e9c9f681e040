"""Loss terms that compare relations: between texts, between classes, and between the states of matched layers."""

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from distill.core.contracts import POOLED, Items, Likelihood, Outputs
from distill.core.options import check_arguments
from distill.losses.hidden_states import Layers, count_texts, get_hidden_states, match_layers, pooled_states
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
        return count_texts(items)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        count = self.count(items)
        differences, expected = (of.float()[None] - of.float()[:, None] for of in pooled_states(student, teacher))
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


class _MatchedLayers(Term):
    """A term that compares the hidden states of matched layers, which may have any widths.

    Args:
        layers: the teacher's layer of each student layer: `uniform`, `last`, or a list of layers counted from 1.
    """

    needs = frozenset({"hidden_states"})
    reads_logits = False
    maps_layers = True

    @check_arguments
    def __init__(self, *, weight: float = 1.0, layers: Layers = "uniform") -> None:
        super().__init__(weight=weight)
        self.layers = layers if isinstance(layers, str) else list(layers)

    def check_sizes(self, student: EncoderSize, teacher: EncoderSize) -> None:
        match_layers(self.layers, student.layers, teacher.layers)

    def teacher_layers(self, student_depth: int, teacher_depth: int) -> tuple[int, ...]:
        return tuple(sorted({layer for _, layer in match_layers(self.layers, student_depth, teacher_depth)}))

    def match_states(self, student: Outputs, teacher: Outputs) -> list[tuple[Tensor, Tensor]]:
        """Returns the hidden states of each pair of layers, `[B, L, H]` of both models."""
        states, expected = get_hidden_states(student), get_hidden_states(teacher)
        pairs = match_layers(self.layers, len(states) - 1, len(expected) - 1)
        return [(states[one], expected[other]) for one, other in pairs]


class CKA(_MatchedLayers):
    """`1 - CKA` of the hidden states of matched layers.

    Linear centred kernel alignment (Kornblith et al., arXiv 1905.00414, section 3) of the states of all N tokens of a
    micro-batch except padding, `X [N, H_student]` and `Y [N, H_teacher]` with columns of mean 0:
    `||Y^T X||^2 / (||X^T X|| ||Y^T Y||)` with Frobenius norms. It is 1 for states that are equal up to a rotation and
    a factor, so that no projection is learned. The loss is the mean over the pairs of layers.

    Args:
        layers: the teacher's layer of each student layer: `uniform`, `last`, or a list of layers counted from 1.
    """

    across_examples = True

    def count(self, items: Items) -> Tensor:
        return items["attention_mask"].sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        tokens, count = items["attention_mask"].bool(), self.count(items)
        of_layers = [
            1 - _alignment(states[tokens], expected[tokens]) for states, expected in self.match_states(student, teacher)
        ]
        return torch.stack(of_layers).mean() * count, count


def _alignment(states: Tensor, expected: Tensor) -> Tensor:
    """Returns the linear CKA of states `[N, H]` and `[N, G]`; 0 without variance."""
    with torch.autocast(states.device.type, enabled=False):
        first, second = (of.float() - of.float().mean(dim=0) for of in (states, expected))
        own, other = (torch.linalg.matrix_norm(of.T @ of) for of in (first, second))
        aligned: Tensor = (second.T @ first).square().sum() / (own * other).clamp(min=1e-12)
        return aligned


class Contrastive(_MatchedLayers):
    """Cross-entropy of a text's states in the teacher among those of all texts of the micro-batch.

    `-log exp(s_i t_i / T) / sum_j exp(s_i t_j / T)`. The vectors `s_i` and `t_i [D]` of length 1 are learned linear
    maps of the mean states of matched layers over the text's tokens, one after another, as in CoDIR (Sun et al., arXiv
    2009.14167, section 3.2). Contrastive representation distillation (Tian et al., arXiv 1910.10699) has those of the
    last layer alone, and both have further negatives from a memory of earlier batches.

    Args:
        layers: the teacher's layer of each student layer: `uniform`, `last`, or a list of layers counted from 1.
        dimensions: D.
        temperature: T above 0.
    """

    across_examples = True

    @check_arguments
    def __init__(
        self,
        *,
        weight: float = 1.0,
        layers: Layers = "uniform",
        dimensions: PositiveInt = 128,
        temperature: PositiveFloat = 0.1,
    ) -> None:
        super().__init__(weight=weight, layers=layers)
        self.dimensions, self.temperature = dimensions, float(temperature)

    def connect(self, student: EncoderSize, teacher: EncoderSize) -> None:
        self.maps = nn.ModuleList(nn.Linear(student.layers * of.width, self.dimensions) for of in (student, teacher))

    def count(self, items: Items) -> Tensor:
        return count_texts(items)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        weights = items["attention_mask"].unsqueeze(-1)
        lengths = weights.sum(dim=1).clamp(min=1)
        vectors, expected = (
            F.normalize(
                of_model(torch.cat([(of * weights).sum(dim=1) / lengths for of in states], dim=-1)).float(), dim=-1
            )
            for of_model, states in zip(self.maps, zip(*self.match_states(student, teacher), strict=True), strict=True)
        )
        own = torch.arange(len(vectors), device=vectors.device)
        return F.cross_entropy(vectors @ expected.T / self.temperature, own, reduction="sum"), self.count(items)


class VariationalInformation(_MatchedLayers):
    """Negative log-likelihood of the teacher's states given the student's (Ahn et al., arXiv 1904.05835, equation 4).

    For the state t of a token in each matched layer it is the mean over the dimensions d of
    `log sigma_d + (t_d - mu_d)^2 / (2 sigma_d^2)`, without its constant, with a learned linear map `mu = W h + b` of
    the student's state h. As in the paper `sigma_d^2 = softplus(a_d) + 1e-5` depends on the dimension alone. The loss
    is the mean over the pairs of layers, and may be below 0.

    Args:
        layers: the teacher's layer of each student layer: `uniform`, `last`, or a list of layers counted from 1.
    """

    def connect(self, student: EncoderSize, teacher: EncoderSize) -> None:
        self.means = nn.ModuleList(nn.Linear(student.width, teacher.width) for _ in range(student.layers))
        self.scales = nn.ParameterList(torch.zeros(teacher.width) for _ in range(student.layers))  # a

    def count(self, items: Items) -> Tensor:
        return items["attention_mask"].sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        tokens, total = items["attention_mask"].bool(), torch.zeros((), device=items.labels.device)
        pairs = self.match_states(student, teacher)
        for (states, expected), mean, scale in zip(pairs, self.means, self.scales, strict=True):
            error = expected[tokens].float() - mean(states[tokens]).float()
            variance = F.softplus(scale) + 1e-5
            total = total + (variance.log() + error.square() / variance).mean(dim=-1).sum() / 2
        return total / len(pairs), self.count(items)
