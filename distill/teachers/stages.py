"""Stages of a teacher before it teaches: adapted weights, calibration, scale, and the precision of its passes."""

import copy
import gc
import json
import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.core.console import print_line, stages
from distill.core.contracts import Data, Examples, Scores, Task
from distill.core.errors import UserError
from distill.core.files import write_json
from distill.core.storage import entry_key, has_intact_entry, new_entry
from distill.data.batches import scoring_steps
from distill.data.splits import LabelledData
from distill.kinds.kind import Kind
from distill.kinds.outputs import KnownOutputs
from distill.kinds.scoring import Scoring
from distill.losses import Objective
from distill.losses.term import get_logits
from distill.models.forward import NAME as ATTENTION_VECTORS
from distill.models.forward import to_device
from distill.models.loading import ENCODER, Start, load_directory, rescale_head
from distill.models.sentence_files import prompts_of
from distill.models.surgery.embeddings import Growth, grow_vocabulary
from distill.models.vectors import save_encoder
from distill.models.wrappers import LabelledEncoder
from distill.teachers import language_modeling
from distill.teachers.language_modeling import TextTraining
from distill.teachers.output_cache import library_versions, pack_logits
from distill.teachers.source import Adaptation, Weights, renamed
from distill.training import strategies
from distill.training.hyperparameters import has_bf16
from distill.training.module import evaluate, freeze

FORMAT = 1  # Of an adapted teacher in the cache.
_METADATA = "distill.json"  # Beside its weights.


class AdaptedWeights:
    """The weights of a teacher after an adaptation: an encoder without a head, and its tokenizer.

    Until `train` was called, or an earlier run has trained them, they are those before it, with the new vocabulary.

    Args:
        weights: those before.
        adaptation: the settings of the training.
        data: of the task.
    """

    is_new = False

    def __init__(self, weights: Weights, adaptation: Adaptation, data: Data, cache_dir: Path) -> None:
        self.weights, self.adaptation, self.cache_dir = weights, adaptation, cache_dir
        self.name, self.precision, self.trust_remote_code = weights.name, weights.precision, weights.trust_remote_code
        self.seconds = 0.0
        with renamed():
            self.text = adaptation.read(data, cache_dir)
            text = self.text.sha256
        self._key = entry_key("adapted", FORMAT, library_versions(), weights.fingerprint(), text, adaptation.key())
        self.directory = cache_dir / "teachers" / f"{weights.name}-{adaptation.name}-text-{self._key[:16]}"

    def locate(self) -> Path | None:
        """Returns the directory of the weights, before the training those that it begins with."""
        return self.directory if self.is_trained() else self.weights.locate()

    def resolved(self) -> str:
        """Returns the name in records, that of the weights before."""
        return self.weights.resolved()

    def fingerprint(self) -> str:
        """Returns a digest of everything that the training depends on."""
        return self._key

    def width(self) -> int:
        """Returns the size of the hidden states."""
        return self.weights.width()

    def load(
        self, auto_class: str, labels: Sequence[str] | None, texts: Iterable[str], *, problem_type: str | None = None
    ) -> Start:
        """Returns the model with a head for `labels`, which is new, and its tokenizer."""
        if self.is_trained():
            start = load_directory(
                self.directory, auto_class, labels, trust_remote_code=self.trust_remote_code, problem_type=problem_type
            )
        else:
            start = self._grow(self.weights.load(auto_class, labels, texts, problem_type=problem_type))
        return replace(start, fits=False, reason="its encoder is adapted and the head is not")

    def is_trained(self) -> bool:
        """Returns whether the adapted teacher is in the cache and intact."""
        return has_intact_entry(self.directory, "the adapted teacher")

    def train(self, run_directory: Path, *, resume: bool, dry_run: bool) -> None:
        """Trains and caches the encoder, once, or in a dry run prints how long it takes."""
        if self.is_trained():
            print_line(f"Teacher: adapted before, read from {self.directory}")
            return
        with renamed():
            self._train(run_directory, resume=resume, dry_run=dry_run)

    def _train(self, run_directory: Path, *, resume: bool, dry_run: bool) -> None:
        started = time.perf_counter()
        print_line(f"Teacher: {self.resolved()} is adapted to {self.adaptation} first")
        task = self.adaptation.text
        start = language_modeling.load_language_model(self.weights, task, self.text, seed=self.adaptation.trainer.seed)
        start = self._grow(start)
        training = TextTraining.prepare(
            task, self.text, start, objective=None, settings=self.adaptation.trainer, cache_dir=self.cache_dir
        )
        estimate = training.estimate_seconds()
        stages.expect(teacher=estimate)
        print_line(f"         {training.describe(estimate)}")
        if dry_run:
            return
        directory = run_directory / "teacher" / "adaptation"
        before = training.measure() if start.fits else None
        fit = training.fit(
            directory / "checkpoints", logger=CSVLogger(str(directory), name="", version=""), title="teacher",
            identity={"data": self.text.sha256, "start": self.weights.fingerprint()}, resume=resume,
        )  # fmt: skip
        metrics = training.measure()
        self.seconds = time.perf_counter() - started
        record = {
            "text": str(self.adaptation), "name": self.adaptation.name, "sha256": self.text.sha256,
            **({} if self._growth is None else self._growth.record()), "metrics": metrics, "before": before,
            "steps": fit.steps, "seconds": self.seconds,
        }  # fmt: skip
        self._save(replace(start, model=training.module.student.cpu().eval()), record)
        strategies.remove_checkpoints(directory / "checkpoints")  # The result is in the cache.
        gc.collect()  # Module and trainer refer to each other and to the optimizer's state.

    def record(self) -> dict[str, Any] | None:
        """Returns the training for run.json; None if it is not in the cache."""
        with suppress(FileNotFoundError):
            record: dict[str, Any] = json.loads((self.directory / _METADATA).read_text(encoding="utf-8"))
            return record
        return None

    @cached_property
    def _growth(self) -> Growth | None:
        start = self.weights.load(self.adaptation.text.info.auto_class, None, self.text.texts())
        return language_modeling.choose_growth(start.tokenizer, self.text, self.adaptation.add_words)

    def _grow(self, start: Start) -> Start:
        """Returns the model with the vocabulary that it has after the training."""
        return start if self._growth is None else grow_vocabulary(start, self._growth.words)

    def _save(self, trained: Start, record: dict[str, Any]) -> None:
        """Caches the trained encoder with its tokenizer, and the pooler that a language model does not have."""
        torch.manual_seed(self.adaptation.trainer.seed)  # For a pooler that the weights lack.
        start = self._grow(self.weights.load(ENCODER, None, self.text.texts()))
        encoder = start.model
        missing, unexpected = encoder.load_state_dict(trained.model.base_model.state_dict(), strict=False)
        left = [name for name in missing if not name.startswith("pooler.")] + list(unexpected)
        if left:
            raise RuntimeError(f"the encoder of {self.resolved()} has other tensors with its head: {', '.join(left)}")
        with new_entry(self.directory) as temporary:
            save_encoder(encoder, temporary, prompts_of(start.tokenizer))
            trained.tokenizer.save_pretrained(temporary)
            write_json(temporary / _METADATA, record)


