"""Values of the options of a training that are `auto`, chosen from the data and the student, with their reasons."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from transformers import PreTrainedModel

from distill.errors import UserError
from distill.models.heads import find_table
from distill.training.settings import TrainerSettings, count_evaluations

SMALL_ROWS = 10_000  # Labelled training rows up to which further text and a baseline are worth their time.
LEAST_STEPS = 2_400  # Optimizer steps of a student on small data.
TEACHER_STEPS = 1_200  # Those of a fine-tuned teacher, all of whose layers are pre-trained.
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
PATIENCE = None
TEACHER_PATIENCE = 3  # A fine-tuning stops after this part of its evaluations without a better metric,
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
    return {
        "learning_rate": _scale(_choose_rate(facts), facts.growth),
        "max_epochs": Choice(choose_epochs(facts), _explain_epochs(facts)),
        "evaluations": Choice(evaluations, f"{number} in all, from which the best weights are chosen"),
        "ema": Choice(EMA, "the soup averages the weights"),
        "soup": soup if number > 1 else Choice(1, "the training ends before its second evaluation"),
        "patience": _choose_patience(facts, number),
        "frozen_embeddings": _choose_frozen(facts),
    }


def _choose_rate(facts: Facts) -> Choice:
    if facts.start == "whole":
        rates = [rate for width, rate in TEACHER_RATES.items() if facts.width <= width]
        reason = f"a whole pre-trained encoder of width {facts.width} is fine-tuned"
        return Choice(max(rates, default=WIDE_TEACHER_RATE), reason)
    if facts.start == "inherited":
        rate = float(f"{INHERITED_RATE * min(1.0, RATE_WIDTH / facts.width):.2g}")
        return Choice(rate, f"the student has pre-trained layers of width {facts.width}")
    if facts.start == "fresh":
        return Choice(FRESH_RATE, "the layers are random")
    return Choice(NO_ATTENTION_RATE, "the layers are random and have no attention")


def _scale(rate: Choice, growth: float) -> Choice:
    """Returns a learning rate for batches that are `growth` times as large: times the square root."""
    if growth == 1:
        return rate
    value = float(f"{cast(float, rate.value) * math.sqrt(growth):.2g}")
    return Choice(value, f"{rate.reason}, and a batch has {BATCH_SIZE * growth:g} examples")


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
    if facts.start != "whole":
        return Choice(PATIENCE, "the learning rate reaches zero only in the last step")
    if evaluations < LEAST_FOR_PATIENCE:
        return Choice(PATIENCE, f"{evaluations} evaluations are too few to stop by")
    return Choice(math.ceil(evaluations / TEACHER_PATIENCE), f"a third of the {evaluations} evaluations")


def _choose_frozen(facts: Facts) -> Choice:
    if facts.start == "no_attention" and facts.has_table:
        return Choice(FROZEN, "the embeddings are the teacher's, and the layers are random")
    return Choice(0.0, "the embeddings are trained like the layers")


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
    return [(name, f"{_show(choice['value'])}: {choice['reason']}") for name, choice in chosen.items()]


def _show(value: float | int | None) -> str:
    return "null" if value is None else f"{value:g}"


def for_text(settings: TrainerSettings, start: str | None = None) -> TrainerSettings:
    """Returns the settings of a training on raw text, whose options have the same values for any text if `auto`.

    Args:
        start: as in `Facts`, of a model with random weights; None for a trained one.
    """
    table = TEXT | ({} if start is None else {"learning_rate": FRESH_TEXT_RATES[start]})
    values: dict[str, Any] = {name: table[name] for name in settings.unresolved()}
    return with_batch_size(replace(settings, **values))
