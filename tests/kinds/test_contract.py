"""Tests of the contract of every task over a toy model: its items, outputs and scores."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForPreTraining,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
)

from distill import kinds as tasks
from distill.core.contracts import IGNORED, Items, Scores, Task
from distill.core.errors import UserError
from distill.data.retrieval import Judgements
from distill.kinds import (
    CLASSES,
    CausalLM,
    Classification,
    Embedding,
    MaskedLM,
    MultipleChoice,
    MultiTask,
    Regression,
    ReplacedTokenDetection,
    Reranking,
    TokenClassification,
    find_auto_class,
)
from distill.kinds.autoregressive import NextTokenScores
from distill.kinds.classification import LabelSets, OneClass
from distill.kinds.masked_lm import DetectionScores, TokenScores
from distill.kinds.multiple_choice import ChoiceScores
from distill.kinds.regression import NumberScores
from distill.kinds.reranking import CandidateScores, Lists
from distill.kinds.scoring import Scoring
from distill.kinds.token_classification import TagScores
from distill.kinds.vector_scores import PairScores
from distill.models.forward import configure
from distill.models.generator import GeneratorOptions
from distill.text.vocabulary import train_word_pieces
from distill.training.module import evaluate

VOCABULARY = 60
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 64, "max_position_embeddings": 80, "initializer_range": 0.3}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A task, its scoring, a model with its head, the width of the logits, and whether tokens are the items.

    These are the chosen ones, or every token.
    """

    task: Task
    scoring: Scoring
    build: Callable[[], PreTrainedModel]
    classes: int
    of_tokens: bool = False
    of_every_token: bool = False

    def model(self) -> PreTrainedModel:
        torch.manual_seed(0)
        model = self.build().eval()
        configure(model, self.task.info.model_settings)
        return model


def classifier(labels: int) -> Callable[[], PreTrainedModel]:
    return lambda: BertForSequenceClassification(BertConfig(**SMALL, num_labels=labels))


