"""Where teachers come from: their weights, their adaptation and fine-tuning, and the mean of several of them.

A teacher from a handful of labelled rows: pairs of them tune the encoder, and then a head is fitted. As SetFit does
(Tunstall et al., arXiv 2209.11055, section 3), but on the vectors that the head of the model's class reads, so that the
teacher is an ordinary model of transformers.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, get_scheduler

from distill.core.console import ProgressMeter, console, print_line
from distill.core.contracts import Data, Examples, Likelihood, Scores, Task
from distill.core.errors import NumericalError, OptionError, UnreachableError, UserError
from distill.core.files import write_text
from distill.core.options import STRICT, raise_option_errors, show_value
from distill.core.storage import entry_key, has_entry, new_entry
from distill.data.batches import scoring_steps
from distill.kinds import MaskedLM
from distill.kinds.masked_lm import TextData
from distill.kinds.outputs import KnownOutputs
from distill.models.forward import run_model, to_device
from distill.models.loading import Start, find_head
from distill.models.surgery.embeddings import AUTO_WORDS, AddWords, check_option
from distill.models.surgery.layers import is_whole
from distill.teachers.computation import Features
from distill.teachers.output_cache import OutputCache
from distill.teachers.writing import TargetSettings
from distill.training import hyperparameters
from distill.training.hyperparameters import AUTO, TrainerSettings, check_budget, check_processes


def mix_logits(
    logits: Sequence[Tensor], shares: Sequence[float], likelihood: Likelihood, *, temperature: float = 1.0
) -> Tensor:
    """Returns logits `[n, C]` whose softmax, or sigmoid, at a temperature is the mean of the teachers' at it.

    The soft targets of an ensemble are the mean of its softened distributions (Hinton et al., arXiv 1503.02531).
    Numbers have no temperature.

    Args:
        logits: of each teacher, `[n, C]`. The result is in float32.
        shares: the weight of each teacher, with a sum of 1.
        likelihood: the meaning of the logits: `softmax`, `sigmoid`, or `gaussian` for numbers.
    """
    stacked = torch.stack([of_teacher.float() for of_teacher in logits])
    weights = torch.tensor(shares, device=stacked.device).reshape(-1, *[1] * (stacked.dim() - 1))
    if likelihood == "gaussian":
        return (weights * stacked).sum(dim=0)
    softened = stacked / temperature
    if likelihood == "sigmoid":
        present, absent = ((F.logsigmoid(odds) + weights.log()).logsumexp(dim=0) for odds in (softened, -softened))
        return temperature * (present - absent)
    return temperature * (softened.log_softmax(dim=-1) + weights.log()).logsumexp(dim=0)


def mix_scores(scores: Sequence[Scores], shares: Sequence[float], likelihood: Likelihood) -> Scores:
    """Returns the scores of the mean, from those of the teachers in the same order of items."""
    mixed = mix_logits([torch.from_numpy(teacher.columns["logits"]) for teacher in scores], shares, likelihood)
    return replace(scores[0], columns={**scores[0].columns, "logits": mixed.numpy()})


def normalize_shares(weights: Sequence[float] | None, teachers: int) -> tuple[float, ...]:
    """Returns weights with a sum of 1, equal ones for None.

    Raises:
        ValueError: unless there is a positive weight for each teacher.
    """
    if weights is None:
        return (1 / teachers,) * teachers
    if len(weights) != teachers or not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise ValueError(f"{teachers} positive numbers, one for each teacher")
    return tuple(weight / sum(weights) for weight in weights)


FORMAT = 1  # Of the texts of a task in the cache.
DOMAIN, TASK = "domain", "task"
_TEXTS = "texts.jsonl"
# Settings of the text that do not change its sequences, or stand in the digest of the corpus.
_WITHOUT_EFFECT = ("data_dir", "hub_id", "builtin", "text", "documents", "streaming", "keep_gb")


@contextmanager
def renamed(prefix: str = "adapt", **names: str) -> Iterator[None]:
    """Raises errors of a text with other options in place of those of a task, which are alike.

    Args:
        prefix: of those options.
        names: of options of a task that have other names there.
    """
    try:
        yield
    except (UserError, ValueError) as error:
        kind = UnreachableError if isinstance(error, UnreachableError) else UserError
        text = re.sub(r"(?<![\w/.])task\.(\w+)", lambda found: f"{prefix}.{names.get(found[1], found[1])}", str(error))
        raise kind(text) from error


class Adaptation:
    """Masked language modelling on further text, with words of the text in the vocabulary, before a fine-tuning.

    Args:
        name: `domain` for text of its own, or `task` for the training texts of the task, labelled or not.
        trainer: settings of the training; None has those that are chosen for text.
        add_words: words that become pieces, as in `grow_vocabulary`.
        text: arguments of `MaskedLM` for the text and its masks.

    Raises:
        OptionError: for another name, or something that is no words.
        UserError: for `domain` without text, or `task` with text.
    """

    def __init__(
        self,
        *,
        name: str = DOMAIN,
        trainer: TrainerSettings | None = None,
        add_words: AddWords = AUTO_WORDS,
        **text: Any,
    ) -> None:
        if name not in (DOMAIN, TASK):
            raise OptionError("name", show_value(name), f"{DOMAIN} or {TASK}")
        check_option(add_words)
        self.name, self.add_words = name, add_words
        self.trainer = hyperparameters.for_text(trainer or TrainerSettings.auto())
        with renamed():
            self.text = MaskedLM(name=name, **text | {"builtin": False})
        given = self.text.settings.data_dir or self.text.settings.hub_id
        if name == DOMAIN and given is None:
            raise UserError("adapt=domain has no text: set adapt.data_dir=DIR with .txt, .jsonl or .parquet files")
        if name == TASK and given is not None:
            raise UserError(
                "adapt=task reads the training texts of the task: leave adapt.data_dir out, or set adapt=domain"
            )
        check_processes(self.trainer, "adapt.trainer")
        check_budget(self.trainer.batch_tokens, self.text.info.max_length, "adapt.trainer")

    def __str__(self) -> str:
        """Names the text in records and messages, without the directories that it is in."""
        settings = self.text.settings
        if self.name == TASK:
            return "the training texts of the task"
        return settings.hub_id or Path(str(settings.data_dir)).expanduser().resolve().name

    def check(self, task: Task, *, is_new: bool, is_finetuned: bool) -> None:
        """Raises UserError for a task or a teacher that cannot be adapted.

        Args:
            is_new: whether the teacher has random weights.
            is_finetuned: whether it is fine-tuned if its head does not fit.
        """
        given = f"adapt={self.name}"
        if task.info.raw_text:
            raise UserError(
                f"{given} is for a teacher that is fine-tuned on labels, and task={task.info.name} is raw text: leave "
                f"it out; job=finetune task={task.info.name} trains the teacher on the text"
            )
        if is_new:
            raise UserError(
                f"{given} begins with a trained model, and this teacher has random weights: take another one, or train "
                "it with job=pretrain"
            )
        if not is_finetuned:
            raise UserError(
                f"{given} changes the encoder under a teacher's head, and teacher.finetune=false keeps the head as it "
                "is: leave out one of them"
            )

    def read(self, data: Data, cache_dir: Path) -> TextData:
        """Returns the text, of the task that of the rows that are trained on.

        Args:
            data: of the task.
        """
        if self.name == DOMAIN:
            return self.text.read(cache_dir)
        file = keep_texts(_training_texts(data), cache_dir)
        options = asdict(self.text.settings) | {"mask": self.text.settings.mask, "text": "text"}
        return MaskedLM(name=self.name, **options | {"data_dir": str(file)}).read(cache_dir)

    def key(self) -> list[Any]:
        """Returns everything that the adapted model depends on besides its start and its text."""
        text = {name: value for name, value in asdict(self.text.settings).items() if name not in _WITHOUT_EFFECT}
        return [self.add_words, text, self.trainer.key()]


def keep_texts(texts: Iterable[str], cache_dir: Path) -> Path:
    """Returns the JSONL file of the cache that has each of these texts once."""
    kept = list(dict.fromkeys(filter(None, texts)))
    directory = cache_dir / "adaptation" / entry_key("adaptation", FORMAT, kept)[:20]
    if not has_entry(directory):
        with new_entry(directory) as temporary:
            lines = (json.dumps({"text": text}) for text in kept)
            write_text(temporary / _TEXTS, "".join(f"{line}\n" for line in lines))
    return directory / _TEXTS


def _training_texts(data: Data) -> Iterator[str]:
    """Yields the texts of the examples of train, and those that only the teacher labels."""
    yield from data.labelled_texts()
    yield from data.unlabelled_texts()


START = "contrastive"  # The value of `teacher.start`.
CLIP = 1.0  # Largest norm of the gradient.
WARMUP = 0.1  # Share of the steps.


@raise_option_errors
@checked_dataclass(frozen=True, config=STRICT)
class ContrastiveSettings:
    """The pairs of labelled rows, and the training on them.

    Args:
        pairs: number of pairs of each row with another one of its class, and of as many with one of another class, in
            an epoch.
        epochs: number of epochs, each with pairs of its own.
        learning_rate: the peak, after a warm-up of a tenth of the steps and before a linear decay.
        batch_size: pairs in an optimizer step.
        seed: of the pairs and of dropout.
    """

    pairs: PositiveInt = 20
    epochs: PositiveInt = 1
    learning_rate: PositiveFloat = 2e-5
    batch_size: PositiveInt = 16
    seed: NonNegativeInt = 0

    def check(self, task: Task) -> None:
        """Raises UserError for a task without one class for each text or pair of texts."""
        info = task.info
        if info.auto_class != "AutoModelForSequenceClassification" or info.likelihood != "softmax":
            raise UserError(
                f"teacher.start={START} makes pairs of rows of one class, and task {info.name} is {info.kind}: leave "
                "it out, or take task=classification"
            )


def read_start(start: object, settings: ContrastiveSettings) -> ContrastiveSettings | None:
    """Returns the settings if `teacher.start` is contrastive, None for a fine-tuning of the whole model.

    Raises:
        OptionError: for another value.
    """
    if start not in (None, START):
        raise OptionError("teacher.start", show_value(start), f"null or {START}")
    return None if start is None else settings


def draw_pairs(classes: np.ndarray, pairs: int, random: np.random.Generator) -> np.ndarray:
    """Returns pairs of rows and whether they have one class, `[n, 3]`, in random order.

    A class of one row has no pairs of its own, and rows of all one class none with another.

    Args:
        classes: of the rows, `[N]`.
        pairs: number of pairs of each kind that begin with a row.
    """
    rows = np.arange(len(classes))
    drawn: list[tuple[int, int, int]] = []
    for row in rows:
        is_same = classes == classes[row]
        for others, label in ((rows[is_same & (rows != row)], 1), (rows[~is_same], 0)):
            if len(others):
                drawn += [(int(row), int(other), label) for other in random.choice(others, size=pairs)]
    return random.permutation(np.array(drawn, dtype=np.int64).reshape(-1, 3))


def tune(
    model: PreTrainedModel, task: Task, examples: Examples, settings: ContrastiveSettings, *, device: torch.device
) -> None:
    """Tunes the model on pairs of labelled rows, and fits its head to the vectors of the rows.

    The cosine of the vectors of a pair learns to be 1 for one class and 0 for two, by the squared error.

    Args:
        model: has a last linear layer with an output for each class.
        examples: the labelled rows.

    Raises:
        UserError: for a model without such a layer.
    """
    classes = _classes(task, examples)
    head = find_head(model, int(model.config.num_labels))
    if head is None:
        raise UserError(f"{type(model).__name__} has no last linear layer to fit: leave out teacher.start={START}")
    torch.manual_seed(settings.seed)
    random = np.random.default_rng(settings.seed)
    model.to(device).train()
    epochs = [draw_pairs(classes, settings.pairs, random) for _ in range(settings.epochs)]
    steps = [
        of_epoch[first : first + settings.batch_size]
        for of_epoch in epochs
        for first in range(0, len(of_epoch), settings.batch_size)
    ]
    tuned = [parameter for parameter in model.parameters() if all(parameter is not own for own in head.parameters())]
    optimizer = torch.optim.AdamW(tuned, lr=settings.learning_rate)
    schedule = get_scheduler("linear", optimizer, int(WARMUP * len(steps)), len(steps))
    with ProgressMeter("pairs", len(steps)) as meter:
        for step in steps:
            rows = np.concatenate([step[:, 0], step[:, 1]]).tolist()
            first, second = _read_vectors(model, head, examples, rows, device).chunk(2)
            loss = F.mse_loss(F.cosine_similarity(first, second), torch.from_numpy(step[:, 2]).float().to(device))
            if not loss.isfinite():
                raise NumericalError("the loss of pairs is not finite: try a smaller teacher.contrastive.learning_rate")
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(tuned, CLIP)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            meter.advance(1)
    model.eval()
    _fit_head(model, head, examples, classes, device)
    model.cpu()


def _classes(task: Task, examples: Examples) -> np.ndarray:
    """Returns the class of each row, `[N]`."""
    labels = [task.select(examples[rows]).labels for rows in _in_order(len(examples))]
    return torch.cat(labels).numpy()


def _in_order(number: int, size: int = 256) -> Iterator[Sequence[int]]:
    return (range(first, min(number, first + size)) for first in range(0, number, size))


def _read_vectors(
    model: PreTrainedModel, head: nn.Linear, examples: Examples, rows: Sequence[int], device: torch.device
) -> Tensor:
    """Returns the vectors `[n, H]` of these rows that the head reads."""
    found: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda module, inputs: found.append(inputs[0]))
    try:
        run_model(model, to_device(examples[list(rows)], device))
    finally:
        handle.remove()
    return found[-1]


@torch.no_grad()
def _fit_head(
    model: PreTrainedModel, head: nn.Linear, examples: Examples, classes: np.ndarray, device: torch.device
) -> None:
    """Sets the head to the logistic regression of the classes on the vectors of all rows."""
    from sklearn.linear_model import LogisticRegression

    vectors = np.zeros((len(examples), head.in_features), dtype=np.float32)
    for rows in scoring_steps(examples.lengths):
        vectors[rows] = _read_vectors(model, head, examples, rows, device).float().cpu().numpy()
    fitted = LogisticRegression(max_iter=1000).fit(vectors, classes)
    weight, bias = torch.from_numpy(fitted.coef_).float(), torch.from_numpy(fitted.intercept_).float()
    if len(fitted.classes_) == 2:  # One row, of the log-odds of the second class.
        weight, bias = torch.cat([-weight / 2, weight / 2]), torch.cat([-bias / 2, bias / 2])
    known = torch.from_numpy(fitted.classes_)
    head.weight.zero_()
    head.weight[known] = weight.to(head.weight.device)
    if head.bias is not None:
        head.bias.fill_(float(bias.min()) - 10.0)  # A class without a row is never given.
        head.bias[known] = bias.to(head.bias.device)


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
        self, auto_class: str, labels: Sequence[str] | None, texts: Iterable[str], *, problem_type: str | None = None
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


class Untrained(Protocol):
    """A source of outputs that needs no training on the task.

    Attributes:
        encoder: the weights that a student starts from, with their tokenizer and hidden states.
        origin: where the outputs come from, in words for records.
        labels_any_text: whether it has the outputs of any text, and not only of those that it was given with.
    """

    encoder: Weights
    origin: str
    labels_any_text: bool

    def check(self, task: Task) -> None:
        """Raises UserError for a task whose outputs it cannot have, before anything is read."""
        ...

    def resolved(self) -> str:
        """Returns the name in records."""
        ...

    def fingerprint(self) -> str:
        """Returns a digest of everything that the outputs depend on besides texts and encoder."""
        ...


@runtime_checkable
class Labeller(Untrained, Protocol):
    """A source of class probabilities: a class of `teachers/`."""

    def load(self, task: Task, data: Data, tokenizer: PreTrainedTokenizerBase, cache_dir: Path) -> nn.Module:
        """Returns the module that gives logits `[B, C]` of `input_ids` and `attention_mask`, `[B, L]` both.

        Raises:
            UserError: for classes that are not the task's, and models or files that cannot be used.
        """
        ...


@runtime_checkable
class KnownSource(Untrained, Protocol):
    """A source of the outputs of a table: a class of `teachers/`."""

    def read(self, task: Task, data: Data) -> KnownOutputs:
        """Returns the outputs; raises UserError for files that cannot be used."""
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
        labeller: has the class probabilities, or outputs of a table, in place of a head of the weights; None for a
            model with a head.
        targets: the texts of the teacher that take the place of those of train; None for those of the data.
        max_length: tokens that it reads of an example; None for as many as its student.
        stands_for: name of the teacher whose substitute this one is; None for a teacher that was asked for.

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
    labeller: Labeller | KnownSource | None = None
    targets: TargetSettings | None = None
    stands_for: str | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.accept_weak, bool):
            raise OptionError("teacher.accept_weak", show_value(self.accept_weak), "true or false")
        if self.max_length is not None and not is_whole(self.max_length):
            raise OptionError(
                "teacher.max_length", show_value(self.max_length), "a whole number of at least 1, or null"
            )

    def of_task(self, name: str) -> "TeacherSource":
        """Returns the source of the teacher of the task with this name."""
        return self.by_task.get(name, self)

    @property
    def members(self) -> "tuple[TeacherSource, ...]":
        """Returns the sources of the teachers of an ensemble, or this one."""
        return (self, *self.others)

    def tuned(self, **training: Any) -> "TeacherSource":
        """Returns the source with other settings of the training of each of its teachers."""
        return replace(self, **training, others=tuple(replace(other, **training) for other in self.others))

    @property
    def requested(self) -> str:
        """Returns the name of the teacher that was asked for."""
        return self.stands_for or self.weights.name

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
    for one in source.members:
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


def locate(source: TeacherSource, task: Task) -> TeacherSource:
    """Returns the source, or its substitute if the weights are not available.

    Raises:
        UserError: if the weights are not available and there is no substitute.
    """
    try:
        for one in source.members:
            one.weights.locate()
        return source
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
        return replace(substitute, stands_for=source.weights.name)
