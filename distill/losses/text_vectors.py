"""Loss terms on the vectors of texts, `[n, D]` in the place of logits."""

from collections.abc import Iterable
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from distill.core.console import print_line
from distill.core.contracts import CROSS_SCORES, PAIR_CLASSES, SOURCE_VECTORS, Items, Likelihood, Outputs
from distill.core.errors import UserError
from distill.core.options import check_arguments
from distill.losses.term import EncoderSize, Term, count_items, cross_entropy_sum, get_logits

VECTORS: frozenset[Likelihood] = frozenset({"vector"})


class EmbeddingMSE(Term):
    """Squared distance of the student's vector from the teacher's: `||W u - v||^2`, averaged over the texts.

    The loss of Reimers and Gurevych, arXiv 2004.09813, section 2; `targets=text` is the case of one language, and the
    others are for groups of a text and its translations. Their code averages it over the width too. Where the widths
    differ, the learned projection `W` maps the student's vector to the teacher's width. It is not part of the student.

    With `projection=pca` it is `||u - P v||^2`. The rows of `P` are the directions of the largest variance of the
    teacher's vectors of train, as many as the student's vector has numbers. The vectors are not centred before they are
    projected, as in the distillation example of sentence-transformers, the code of arXiv 1908.10084. `P` is computed
    once before the training, and is part of the checkpoints. Nothing projects the student's own vectors.

    If prefixes of the student's vector are vectors themselves, vectors of the teacher's width are projected too. Else a
    prefix could learn only the same dimensions of the teacher, which are no better than others. `W` then starts with
    the identity, and `P` is a rotation.

    Args:
        projection: for vectors of other widths `learned`, or `pca` where the student's are narrower, or None to refuse
            them.
        targets: the teacher's vector of the `text` itself, that of the `first` text of its group, or in place of it
            the vector of the task's `source_encoder`, for examples that have one. Those have the student's width.
    """

    likelihoods = VECTORS
    components: Tensor | None  # P, `[student's width, teacher's width]`; None without PCA.

    @check_arguments
    def __init__(
        self,
        *,
        weight: float = 1.0,
        projection: Literal["learned", "pca"] | None = "learned",
        targets: Literal["text", "first", "source_encoder"] = "text",
    ) -> None:
        super().__init__(weight=weight)
        self.projection, self.targets = projection, targets
        if targets == "source_encoder":
            self.needs_teacher, self.needs_data = False, "texts with a vector of task.source_encoder"
        self.map: nn.Module = nn.Identity()
        self.register_buffer("components", None)  # Part of the checkpoints.

    @property
    def keeps_space(self) -> bool:
        return self.projection == "pca"

    @property
    def teaches_space(self) -> bool:
        return self.targets == "text" and not self.keeps_space

    def check_sizes(self, student: EncoderSize, teacher: EncoderSize) -> None:
        if student.is_nested and not self.needs_teacher:
            raise UserError(
                "learns whole vectors of task.source_encoder: leave out objective.dimensions, or set its weight to 0"
            )
        if not self._projects(student, teacher):
            return
        widths = f"compares vectors {teacher.vector_width} wide (teacher) and {student.vector_width} wide (student)"
        if self.projection is None:
            raise UserError(
                f"{widths} without a projection: set projection=learned, or projection=pca for a narrower student, or "
                "take a student of the teacher's width"
            )
        if self.projection == "pca" and student.vector_width > teacher.vector_width:
            raise UserError(
                f"{widths}, and projection=pca makes the teacher's narrower: set projection=learned, or take a "
                "narrower student"
            )

    def _projects(self, student: EncoderSize, teacher: EncoderSize) -> bool:
        return self.needs_teacher and (student.is_nested or student.vector_width != teacher.vector_width)

    def connect(self, student: EncoderSize, teacher: EncoderSize) -> None:
        if not self._projects(student, teacher):
            return
        if self.projection == "pca":
            self.components = torch.full((student.vector_width, teacher.vector_width), torch.nan)  # Until `fit`.
            self.fits_teacher = True
        else:
            self.map = nn.Linear(student.vector_width, teacher.vector_width, bias=False)
            if student.is_nested:
                nn.init.eye_(self.map.weight)

    def fit(self, teacher_logits: Iterable[Tensor]) -> None:
        """Sets the projection to the principal components of the teacher's vectors, batches of `[n, D]`."""
        assert self.components is not None
        width = self.components.shape[1]
        number, total = 0, torch.zeros(width, dtype=torch.float64)
        products = torch.zeros(width, width, dtype=torch.float64)
        for batch in teacher_logits:
            vectors = batch.detach().cpu().double()
            number, total = number + len(vectors), total + vectors.sum(dim=0)
            products += vectors.T @ vectors
        if not number:
            raise ValueError("got no vectors of the teacher, expected those of train")
        mean = total / number
        variances, directions = torch.linalg.eigh(products / number - torch.outer(mean, mean))  # From the smallest.
        chosen = directions[:, -len(self.components) :].flip(dims=[1]).T  # [student's width, teacher's width]
        # The sign of a direction is arbitrary: its largest number is positive, on every machine.
        largest = chosen.gather(1, chosen.abs().argmax(dim=1, keepdim=True))
        self.components.copy_(chosen * largest.sign())
        kept, whole = float(variances[-len(chosen) :].sum()), float(variances.sum())
        share = f"{kept / whole:.1%} of " if whole > 0 else ""
        print_line(f"PCA: {len(chosen)} of {width} directions hold {share}the variance of the teacher's vectors")

    def count(self, items: Items) -> Tensor:
        return super().count(items) if self.needs_teacher else (~_source_vectors(items)[:, 0].isnan()).sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        vectors = self.map(get_logits(student)).float()
        if self.needs_teacher:
            return (vectors - self._teacher_vectors(teacher, items)).square().sum(), self.count(items)
        targets = _source_vectors(items)
        chosen = ~targets[:, 0].isnan()
        if not bool(chosen.any()):
            return _no_loss(student), self.count(items)
        if vectors.shape[-1] != targets.shape[-1]:
            raise UserError(
                f"the vectors of task.source_encoder are {targets.shape[-1]} wide and the student's "
                f"{vectors.shape[-1]}: take a student of that width"
            )
        return (vectors[chosen] - targets[chosen]).square().sum(), self.count(items)

    def _teacher_vectors(self, teacher: Outputs, items: Items) -> Tensor:
        """Returns the teacher's targets `[n, D]` in the student's space."""
        vectors = get_logits(teacher).float()
        if self.targets == "first":
            vectors = vectors[torch.searchsorted(items.row, items.row)]  # The rows of items are in order.
        if self.components is None:
            return vectors
        with torch.autocast(vectors.device.type, enabled=False):
            return vectors @ self.components.T


