"""The models that are looked at, one pass of each over a split, and the right answers that a student loses.

What each head of attention looks at: statistics over the sentences of a split. Weights of attention say where a head
looks, not what its output is worth: `importance` measures that.
"""

import base64
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.console import ProgressMeter, print_notice
from distill.core.contracts import Batch, Data, EncodedSplits, Examples, Items, Loader, Outputs, Scores, Task
from distill.core.errors import UserError
from distill.data.batches import labelled_only, loader, scoring_steps
from distill.models.compatibility import check_length
from distill.models.forward import configure
from distill.models.loading import check_directory, load_directory
from distill.training.module import concatenate, score_items

POSITIONAL = 0.9  # Share of the largest weights on one relative position, from which a head is positional (1905.09418).


@dataclass(frozen=True)
class Head:
    """The statistics of one head, means over the tokens that look (queries), without special tokens.

    Attributes:
        layer: counted from 1.
        head: counted from 1.
        confidence: the largest weight on a token that is not special (arXiv 1905.09418, section 4.1).
        entropy: of the weights on all tokens, in nats.
        distance: the expected distance of the token that is looked at, in tokens.
        separator: the weight on special tokens.
        offset: the relative position that most often has the largest weight of those on tokens that are not special.
        positional: the share of the queries whose largest weight is there.
        rare: the share of the queries whose largest weight is on the rarest token of their sentence.
    """

    layer: int
    head: int
    confidence: float
    entropy: float
    distance: float
    separator: float
    offset: int
    positional: float
    rare: float

    @property
    def is_positional(self) -> bool:
        """Whether at least 90% of the largest weights are on one relative position (arXiv 1905.09418, section 5.2)."""
        return self.positional >= POSITIONAL


