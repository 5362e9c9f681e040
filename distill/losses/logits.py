"""Loss terms on logits: against the teacher's, and against the labels of the data."""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from distill.core.contracts import IGNORED, TARGET_LENGTHS, Items, Likelihood, Outputs
from distill.core.options import check_arguments
from distill.losses.term import (
    EncoderSize,
    Term,
    binary_cross_entropy_sum,
    binary_divergence_sum,
    count_items,
    cross_entropy_sum,
    get_logits,
    in_chunks,
    mask_logits,
    select_chosen,
    squared_error_sum,
)


class SoftTargets(Term):
    """KL divergence from the teacher's softened distribution, times T^2 (Hinton et al., arXiv 1503.02531, section 2).

    `T^2 * sum_j p_j * (log p_j - log softmax(z/T)_j)` with `p = softmax(v/T)` for each item: summed over classes,
    averaged over items. It is the paper's cross-entropy without the entropy of the teacher, which no student can
    change: it has the same gradient, and is 0 for a student with the teacher's distribution. The factor makes the size
    of the gradient independent of T.

    For a regression it is the squared error to the teacher's number, because there is no distribution to soften. Where
    an item has any number of labels it is the mean over the C labels of the divergence of two distributions, those of
    having the label or not. With the sigmoid s and `p_c = s(v_c/T)` it is
    `T^2/C sum_c (p_c log(p_c / s(z_c/T)) + (1 - p_c) log((1 - p_c) / (1 - s(z_c/T))))`.

    Args:
        temperature: T above 0; a higher one softens both distributions.
        positions: tokens of a task over a vocabulary: those chosen for prediction (`masked`), or `all` except padding.
            Other tasks ignore it.
    """

    def __init__(self, *, temperature: float = 2.0, weight: float = 1.0, positions: str = "masked") -> None:
        super().__init__(weight=weight)
        if not temperature > 0:
            raise ValueError(f"got temperature {temperature}, expected a number above 0")
        if positions not in ("masked", "all"):
            raise ValueError(f"got positions={positions}, expected masked or all")
        self.temperature, self.positions = float(temperature), positions
        self.reads_every_token = positions == "all"
        self.accepts_top_k = positions == "masked"

    @property
    def drawn_at(self) -> float | None:
        return self.temperature if self.accepts_top_k else None

    def count(self, items: Items) -> Tensor:
        return count_items(items) if self.reads_every_token else super().count(items)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if items.likelihood == "gaussian":
            return squared_error_sum(get_logits(student), get_logits(teacher)), self.count(items)
        student_logits, teacher_logits = get_logits(student), _softened_logits(teacher, self.temperature)
        if items.likelihood == "sigmoid":
            total = binary_divergence_sum(
                student_logits.float() / self.temperature, teacher_logits.float() / self.temperature
            )
            return self.temperature**2 * total, self.count(items)
        valid = items.valid
        if not self.reads_every_token:
            student_logits, teacher_logits = select_chosen(student_logits, items), select_chosen(teacher_logits, items)
            valid = None if valid is None else select_chosen(valid, items)
        # Masked after the division, because the smallest number would become infinite below temperature 1.
        student_log_probs = F.log_softmax(mask_logits(student_logits.float() / self.temperature, valid), dim=-1)
        softened = mask_logits(teacher_logits.float() / self.temperature, valid)
        # The logarithms are subtracted item by item, because the sums of both entropies would round a small rest.
        differences = F.log_softmax(softened, dim=-1) - student_log_probs
        return self.temperature**2 * (F.softmax(softened, dim=-1) * differences).sum(), self.count(items)


class PseudoLabels(Term):
    """Cross-entropy to the teacher's arg-max, the hard distillation of arXiv 2012.12877, equation 3."""

    accepts_top_k = True
    likelihoods: frozenset[Likelihood] = frozenset({"softmax"})

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        student_logits, teacher_logits = (
            mask_logits(get_logits(student), items.valid),
            mask_logits(get_logits(teacher), items.valid),
        )
        teacher_labels = select_chosen(teacher_logits, items).argmax(dim=-1)
        return cross_entropy_sum(select_chosen(student_logits, items), teacher_labels), self.count(items)


