"""Where teachers come from: their weights, the settings of their fine-tuning, and the cache of their outputs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from lightning.pytorch.callbacks import Callback
from torch import nn
from transformers import PreTrainedTokenizerBase

from distill.console import console, print_line
from distill.contracts import Data, Task
from distill.errors import OptionError, UnreachableError, UserError
from distill.models.loading import Start
from distill.options import show_value
from distill.teaching.adaptation import Adaptation
from distill.teaching.contrastive import ContrastiveSettings
from distill.teaching.features import Features
from distill.teaching.mixture import normalize_shares
from distill.teaching.output_cache import OutputCache
from distill.teaching.targets import TargetSettings
from distill.training.settings import AUTO, TrainerSettings


class Weights(Protocol):
    """A source of a teacher's weights: a class of `teachers/`.

    Attributes:
        name: name of the teacher in records and directories.
        precision: precision of the forward passes, `float32`, `bfloat16`, or `auto` for the choice of a probe.
        is_new: whether the weights are random.
        trust_remote_code: whether to run Python code that is saved with the weights.
    """

    name: str
    precision: str
    is_new: bool
    trust_remote_code: bool

    def locate(self) -> Path | None:
        """Returns the directory of the weights, if any; raises UnreachableError if they are not available."""
        ...

    def resolved(self) -> str:
        """Returns the name in records."""
        ...

    def fingerprint(self) -> str:
        """Returns a digest of everything that the model depends on."""
        ...

    def width(self) -> int:
        """Returns the size of the hidden states, before the model is loaded."""
        ...

    def load(
        self,
        auto_class: str,
        labels: Sequence[str] | None,
        texts: Iterable[str],
        *,
        problem_type: str | None = None,
    ) -> Start:
        """Loads the model with a head for `labels`, or over the vocabulary, and its tokenizer.

        Args:
            problem_type: of the head in the configurations of transformers, as in `load_directory`.
        """
        ...


@runtime_checkable
class SeveralWeights(Protocol):
    """The weights of several teachers: a class of `teachers/`.

    Attributes:
        members: the source of each teacher's weights: of an ensemble in a list, of several tasks by the task's name.
        weights: of each teacher's predictions in the mean of an ensemble; None for equal ones.
    """

    members: "Sequence[Weights] | Mapping[str, Weights]"
    weights: Sequence[float] | None


@runtime_checkable
class Labeller(Protocol):
    """A source of class probabilities, which needs no training on the task: a class of `teachers/`.

    Attributes:
        encoder: the weights that a student starts from, with their tokenizer and hidden states.
        origin: where the probabilities come from, in words for records.
        labels_any_text: whether it has the probabilities of any text, and not only of those that it was given with.
    """

    encoder: Weights
    origin: str
    labels_any_text: bool

    def check(self, task: Task) -> None:
        """Raises UserError for a task that it cannot label, before anything is read."""
        ...

    def resolved(self) -> str:
        """Returns the name in records."""
        ...

    def fingerprint(self) -> str:
        """Returns a digest of everything that the probabilities depend on besides texts and encoder."""
        ...

    def load(self, task: Task, data: Data, tokenizer: PreTrainedTokenizerBase, cache_dir: Path) -> nn.Module:
        """Returns the module that gives logits `[B, C]` of `input_ids` and `attention_mask`, `[B, L]` both.

        Raises:
            UserError: for classes that are not the task's, and models or files that cannot be used.
        """
        ...


@dataclass(frozen=True)
class TeacherSource:
    """The weights of a teacher, the settings of its fine-tuning, and the cache of its outputs.

    Args:
        weights: the source of the weights.
        finetune: settings of the fine-tuning if the head does not fit the task; None raises an error instead. With
            `features` those of the training of the BiLSTM.
        cache: the rules for caching outputs.
        substitute: creates the teacher to use if the weights are not available; only for a task with built-in data.
        accept_weak: whether a teacher that is not better on dev than a constant prediction may teach.
        features: the hidden states of the frozen encoder that a BiLSTM reads in place of the fine-tuning; None for it.
        others: the further teachers of an ensemble (`make_ensemble`).
        shares: the weight of each teacher of an ensemble, with a sum of 1.
        by_task: the source of the teacher of each of several tasks by its name; empty if this one teaches all.
        callbacks: those of Lightning that the fine-tuning has.
        callback_key: describes them before their first use, as a part of the key of the fine-tuned teacher.
        adaptation: of the weights to a text before the fine-tuning; None for none.
        contrastive: the settings of a start on pairs of labelled rows in place of the fine-tuning; None for that.
        labeller: has the class probabilities in place of a head of the weights; None for a model with a head.
        targets: the texts of the teacher that take the place of those of train; None for those of the data.

    Raises:
        OptionError: if `accept_weak` is neither true nor false.
    """

    weights: Weights
    finetune: TrainerSettings | None
    cache: OutputCache = field(default_factory=OutputCache)
    substitute: "Callable[[], TeacherSource] | None" = None
    accept_weak: bool = False
    features: Features | None = None
    others: "tuple[TeacherSource, ...]" = ()
    shares: tuple[float, ...] = (1.0,)
    by_task: "Mapping[str, TeacherSource]" = field(default_factory=dict)
    callbacks: tuple[Callback, ...] = ()
    callback_key: tuple[str, ...] = ()
    adaptation: Adaptation | None = None
    contrastive: ContrastiveSettings | None = None
    labeller: Labeller | None = None
    targets: TargetSettings | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.accept_weak, bool):
            raise OptionError("teacher.accept_weak", show_value(self.accept_weak), "true or false")

    def of_task(self, name: str) -> "TeacherSource":
        """Returns the source of the teacher of the task with this name."""
        return self.by_task.get(name, self)

    @property
    def trainer(self) -> str:
        """Returns the key of `finetune` in the configuration."""
        return "teacher.finetune" if self.features is None else "teacher.bilstm.trainer"

    def resolved(self) -> str:
        """Returns the name of the teacher in records."""
        name = (self.labeller or self.weights).resolved()
        return name if self.features is None else f"{name} ({self.features})"


def check_source(source: TeacherSource, task: Task) -> None:
    """Raises UserError if a teacher is to be adapted or made of features and cannot be, before anything is read."""
    for one in (source, *source.others):
        if (one.labeller is not None or one.features is not None) and one.weights.precision == AUTO:
            expected = "float32 or bfloat16, because auto compares the logits of a teacher with a head of its own"
            raise OptionError("teacher.precision", AUTO, expected)
        if one.labeller is not None:
            one.labeller.check(task)
        if one.contrastive is not None:
            one.contrastive.check(task)
            if one.features is not None:
                raise UserError(
                    "teacher.start=contrastive tunes the encoder, which teacher.features freezes: leave one out"
                )
            if one.finetune is None:
                raise UserError(
                    "teacher.start=contrastive trains the teacher, and teacher.finetune=false does not: leave one out"
                )
        if one.adaptation is not None:
            one.adaptation.check(task, is_new=one.weights.is_new, is_finetuned=one.finetune is not None)
        if one.features is not None:
            one.features.check(task, one.cache, is_new=one.weights.is_new)


def make_ensemble(sources: Sequence[TeacherSource], weights: Sequence[float] | None = None) -> TeacherSource:
    """Returns the source of several teachers whose mean teaches; the first one gives hidden states and layers.

    Raises:
        UserError: for fewer than two teachers, weights that do not suit them, or a cache that is switched off.
    """
    if len(sources) < 2:
        raise UserError(f"got an ensemble of {len(sources)} teachers, expected at least 2: give their directories")
    try:
        shares = normalize_shares(weights, len(sources))
    except ValueError as error:
        raise OptionError("teacher.weights", show_value(weights), f"null or {error}") from error
    if sources[0].cache.enabled is False:
        expected = "auto or true because an ensemble teaches from cached outputs"
        raise OptionError("teacher.cache.enabled", "false", expected)
    return replace(sources[0], others=tuple(sources[1:]), shares=shares)


def make_by_task(sources: Mapping[str, TeacherSource]) -> TeacherSource:
    """Returns the source of a teacher of its own for each of several tasks, by their names.

    Raises:
        UserError: for no teacher.
    """
    if not sources:
        raise UserError("got no teacher, expected one for each task: teacher.paths={sst2:DIR,mrpc:DIR}")
    return replace(next(iter(sources.values())), by_task=dict(sources))


def locate(source: TeacherSource, task: Task) -> tuple[TeacherSource, bool]:
    """Returns the source, or its substitute if the weights are not available, and whether it is the substitute.

    Raises:
        UserError: if the weights are not available and there is no substitute.
    """
    try:
        for one in (source, *source.others):
            one.weights.locate()
        return source, False
    except UnreachableError:
        if not task.info.builtin or source.substitute is None or task.info.raw_text:
            raise
        substitute = source.substitute()
        console.rule("ANOTHER TEACHER TEACHES", style="bold yellow")
        print_line(
            f"Requested    {source.weights.name}: its weights are not on this machine, and the Hub does not respond."
        )
        print_line(f"In its place {substitute.weights.resolved()}.", style="bold")
        print_line("All numbers below are of that small teacher. To use your own files, set teacher.path=DIR")
        console.rule(style="bold yellow")
        substitute.weights.locate()
        return substitute, True
