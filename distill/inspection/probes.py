"""What can be read from the states of each layer by a linear classifier, and where: probes of a frozen model.

A probe that is much better than the most frequent label shows that the states have what the labels say. Where each word
has a label, one that is much better than a probe of random labels of the words shows that the probe has not learned
them by heart (arXiv 1909.03368).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from distill.errors import UserError

if TYPE_CHECKING:
    from sklearn.base import ClassifierMixin

PENALTIES = (0.01, 0.1, 1.0, 10.0)  # `C` of scikit-learn, the inverse of the regularisation.
HELD_OUT = 0.2  # Share of the items by which the regularisation is chosen.
MIX_STEPS, MIX_RATE = 300, 0.05


@dataclass(frozen=True)
class Probed:
    """The states that probes learn from, and those that they are scored on.

    Args:
        train: of each layer `[n, H]`, that of the embeddings first.
        labels: classes `[n]`.
        test: of each layer `[m, H]`.
        test_labels: classes `[m]`.
        control: random classes `[n]` and `[m]`, as `control_labels` draws them; None for items that are texts, because
            a random class of one text says nothing about another.
        texts: the text of each item of train, `[n]`; None if each has its own.
    """

    train: Sequence[np.ndarray]
    labels: np.ndarray
    test: Sequence[np.ndarray]
    test_labels: np.ndarray
    control: tuple[np.ndarray, np.ndarray] | None
    texts: np.ndarray | None = None

    def majority(self) -> float:
        """Returns the accuracy of the most frequent label of train."""
        return float((self.test_labels == np.bincount(self.labels).argmax()).mean())


@dataclass(frozen=True)
class LayerProbe:
    """The accuracy of the probe of a layer, and of one that learns random labels of words from the same states.

    Attributes:
        layer: 0 for the embeddings.
        majority: the accuracy of the most frequent label.
        control: the accuracy for random labels; None for texts.
        penalty: the `C` that was chosen.
    """

    layer: int
    accuracy: float
    majority: float
    control: float | None
    penalty: float

    @property
    def selectivity(self) -> float | None:
        """How much better the probe is than that of random labels (arXiv 1909.03368, section 2.2); None for texts."""
        return None if self.control is None else self.accuracy - self.control


def check_rows(rows: int, width: int) -> None:
    """Raises UserError for fewer rows than a state has numbers, which any labels could be read from."""
    if rows < width:
        raise UserError(
            f"a probe of states of {width} numbers would fit any labels of {rows:,} rows: take a task with at least "
            f"{width:,} rows to learn from, or inspect.probes=false"
        )


def control_labels(
    words: Sequence[object], others: Sequence[object], labels: np.ndarray, *, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a random class for each item of two splits, the same for items of the same word in both.

    The classes are drawn as often as the labels have them (arXiv 1909.03368, section 2.1): where most labels are the
    same, uniform classes would be harder to learn than the labels, also for states that know nothing.

    Args:
        words: of the items of train.
        others: those of the split that the probes are scored on.
        labels: of train.
    """
    random, drawn = np.random.default_rng(seed), dict[object, int]()
    for word in (*words, *others):
        if word not in drawn:
            drawn[word] = int(random.choice(labels))
    return np.array([drawn[word] for word in words]), np.array([drawn[word] for word in others])


def hold_out(texts: np.ndarray, share: float, *, seed: int) -> np.ndarray:
    """Returns whether each item is held out, `[n]` (bool): those of random whole texts, about this share of the items.

    Args:
        texts: the text of each item, `[n]`.
    """
    _, of_item, sizes = np.unique(texts, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(sizes))
    is_held = np.zeros(len(sizes), dtype=bool)
    is_held[order] = np.cumsum(sizes[order]) - sizes[order] < share * len(texts)
    return np.asarray(is_held[of_item])