class LogitMSE(Term):
    """Mean over classes of `(z - v)^2` for each item (Tang et al., arXiv 1903.12136, equation 4).

    Args:
        scale: factor of the teacher's logits v. Annealed distillation raises it to 1 from stage to stage, and goes on
            with labels alone (Jafari et al., arXiv 2104.07163, section 3).
    """

    @check_arguments
    def __init__(self, *, weight: float = 1.0, scale: PositiveFloat = 1.0) -> None:
        super().__init__(weight=weight)
        self.scale = float(scale)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        student_logits, teacher_logits = (
            select_chosen(get_logits(outputs), items).float() for outputs in (student, teacher)
        )
        difference = student_logits - self.scale * teacher_logits
        if items.valid is None:
            return difference.square().mean(dim=-1).sum(), self.count(items)
        valid = select_chosen(items.valid, items)
        per_item = difference.masked_fill(~valid, 0.0).square().sum(dim=-1) / valid.sum(dim=-1).clamp(min=1)
        return per_item.sum(), self.count(items)


class LogitMarginMSE(Term):
    """Squared difference of the margins between the true class and each other one (arXiv 2010.02666, equation 4).

    For a labelled item with the label t it is the mean over the other classes j of `((z_t - z_j) - (v_t - v_j))^2`. In
    a list of documents t is the relevant one, and the paper has one j. A number that is added to all scores of a list
    changes nothing.
    """

    likelihoods: frozenset[Likelihood] = frozenset({"softmax"})

    def count(self, items: Items) -> Tensor:
        return items.labelled.sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        labels = items.labels[items.labelled].unsqueeze(-1)
        margins, expected = (
            logits.gather(1, labels) - logits
            for logits in (get_logits(outputs)[items.labelled].float() for outputs in (student, teacher))
        )
        others = torch.ones_like(margins, dtype=torch.bool) if items.valid is None else items.valid[items.labelled]
        others = others.scatter(1, labels, False)
        # Filled before the square, because logits of classes that an item cannot have are the smallest number.
        squares = (margins - expected).masked_fill(~others, 0.0).square()
        return (squares.sum(dim=-1) / others.sum(dim=-1).clamp(min=1)).sum(), self.count(items)


class DecoupledKD(Term):
    """Divergence from the teacher, its target-class and non-target-class parts weighted apart (arXiv 2203.08679).

    `T^2 * (alpha * KL(b_teacher || b_student) + beta * KL(q_teacher || q_student))` for each labelled item: equation 7
    of Zhao et al., with the factor T^2 of their code. With p the softmax of the logits divided by T and t the label,
    `b = [p_t, 1 - p_t]`, and q is the softmax over all classes except t. Ordinary soft targets have `alpha = 1` and
    `beta = 1 - p_t` of the teacher. Of two classes only one remains beside the target, so that the second part is 0.

    Args:
        alpha: weight of the target class's part.
        beta: weight of the other classes' part.
        temperature: T above 0; a higher one softens both distributions.
    """

    likelihoods: frozenset[Likelihood] = frozenset({"softmax"})

    @check_arguments
    def __init__(
        self,
        *,
        weight: float = 1.0,
        alpha: NonNegativeFloat = 1.0,
        beta: NonNegativeFloat = 2.0,
        temperature: PositiveFloat = 2.0,
    ) -> None:
        super().__init__(weight=weight)
        self.alpha, self.beta, self.temperature = float(alpha), float(beta), float(temperature)

    def count(self, items: Items) -> Tensor:
        return items.labelled.sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        labels, valid = items.labels[items.labelled], None if items.valid is None else items.valid[items.labelled]
        student_parts, teacher_parts = (
            self._log_probs(logits[items.labelled], labels, valid)
            for logits in (get_logits(student), _softened_logits(teacher, self.temperature))
        )
        target_part, other_part = (
            F.kl_div(student_part, teacher_part, reduction="sum", log_target=True)
            for student_part, teacher_part in zip(student_parts, teacher_parts, strict=True)
        )
        return self.temperature**2 * (self.alpha * target_part + self.beta * other_part), self.count(items)

    def _log_probs(self, logits: Tensor, labels: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the logarithms of `b [n, 2]` and of `q [n, C]`."""
        is_target = torch.zeros_like(logits, dtype=torch.bool).scatter(1, labels.unsqueeze(-1), True)
        scaled = mask_logits(logits.float() / self.temperature, valid)
        log_probs = F.log_softmax(scaled, dim=-1)
        others = mask_logits(log_probs, ~is_target)
        target = torch.stack([log_probs[is_target], others.logsumexp(dim=-1)], dim=-1)
        return target, F.log_softmax(mask_logits(scaled, ~is_target), dim=-1)


def _softened_logits(teacher: Outputs, temperature: float) -> Tensor:
    """Returns the teacher's logits for a temperature; raises ValueError if it has none."""
    logits = teacher.logits_at(temperature)
    if logits is None:
        raise ValueError("got no logits from the teacher, expected [n, C] at the items")
    return logits


Divergence = Literal["forward", "reverse", "jsd", "skewed_forward", "skewed_reverse", "adaptive", "total_variation"]
Beta = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False, description="a number between 0 and 1")]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, description="a share from 0 to 1")]
Temperature = Annotated[float, Field(gt=0, allow_inf_nan=False, description="a number above 0")]


