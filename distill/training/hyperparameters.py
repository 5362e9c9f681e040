"""Hyperparameters of a training: their checks, the devices they need, and the values chosen for `auto`."""

import math
import os
import shutil
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as checked_dataclass
from transformers import PreTrainedModel

from distill.core.contracts import BatchOptions
from distill.core.errors import OptionError, UserError
from distill.core.options import STRICT, raise_option_errors
from distill.models.wrappers import find_table
from distill.training.processes import launched_world_size
from distill.training.ray_cluster import check_ray

Precision = Literal["auto", "32-true", "bf16-mixed"]
Accelerator = Literal["auto", "cpu", "gpu", "cuda", "mps"]
AUTO = "auto"
# The options that may be auto.
CHOSEN = ("learning_rate", "max_epochs", "evaluations", "ema", "soup", "patience", "frozen_embeddings")
if TYPE_CHECKING:  # All code that reads these options runs after `resolve`.
    Rate: TypeAlias = float
    Frequency: TypeAlias = float
    Number: TypeAlias = int
    OptionalNumber: TypeAlias = int | None
    Decay: TypeAlias = float
    Part: TypeAlias = float
else:
    Rate = Frequency = PositiveFloat | Literal["auto"]
    Number = PositiveInt | Literal["auto"]
    OptionalNumber = PositiveInt | Literal["auto"] | None
    Decay = Annotated[float, Field(ge=0, lt=1)] | Literal["auto"]
    Part = Annotated[float, Field(ge=0, lt=1, description="a share of the steps from 0 to below 1")] | Literal["auto"]
Beta = Annotated[float, Field(ge=0, lt=1)]


