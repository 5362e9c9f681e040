"""Tests of targets with masks: batches, the models of both kinds, the term of lengths, and metrics."""

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerBase

from distill.core.contracts import (
    DECODER_INPUTS,
    IGNORED,
    TARGET_LENGTHS,
    TARGET_MASK,
    Examples,
    Items,
    Outputs,
    Scores,
)
from distill.core.errors import OptionError, UserError
from distill.edge.text_decoders import TargetFrame, choose_masked
from distill.kinds import MaskPredict, Seq2Seq
from distill.kinds.seq2seq import MaskedTargets, MaskedTargetScores, find_frame
from distill.losses import TargetLength
from tests.mask_predict import END, MASK, PAD, SIZES, START, make_model, make_tokenizer

PAIRS = [
    {"source": "w1 w2 w3", "target": "w3 w2 w1 w9"}, {"source": "w4", "target": "w5"},
    {"source": "w4 w5", "target": "w6 w7 w8"},
]  # fmt: skip
TASK = MaskPredict(train=PAIRS, dev=PAIRS, max_length=8, max_target=8)


@pytest.fixture
def splits(tmp_path: Path) -> dict[str, MaskedTargets]:
    return cast(dict[str, MaskedTargets], TASK.encode(TASK.read(tmp_path), make_tokenizer(), None))


def whole_targets(batch: dict[str, Tensor]) -> list[list[int]]:
    """Returns the tokens of the targets of a batch, without masks and padding."""
    filled = batch["labels"].where(batch["labels"] != IGNORED, batch[DECODER_INPUTS])
    return [row[is_read == 1].tolist() for row, is_read in zip(filled, batch[TARGET_MASK], strict=True)]


def test_some_tokens_of_a_target_are_masked_and_have_labels(splits: dict[str, MaskedTargets]) -> None:
    batch = splits["dev"][[0, 1, 2]]
    tokenizer = make_tokenizer()
    assert whole_targets(batch) == [tokenizer(pair["target"])["input_ids"] for pair in PAIRS]
    masked = batch["labels"] != IGNORED
    assert (batch[DECODER_INPUTS][masked] == MASK).all()
    assert (batch[DECODER_INPUTS][~masked] != MASK).all()
    assert batch[TARGET_LENGTHS].tolist() == [4, 1, 3]
    assert (batch[DECODER_INPUTS][batch[TARGET_MASK] == 0] == PAD).all()
    ids = tokenizer(PAIRS[0]["target"], add_special_tokens=False)["input_ids"]
    assert masked[0].nonzero().squeeze(1).tolist() == [1 + place for place in choose_masked(ids)]
    assert masked[1].nonzero().tolist() == [[1]]


def test_train_has_other_masks_in_each_epoch_and_dev_always_the_same(splits: dict[str, MaskedTargets]) -> None:
    train, dev = splits["train"], splits["dev"]
    assert isinstance(train, Examples)
    assert (train.visits, dev.visits) == (None, 1)
    epochs = [train[[0 + 3 * epoch, 2 + 3 * epoch]] for epoch in range(8)]
    assert len({tuple(epoch["labels"].flatten().tolist()) for epoch in epochs}) > 3
    assert all(whole_targets(epoch) == whole_targets(epochs[0]) for epoch in epochs)
    assert epochs[1]["example_id"].tolist() == [3, 5]
    assert torch.equal(dev[[0]]["labels"], dev[[0]]["labels"])
    assert train.digest != dev.digest


def test_items_are_the_masked_tokens(splits: dict[str, MaskedTargets]) -> None:
    batch, model = splits["dev"][[0, 1, 2]], make_model()
    items = TASK.select(batch)
    with torch.no_grad():
        outputs = TASK.run(model, batch, items, frozenset())
        expected = model(**{name: batch[name] for name in ("input_ids", "attention_mask", DECODER_INPUTS, TARGET_MASK)})
    assert items.labels.tolist() == batch["labels"][batch["labels"] != IGNORED].tolist()
    logits = outputs.at(items).logits
    assert logits is not None
    torch.testing.assert_close(logits, expected.logits[batch["labels"] != IGNORED], atol=1e-5, rtol=0)
    torch.testing.assert_close(outputs.length_logits, expected.length_logits)