class GeneralizedKD(Term):
    """Divergence from the teacher on a share of texts by the student (Agarwal et al., arXiv 2306.13649).

    With the teacher's p and the student's q for each item, `forward` is `KL(p || q)`, `reverse` is `KL(q || p)`, and
    `jsd` is equation 1, `beta KL(p || m) + (1 - beta) KL(q || m)` with `m = beta p + (1 - beta) q`. No gradient goes
    through the sampling of the texts (algorithm 1).

    `skewed_forward` is `KL(p || beta p + (1 - beta) q)` and `skewed_reverse` is `KL(q || (1 - beta) p + beta q)` (Ko et
    al., arXiv 2402.03898, section 3.1, with 0.1 for beta in their experiments). `adaptive` is
    `(g_h KL(p || q) + g_t KL(q || p)) / (g_h + g_t)` (Wu et al., arXiv 2404.02657): g_h is the sum of
    `|p - q|` over the classes that are the teacher's most likely ones up to a probability of 0.5 together, at least
    one, and g_t that over the others; no gradient goes through these two. `total_variation` is `sum |p - q| / 2`.

    Args:
        divergence: its name above.
        beta: between 0 and 1: of `jsd`, which near 0 behaves like forward KL and near 1 like reverse KL, and of the
            skewed ones.
        temperature: T above 0, by which both models' logits are divided; as in the paper without a factor T^2.
        student_share: lambda of algorithm 1, the share of micro-batches whose targets the student writes, from 0 to 1.
            In these the labels teach nothing.
        sampling_temperature: of the student's writing.

    Raises:
        OptionError: for an option that got a value it cannot take.
    """

    likelihoods: frozenset[Likelihood] = frozenset({"softmax"})

    @check_arguments
    def __init__(
        self,
        *,
        weight: float = 1.0,
        divergence: Divergence = "forward",
        beta: Beta = 0.5,
        temperature: Temperature = 1.0,
        student_share: Share = 0.0,
        sampling_temperature: Temperature = 1.0,
    ) -> None:
        super().__init__(weight=weight)
        self.divergence, self.beta, self.temperature = divergence, float(beta), float(temperature)
        self.student_share, self.sampling_temperature = float(student_share), float(sampling_temperature)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        valid = None if items.valid is None else select_chosen(items.valid, items)
        logits = (select_chosen(get_logits(outputs), items).float() for outputs in (student, teacher))
        student_log, teacher_log = (F.log_softmax(mask_logits(of / self.temperature, valid), dim=-1) for of in logits)
        return self._divergence(student_log, teacher_log), self.count(items)

    def _divergence(self, student_log: Tensor, teacher_log: Tensor) -> Tensor:
        """Returns the sum over items of the divergence of log-probabilities `[n, C]`."""
        if self.divergence == "forward":
            return _divergence_sum(teacher_log, student_log)
        if self.divergence == "reverse":
            return _divergence_sum(student_log, teacher_log)
        if self.divergence == "total_variation":
            return (teacher_log.exp() - student_log.exp()).abs().sum() / 2
        if self.divergence == "adaptive":
            return _adaptive_sum(teacher_log, student_log)
        shares = student_log.new_tensor([self.beta, 1 - self.beta]).log()
        if self.divergence == "skewed_reverse":
            return _divergence_sum(student_log, torch.logaddexp(teacher_log + shares[1], student_log + shares[0]))
        mixed = torch.logaddexp(teacher_log + shares[0], student_log + shares[1])
        if self.divergence == "skewed_forward":
            return _divergence_sum(teacher_log, mixed)
        return self.beta * _divergence_sum(teacher_log, mixed) + (1 - self.beta) * _divergence_sum(student_log, mixed)


def _divergence_sum(of: Tensor, to: Tensor) -> Tensor:
    """Returns the sum of `KL(of || to)` of log-probabilities `[n, C]`."""
    return (of.exp() * (of - to)).sum()


