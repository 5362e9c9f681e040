"""Tests of a cross-encoder that teaches an encoder of single texts: its scores, the terms on them, and a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from transformers import BertForSequenceClassification, PreTrainedTokenizerBase

import distill as d
from distill.core.contracts import CROSS_SCORES, Items, Outputs
from distill.core.errors import UserError
from distill.data.splits import text_split
from distill.kinds import Embedding, Reranking, embedding
from distill.kinds.embedding import CrossEncoder
from distill.models.loading import load_directory
from tests.conftest import BAD, GOOD, toy_bert
from tests.kinds.test_embedding import pairs
from tests.kinds.test_translations import QUICK

PAIRS = [[GOOD[0], BAD[0]], [BAD[1], GOOD[1]], [GOOD[0], GOOD[1]]]
TRIPLES = [[GOOD[0], GOOD[1], BAD[0]], [BAD[1], BAD[0], GOOD[1]]]


def write_model(directory: Path, tokenizer: PreTrainedTokenizerBase, **options: Any) -> BertForSequenceClassification:
    """Writes a model of pairs; `num_labels` is the number of its outputs."""
    config = toy_bert(len(tokenizer), layers=1).config
    config.update(options)
    torch.manual_seed(1)
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return model


def logits_of(model: BertForSequenceClassification, tokenizer: PreTrainedTokenizerBase, rows: Any) -> np.ndarray:
    """Returns the logits of pairs, one at a time."""
    with torch.no_grad():
        return np.array([model(**tokenizer(*row, return_tensors="pt")).logits[0].tolist() for row in rows])


def test_the_scores_are_those_of_the_model_and_computed_once(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "model", tokenizer)
    encoder, cache = CrossEncoder(tmp_path / "model", 48), tmp_path / "cache"
    encoder.check(PAIRS)
    scores = encoder.score(PAIRS, 0.0, 1.0, cache)
    expected = torch.softmax(torch.tensor(logits_of(model, tokenizer, PAIRS)), dim=-1)[:, 1]
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    margins = encoder.score(TRIPLES, 0.0, 1.0, cache)
    loaded = load_directory(tmp_path / "model", "AutoModelForSequenceClassification", None, trust_remote_code=False)
    loaded.model.train()  # Its dropout is not of the scores.
    texts = text_split(*(list(side) for side in zip(*PAIRS, strict=True)))
    fresh = embedding.cached_outputs(loaded, tmp_path / "model", texts, 48, None, "a")
    np.testing.assert_allclose(fresh, logits_of(model, tokenizer, PAIRS), atol=1e-5)
    odds = [np.diff(logits_of(model, tokenizer, [(of[0], of[side]) for of in TRIPLES]))[:, 0] for side in (1, 2)]
    np.testing.assert_allclose(margins, odds[0] - odds[1], atol=1e-5)
    [entry, _] = (cache / "frozen_outputs").iterdir()
    with monkeypatch.context() as patched:
        patched.setattr(embedding, "_compute_outputs", None)
        assert encoder.score(PAIRS, 0.0, 1.0, cache).tolist() == scores.tolist()
    for entry in (cache / "frozen_outputs").iterdir():
        (entry / "outputs.npy").write_bytes(b"damaged")
    np.testing.assert_allclose(encoder.score(PAIRS, 0.0, 1.0, cache), scores, atol=1e-6)
    np.testing.assert_allclose(encoder.score(PAIRS, 0.0, 1.0, None), scores, atol=1e-6)


def test_numbers_are_shares_of_the_range_of_the_data(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    model = write_model(tmp_path, tokenizer, num_labels=1, problem_type="regression")
    numbers = logits_of(model, tokenizer, PAIRS)[:, 0]
    low, high = numbers.min() - 1e-3, np.sort(numbers)[1] + 1e-3
    expected = np.clip((numbers - low) / (high - low), 0, 1)
    np.testing.assert_allclose(CrossEncoder(tmp_path, 48).score(PAIRS, low, high, None), expected, atol=1e-3)
    with pytest.raises(UserError, match=r"gives 100% of the pairs of train numbers outside of the data's scores, 50 t"):
        CrossEncoder(tmp_path, 48).score(PAIRS, 50.0, 60.0, None)


SIGMOID = "torch.nn.modules.activation.Sigmoid"


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ({"sentence_transformers": {"activation_fn": SIGMOID, "version": "5.1.0"}}, {}),
        ({"sbert_ce_default_activation_function": SIGMOID}, {}),
        ({}, {"model_type": "CrossEncoder", "activation_fn": SIGMOID}),
        ({}, {"model_type": "CrossEncoder"}),  # The default of a single logit.
    ],
)
def test_the_logit_of_a_cross_encoder_of_sentence_transformers_is_that_of_a_probability(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, options: dict[str, Any], files: dict[str, str]
) -> None:
    model = write_model(tmp_path, tokenizer, num_labels=1, **options)
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(files))
    encoder, logits = CrossEncoder(tmp_path, 48), torch.tensor(logits_of(model, tokenizer, PAIRS)[:, 0])
    np.testing.assert_allclose(encoder.score(PAIRS, 0.0, 5.0, None), torch.sigmoid(logits), atol=1e-5)
    first, second = (logits_of(model, tokenizer, [(of[0], of[side]) for of in TRIPLES])[:, 0] for side in (1, 2))
    np.testing.assert_allclose(encoder.score(TRIPLES, 0.0, 5.0, None), first - second, atol=1e-5)
    start = load_directory(tmp_path, "AutoModelForSequenceClassification", ["score"], trust_remote_code=False)
    assert (start.fits, start.reason) == (
        False, "its number is Sigmoid of a logit (activation_fn), and the task is for the logit itself",
    )  # fmt: skip
    of_scores = Reranking(data_dir=tmp_path).info.model_settings["problem_type"]
    ranker = load_directory(
        tmp_path, "AutoModelForSequenceClassification", ["score"], trust_remote_code=False, problem_type=of_scores
    )
    assert ranker.fits


def test_the_meaning_of_a_single_output_is_not_guessed(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    write_model(tmp_path, tokenizer, num_labels=1)
    with pytest.raises(UserError, match=r"has one output and neither problem_type nor activation_fn in its config"):
        CrossEncoder(tmp_path, 48).score(PAIRS, 0.0, 1.0, None)
    assert len(CrossEncoder(tmp_path, 48).score(TRIPLES, 0.0, 1.0, None)) == 2  # Margins of either are the same.
    write_model(tmp_path, tokenizer, num_labels=1, sentence_transformers={"activation_fn": "torch.nn.Tanh"})
    with pytest.raises(UserError, match=r"has one output and activation_fn Tanh in its config.json, so that it may be"):
        CrossEncoder(tmp_path, 48).score(PAIRS, 0.0, 1.0, None)
    identity = {"activation_fn": "torch.nn.modules.linear.Identity"}
    model = write_model(tmp_path, tokenizer, num_labels=1, sentence_transformers=identity)
    shares = (logits_of(model, tokenizer, PAIRS)[:, 0] + 4) / 8
    np.testing.assert_allclose(CrossEncoder(tmp_path, 48).score(PAIRS, -4.0, 4.0, None), shares, atol=1e-5)


@pytest.mark.parametrize(
    ("names", "positive"),
    [
        (("entailment", "not_entailment"), 0),
        (("not_duplicate", "duplicate"), 1),
        (("Relevant", "irrelevant"), 0),
        (("1", "0"), 0),
        (("contradiction", "entailment"), 1),
        (("LABEL_0", "LABEL_1"), 1),
    ],
)
def test_the_class_of_similar_texts_is_found_by_its_name(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, names: tuple[str, ...], positive: int
) -> None:
    model = write_model(tmp_path, tokenizer, id2label=dict(enumerate(names)))
    expected = torch.softmax(torch.tensor(logits_of(model, tokenizer, PAIRS)), dim=-1)[:, positive]
    np.testing.assert_allclose(CrossEncoder(tmp_path, 48).score(PAIRS, 0.0, 1.0, None), expected, atol=1e-5)


@pytest.mark.parametrize("names", [("red", "blue"), ("not_similar", "not_equal")])
def test_classes_whose_names_do_not_tell_are_refused(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, names: tuple[str, ...]
) -> None:
    write_model(tmp_path, tokenizer, id2label=dict(enumerate(names)))
    with pytest.raises(
        UserError, match=rf"has the classes {' and '.join(names)}, which do not say which of them means"
    ):
        CrossEncoder(tmp_path, 48).score(PAIRS, 0.0, 1.0, None)


def test_a_prompt_of_a_cross_encoder_is_refused(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    write_model(tmp_path, tokenizer)
    files = {"model_type": "CrossEncoder", "prompts": {"query": "find "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(files))
    with pytest.raises(UserError, match="begins the first text of a pair with the prompt 'find ', which is not added"):
        CrossEncoder(tmp_path, 48).score(PAIRS, 0.0, 1.0, None)


def test_models_and_groups_that_cannot_be_scored_are_named(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"task.cross_encoder=.*nowhere is no directory, expected one with config.json"):
        Embedding(train=pairs(4), dev=pairs(4), cross_encoder=tmp_path / "nowhere").read(tmp_path)
    write_model(tmp_path / "three", tokenizer, num_labels=3)
    encoder = CrossEncoder(tmp_path / "three", 48)
    with pytest.raises(UserError, match=r"three does not score pairs: it has 3 outputs, expected a trained head with"):
        encoder.score(PAIRS, 0.0, 1.0, None)
    with pytest.raises(UserError, match=r"train has groups of 2 and 3 texts, and task.cross_encoder scores pairs, or"):
        encoder.check([*PAIRS, *TRIPLES])
    toy_bert(len(tokenizer), layers=1).bert.save_pretrained(tmp_path / "none")
    tokenizer.save_pretrained(tmp_path / "none")
    with pytest.raises(UserError, match=r"none does not score pairs: its head is"):
        CrossEncoder(tmp_path / "none", 48).score(PAIRS, 0.0, 1.0, None)


def items_of(targets: list[float] | None, counts: list[int]) -> Items:
    valid = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    batch = {
        "valid": valid, "labels": torch.full((len(counts),), torch.nan), "example_id": torch.arange(len(counts)),
    }  # fmt: skip
    if targets is not None:
        batch[CROSS_SCORES] = torch.tensor(targets)
    return Embedding(train=pairs(2), dev=pairs(2)).select(batch)


def test_margins_by_hand() -> None:
    """The first group's margin is 2 * (3 - 1) = 4, and its target 1; the pair and the last group count for nothing."""
    vectors = torch.tensor([[1.0, 0], [3, 5], [1, 7], [1, 1], [1, 1], [1, 0], [2, 0], [1, 0]], requires_grad=True)
    items = items_of([1.0, 0.5, torch.nan], [3, 2, 3])
    total, count = d.MarginMSE(scale=2.0)(Outputs(vectors), Outputs(), items)
    assert (float(total.detach()), int(count)) == (9.0, 1)
    total.backward()
    assert vectors.grad[:3].tolist() == [[24.0, -24.0], [12.0, 0.0], [-12.0, 0.0]]
    assert not vectors.grad[3:].any()
    for nothing in (items_of(None, [3, 2, 3]), items_of([1.0] * 4, [2] * 4)):
        total, count = d.MarginMSE()(Outputs(vectors), Outputs(), nothing)
        assert (float(total.detach()), int(count)) == (0.0, 0)


