"""A teacher that is ready to teach: compared with a constant, and asked about the texts of a bank and of a search.

Chooses the sentences of a bank that a teacher labels: near the training texts, and balanced by predicted class. The
method is that of SentAugment (arXiv 2010.02194), with the vectors of the teacher's encoder before its fine-tuning.
"""

import copy
import gc
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.console import print_line
from distill.core.contracts import Batch, Constant, Learnable, Scores, Task
from distill.core.errors import NumericalError
from distill.core.storage import entry_key, has_entry, new_entry
from distill.data import tokenization
from distill.data.batches import CollatedBatch, TokenizedExamples
from distill.data.pool import Bank, balance, clean, find_nearest, take_in_turns
from distill.data.splits import BANK, CANDIDATES, LabelledData, text_split
from distill.kinds.outputs import KnownOutputs, KnownReading
from distill.kinds.scoring import Scoring
from distill.models.compatibility import count_parameters
from distill.models.forward import run_encoder, run_model
from distill.models.sentence_files import role_prompts
from distill.models.vectors import VectorSettings, pool
from distill.models.wrappers import LabelledEncoder, SeveralHeads
from distill.teachers.computation import compute_rows
from distill.teachers.output_cache import library_versions
from distill.teachers.reading import Reading
from distill.teachers.source import TeacherSource
from distill.training.hyperparameters import TrainerSettings, has_bf16
from distill.training.module import freeze, split_metrics
from distill.training.statistics import Difference, compare_examples

LEAST_EXAMPLES = 20  # Of a dev set whose interval says anything.
RESAMPLES = 200  # Of a metric that is no mean over examples. The last comparison of a run has more.


@dataclass(frozen=True)
class Comparison:
    """A teacher beside the best constant prediction.

    Args:
        answer: the constant prediction in words.
        metrics: its metrics on every split, with the names of the teacher's.
        difference: the teacher's metric on dev minus the constant's, without an interval on a dev of few examples.
        weakness: what is wrong with the teacher, in words; None if it is better than the constant.
    """

    answer: str
    metrics: dict[str, float]
    difference: Difference
    weakness: str | None

    def record(self) -> dict[str, Any]:
        """Returns the `constant` and the `against_constant` of run.json."""
        constant = {"answer": self.answer, "metrics": self.metrics}
        return {"constant": constant, "against_constant": self.difference}


def compare_with_constant(scoring: Scoring, scores: Mapping[str, Scores]) -> Comparison | None:
    """Compares a teacher with the constant prediction that is best on dev; None for a task without one.

    A teacher is weak if the interval of the difference on dev contains 0 or lies on the wrong side of it. With fewer
    than `LEAST_EXAMPLES` examples in dev the interval of almost every teacher would, so that the values alone decide:
    the teacher must be better. Where the constant is always right nothing can be better, and no teacher is weak.

    Args:
        scores: of the teacher, on every split that is scored.
    """
    dev = scoring.held_out(scores["dev"])
    constant = _choose(scoring, dev)
    if constant is None:
        return None
    other, sign = constant.predict(dev), 1 if scoring.selects == "max" else -1
    value, of_constant = map(scoring.selecting_metric, (dev, other))
    examples = len(np.unique(scoring.condense(dev).example_id))  # Of a retrieval set the queries.
    difference: Difference | None = {
        "difference": value - of_constant, "interval": None, "p": None, "over": "examples", "number": examples,
    }  # fmt: skip
    if examples >= LEAST_EXAMPLES:
        difference = compare_examples(scoring, dev, other, most=RESAMPLES)
    assert difference is not None
    ends = [sign * end for end in difference["interval"] or [difference["difference"]] * 2]
    weakness = None
    if min(ends) <= 0 and not (sign > 0 and of_constant == 1):
        weakness = _describe(scoring.metric, value, of_constant, constant.answer, difference, is_worse=max(ends) < 0)
    metrics = split_metrics(scoring, {split: constant.predict(of_split) for split, of_split in scores.items()})
    return Comparison(constant.answer, metrics, difference, weakness)