def _adaptive_sum(teacher_log: Tensor, student_log: Tensor) -> Tensor:
    """Returns the sum of the divergences of `GeneralizedKD`, `adaptive`, of log-probabilities `[n, C]`."""
    with torch.no_grad():
        probabilities, order = teacher_log.exp().sort(dim=-1, descending=True)
        gaps = (probabilities - student_log.exp().gather(-1, order)).abs()
        is_head = probabilities.cumsum(dim=-1) <= _HEAD
        is_head[:, 0] = True
        head, tail = (gaps * is_head).sum(dim=-1), (gaps * ~is_head).sum(dim=-1)
        share = head / (head + tail).clamp(min=1e-12)
    forward = (teacher_log.exp() * (teacher_log - student_log)).sum(dim=-1)
    reverse = (student_log.exp() * (student_log - teacher_log)).sum(dim=-1)
    return (share * forward + (1 - share) * reverse).sum()


_HEAD = 0.5  # Probability of the teacher's most likely classes that are compared by forward KL.
Smoothing = Annotated[float, Field(ge=0, lt=1, description="a number of at least 0 and below 1")]


class HardLabels(Term):
    """Cross-entropy to the true classes of the labelled items, or the squared error of a regression.

    Where an item has any number of labels, it is the mean binary cross-entropy of the C labels y with the sigmoid s,
    `-1/C sum_c (y_c log s(z_c) + (1 - y_c) log(1 - s(z_c)))`, as `torch.nn.BCEWithLogitsLoss` has it.
    With weights of the items it is `sum_i w_i CE_i / sum_i w_i`, as `torch.nn.CrossEntropyLoss(weight=...)` has it.

    Args:
        smoothing: the share of each label that all classes of the item get alike, from 0 up to 1 (Szegedy et al.,
            arXiv 1512.00567, section 7): `(1 - s) CE + s/C sum_c -log softmax(z)_c`. It is for classes of which one is
            right.
    """

    needs_teacher = False

    @check_arguments
    def __init__(self, *, weight: float = 1.0, smoothing: Smoothing = 0.0) -> None:
        super().__init__(weight=weight)
        self.smoothing = float(smoothing)
        if smoothing:
            self.likelihoods = frozenset({"softmax"})

    def count(self, items: Items) -> Tensor:
        return items.labelled.sum() if items.weights is None else items.weights[items.labelled].sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        logits = get_logits(student)
        if items.likelihood == "gaussian":
            targets = items.labels[items.labelled].unsqueeze(-1)
            return squared_error_sum(logits[items.labelled], targets), self.count(items)
        if items.likelihood == "sigmoid":
            return binary_cross_entropy_sum(logits[items.labelled], items.labels[items.labelled]), self.count(items)
        logits = mask_logits(logits, items.valid)
        total = cross_entropy_sum(logits, items.labels, items.weights)
        if self.smoothing:
            total = (1 - self.smoothing) * total + self.smoothing * _uniform_sum(logits, items)
        return total, self.count(items)


def _uniform_sum(logits: Tensor, items: Items) -> Tensor:
    """Returns the sum of the cross-entropies of the labelled items to all of their classes alike."""
    labelled = items.labelled
    log_probs = logits[labelled].float().log_softmax(dim=-1)
    if items.valid is None:
        losses = -log_probs.mean(dim=-1)
    else:
        valid = items.valid[labelled]
        losses = -log_probs.masked_fill(~valid, 0.0).sum(dim=-1) / valid.sum(dim=-1)
    return (losses if items.weights is None else losses * items.weights[labelled]).sum()


class MaskedLanguageModelling(HardLabels):
    """Cross-entropy at the tokens chosen for prediction (arXiv 1810.04805, section 3.1)."""

    tokens_only = True

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if not items.classes_are_tokens:
            raise ValueError(
                f"mlm got logits of shape {list(get_logits(student).shape)}, expected those of a vocabulary: "
                "use it with a task over a vocabulary"
            )
        return super().forward(student, teacher, items)


class SegmentOrder(Term):
    """Cross-entropy of the prediction whether the second segment follows the first one.

    In negatives, the second segment is from elsewhere (next-sentence prediction, arXiv 1810.04805, section 3.1), or the
    two segments are swapped (sentence-order prediction, arXiv 1909.11942, section 3.1). Class 0 of the model's
    `segment_logits [B, 2]` and of the batch's `pair_labels [B]` is the true order.
    """

    needs_teacher = False
    reads_logits = False
    tokens_only = True
    needs_data = "pairs of segments in two orders (task.pair=nsp or task.pair=sop)"
    label_columns = frozenset({"pair_labels"})

    def count(self, items: Items) -> Tensor:
        return (items["pair_labels"] != IGNORED).sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if student.segment_logits is None:
            raise ValueError("got a model without a head for two segments, expected segment_logits [B, 2]")
        return cross_entropy_sum(student.segment_logits, items["pair_labels"]), self.count(items)