CALIBRATED = 1_000  # Labelled rows of train that the temperature is fitted to, at most.
LEAST = 20  # Labelled rows without which there is no temperature to fit.
TEMPERATURES = torch.logspace(np.log10(0.05), np.log10(20), 121)


def check_given_terms(objective: Objective, teacher: str) -> None:
    """Raises UserError for a term that reads what neither the probabilities nor the encoder beside them give."""
    terms = objective.needing(ATTENTION_VECTORS)
    if terms:
        raise UserError(
            f"objective {objective.name}: the term {', '.join(terms)} reads attention vectors, and the teacher "
            f"{teacher} gives class probabilities, with the hidden states of its encoder: set its weight to 0, or take "
            "objective=hinton"
        )


class Calibrated(nn.Module):
    """Logits that are divided by a temperature (Guo et al., arXiv 1706.04599, equation 9)."""

    def __init__(self, labels: nn.Module, temperature: float) -> None:
        super().__init__()
        self.labels, self.temperature = labels, temperature

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Returns the logits `[B, C]`."""
        logits: Tensor = self.labels(input_ids, attention_mask)
        return logits / self.temperature


@torch.inference_mode()
def fit_temperature(teacher: LabelledEncoder, task: Task, examples: Examples) -> float | None:
    """Returns the temperature with the least cross-entropy on labelled rows, None if there are too few of them.

    Args:
        examples: of train, of which those without a label are not read.
    """
    chosen = np.linspace(0, len(examples) - 1, min(CALIBRATED, len(examples))).astype(int)
    logits, labels = [], []
    for rows in scoring_steps(examples.lengths[chosen]):
        batch = to_device(examples[chosen[rows].tolist()], teacher.device)
        items = task.select(batch)
        if not items.labelled.any():
            continue
        outputs = task.run(teacher, batch, items, frozenset())
        logits.append(get_logits(outputs.at(items))[items.labelled].float().cpu())
        labels.append(items.labels[items.labelled].cpu())
    if sum(map(len, labels)) < LEAST:
        return None
    return best_temperature(torch.cat(logits), torch.cat(labels))


def fit_known(known: KnownOutputs, task: Kind, data: LabelledData) -> KnownOutputs:
    """Returns the outputs of a table with the temperature that has the least cross-entropy on the labelled rows."""
    train = data.splits["train"]
    if not known.has_distributions or not data.labels or task.info.likelihood not in ("softmax", "sigmoid"):
        return known
    is_single = task.info.likelihood == "softmax"
    rows = [
        (torch.from_numpy(outputs[0]).float(), label)
        for outputs, label in zip(known.look_up(task, train), train.labels, strict=True)
        if outputs is not None and (label >= 0 if is_single else not np.isnan(label).any())
    ]
    if len(rows) < LEAST:
        return known
    labels = torch.from_numpy(np.array([label for _, label in rows]))
    temperature = best_temperature(torch.stack([logits for logits, _ in rows]), labels)
    print_line(f"Teacher: its logits are divided by {temperature:.3g}, which suits the labelled rows best")
    return replace(known, temperature=temperature)


def best_temperature(logits: Tensor, labels: Tensor) -> float:
    """Returns the one of `TEMPERATURES` with the least cross-entropy.

    Args:
        logits: `[N, C]`.
        labels: classes `[N]`, or of labels with a probability each 0 and 1 `[N, C]`.
    """
    measure = F.cross_entropy if labels.dim() == 1 else F.binary_cross_entropy_with_logits
    targets = labels if labels.dim() == 1 else labels.float()
    losses = torch.stack([measure(logits / temperature, targets) for temperature in TEMPERATURES])
    return float(TEMPERATURES[losses.argmin()])


SAMPLE = 512  # Examples of train at most.
CORRELATION = 0.5  # A linear fit with less explains under a quarter of the labels' variance.
# Of the labels' variance. More is lost by a shift of half a standard deviation, or by a factor of 2.
LOST_VARIANCE = 0.25


@dataclass(frozen=True)
class Rescaling:
    """The linear map from a teacher's numbers to the labels."""

    slope: float
    intercept: float

    def apply(self, model: PreTrainedModel) -> PreTrainedModel:
        """Changes the model's last linear layer, if there is one, and returns the model."""
        rescale_head(model, self.slope, self.intercept)
        return model