def gpt2() -> PreTrainedModel:
    config = {name: SMALL[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
    return GPT2LMHeadModel(GPT2Config(**config, n_positions=80, bos_token_id=0, eos_token_id=0, initializer_range=0.3))


def detector() -> PreTrainedModel:
    """Returns a discriminator with its generator."""
    discriminator = BertForTokenClassification(BertConfig(**SMALL, num_labels=2))
    return GeneratorOptions().join(discriminator, train_word_pieces(["a word"], VOCABULARY))


# Three queries with at most four candidates, as `batch_of` has them.
FOUR_OF_FIVE = Lists(
    Judgements(({0: 1}, {4: 2, 1: 1}, {3: 1}), tuple("abcde")), ((0, 1, 2, 3), (1, 0), (4, 3, 0))
)  # fmt: skip
CLM, MLM, RTD, SEGMENTS = CausalLM(), MaskedLM(), ReplacedTokenDetection(), MaskedLM(packing="segment_pair", pair="nsp")
CASES = {
    "classification": Case(Classification(text="text"), OneClass(("accuracy",)), classifier(3), 3),
    "pair": Case(Classification(text=["one", "two"]), OneClass(("accuracy", "f1")), classifier(2), 2),
    "labels": Case(
        Classification(text="text", multi_label=True), LabelSets(("micro_f1",), separator="|"), classifier(3), 3
    ),
    "regression": Case(Regression(text="text"), NumberScores(("pearson",)), classifier(1), 1),
    "tags": Case(
        TokenClassification(),
        TagScores(("O", "B-x", "I-x")),
        lambda: BertForTokenClassification(BertConfig(**SMALL, num_labels=3)),
        3,
        of_tokens=True,
    ),
    "choices": Case(
        MultipleChoice(train={"question": []}), ChoiceScores(), lambda: BertForMultipleChoice(BertConfig(**SMALL)), 4
    ),
    "reranking": Case(Reranking(data_dir="."), CandidateScores(("ndcg@10",), data=FOUR_OF_FIVE), classifier(1), 4),
    "vectors": Case(
        Embedding(train={"text": []}), PairScores(("spearman",)), lambda: BertModel(BertConfig(**SMALL)), 32
    ),
    "masked_lm": Case(
        MLM, TokenScores(MLM.settings), lambda: BertForMaskedLM(BertConfig(**SMALL)), VOCABULARY, of_tokens=True
    ),
    "replaced_tokens": Case(RTD, DetectionScores(RTD.settings), detector, 2, of_tokens=True, of_every_token=True),
    "causal_lm": Case(CLM, NextTokenScores(CLM.settings), gpt2, VOCABULARY, of_tokens=True),
    "segments": Case(
        SEGMENTS,
        TokenScores(SEGMENTS.settings),
        lambda: BertForPreTraining(BertConfig(**SMALL)),
        VOCABULARY,
        of_tokens=True,
    ),
}
every_task = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def batch_of(case: Case, *, first: int = 0, padding: int = 0) -> dict[str, Tensor]:
    """Returns three examples of at most seven tokens, the second one shorter, with `padding` more columns.

    Of choices and candidates the examples have four, two and three, and so many sequences. Of vectors they have two
    texts each.
    """
    random = torch.Generator().manual_seed(first)
    takes_choices = case.task.info.kind in ("multiple_choice", "reranking")
    takes_texts = case.task.info.kind == "embedding"
    valid = torch.arange(4) < torch.tensor([2, 2, 2] if takes_texts else [4, 2, 3])[:, None]
    has_sequences = takes_choices or takes_texts
    ids = torch.randint(5, VOCABULARY, (int(valid.sum()) if has_sequences else 3, 7), generator=random)
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    if case.of_tokens:
        predicted = (torch.rand(ids.shape, generator=random) < 0.4) & mask.bool()
        targets = ids % case.classes
        if case.task.info.kind == "causal_lm":  # Each token but the last of an example predicts the next one.
            predicted, targets = F.pad(mask[:, 1:], (0, 1)).bool(), ids.roll(-1, dims=1)
        labels = F.pad(targets.masked_fill(~predicted, IGNORED), (0, padding), value=IGNORED)
    elif case.task.info.likelihood in ("gaussian", "vector"):
        labels = torch.tensor([0.5, -100.0, 2.0])  # As a number, -100 is an ordinary label.
    elif case.task.info.likelihood == "sigmoid":
        labels = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    else:
        labels = torch.tensor([0, 1, 2 if takes_choices else case.classes - 1])
    batch = {
        "input_ids": F.pad(ids, (0, padding)), "attention_mask": F.pad(mask, (0, padding)), "labels": labels,
        "example_id": torch.tensor([first + 2, first, first + 1]),
    }  # fmt: skip
    if has_sequences:
        batch["valid"] = valid
    if case.task.info.pair:
        batch["token_type_ids"] = (batch["attention_mask"].cumsum(dim=-1) > 3).long() * batch["attention_mask"]
    if case.task.info.pair and case.task.info.classes_are_tokens:
        batch["pair_labels"] = torch.tensor([0, 1, 1])
    return batch


def columns_of(items: Items) -> dict[str, Any]:
    names = ("row", "labels", "labelled", "index", "chosen", "weights", "valid")
    return {name: getattr(items, name) for name in names if getattr(items, name) is not None}


@every_task
def test_items_depend_only_on_the_batch(case: Case) -> None:
    batch = batch_of(case)
    first, again = case.task.select(batch), case.task.select({name: tensor.clone() for name, tensor in batch.items()})
    for name, column in columns_of(first).items():
        assert len(column) == len(first), name
        assert torch.equal(column, columns_of(again)[name]), name
    assert first.labelled.all() != case.of_every_token
    assert first.likelihood == case.task.info.likelihood
    assert first.classes_are_tokens == case.task.info.classes_are_tokens
    assert torch.equal(first.example_id(), batch["example_id"][first.row])
    assert torch.equal(first["attention_mask"], batch["attention_mask"])
    if case.of_tokens:
        chosen = batch["attention_mask"] == 1 if case.of_every_token else batch["labels"] != IGNORED
        assert len(first) == int(chosen.sum()) > 3
        assert first.index is not None
        assert torch.equal(first.labels, batch["labels"].flatten()[first.index])
    else:
        assert first.row.tolist() == ([0, 0, 1, 1, 2, 2] if case.task.info.likelihood == "vector" else [0, 1, 2])
        assert torch.equal(first.labels, batch["labels"][first.row])


def test_an_example_without_a_class_is_an_item_without_a_label() -> None:
    case = CASES["classification"]
    items = case.task.select(batch_of(case) | {"labels": torch.tensor([0, IGNORED, 2])})
    assert items.labelled.tolist() == [True, False, True]


@every_task
def test_every_token_adds_items_only_over_a_vocabulary(case: Case) -> None:
    batch = batch_of(case)
    few, every = case.task.select(batch), case.task.select(batch).with_every_token()
    if not case.task.info.classes_are_tokens:
        assert (len(every), every.chosen) == (len(few), None)
        return
    assert len(every) == int(batch["attention_mask"].sum())
    assert every.chosen is not None
    assert torch.equal(every.chosen, every.labels != IGNORED)
    for name, column in columns_of(few).items():
        assert torch.equal(columns_of(every)[name][every.chosen], column), name


@every_task
@pytest.mark.parametrize("every_token", [False, True])
def test_outputs_have_a_row_for_each_item(case: Case, every_token: bool) -> None:
    batch = batch_of(case)
    items = case.task.select(batch).with_every_token() if every_token else case.task.select(batch)
    outputs = case.task.run(case.model(), batch, items, frozenset({"hidden_states"}))
    assert outputs.at(items).logits.shape == (len(items), case.classes)
    whole = outputs.whole()
    assert whole.logits is None
    assert whole.hidden_states is not None
    assert [states.shape for states in whole.hidden_states] == [(*batch["input_ids"].shape, 32)] * 3
    assert (whole.segment_logits is not None) == ("pair_labels" in batch)


@every_task
def test_parts_of_the_items_have_the_logits_of_the_whole(case: Case) -> None:
    batch = batch_of(case)
    items = case.task.select(batch)
    with torch.no_grad():
        outputs = case.task.run(case.model(), batch, items, frozenset())
        whole = outputs.at(items).logits
        for cut in range(len(items) + 1):
            parts = [items.part(0, cut), items.part(cut, len(items))]
            torch.testing.assert_close(torch.cat([outputs.at(part).logits for part in parts]), whole)
            for name, column in columns_of(items).items():
                assert torch.equal(torch.cat([columns_of(part)[name] for part in parts]), column), name
        inner = items.part(1, len(items)).part(1, 2)  # A part of a part.
        assert inner.first == 2
        torch.testing.assert_close(outputs.at(inner).logits, whole[2:3])


@every_task
def test_a_score_has_a_row_for_each_item(case: Case) -> None:
    batch = batch_of(case)
    items = case.task.select(batch)
    with torch.no_grad():
        outputs = case.task.run(case.model(), batch, items, frozenset()).at(items)
    columns = case.scoring.score(outputs, items)
    assert columns
    assert all(len(column) == len(items) for column in columns.values())
    if not case.scoring.compares_with_teacher:
        assert columns["logits"].dtype == torch.float32
        return
    compared = case.scoring.compare(columns, outputs)
    assert all(len(column) == len(items) for column in compared.values())
    assert compared["agreement_top1"].all()
    assert compared["agreement_top5"].all()


@every_task
def test_an_evaluation_concatenates_the_items_of_all_batches(case: Case) -> None:
    batches = [batch_of(case, first=first) for first in (3, 0)]
    model = case.model().train()
    scores = evaluate(model, case.task, case.scoring, [[batches[0]], [batches[1]]])
    assert model.training
    items = [case.task.select(batch) for batch in batches]
    assert np.array_equal(scores.labels, torch.cat([of_batch.labels for of_batch in items]))
    assert np.array_equal(scores.example_id, torch.cat([of_batch.example_id() for of_batch in items]))
    assert all(len(column) == len(scores.labels) for column in scores.columns.values())
    ordered = scores.by_example()
    assert sorted(set(ordered.example_id)) == list(range(6))
    assert (np.diff(ordered.example_id) >= 0).all()
    metrics, of_ordered = case.scoring.metrics(scores), case.scoring.metrics(ordered)
    assert metrics == pytest.approx(of_ordered, rel=1e-5)
    assert case.scoring.metric in metrics
    assert case.scoring.agreement(ordered, ordered) == 1.0
    assert case.scoring.probability_diff(ordered, ordered) == 0.0
    error = case.scoring.calibration_error(ordered)
    assert error is None or 0 <= error <= 1


def test_the_order_of_segments_is_scored_once_a_pair() -> None:
    """Two of three pairs are right, and they have different numbers of predicted tokens."""
    columns = {
        "loss": np.zeros(6), "correct": np.ones(6),
        "pair_correct": np.array([True, True, True, True, False, True]),
    }  # fmt: skip
    scores = Scores(columns, np.zeros(6, int), np.array([7, 7, 7, 7, 2, 5]))
    assert CASES["segments"].scoring.metrics(scores)["nsp_accuracy"] == pytest.approx(2 / 3)


def test_scores_by_example_keep_the_items_of_an_example_in_order() -> None:
    columns = {"logits": np.arange(10).reshape(5, 2), "loss": np.arange(5)}
    ordered = Scores(columns, np.array([10, 11, 12, 13, 14]), np.array([2, 0, 2, 1, 0])).by_example()
    assert ordered.example_id.tolist() == [0, 0, 1, 2, 2]
    assert ordered.labels.tolist() == [11, 14, 13, 10, 12]
    assert ordered.columns["loss"].tolist() == [1, 4, 3, 0, 2]
    assert ordered.columns["logits"].tolist() == [[2, 3], [8, 9], [6, 7], [0, 1], [4, 5]]


def test_every_class_names_its_kinds_and_no_two_classes_share_one() -> None:
    kinds = [kind for each in CLASSES for kind in each.kinds]
    assert len(set(kinds)) == len(kinds) >= len(CLASSES)
    assert all(find_auto_class(kind) == each.auto_class for each in CLASSES for kind in each.kinds)
    assert {getattr(tasks, name) for name in tasks.__all__} == {*CLASSES, MultiTask}


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UserError, match="got the kind of task sequence, expected one of bidirectional_lm, causal_lm,"):
        find_auto_class("sequence")