class TargetLength(Term):
    """Cross-entropy of the length of a target in tokens (Ghazvininejad et al., arXiv 1904.09324, section 3.3).

    The classes of the model's `length_logits [B, M+1]` are the lengths from 0. The batch has `target_lengths [B]`.
    """

    needs_teacher = False
    reads_logits = False
    tokens_only = True
    needs_data = "the lengths of targets with masks (task=mask_predict)"
    label_columns = frozenset({TARGET_LENGTHS})

    def count(self, items: Items) -> Tensor:
        return torch.tensor(len(items[TARGET_LENGTHS]), device=items.labels.device)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if student.length_logits is None:
            raise ValueError("got a model that predicts no lengths, expected length_logits [B, M+1]")
        return cross_entropy_sum(student.length_logits, items[TARGET_LENGTHS]), self.count(items)


class ThreeWayOrder(Term):
    """Cross-entropy of the prediction whether the second segment is the next one, the previous one, or of another text.

    The sentence structural objective of StructBERT (Wang et al., arXiv 1908.04577, section 2.2). The classes 0, 1 and 2
    of the batch's `order_labels [B]` are in this order.

    Unlike in the paper, the term owns the layer that predicts, and this layer reads the last hidden state of the first
    token without the pooler between them. It thus suits encoders without a pooler, and a saved model has no head more.
    """

    needs_teacher = False
    reads_logits = False
    tokens_only = True
    needs_data = "pairs of segments in three orders (task.pair=three_way)"
    label_columns = frozenset({"order_labels"})

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__(weight=weight)
        self.classifier: nn.Linear | None = None

    def connect(self, student: EncoderSize, teacher: EncoderSize) -> None:
        """Creates the layer that predicts, with random weights."""
        self.classifier = nn.Linear(student.width, 3)

    def count(self, items: Items) -> Tensor:
        return (items["order_labels"] != IGNORED).sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if student.last_hidden_state is None:
            raise ValueError("got outputs without last_hidden_state, expected those of a task whose classes are tokens")
        if self.classifier is None:
            raise ValueError("the order has no layer yet: call connect() with the size of the encoder first")
        first = items["attention_mask"].int().argmax(dim=1)  # With padding on the left it is not token 0.
        rows = torch.arange(len(first), device=first.device)
        logits = self.classifier(student.last_hidden_state[rows, first])
        return cross_entropy_sum(logits, items["order_labels"]), self.count(items)


WEIGHT = 50.0  # Of the detection in ELECTRA's sum, because its loss is far smaller than the generator's.


class ReplacedTokens(Term):
    """Binary cross-entropy of the detection of replaced tokens (ELECTRA, arXiv 2003.10555, section 2).

    `-log p(replaced)` at a token that was replaced and `-log p(original)` at another one, with p the softmax of the two
    logits, which is the paper's sigmoid of their difference. It is the mean over all tokens but the padding, special
    ones included, as in the authors' code. A sampled token that equals the one of the text is original.
    """

    needs_teacher = False
    replaced_only = True

    def __init__(self, *, weight: float = WEIGHT) -> None:
        super().__init__(weight=weight)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if student.replaced is None:
            raise ValueError("got outputs without replaced tokens, expected [n] for the items: use it with task=rtd")
        return F.cross_entropy(get_logits(student).float(), student.replaced.long(), reduction="sum"), self.count(items)


class GeneratorLoss(Term):
    """Cross-entropy of the generator at the masked tokens, its masked language modelling (arXiv 2003.10555, section 2).

    The generator learns from this alone: no gradient of the detection passes through the sampled tokens.
    """

    needs_teacher = False
    reads_logits = False
    replaced_only = True

    def count(self, items: Items) -> Tensor:
        return items.labelled.sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        generator = student.generator
        if generator is None:
            raise ValueError("got outputs without those of a generator, expected them: use it with task=rtd")

        def total(masked: Items) -> Tensor:
            return cross_entropy_sum(get_logits(generator.at(masked)), masked.labels)

        sums = list(in_chunks(total, items.masked_tokens(), generator.chunk_size))
        return torch.stack(sums).sum(), self.count(items)


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
