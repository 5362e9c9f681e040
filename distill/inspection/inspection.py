"""Asks all questions about one model, or about two beside each other."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from distill.console import ProgressMeter, print_notice
from distill.contracts import Batch
from distill.errors import UserError
from distill.inspection.attributions import Attribution, attribute
from distill.inspection.cloze import Cloze, Filled, fill_gaps, read_clozes
from distill.inspection.contexts import Neighbours, Occurrence, compare_contexts, find_occurrences
from distill.inspection.groups import LostGroup
from distill.inspection.lost import Difference, differences, lost_groups
from distill.inspection.masking import heads_of, score_without_heads
from distill.inspection.probes import LayerProbe, Mix, Probed, check_rows, control_labels, mix_layers, probe_layers
from distill.inspection.questions import Questions
from distill.inspection.relations import Parsed, SyntacticHead, find_syntactic_heads, read_parsed
from distill.inspection.similarity import compare_layers
from distill.inspection.spans import SpanPair, probe_data, read_spans
from distill.inspection.subjects import Seen, Subject, look, rows_loader, spaced_rows
from distill.inspection.view import AttentionView
from distill.installation import install_command
from distill.losses.objective import supervised_objective
from distill.models.checks import encoder_size, longest
from distill.models.forward import run_model
from distill.readers.lines import read_lines
from distill.teaching.importance import measure_importance
from distill.training.evaluate import dev_metrics, evaluate

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
    layers: Sequence[LayerProbe]
    mix: Mix | None


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
    attributions: Sequence[Attribution] = ()
    relations: Sequence[SyntacticHead] = ()
    probes: Sequence[LayerProbes] = ()
    clozes: Sequence[Filled] = ()
    neighbours: Sequence[Neighbours] = ()


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
    differences: Sequence[Difference] = ()
    similarity: np.ndarray | None = None
    before: np.ndarray | None = None


@dataclass(frozen=True)
class Material:
    """What the questions are asked of besides the split: the files that they name.

    Raises:
        UserError: for a file that cannot be used, or a word that is not in it.
    """

    parsed: Sequence[Parsed] = ()
    spans: Sequence[SpanPair] = ()
    occurrences: Sequence[Occurrence] = ()
    clozes: Sequence[Cloze] = ()

    @classmethod
    def read(cls, questions: Questions, subject: Subject, texts: Sequence[str]) -> "Material":
        corpus = questions.corpus
        if questions.word is not None and corpus is not None:
            texts = read_lines(Path(corpus))
        return cls(
            parsed=() if questions.relations is None else read_parsed(Path(questions.relations)),
            spans=() if questions.spans is None else read_spans(Path(questions.spans)),
            occurrences=() if questions.word is None else find_occurrences(questions.word, texts),
            clozes=read_clozes() if subject.task.info.classes_are_tokens and subject.task.info.raw_text else (),
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
        check_rows(rows, int(getattr(subject.model.config, "hidden_size", 0)))


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
            clozes=fill_gaps(model, tokenizer, self.material.clozes)[0],
            neighbours=compare_contexts(model, tokenizer, self.material.occurrences) if seen.states else (),
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

    def _attribute(self, batches: Sequence[Batch]) -> list[Attribution]:
        info = self.subject.task.info
        if not self.questions.attributions or not self.subject.data.labels or info.classes_are_tokens:
            return []
        if importlib.util.find_spec("captum") is None:
            print_notice(f"attributions are left out, because captum is not installed: {install_command('inspect')}")
            return []
        return [attribute(self.subject.model, self.subject.tokenizer, batch) for batch in batches]

    def _probe(self, seen: Seen) -> list[LayerProbes]:
        subject, questions, found = self.subject, self.questions, list[LayerProbes]()
        if not seen.states:
            return []
        if questions.probes and subject.has_classes:
            train = look(subject, "train", subject.train_rows(questions.probe_rows), heads=False)
            found.append(_fit_probes("labels of the task", _labelled(train, seen, of_words=subject.labels_words)))
        if self.material.spans:
            probed, cut = probe_data(subject.model, subject.tokenizer, self.material.spans)
            if cut:
                print_notice(f"{cut} of {len(self.material.spans)} pairs of spans are cut off for {subject.name}")
            found.append(_fit_probes("labels of spans", probed))
        return found


def _labelled(train: Seen, test: Seen, *, of_words: bool) -> Probed:
    """Returns the states of the items with a label, which are words or texts."""
    learn, score = (np.flatnonzero(of.scores.labels >= 0) for of in (train, test))
    labels, control = train.scores.labels[learn].astype(int), None
    if of_words:
        control = control_labels(train.groups[learn].tolist(), test.groups[score].tolist(), labels, seed=0)
    return Probed(
        [of[learn] for of in train.states], labels, [of[score] for of in test.states],
        test.scores.labels[score].astype(int), control, texts=train.scores.example_id[learn],
    )  # fmt: skip


def _fit_probes(of: str, probed: Probed) -> LayerProbes:
    return LayerProbes(of, len(probed.labels), probe_layers(probed), mix_layers(probed))
