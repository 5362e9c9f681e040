"""Asks all questions about one model, or about two beside each other, its heads and their relations among them."""

import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.console import ProgressMeter, print_notice
from distill.core.contracts import Batch
from distill.core.errors import UserError, install_command
from distill.core.options import STRICT
from distill.inspection import probes as probing
from distill.inspection.subjects import (
    AttentionView,
    ItemDifference,
    LostGroup,
    Seen,
    Subject,
    compare_layers,
    differences,
    look,
    lost_groups,
    rows_loader,
    spaced_rows,
)
from distill.losses.term import supervised_objective
from distill.models.compatibility import encoder_size, longest
from distill.models.forward import run_model
from distill.models.surgery.layers import head_size, list_layers, list_parts
from distill.rows.formats import read_lines
from distill.teachers.computation import measure_importance
from distill.training.module import dev_metrics, evaluate

Amount = Annotated[int, Field(ge=1)]


@checked_dataclass(frozen=True, config=STRICT)
class Questions:
    """The options of an inspection.

    Args:
        split: the split that the models run over.
        sentences: texts whose attention is shown; empty for the examples on which the models differ most.
        shown: so many of these.
        masked_rows: examples on which the metric is computed without each head; 0 leaves this out.
        probes: whether a linear probe of each layer is trained.
        probe_rows: items of train that it learns from, at most.
        spans: a JSONL file with `text`, `span1`, `span2` and `label`, for probes of two spans.
        relations: a CoNLL-U file, for heads that follow a relation of words.
        word: a word whose occurrences are compared; None for none.
        corpus: a text file with its occurrences, a sentence a line; None for the texts of the split.
        attributions: whether the pieces of the shown examples are weighed by gradients.
    """

    split: str = "dev"
    sentences: Sequence[str] = ()
    shown: Annotated[int, Field(ge=0)] = 8
    masked_rows: Annotated[int, Field(ge=0)] = 256
    probes: bool = True
    probe_rows: Amount = 3000
    spans: str | Path | None = None
    relations: str | Path | None = None
    word: str | None = None
    corpus: str | Path | None = None
    attributions: bool = True


KEPT_BYTES = 2**30  # Of the outputs of layers that are kept at once.


