"""Loss terms that compare hidden states, and attention: its scores, distributions and relations."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from distill.core.contracts import POOLED, AttentionVectors, Items, Likelihood, Outputs
from distill.core.errors import UserError
from distill.core.options import check_arguments, show_value
from distill.losses.term import EncoderSize, Half, Term, count_items, mask_logits

Layers = Literal["uniform", "last"] | Sequence[PositiveInt]


def match_layers(
    layers: str | Sequence[int], student_depth: int, teacher_depth: int, *, last_layer: bool = True
) -> tuple[tuple[int, int], ...]:
    """Returns pairs of a student's layer and its teacher's layer, both counted from 1.

    `uniform` matches layer m of M with the teacher's layer m * N / M, rounded down, and `last` with the last M of the
    teacher's N layers. A list names the teacher's layer of each student layer.

    >>> match_layers("uniform", 3, 6)
    ((1, 2), (2, 4), (3, 6))

    Args:
        last_layer: whether the student's last layer is matched too.

    Raises:
        UserError: for a list of another length or layers that the teacher lacks, or a student deeper than the teacher.
    """
    number = student_depth if last_layer else student_depth - 1
    if not isinstance(layers, str):
        if len(layers) != number or not all(1 <= layer <= teacher_depth for layer in layers):
            raise UserError(
                f"got layers={show_value(list(layers))}, expected a list of {number} of the teacher's layers 1 to "
                f"{teacher_depth}, one for each layer of the student{'' if last_layer else ' except the last'}; "
                "or uniform or last"
            )
        matched = list(layers)
    elif student_depth > teacher_depth:
        raise UserError(
            f"got layers={layers} for a student of {student_depth} layers and a teacher of {teacher_depth}, expected "
            f"at most as many as the teacher's: set layers to a list of {number} of the teacher's layers 1 to "
            f"{teacher_depth}"
        )
    elif layers == "uniform":
        matched = [layer * teacher_depth // student_depth for layer in range(1, student_depth + 1)]
    else:
        matched = list(range(teacher_depth - student_depth + 1, teacher_depth + 1))
    return tuple(zip(range(1, number + 1), matched, strict=False))


_HALVES = {"encoder": frozenset({"hidden_states"}), "decoder": frozenset({"decoder_hidden_states"})}


class Cosine(Term):
    """`1 - cos(h_student, h_teacher)` of the last hidden states at all tokens except padding.

    From Sanh et al., arXiv 1910.01108, section 3. Unlike in the paper, the widths may differ. A learned projection then
    maps the student's states `[B, L, H_student]` to the teacher's width `[B, L, H_teacher]`.

    Args:
        part: whose states are compared, the `encoder`'s, or of an encoder-decoder the `decoder`'s at the tokens of the
            targets.
    """

    needs = frozenset({"hidden_states"})
    reads_logits = False

    @check_arguments
    def __init__(self, *, weight: float = 1.0, part: Half = "encoder") -> None:
        super().__init__(weight=weight)
        self.part, self.needs = part, _HALVES[part]
        self.projection: nn.Module = nn.Identity()

    def connect(self, student: EncoderSize, teacher: EncoderSize) -> None:
        self.projection = _create_projection(student, teacher)

    def teacher_layers(self, student_depth: int, teacher_depth: int) -> tuple[int, ...]:
        return (teacher_depth,) if self.part == "encoder" else ()

    def count(self, items: Items) -> Tensor:
        return _count_tokens(items, self.part)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        student_states = self.projection(_at_tokens(get_hidden_states(student, self.part)[-1], items, self.part))
        teacher_states = _at_tokens(get_hidden_states(teacher, self.part)[-1], items, self.part)
        if student_states.shape[-1] != teacher_states.shape[-1]:
            raise ValueError(
                f"cosine got hidden states {student_states.shape[-1]} wide from the student and "
                f"{teacher_states.shape[-1]} from the teacher: call connect() with both widths first"
            )
        similarity = F.cosine_similarity(student_states.float(), teacher_states.float(), dim=-1)
        return (1 - similarity).sum(), self.count(items)


class PooledStates(Term):
    """`1 - cos(W mean(h_student), mean(h_teacher))` of the last hidden states of whole texts, with a learned W.

    The means `[B, H]` are over the tokens of each model's own tokenizer, so that teacher and student may read different
    ones. As the projected vectors of LEAF (arXiv 2509.12539), with the cosine in the place of the distance.

    With several projectors it is the projector ensemble of Chen et al. (arXiv 2210.15274, section 3.3): in the place of
    `W h` is the mean over k of `ReLU(W_k h)`, of which each starts from other random weights.

    Args:
        projectors: number of learned projections.
    """

    needs = frozenset({POOLED})
    reads_logits = False

    @check_arguments
    def __init__(self, *, weight: float = 1.0, projectors: PositiveInt = 1) -> None:
        super().__init__(weight=weight)
        self.projectors = projectors

    def connect(self, student: EncoderSize, teacher: EncoderSize) -> None:
        self.projection = nn.Linear(student.width, self.projectors * teacher.width)

    def count(self, items: Items) -> Tensor:
        return count_texts(items)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        states, expected = pooled_states(student, teacher)
        projected = self.projection(states)
        if self.projectors > 1:
            projected = F.relu(projected).unflatten(-1, (self.projectors, -1)).mean(dim=1)
        return (1 - F.cosine_similarity(projected.float(), expected.float(), dim=-1)).sum(), self.count(items)


def pooled_states(student: Outputs, teacher: Outputs) -> tuple[Tensor, Tensor]:
    """Returns the mean last hidden states of each text, `[B, H]` of both models."""
    if student.pooled is None or teacher.pooled is None:
        raise ValueError("got outputs without pooled states, expected [B, H] of both models")
    return student.pooled, teacher.pooled


def count_texts(items: Items) -> Tensor:
    """Returns the number of texts of a micro-batch, `[]`."""
    return torch.tensor(len(items["attention_mask"]), device=items.labels.device)


class HiddenStateMSE(Term):
    """Squared error between the hidden states of matched layers, and between the outputs of the embeddings.

    From TinyBERT (Jiao et al., arXiv 1909.10351): `MSE(H_student W, H_teacher)` of equation 8 for each pair of layers,
    plus `MSE(E_student W, E_teacher)` of equation 9, summed over the pairs as in equation 11. Each MSE is the mean over
    all tokens except padding and over the teacher's width.

    Args:
        layers: the teacher's layer of each student layer: `uniform`, `last`, or a list of layers counted from 1.
        embeddings: whether to compare the outputs of the embeddings too.
        part: whose states are compared, as in `Cosine`.
    """

    needs = frozenset({"hidden_states"})
    reads_logits = False
    maps_layers = True

    @check_arguments
    def __init__(
        self, *, weight: float = 1.0, layers: Layers = "uniform", embeddings: bool = True, part: Half = "encoder"
    ) -> None:
        super().__init__(weight=weight)
        self.layers = layers if isinstance(layers, str) else list(layers)
        self.embeddings = embeddings
        self.part, self.needs = part, _HALVES[part]
        self.projection: nn.Module = nn.Identity()

    def check_sizes(self, student: EncoderSize, teacher: EncoderSize) -> None:
        match_layers(self.layers, *(size.depth_of(self.part) for size in (student, teacher)))

    def connect(self, student: EncoderSize, teacher: EncoderSize) -> None:
        """Creates the projection `W`, which serves all layers and the embeddings, as in the authors' code.

        All layers of a transformer add to the same residual states. The paper has a second one for the embeddings.
        Unlike there, models of the same width need no projection, so that a student with copied layers starts from the
        teacher's own states.
        """
        self.projection = _create_projection(student, teacher)

    def teacher_layers(self, student_depth: int, teacher_depth: int) -> tuple[int, ...]:
        if self.part == "decoder":
            return ()
        return tuple(sorted({layer for _, layer in self._pairs(student_depth, teacher_depth)}))

    def count(self, items: Items) -> Tensor:
        return _count_tokens(items, self.part)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        student_states, teacher_states = (get_hidden_states(outputs, self.part) for outputs in (student, teacher))
        total = student_states[0].new_zeros((), dtype=torch.float32)
        for student_layer, teacher_layer in self._pairs(len(student_states) - 1, len(teacher_states) - 1):
            projected = self.projection(_at_tokens(student_states[student_layer], items, self.part)).float()
            error = projected - _at_tokens(teacher_states[teacher_layer], items, self.part).float()  # [tokens, H]
            total = total + error.square().mean(dim=-1).sum()
        return total, self.count(items)

    def _pairs(self, student_depth: int, teacher_depth: int) -> tuple[tuple[int, int], ...]:
        pairs = match_layers(self.layers, student_depth, teacher_depth)
        return ((0, 0), *pairs) if self.embeddings else pairs


class PatientKD(Term):
    """Squared distance between the normalised hidden states of the first token, `[CLS]`, of matched layers.

    `sum_m || h_student,m / ||h_student,m|| - h_teacher,m / ||h_teacher,m|| ||^2` for each example: equation 6 of Sun et
    al., arXiv 1908.09355, averaged over the examples. The paper's PKD-Skip is `layers=uniform` and its PKD-Last is
    `layers=last`. Both leave out the last layer, because the logits depend on it directly.

    Args:
        layers: the teacher's layer of each student layer: `uniform`, `last`, or a list of layers counted from 1.
        last_layer: whether to compare the last layers too. A list has an entry for the last layer only then.
    """

    needs = frozenset({"hidden_states"})
    reads_logits = False
    maps_layers = True

    @check_arguments
    def __init__(self, *, weight: float = 1.0, layers: Layers = "uniform", last_layer: bool = False) -> None:
        super().__init__(weight=weight)
        self.layers = layers if isinstance(layers, str) else list(layers)
        self.last_layer = last_layer
        self.projection: nn.Module = nn.Identity()

    def check_sizes(self, student: EncoderSize, teacher: EncoderSize) -> None:
        if not self._pairs(student.layers, teacher.layers):
            raise UserError(
                "leaves out the last layer, and the student has no other: set last_layer=true, or take a deeper student"
            )

    def connect(self, student: EncoderSize, teacher: EncoderSize) -> None:
        """Creates one projection of the student's states if the widths differ, which the paper does not have."""
        self.projection = _create_projection(student, teacher)

    def suits(self, *, likelihood: Likelihood, classes_are_tokens: bool) -> bool:
        # Packed text has no token that stands for an example.
        return not classes_are_tokens and super().suits(likelihood=likelihood, classes_are_tokens=classes_are_tokens)

    def teacher_layers(self, student_depth: int, teacher_depth: int) -> tuple[int, ...]:
        return tuple(sorted({layer for _, layer in self._pairs(student_depth, teacher_depth)}))

    def count(self, items: Items) -> Tensor:
        return items["attention_mask"].bool().any(dim=1).sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        student_states, teacher_states = get_hidden_states(student), get_hidden_states(teacher)
        mask = items["attention_mask"].bool()
        rows = mask.any(dim=1).nonzero().squeeze(-1)
        first = mask.int().argmax(dim=1)[rows]  # With padding on the left it is not token 0.
        total = student_states[0].new_zeros((), dtype=torch.float32)
        for student_layer, teacher_layer in self._pairs(len(student_states) - 1, len(teacher_states) - 1):
            student_vectors = self.projection(student_states[student_layer][rows, first]).float()  # [B, H]
            teacher_vectors = teacher_states[teacher_layer][rows, first].float()
            error = F.normalize(student_vectors, dim=-1) - F.normalize(teacher_vectors, dim=-1)
            total = total + error.square().sum()
        return total, self.count(items)

    def _pairs(self, student_depth: int, teacher_depth: int) -> tuple[tuple[int, int], ...]:
        return match_layers(self.layers, student_depth, teacher_depth, last_layer=self.last_layer)