class PairwiseSimilarity(Term):
    """Squared difference of student and teacher in the cosine of two texts, over all pairs of a micro-batch.

    After the similarity matrices of Tung and Mori, arXiv 1907.09682, equation 4, whose rows are normalised products;
    cosines do not depend on the other texts of a batch. The widths of the vectors may differ. The mean is over the
    pairs of all micro-batches of a step.
    """

    likelihoods = VECTORS
    across_examples = True

    def count(self, items: Items) -> Tensor:
        number = count_items(items)
        return number * (number - 1) // 2

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        student_cosines, teacher_cosines = (cosines(get_logits(outputs)) for outputs in (student, teacher))
        return (student_cosines - teacher_cosines).square().triu(diagonal=1).sum(), self.count(items)


def cosines(vectors: Tensor, others: Tensor | None = None) -> Tensor:
    """Returns the cosines of all pairs of vectors `[n, D]` and `[m, D]`, by default the same, `[n, m]` in float32."""
    first = F.normalize(vectors.float(), dim=-1)
    second = first if others is None else F.normalize(others.float(), dim=-1)
    with torch.autocast(vectors.device.type, enabled=False):
        return first @ second.T


class CosineRegression(Term):
    """Squared difference of the cosine of a pair from its score, for pairs with a score.

    The regression objective of Sentence-BERT, arXiv 1908.10084, section 3. The task scales scores to 0..1. With the
    scores of a cross-encoder it is the training on silver pairs of Augmented SBERT, arXiv 2010.08240, section 3.

    Args:
        targets: `labels`, the scores of the data, or `cross_encoder`, those of the task's cross-encoder.
    """

    needs_teacher = False
    likelihoods = VECTORS
    needs_data = "pairs of texts with a score, of the data or with targets=cross_encoder of task.cross_encoder"

    @check_arguments
    def __init__(self, *, weight: float = 1.0, targets: Literal["labels", "cross_encoder"] = "labels") -> None:
        super().__init__(weight=weight)
        self.targets = targets

    def count(self, items: Items) -> Tensor:
        return self._chosen(items).sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        chosen = self._chosen(items)
        vectors = _by_example(get_logits(student), items)[chosen]  # [P, K, D]
        similarity = F.cosine_similarity(vectors[:, 0].float(), vectors[:, 1].float(), dim=-1)
        return (similarity - self._targets(items)[chosen]).square().sum(), self.count(items)

    def _targets(self, items: Items) -> Tensor:
        return _column(items, "labels" if self.targets == "labels" else CROSS_SCORES)

    def _chosen(self, items: Items) -> Tensor:
        """Returns which examples `[B]` have a pair and a score; a cross-encoder's of three texts is a margin."""
        texts, targets = items["valid"].sum(dim=1), self._targets(items)
        return ((texts >= 2) if self.targets == "labels" else (texts == 2)) & ~targets.isnan()


