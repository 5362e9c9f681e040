"""The weighted sum of loss terms, which owns their learned projections."""

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from distill.contracts import Items, Likelihood, Outputs
from distill.losses.term import Term


class Objective(nn.Module):
    """The weighted sum of terms, each divided by its own count. A term of weight 0 is left out.

    >>> from distill.losses import HardLabels, Objective, SoftTargets
    >>> Objective(soft=SoftTargets(temperature=2, weight=5), hard=HardLabels(weight=2)).names
    ('soft', 'hard')

    Args:
        name: name of the objective in records.
        terms: the terms by name; they may also be given as keyword arguments.
    """

    def __init__(self, *, name: str = "custom", terms: Mapping[str, Term] | None = None, **named: Term) -> None:
        super().__init__()
        self.name = name
        given = {**(terms or {}), **named}
        active = {key: term for key, term in given.items() if term.weight > 0}
        if not active:
            names = ", ".join(given) or "no term"
            raise ValueError(f"objective {name} has nothing to learn from ({names}): give one term a weight above 0")
        self.terms = nn.ModuleDict(active)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.terms)

    @property
    def needs(self) -> frozenset[str]:
        """Returns the outputs that the terms read besides logits: a subset of `hidden_states`, `attentions`."""
        return frozenset().union(*(term.needs for term in self._terms()))

    @property
    def needs_teacher(self) -> bool:
        return any(term.needs_teacher for term in self._terms())

    @property
    def reads_teacher_logits(self) -> bool:
        return any(term.needs_teacher and term.reads_logits for term in self._terms())

    @property
    def reads_every_token(self) -> bool:
        """Returns whether a term reads logits of tokens that the task does not score."""
        return any(term.reads_every_token for term in self._terms())

    def unsuited(self, *, likelihood: Likelihood, over_vocabulary: bool) -> list[str]:
        """Returns the names of the terms that do not suit such a task."""
        return [
            name
            for name, term in self._named()
            if not term.suits(likelihood=likelihood, over_vocabulary=over_vocabulary)
        ]

    def needing(self, output: str) -> list[str]:
        """Returns the names of the terms that read this output of the models."""
        return [name for name, term in self._named() if output in term.needs]

    def needing_all_logits(self) -> list[str]:
        """Returns the names of the terms that need more than the top k of the teacher's logits."""
        return [n for n, t in self._named() if t.needs_teacher and t.reads_logits and not t.accepts_top_k]

    def teacher_layers(self, student_depth: int, teacher_depth: int) -> tuple[int, ...]:
        """Returns the indices of the teacher's hidden states that the terms read, in ascending order.

        Index 0 is the output of the embeddings.
        """
        chosen = [term.teacher_layers(student_depth, teacher_depth) for term in self._terms()]
        return tuple(sorted({layer for layers in chosen for layer in layers}))

    def needing_unnamed_layers(self, student_depth: int, teacher_depth: int) -> list[str]:
        """Returns the names of the terms that read hidden states of the teacher and do not name their layers."""
        return [
            name
            for name, term in self._named()
            if term.needs_teacher
            and "hidden_states" in term.needs
            and not term.teacher_layers(student_depth, teacher_depth)
        ]

    def connect(self, student_width: int, teacher_width: int) -> None:
        """Creates the projections between these widths. Call it once, before creating the optimizer."""
        for term in self._terms():
            term.connect(student_width, teacher_width)

    def record(self) -> dict[str, object]:
        """Returns the `objective` of run.json: the name and the options of each term."""
        return {
            "name": self.name,
            "terms": {
                name: {key: value for key, value in vars(term).items() if isinstance(value, float | str)}
                for name, term in self._named()
            },
        }

    def counts(self, items: Items) -> Tensor:
        """Returns the count of each term for these items, `[terms]`."""
        return torch.stack([term.count(items) for term in self._terms()]).float()

    def forward(
        self, student: Outputs, teacher: Outputs, items: Items, counts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the loss `[]` and the detached sum of each term `[terms]`; `counts` are as in `weighted`."""
        totals = self.totals(student, teacher, items)
        return self.weighted(totals, self.counts(items) if counts is None else counts), totals.detach()

    def totals(self, student: Outputs, teacher: Outputs, items: Items, *, reading_logits: bool | None = None) -> Tensor:
        """Returns the sum of each term, `[terms]`.

        Args:
            reading_logits: computes only the terms that read logits of the items, or only those that do not. The
                others are 0. None computes all.
        """
        zero = items.labels.new_zeros((), dtype=torch.float32)
        chosen = [reading_logits is None or term.reads_logits == reading_logits for term in self._terms()]
        terms = zip(self._terms(), chosen, strict=True)
        return torch.stack([term(student, teacher, items)[0] if is_chosen else zero for term, is_chosen in terms])

    def weighted(self, totals: Tensor, counts: Tensor) -> Tensor:
        """Returns the loss `[]` from the sum of each term `[terms]`.

        `counts [terms]` are those of the whole optimizer step, so that the losses of its micro-batches add up to
        the loss of one large batch.
        """
        weights = totals.new_tensor([term.weight for term in self._terms()])
        # A sum over 0 items is 0.
        return (weights * totals / counts.clamp(min=1)).sum()

    def _terms(self) -> list[Term]:
        return [cast(Term, term) for term in self.terms.values()]

    def _named(self) -> list[tuple[str, Term]]:
        return list(zip(self.names, self._terms(), strict=True))