def probe_layers(probed: Probed, *, seed: int = 0) -> list[LayerProbe]:
    """Returns the probe of each layer: a logistic regression whose regularisation is chosen on held-out texts.

    Raises:
        UserError: for fewer rows than the states have numbers.
    """
    check_rows(len(probed.labels), max(of.shape[1] for of in probed.train))
    found = []
    for layer, (train, test) in enumerate(zip(probed.train, probed.test, strict=True)):
        scaled, scaled_test = _scale(train, test)
        penalty = _choose_penalty(scaled, probed, seed)
        accuracy = _fit(scaled, probed.labels, penalty).score(scaled_test, probed.test_labels)
        control = None
        if probed.control is not None:
            control = float(_fit(scaled, probed.control[0], penalty).score(scaled_test, probed.control[1]))
        found.append(LayerProbe(layer, float(accuracy), probed.majority(), control, penalty))
    return found


def _scale(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the states with the mean 0 and the deviation 1 of each number in train."""
    mean, deviation = train.mean(axis=0), train.std(axis=0) + 1e-6
    return (train - mean) / deviation, (test - mean) / deviation


def _choose_penalty(states: np.ndarray, probed: Probed, seed: int) -> float:
    labels = probed.labels
    held = hold_out(np.arange(len(labels)) if probed.texts is None else probed.texts, HELD_OUT, seed=seed)
    if held.all():  # One text.
        return 1.0
    scores = [_fit(states[~held], labels[~held], penalty).score(states[held], labels[held]) for penalty in PENALTIES]
    return PENALTIES[int(np.argmax(scores))]


def _fit(states: np.ndarray, labels: np.ndarray, penalty: float) -> "ClassifierMixin":
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(labels)) < 2:
        return DummyClassifier(strategy="most_frequent").fit(states, labels)
    return LogisticRegression(C=penalty, max_iter=200, tol=1e-3).fit(states, labels)


@dataclass(frozen=True)
class Mix:
    """The weights with which a probe mixes the layers.

    Attributes:
        weights: of each layer, that of the embeddings first; their sum is 1.
        accuracy: of the probe of the mixed states.
    """

    weights: Sequence[float]
    accuracy: float

    @property
    def centre(self) -> float:
        """The centre of gravity, the expected layer (arXiv 1905.05950, equation 2)."""
        return float(np.dot(np.arange(len(self.weights)), self.weights))


def mix_layers(probed: Probed, *, seed: int = 0) -> Mix | None:
    """Returns how a linear probe mixes the layers (arXiv 1905.05950, equation 1), learned together with the probe.

    None for layers of different widths, as of a BiLSTM, which have no sum.

    Raises:
        UserError: for fewer rows than the states have numbers.
    """
    widths = {of.shape[1] for of in probed.train}
    check_rows(len(probed.labels), max(widths))
    if len(widths) > 1:
        return None
    torch.manual_seed(seed)
    pairs = [_scale(train, test) for train, test in zip(probed.train, probed.test, strict=True)]
    train, test = (torch.from_numpy(np.stack(part)).float() for part in zip(*pairs, strict=True))  # [N, n, H]
    labels = torch.from_numpy(probed.labels).long()
    classes = int(max(probed.labels.max(), probed.test_labels.max())) + 1
    scores, head = nn.Parameter(torch.zeros(len(train))), nn.Linear(train.shape[-1], classes)
    optimizer = torch.optim.AdamW([scores, *head.parameters()], lr=MIX_RATE, weight_decay=0.1)
    for _ in range(MIX_STEPS):
        loss = nn.functional.cross_entropy(head(_mixed(train, scores)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        predicted = head(_mixed(test, scores)).argmax(dim=-1).numpy()
    return Mix(scores.softmax(dim=0).tolist(), float((predicted == probed.test_labels).mean()))


def _mixed(states: Tensor, scores: Tensor) -> Tensor:
    return torch.einsum("l,lnh->nh", scores.softmax(dim=0), states)
