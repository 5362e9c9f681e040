"""A teacher from a handful of labelled rows: pairs of them tune the encoder, and then a head is fitted.

As SetFit does (Tunstall et al., arXiv 2209.11055, section 3), but on the vectors that the head of the model's class
reads, so that the teacher is an ordinary model of transformers.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from transformers import PreTrainedModel, get_scheduler

from distill.console import ProgressMeter
from distill.contracts import Examples, Task
from distill.data.batching import scoring_steps
from distill.errors import NumericalError, OptionError, UserError
from distill.models.forward import run_model, to_device
from distill.models.loading import find_head
from distill.options import STRICT, raise_option_errors, show_value

START = "contrastive"  # The value of `teacher.start`.
CLIP = 1.0  # Largest norm of the gradient.
WARMUP = 0.1  # Share of the steps.


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
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
