"""The contract of a loss term, and the weighted sum of terms, which owns their learned projections."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from distill.core.contracts import IGNORED, Items, Likelihood, Outputs
from distill.core.errors import UserError
from distill.core.options import Dimensions, check_arguments

Half = Literal["encoder", "decoder"]  # Of an encoder-decoder; other models are encoders alone.


@dataclass(frozen=True)
class EncoderSize:
    """The size of a model's encoder.

    Args:
        width: of the hidden states.
        layers: number of layers.
        heads: attention heads of a layer; None without attention.
        attention_width: of the queries, keys and values of all heads; None without attention.
        is_nested: whether prefixes of the vectors of texts are to be vectors themselves; `vector` may be that of one.
        decoder_layers: number of layers of the decoder of an encoder-decoder, None without one.
        vector: width of the vector of a text; None for that of the hidden states.
    """

    width: int
    layers: int
    heads: int | None = None
    attention_width: int | None = None
    is_nested: bool = False
    decoder_layers: int | None = None
    vector: int | None = None

    @property
    def vector_width(self) -> int:
        """Width of the vector of a text."""
        return self.vector or self.width

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

    @property
    def keeps_space(self) -> bool:
        """Whether the term brings the teacher's vectors into the student's space, and not the student into theirs."""
        return False

    @property
    def teaches_space(self) -> bool:
        """Whether the student learns the teacher's vectors themselves."""
        return False

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


def supervised_objective(terms: Mapping[str, Term], *, task: str) -> "Objective":
    """Returns the objective of the terms that learn from labels alone.

    Raises:
        UserError: without any, because the texts of the task have no labels.
    """
    if not terms:
        raise UserError(
            f"the training texts of task {task} are single and have no labels, from which nothing can be "
            "learned without a teacher: give pairs (task.text), or a teacher that was trained for vectors"
        )
    return Objective(name="supervised", terms=terms)