def test_cosines_learn_the_scores_of_pairs_by_hand() -> None:
    vectors = torch.tensor([[1.0, 0], [2, 0], [1, 0], [0, 3], [1, 0], [0, 1], [0, 1]])
    term = d.CosineRegression(targets="cross_encoder")
    total, count = term(Outputs(vectors), Outputs(), items_of([0.5, 1.0, 0.0], [2, 2, 3]))
    assert (float(total.detach()), int(count)) == (1.25, 2)
    assert int(d.CosineRegression().count(items_of([0.5, 1.0, 0.0], [2, 2, 3]))) == 0
    assert int(term.count(items_of(None, [2, 2, 3]))) == 0


def test_a_student_learns_the_margins_of_a_cross_encoder(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    write_model(tmp_path / "model", tokenizer)
    rows = pairs(48)
    triples = {"a": rows["sentence1"], "p": rows["sentence2"], "n": rows["sentence2"][1:] + rows["sentence2"][:1]}
    task = Embedding(
        train=triples, dev=pairs(24, seed=1), train_text=["a", "p", "n"], normalize=False, max_length=24,
        cross_encoder=tmp_path / "model", unlabelled=[*GOOD, *BAD],
    )  # fmt: skip
    encoder = toy_bert(len(tokenizer), layers=2, initializer_range=0.05).bert
    teacher = d.Teacher(encoder, tokenizer, accept_weak=True, cache_dir=tmp_path / "cache")
    objective = d.Objective(margins=d.MarginMSE(scale=0.1), embedding=d.EmbeddingMSE(weight=0.01))
    result = d.distill(
        teacher, d.students.distilbert(), task, objective=objective, directory=tmp_path / "run",
        **QUICK,
    )  # fmt: skip
    losses = pandas.read_csv(result.directory / "metrics.csv")["train/margins"].dropna().to_numpy()
    assert (losses > 0).all()
    assert len(list((tmp_path / "cache" / "frozen_outputs").iterdir())) == 1
    pair_term = d.Objective(mse=d.EmbeddingMSE(), scores=d.CosineRegression(targets="cross_encoder"))
    with pytest.raises(UserError, match=r"learns from pairs of texts with a score, of the data or with targets=cross"):
        d.distill(teacher, d.students.distilbert(), task, objective=pair_term, directory=tmp_path / "no")
