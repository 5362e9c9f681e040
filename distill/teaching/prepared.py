"""A teacher that is ready to teach: it fits its task, and its model is loaded when it runs."""

import copy
import gc
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.contracts import Scores
from distill.models.checks import count_parameters
from distill.models.heads import SeveralHeads
from distill.models.labelled_encoder import LabelledEncoder
from distill.teaching.constants import Comparison
from distill.training.module import freeze
from distill.training.settings import TrainerSettings

PRETRAINED, TEACHER = "pretrained", "teacher"  # What a student without a teacher starts from.


class PreparedTeacher:
    """A teacher that fits its task, the mean of several, or the teachers of several tasks, with their scores and size.

    `model` is the float32 model. `release` frees its memory, and the next access loads it again. `fingerprint` is a
    digest of everything that its outputs depend on except the inputs. `trained_by` has the settings of its training on
    the task, in this run or an earlier one that cached it; None if it was not trained. `adapted` is the record of its
    adaptation to a text before that, None without one. `members` are the teachers of an ensemble, else the teacher
    itself, and `shares` the weight of each. `by_task` has the teacher of each of several tasks by its name; it is empty
    for that of one task. `load_labels` loads the module that gives the logits of a teacher of class probabilities,
    beside which `model` is the encoder; None for a teacher whose logits are those of its model. `load_untrained` loads
    the model as it was before its training on the task; None for one that was not trained. `parameters` is None
    without `has_size`, for a teacher that runs no model. `whole` is the teacher before `with_vocabulary`, else None.
    `precision_reason` is that of a precision that a probe chose, None for one that was given.
    """

    def __init__(
        self,
        *,
        requested: str,
        resolved: str,
        substituted: bool,
        origin: str,
        tokenizer: PreTrainedTokenizerBase,
        load: Callable[[], PreTrainedModel],
        precision: str,
        weights: str,
        device: torch.device,
        seconds: float,
        model: PreTrainedModel | None = None,
        notices: Sequence[str] = (),
        features: Mapping[str, Any] | None = None,
        adapted: Mapping[str, Any] | None = None,
        trained_by: TrainerSettings | None = None,
        members: "Sequence[PreparedTeacher]" = (),
        shares: tuple[float, ...] = (1.0,),
        by_task: "Mapping[str, PreparedTeacher] | None" = None,
        load_labels: Callable[[], nn.Module] | None = None,
        load_untrained: Callable[[], PreTrainedModel] | None = None,
        has_size: bool = True,
    ) -> None:
        self.requested, self.resolved, self.substituted, self.origin = requested, resolved, substituted, origin
        self.tokenizer, self.precision, self.weights = tokenizer, precision, weights
        self.device, self.seconds = device, seconds
        self.precision_reason: str | None = None
        self.metrics: dict[str, float] = {}
        self.scores: Mapping[str, Scores] = {}  # On the splits that are scored.
        self.comparison: Comparison | None = None  # With the best constant prediction.
        self.notices = list(notices)
        self.features, self.trained_by, self.shares = features, trained_by, shares
        self.adapted = adapted
        self._members, self.by_task = members, by_task or {}
        self.whole: PreparedTeacher | None = None
        self._load, self._load_labels, self._load_untrained = load, load_labels, load_untrained
        self._model = None if model is None else freeze(model)
        self._running: PreTrainedModel | None = None
        sizes = [teacher.parameters for teacher in self._teachers()] or [count_parameters(self.model)]
        self.parameters: int | None = sum(size or 0 for size in sizes) if has_size else None

    @property
    def members(self) -> "Sequence[PreparedTeacher]":
        return self._members or [self]

    def _teachers(self) -> "list[PreparedTeacher]":
        """Returns the teachers that this one is made of, none if it is one model."""
        return [*self._members, *self.by_task.values()]

    @property
    def model(self) -> PreTrainedModel:
        if self._model is None:
            self._model = freeze(self._load())
        return self._model

    @property
    def fingerprint(self) -> str:
        return f"{self.weights}-{self.precision}"

    def running(self) -> PreTrainedModel:
        """Returns the model on the device and in the precision of its forward passes; of several tasks all in one."""
        if self.by_task:
            return freeze(SeveralHeads({name: teacher.running() for name, teacher in self.by_task.items()}))
        dtype = getattr(torch, self.precision)
        is_copied = dtype != torch.float32 or self.device.type != "cpu"
        if not is_copied and self._load_labels is None:
            return self.model
        if self._running is None:
            model = self.model
            if self._load_labels is not None:
                model = LabelledEncoder(model, self._load_labels())
            self._running = freeze(copy.deepcopy(model).to(self.device, dtype) if is_copied else model)
        return self._running

    @property
    def has_head(self) -> bool:
        """Returns whether the logits are those of `model`, which can be exported and timed."""
        return self._load_labels is None

    @property
    def start(self) -> str:
        """Returns the weights of `untrained`: PRETRAINED ones, or those of the TEACHER, which was not trained here."""
        return PRETRAINED if self._load_untrained is not None or not self.has_head else TEACHER

    def untrained(self) -> "PreparedTeacher":
        """Returns the teacher as it was before its training on the task; as it is if it was not trained."""
        if self._load_untrained is None:
            return self
        other = copy.copy(self)
        other._load, other._model, other._running = self._load_untrained, None, None
        other.metrics, other.scores = {}, {}
        return other

    def release(self) -> None:
        """Frees the model's memory."""
        for teacher in self._teachers():
            teacher.release()
        self._model = self._running = None
        gc.collect()  # A frozen model refers to itself.

    def with_vocabulary(
        self, tokenizer: PreTrainedTokenizerBase, cut: Callable[[PreTrainedModel], PreTrainedModel], digest: str
    ) -> "PreparedTeacher":
        """Returns the teacher, which is no teacher of several tasks, as one that reads by another tokenizer.

        Args:
            cut: returns a copy of a model that has the embeddings of this tokenizer.
            digest: of the tokenizer.
        """

        def load() -> PreTrainedModel:
            model = cut(self.model)
            self.release()
            return model

        other = copy.copy(self)
        other.tokenizer, other.weights = tokenizer, digest_parts([self.weights, digest])
        other._members = [member.with_vocabulary(tokenizer, cut, digest) for member in self._members]
        other._load = load if not other._members else lambda: other._members[0].model
        before = self._load_untrained
        other._load_untrained = None if before is None else lambda: cut(before())
        other._model = other._running = None
        other.whole = self
        other.notices = list(self.notices)
        return other

    def record(self) -> dict[str, Any]:
        """Returns the `teacher` of run.json."""
        fields = (
            "requested", "resolved", "substituted", "origin", "features", "adapted", "precision", "metrics",
            "parameters", "notices",
        )  # fmt: skip
        comparison = (
            {"constant": None, "against_constant": None} if self.comparison is None else self.comparison.record()
        )
        rows = [
            {"resolved": member.resolved, "origin": member.origin, "share": share, "metrics": member.metrics}
            for member, share in zip(self.members, self.shares, strict=True)
        ]
        members = {"members": rows} if self._members else {}
        return {name: getattr(self, name) for name in fields} | comparison | members


def join_members(members: Sequence[PreparedTeacher], shares: tuple[float, ...], *, requested: str) -> PreparedTeacher:
    """Returns the teacher that is the mean of several with one vocabulary.

    Everything but outputs, scores and size is that of the first one.

    Args:
        shares: the weight of each, with a sum of 1.
    """
    first = members[0]
    return PreparedTeacher(
        requested=requested, resolved=f"the mean of {', '.join(member.resolved for member in members)}",
        substituted=False, origin=", ".join(member.origin for member in members), tokenizer=first.tokenizer,
        load=lambda: first.model, precision=first.precision,
        weights=digest_parts([*(member.fingerprint for member in members), *shares]), device=first.device,
        seconds=sum(member.seconds for member in members),
        notices=[notice for member in members for notice in member.notices], members=members, shares=shares,
        load_untrained=first._load_untrained,
    )  # fmt: skip


def digest_parts(parts: Sequence[object]) -> str:
    """Returns a digest of values that JSON can represent."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