def _create_projection(student: EncoderSize, teacher: EncoderSize) -> nn.Module:
    """Returns a map of the student's hidden states to the teacher's width: the identity if both are equally wide."""
    return nn.Identity() if student.width == teacher.width else nn.Linear(student.width, teacher.width, bias=False)


def get_hidden_states(outputs: Outputs, half: Half = "encoder") -> Sequence[Tensor]:
    """Returns the hidden states `[B, L, H]` of the embeddings and of each layer, of a decoder `[B, T, H]`."""
    of_half = outputs if half == "encoder" else outputs.decoder
    if of_half is None or of_half.hidden_states is None:
        raise ValueError(f"got outputs without hidden states of the {half}, expected [B, L, H] of both models")
    return of_half.hidden_states


def _at_tokens(states: Tensor, items: Items, half: Half) -> Tensor:
    """Returns the states `[tokens, H]` at all tokens but the padding: those of the source or of the targets."""
    if half == "encoder":
        return states[items["attention_mask"].bool()]
    return states.flatten(0, 1)[items.index]


def _count_tokens(items: Items, half: Half) -> Tensor:
    """Returns the number of tokens without padding, `[]`."""
    return items["attention_mask"].sum() if half == "encoder" else count_items(items)


TeacherLayer = Annotated[int, Field(ge=1)] | None