class HeadStatistics:
    """Sums of the statistics of all heads over batches.

    Args:
        frequencies: how often each token of the vocabulary occurs in the split, `[V]`; None without the share of rare
            tokens.
    """

    def __init__(self, frequencies: Tensor | None = None) -> None:
        self.frequencies = frequencies
        self._queries = 0
        self._means: Tensor | None = None  # [N, A, 5]: confidence, entropy, distance, separator, rare
        self._offsets: Tensor | None = None  # [N, A, 2 * W + 1]: how often each offset has the largest weight

    def add(self, attentions: Sequence[Tensor], input_ids: Tensor, words: Tensor) -> None:
        """Adds a batch.

        Args:
            attentions: the weights of each layer, `[B, A, L, L]`, zero at padding.
            input_ids: `[B, L]`.
            words: `[B, L]` (bool), the tokens that are neither special nor padding. A sentence needs one.
        """
        means, offsets = zip(*(self._measure(of.float(), input_ids, words) for of in attentions), strict=True)
        self._queries += int(words.sum())
        self._means = torch.stack(means) if self._means is None else self._means + torch.stack(means)
        self._offsets = _add_padded(self._offsets, torch.stack(offsets))

    def _measure(self, weights: Tensor, input_ids: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the sums over the queries `[A, 5]`, and the counts of offsets `[A, 2 * L - 1]`, of one layer."""
        length = weights.shape[-1]
        positions = torch.arange(length, device=weights.device)
        distances = (positions - positions[:, None]).abs()
        keys = words[:, None, None, :]
        largest, places = weights.masked_fill(~keys, -1.0).max(dim=-1)  # [B, A, L]
        values = torch.stack(
            [
                largest,
                torch.special.entr(weights).sum(dim=-1),
                (weights * distances).sum(dim=-1),
                1.0 - (weights * keys).sum(dim=-1),
                self._looks_at_rarest(places, input_ids, words),
            ],
            dim=-1,
        )
        queries = words[:, None, :]  # [B, 1, L]
        sums = (values * queries[..., None]).sum(dim=(0, 2))
        offsets = (places - positions + length - 1).masked_fill(~queries, -1)
        classes = torch.arange(2 * length - 1, device=weights.device)
        counts = (offsets.transpose(0, 1).flatten(1)[..., None] == classes).sum(dim=1)
        return sums.double().cpu(), counts.cpu()

    def _looks_at_rarest(self, places: Tensor, input_ids: Tensor, words: Tensor) -> Tensor:
        if self.frequencies is None:
            return torch.zeros(places.shape, device=places.device)
        frequencies = self.frequencies.to(places.device)[input_ids].masked_fill(~words, torch.iinfo(torch.long).max)
        is_rarest = frequencies == frequencies.amin(dim=1, keepdim=True)  # [B, L]
        return is_rarest[:, None, :].expand_as(places).gather(2, places).float()

    def heads(self) -> list[Head]:
        """Returns the heads, those of a layer one after another.

        Raises:
            ValueError: before any batch was added.
        """
        if self._means is None or self._offsets is None:
            raise ValueError("got no batch, expected at least one")
        means, middle = self._means / self._queries, self._offsets.shape[-1] // 2
        most, offsets = self._offsets.max(dim=-1)
        found = []
        for layer, of_layer in enumerate(means.tolist()):
            for head, (confidence, entropy, distance, separator, rare) in enumerate(of_layer):
                share = float(most[layer, head]) / self._queries
                found.append(
                    Head(
                        layer + 1, head + 1, confidence=confidence, entropy=entropy, distance=distance,
                        separator=separator, offset=int(offsets[layer, head]) - middle, positional=share, rare=rare,
                    )
                )  # fmt: skip
        return found


def _add_padded(sums: Tensor | None, counts: Tensor) -> Tensor:
    """Adds counts of offsets of different widths, whose middle is the offset 0."""
    if sums is None:
        return counts
    if sums.shape[-1] < counts.shape[-1]:
        sums, counts = counts, sums
    missing = (sums.shape[-1] - counts.shape[-1]) // 2
    return sums + torch.nn.functional.pad(counts, (missing, missing))


LEVELS = 255  # A weight is a whole number of these.


@dataclass(frozen=True)
class AttentionView:
    """The attention of a model in one sentence.

    Attributes:
        tokens: the pieces of the sentence, special ones too.
        weights: `[N, A, L, L]` as whole numbers of 1 / 255; a row is a token that looks.
    """

    tokens: Sequence[str]
    weights: np.ndarray

    @classmethod
    def of(cls, attentions: Sequence[Tensor], tokens: Sequence[str]) -> "AttentionView":
        """Returns the view of the weights of each layer, `[A, L, L]`, rounded to the nearest level."""
        weights = np.stack([of.detach().float().cpu().numpy() for of in attentions])
        return cls(list(tokens), np.rint(weights * LEVELS).astype(np.uint8))

    def encode(self) -> dict[str, Any]:
        """Returns the content as JSON, with the weights of one byte each as base64 of what zlib makes of them."""
        layers, heads, *_ = self.weights.shape
        return {
            "tokens": list(self.tokens), "layers": layers, "heads": heads,
            "weights": base64.b64encode(zlib.compress(self.weights.tobytes(), level=9)).decode(),
        }  # fmt: skip


MOST_ROWS = 4000  # States that are compared.
FEWEST_ROWS = 4  # That have an unbiased estimate.


def linear_cka(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the linear CKA of two sets of states of the same items, by the unbiased estimate of HSIC.

    It is 1 for states that a rotation and one factor turn into each other, whatever their widths. For states that have
    nothing in common its mean is 0, so that it may be below 0. That of arXiv 1905.00414 is far above 0 unless there are
    many more items than the states have numbers. The estimate is that of arXiv 2010.15327, equation 3.

    Args:
        first: `[n, P]`.
        second: `[n, Q]`.

    Raises:
        ValueError: for different numbers of items, or fewer than 4.
    """
    if len(first) != len(second):
        raise ValueError(f"got states of {len(first)} and {len(second)} items, expected those of the same ones")
    if len(first) < FEWEST_ROWS:
        raise ValueError(f"got states of {len(first)} items, expected at least {FEWEST_ROWS}")
    x, y = (of.astype(np.float64) - of.mean(axis=0, dtype=np.float64) for of in (first, second))
    x, y = (of / (np.sqrt(np.square(of).mean()) or 1.0) for of in (x, y))  # No factor changes it.
    own = _unbiased_hsic(x, x), _unbiased_hsic(y, y)
    return float(_unbiased_hsic(x, y) / np.sqrt(own[0] * own[1])) if min(own) > 0 else 0.0


def _unbiased_hsic(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the unbiased estimate of HSIC (arXiv 2010.15327, equation 3), without the `[n, n]` products of states.

    Of the products `K = x x'` and `L = y y'` those of an item with itself count as 0.
    """
    items = len(x)
    lengths, of_y = np.square(x).sum(axis=1), np.square(y).sum(axis=1)
    rows, rows_of_y = x @ x.sum(axis=0) - lengths, y @ y.sum(axis=0) - of_y  # K 1 and L 1
    trace = np.square(x.T @ y).sum() - lengths @ of_y
    means = rows.sum() * rows_of_y.sum() / ((items - 1) * (items - 2)) - 2 / (items - 2) * (rows @ rows_of_y)
    return float((trace + means) / (items * (items - 3)))


def compared_rows(items: int) -> np.ndarray:
    """Returns the items whose states are compared, evenly spaced ones of many."""
    return np.unique(np.linspace(0, items - 1, MOST_ROWS).astype(int))


def compare_layers(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the CKA of every layer of the first model with every layer of the second, `[N, M]`.

    Args:
        first: the states `[n, P]` of each layer, of the embeddings first.
        second: those of the other model, `[n, Q]`, of the same items.

    Raises:
        UserError: for fewer than 4 items.
    """
    chosen = compared_rows(len(first[0]))
    if len(chosen) < FEWEST_ROWS:
        raise UserError(
            f"layers are compared by the states of at least {FEWEST_ROWS} items, and the split has {len(chosen)}: take "
            "a larger one with inspect.split"
        )
    return np.array([[linear_cka(one[chosen], other[chosen]) for other in second] for one in first])


RESAMPLES = 4000
CONFIDENCE = 0.95  # Of all intervals together (Bonferroni).
LEAST = 20  # Texts with items of a group, and with others.
_BATCH = 500  # Resamples that are drawn at a time.
NEGATIONS = re.compile(
    r"\b(?:not|no|never|none|nothing|nobody|neither|nor|without|hardly|barely|cannot)\b|n['\u2019 ]?t\b", re.IGNORECASE
)


@dataclass(frozen=True)
class LostGroup:
    """A group of items, such as those of texts with a negation.

    Attributes:
        kind: what the items are grouped by, such as `length`.
        name: of the group.
        number: of its items.
        texts: that have one of its items.
        teacher: the mean score of the teacher's answers, the share of right ones.
        student: that of the student's.
        excess: how much more of the score is lost in the group than outside, `[-1, 1]`.
        interval: of `excess`. All groups together have a confidence of at least 95%.
    """

    kind: str
    name: str
    number: int
    texts: int
    teacher: float
    student: float
    excess: float
    interval: tuple[float, float]

    @property
    def lost(self) -> float:
        """The share of right answers that the student loses."""
        return self.teacher - self.student

    @property
    def loses_more(self) -> bool:
        """Whether the group loses, and more than the others, as its interval says."""
        return self.lost > 0 and self.interval[0] > 0


def find_lost_groups(
    teacher: np.ndarray,
    student: np.ndarray,
    members: Mapping[tuple[str, str], np.ndarray],
    *,
    texts: np.ndarray | None = None,
    comparisons: int | None = None,
    seed: int = 0,
) -> list[LostGroup]:
    """Returns the groups with items of at least 20 texts inside and outside, those with the largest excess first.

    The intervals are percentiles of a paired bootstrap over texts, because the items of a text are lost together. Each
    has the confidence `1 - 0.05 / comparisons`, so that all of them hold with a probability of at least 95%.

    Args:
        teacher: the score of each item, 1 for a right answer, `[n]`.
        student: that of the same items.
        members: `[n]` (bool) for each kind and name of a group.
        texts: the text of each item, `[n]`; None if each has its own.
        comparisons: number of groups whose intervals are to hold together; None for these alone.
    """
    lost = teacher - student
    of_item = np.arange(len(lost)) if texts is None else np.unique(texts, return_inverse=True)[1]
    sides = {key: _Sides.of(lost, of, of_item) for key, of in members.items()}
    kept = {key: of for key, of in sides.items() if min(of.texts) >= LEAST}
    tail = (1 - CONFIDENCE) / 2 / max(1, len(kept) if comparisons is None else comparisons)
    found = []
    for key, drawn in zip(kept, _resample(list(kept.values()), np.random.default_rng(seed)), strict=True):
        of, (low, high) = members[key], np.quantile(drawn, [tail, 1 - tail])
        found.append(
            LostGroup(
                *key, int(of.sum()), kept[key].texts[0], float(teacher[of].mean()), float(student[of].mean()),
                float(lost[of].mean() - lost[~of].mean()), (float(low), float(high)),
            )
        )  # fmt: skip
    return sorted(found, key=lambda group: -group.excess)


class _Sides(NamedTuple):
    """The losses inside and outside a group by text.

    Attributes:
        sums: `[T, 4]`, the loss and the number of items inside, and both outside.
        texts: with items inside, and outside.
    """

    sums: np.ndarray
    texts: tuple[int, int]

    @classmethod
    def of(cls, lost: np.ndarray, members: np.ndarray, text: np.ndarray) -> "_Sides":
        columns = (lost * members, members, lost * ~members, ~members)
        sums = np.stack([np.bincount(text, column.astype(float)) for column in columns], axis=1)
        return cls(sums, (int((sums[:, 1] > 0).sum()), int((sums[:, 3] > 0).sum())))

    def with_added(self) -> np.ndarray:
        """Returns the sums with two texts more on each side, one that loses and one that gains, `[T + 4, 4]`.

        Without them a side of which no text of a small sample is lost would have no spread. They are as long as a text
        is on average, and lose or gain as much as one does that loses or gains at all (the root mean square), or a
        score of 1 where none does.
        """
        loss, items = self.sums[:, 0] + self.sums[:, 2], self.sums[:, 1] + self.sums[:, 3]
        changed, length = (loss / items)[loss != 0], items.mean()
        size = float(np.sqrt(np.mean(changed**2))) * length if len(changed) else length
        added = [[size, length, 0, 0], [-size, length, 0, 0], [0, 0, size, length], [0, 0, -size, length]]
        return np.concatenate([self.sums, added])


def _resample(groups: Sequence[_Sides], random: np.random.Generator) -> list[np.ndarray]:
    """Returns the excess of each group in the same resamples of texts, `[RESAMPLES]` each."""
    if not groups:
        return []
    sums = np.stack([of.with_added() for of in groups], axis=1)  # [T + 4, G, 4]
    texts, drawn = len(sums), []
    for _ in range(0, RESAMPLES, _BATCH):
        places = random.integers(texts, size=(_BATCH, texts)) + np.arange(_BATCH)[:, None] * texts
        times = np.bincount(places.ravel(), minlength=_BATCH * texts).reshape(_BATCH, texts)  # [_BATCH, T + 4]
        drawn.append((times.astype(float) @ sums.reshape(texts, -1)).reshape(_BATCH, len(groups), 4))
    inside, of_inside, outside, of_outside = np.concatenate(drawn).transpose(2, 1, 0)  # [G, RESAMPLES] each
    return list(inside / of_inside - outside / of_outside)


def text_groups(texts: Sequence[str], trained: Sequence[str]) -> dict[tuple[str, str], np.ndarray]:
    """Returns the members `[N]` of the groups of texts by length, negation and rare words.

    Lengths are in thirds, by words. A rare word is one that the texts of train lack.
    """
    words = [_words(text) for text in texts]
    lengths = np.array([len(of) for of in words])
    first, second = np.quantile(lengths, [1 / 3, 2 / 3])
    known = {word for text in trained for word in _words(text)}
    is_new = np.array([not known.issuperset(of) for of in words])
    negated = np.array([NEGATIONS.search(text) is not None for text in texts])
    return {
        ("length", f"at most {first:.0f} words"): lengths <= first,
        ("length", f"{first:.0f} to {second:.0f} words"): (lengths > first) & (lengths <= second),
        ("length", f"more than {second:.0f} words"): lengths > second,
        ("negation", "with a negation"): negated,
        ("negation", "without a negation"): ~negated,
        ("words", "with a word that train lacks"): is_new,
        ("words", "all words in train"): ~is_new,
    }


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


_PLACES = ("student", "teacher/model")  # Of the model in the directory of a run.
_NEEDS = frozenset(("hidden_states", "attentions"))


@dataclass(frozen=True)
class Subject:
    """A model that is looked at.

    Attributes:
        name: in tables and plots, such as `teacher`.
        path: its directory.
        examples: the tokenized splits.
    """

    name: str
    path: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    task: Task
    data: Data
    examples: EncodedSplits

    @property
    def has_attention(self) -> bool:
        """Whether its layers return weights of attention, which a BiLSTM has not."""
        return bool(getattr(self.model.config, "num_attention_heads", 0))

    @property
    def has_classes(self) -> bool:
        """Whether each item has one class of the task, which a probe can learn."""
        items = self.task.select(self.split("train")[[0]])
        is_class = items.likelihood == "softmax" and items.valid is None and not items.classes_are_tokens
        return is_class and len(self.data.labels) > 1

    def texts(self, split: str) -> list[str]:
        """Returns the text of each example of a split, with the texts of one joined by a bar."""
        columns = self.data.scored()[split].text_columns().values()
        if columns:
            return [" | ".join(map(_join, row)) for row in zip(*columns, strict=True)]
        examples = self.split(split)  # Of tokens of several texts.
        rows = (examples[[row]] for row in range(len(examples)))
        return [self.tokenizer.decode(of["input_ids"][0, of["attention_mask"][0].bool()]) for of in rows]

    def answer(self, value: object) -> object:
        """Returns a label or a prediction as it is read, of tokens their text."""
        return self.tokenizer.decode(value) if self.task.info.classes_are_tokens else value  # type: ignore[arg-type]

    def before(self, model: PreTrainedModel) -> "Subject":
        """Returns the same with a model as it was before its training."""
        return replace(self, name=f"{self.name} before training", model=model.eval())

    @property
    def labels_words(self) -> bool:
        """Whether each word of a text has a label."""
        return self.task.select(self.split("train")[[0]]).index is not None and not self.task.info.classes_are_tokens

    def items_of_train(self) -> int:
        """Returns about how many items the examples of train have."""
        train = self.split("train")
        return round(len(train) * train.items_per_example)

    def train_rows(self, items: int) -> np.ndarray:
        """Returns evenly spaced examples of train with about so many items."""
        train = self.split("train")
        return spaced_rows(len(train), max(1, round(items / train.items_per_example)))

    def split(self, name: str) -> Examples:
        """Returns a tokenized split.

        Raises:
            UserError: for a split that the task does not have.
        """
        found = self.examples.get(name)
        if not isinstance(found, Examples):
            raise UserError(
                f"inspect.split={name} is no split of task={self.task.info.name}, expected one of "
                f"{', '.join(self.examples)}"
            )
        return found


def _join(value: object) -> str:
    return value if isinstance(value, str) else " ".join(map(str, value)) if isinstance(value, Sequence) else str(value)


def open_subject(name: str, path: Path, task: Task, data: Data, cache_dir: Path) -> Subject:
    """Opens a model with a trained head for the task, with attention that returns its weights.

    Args:
        path: the directory of a model, or of a run, whose student or fine-tuned teacher is taken.

    Raises:
        UserError: if there is no such model, or its head is not trained for the task.
    """
    directory = next((path / place for place in _PLACES if (path / place / "config.json").is_file()), path)
    check_directory(directory, str(path))
    settings = task.info.model_settings
    start = load_directory(
        directory, task.info.auto_class, data.labels or None, trust_remote_code=False,
        problem_type=settings.get("problem_type"),
    )  # fmt: skip
    if not start.fits:
        raise UserError(f"{directory} has no trained head for task={task.info.name}: {start.reason}")
    for notice in [*start.notices, *configure(start.model, settings)]:
        print_notice(notice)
    return create_subject(name, directory, start.model, start.tokenizer, task, data, cache_dir)


def create_subject(
    name: str, path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, data: Data,
    cache_dir: Path,
) -> Subject:  # fmt: skip
    """Returns a loaded model with the data that it is looked at on, with attention that returns its weights.

    Raises:
        UserError: for texts that are longer than it reads.
    """
    check_length(model, tokenizer, task.info.max_length, who=name)
    if getattr(model.config, "num_attention_heads", 0):
        model.set_attn_implementation("eager")  # The only one that returns weights.
    examples = labelled_only(task.encode(data, tokenizer, cache_dir))
    return Subject(name, path, model.eval(), tokenizer, task, data.with_examples(examples), examples)


def open_subjects(paths: Sequence[Path], task: Task, cache_dir: Path) -> list[Subject]:
    """Opens one model, or a teacher and its student, with the data of their task.

    Args:
        paths: one or two directories, as those of `open_subject`.

    Raises:
        UserError: if the data cannot be read, or a model has no trained head for the task.
    """
    data = task.read(cache_dir)
    names = ("model",) if len(paths) == 1 else ("teacher", "student")
    return [open_subject(name, path, task, data, cache_dir) for name, path in zip(names, paths, strict=True)]


@dataclass(frozen=True)
class Seen:
    """What one pass of a model over a split has shown.

    Attributes:
        scores: in the order of the examples.
        states: the states of the items by layer, that of the embeddings first, `[n, H]` float32. That of an item which
            is an example is the mean of its tokens.
        groups: of the items, those of the same word in one, `[n]`; that of an example is its number, and so is that of
            a token to be predicted.
        heads: the statistics of all heads; empty for a model without attention.
    """

    scores: Scores
    states: Sequence[np.ndarray]
    groups: np.ndarray
    heads: Sequence[Head]


def spaced_rows(total: int, most: int | None) -> np.ndarray:
    """Returns at most so many evenly spaced rows of a table; None takes all."""
    return np.arange(total) if most is None else np.unique(np.linspace(0, total - 1, min(most, total)).astype(int))


def rows_loader(examples: Examples, rows: np.ndarray) -> Loader:
    """Returns the loader of these examples, the longest first."""
    return loader(examples, [[rows[batch].tolist()] for batch in scoring_steps(examples.lengths[rows])])


def batches(subject: Subject, split: str, rows: np.ndarray) -> Iterator[Batch]:
    """Yields the batches of these examples of a split."""
    for step in rows_loader(subject.split(split), rows):
        yield from step


@torch.inference_mode()
def look(subject: Subject, split: str, rows: np.ndarray, *, heads: bool = True) -> Seen:
    """Runs the model over these examples of a split.

    Args:
        heads: whether the statistics of heads are computed.
    """
    task, scoring = subject.task, subject.data.scoring
    statistics = HeadStatistics(_count_tokens(subject, split, rows)) if heads and subject.has_attention else None
    scores, states, groups = [], [], []
    special = torch.tensor(subject.tokenizer.all_special_ids)
    with ProgressMeter(f"{subject.name} on {split}", len(rows), unit="examples", transient=True) as meter:
        for batch in batches(subject, split, rows):
            items = task.select(batch)
            outputs = task.run(subject.model, batch, items, _NEEDS if statistics else _NEEDS - {"attentions"})
            scores.append(score_items(scoring, outputs, items))
            states.append((items.example_id(), item_states(outputs, items)))
            is_word = items.index is not None and not items.classes_are_tokens
            groups.append(batch["input_ids"].flatten()[items.index] if is_word else items.example_id())
            if statistics is not None and outputs.attentions is not None:
                words = batch["attention_mask"].bool() & ~torch.isin(batch["input_ids"], special)
                statistics.add(outputs.attentions, batch["input_ids"], words)
            meter.advance(len(batch["example_id"]))
    order = torch.cat([ids for ids, _ in states]).argsort(stable=True)
    by_layer = [torch.cat(of)[order].numpy() for of in zip(*(layers for _, layers in states), strict=True)]
    found = statistics.heads() if statistics is not None else []
    return Seen(concatenate(scores).by_example(), by_layer, torch.cat(groups)[order].numpy(), found)


def item_states(outputs: Outputs, items: Items) -> list[Tensor]:
    """Returns the states `[n, H]` of the items by layer, of an item that is an example the mean of its tokens."""
    if items.index is not None:  # Tokens, of an encoder-decoder those of its targets.
        layers = (outputs.decoder or outputs).hidden_states or ()
        return [states.flatten(0, 1)[items.index].float() for states in layers]
    mask = items["attention_mask"].unsqueeze(-1)
    means = [
        (states.float() * mask).sum(dim=1) / mask.sum(dim=1).clamp_min(1) for states in outputs.hidden_states or ()
    ]
    return [states[items.row] for states in means]


def _count_tokens(subject: Subject, split: str, rows: np.ndarray) -> Tensor:
    """Returns how often each token occurs in the examples, `[V]`."""
    counts = torch.zeros(int(subject.model.config.vocab_size), dtype=torch.long)
    for batch in batches(subject, split, rows):
        tokens = batch["input_ids"][batch["attention_mask"].bool()]
        counts += torch.bincount(tokens, minlength=len(counts))
    return counts


MOST_CLASSES = 30  # That are groups.


@dataclass(frozen=True)
class ItemDifference:
    """An example on which two models differ.

    Attributes:
        row: of the split.
        text: of the example.
        label: the right answer.
        first: the answer of the first model.
        second: that of the second.
        size: the largest difference of a probability, of tokens the mean difference of that of the right token; where
            there are no classes, that of the scores of their answers.
    """

    row: int
    text: str
    label: object
    first: object
    second: object
    size: float


def item_scores(data: Data, scores: Scores) -> tuple[np.ndarray, np.ndarray]:
    """Returns the score of each item `[n]`, and the row of the split that it belongs to.

    It is 1 for a right answer and 0 for a wrong one, of a number minus its error. Where the metric is a mean over
    examples, each of them is an item.
    """
    scoring = data.scoring
    rows, by_example = scoring.rows(scores), scoring.example_metric(scores)
    if by_example is not None and scoring.selects == "max":
        return np.asarray(by_example, dtype=float), np.unique(rows)
    predictions = scoring.predictions(scores)
    if np.issubdtype(predictions.dtype, np.floating):
        return np.asarray(-np.abs(predictions - scores.labels)), rows
    right = predictions == scores.labels
    return np.asarray(right.reshape(len(right), -1).all(axis=1), dtype=float), rows


def lost_groups(data: Data, teacher: Scores, student: Scores, texts: Sequence[str]) -> list[LostGroup]:
    """Returns the groups of a split on which the student loses most more than elsewhere.

    Groups of items are by length, negation and unknown words of their text, and by class. Groups of right answers are
    by their type, such as that of an entity, with what was found of each.

    Args:
        texts: of the examples of the split.
    """
    scoring = data.scoring
    teacher, student = scoring.condense(teacher), scoring.condense(student)
    (first, rows), (second, _) = (item_scores(data, of) for of in (teacher, student))
    members = {key: of[rows] for key, of in text_groups(texts, list(data.labelled_texts())).items()}
    hits, others = scoring.hits(teacher), scoring.hits(student)
    if not hits and 2 <= len(data.labels) <= MOST_CLASSES and teacher.labels.shape == first.shape:
        members |= {("class", name): teacher.labels == number for number, name in enumerate(data.labels)}
    number = len(members) + len(hits)
    found = find_lost_groups(first, second, members, texts=rows, comparisons=number)
    if hits:
        kinds = np.repeat(list(hits), [len(of) for of in hits.values()])
        before, after = (np.concatenate([of[name] for name in hits]).astype(float) for of in (hits, others))
        types = {("type", str(name)): kinds == name for name in hits}
        of_text = np.concatenate(list(scoring.hit_rows(teacher).values()))
        found += find_lost_groups(before, after, types, texts=of_text, comparisons=number)
    return sorted(found, key=lambda group: -group.excess)


def differences(
    subject: Subject, first: Scores, second: Scores, texts: Sequence[str], most: int
) -> list[ItemDifference]:
    """Returns the examples on which two models differ most: by a probability, or by their scores without classes.

    Args:
        subject: one of the models.
    """
    data, scoring = subject.data, subject.data.scoring
    predicts_tokens, by_row = subject.task.info.classes_are_tokens, np.zeros(len(texts))
    if scoring.calibration_error(first) is not None:  # The answers have probabilities.
        sizes, rows = scoring.probability_diffs(first, second), scoring.rows(first)
    else:
        (teacher, rows), (student, _) = (item_scores(data, scoring.condense(of)) for of in (first, second))
        sizes = np.abs(teacher - student)
    np.maximum.at(by_row, rows, sizes)
    if predicts_tokens:
        by_row = np.bincount(rows, sizes, len(texts)) / np.bincount(rows, minlength=len(texts)).clip(1)
    tables = [scoring.tabulate(of, data, examples=len(texts)) for of in (first, second)]
    order = [int(row) for row in np.argsort(-by_row, kind="stable")[:most] if by_row[row] > 0]
    found = []
    for row in order:
        answers = [tables[0]["label"][row], *(of["prediction"][row] for of in tables)]
        label, one, other = (
            _differing_words(texts[row], *answers) if subject.labels_words else map(subject.answer, answers)
        )
        found.append(ItemDifference(row, texts[row], label, one, other, float(by_row[row])))
    return found


def _differing_words(text: str, label: list[str], first: list[str], second: list[str]) -> list[str]:
    """Returns the words whose answers differ with the label and both answers, all words if none does."""
    words = text.split()
    places = [place for place, (one, other) in enumerate(zip(first, second, strict=True)) if one != other]
    return [
        ", ".join(f"{words[place]}: {of[place]}" for place in places or range(len(words)))
        for of in (label, first, second)
    ]
