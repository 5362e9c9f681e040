"""Tests of bidirectional language modelling: its items and its perplexities by hand, and the models it takes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from distill.builtin.teachers.bilm import choose_weights
from torch import Tensor
from transformers import BertConfig, BertForPreTraining

from distill.core.contracts import Items, Outputs, Scores
from distill.core.errors import OptionError, UserError
from distill.kinds import BidirectionalLM
from distill.kinds.autoregressive import BothDirections
from distill.models.architectures.modeling_bilm import BilmConfig, BilmForPreTraining
from tests.conftest import write_corpus

VOCABULARY = 40
TASK = BidirectionalLM()


@pytest.fixture
def model() -> BilmForPreTraining:
    torch.manual_seed(0)
    return BilmForPreTraining(BilmConfig(vocab_size=VOCABULARY, hidden_dim=8, num_hidden_layers=2)).eval()


def batch_of(lengths: Sequence[int], *, left: bool = False) -> dict[str, Tensor]:
    """Returns sequences of random tokens, padded to seven."""
    ids = torch.randint(1, VOCABULARY, (len(lengths), 7), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(7) < torch.tensor(lengths)[:, None]).long()
    ids = ids * mask
    if left:
        shift = [7 - length for length in lengths]
        ids, mask = (torch.stack([row.roll(n) for row, n in zip(rows, shift, strict=True)]) for rows in (ids, mask))
    return {"input_ids": ids, "attention_mask": mask, "example_id": torch.arange(len(lengths))}


def logits_of(model: BilmForPreTraining, batch: dict[str, Tensor], *, every: bool = False) -> tuple[Items, Tensor]:
    items = TASK.select(batch).with_every_token() if every else TASK.select(batch)
    with torch.no_grad():
        logits: Tensor = TASK.run(model, batch, items, frozenset()).at(items).logits
    return items, logits


def test_the_items_are_the_next_and_the_previous_token_of_each_token() -> None:
    batch = {"input_ids": torch.tensor([[3, 1, 2], [4, 5, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    items = TASK.select(batch)
    assert items.labels.tolist() == [1, 2, 3, 1, 5, 4]
    assert items.row.tolist() == [0, 0, 0, 0, 1, 1]
    assert items.labelled.all()
    one = TASK.select({"input_ids": torch.tensor([[3, 0]]), "attention_mask": torch.tensor([[1, 0]])})
    assert len(one) == 0  # A text of one token has nothing to predict it from.


def test_the_perplexity_of_each_direction_is_that_of_its_items() -> None:
    items = TASK.select({"input_ids": torch.tensor([[0, 1, 2]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)})
    assert items.labels.tolist() == [1, 2, 0, 1]  # Forwards, forwards, backwards, backwards.
    # The right tokens get 1/2 and 1/8 forwards, 1/4 and 1/16 backwards.
    logits = torch.tensor(
        [[1 / 4, 1 / 2, 1 / 4], [1 / 2, 3 / 8, 1 / 8], [1 / 4, 1 / 2, 1 / 4], [1 / 2, 1 / 16, 7 / 16]]
    )
    scoring = BothDirections(TASK.settings)
    columns = scoring.score(Outputs(logits=logits.log()), items)
    assert columns["direction"].tolist() == [0, 0, 1, 1]
    parts = [scoring.score(Outputs(logits=logits[at : at + 2].log()), items.part(at, at + 2)) for at in (0, 2)]
    assert torch.equal(torch.cat([part["direction"] for part in parts]), columns["direction"])
    scores = Scores({name: column.numpy() for name, column in columns.items()}, items.labels.numpy(), np.zeros(4))
    metrics = scoring.metrics(scores)
    assert metrics["perplexity_forwards"] == pytest.approx(4.0)  # The square root of 2 * 8.
    assert metrics["perplexity_backwards"] == pytest.approx(8.0)
    assert metrics["perplexity"] == pytest.approx(32.0**0.5)
    assert metrics["loss"] == pytest.approx(np.log(32.0) / 2)
    assert metrics["accuracy"] == 0.25


@pytest.mark.parametrize("lengths", [(7, 7), (7, 4, 2)], ids=["full", "padded"])
def test_the_loss_is_the_mean_of_both_directions(model: BilmForPreTraining, lengths: tuple[int, ...]) -> None:
    batch = batch_of(lengths)
    items, logits = logits_of(model, batch)
    expected = []
    for row, length in enumerate(lengths):
        ids = batch["input_ids"][row : row + 1, :length]
        both = model(ids).logits[0]  # [L, 2, V]
        expected.append(F.cross_entropy(both[:-1, 0], ids[0, 1:], reduction="none"))
        expected.append(F.cross_entropy(both[1:, 1], ids[0, :-1], reduction="none"))
    assert len(items) == 2 * (sum(lengths) - len(lengths))
    torch.testing.assert_close(F.cross_entropy(logits, items.labels), torch.cat(expected).mean())


def test_a_model_that_reads_both_sides_at_once_is_refused() -> None:
    bert = BertForPreTraining(
        BertConfig(
            vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
    )
    batch = batch_of((7, 4))
    with pytest.raises(
        UserError, match="a BertForPreTraining reads both sides of a token at once, and task bilm needs"
    ):
        TASK.run(bert, batch, TASK.select(batch), frozenset())


def test_a_sequence_has_two_items_for_each_of_its_pairs_of_neighbours(tmp_path: Path) -> None:
    task = BidirectionalLM(data=write_corpus(tmp_path), documents="line", max_length=16, dev_fraction=0.2)
    data = task.read(tmp_path / "cache")
    start = choose_weights(layers=1, hidden_dim=4, vocabulary=200).load(task.info.auto_class, None, data.texts())
    assert isinstance(start.model, BilmForPreTraining)
    assert not start.notices  # Padding on the right changes no logit.
    train = task.encode(data, start.tokenizer, tmp_path / "cache")["train"]
    items = task.select(train[range(len(train))])
    assert train.items_per_example == len(items) / len(train) == 2 * 15
    assert start.tokenizer.sep_token_id in items.labels


def test_a_new_model_depends_on_its_sizes_and_its_seed() -> None:
    options = ({}, {"layers": 1}, {"hidden_dim": 4}, {"dropout": 0.2}, {"seed": 1}, {"vocabulary": 100})
    assert len({choose_weights(**given).fingerprint() for given in options}) == len(options)
    assert choose_weights().fingerprint() == choose_weights(precision="bfloat16").fingerprint()
    assert choose_weights(hidden_dim=4).width() == 8


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"layers": 0}, "got teacher.layers=0, expected a whole number of at least 1"),
        ({"hidden_dim": 1.5}, "got teacher.hidden_dim=1.5, expected a whole number of at least 1"),
        ({"dropout": 1.0}, "got teacher.dropout=1.0, expected a share from 0 to below 1"),
        (
            {"path": "model", "layers": 3},
            "got teacher.layers=3, expected 2, the default, because teacher.path has a trai",
        ),
    ],
)
def test_invalid_options_are_refused(options: dict[str, object], expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        choose_weights(**options)  # type: ignore[arg-type]


def test_a_head_that_no_model_has_is_refused() -> None:
    with pytest.raises(UserError, match=r"teacher bilm \(distill_bilm\) has no AutoModelForMaskedLM: take a task"):
        choose_weights().load("AutoModelForMaskedLM", None, [])