def heads_of(model: PreTrainedModel) -> list[int]:
    """Returns the number of heads of each layer; none for a layout whose heads cannot be told apart, as of a BiLSTM."""
    return [module.in_features // head_size(model) for module in _outputs(model)]


def _outputs(model: PreTrainedModel) -> Sequence[nn.Linear]:
    """Returns the layer that reads all heads, for each layer of the encoder."""
    try:
        parts = list_parts(model)
    except (AttributeError, UserError):
        return []
    return [part["attention.dense"] for part in parts]  # type: ignore[misc]


@contextmanager
def masked_head(model: PreTrainedModel, layer: int, head: int) -> Iterator[None]:
    """Replaces the output of one head by zeros (arXiv 1905.10650, equation 1).

    Args:
        layer: counted from 1.
        head: counted from 1.
    """
    size, [*outputs] = head_size(model), _outputs(model)
    chosen = slice((head - 1) * size, head * size)

    def mask(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        states = arguments[0].clone()  # [B, L, A * D]
        states[..., chosen] = 0.0
        return (states, *arguments[1:])

    handle = outputs[layer - 1].register_forward_pre_hook(mask)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def run_once(layers: Sequence[nn.Module]) -> Iterator[Callable[[], None]]:
    """Runs these layers in one pass over some batches, and gives their outputs again in each later pass over them.

    Yields:
        A function that begins the next pass. Its batches have to be the same ones in the same order.
    """
    kept: list[list[Any]] = [[] for _ in layers]
    places, size = [0] * len(layers), 0

    def replay(number: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            nonlocal size
            place, outputs = places[number], kept[number]
            places[number] += 1
            if place < len(outputs):
                return outputs[place]
            output = forward(*arguments, **named)
            states = output if isinstance(output, Tensor) else output[0]
            if place == len(outputs) and size + states.nbytes <= KEPT_BYTES:
                outputs.append(output)
                size += states.nbytes
            return output

        return run

    def rewind() -> None:
        places[:] = [0] * len(places)

    for number, layer in enumerate(layers):
        layer.forward = replay(number, layer.forward)
    try:
        yield rewind
    finally:
        for layer in layers:
            del layer.forward


@torch.no_grad()
def score_without_heads(model: PreTrainedModel, score: Callable[[], float]) -> list[list[float]]:
    """Returns the score of the model without each head, `[N][A]`.

    The layers below that of a head run for the first head alone.

    Args:
        score: runs the model over the same batches in the same order in each call.
    """
    found, layers = [], list_layers(model)
    are_shared = len({id(layer) for layer in layers}) < len(layers)
    for layer, heads in enumerate(heads_of(model), start=1):
        values = []
        with run_once([] if are_shared else layers[: layer - 1]) as rewind:
            for head in range(1, heads + 1):
                rewind()
                with masked_head(model, layer, head):
                    values.append(score())
        found.append(values)
    return found


LEAST = 20  # Words of a relation.
_COLUMNS = 10  # Of CoNLL-U: number, form, lemma, part of speech, tag, features, head, relation, further ones.


@dataclass(frozen=True)
class Parsed:
    """A parsed sentence.

    Attributes:
        words: of the sentence.
        heads: the word that each depends on, counted from 0; -1 for the root.
        relations: of each to its head, such as `obj`.
    """

    words: Sequence[str]
    heads: Sequence[int]
    relations: Sequence[str]


@dataclass(frozen=True)
class SyntacticHead:
    """The head of attention that follows a relation best (arXiv 1906.04341, section 4.2).

    Attributes:
        relation: such as `obj`.
        direction: `to head` or `to dependent`, from the word that looks.
        number: of the words with this relation.
        accuracy: share of the words whose largest weight is on the right word.
        baseline: that of the word at the most frequent distance.
        offset: this distance.
    """

    relation: str
    direction: str
    number: int
    layer: int
    head: int
    accuracy: float
    baseline: float
    offset: int


def read_parsed(path: Path) -> list[Parsed]:
    """Returns the sentences of a CoNLL-U file; words of several tokens and empty words are left out.

    Raises:
        UserError: for a file that is no CoNLL-U.
    """
    sentences, rows = [], list[list[str]]()
    for number, line in enumerate((*read_lines(path), ""), start=1):
        if line.strip() and not line.startswith("#"):
            cells = line.split("\t")
            if len(cells) != _COLUMNS:
                raise UserError(f"{path}, line {number}: got {len(cells)} columns, expected the {_COLUMNS} of CoNLL-U")
            if cells[0].isdecimal():
                rows.append(cells)
        elif rows and not line.strip():
            sentences.append(_read_sentence(path, number, rows))
            rows = []
    if not sentences:
        raise UserError(f"{path} has no sentences: expected CoNLL-U, whose words have {_COLUMNS} columns")
    return sentences


def _read_sentence(path: Path, number: int, rows: Sequence[Sequence[str]]) -> Parsed:
    """Returns the sentence that ends before a line."""
    try:
        heads = [int(row[6]) - 1 for row in rows]
    except ValueError:
        raise UserError(f"{path}, before line {number}: got no number of a head, expected one in column 7") from None
    if any(not -1 <= head < len(rows) for head in heads):
        raise UserError(f"{path}, before line {number}: got a head that is no word of the sentence")
    return Parsed([row[1] for row in rows], heads, [row[7].partition(":")[0] for row in rows])


def word_attention(weights: np.ndarray, word_ids: Sequence[int | None], words: int) -> np.ndarray:
    """Returns attention from word to word: the sum over pieces that are looked at, the mean over those that look.

    Args:
        weights: `[N, A, L, L]`.
        word_ids: the word of each token, `[L]`, None for special tokens.
        words: their number, W. A word without a token has zeros.

    Returns:
        `[N, A, W, W]`.
    """
    belongs = np.array([[word == number for number in range(words)] for word in word_ids], dtype=float)  # [L, W]
    mean = belongs / np.maximum(belongs.sum(axis=0), 1)
    return np.asarray(np.einsum("nalk,lw,kv->nawv", weights, mean, belongs, optimize=True))


@torch.inference_mode()
def find_syntactic_heads(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Parsed]
) -> list[SyntacticHead]:
    """Returns the best head for each relation with at least 20 words and each direction, the most accurate first."""
    hits: dict[tuple[str, str], np.ndarray] = {}
    offsets: dict[tuple[str, str], Counter[int]] = {}
    for sentence in sentences:
        encoded = tokenizer(list(sentence.words), is_split_into_words=True, truncation=True, return_tensors="pt")
        batch = {name: tensor for name, tensor in encoded.items() if isinstance(tensor, torch.Tensor)}
        layers = run_model(model, batch, frozenset(("attentions",))).attentions
        weights = torch.stack([of[0] for of in layers]).float().numpy()
        attention = word_attention(weights, encoded.word_ids(0), len(sentence.words))
        attention[
            ..., np.arange(len(sentence.words)), np.arange(len(sentence.words))
        ] = -1.0  # No word is its own head.
        largest = attention.argmax(axis=-1)  # [N, A, W]
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if head < 0:
                continue
            for direction, source, target in (("to head", word, head), ("to dependent", head, word)):
                key = (relation, direction)
                hits[key] = hits.get(key, np.zeros(largest.shape[:2])) + (largest[:, :, source] == target)
                offsets.setdefault(key, Counter())[target - source] += 1
    found = [_best(relation, direction, hits[relation, direction], of) for (relation, direction), of in offsets.items()]
    return sorted((head for head in found if head.number >= LEAST), key=lambda head: -head.accuracy)


def _best(relation: str, direction: str, hits: np.ndarray, offsets: Counter[int]) -> SyntacticHead:
    layer, head = np.unravel_index(int(hits.argmax()), hits.shape)
    number = offsets.total()
    [(offset, most)] = offsets.most_common(1)
    return SyntacticHead(
        relation, direction, number, int(layer) + 1, int(head) + 1, float(hits.max()) / number, most / number, offset
    )


BATCHES = 50  # Of train, by whose gradients heads are ranked.


@dataclass(frozen=True)
class LayerProbes:
    """The probes of the layers of a model.

    Attributes:
        of: what they read: the labels of the task, or those of spans.
        rows: that they learned from.
        mix: None for layers of different widths.
    """

    of: str
    rows: int
    layers: Sequence[probing.LayerProbe]
    mix: probing.Mix | None


@dataclass(frozen=True)
class Looked:
    """What was seen in one model.

    Attributes:
        metrics: of the split.
        importance: of the heads of each layer, `[N][A]`, in each layer of the Euclidean norm 1.
        whole: the metric on the examples on which heads are masked; None if they are not.
        masked: it without each head, `[N][A]`.
        views: the attention in the shown sentences.
        attributions: of the predictions for these.
    """

    subject: Subject
    seen: Seen
    metrics: Mapping[str, float]
    importance: Sequence[Sequence[float]] = ()
    whole: float | None = None
    masked: Sequence[Sequence[float]] = ()
    views: Sequence[AttentionView] = ()
    attributions: Sequence[probing.Attribution] = ()
    relations: Sequence[SyntacticHead] = ()
    probes: Sequence[LayerProbes] = ()
    clozes: Sequence[probing.FilledGap] = ()
    neighbours: Sequence[probing.Neighbours] = ()


@dataclass(frozen=True)
class Inspection:
    """The answers about one model or two.

    Attributes:
        sentences: those that are shown.
        agreement: share of the items that both predict alike; None for one model.
        groups: what the second model loses.
        differences: the examples on which they differ most.
        similarity: the CKA of their layers, `[N, M]`.
        before: the same with the second model as it was before its training; None if it is not known.
    """

    split: str
    models: Sequence[Looked] = ()
    sentences: Sequence[str] = ()
    agreement: float | None = None
    groups: Sequence[LostGroup] = ()
    differences: Sequence[ItemDifference] = ()
    similarity: np.ndarray | None = None
    before: np.ndarray | None = None


@dataclass(frozen=True)
class Material:
    """What the questions are asked of besides the split: the files that they name.

    Raises:
        UserError: for a file that cannot be used, or a word that is not in it.
    """

    parsed: Sequence[Parsed] = ()
    spans: Sequence[probing.SpanPair] = ()
    occurrences: Sequence[probing.Occurrence] = ()
    clozes: Sequence[probing.Cloze] = ()

    @classmethod
    def read(cls, questions: Questions, subject: Subject, texts: Sequence[str]) -> "Material":
        corpus = questions.corpus
        if questions.word is not None and corpus is not None:
            texts = read_lines(Path(corpus))
        return cls(
            parsed=() if questions.relations is None else read_parsed(Path(questions.relations)),
            spans=() if questions.spans is None else probing.read_spans(Path(questions.spans)),
            occurrences=() if questions.word is None else probing.find_occurrences(questions.word, texts),
            clozes=probing.read_clozes() if subject.task.info.classes_are_tokens and subject.task.info.raw_text else (),
        )


def inspect_models(subjects: Sequence[Subject], questions: Questions, *, before: Subject | None = None) -> Inspection:
    """Returns the answers about one model, or about a teacher and its student.

    Args:
        subjects: one model, or two of the same task.
        before: the second one before its training.

    Raises:
        UserError: for a file, a sentence or a split of which the questions cannot be asked.
    """
    first, split = subjects[0], questions.split
    rows = np.arange(len(first.split(split)))
    texts = first.texts(split)
    material = Material.read(questions, first, texts)
    for subject in subjects:
        _check(subject, questions)
    seen = [look(subject, split, rows) for subject in subjects]
    found = Inspection(split)
    if len(subjects) == 2:
        found = _compare(found, first, seen, texts, questions.shown)
    if before is not None:
        untrained = look(before, split, rows, heads=False)
        found = replace(found, before=compare_layers(seen[0].states, untrained.states))
    shown = [of.row for of in found.differences] or list(range(min(len(texts), questions.shown)))
    models = [
        _Observer(subject, questions, rows, _first_examples(subject, of, shown), material).look_closer(of)
        for subject, of in zip(subjects, seen, strict=True)
    ]
    return replace(found, models=models, sentences=list(questions.sentences) or [texts[row] for row in shown])


def _first_examples(subject: Subject, seen: Seen, rows: Sequence[int]) -> list[int]:
    """Returns the first example of each of these rows, which may have several, as a question has windows."""
    of_items = subject.data.scoring.rows(seen.scores)
    first = dict(reversed(list(zip(of_items.tolist(), seen.scores.example_id.tolist(), strict=True))))
    return [first.get(row, row) for row in rows]


def _check(subject: Subject, questions: Questions) -> None:
    """Raises UserError for sentences that a model cannot read, and for probes of too few rows, before anything runs."""
    limit = longest(subject.model, subject.tokenizer)
    for sentence in questions.sentences:
        length = len(subject.tokenizer(sentence)["input_ids"])
        if length > limit:
            raise UserError(
                f"a sentence of inspect.sentences has {length} tokens, and {subject.name} reads {limit} at most: cut it"
            )
    if questions.probes and subject.has_classes:
        rows = min(questions.probe_rows, subject.items_of_train())
        probing.check_rows(rows, int(getattr(subject.model.config, "hidden_size", 0)))


def _compare(found: Inspection, first: Subject, seen: Sequence[Seen], texts: Sequence[str], shown: int) -> Inspection:
    """Returns the inspection with what compares the two models."""
    data = first.data
    teacher, student = (of.scores for of in seen)
    if first.task.info.classes_are_tokens and not np.array_equal(teacher.labels, student.labels):
        print_notice("the models have different tokens to predict, so that only what is asked of each is compared")
        return found
    return replace(
        found, agreement=data.scoring.agreement(student, teacher), groups=lost_groups(data, teacher, student, texts),
        differences=differences(first, teacher, student, texts, shown),
        similarity=compare_layers(seen[0].states, seen[1].states),
    )  # fmt: skip


@dataclass(frozen=True)
class _Observer:
    """Asks one model the questions that need more than one pass over the split.

    Args:
        rows: the examples of the split.
        shown: those that are shown.
    """

    subject: Subject
    questions: Questions
    rows: np.ndarray
    shown: Sequence[int]
    material: Material

    def look_closer(self, seen: Seen) -> Looked:
        subject, model, tokenizer = self.subject, self.subject.model, self.subject.tokenizer
        scoring = subject.data.scoring
        whole, masked = self._mask_heads()
        batches = self._shown_batches() if subject.has_attention else []
        return Looked(
            subject, seen, metrics=dev_metrics(scoring, seen.scores), importance=self._rank_heads(), whole=whole,
            masked=masked, views=[self._view(batch) for batch in batches],
            attributions=self._attribute(batches), probes=self._probe(seen),
            relations=find_syntactic_heads(model, tokenizer, self.material.parsed) if subject.has_attention else (),
            clozes=probing.fill_gaps(model, tokenizer, self.material.clozes),
            neighbours=probing.compare_contexts(model, tokenizer, self.material.occurrences) if seen.states else (),
        )  # fmt: skip

    def _rank_heads(self) -> Sequence[Sequence[float]]:
        """Returns the importance of heads by the gradient on train; none for other layouts and data without labels."""
        subject = self.subject
        if not heads_of(subject.model) or not subject.data.terms:
            return ()
        objective = supervised_objective(subject.data.terms, task=subject.task.info.name)
        size = encoder_size(subject.model)
        objective.connect(size, size)
        loader = rows_loader(subject.split("train"), subject.train_rows(BATCHES * 32))
        found = measure_importance(subject.model, subject.task, objective, loader, batches=BATCHES)
        return [of.tolist() for of in found.heads]

    def _mask_heads(self) -> tuple[float | None, Sequence[Sequence[float]]]:
        """Returns the metric with all heads and without each, on some of the rows."""
        subject, most = self.subject, self.questions.masked_rows
        heads = sum(heads_of(subject.model))
        if not most or not heads:
            return None, ()
        scoring = subject.data.scoring
        chosen = self.rows[spaced_rows(len(self.rows), most)]
        loader = list(rows_loader(subject.split(self.questions.split), chosen))
        with ProgressMeter(f"{subject.name} without a head", heads + 1, unit="heads", transient=True) as meter:

            def score() -> float:
                meter.advance(1)
                return dev_metrics(scoring, evaluate(subject.model, subject.task, scoring, loader))[scoring.metric]

            return score(), score_without_heads(subject.model, score)

    def _shown_batches(self) -> list[Batch]:
        """Returns each shown sentence, or the first sequence of tokens of each shown example, as a batch of one."""
        subject, found = self.subject, list[Batch]()
        if self.questions.sentences:
            return [dict(subject.tokenizer(text, return_tensors="pt")) for text in self.questions.sentences]
        for row in self.shown:
            batch = subject.split(self.questions.split)[[row]]
            names = ("input_ids", "attention_mask", "token_type_ids")
            kept = batch["attention_mask"][0].bool()
            found.append({name: batch[name][:1, kept] for name in names if name in batch})
        return found

    @torch.inference_mode()
    def _view(self, batch: Batch) -> AttentionView:
        output = run_model(self.subject.model, batch, frozenset(("attentions",)))
        tokens = self.subject.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
        return AttentionView.of([of[0] for of in output.attentions], tokens)

    def _attribute(self, batches: Sequence[Batch]) -> list[probing.Attribution]:
        info = self.subject.task.info
        if not self.questions.attributions or not self.subject.data.labels or info.classes_are_tokens:
            return []
        if importlib.util.find_spec("captum") is None:
            print_notice(f"attributions are left out, because captum is not installed: {install_command('inspect')}")
            return []
        return [probing.attribute(self.subject.model, self.subject.tokenizer, batch) for batch in batches]

    def _probe(self, seen: Seen) -> list[LayerProbes]:
        subject, questions, found = self.subject, self.questions, list[LayerProbes]()
        if not seen.states:
            return []
        if questions.probes and subject.has_classes:
            train = look(subject, "train", subject.train_rows(questions.probe_rows), heads=False)
            found.append(_fit_probes("labels of the task", _labelled(train, seen, of_words=subject.labels_words)))
        if self.material.spans:
            probed, cut = probing.probe_data(subject.model, subject.tokenizer, self.material.spans)
            if cut:
                print_notice(f"{cut} of {len(self.material.spans)} pairs of spans are cut off for {subject.name}")
            found.append(_fit_probes("labels of spans", probed))
        return found


def _labelled(train: Seen, test: Seen, *, of_words: bool) -> probing.Probed:
    """Returns the states of the items with a label, which are words or texts."""
    learn, score = (np.flatnonzero(of.scores.labels >= 0) for of in (train, test))
    labels, control = train.scores.labels[learn].astype(int), None
    if of_words:
        control = probing.control_labels(train.groups[learn].tolist(), test.groups[score].tolist(), labels, seed=0)
    return probing.Probed(
        [of[learn] for of in train.states], labels, [of[score] for of in test.states],
        test.scores.labels[score].astype(int), control, texts=train.scores.example_id[learn],
    )  # fmt: skip


def _fit_probes(of: str, probed: probing.Probed) -> LayerProbes:
    return LayerProbes(of, len(probed.labels), probing.probe_layers(probed), probing.mix_layers(probed))