def measure_constant(scoring: Scoring, task: Learnable, loader: Iterable[list[Batch]]) -> dict[str, float] | None:
    """Returns the metrics of the best constant prediction for a split, which follow from its labels without a model.

    None for a task without a constant prediction.

    Args:
        loader: yields lists of batches.
    """
    items = [task.select(batch) for batches in loader for batch in batches]
    labels, example_id = (
        np.concatenate([tensor.numpy() for tensor in tensors])
        for tensors in zip(*((of.labels, of.example_id()) for of in items), strict=True)
    )
    scores = Scores({}, labels, example_id)
    constant = _choose(scoring, scores)
    return None if constant is None else scoring.metrics(constant.predict(scores))


def _choose(scoring: Scoring, dev: Scores) -> Constant | None:
    """Returns the constant prediction with the best metric on dev, the first of equal ones."""
    best = max if scoring.selects == "max" else min
    return best(
        scoring.constants(dev), key=lambda constant: scoring.selecting_metric(constant.predict(dev)), default=None
    )


def _describe(
    metric: str, value: float, of_constant: float, answer: str, difference: Difference, *, is_worse: bool
) -> str:
    values = f'{metric} {value:.3f} against {of_constant:.3f} of "{answer}"'
    if difference["interval"] is None:
        relation = "worse than" if is_worse else "no better than"
        return f"is {relation} a constant prediction on the {difference['number']} examples of dev: {values}"
    low, high = difference["interval"]
    relation = "worse than" if is_worse else "not known to be better than"
    interval = f"a difference of {difference['difference']:+.3f} (95% interval {low:+.3f} to {high:+.3f})"
    return f"is {relation} a constant prediction on dev: {values}, {interval}"


PRETRAINED, TEACHER = "pretrained", "teacher"  # What a student without a teacher starts from.


