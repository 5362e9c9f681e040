"""Loss terms that compare hidden states."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distill.contracts import Items, Likelihood, Outputs
from distill.errors import UserError
from distill.losses.layer_map import Layers, match_layers
from distill.losses.term import EncoderSize, Half, Term, count_items
from distill.options import check_arguments

_HALVES = {"encoder": frozenset({"hidden_states"}), "decoder": frozenset({"decoder_hidden_states"})}


class Cosine(Term):
    """`1 - cos(h_student, h_teacher)` of the last hidden states at all tokens except padding.

    From Sanh et al., arXiv 1910.01108, section 3. Unlike in the paper, the widths may differ. A learned projection then
    maps the student's states `[B, L, H_student]` to the teacher's width `[B, L, H_teacher]`.

    Args:
        half: whose states are compared, the `encoder`'s, or of an encoder-decoder the `decoder`'s at the tokens of the
            targets.
    """

    needs = frozenset({"hidden_states"})
    reads_logits = False

    @check_arguments
    def __init__(self, *, weight: float = 1.0, half: Half = "encoder") -> None:
        super().__init__(weight=weight)
        self.half, self.needs = half, _HALVES[half]
        self.projection: nn.Module = nn.Identity()

    def connect(self, student: EncoderSize, teacher: EncoderSize) -> None:
        self.projection = _create_projection(student, teacher)

    def teacher_layers(self, student_depth: int, teacher_depth: int) -> tuple[int, ...]:
        return (teacher_depth,) if self.half == "encoder" else ()

    def count(self, items: Items) -> Tensor:
        return _count_tokens(items, self.half)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        student_states = self.projection(_at_tokens(_hidden_states(student, self.half)[-1], items, self.half))
        teacher_states = _at_tokens(_hidden_states(teacher, self.half)[-1], items, self.half)
        if student_states.shape[-1] != teacher_states.shape[-1]:
            raise ValueError(
                f"cosine got hidden states {student_states.shape[-1]} wide from the student and "
                f"{teacher_states.shape[-1]} from the teacher: call connect() with both widths first"
            )
        similarity = F.cosine_similarity(student_states.float(), teacher_states.float(), dim=-1)
        return (1 - similarity).sum(), self.count(items)


class HiddenStateMSE(Term):
    """Squared error between the hidden states of matched layers, and between the outputs of the embeddings.

    From TinyBERT (Jiao et al., arXiv 1909.10351): `MSE(H_student W, H_teacher)` of equation 8 for each pair of layers,
    plus `MSE(E_student W, E_teacher)` of equation 9, summed over the pairs as in equation 11. Each MSE is the mean over
    all tokens except padding and over the teacher's width.

    Args:
        layers: the teacher's layer of each student layer: `uniform`, `last`, or a list of layers counted from 1.
        embeddings: whether to compare the outputs of the embeddings too.
        half: whose states are compared, as in `Cosine`.
    """

    needs = frozenset({"hidden_states"})
    reads_logits = False
    maps_layers = True

    @check_arguments
    def __init__(
        self, *, weight: float = 1.0, layers: Layers = "uniform", embeddings: bool = True, half: Half = "encoder"
    ) -> None:
        super().__init__(weight=weight)
        self.layers = layers if isinstance(layers, str) else list(layers)
        self.embeddings = embeddings
        self.half, self.needs = half, _HALVES[half]
        self.projection: nn.Module = nn.Identity()

    def check_sizes(self, student: EncoderSize, teacher: EncoderSize) -> None:
        match_layers(self.layers, *(size.depth_of(self.half) for size in (student, teacher)))

    def connect(self, student: EncoderSize, teacher: EncoderSize) -> None:
        """Creates the projection `W`, which serves all layers and the embeddings, as in the authors' code.

        All layers of a transformer add to the same residual states. The paper has a second one for the embeddings.
        Unlike there, models of the same width need no projection, so that a student with copied layers starts from the
        teacher's own states.
        """
        self.projection = _create_projection(student, teacher)

    def teacher_layers(self, student_depth: int, teacher_depth: int) -> tuple[int, ...]:
        if self.half == "decoder":
            return ()
        return tuple(sorted({layer for _, layer in self._pairs(student_depth, teacher_depth)}))

    def count(self, items: Items) -> Tensor:
        return _count_tokens(items, self.half)

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        student_states, teacher_states = (_hidden_states(outputs, self.half) for outputs in (student, teacher))
        total = student_states[0].new_zeros((), dtype=torch.float32)
        for student_layer, teacher_layer in self._pairs(len(student_states) - 1, len(teacher_states) - 1):
            projected = self.projection(_at_tokens(student_states[student_layer], items, self.half)).float()
            error = projected - _at_tokens(teacher_states[teacher_layer], items, self.half).float()  # [tokens, H]
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
        student_states, teacher_states = _hidden_states(student), _hidden_states(teacher)
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


def _hidden_states(outputs: Outputs, half: Half = "encoder") -> Sequence[Tensor]:
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