class _AttentionTerm(Term):
    """A term that compares the attention vectors of the pairs of layers that `attention_layers` returns."""

    needs = frozenset({"attention_vectors"})
    reads_logits = False

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__(weight=weight)
        self._pairs: tuple[tuple[int, int], ...] = ()

    def connect(self, student: EncoderSize, teacher: EncoderSize) -> None:
        self._pairs = self.attention_layers(student.layers, teacher.layers)

    def count(self, items: Items) -> Tensor:
        return items["attention_mask"].sum()


class AttentionScoreMSE(_AttentionTerm):
    """Squared error between the attention scores before the softmax, `Q K^T / sqrt(D)`, of matched layers.

    `1/A * sum_a MSE(A_student,a, A_teacher,a)` for each pair of layers, summed over the pairs: equations 7 and 11 of
    TinyBERT (Jiao et al., arXiv 1909.10351). Each MSE is the mean over all pairs of tokens of one example, both of them
    real. The authors' code counts padding as scores of 0.

    Args:
        layers: the teacher's layer of each student layer: `uniform`, `last`, or a list of layers counted from 1.
    """

    compares_heads = True

    @check_arguments
    def __init__(self, *, weight: float = 1.0, layers: Layers = "uniform") -> None:
        super().__init__(weight=weight)
        self.layers = layers if isinstance(layers, str) else list(layers)

    def check_sizes(self, student: EncoderSize, teacher: EncoderSize) -> None:
        match_layers(self.layers, student.layers, teacher.layers)
        _check_heads(student, teacher)

    def attention_layers(self, student_depth: int, teacher_depth: int) -> tuple[tuple[int, int], ...]:
        return match_layers(self.layers, student_depth, teacher_depth)

    def count(self, items: Items) -> Tensor:
        return items["attention_mask"].bool().sum(dim=1).square().sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        tokens = items["attention_mask"].bool()
        padding = ~(tokens[:, None, :, None] & tokens[:, None, None, :])  # [B, 1, L, L]
        total = torch.zeros((), device=tokens.device)
        for student_vectors, teacher_vectors in _matched(student, teacher, self._pairs):
            error = _scores(student_vectors.queries, student_vectors.keys) - _scores(
                teacher_vectors.queries, teacher_vectors.keys
            )
            total = total + error.masked_fill(padding, 0.0).square().mean(dim=1).sum()
        return total, self.count(items)