class MarginMSE(Term):
    """Squared difference of two margins, for a text with a positive and a negative text.

    `(scale * (q . p - q . n) - (s(q, p) - s(q, n)))^2` with the student's vectors and the scores `s` of the task's
    cross-encoder (Hofstatter et al., arXiv 2010.02666, equation 4). The paper has dot products of vectors of any length
    and no scale. Vectors of length 1 have margins from -2 to 2, so that a cross-encoder's larger ones need a scale.

    Args:
        scale: multiplies the student's margin.
    """

    needs_teacher = False
    likelihoods = VECTORS
    needs_data = "groups of three texts with a margin of task.cross_encoder"
    targets = "cross_encoder"

    @check_arguments
    def __init__(self, *, weight: float = 1.0, scale: PositiveFloat = 1.0) -> None:
        super().__init__(weight=weight)
        self.scale = float(scale)

    def count(self, items: Items) -> Tensor:
        return self._chosen(items).sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        chosen = self._chosen(items)
        if not bool(chosen.any()):
            return _no_loss(student), self.count(items)
        query, positive, negative = _triples(student, items, chosen)
        margins = self.scale * (query * (positive - negative)).sum(dim=-1)
        return (margins - _column(items, CROSS_SCORES)[chosen]).square().sum(), self.count(items)

    def _chosen(self, items: Items) -> Tensor:
        return (items["valid"].sum(dim=1) == 3) & ~_column(items, CROSS_SCORES).isnan()


class PairClassification(Term):
    """Cross-entropy of the class of a pair, by a learned layer over `[u; v; |u - v|]`, for pairs with a class.

    The classification objective of Sentence-BERT, arXiv 1908.10084, section 3, for natural language inference. The
    layer is not part of the student.

    Args:
        classes: number of classes.
    """

    needs_teacher = False
    likelihoods = VECTORS
    needs_data = "pairs of texts with a class"

    @check_arguments
    def __init__(self, *, weight: float = 1.0, classes: Annotated[int, Field(ge=2)] = 3) -> None:
        super().__init__(weight=weight)
        self.classes = classes
        self.layer: nn.Module = nn.Identity()

    def connect(self, student: EncoderSize, teacher: EncoderSize) -> None:
        self.layer = nn.Linear(3 * student.vector_width, self.classes)

    def count(self, items: Items) -> Tensor:
        return self._chosen(items).sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        chosen = self._chosen(items)
        first, second = _by_example(get_logits(student), items)[chosen][:, :2].unbind(dim=1)
        labels = _column(items, PAIR_CLASSES)[chosen].long()
        if len(labels) and int(labels.max()) >= self.classes:
            raise UserError(
                f"a pair has class {int(labels.max())}, and the term has the classes 0 to {self.classes - 1}: set its "
                "classes to the number of classes of the data"
            )
        logits = self.layer(torch.cat([first, second, (first - second).abs()], dim=-1))
        return cross_entropy_sum(logits, labels), self.count(items)

    def _chosen(self, items: Items) -> Tensor:
        return (items["valid"].sum(dim=1) >= 2) & ~_column(items, PAIR_CLASSES).isnan()


