"""Tests of the scores of one batch, whose logits over a vocabulary are computed in chunks."""

import torch
from torch import Tensor

from distill.contracts import Items, Outputs
from distill.tasks.scoring import Scoring
from distill.training.evaluate import score_items


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
    for expected, got in zip(whole, chunked, strict=True):
        assert expected.keys() == got.keys()
        for name, column in expected.items():
            torch.testing.assert_close(got[name], column, rtol=0, atol=0)