class CrossAttention(Term):
    """Squared error between the attention of decoders to the source, of matched layers.

    `1/A * sum_a sum_l (P_student,a,l - P_teacher,a,l)^2` for each token of a target and each pair of layers, summed
    over the pairs and averaged over the tokens, with the probabilities P of A heads for the tokens l of the source. It
    is equation 7 of TinyBERT (Jiao et al., arXiv 1909.10351) for cross-attention, with probabilities and not scores.
    The dropout of the student's attention is in its probabilities.

    Args:
        layers: the layer of the teacher's decoder of each layer of the student's: `uniform`, `last`, or a list of
            layers counted from 1.
    """

    needs = frozenset({"cross_attentions"})
    reads_logits = False

    @check_arguments
    def __init__(self, *, weight: float = 1.0, layers: Layers = "uniform") -> None:
        super().__init__(weight=weight)
        self.layers = layers if isinstance(layers, str) else list(layers)

    def check_sizes(self, student: EncoderSize, teacher: EncoderSize) -> None:
        match_layers(self.layers, student.depth_of("decoder"), teacher.depth_of("decoder"))
        _check_heads(student, teacher)

    def count(self, items: Items) -> Tensor:
        return count_items(items)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        layers, teacher_layers = _cross_attentions(student), _cross_attentions(teacher)
        total = torch.zeros((), device=items.labels.device)
        for student_layer, teacher_layer in match_layers(self.layers, len(layers), len(teacher_layers)):
            probabilities, expected = (
                of.transpose(1, 2).flatten(0, 1)[items.index].float()  # [n, A, L]
                for of in (layers[student_layer - 1], teacher_layers[teacher_layer - 1])
            )
            total = total + (probabilities - expected).square().sum(dim=-1).mean(dim=-1).sum()
        return total, self.count(items)