@dataclass(kw_only=True, eq=False)
class PreparedTeacher:
    """A teacher that fits its task, the mean of several, or the teachers of several tasks, with their scores and size.

    `model` is the float32 model. `release` frees its memory, and the next access loads it again.

    Args:
        origin: the way in which the teacher was made, in words for records.
        load: loads the model.
        weights: a digest of everything that the outputs depend on except precision and inputs.
        seconds: duration of the trainings of this run.
        loaded: the model if it is loaded already.
        features: the record of the features of the encoder that a BiLSTM reads, None without one.
        adapted: the record of the adaptation to a text before the training on the task, None without one.
        trained_by: the settings of the training on the task, in this run or an earlier one that cached it; None if it
            was not trained.
        ensemble: the teachers of an ensemble, and `shares` the weight of each; empty for one teacher.
        by_task: the teacher of each of several tasks by its name; empty for that of one task.
        load_labels: loads the module that gives the logits of a teacher of class probabilities, beside which `model` is
            the encoder; None for a teacher whose logits are those of its model.
        load_untrained: loads the model as it was before its training on the task; None for one that was not trained.
        has_size: whether it runs a model whose parameters count.
        known: the outputs of a table, beside which `model` is an encoder; None for those of a model.
        readings: how it reads the examples of a student with another tokenizer, or has outputs of them, by their
            digest; empty where both read the same tokens.

    Attributes:
        scores: on the splits that are scored.
        comparison: with the best constant prediction.
        whole: the teacher before `with_vocabulary`, else None.
        precision_reason: that of a precision that a probe chose, None for one that was given.
    """

    requested: str
    resolved: str
    origin: str
    tokenizer: PreTrainedTokenizerBase
    load: Callable[[], PreTrainedModel]
    precision: str
    weights: str
    device: torch.device
    substituted: bool = False
    seconds: float = 0.0
    loaded: PreTrainedModel | None = None
    notices: list[str] = field(default_factory=list)
    features: Mapping[str, Any] | None = None
    adapted: Mapping[str, Any] | None = None
    trained_by: TrainerSettings | None = None
    ensemble: "Sequence[PreparedTeacher]" = ()
    shares: tuple[float, ...] = (1.0,)
    by_task: "Mapping[str, PreparedTeacher]" = field(default_factory=dict)
    load_labels: Callable[[], nn.Module] | None = None
    load_untrained: Callable[[], PreTrainedModel] | None = None
    has_size: bool = True
    known: KnownOutputs | None = None
    readings: Mapping[str, Reading | KnownReading] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict, init=False)
    scores: Mapping[str, Scores] = field(default_factory=dict, init=False)
    comparison: Comparison | None = field(default=None, init=False)
    whole: "PreparedTeacher | None" = field(default=None, init=False)
    precision_reason: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.notices = list(self.notices)
        if self.loaded is not None:
            freeze(self.loaded)
        self._running: PreTrainedModel | None = None
        sizes = [teacher.parameters for teacher in self._teachers()] or [count_parameters(self.model)]
        self.parameters: int | None = sum(size or 0 for size in sizes) if self.has_size else None

    @property
    def members(self) -> "Sequence[PreparedTeacher]":
        return self.ensemble or [self]

    def _teachers(self) -> "list[PreparedTeacher]":
        """Returns the teachers that this one is made of, none if it is one model."""
        return [*self.ensemble, *self.by_task.values()]

    @property
    def model(self) -> PreTrainedModel:
        if self.loaded is None:
            self.loaded = freeze(self.load())
        return self.loaded

    @property
    def fingerprint(self) -> str:
        return f"{self.weights}-{self.precision}"

    def running(self) -> PreTrainedModel:
        """Returns the model on the device and in the precision of its forward passes; of several tasks all in one."""
        if self.by_task:
            return freeze(SeveralHeads({name: teacher.running() for name, teacher in self.by_task.items()}))
        dtype = getattr(torch, self.precision)
        is_copied = dtype != torch.float32 or self.device.type != "cpu"
        if not is_copied and self.load_labels is None:
            return self.model
        if self._running is None:
            model = self.model
            if self.load_labels is not None:
                model = LabelledEncoder(model, self.load_labels())
            self._running = freeze(copy.deepcopy(model).to(self.device, dtype) if is_copied else model)
        return self._running

    @property
    def has_head(self) -> bool:
        """Returns whether the logits are those of `model`, which can be exported and timed."""
        return self.load_labels is None and self.known is None

    @property
    def start(self) -> str:
        """Returns the weights of `untrained`: PRETRAINED ones, or those of the TEACHER, which was not trained here."""
        return PRETRAINED if self.load_untrained is not None or not self.has_head else TEACHER

    def untrained(self) -> "PreparedTeacher":
        """Returns the teacher as it was before its training on the task; as it is if it was not trained."""
        if self.load_untrained is None:
            return self
        other = copy.copy(self)
        other.load, other.loaded, other._running = self.load_untrained, None, None
        other.metrics, other.scores = {}, {}
        return other

    def release(self) -> None:
        """Frees the model's memory."""
        for teacher in self._teachers():
            teacher.release()
        self.loaded = self._running = None
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
        other.ensemble = [member.with_vocabulary(tokenizer, cut, digest) for member in self.ensemble]
        other.load = load if not other.ensemble else lambda: other.ensemble[0].model
        before = self.load_untrained
        other.load_untrained = None if before is None else lambda: cut(before())
        other.loaded = other._running = None
        other.whole = self
        other.notices = [*self.notices]
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
        members = {"members": rows} if self.ensemble else {}
        labelling = None if self.known is None else self.known.labelling
        further = members | ({} if labelling is None else labelling.record())
        return {name: getattr(self, name) for name in fields} | comparison | further


def join_prepared(teachers: Sequence[PreparedTeacher], *further: object, resolved: str, **own: Any) -> PreparedTeacher:
    """Returns several teachers with one vocabulary as one; everything but outputs, scores and size is the first one's.

    Args:
        further: parts of the digest besides the teachers.
        own: further fields of the teacher.
    """
    first = teachers[0]
    return PreparedTeacher(
        requested=first.requested, resolved=resolved, substituted=any(teacher.substituted for teacher in teachers),
        origin=", ".join(teacher.origin for teacher in teachers), tokenizer=first.tokenizer, load=lambda: first.model,
        precision=first.precision, weights=digest_parts([*(teacher.fingerprint for teacher in teachers), *further]),
        device=first.device, seconds=sum(teacher.seconds for teacher in teachers),
        notices=[notice for teacher in teachers for notice in teacher.notices], **own,
    )  # fmt: skip


