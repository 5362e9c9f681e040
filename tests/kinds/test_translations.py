"""Tests of vectors that translations share: the targets by hand, the accuracy by language, and a run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerBase

import distill as d
from distill.core.contracts import SOURCE_VECTORS, Items, Outputs, Scores
from distill.core.errors import OptionError, UserError
from distill.edge.evaluation import Columns, evaluate
from distill.kinds import Embedding
from distill.kinds.embedding import SourceEncoder
from distill.losses.term import EncoderSize
from distill.models.forward import run_model
from distill.models.vectors import pool
from distill.teachers.prepared import compare_with_constant
from tests.conftest import BAD, GOOD, toy_bert

MEAN = {"pooling": "mean", "normalize": True, "max_length": 24}


def translations(count: int, *, languages: tuple[str, ...] = ("de", "fr")) -> dict[str, list[Any]]:
    """Returns sentences of five words; a translation has them in the order from behind."""
    random, words = np.random.default_rng(0), " ".join((*GOOD, *BAD)).replace(",", "").split()
    texts = [list(random.choice(words, 5)) for _ in range(count)]
    return {
        "english": [" ".join(text) for text in texts],
        "sentence": [" ".join(reversed(text)) for text in texts],
        "lang": [languages[row % len(languages)] for row in range(count)],
    }


def task_of(rows: dict[str, list[Any]], **options: Any) -> Embedding:
    options = {"language": "lang", "metrics": ["accuracy"], "max_length": 24, **options}
    return Embedding(text=["english", "sentence"], train=rows, dev=rows, **options)


def scores_of(vectors: list[list[float]], labels: list[int]) -> Scores:
    """Returns the scores of pairs; `vectors` are of the first and the second text of each."""
    example_id = np.repeat(np.arange(len(labels)), 2)
    columns = {"logits": np.array(vectors, dtype=np.float32)}
    return Scores(columns, np.repeat(np.array(labels, dtype=np.float32), 2), example_id)


def test_accuracy_by_hand_is_within_each_language_and_averages_both_directions() -> None:
    task = task_of(translations(6))
    data = task.read(Path())
    assert data.splits["dev"].labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert data.scoring.summary(data).endswith("dev has 6 translations in 2 languages")
    # de: (1, 0)-(1, 0.1) and (0, 1)-(1, 0.2), whose second text is nearer to the other first one.
    # fr: the pair's vectors are opposite to each other, but there is no other text of French.
    scores = scores_of([[1, 0], [1, 0.1], [0, 1], [1, 0.2], [1, 0], [-1, 0]], [0, 0, 1])
    assert data.scoring.metrics(scores) == {"accuracy": pytest.approx((1.0 + 0.5 + 1.0) / 3)}
    assert data.scoring.breakdown(scores) == {
        "de": {"accuracy": 0.75, "number": 2.0},
        "fr": {"accuracy": 1.0, "number": 1.0},
    }
    order = [2, 3, 0, 4, 1, 5]  # That of the texts of a pair stays.
    mixed = Scores({"logits": scores.columns["logits"][order]}, scores.labels[order], scores.example_id[order])
    assert data.scoring.metrics(mixed) == data.scoring.metrics(scores)
    rows = data.scoring.tabulate(scores, data, examples=3)
    assert (rows["label"], rows["prediction"]) == ([0, 1, 2], [0, 1, 2])
    assert data.scoring.example_metric(scores).tolist() == [1.0, 0.5, 1.0]
    assert data.scoring.metrics(data.scoring.condense(scores)) == data.scoring.metrics(scores)


def test_random_vectors_are_reported_as_weak() -> None:
    task = task_of(translations(6), language=None)
    data = task.read(Path())
    same = scores_of([[1, 0]] * 12, [0] * 6)
    assert compare_with_constant(data.scoring, {"dev": same}).weakness == (
        "is no better than a constant prediction on the 6 examples of dev: accuracy 0.167 against 0.167 of "
        '"always the same vector"'
    )
    assert data.scoring.breakdown(same) == {}


def items_of(counts: list[int], vectors: list[list[float]] | None = None) -> Items:
    valid = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    batch = {"valid": valid, "labels": torch.full((len(counts),), torch.nan)}
    if vectors is not None:
        batch[SOURCE_VECTORS] = torch.tensor(vectors)
    return Embedding(train={"text": ["a"]}, dev={"sentence1": ["a"], "sentence2": ["b"], "score": [1.0]}).select(batch)


def test_targets_by_hand() -> None:
    """A group of two texts and a single text; the first target is the teacher's vector of the group's first text."""
    student = torch.tensor([[1.0, 0], [0, 2], [1, 1]], requires_grad=True)
    teacher = Outputs(torch.tensor([[1.0, 1], [5, 5], [1, 1]]))
    total, count = d.EmbeddingMSE(targets="first")(Outputs(student), teacher, items_of([2, 1]))
    assert (float(total.detach()), int(count)) == (1.0 + (1 + 1) + 0.0, 3)
    term = d.EmbeddingMSE(targets="source_encoder")
    assert not term.needs_teacher
    total, count = term(Outputs(student), Outputs(), items_of([2, 1], [[0.0, 0.0], [torch.nan, torch.nan]]))
    assert (float(total.detach()), int(count)) == (1.0 + 4.0, 2)
    total.backward()
    assert student.grad is not None
    assert student.grad.tolist() == [[2.0, 0.0], [0.0, 4.0], [0.0, 0.0]]
    total, count = term(Outputs(student), Outputs(), items_of([2, 1]))
    assert (float(total.detach()), int(count)) == (0.0, 0)
    term.connect(EncoderSize(layers=1, width=2, heads=1), EncoderSize(layers=1, width=9, heads=1))  # Of no concern.
    with pytest.raises(UserError, match=r"the vectors of task.source_encoder are 3 wide and the student's 2: take a"):
        term(Outputs(student), Outputs(), items_of([2, 1], [[0.0] * 3] * 2))


def test_a_source_encoder_has_its_own_vocabulary(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    model = toy_bert(len(tokenizer), layers=1).bert.eval()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    encoder = SourceEncoder(tmp_path / "model", MEAN)
    vectors = encoder.encode(list(GOOD), None)
    for text, vector in zip(GOOD, vectors, strict=True):
        batch = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            states = run_model(model, batch).last_hidden_state
        expected = F.normalize(pool(states, batch["attention_mask"], MEAN), dim=-1)
        np.testing.assert_allclose(vector, expected[0], atol=1e-5)


QUICK: dict[str, Any] = {
    "trainer": d.TrainerSettings(batch_size=16, precision="32-true", learning_rate=3e-3, max_epochs=1),
    "export": d.ExportSettings(enabled=False),
}  # fmt: skip


def test_a_student_learns_translations(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    encoder = toy_bert(len(tokenizer), layers=2, initializer_range=0.05).bert
    encoder.save_pretrained(tmp_path / "source")
    tokenizer.save_pretrained(tmp_path / "source")
    task = task_of(translations(48), source_encoder=tmp_path / "source", unlabelled=[*GOOD, *BAD])
    teacher = d.Teacher(encoder, tokenizer, accept_weak=True, cache_dir=tmp_path / "cache")
    objective = d.Objective(
        first=d.EmbeddingMSE(targets="first"), source=d.EmbeddingMSE(targets="source_encoder", weight=0.5)
    )
    result = d.distill(teacher, d.students.distilbert(), task, objective=objective, directory=tmp_path / "run", **QUICK)
    losses = pandas.read_csv(result.directory / "metrics.csv")["train/first"].dropna().to_numpy()
    assert (losses > 0).all()


def test_a_bundle_is_scored_on_a_file_of_translations(golden_run: Callable[[str], Path], tmp_path: Path) -> None:
    bundle, columns = d.Bundle(golden_run("vectors") / "bundle", model="fp32"), translations(12)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, rows)))
    bundle.manifest["metrics"]["fp32"] = {"accuracy": 0.0}  # By which a bundle of translations is known.
    found = evaluate(bundle, tmp_path / "dev.jsonl", Columns(["english", "sentence"], "lang")).metrics
    texts = [row[name] for row in rows for name in ("english", "sentence")]
    scores = scores_of(bundle.encode(texts).tolist(), [row % 2 for row in range(12)])
    assert found == pytest.approx(task_of(columns).read(tmp_path).scoring.metrics(scores))
    assert 0 < found["accuracy"] < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "lang", "metrics": ["spearman"]}, r"got language=lang, expected metrics=\[accuracy\] beside"),
        ({"metrics": ["accuracy", "spearman"]}, r"got metrics=\[accuracy, spearman\], expected those of pairs"),
    ],
)
def test_metrics_that_do_not_belong_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        task_of(translations(4), **{"language": None, **options})


def test_missing_columns_and_encoders_are_named(tmp_path: Path) -> None:
    rows = translations(4)
    with pytest.raises(UserError, match=r"has no column tongue: .* name yours with task.language=..."):
        task_of(rows, language="tongue").read(tmp_path)
    with pytest.raises(UserError, match=r"task.source_encoder=.*nowhere is no directory, expected one with config"):
        task_of(rows, source_encoder=tmp_path / "nowhere").read(tmp_path)