def _cross_attentions(outputs: Outputs) -> Sequence[Tensor]:
    """Returns the attention of each layer of the decoder to the source, `[B, A, T, L]`."""
    if outputs.decoder is None or outputs.decoder.cross_attentions is None:
        raise ValueError("got outputs without cross-attention, expected [B, A, T, L] of two encoder-decoders")
    return outputs.decoder.cross_attentions


class MiniLM(_AttentionTerm):
    """KL divergence of the last layers' attention distributions and value relations (arXiv 2002.10957).

    Equations 3 to 7 of Wang et al.: `sum KL(A_teacher || A_student) / (A |x|)`, with `A = softmax(Q K^T / sqrt(D))`,
    plus the same of the value relations `softmax(V V^T / sqrt(D))`. The sum is over heads and tokens, `A` is the number
    of heads, and `|x|` counts the tokens except padding. Neither distribution gives padding a probability.
    """

    compares_heads = True

    def check_sizes(self, student: EncoderSize, teacher: EncoderSize) -> None:
        _check_heads(student, teacher)

    def attention_layers(self, student_depth: int, teacher_depth: int) -> tuple[tuple[int, int], ...]:
        return ((student_depth, teacher_depth),)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        tokens = items["attention_mask"].bool()
        total = torch.zeros((), device=tokens.device)
        for student_vectors, teacher_vectors in _matched(student, teacher, self._pairs):
            total = (
                total
                + _divergence(
                    _scores(student_vectors.queries, student_vectors.keys),
                    _scores(teacher_vectors.queries, teacher_vectors.keys),
                    tokens,
                )
                + _divergence(
                    _scores(student_vectors.values, student_vectors.values),
                    _scores(teacher_vectors.values, teacher_vectors.values),
                    tokens,
                )
            )
        return total, self.count(items)


