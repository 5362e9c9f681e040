"""Every loss term, and `Objective`, their weighted sum, which owns the learned projections.

A term sees `logits [..., C]`: `[B, C]` for classification, `[B, L, V]` for a vocabulary. Everything in front of the
last axis is an item. `batch["items"] [...]` (bool) says which items count, `batch["labels"] [...]` holds their
classes, -100 where there is none. Labels that are floating-point numbers are those of a regression: `logits [B, 1]`
are the answer itself, and cross-entropies become squared errors. Over a vocabulary the items are the tokens that were
chosen for prediction, and `batch["attention_mask"]`, of the same shape, says which are no padding.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORED = -100

Batch = Mapping[str, Tensor]


class Term(nn.Module):
    """One loss: `forward(student, teacher, batch) -> (sum [], count [])`, its mean being `sum / count`.

    `student` and `teacher` are model outputs with `logits`, and `hidden_states` where `needs` names them.
    The count follows from the batch alone, so that a step of several micro-batches knows its own before it starts.
    """

    needs: frozenset[str] = frozenset()
    needs_teacher = True
    reads_logits = True
    takes_shortened = False  # Whether the largest of a teacher's logits over a vocabulary will do.
    answers: frozenset[str] = frozenset({"classes", "number", "vocabulary"})  # What a task may ask for.

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__()
        if not weight >= 0:
            raise ValueError(f"got weight {weight} for {type(self).__name__}, expected 0 or more")
        self.weight = float(weight)

    def connect(self, student_width: int, teacher_width: int) -> None:
        """Prepare for hidden states of these widths; only a term that compares hidden states has anything to do."""

    def reads(self, batch: Batch) -> Tensor:
        """The items whose logits it reads, as a mask of the shape of `batch["items"]`."""
        return batch["items"]

    def count(self, batch: Batch) -> Tensor:
        """Items of the batch that this term averages over, `[]`."""
        return batch["items"].sum()


class SoftTargets(Term):
    """Cross-entropy to the teacher's softened distribution, times T^2 (Hinton et al., arXiv 1503.02531, section 2).

    `-T^2 * sum_j softmax(v/T)_j * log softmax(z/T)_j` for every item: summed over classes, averaged over items.
    The factor keeps the gradient's size as T changes. A regression has no distribution to soften: there it is the
    squared error to the teacher's number.

    Args:
        positions: over a vocabulary, the tokens that count: those chosen for prediction (`masked`), or `all` that are
            no padding. Elsewhere it changes nothing.
    """

    def __init__(self, *, temperature: float = 2.0, weight: float = 1.0, positions: str = "masked") -> None:
        super().__init__(weight=weight)
        if not temperature > 0:
            raise ValueError(f"got temperature {temperature}, expected a number above 0")
        if positions not in ("masked", "all"):
            raise ValueError(f"got positions={positions}, expected masked or all")
        self.temperature, self.positions = float(temperature), positions
        self.takes_shortened = positions == "masked"

    def reads(self, batch: Batch) -> Tensor:
        items = batch["items"]
        over_tokens = self.positions == "all" and items.dim() > 1
        return batch["attention_mask"].bool() if over_tokens else items

    def count(self, batch: Batch) -> Tensor:
        return self.reads(batch).sum()

    def forward(self, student: Any, teacher: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        items = self.reads(batch)
        if is_regression(batch):
            return _squared_error(student.logits[items], teacher.logits[items]), self.count(batch)
        student_log_probs = F.log_softmax(student.logits[items].float() / self.temperature, dim=-1)
        # Logits of which some are kept and the others' share depends on the temperature.
        soften = getattr(teacher, "logits_at", None)
        teacher_logits = teacher.logits if soften is None else soften(self.temperature)
        teacher_probs = F.softmax(teacher_logits[items].float() / self.temperature, dim=-1)
        total = -(self.temperature**2) * (teacher_probs * student_log_probs).sum()
        return total, self.count(batch)


class HardLabels(Term):
    """Cross-entropy to the true classes, items labelled -100 aside; the squared error to the number of a regression."""

    needs_teacher = False

    def count(self, batch: Batch) -> Tensor:
        return batch["items"].sum() if is_regression(batch) else (batch["labels"] != IGNORED).sum()

    def forward(self, student: Any, teacher: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        if is_regression(batch):
            items = batch["items"]
            return _squared_error(student.logits[items], batch["labels"][items].unsqueeze(-1)), self.count(batch)
        return _cross_entropy_at_labels(student.logits, batch["labels"]), self.count(batch)


class MaskedLanguageModelling(Term):
    """Cross-entropy at the positions chosen for prediction, and nowhere else (arXiv 1810.04805, section 3.1).

    `logits [B, L, V]`; `labels [B, L]` hold the original token where one was chosen, -100 elsewhere.
    """

    needs_teacher = False
    answers = frozenset({"vocabulary"})

    def count(self, batch: Batch) -> Tensor:
        return (batch["labels"] != IGNORED).sum()

    def forward(self, student: Any, teacher: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        if student.logits.dim() != 3:
            raise ValueError(
                f"mlm got logits of shape {list(student.logits.shape)}, expected [B, L, V]: "
                "use it with a task over a vocabulary"
            )
        return _cross_entropy_at_labels(student.logits, batch["labels"]), self.count(batch)


class SegmentOrder(Term):
    """Cross-entropy of a guess at two segments: did the second follow the first?

    Either against a segment from elsewhere, next-sentence prediction (arXiv 1810.04805, section 3.1), or against the
    two the other way round, sentence-order prediction (arXiv 1909.11942, section 3.1). The model's
    `seq_relationship_logits [B, 2]` have 0 for the true order; `pair_labels [B]` are the batch's.
    """

    needs_teacher = False
    reads_logits = False
    answers = frozenset({"vocabulary"})

    def count(self, batch: Batch) -> Tensor:
        return (batch["pair_labels"] != IGNORED).sum()

    def forward(self, student: Any, teacher: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        return _cross_entropy_at_labels(student.seq_relationship_logits, batch["pair_labels"]), self.count(batch)


class PseudoLabels(Term):
    """Cross-entropy to the teacher's arg-max, the hard distillation of arXiv 2012.12877, equation 3."""

    takes_shortened = True
    answers = frozenset({"classes", "vocabulary"})

    def forward(self, student: Any, teacher: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        items = batch["items"]
        teacher_labels = teacher.logits[items].argmax(dim=-1)
        return _cross_entropy_at_labels(student.logits[items], teacher_labels), self.count(batch)


class LogitMSE(Term):
    """Mean over classes of `(z - v)^2` for every item (Tang et al., arXiv 1903.12136, equation 4)."""

    def forward(self, student: Any, teacher: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        items = batch["items"]
        difference = student.logits[items].float() - teacher.logits[items].float()
        return difference.square().mean(dim=-1).sum(), self.count(batch)


class Cosine(Term):
    """`1 - cos(h_student, h_teacher)` of the last hidden states, over the tokens that are no padding.

    From Sanh et al., arXiv 1910.01108, section 3. Where the widths differ, a learned projection carries the
    student's states `[B, L, H_student]` to the teacher's `[B, L, H_teacher]` first, which the paper has no need of.
    """

    needs = frozenset({"hidden_states"})
    reads_logits = False

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__(weight=weight)
        self.projection: nn.Module = nn.Identity()

    def connect(self, student_width: int, teacher_width: int) -> None:
        if student_width != teacher_width:
            self.projection = nn.Linear(student_width, teacher_width, bias=False)

    def count(self, batch: Batch) -> Tensor:
        return batch["attention_mask"].sum()

    def forward(self, student: Any, teacher: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        tokens = batch["attention_mask"].bool()
        student_states = self.projection(student.hidden_states[-1][tokens])
        teacher_states = teacher.hidden_states[-1][tokens]
        if student_states.shape[-1] != teacher_states.shape[-1]:
            raise ValueError(
                f"cosine got hidden states {student_states.shape[-1]} wide from the student and "
                f"{teacher_states.shape[-1]} from the teacher: call connect() with both widths first"
            )
        similarity = F.cosine_similarity(student_states.float(), teacher_states.float(), dim=-1)
        return (1 - similarity).sum(), self.count(batch)


def _cross_entropy_at_labels(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of the cross-entropies at the labels that are not -100; 0 with a gradient where there is none."""
    chosen = labels != IGNORED
    return F.cross_entropy(logits[chosen].float(), labels[chosen], reduction="sum")


def is_regression(batch: Batch) -> bool:
    """Whether the labels are numbers, and not the indices of classes."""
    return batch["labels"].is_floating_point()


def _squared_error(values: Tensor, targets: Tensor) -> Tensor:
    """Sum over items of the squared difference of `[items, 1]`."""
    return (values.float() - targets.float()).square().sum()


class Objective(nn.Module):
    """The weighted sum of terms, each divided by its own count. A term of weight 0 is left out altogether."""

    def __init__(self, *, name: str, terms: Mapping[str, Term]) -> None:
        super().__init__()
        self.name = name
        active = {key: term for key, term in terms.items() if term.weight > 0}
        if not active:
            given = ", ".join(terms) or "no term"
            raise ValueError(f"objective {name} has nothing to learn from ({given}): give one term a weight above 0")
        self.terms = nn.ModuleDict(active)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.terms)

    @property
    def needs(self) -> frozenset[str]:
        """Outputs that must be asked of the models: a subset of `hidden_states`, `attentions`."""
        return frozenset().union(*(term.needs for term in self._terms()))

    @property
    def needs_teacher(self) -> bool:
        return any(term.needs_teacher for term in self._terms())

    @property
    def reads_teacher_logits(self) -> bool:
        return any(term.needs_teacher and term.reads_logits for term in self._terms())

    def unsuited(self, answer: str) -> list[str]:
        """Names of the terms that cannot learn a task whose answers are `classes`, a `number` or a `vocabulary`."""
        return [name for name, term in zip(self.names, self._terms(), strict=True) if answer not in term.answers]

    def needing(self, output: str) -> list[str]:
        """Names of the terms that need this output of the models."""
        return [name for name, term in zip(self.names, self._terms(), strict=True) if output in term.needs]

    def wanting_all_logits(self) -> list[str]:
        """Names of the terms for which the largest of a teacher's logits at the masked tokens will not do."""
        terms = zip(self.names, self._terms(), strict=True)
        return [n for n, term in terms if term.needs_teacher and term.reads_logits and not term.takes_shortened]

    def connect(self, student_width: int, teacher_width: int) -> None:
        """Create the projections that these widths ask for; call once, before the optimizer is made."""
        for term in self._terms():
            term.connect(student_width, teacher_width)

    def counts(self, batch: Batch) -> Tensor:
        """What each term of `names` averages over in this batch, `[terms]`."""
        return torch.stack([term.count(batch) for term in self._terms()]).float()

    def reads(self, batch: Batch) -> Tensor:
        """The items whose logits some term reads, as a mask of the shape of `batch["items"]`."""
        masks = [term.reads(batch) for term in self._terms() if term.reads_logits]
        return torch.stack(masks).any(dim=0) if masks else torch.zeros_like(batch["items"])

    def forward(self, student: Any, teacher: Any, batch: Batch, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Loss `[]` and, detached, each term's sum `[terms]`; `counts` as `weighed` takes them."""
        totals = self.totals(student, teacher, batch)
        return self.weighed(totals, self.counts(batch) if counts is None else counts), totals.detach()

    def totals(self, student: Any, teacher: Any, batch: Batch, *, of_logits: bool | None = None) -> Tensor:
        """Each term's sum `[terms]`; with `of_logits` only of those that do, or do not, read logits, the others 0."""
        zero = batch["items"].new_zeros((), dtype=torch.float32)
        chosen = [of_logits is None or term.reads_logits == of_logits for term in self._terms()]
        terms = zip(self._terms(), chosen, strict=True)
        return torch.stack([term(student, teacher, batch)[0] if wanted else zero for term, wanted in terms])

    def weighed(self, totals: Tensor, counts: Tensor) -> Tensor:
        """The loss `[]` of the terms' sums `[terms]`.

        `counts [terms]` are those of the whole optimizer step, so that the losses of its micro-batches add up to
        the loss of one large batch.
        """
        weights = totals.new_tensor([term.weight for term in self._terms()])
        # Where nothing counts the sum is 0 already; dividing by 1 keeps it so.
        return (weights * totals / counts.clamp(min=1)).sum()

    def _terms(self) -> list[Term]:
        return [cast(Term, term) for term in self.terms.values()]
