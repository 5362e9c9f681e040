"""What the states of a frozen model hold: probes of layers and spans, words in contexts, gaps, and attributions.

What can be read from the states of each layer by a linear classifier, and where: probes of a frozen model. A probe that
is much better than the most frequent label shows that the states have what the labels say. Where each word has a label,
one that is much better than a probe of random labels of the words shows that the probe has not learned them by heart
(arXiv 1909.03368).
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import Batch
from distill.core.errors import UserError
from distill.models.forward import predicts_tokens, run_model
from distill.rows.formats import read_lines

if TYPE_CHECKING:
    from sklearn.base import ClassifierMixin


STEPS = (32, 128, 512)  # Of the integral (Gauss-Legendre): more where the sum misses its limit by more than this:
TOLERANCE = 0.01
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_BEGINS = ("▁", "Ġ")  # Before pieces that begin a word, in vocabularies that do not mark those that continue one.


@dataclass(frozen=True)
class Attribution:
    """What the words of a text add to the score of the predicted class.

    Attributes:
        words: of the text, without special tokens.
        product: gradient times input of each word (arXiv 1704.02685, section 2).
        integrated: integrated gradients from padding as the baseline (arXiv 1703.01365, equation 1). Of the baseline
            only the embeddings of tokens are those of padding: their positions and masks are those of the text, also
            in RoBERTa and other models that number positions by the tokens that are no padding.
        missing: by how much the sum of `integrated` over all tokens misses the difference of the scores of text and
            baseline, which it equals in the limit (there, proposition 1).
    """

    words: Sequence[str]
    product: Sequence[float]
    integrated: Sequence[float]
    missing: float


def attribute(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch: Batch) -> Attribution:
    """Returns the attributions of the largest logit of one example.

    The score is the largest logit of the example, of all its items together where it has several.

    Args:
        batch: of one sequence of tokens, `[1, L]`.
    """
    from captum.attr import InputXGradient, IntegratedGradients

    table, ids = _embeddings(model), batch["input_ids"]
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    with torch.no_grad():
        embedded = table(ids)  # [1, L, H]
        baseline = table(ids.masked_fill(~special, int(tokenizer.pad_token_id or 0)))
    score = _scorer(model, batch)
    for steps in STEPS:
        values, delta = IntegratedGradients(score).attribute(
            embedded, baseline, n_steps=steps, internal_batch_size=STEPS[0], return_convergence_delta=True
        )
        missing = float(delta.abs().max())
        if missing <= TOLERANCE:
            break
    product = InputXGradient(score).attribute(embedded.requires_grad_()).sum(dim=-1)[0]
    words, groups = _words(tokenizer, ids[0].tolist())
    integrated = _sum_words(values.sum(dim=-1)[0], groups)
    return Attribution(words, _sum_words(product, groups), integrated, missing)


def _embeddings(model: PreTrainedModel) -> nn.Module:
    """Returns the table of embeddings by which a model reads a text, of an encoder-decoder that of its encoder."""
    reader = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
    return cast(nn.Module, reader.get_input_embeddings())


def _scorer(model: PreTrainedModel, batch: Batch) -> Callable[[Tensor], Tensor]:
    """Returns the function of embeddings `[B, L, H]` whose values `[B]` are the logit that was largest for the example.

    All that the model makes of the ids themselves, such as positions, stays as it is in the example.
    """
    inputs = {name: column for name, column in batch.items() if name in _INPUTS}
    with torch.no_grad():
        chosen = int(run_model(model, batch).logits.flatten().argmax())

    def score(embedded: Tensor) -> Tensor:
        repeated = {name: column.expand(len(embedded), -1) for name, column in inputs.items()}
        # Behind the text are tokens of a Longformer that fill its window.
        handle = _embeddings(model).register_forward_hook(
            lambda module, ids, output: torch.cat([embedded, output[:, embedded.shape[1] :]], dim=1)
        )
        try:
            found: Tensor = run_model(model, repeated).logits.flatten(1)[:, chosen]
        finally:
            handle.remove()
        return found

    return score


def _words(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> tuple[list[str], list[int | None]]:
    """Returns the words of the tokens, and the word that each token belongs to, None for a special one."""
    words: list[str] = []
    groups: list[int | None] = []
    marks_words = any(piece.startswith(_BEGINS) for piece in tokenizer.tokenize("a word"))
    for token, piece in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        if token in tokenizer.all_special_ids:
            groups.append(None)
            continue
        is_unmarked = marks_words and not piece.startswith(_BEGINS)
        if not words or not (piece.startswith("##") or is_unmarked):
            words.append("")
        words[-1] += piece.removeprefix("##").lstrip("".join(_BEGINS))
        groups.append(len(words) - 1)
    return words, groups


def _sum_words(values: Tensor, groups: Sequence[int | None]) -> list[float]:
    sums = [0.0] * (max((group for group in groups if group is not None), default=-1) + 1)
    for value, group in zip(values.tolist(), groups, strict=True):
        if group is not None:
            sums[group] += value
    return sums


GAP = "___"
FILE = "cloze.jsonl"


@dataclass(frozen=True)
class Cloze:
    """A sentence with a gap.

    Attributes:
        group: what it asks for, such as `facts`.
        text: the sentence, with `___` for the word.
        answer: the right word.
        foil: a wrong word that would fit into the gap.
    """

    group: str
    text: str
    answer: str
    foil: str


@dataclass(frozen=True)
class FilledGap:
    """What a model says of a gap.

    Attributes:
        rank: of the right word among all tokens, 1 for the likeliest.
        probability: of the right word.
        best: the likeliest token.
        prefers: whether the right word is likelier than the wrong one.
    """

    cloze: Cloze
    rank: int
    probability: float
    best: str
    prefers: bool


def read_clozes() -> list[Cloze]:
    """Returns the sentences that come with the program."""
    lines = resources.files("distill.inspection").joinpath(FILE).read_text(encoding="utf-8").splitlines()
    return [Cloze(**json.loads(line)) for line in lines]


@torch.no_grad()
def fill_gaps(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, clozes: Sequence[Cloze]) -> list[FilledGap]:
    """Returns what the model says of each gap, without sentences whose words are no single tokens of its vocabulary.

    A masked language model reads the whole sentence. A causal one reads what is before the gap.
    """
    filled = []
    for cloze in clozes:
        if (found := _read(model, tokenizer, cloze)) is None:
            continue
        ids, position, answer, foil = found
        logits = model(input_ids=torch.tensor([ids], device=model.device)).logits[0, position].float().cpu()
        probabilities = logits.softmax(dim=-1)
        filled.append(
            FilledGap(
                cloze, int((logits > logits[answer]).sum()) + 1, float(probabilities[answer]),
                tokenizer.decode([int(logits.argmax())]).strip(), bool(logits[answer] > logits[foil]),
            )
        )  # fmt: skip
    return filled


def _read(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, cloze: Cloze
) -> tuple[list[int], int, int, int] | None:
    """Returns the tokens, the position that predicts the gap, and the two words; None for words of several."""
    before, _, after = cloze.text.partition(GAP)
    words = (cloze.answer, cloze.foil)
    if predicts_tokens(model):
        ids = tokenizer(f"{before}{tokenizer.mask_token}{after}")["input_ids"]
        position = place = ids.index(tokenizer.mask_token_id)
        filled = [tokenizer(f"{before}{word}{after}")["input_ids"] for word in words]
        length = len(ids)
    else:
        ids = tokenizer(before.rstrip())["input_ids"]
        position, place = len(ids) - 1, len(ids)
        filled = [[*ids, *tokenizer(f" {word}", add_special_tokens=False)["input_ids"]] for word in words]
        length = len(ids) + 1
    if any(len(each) != length for each in filled):
        return None
    answer, foil = (each[place] for each in filled)
    return None if tokenizer.unk_token_id in (answer, foil) else (ids, position, answer, foil)


NEAREST = 3
MOST = 200  # Occurrences that are compared.
SHOWN = 4  # Occurrences whose nearest ones are listed.


@dataclass(frozen=True)
class Occurrence:
    """A word in a sentence.

    Attributes:
        text: the sentence.
        start: of the word, in characters.
        end: the character after it.
    """

    text: str
    start: int
    end: int

    def shown(self) -> str:
        """Returns the sentence with the word in brackets."""
        return f"{self.text[: self.start]}[{self.text[self.start : self.end]}]{self.text[self.end :]}"


@dataclass(frozen=True)
class Neighbours:
    """The nearest other occurrences of a word by the cosine of their states in one layer, the nearest first.

    Attributes:
        layer: 0 for the embeddings.
    """

    layer: int
    of: Occurrence
    nearest: Sequence[tuple[Occurrence, float]]


def find_occurrences(word: str, texts: Sequence[str]) -> list[Occurrence]:
    """Returns the occurrences of a word, each in another text, evenly spaced ones if there are many.

    Raises:
        UserError: for a word that occurs less than three times.
    """
    pattern = re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE)
    found = [Occurrence(text, *match.span()) for text in texts if (match := pattern.search(text))]
    if len(found) < NEAREST:
        raise UserError(
            f"inspect.word={word} is in {len(found)} of {len(texts):,} texts, and its occurrences are compared from "
            f"{NEAREST} on: take another word, or inspect.corpus=FILE with more text"
        )
    return [found[place] for place in np.unique(np.linspace(0, len(found) - 1, MOST).astype(int))]


def compare_contexts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, occurrences: Sequence[Occurrence]
) -> list[Neighbours]:
    """Returns the nearest other occurrences of some occurrences, in every layer; none without any."""
    if not occurrences:
        return []
    kept, states = _word_states(model, tokenizer, occurrences)
    chosen = np.unique(np.linspace(0, len(kept) - 1, SHOWN).astype(int))
    return [
        Neighbours(layer, kept[of], [(kept[other], cosine) for other, cosine in nearest(values, of)])
        for of in map(int, chosen)
        for layer, values in enumerate(states)
    ]


@torch.inference_mode()
def _word_states(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, occurrences: Sequence[Occurrence]
) -> tuple[list[Occurrence], np.ndarray]:
    """Returns the states of the word by layer, `[N, n, H]`, without occurrences that are cut off."""
    found = [(of, _read_spans(model, tokenizer, of.text, [(of.start, of.end)])) for of in occurrences]
    kept = [(occurrence, states) for occurrence, states in found if states is not None]
    return [occurrence for occurrence, _ in kept], np.stack([states for _, states in kept], axis=1)


def _read_spans(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str, spans: Sequence[tuple[int, int]]
) -> np.ndarray | None:
    """Returns the states of spans of characters by layer, `[N, spans * H]`, each the mean of its pieces.

    None if one of them is cut off.
    """
    encoded = tokenizer(text, truncation=True, return_offsets_mapping=True, return_tensors="pt")
    offsets = encoded.pop("offset_mapping")[0].tolist()
    places = [[place for place, (a, b) in enumerate(offsets) if a < end and b > start] for start, end in spans]
    if not all(places):
        return None
    layers = run_model(model, dict(encoded), frozenset(("hidden_states",))).hidden_states
    return torch.stack([torch.cat([of[0, at].mean(dim=0).float() for at in places]) for of in layers]).numpy()


def nearest(states: np.ndarray, of: int) -> list[tuple[int, float]]:
    """Returns the nearest other states `[n, H]` of one by the cosine, at most 3, the nearest first."""
    unit = states / np.maximum(np.linalg.norm(states, axis=1, keepdims=True), 1e-12)
    cosines = unit @ unit[of]
    order = [int(other) for other in np.argsort(-cosines, kind="stable") if other != of]
    return [(other, float(cosines[other])) for other in order[:NEAREST]]


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


TEST = 0.3  # Share of the rows that a probe is scored on, which are of other texts.


@dataclass(frozen=True)
class SpanPair:
    """Two spans of a text and what they are to each other.

    Attributes:
        first: the start of a span, and the character after its end.
        second: likewise.
    """

    text: str
    first: tuple[int, int]
    second: tuple[int, int]
    label: str


def read_spans(path: Path) -> list[SpanPair]:
    """Returns the rows of a JSONL file with `text`, `span1`, `span2` and `label`.

    Raises:
        UserError: for a row without them, or a span that is no part of its text.
    """
    rows = [_read_row(path, number, line) for number, line in enumerate(read_lines(path), start=1) if line.strip()]
    if len({row.label for row in rows}) < 2:
        raise UserError(f"{path} has no two labels of spans: expected rows with text, span1, span2 and label")
    return rows


def _read_row(path: Path, number: int, line: str) -> SpanPair:
    try:
        row = json.loads(line)
        text, label = row["text"], row["label"]
        [first, second] = [(int(start), int(end)) for start, end in (row["span1"], row["span2"])]
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f'{path}, line {number}: expected {{"text": ..., "span1": [start, end], "span2": [start, end], '
            '"label": ...}'
        ) from None
    for start, end in (first, second):
        if not 0 <= start < end <= len(text):
            raise UserError(f"{path}, line {number}: got the span [{start}, {end}] of a text of {len(text)} characters")
    return SpanPair(text, first, second, str(label))


@torch.inference_mode()
def probe_data(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Sequence[SpanPair], *, seed: int = 0
) -> tuple[Probed, int]:
    """Returns the states of the rows for probes, and how many rows have a span that was cut off.

    The state of two spans is that of both behind each other, each the mean of its pieces, `[2 * H]`.

    Raises:
        UserError: for spans of one text alone.
    """
    states, labels, texts = list[np.ndarray](), list[str](), list[str]()
    for row in rows:
        pooled = _read_spans(model, tokenizer, row.text, (row.first, row.second))
        if pooled is not None:
            states.append(pooled)
            labels.append(row.label)
            texts.append(row.text)
    classes = sorted(set(labels))
    numbers = np.array([classes.index(label) for label in labels])
    by_text = np.unique(texts, return_inverse=True)[1]
    held = hold_out(by_text, TEST, seed=seed)
    if held.all():
        raise UserError("inspect.spans has spans of one text, expected several: a probe is scored on others")
    train, test = (np.stack(states, axis=1)[:, chosen] for chosen in (~held, held))  # [N, n, 2 * H]
    probed = Probed(list(train), numbers[~held], list(test), numbers[held], control=None, texts=by_text[~held])
    return probed, len(rows) - len(labels)