class MiniLMv2(_AttentionTerm):
    """KL divergence of the relations between queries, between keys and between values (arXiv 2012.15828).

    Equations 5 to 8 of Wang et al.: `sum KL(R_teacher || R_student) / (A_r |x|)` with `R = softmax(Q Q^T / sqrt(D_r))`,
    and the same for keys and for values, added with weight 1 each. `|x|` counts the
    tokens except padding, which has no probability in any relation.

    Args:
        relation_heads: number of relation heads `A_r`, each of width `D_r`; it must divide the attention widths of both
            models. The paper has 48 for base models and 64 for large ones.
        teacher_layer: the teacher's layer that the student's last one learns from, counted from 1; None is the last.
            The paper has the last one of base models, and layer 21 of 24 of BERT-large.
    """

    @check_arguments
    def __init__(
        self, *, weight: float = 1.0, relation_heads: PositiveInt = 48, teacher_layer: TeacherLayer = None
    ) -> None:
        super().__init__(weight=weight)
        self.relation_heads, self.teacher_layer = relation_heads, teacher_layer

    def check_sizes(self, student: EncoderSize, teacher: EncoderSize) -> None:
        widths = [size.attention_width for size in (teacher, student) if size.attention_width is not None]
        if any(width % self.relation_heads for width in widths):
            common = math.gcd(*widths)
            divisors = [number for number in range(1, min(common, 64) + 1) if common % number == 0]
            raise UserError(
                f"got relation_heads={self.relation_heads}, expected a divisor of the attention widths "
                f"{' (teacher) and '.join(map(str, widths))} (student): {', '.join(map(str, divisors))}"
            )
        if self.teacher_layer is not None and self.teacher_layer > teacher.layers:
            raise UserError(
                f"got teacher_layer={self.teacher_layer}, expected one of the teacher's layers 1 to {teacher.layers}, "
                "or null for the last"
            )

    def attention_layers(self, student_depth: int, teacher_depth: int) -> tuple[tuple[int, int], ...]:
        return ((student_depth, self.teacher_layer or teacher_depth),)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        tokens = items["attention_mask"].bool()
        total = torch.zeros((), device=tokens.device)
        for matched in _matched(student, teacher, self._pairs):
            for student_vectors, teacher_vectors in zip(*matched, strict=True):  # Queries, keys, values.
                # The vectors of all heads are joined and split again, so that the numbers of heads may differ.
                student_heads, teacher_heads = (
                    _split_heads(vectors, self.relation_heads) for vectors in (student_vectors, teacher_vectors)
                )
                total = total + _divergence(
                    _scores(student_heads, student_heads), _scores(teacher_heads, teacher_heads), tokens
                )
        return total, self.count(items)


def _matched(
    student: Outputs, teacher: Outputs, pairs: tuple[tuple[int, int], ...]
) -> list[tuple[AttentionVectors, AttentionVectors]]:
    """Returns the attention vectors of the student and of the teacher for each pair of layers."""
    if not pairs:
        raise ValueError("got a term that knows no layers: call connect() with the sizes of both models first")
    if student.attention_vectors is None or teacher.attention_vectors is None:
        raise ValueError("got outputs without attention vectors, expected queries, keys and values of both models")
    return [(student.attention_vectors[one], teacher.attention_vectors[other]) for one, other in pairs]


def _check_heads(student: EncoderSize, teacher: EncoderSize) -> None:
    if student.heads != teacher.heads:
        raise UserError(
            f"compares attention heads one by one, and the teacher has {teacher.heads} of them and the student "
            f"{student.heads}: take objective=minilmv2, whose relation heads do not depend on them"
        )


def _split_heads(vectors: Tensor, heads: int) -> Tensor:
    """Splits the vectors of all heads, `[B, A, L, D]`, into another number of heads, `[B, heads, L, A * D / heads]`."""
    joined = vectors.transpose(1, 2).flatten(2)  # [B, L, A * D]
    split: Tensor = joined.unflatten(2, (heads, -1))  # type: ignore[no-untyped-call]
    return split.transpose(1, 2)


def _scores(first: Tensor, second: Tensor) -> Tensor:
    """Returns the products of all pairs of vectors `[B, A, L, D]` divided by `sqrt(D)`, `[B, A, L, L]` in float32."""
    with torch.autocast(first.device.type, enabled=False):
        products = torch.matmul(first.float(), second.float().transpose(-1, -2))
    return products / math.sqrt(first.shape[-1])


def _divergence(student_scores: Tensor, teacher_scores: Tensor, tokens: Tensor) -> Tensor:
    """Returns `KL(teacher || student)` of the softmax of scores, averaged over heads and summed over tokens.

    The scores are `[B, A, L, L]`.

    Args:
        tokens: `[B, L]` (bool), all tokens except padding.
    """
    keys = tokens[:, None, None, :]  # [B, 1, 1, L]
    student_log_probs, teacher_log_probs = (
        F.log_softmax(mask_logits(scores, keys), dim=-1) for scores in (student_scores, teacher_scores)
    )
    divergence = F.kl_div(student_log_probs, teacher_log_probs, reduction="none", log_target=True).sum(dim=-1)
    return divergence.mean(dim=1)[tokens].sum()