class Triplet(Term):
    """`max(||a - p|| - ||a - n|| + margin, 0)` of an anchor, a positive and a negative text, for groups of three.

    The triplet objective of Sentence-BERT, arXiv 1908.10084, section 3, with Euclidean distances.

    Args:
        margin: the distance by which a positive text is to be closer; the paper has 1.
    """

    needs_teacher = False
    likelihoods = VECTORS
    needs_data = "groups of three texts"

    @check_arguments
    def __init__(self, *, weight: float = 1.0, margin: PositiveFloat = 1.0) -> None:
        super().__init__(weight=weight)
        self.margin = float(margin)

    def count(self, items: Items) -> Tensor:
        return (items["valid"].sum(dim=1) == 3).sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        chosen = items["valid"].sum(dim=1) == 3
        if not bool(chosen.any()):
            return _no_loss(student), self.count(items)
        anchor, positive, negative = _triples(student, items, chosen)
        difference = _distance(anchor, positive) - _distance(anchor, negative)
        return F.relu(difference + self.margin).sum(), self.count(items)


class MultipleNegatives(Term):
    """Cross-entropy of a text's own second text among all later texts of the batch, for groups without a label.

    `-log softmax_j(scale * cos(a_i, p_j))_i` (Henderson et al., arXiv 1705.00652, section 4.4, with cosines). The
    second texts of other groups are negatives, and so are the third and further texts of all groups. All examples of a
    micro-batch are compared, so that larger batches have more negatives. Equal second texts are not told apart.

    Args:
        scale: multiplies the cosines, 1 / temperature.
    """

    needs_teacher = False
    likelihoods = VECTORS
    across_examples = True
    needs_data = "groups of at least two texts without a score or a class"

    @check_arguments
    def __init__(self, *, weight: float = 1.0, scale: PositiveFloat = 20.0) -> None:
        super().__init__(weight=weight)
        self.scale = float(scale)

    def count(self, items: Items) -> Tensor:
        return self._chosen(items).sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        chosen = self._chosen(items)
        if not bool(chosen.any()):
            return _no_loss(student), self.count(items)
        vectors = _by_example(get_logits(student), items)[chosen]  # [P, K, D]
        further = vectors[:, 2:][items["valid"][chosen][:, 2:]]
        candidates = torch.cat([vectors[:, 1], further])
        logits = self.scale * cosines(vectors[:, 0], candidates)
        return cross_entropy_sum(logits, torch.arange(len(vectors), device=logits.device)), self.count(items)

    def _chosen(self, items: Items) -> Tensor:
        is_labelled = ~items["labels"].isnan() | ~_column(items, PAIR_CLASSES).isnan()
        return (items["valid"].sum(dim=1) >= 2) & ~is_labelled


def _column(items: Items, name: str) -> Tensor:
    """Returns a column of numbers of the batch, `[B]`, NaN for examples without one."""
    return items.batch.get(name, torch.full_like(items["labels"], torch.nan))


def _source_vectors(items: Items) -> Tensor:
    """Returns the source encoder's vectors as targets of all texts `[n, D]`, NaN for texts without one."""
    vectors = items.batch.get(SOURCE_VECTORS)
    return items.labels.new_full((len(items), 1), torch.nan) if vectors is None else vectors[items.row]


def _by_example(vectors: Tensor, items: Items) -> Tensor:
    """Returns the vectors `[n, D]` of all texts as `[B, max(K, 2), D]`, 0 where an example has no such text."""
    valid = items["valid"]
    grouped = vectors.new_zeros(*valid.shape, vectors.shape[-1])
    grouped[valid] = vectors
    return F.pad(grouped, (0, 0, 0, max(0, 2 - valid.shape[1])))


def _distance(first: Tensor, second: Tensor) -> Tensor:
    """Returns the Euclidean distances of vectors `[n, D]`, with a finite gradient where they are equal."""
    return (first - second).square().sum(dim=-1).clamp(min=1e-12).sqrt()


def _triples(student: Outputs, items: Items, chosen: Tensor) -> tuple[Tensor, ...]:
    """Returns the vectors of the three texts of the chosen examples, each `[G, D]`, float32."""
    return _by_example(get_logits(student), items)[chosen][:, :3].float().unbind(dim=1)


def _no_loss(student: Outputs) -> Tensor:
    """Returns a loss of 0 with gradients of 0, for a batch without an example to learn from."""
    return 0.0 * get_logits(student).float().sum()
