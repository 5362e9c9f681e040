"""Tests of the scores of one batch, whose logits over a vocabulary are computed in chunks."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from distill.core.contracts import Items, Outputs
from distill.kinds import Classification
from distill.kinds.scoring import Scoring
from distill.training.module import evaluate, score_items
from tests.conftest import sentences, toy_bert


class Largest(Scoring):
    """Scores an item by its largest logit, and compares it with the reference's."""

    def score(self, outputs: Outputs, items: Items) -> dict[str, Tensor]:
        assert outputs.logits is not None
        return {"largest": outputs.logits.amax(dim=-1), "label": items.labels}

    def compare(self, columns: dict[str, Tensor], reference: Outputs) -> dict[str, Tensor]:  # type: ignore[override]
        assert reference.logits is not None
        return {"difference": columns["largest"] - reference.logits.amax(dim=-1)}


def test_a_batch_is_scored_in_chunks_of_items_as_in_one_piece() -> None:
    logits, reference = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": torch.zeros(1, 7, dtype=torch.long), "example_id": torch.tensor([4])}
    labels = torch.arange(7)
    items = Items(batch=batch, row=torch.zeros(7, dtype=torch.long), labels=labels, labelled=labels >= 0)
    whole = score_items(Largest(), Outputs(logits), items, Outputs(reference))
    sizes = []

    def head(span: slice) -> Tensor:
        sizes.append(len(logits[span]))
        return logits[span]

    chunked = score_items(Largest(), Outputs(head=head, chunk_size=3), items, Outputs(reference))
    assert sizes == [3, 3, 1]
    assert whole.keys() == chunked.keys()
    for name, column in whole.items():
        torch.testing.assert_close(chunked[name], column, rtol=0, atol=0)


def test_a_model_in_training_is_scored_without_its_dropout(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    texts, classes = (list(column) for column in zip(*sentences(8), strict=True))
    task = Classification(text="text", train=(texts, classes), dev=(texts, classes), max_length=16)
    data = task.read(tmp_path)
    dev, model = task.encode(data, tokenizer, tmp_path)["dev"], toy_bert(len(tokenizer))
    assert model.config.hidden_dropout_prob > 0
    loader = [[dev[[0, 1, 2]]], [dev[[3, 4]], dev[[5, 6, 7]]]]
    expected, scores = (evaluate(of, task, data.scoring, loader) for of in (model.eval(), model.train()))
    assert expected.columns.keys() == scores.columns.keys()
    for name, column in expected.columns.items():
        np.testing.assert_allclose(scores.columns[name], column, atol=1e-6)
    assert model.training