def test_a_model_that_writes_predicts_the_same_tokens_after_the_right_ones(
    splits: dict[str, MaskedTargets], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    bart = BartForConditionalGeneration(BartConfig(**SIZES)).eval()
    batch, plain = splits["dev"][[0, 1, 2]], Seq2Seq(train=PAIRS, dev=PAIRS, max_length=8, max_target=8)
    whole = plain.encode(plain.read(tmp_path), make_tokenizer(), None)["dev"][[0, 1, 2]]  # type: ignore[index]
    items, all_items = TASK.select(batch), plain.select(whole)
    with torch.no_grad():
        logits = TASK.run(bart, batch, items, frozenset()).at(items).logits
        expected = plain.run(bart, whole, all_items, frozenset()).at(all_items).logits
    assert logits is not None
    assert expected is not None
    is_masked = torch.isin(all_items.index, items.index)  # type: ignore[arg-type]
    torch.testing.assert_close(logits, expected[is_masked], atol=1e-5, rtol=0)


def test_a_target_without_an_end_gets_one() -> None:
    tokenizer = make_tokenizer()
    assert find_frame(tokenizer, 8) == TargetFrame((START,), (END,), MASK, 8)
    tokenizer.eos_token = "<unk>"
    frame = find_frame(tokenizer, 8)
    assert (frame.before, frame.after) == ((START,), (END, tokenizer.eos_token_id))


def test_a_tokenizer_without_masks_is_refused(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.mask_token = None
    with pytest.raises(UserError, match=r"has no token for masks \(mask_token\), which task=mask_predict fills"):
        TASK.encode(TASK.read(tmp_path), tokenizer, None)


def test_targets_without_room_for_a_token_are_refused() -> None:
    tokenizer: PreTrainedTokenizerBase = make_tokenizer()
    tokenizer.eos_token = "<unk>"
    with pytest.raises(UserError, match=r"got task.max_target=3, expected more than the 3 special tokens of a text"):
        find_frame(tokenizer, 3)


@pytest.mark.parametrize("name", ["rounds", "lengths"])
@pytest.mark.parametrize("value", [0, 1.5])
def test_rounds_and_lengths_below_1_are_refused(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"{name}={value}"):
        MaskPredict(train=PAIRS, dev=PAIRS, **{name: value})


def test_the_loss_of_lengths_by_hand() -> None:
    logits = torch.zeros(2, 4, requires_grad=True)
    with torch.no_grad():
        logits[0, 3] = 2.0
    batch = {TARGET_LENGTHS: torch.tensor([3, 1])}
    items = Items(batch, torch.empty(0), torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.bool))
    total, count = TargetLength()(Outputs(length_logits=logits), Outputs(), items)
    expected = -math.log(math.e**2 / (math.e**2 + 3)) + math.log(4)
    assert (float(total.detach()), int(count)) == (pytest.approx(expected), 2)
    total.backward()
    assert logits.grad is not None
    with pytest.raises(ValueError, match="got a model that predicts no lengths"):
        TargetLength()(Outputs(), Outputs(), items)


def test_metrics_count_a_length_once_for_each_target() -> None:
    scoring = MaskedTargetScores(max_target=8)
    columns = {
        "loss": np.array([1.0, 2.0, 3.0]), "prediction": np.array([5, 6, 7]), "probability": np.full(3, 0.5),
        "correct": np.array([1.0, 0.0, 1.0]), "length_error": np.array([0.0, 0.0, 2.0]),
    }  # fmt: skip
    scores = Scores(columns, np.array([5, 9, 7]), np.array([0, 0, 1]))
    metrics = scoring.metrics(scores)
    assert metrics["loss"] == pytest.approx(2.0)
    assert metrics["token_accuracy"] == pytest.approx(2 / 3)
    assert (metrics["length_accuracy"], metrics["length_error"]) == (0.5, 1.0)


def test_the_error_of_a_length_is_that_of_the_likeliest_one(splits: dict[str, MaskedTargets]) -> None:
    batch = splits["dev"][[0, 2]]
    items = TASK.select(batch)
    lengths = torch.nn.functional.one_hot(torch.tensor([4, 5]), 9).float()
    columns = MaskedTargetScores().score(Outputs(logits=torch.zeros(len(items), 35), length_logits=lengths), items)
    assert columns["length_error"].tolist() == [0.0 if row == 0 else 2.0 for row in items.row.tolist()]