@raise_option_errors
@checked_dataclass(frozen=True, config=STRICT)
class TrainerSettings:
    """Settings of a training, the keys of `conf/trainer`.

    The training ends at `max_epochs` or at `max_steps`, whichever it reaches first.

    Some options may be `auto`. `resolve` replaces them by values for the data and the student before training.

    Args:
        learning_rate: its peak, reached after the warm-up.
        batch_size: number of examples of a micro-batch; `auto`: more than 32 for many short texts.
        batch_tokens: number of tokens of a micro-batch, padding included. A number replaces `batch_size`.
        accumulate: number of micro-batches of an optimizer step in each process.
        max_epochs: number of passes over the data; None: no limit.
        max_steps: number of optimizer steps; None: no limit.
        warmup: share of all steps.
        embeddings_learning_rate: the peak for tables of embeddings, which have no weight decay then, because it would
            shrink the rows that a step does not read; None: `learning_rate`.
        frozen_embeddings: share of all steps, the first ones, in which the table of embeddings stays as it is.
        weight_decay: decay of the weights; biases and norms have none.
        betas: decays of AdamW's averages of the gradient and of its square.
        eps: added by AdamW to the root of the average square.
        clip: largest norm of the gradient; 0 does not clip.
        precision: of the forward and backward passes; `auto` is bf16 where the hardware computes it, else float32.
        evaluations: number of evaluations on dev in an epoch, each of which writes a checkpoint; 0.25: one in four
            epochs.
        checkpoint_steps: number of optimizer steps between further checkpoints.
        schedule: course of the learning rate after the warm-up: to zero in a line or as half a cosine, or constant.
        min_steps: raises the epochs of `max_epochs` until they have this many optimizer steps.
        ema: decay of the moving average of the weights (`lightning_callbacks.MovingAverage`); 0: none.
        soup: number of the last evaluations whose weights are averaged at the end (`Soup` of the callbacks); 1: none.
        patience: number of evaluations in a row without a better metric after which the training stops; None: never.
        accelerator: the device; `auto` takes a GPU if there is one.
        devices: number of processes on this machine that train together, each with batches of its own. Under torchrun
            or SLURM it is the number of processes that these have launched, and with strategy=ray those of a cluster.
        strategy: for several processes: `ddp`, `fsdp` with sharded weights, or `ray` for those of a cluster.
        compile: whether to pass the student to `torch.compile`.
        compact_embeddings: `auto` trains only the rows of the table of embeddings that batches read, where these are
            known before, with the same result (`compact_embeddings`); False: all rows.
        seed: of the order of the examples and of dropout.

    Raises:
        OptionError: for a value out of range, or an accelerator or a compiler that this machine lacks.
        ValueError: if both options of a pair are missing.
    """

    learning_rate: Rate
    batch_size: OptionalNumber
    batch_tokens: PositiveInt | None = None
    accumulate: PositiveInt = 1
    max_epochs: OptionalNumber = None
    max_steps: PositiveInt | None = None
    warmup: Annotated[float, Field(ge=0, le=1, description="a share of the steps from 0 to 1")] = 0.1
    embeddings_learning_rate: PositiveFloat | None = None
    weight_decay: NonNegativeFloat = 0.01
    betas: Annotated[
        tuple[Beta, Beta], Field(strict=False, description="two numbers of at least 0 and below 1, like [0.9, 0.98]")
    ] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    clip: NonNegativeFloat = 1.0
    precision: Precision = "auto"
    evaluations: Frequency = 1
    checkpoint_steps: PositiveInt | None = None
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    min_steps: PositiveInt | None = None
    ema: Decay = 0.0
    soup: Number = 1
    patience: OptionalNumber = None
    accelerator: Accelerator = "auto"
    devices: PositiveInt = 1
    strategy: Literal["auto", "ddp", "fsdp", "ray"] = "auto"
    compile: bool = False
    compact_embeddings: Literal["auto", False] = "auto"
    frozen_embeddings: Part = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0

    def __post_init__(self) -> None:
        if self.max_epochs is None and self.max_steps is None:
            raise ValueError("got neither max_epochs nor max_steps, expected a number for one of them")
        if self.batch_size is None and self.batch_tokens is None:
            raise ValueError("got neither batch_size nor batch_tokens, expected a number for one of them")
        if self.min_steps is not None and self.max_steps is not None and self.min_steps > self.max_steps:
            raise ValueError(
                f"got min_steps={self.min_steps}, expected at most max_steps={self.max_steps}: lower min_steps"
            )
        if self.strategy == "fsdp" and self.ema not in (0, AUTO):
            raise OptionError("ema", str(self.ema), "0 with strategy=fsdp because the average is not sharded")
        if self.accelerator == "mps" and not torch.backends.mps.is_available():
            raise OptionError("accelerator", "mps", "auto or cpu because torch finds no Apple GPU")
        if self.accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
            raise OptionError("accelerator", self.accelerator, "auto or cpu because torch finds no GPU")
        if self.compile and self.device().type == "cpu" and not _has_compiler():
            raise OptionError(
                "compile", "true", "false because torch.compile needs g++ or clang++, and neither is found"
            )

    @classmethod
    def auto(cls, **options: Any) -> "TrainerSettings":
        """Returns settings whose other options than the given ones are chosen for the data and the student.

        Args:
            options: fields of `TrainerSettings` that are not chosen, for example `max_epochs=3`.
        """
        chosen: dict[str, Any] = dict.fromkeys(CHOSEN, AUTO)
        return cls(**chosen | {"batch_size": AUTO} | options)

    @property
    def fixed_epochs(self) -> int | None:
        """Returns `max_epochs`, None if the number of epochs follows from the data or `max_steps`."""
        return None if "max_epochs" in self.unresolved() or self.min_steps else self.max_epochs

    @property
    def chooses_batch_size(self) -> bool:
        """Returns whether `batch_size` is `auto` and not chosen yet."""
        value: object = self.batch_size
        return value == AUTO

    def unresolved(self) -> list[str]:
        """Returns the names of the options besides `batch_size` that are `auto` and not chosen yet."""
        return [name for name in CHOSEN if getattr(self, name) == AUTO]

    def total_steps(self, steps_per_epoch: int) -> int:
        """Returns the optimizer steps of the whole training, without an early stop."""
        if names := self.unresolved():
            raise ValueError(
                f"{names[0]} is auto, expected a value: distill.training.hyperparameters.resolve chooses one"
            )
        return self.steps_in(self.max_epochs, steps_per_epoch)

    def steps_in(self, epochs: int | None, steps_per_epoch: int) -> int:
        """Returns the optimizer steps of `epochs` in the place of `max_epochs`, within `min_steps` and `max_steps`."""
        if epochs is not None:
            epochs = max(epochs, math.ceil((self.min_steps or 0) / steps_per_epoch))
        ends = [self.max_steps, None if epochs is None else epochs * steps_per_epoch]
        return min(end for end in ends if end is not None)

    def batches(self) -> BatchOptions:
        """Returns the size and the order of the batches, for `batches.all_loaders`.

        Raises:
            ValueError: if their size is not chosen yet.
        """
        if self.chooses_batch_size:
            raise ValueError(
                "batch_size is auto, expected a value: distill.training.hyperparameters.with_batch_size chooses one"
            )
        size = self.batch_size if self.batch_tokens is None else None
        return {
            "batch_size": size, "batch_tokens": self.batch_tokens, "accumulate": self.accumulate, "seed": self.seed,
            "world": self.processes(),
        }  # fmt: skip

    def step_size(self) -> str:
        """Returns the size of the batch of an optimizer step, in words: `64 examples`."""
        micro_batches = self.accumulate * self.processes()
        if self.batch_tokens is not None:
            return f"up to {self.batch_tokens * micro_batches:,} tokens"
        return f"{(self.batch_size or 0) * micro_batches:,} examples"

    def frozen_steps(self, steps: int) -> int:
        """Returns the number of the first of all `steps` in which the table of embeddings stays as it is."""
        return math.ceil(round(self.frozen_embeddings * steps, 6))

    def key(self) -> dict[str, Any]:
        """Returns the settings that the result of a training depends on, for the key of a cache."""
        key = asdict(replace(self, precision=self.resolved_precision()))
        for name in ("checkpoint_steps", "devices", "strategy", "compact_embeddings"):
            key.pop(name)  # They do not change the result.
        for name in ("embeddings_learning_rate", "frozen_embeddings"):
            if not key[name]:
                key.pop(name)  # As in the keys of versions without it.
        if self.processes() > 1:  # A step contains the batches of all ranks.
            key["processes"] = self.processes()
        return key | {"device": self.device().type}

    def processes(self) -> int:
        """Returns the number of processes that train, the world size."""
        launched = launched_world_size()
        return launched if launched > 1 and self.strategy != "ray" else self.devices

    def device(self) -> torch.device:
        """Returns the device of the training."""
        if self.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
            return torch.device("cuda")
        if self.accelerator in ("auto", "mps") and torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")

    def resolved_precision(self) -> Precision:
        """Returns the precision: `auto` is bf16 where the GPU or CPU computes it in hardware, and float32 elsewhere."""
        if self.precision != "auto":
            return self.precision
        return "bf16-mixed" if has_bf16(self.device()) else "32-true"