def digest_parts(parts: Sequence[object]) -> str:
    """Returns a digest of values that JSON can represent."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


BANK_FORMAT = 1  # Of the entries in the cache.
CHOICE = 2  # Of those of chosen sentences.
VECTORS, CHOSEN = "vectors.npy", "chosen.npy"
MOST_QUERIES = 10_000  # Training texts, evenly spaced, whose neighbours are found.
FEWEST_NEIGHBOURS = 32  # Of a training text, because texts share them.
POOLING: VectorSettings = {"pooling": "mean", "normalize": True}


@dataclass(frozen=True)
class Search:
    """The search of a bank with the encoder of a teacher before its fine-tuning.

    Args:
        source: of the teacher's weights.
        cache_dir: holds the vectors and the chosen sentences.
    """

    bank: Bank
    task: Task
    source: TeacherSource
    cache_dir: Path
    device: torch.device

    def add_to(self, data: LabelledData, teacher: PreparedTeacher, count: int) -> LabelledData:
        """Returns the data with `count` sentences in its pool, fewer if no more are near and new."""
        chosen = self._choose(data, teacher, count)
        rows = text_split([self.bank.sentences[row] for row in chosen.tolist()])
        if not len(rows):
            return data
        origin = f"of {len(self.bank):,} sentences of {self.bank.name}"
        print_line(f"task.bank: {len(rows):,} sentences near the training texts, {origin}")
        return replace(data, pool=data.pool.add(rows, BANK, origin))

    def _choose(self, data: LabelledData, teacher: PreparedTeacher, count: int) -> np.ndarray:
        """Returns the places of the chosen sentences in the bank, cached or computed."""
        train = data.splits["train"].texts
        queries = [train[row] for row in np.linspace(0, len(train) - 1, min(len(train), MOST_QUERIES)).astype(int)]
        model, tokenizer = self._load(data)
        pool_texts = [] if data.pool.rows is None else data.pool.rows.texts
        parts: list[object] = [self._key(self.bank.sentences, tokenizer), data.sha256, pool_texts, queries]
        parts += [teacher.fingerprint, count, CANDIDATES, self.task.info.max_length]
        directory = self.cache_dir / "banks" / entry_key("chosen", CHOICE, *parts)[:20]
        if not has_entry(directory):
            vectors = self._cached_vectors(model, tokenizer)
            near = self._find(vectors, self._encode(queries, model, tokenizer), count)
            chosen = self._select(near, data, teacher, count)
            with new_entry(directory) as temporary:
                np.save(temporary / CHOSEN, chosen)
        return np.asarray(np.load(directory / CHOSEN))

    def _find(self, vectors: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
        """Returns the places of sentences in the order in which they are candidates."""
        neighbours = max(FEWEST_NEIGHBOURS, math.ceil(4 * CANDIDATES * count / len(queries)))
        return take_in_turns(find_nearest(vectors, queries, neighbours))

    def _select(self, near: np.ndarray, data: LabelledData, teacher: PreparedTeacher, count: int) -> np.ndarray:
        """Returns the places of `count` candidates that are in no split, balanced by class if there are classes."""
        near = near[: 2 * CANDIDATES * count]  # Few are in a split.
        numbered = text_split([self.bank.sentences[row] for row in near.tolist()], labels=near)
        kept, _ = clean(numbered, data, by_sentence=True)
        has_classes = self.task.info.likelihood in ("softmax", "sigmoid")
        candidates = kept.select(np.arange(min(len(kept), (CANDIDATES if has_classes else 1) * count)))
        if not has_classes or len(candidates) <= count:
            return candidates.labels
        return np.asarray(candidates.labels[balance(self._predict(candidates.texts, teacher), count)])

    def _predict(self, texts: Sequence[str], teacher: PreparedTeacher) -> np.ndarray:
        """Returns the class of each text that the teacher predicts, of an ensemble the first one, `[N]`."""
        member = teacher.members[0]
        examples, model = self._tokenize(texts, member.tokenizer), member.running()

        def predict(batch: CollatedBatch) -> Tensor:
            logits: Tensor = run_model(model, batch).logits
            return logits.argmax(dim=-1)

        return compute_rows(predict, examples, member.device, title="classes of the bank", unit="sentences")

    def _load(self, data: LabelledData) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """Returns the teacher before its fine-tuning."""
        start = self.source.weights.load(self.task.info.auto_class, data.labels or None, data.texts())
        return start.model, start.tokenizer

    def _cached_vectors(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
        """Returns the vectors of the bank, `[N, H]` (float16), cached or computed."""
        directory = self.cache_dir / "banks" / self._key(self.bank.sentences, tokenizer)
        if not has_entry(directory):
            print_line(f"task.bank: encodes {len(self.bank):,} sentences once, for {directory}")
            vectors = self._encode(self.bank.sentences, model, tokenizer)
            with new_entry(directory) as temporary:
                np.save(temporary / VECTORS, vectors)
        return np.asarray(np.load(directory / VECTORS, mmap_mode="r"))

    def _key(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> str:
        tokens = tokenization.compute_digest(text_split(list(texts)), tokenizer, self.task.info.max_length)
        parts = (tokens, self.source.weights.fingerprint(), dict(POOLING), str(self._dtype), library_versions())
        return entry_key("banks", BANK_FORMAT, *parts, self.device.type)[:20]

    @property
    def _dtype(self) -> torch.dtype:
        return torch.bfloat16 if has_bf16(self.device) else torch.float32

    def _tokenize(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> TokenizedExamples:
        tokens = tokenization.tokenize_split(
            text_split(list(texts)), tokenizer, self.task.info.max_length, self.cache_dir
        )
        return TokenizedExamples(tokens, tokenizer)

    def _encode(self, texts: Sequence[str], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
        """Returns the vectors of length 1 of texts, `[N, H]` (float16)."""
        model = model.to(self.device, self._dtype).eval()

        def encode(batch: CollatedBatch) -> Tensor:
            return pool(run_encoder(model, batch).last_hidden_state, batch["attention_mask"], POOLING).half()

        return compute_rows(encode, self._tokenize(texts, tokenizer), self.device, title="bank", unit="sentences")


NEGATIVES_FORMAT = 1  # Of the entries in the cache.


def mine_negatives(data: LabelledData, teacher: PreparedTeacher, *, max_length: int, cache_dir: Path) -> LabelledData:
    """Returns the data with the negatives of train that the teacher finds, if its task leaves them to the teacher.

    Args:
        max_length: tokens that a text is cut to.

    Raises:
        NumericalError: if a vector of the teacher is not finite.
    """
    if data.mine is None:
        return data
    encode = partial(encode_texts, teacher=teacher, max_length=max_length, cache_dir=cache_dir)
    return data.mine(data, encode, role_prompts(teacher.tokenizer))


def encode_texts(texts: list[str], teacher: PreparedTeacher, *, max_length: int, cache_dir: Path) -> np.ndarray:
    """Returns the teacher's vectors `[N, D]` of texts (float32), cached or computed."""
    tokens = tokenization.tokenize_split(text_split(texts), teacher.tokenizer, max_length, cache_dir)
    key = entry_key(
        "negatives", NEGATIVES_FORMAT, tokens.digest, teacher.fingerprint, library_versions(), teacher.device.type
    )
    directory = cache_dir / "negatives" / key[:20]
    if not has_entry(directory):
        print_line(f"task.negatives_by=teacher: encodes {len(texts):,} texts once, for {directory}")
        vectors = _compute_vectors(TokenizedExamples(tokens, teacher.tokenizer), teacher)
        with new_entry(directory) as temporary:
            np.save(temporary / VECTORS, vectors)
    return np.asarray(np.load(directory / VECTORS))


def _compute_vectors(examples: TokenizedExamples, teacher: PreparedTeacher) -> np.ndarray:
    model = teacher.running()

    def encode(batch: CollatedBatch) -> Tensor:
        logits: Tensor = run_model(model, batch).logits
        return logits.float()

    vectors = compute_rows(encode, examples, teacher.device, title="negatives", unit="texts")
    if not np.isfinite(vectors).all():
        raise NumericalError("the teacher gives vectors that are not finite: check its weights")
    return vectors