def fit_scale(
    start: Start, task: Task, scoring: Scoring, examples: Examples, device: torch.device
) -> tuple[Start, Rescaling | None]:
    """Compares the numbers of a teacher with the labels of a sample of train, and rescales its head if necessary.

    The teacher is on another scale if its squared error is above that of the labels' mean, or the line of least
    squares through labels and numbers would lower it by more than `LOST_VARIANCE` of the labels' variance. Numbers that
    correlate with the labels are then rescaled, with a notice. Others do not fit, and the reason says so.
    """
    score = partial(_score_sample, start.model, task, scoring, examples, device)
    scores = score()
    numbers, labels = (values.astype(np.float64) for values in (scores.columns["logits"][:, 0], scores.labels))
    error, variance = float(np.square(numbers - labels).mean()), float(labels.var())
    spread = float(numbers.std() * labels.std())
    covariance = float(((numbers - numbers.mean()) * (labels - labels.mean())).mean())
    correlation = covariance / spread if spread > 0 else 0.0
    fitted_error = variance * (1 - correlation**2)
    if not (error > variance or error - fitted_error > LOST_VARIANCE * variance):
        return start, None
    ranges = (
        f"numbers from {numbers.min():.3g} to {numbers.max():.3g} for {len(labels)} examples of train with labels from "
        f"{labels.min():.3g} to {labels.max():.3g}"
    )
    if correlation < CORRELATION:
        reason = f"it gives {ranges}, a squared error of {error:.3g} where their mean has {variance:.3g}"
        return replace(start, fits=False, reason=reason), None
    slope = covariance / float(numbers.var())
    rescaling = Rescaling(slope, float(labels.mean()) - slope * float(numbers.mean()))
    expected = slope * numbers + rescaling.intercept
    rescaling.apply(start.model)
    if not np.allclose(score().columns["logits"][:, 0], expected, atol=1e-3 * float(expected.std())):
        Rescaling(1 / slope, -rescaling.intercept / slope).apply(start.model)
        reason = f"it gives {ranges}, and has no last linear layer to rescale"
        return replace(start, fits=False, reason=reason), None
    notice = (
        f"the teacher gives {ranges}: its last layer is rescaled, to {slope:.4g} times its numbers "
        f"{'+' if rescaling.intercept >= 0 else '-'} {abs(rescaling.intercept):.4g}"
    )
    return replace(start, notices=[*start.notices, notice]), rescaling