def evaluation_interval(evaluations: float, steps_per_epoch: int) -> int:
    """Returns the number of optimizer steps between two evaluations, given their number in an epoch.

    It is rounded up, so that the last one is not followed by the one after the last step a few steps later.
    """
    return max(1, math.ceil(round(steps_per_epoch / evaluations, 6)))


def count_evaluations(evaluations: float, *, steps_per_epoch: int, steps: int) -> int:
    """Returns the number of evaluations in a training of so many steps; the last one is after the last step."""
    return math.ceil(steps / evaluation_interval(evaluations, steps_per_epoch))


def has_bf16(device: torch.device) -> bool:
    """Returns whether a GPU `device`, or else the CPU, computes bf16 in hardware."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _has_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def check_budget(batch_tokens: int | None, max_length: int, trainer: str) -> None:
    """Checks that the longest example fits into a micro-batch of `batch_tokens`.

    Raises:
        UserError: if it may not. `trainer` is the key of the settings in the configuration.
    """
    if batch_tokens is not None and batch_tokens < max_length:
        raise UserError(
            f"got {trainer}.batch_tokens={batch_tokens}, expected at least task.max_length={max_length}, the "
            f"longest example: raise {trainer}.batch_tokens or lower task.max_length"
        )


def check_processes(settings: TrainerSettings, trainer: str) -> None:
    """Checks that each process has a GPU of its own, if the training runs on GPUs.

    Raises:
        UserError: if there are too few. `trainer` is the key of the settings in the configuration.
    """
    device = settings.device()
    if settings.strategy == "ray":
        check_ray(f"{trainer}.strategy=ray")
        return  # Its processes are of other machines.
    if device.type == "mps" and settings.processes() > 1:
        raise UserError(f"got {trainer}.devices={settings.devices}, expected 1 because an Apple GPU serves one process")
    if device.type == "cuda" and launched_world_size() == 1 and settings.devices > torch.cuda.device_count():
        raise UserError(
            f"got {trainer}.devices={settings.devices}, expected at most {torch.cuda.device_count()}, the GPUs that "
            f"torch finds: lower it or set {trainer}.accelerator=cpu"
        )


SMALL_ROWS = 10_000  # Labelled training rows up to which further text and a baseline are worth their time.
LEAST_STEPS = 2_400  # Optimizer steps of a student on small data.
TEACHER_STEPS = 1_200  # Those of a fine-tuned teacher, all of whose layers are pre-trained.
PRETRAINED = ("whole", "inherited")  # Values of `Facts.start`.
EPOCHS = 2  # Of large data, and the fewest of small data.
FRESH_EPOCHS = 3  # The fewest for a student without pre-trained layers.
TEACHER_EPOCHS = 3  # The fewest for a fine-tuned teacher.
MOST_EPOCHS = 40  # Of tiny data.
TEACHER_RATES = {384: 1e-4, 768: 5e-5}  # Of a whole pre-trained encoder up to this width.
WIDE_TEACHER_RATE = 2e-5  # Of a wider one.
INHERITED_RATE = 2e-4  # Of a student of `RATE_WIDTH` with some of its teacher's layers.
BATCH_SIZE = 32  # Examples of a step.
LARGEST_BATCH = 128  # Of short texts in large data,
STEP_TOKENS = 2_560  # if it has no more tokens than these on average.
RATE_WIDTH = 384  # A wider student has a lower learning rate, in inverse proportion.
FRESH_RATE = 5e-4  # Of a transformer with random layers.
NO_ATTENTION_RATE = 1e-3  # Of a student without attention.
EVALUATIONS = 3  # In an epoch.
LEAST_EVALUATIONS = 6  # In a training of at least an epoch.
FEWEST_EVALUATIONS = 2  # In a shorter one, whose dev may be larger than what it trains on.
MOST_EVALUATIONS = 36  # In a training, if its epochs are fewer.
SCORED = 1.5  # Examples that are scored in all evaluations together for each one that is trained on, half of the time.
SOUP = 3  # Evaluations.
EMA = 0.0
FROZEN = 0.33  # Share of the steps, where the table of embeddings is the teacher's and all layers are random.
NO_EFFECT = {"ema": 0, "soup": 1, "frozen_embeddings": 0}  # Values with which an option changes nothing.
PATIENCE = 3  # A training of pre-trained layers stops after this part of its evaluations without a better metric,
LEAST_FOR_PATIENCE = 12  # if it has so many.
# Of a fine-tuning in batches of a number of tokens, in a message.
_FIXED = {
    "learning_rate": "5e-5", "max_epochs": 3, "evaluations": 1, "ema": 0, "soup": 1, "patience": "null",
    "frozen_embeddings": 0,
}  # fmt: skip
# Of a language model with random weights on raw text; a trained one has that of `TEXT`.
FRESH_TEXT_RATES = {"fresh": FRESH_RATE, "no_attention": 3e-3}
TEXT = {
    "learning_rate": 1e-4, "max_epochs": 2, "evaluations": 1, "ema": 0.0, "soup": 1, "patience": None,
    "frozen_embeddings": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """The properties of the data and the student that the choices depend on.

    Args:
        examples: number of training examples.
        steps_per_epoch: number of optimizer steps in an epoch.
        start: the layers before training: `whole` for a pre-trained encoder to fine-tune, `inherited` for a student
            with pre-trained layers, `fresh` for random ones, `no_attention` for random ones without attention.
        width: size of the hidden states.
        scored: number of examples in an evaluation.
        sequences: how many sequences of tokens an example has in training and in an evaluation.
        fewest_epochs: passes over the data that a student needs at least, as the task says.
        has_table: whether the student's table of embeddings was made from the teacher's.
        growth: examples of a step over `BATCH_SIZE`, if they were chosen.
    """

    examples: int
    steps_per_epoch: int
    start: str
    width: int
    scored: int = 0
    sequences: tuple[int, int] = (1, 1)
    fewest_epochs: int = 0
    has_table: bool = False
    growth: float = 1.0


@dataclass(frozen=True)
class Choice:
    """A chosen value and its reason."""

    value: float | int | None
    reason: str


def describe_student(student: PreTrainedModel) -> tuple[str, int]:
    """Returns `start` and `width` of a student.

    A student whose constructor says nothing about copied tensors (`inherited`) is a loaded model, which is taken for a
    pre-trained one.
    """
    inherited, names = getattr(student, "inherited", None), dict(student.named_parameters())
    is_inherited = inherited is None or 2 * len(inherited) >= len(names)  # Embeddings alone are a few tensors of many.
    return "inherited" if is_inherited else describe_fresh(student), int(student.config.hidden_size)


def has_inherited_table(student: PreTrainedModel) -> bool:
    """Returns whether the table of embeddings of a student was made from the teacher's, as its constructor says."""
    table, inherited = find_table(student), getattr(student, "inherited", None) or {}
    own = {id(parameter) for parameter in table.parameters()} if table is not None else set()
    return any(name in inherited and id(parameter) in own for name, parameter in student.named_parameters())