class Objective(nn.Module):
    """The weighted sum of terms, each divided by its own count. A term of weight 0 is left out.

    >>> from distill.losses import HardLabels, Objective, SoftTargets
    >>> Objective(soft=SoftTargets(temperature=2, weight=5), hard=HardLabels(weight=2)).names
    ('soft', 'hard')

    With `dimensions`, a term on vectors is the mean of that term over prefixes of the student's vector and the whole
    one: Matryoshka representation learning (Kusupati et al., arXiv 2205.13147, equation 1, with equal weights). A
    prefix gets the length of its vector. Each has its own learned layers, as a student of that width would.

    Args:
        name: name of the objective in records.
        terms: the terms by name.
        dimensions: numbers of first dimensions that are to be vectors themselves, increasing; empty for none.
        named: more terms by name, as keyword arguments.

    Raises:
        OptionError: for dimensions that do not increase or are below 1.
    """

    @check_arguments
    def __init__(
        self,
        *,
        name: str = "custom",
        terms: Mapping[str, Term] | None = None,
        dimensions: Dimensions = (),
        **named: Term,
    ) -> None:
        super().__init__()
        self.name, self.dimensions = name, dimensions
        given = {**(terms or {}), **named}
        active = {key: term for key, term in given.items() if term.weight > 0}
        if not active:
            names = ", ".join(given) or "no term"
            raise ValueError(f"objective {name} has nothing to learn from ({names}): give one term a weight above 0")
        self.terms = nn.ModuleDict(active)
        self.prefixes = nn.ModuleDict()  # Of each term on vectors its copy for each prefix, after `connect`.
        self._attention_layers: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def without(self, names: Sequence[str]) -> "Objective":
        """Returns the objective without these terms."""
        kept = {name: term for name, term in self._named() if name not in names}
        return Objective(name=self.name, terms=kept, dimensions=self.dimensions)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.terms)

    @property
    def weights(self) -> dict[str, float]:
        """Returns the weight of each term by its name."""
        return {name: term.weight for name, term in self._named()}

    @property
    def needs(self) -> frozenset[str]:
        """Returns the outputs that the terms read besides logits: a subset of those that `Term.needs` names."""
        return frozenset().union(*(term.needs for term in self._terms()))

    @property
    def student_needs(self) -> frozenset[str]:
        """Returns `needs` for a run of the student. After `connect`, it names the layers of the attention vectors."""
        return self._needs_of(0)

    @property
    def teacher_needs(self) -> frozenset[str]:
        """Returns `needs` for a run of the teacher. After `connect`, it names the layers of the attention vectors."""
        return self._needs_of(1)

    def _needs_of(self, model: int) -> frozenset[str]:
        if self._attention_layers is None:
            return self.needs
        named = {f"attention_vectors.{layer}" for layer in self._attention_layers[model]}
        return self.needs - {"attention_vectors"} | named

    @property
    def needs_teacher(self) -> bool:
        return any(term.needs_teacher for term in self._terms())

    @property
    def reads_teacher_logits(self) -> bool:
        return any(term.needs_teacher and term.reads_logits for term in self._terms())

    @property
    def reads_logits(self) -> bool:
        return any(term.reads_logits for term in self._terms())

    @property
    def reads_every_token(self) -> bool:
        """Returns whether a term reads logits of tokens that the task does not score."""
        return any(term.reads_every_token for term in self._terms())

    @property
    def writing(self) -> Term | None:
        """Returns the term for which the student writes a share of the targets, None without one."""
        return max((term for term in self._terms() if term.student_share > 0), key=_student_share, default=None)

    def unsuited(self, *, likelihood: Likelihood, classes_are_tokens: bool, replaces_tokens: bool = False) -> list[str]:
        """Returns the names of the terms that do not suit such a task."""
        return self.names_where(
            lambda term: (
                term.replaced_only != replaces_tokens
                or not term.suits(likelihood=likelihood, classes_are_tokens=classes_are_tokens)
            )
        )

    @property
    def targets(self) -> set[str]:
        """Returns what the terms of vectors learn from, among them options of the task with another model."""
        return {term.targets for term in self._terms()}

    def names_where(self, condition: Callable[[Term], bool]) -> list[str]:
        """Returns the names of the terms that fulfil a condition."""
        return [name for name, term in self._named() if condition(term)]

    def needing(self, output: str) -> list[str]:
        """Returns the names of the terms that read this output of the models."""
        return self.names_where(lambda term: output in term.needs)

    def needing_all_logits(self) -> list[str]:
        """Returns the names of the terms that need more than the top k of the teacher's logits."""
        return self.names_where(lambda term: term.needs_teacher and term.reads_logits and not term.accepts_top_k)

    def drawn_at(self) -> dict[str, float | None]:
        """Returns the terms that read the teacher's logits, with the temperature as in `Term.drawn_at`."""
        return {name: term.drawn_at for name, term in self._named() if term.needs_teacher and term.reads_logits}

    def needing_unnamed_layers(self, student_depth: int, teacher_depth: int) -> list[str]:
        """Returns the names of the terms that read hidden states of the teacher and do not name their layers."""
        return self.names_where(
            lambda term: (
                term.needs_teacher
                and "hidden_states" in term.needs
                and not term.teacher_layers(student_depth, teacher_depth)
            )
        )

    def needing_data(self) -> dict[str, str]:
        """Returns the terms that not every task has examples for, with the examples that they learn from in words."""
        return {name: term.needs_data for name, term in self._named() if term.needs_data}

    @property
    def label_columns(self) -> frozenset[str]:
        """Returns the columns of batches with labels that the terms read by their name."""
        return frozenset().union(*(term.label_columns for term in self._terms()))

    def count(self, name: str, items: Items) -> int:
        """Returns the number of items that a term averages over."""
        return int(_count(dict(self._named())[name], items))

    def check_sizes(self, student: EncoderSize, teacher: EncoderSize) -> None:
        """Raises UserError if the options of a term do not suit encoders of these sizes."""
        if self.dimensions and self.dimensions[-1] > student.vector_width:
            raise UserError(
                f"objective.dimensions has {self.dimensions[-1]}, expected at most {student.vector_width}, the width "
                "of the student's vectors"
            )
        for name, term in self._named():
            try:
                for size in self._sizes(term, student):
                    term.check_sizes(size, teacher)
            except UserError as error:
                raise UserError(f"objective {self.name}: the term {name} {error}") from None

    def connect(self, student: EncoderSize, teacher: EncoderSize) -> None:
        """Creates the projections between encoders of these sizes. Call it once, before creating the optimizer."""
        self.check_sizes(student, teacher)
        self.prefixes.clear()
        for name, term in self._named():
            *prefixes, whole = self._sizes(term, student)
            copies = [copy.deepcopy(term) for _ in prefixes]
            for each, size in zip([*copies, term], [*prefixes, whole], strict=True):
                each.connect(size, teacher)
            if copies:
                self.prefixes[name] = nn.ModuleList(copies)
        pairs = [pair for term in self._terms() for pair in term.attention_layers(student.layers, teacher.layers)]
        layers_of_student, layers_of_teacher = (tuple(sorted({pair[model] for pair in pairs})) for model in (0, 1))
        self._attention_layers = layers_of_student, layers_of_teacher

    @property
    def fits_teacher(self) -> bool:
        """Returns whether `fit` must be called before the training."""
        return any(term.fits_teacher for term in self._terms())

    def fit(self, teacher_logits: Sequence[Tensor]) -> None:
        """Fits the terms to the teacher's logits on train, batches of `[n, C]`. Call it after `connect`."""
        for name, term in self._named():
            for each in (*self._copies(name), term):
                if each.fits_teacher:
                    each.fit(teacher_logits)

    def teacher_layers(self, student_depth: int, teacher_depth: int) -> tuple[int, ...]:
        """Returns the indices of the teacher's hidden states that the terms read; 0 is the output of the embeddings."""
        layers = {layer for term in self._terms() for layer in term.teacher_layers(student_depth, teacher_depth)}
        return tuple(sorted(layers))

    def record(self) -> dict[str, object]:
        """Returns the `objective` of run.json: the name and the options of each term."""
        return {
            "name": self.name,
            **({"dimensions": list(self.dimensions)} if self.dimensions else {}),
            "terms": {
                name: {key: value for key, value in vars(term).items() if _is_option(value)}
                for name, term in self._named()
            },
        }

    def counts(self, items: Items) -> Tensor:
        """Returns the count of each term for these items, `[terms]`."""
        return torch.stack([_count(term, items) for term in self._terms()]).float()

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
        totals = [
            self._total(name, term, student, teacher, items) if is_chosen else zero
            for (name, term), is_chosen in zip(self._named(), chosen, strict=True)
        ]
        return torch.stack(totals)

    def _total(self, name: str, term: Term, student: Outputs, teacher: Outputs, items: Items) -> Tensor:
        """Returns the sum `[]` of a term; of one with prefixes the mean of the sums for each of them and the whole."""
        if (taught := _read_taught(term, items)) is not None:
            student, teacher, items = student.where(taught), teacher.where(taught), items.where(taught)
        total = term(student, teacher, items)[0]
        copies = self._copies(name)
        for each, size in zip(copies, self.dimensions[: len(copies)], strict=True):
            total = total + each(replace(student, logits=take_prefix(get_logits(student), size)), teacher, items)[0]
        return cast(Tensor, total / (1 + len(copies)))

    def weighted(self, totals: Tensor, counts: Tensor) -> Tensor:
        """Returns the loss `[]` from the sum of each term `[terms]`.

        `counts [terms]` are those of the whole optimizer step, so that the losses of its micro-batches add up to
        the loss of one large batch.
        """
        weights = totals.new_tensor([term.weight for term in self._terms()])
        return (weights * totals / divisors(counts)).sum()

    def _sizes(self, term: Term, student: EncoderSize) -> list[EncoderSize]:
        """Returns the sizes of the student's vectors that a term compares, the whole one last."""
        if not self.dimensions or not (term.reads_logits and "vector" in term.likelihoods):
            return [student]
        widths = dict.fromkeys([*self.dimensions, student.vector_width])
        return [replace(student, vector=width, is_nested=True) for width in widths]

    def _copies(self, name: str) -> list[Term]:
        return list(cast(Iterable[Term], self.prefixes[name])) if name in self.prefixes else []

    def _terms(self) -> list[Term]:
        return [cast(Term, term) for term in self.terms.values()]

    def _named(self) -> list[tuple[str, Term]]:
        return list(zip(self.names, self._terms(), strict=True))


def _read_taught(term: Term, items: Items) -> Tensor | None:
    """Returns the items that a term can learn from, `[n]` (bool); None for all, as a term without a teacher has it."""
    return items.taught if term.needs_teacher and term.reads_logits else None


def _count(term: Term, items: Items) -> Tensor:
    """Returns the number of items that a term averages over, `[]`, of those that the teacher has outputs for."""
    taught = _read_taught(term, items)
    return term.count(items if taught is None else items.where(taught))


def take_prefix(vectors: Tensor, size: int) -> Tensor:
    """Returns the first `size` numbers of vectors `[n, D]`, scaled to the length of the whole vector, `[n, size]`."""
    prefixes = vectors[:, :size]
    lengths = [torch.linalg.vector_norm(of.float(), dim=-1, keepdim=True) for of in (vectors, prefixes)]
    scale: Tensor = lengths[0] / lengths[1].clamp(min=1e-12)
    return prefixes * scale.to(vectors.dtype)


def _is_option(value: object) -> bool:
    """Returns whether an attribute of a term is an option for run.json: a number, a string or a list of layers."""
    return isinstance(value, float | str | list) or type(value) is int


def _student_share(term: Term) -> float:
    return term.student_share