def _score_sample(
    model: PreTrainedModel, task: Task, scoring: Scoring, examples: Examples, device: torch.device
) -> Scores:
    """Scores the same examples in every run, in their order."""
    order = np.random.default_rng(0).permutation(len(examples))
    chosen = np.sort(order[:SAMPLE])
    steps = scoring_steps(np.asarray(examples.lengths)[chosen])
    scores = evaluate(model.to(device), task, scoring, ([examples[chosen[step].tolist()]] for step in steps))
    model.cpu()
    return scores.by_example()


PROBED = 64  # Examples.
# Of a difference, as a share of the standard deviation. That of a student's logits in bf16-mixed is 0.4%, by rounding.
# With 2% a soft target is off by 2e-4 nats at most for each unit of the logits' variance, far less than a student is.
TOLERANCE = 0.02


class PrecisionChoice(NamedTuple):
    """`float32` or `bfloat16`, and the reason in words."""

    precision: str
    reason: str


def choose_precision(model: PreTrainedModel, task: Task, examples: Examples, device: torch.device) -> PrecisionChoice:
    """Returns `bfloat16` if the hardware computes it and the outputs differ little from those in float32.

    Hardware with bf16 takes about half the time, which is not measured, so that equal runs choose alike on a busy
    machine.

    Args:
        model: the teacher in float32.
        examples: a split of which `PROBED` examples are compared.
    """
    if not has_bf16(device):
        return PrecisionChoice("float32", f"this {device.type} does not compute bfloat16 in hardware")
    error = measure_error(model, task, examples, device)
    differs = f"its outputs differ by {error:.2%} from float32, at most {TOLERANCE:.0%} may"
    if error <= TOLERANCE:
        return PrecisionChoice("bfloat16", differs)
    return PrecisionChoice("float32", f"in bfloat16 {differs}")


@torch.inference_mode()
def measure_error(model: PreTrainedModel, task: Task, examples: Examples, device: torch.device) -> float:
    """Returns the difference of the outputs in bfloat16, of logits or of the last hidden states, whichever is larger.

    It is the root mean square of the difference, as a share of the standard deviation of the outputs in float32.
    """
    exact, rounded = (freeze(copy.deepcopy(model).to(device, dtype)) for dtype in (torch.float32, torch.bfloat16))
    of_logits, of_states = _Difference(), _Difference()
    chosen = np.unique(np.linspace(0, len(examples) - 1, PROBED).astype(int))
    for rows in scoring_steps(examples.lengths[chosen]):
        batch = to_device(examples[chosen[rows].tolist()], device)
        items = task.select(batch)
        expected, outputs = (task.run(each, batch, items, frozenset({"hidden_states"})) for each in (exact, rounded))
        for part in items.parts(expected.chunk_size):
            both = (pack_logits(get_logits(of.at(part)), part.valid)["logits"] for of in (expected, outputs))
            of_logits.add(*both)
        if expected.hidden_states is not None and outputs.hidden_states is not None:
            mask = batch["attention_mask"].bool()
            of_states.add(expected.hidden_states[-1][mask], outputs.hidden_states[-1][mask])
    return max(of_logits.share(), of_states.share())


@dataclass
class _Difference:
    """Sums over the numbers of outputs in float32 and in another precision."""

    number: int = 0
    total: float = 0.0
    squares: float = 0.0
    errors: float = 0.0

    def add(self, expected: Tensor, outputs: Tensor) -> None:
        """Adds outputs of one shape."""
        expected = expected.double()
        self.number += expected.numel()
        self.total += float(expected.sum())
        self.squares += float(expected.square().sum())
        self.errors += float((outputs.double() - expected).square().sum())

    def share(self) -> float:
        """Returns the root mean square of the difference as a share of the standard deviation; 0 without outputs."""
        variance = self.squares - self.total**2 / max(1, self.number)
        if self.errors == 0:
            return 0.0
        return math.sqrt(self.errors / variance) if variance > 0 else math.inf