def describe_fresh(model: PreTrainedModel) -> str:
    """Returns `start` of a model with random weights."""
    return "fresh" if getattr(model.config, "num_attention_heads", None) else "no_attention"


def choose_epochs(facts: Facts) -> int:
    """Returns `max_epochs`."""
    fewest = {"whole": TEACHER_EPOCHS, "inherited": EPOCHS}.get(facts.start, FRESH_EPOCHS)
    return max(fewest, facts.fewest_epochs, min(MOST_EPOCHS, math.ceil(_least_steps(facts) / facts.steps_per_epoch)))


def choose_evaluations(facts: Facts, epochs: float) -> float:
    """Returns the evaluations of an epoch, fewer where dev is large beside train; `epochs` may be below 1."""
    evaluations = max(1, min(EVALUATIONS, int(MOST_EVALUATIONS // epochs)))
    evaluations = max(evaluations, math.ceil(LEAST_EVALUATIONS / epochs))
    least = LEAST_EVALUATIONS if epochs >= 1 else FEWEST_EVALUATIONS
    trained, scored = facts.sequences
    most = max(least, SCORED * epochs * facts.examples * trained / max(1, facts.scored * scored))
    if evaluations * epochs <= most:
        return evaluations
    return max(1, most // epochs) if most >= epochs else float(f"{most / epochs:.2g}")


def _least_steps(facts: Facts) -> int:
    steps = TEACHER_STEPS if facts.start == "whole" else LEAST_STEPS
    return math.ceil(steps / facts.sequences[0] / facts.growth)


def choose(facts: Facts, steps: int, *, evaluations: float | None = None) -> dict[str, Choice]:
    """Returns a value for every option that may be `auto`, in a training of so many steps; the table of choices.

    Args:
        evaluations: those of an epoch; None chooses them too.
    """
    if evaluations is None:
        evaluations = choose_evaluations(facts, steps / facts.steps_per_epoch)
    number = count_evaluations(evaluations, steps_per_epoch=facts.steps_per_epoch, steps=steps)
    soup = Choice(SOUP, "the average of the last weights is kept if it is as good on dev")
    frozen = Choice(FROZEN, "the embeddings are the teacher's, and the layers are random")
    trained = Choice(0.0, "the embeddings are trained like the layers")
    return {
        "learning_rate": _choose_rate(facts),
        "max_epochs": Choice(choose_epochs(facts), _explain_epochs(facts)),
        "evaluations": Choice(evaluations, f"{number} in all, from which the best weights are chosen"),
        "ema": Choice(EMA, "the soup averages the weights"),
        "soup": soup if number > 1 else Choice(1, "the training ends before its second evaluation"),
        "patience": _choose_patience(facts, number),
        "frozen_embeddings": frozen if facts.start == "no_attention" and facts.has_table else trained,
    }


def _choose_rate(facts: Facts) -> Choice:
    """Returns the learning rate; for batches that are `growth` times as large times the square root."""
    teacher = max((rate for width, rate in TEACHER_RATES.items() if facts.width <= width), default=WIDE_TEACHER_RATE)
    inherited = float(f"{INHERITED_RATE * min(1.0, RATE_WIDTH / facts.width):.2g}")
    rate, reason = {
        "whole": (teacher, f"a whole pre-trained encoder of width {facts.width} is fine-tuned"),
        "inherited": (inherited, f"the student has pre-trained layers of width {facts.width}"),
        "fresh": (FRESH_RATE, "the layers are random"),
        "no_attention": (NO_ATTENTION_RATE, "the layers are random and have no attention"),
    }[facts.start]
    if facts.growth == 1:
        return Choice(rate, reason)
    larger = float(f"{rate * math.sqrt(facts.growth):.2g}")
    return Choice(larger, f"{reason}, and a batch has {BATCH_SIZE * facts.growth:g} examples")


def choose_batch_size(settings: TrainerSettings, examples: int, tokens: float, *, compares: bool = False) -> int:
    """Returns `batch_size` of a student with pre-trained layers.

    A step of few tokens does not fill a processor. Where there are many examples, fewer and larger steps end
    with the same metric if the learning rate grows by the square root of their size. Random layers need more steps.

    Args:
        examples: number of training examples.
        tokens: mean number of tokens of an example.
        compares: whether a term compares the examples of a batch with each other.
    """
    is_given = "learning_rate" not in settings.unresolved() or settings.batch_tokens is not None
    is_larger = settings.accumulate * settings.processes() > 1
    size = BATCH_SIZE
    if compares or is_given or is_larger or examples <= SMALL_ROWS:
        return size
    while size < LARGEST_BATCH and 2 * size * tokens <= STEP_TOKENS:
        size *= 2
    return size


def with_batch_size(settings: TrainerSettings, size: int = BATCH_SIZE) -> TrainerSettings:
    """Returns the settings with this `batch_size` if it is `auto`."""
    return replace(settings, batch_size=size) if settings.chooses_batch_size else settings


def _choose_patience(facts: Facts, evaluations: int) -> Choice:
    """Returns `patience` of a training with so many evaluations in all."""
    if facts.start not in PRETRAINED:
        return Choice(None, "layers that begin with random weights may improve late")
    if evaluations < LEAST_FOR_PATIENCE:
        return Choice(None, f"{evaluations} evaluations are too few to stop by")
    return Choice(math.ceil(evaluations / PATIENCE), f"a third of the {evaluations} evaluations")


def _explain_epochs(facts: Facts) -> str:
    sequences = f" of {facts.sequences[0]} sequences" if facts.sequences[0] > 1 else ""
    epochs = choose_epochs(facts)
    steps = f"{facts.examples:,} examples{sequences} are {facts.steps_per_epoch:,} steps an epoch"
    least = _least_steps(facts)
    if epochs * facts.steps_per_epoch < least:
        return f"{steps}, and {epochs} epochs are the most" if epochs == MOST_EPOCHS else steps
    if (epochs - 1) * facts.steps_per_epoch < least:
        return f"{steps}, and {least:,} steps are the least"
    reason = "the fewest for this task" if epochs == facts.fewest_epochs else "enough"
    return f"{steps}, and {epochs} epochs are {reason}"


def resolve(settings: TrainerSettings, facts: Facts) -> tuple[TrainerSettings, dict[str, dict[str, Any]]]:
    """Returns the settings with a value for every option that is `auto`, and those with an effect and their reasons."""
    settings = with_batch_size(settings)
    names = settings.unresolved()
    epochs = choose_epochs(facts) if "max_epochs" in names else settings.max_epochs
    steps = settings.steps_in(epochs, facts.steps_per_epoch)
    table = choose(facts, steps, evaluations=None if "evaluations" in names else settings.evaluations)
    values: dict[str, Any] = {name: table[name].value for name in names}
    resolved = replace(settings, **values)
    without_effect = [name for name, value in NO_EFFECT.items() if getattr(resolved, name) == value]
    if steps == settings.max_steps:
        without_effect.append("max_epochs")
    return resolved, {name: asdict(table[name]) for name in names if name not in without_effect}


def resolve_finetuning(
    settings: TrainerSettings,
    examples: int,
    *,
    width: int,
    scored: int = 0,
    option: str = "teacher.finetune",
    start: str = "whole",
    sequences: tuple[int, int] = (1, 1),
) -> tuple[TrainerSettings, dict[str, dict[str, Any]]]:
    """Returns the settings of a teacher's training as `resolve` does.

    Args:
        width, scored, start, sequences: as in `Facts`.
        option: the key of the settings in the configuration.

    Raises:
        UserError: if batches have a number of tokens, because the steps of an epoch are not known then.
    """
    settings = with_batch_size(settings)
    names = settings.unresolved()
    if not names:
        return settings, {}
    if settings.batch_size is None or settings.batch_tokens is not None:
        fixed = " ".join(f"{option}.{name}={_FIXED[name]}" for name in names)
        raise UserError(
            f"got {option}.{names[0]}=auto with batch_tokens, whose steps are not known before, expected batch_size "
            f"alone: set {option}.batch_tokens=null, or values such as {fixed}"
        )
    size = settings.batch_size * settings.accumulate * settings.processes()
    return resolve(settings, Facts(examples, math.ceil(examples / size), start, width, scored, sequences))


def describe_choices(chosen: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """Returns the option of each choice, and its value with the reason."""
    shown = {name: "null" if of["value"] is None else f"{of['value']:g}" for name, of in chosen.items()}
    return [(name, f"{shown[name]}: {choice['reason']}") for name, choice in chosen.items()]


def for_text(settings: TrainerSettings, start: str | None = None) -> TrainerSettings:
    """Returns the settings of a training on raw text, whose options have the same values for any text if `auto`.

    Args:
        start: as in `Facts`, of a model with random weights; None for a trained one.
    """
    table = TEXT | ({} if start is None else {"learning_rate": FRESH_TEXT_RATES[start]})
    values: dict[str, Any] = {name: table[name] for name in settings.unresolved()}
    return with_batch_size(replace(settings, **values))
