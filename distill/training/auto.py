"""Values of the options of a training that are `auto`, chosen from the data and the student, with their reasons."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from distill.errors import UserError
from distill.training.settings import TrainerSettings, count_evaluations

SMALL_ROWS = 10_000  # Labelled training rows up to which further text and a baseline are worth their time.
LEAST_STEPS = 2_400  # Optimizer steps of a student on small data.
TEACHER_STEPS = 1_200  # Those of a fine-tuned teacher, all of whose layers are pre-trained.
EPOCHS = 2  # Of large data, and the fewest of small data.
FRESH_EPOCHS = 3  # The fewest for a student without pre-trained layers.
MOST_EPOCHS = 40  # Of tiny data.
TEACHER_RATE = 5e-5  # Of a whole pre-trained encoder.
INHERITED_RATE = 2e-4  # Of a student of `RATE_WIDTH` with some of its teacher's layers.
RATE_WIDTH = 384  # A wider student has a lower learning rate, in inverse proportion.
FRESH_RATE = 5e-4  # Of a transformer with random layers.
RECURRENT_RATE = 1e-3  # Of a student without attention.
EVALUATIONS = 3  # In an epoch.
LEAST_EVALUATIONS = 6  # In a training of at least an epoch.
FEWEST_EVALUATIONS = 2  # In a shorter one, whose dev may be larger than what it trains on.
MOST_EVALUATIONS = 36  # In a training, if its epochs are fewer.
SCORED = 1.5  # Examples that are scored in all evaluations together for each one that is trained on, half of the time.
SOUP = 3  # Evaluations.
EMA = 0.0
PATIENCE = None
TEXT = {"learning_rate": 1e-4, "max_epochs": 2, "evaluations": 1, "ema": 0.0, "soup": 1, "patience": None}


@dataclass(frozen=True)
class Facts:
    """The properties of the data and the student that the choices depend on.

    Args:
        examples: number of training examples.
        steps_per_epoch: number of optimizer steps in an epoch.
        start: the layers before training: `whole` for a pre-trained encoder to fine-tune, `inherited` for a student
            with pre-trained layers, `fresh` for random ones, `recurrent` for random ones without attention.
        width: size of the hidden states.
        scored: number of examples in an evaluation.
    """

    examples: int
    steps_per_epoch: int
    start: str
    width: int
    scored: int = 0


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
    if inherited is None or 2 * len(inherited) >= len(names):  # Embeddings alone are a few tensors of many.
        start = "inherited"
    else:
        start = "fresh" if getattr(student.config, "num_attention_heads", None) else "recurrent"
    return start, int(student.config.hidden_size)


def choose_epochs(facts: Facts) -> int:
    """Returns `max_epochs`."""
    fewest = EPOCHS if facts.start in ("whole", "inherited") else FRESH_EPOCHS
    return max(fewest, min(MOST_EPOCHS, math.ceil(_least_steps(facts) / facts.steps_per_epoch)))


def choose_evaluations(facts: Facts, epochs: float) -> float:
    """Returns the evaluations of an epoch, fewer where dev is large beside train; `epochs` may be below 1."""
    evaluations = max(1, min(EVALUATIONS, int(MOST_EVALUATIONS // epochs)))
    evaluations = max(evaluations, math.ceil(LEAST_EVALUATIONS / epochs))
    least = LEAST_EVALUATIONS if epochs >= 1 else FEWEST_EVALUATIONS
    most = max(least, SCORED * epochs * facts.examples / max(1, facts.scored))
    if evaluations * epochs <= most:
        return evaluations
    return max(1, most // epochs) if most >= epochs else float(f"{most / epochs:.2g}")


def _least_steps(facts: Facts) -> int:
    return TEACHER_STEPS if facts.start == "whole" else LEAST_STEPS


def choose(facts: Facts, steps: int) -> dict[str, Choice]:
    """Returns a value for every option that may be `auto`, in a training of so many steps; the table of choices."""
    evaluations = choose_evaluations(facts, steps / facts.steps_per_epoch)
    number = count_evaluations(evaluations, steps_per_epoch=facts.steps_per_epoch, steps=steps)
    inherited = float(f"{INHERITED_RATE * min(1.0, RATE_WIDTH / facts.width):.2g}")
    rates = {
        "whole": Choice(TEACHER_RATE, "a whole pre-trained encoder is fine-tuned"),
        "inherited": Choice(inherited, f"the student has pre-trained layers of width {facts.width}"),
        "fresh": Choice(FRESH_RATE, "the layers of the student are random"),
        "recurrent": Choice(RECURRENT_RATE, "the layers of the student are random and have no attention"),
    }
    return {
        "learning_rate": rates[facts.start],
        "max_epochs": Choice(choose_epochs(facts), _explain_epochs(facts)),
        "evaluations": Choice(evaluations, f"{number} in all, from which the best weights are chosen"),
        "ema": Choice(EMA, "the soup averages the weights"),
        "soup": Choice(SOUP, "the average of the last weights is kept if it is as good on dev"),
        "patience": Choice(PATIENCE, "the learning rate reaches zero only in the last step"),
    }


def _explain_epochs(facts: Facts) -> str:
    epochs, steps = choose_epochs(facts), f"{facts.examples:,} examples are {facts.steps_per_epoch:,} steps an epoch"
    least = _least_steps(facts)
    if epochs * facts.steps_per_epoch < least:
        return f"{steps}, and {epochs} epochs are the most" if epochs == MOST_EPOCHS else steps
    if (epochs - 1) * facts.steps_per_epoch < least:
        return f"{steps}, and {least:,} steps are the least"
    return f"{steps}, and {epochs} epochs are enough"


def resolve(settings: TrainerSettings, facts: Facts) -> tuple[TrainerSettings, dict[str, dict[str, Any]]]:
    """Returns the settings with a value for every option that is `auto`, and these values with their reasons."""
    names = settings.unresolved()
    epochs = choose_epochs(facts) if "max_epochs" in names else settings.max_epochs
    steps = settings.steps_in(epochs, facts.steps_per_epoch)
    table = choose(facts, steps)
    evaluations: Any = table["evaluations"].value if "evaluations" in names else settings.evaluations
    if count_evaluations(evaluations, steps_per_epoch=facts.steps_per_epoch, steps=steps) < 2:
        table["soup"] = Choice(1, "the training ends before its second evaluation")
    chosen = {name: table[name] for name in names}
    values: dict[str, Any] = {name: choice.value for name, choice in chosen.items()}
    return replace(settings, **values), {name: asdict(choice) for name, choice in chosen.items()}


def resolve_finetuning(
    settings: TrainerSettings, examples: int, *, option: str = "teacher.finetune", start: str = "whole"
) -> tuple[TrainerSettings, dict[str, dict[str, Any]]]:
    """Returns the settings of a teacher's training as `resolve` does.

    Args:
        option: the key of the settings in the configuration.
        start: the layers before training, as in `Facts`.

    Raises:
        UserError: if batches have a number of tokens, because the steps of an epoch are not known then.
    """
    if not settings.unresolved():
        return settings, {}
    if settings.batch_size is None or settings.batch_tokens is not None:
        raise UserError(
            f"got {option}.{settings.unresolved()[0]}=auto with batch_tokens, expected batch_size alone: set "
            f"{option}.batch_tokens=null"
        )
    size = settings.batch_size * settings.accumulate * settings.processes()
    return resolve(settings, Facts(examples, math.ceil(examples / size), start, RATE_WIDTH))


def describe_choices(chosen: dict[str, dict[str, Any]]) -> list[str]:
    """Returns one line for each choice: the option, its value and the reason."""
    return [f"{name}={_show(choice['value'])}: {choice['reason']}" for name, choice in chosen.items()]


def _show(value: float | int | None) -> str:
    return "null" if value is None else f"{value:g}"


def for_text(settings: TrainerSettings) -> TrainerSettings:
    """Returns the settings of a training on raw text, whose options have the same values for any text if `auto`."""
    values: dict[str, Any] = {name: TEXT[name] for name in settings.unresolved()}
    return replace(settings, **values)
