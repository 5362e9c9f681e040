"""Tests of training on texts that the student writes."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

from distill.contracts import IGNORED, TARGET_MASK
from distill.losses import GeneralizedKD, HardLabels, Objective
from distill.tasks import Seq2Seq
from distill.teaching.signal import Live
from distill.training.module import DistillationModule
from distill.training.on_policy import STUDENT_WRITES, write_batch

ROWS = [{"source": "1 2", "target": "2 1"}]


@pytest.fixture
def t5() -> PreTrainedModel:
    return make_t5(0)


def make_t5(seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=12, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0,
        pad_token_id=0, eos_token_id=1, dropout_rate=0.0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


@pytest.fixture
def batch() -> dict[str, Tensor]:
    labels = torch.tensor([[5, 6, 7, 1], [8, 1, IGNORED, IGNORED]])
    return {
        "input_ids": torch.tensor([[2, 3, 1], [4, 1, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
        "labels": labels, TARGET_MASK: (labels != IGNORED).long(), "example_id": torch.arange(2),
    }  # fmt: skip


def test_written_targets_end_where_the_text_does(t5: PreTrainedModel, batch: dict[str, Tensor]) -> None:
    with torch.no_grad():
        t5.lm_head.weight[1] *= 8  # Ends soon in some rows.
    seen = set()
    for seed in range(20):
        torch.manual_seed(seed)
        written = write_batch(t5.train(), batch, temperature=1.0)
        for row in written["labels"].tolist():
            text = [token for token in row if token != IGNORED]
            assert row[: len(text)] == text  # Padding is behind it alone.
            assert 1 not in text[:-1]
            assert len(text) == len(row) or text[-1] == 1
            seen.add(len(text))
        assert torch.equal(written[TARGET_MASK], (written["labels"] != IGNORED).long())
        assert written["labels"].shape[1] <= 4
    assert len(seen) > 1
    assert t5.training


def test_sampling_repeats_with_its_seed_and_is_likely_at_a_low_temperature(
    t5: PreTrainedModel, batch: dict[str, Tensor]
) -> None:
    def write(seed: int, temperature: float) -> list[list[int]]:
        torch.manual_seed(seed)
        labels: list[list[int]] = write_batch(t5, batch, temperature=temperature)["labels"].tolist()
        return labels

    assert write(1, 1.0) == write(1, 1.0)
    assert len({str(write(seed, 1.0)) for seed in range(5)}) > 1
    assert len({str(write(seed, 1e-4)) for seed in range(5)}) == 1


def module_of(share: float) -> DistillationModule:
    objective = Objective(hard=HardLabels(), gkd=GeneralizedKD(divergence="jsd", student_share=share))
    task = Seq2Seq(train=ROWS, dev=ROWS)
    signal = Live(make_t5(1), task, objective, reason="a test")
    return DistillationModule(student=make_t5(0), objective=objective, task=task, signal=signal)


def test_the_labels_teach_nothing_where_the_student_writes(batch: dict[str, Tensor]) -> None:
    module = module_of(1.0)
    written: Any = module.choose_targets(batch)
    assert STUDENT_WRITES in written
    _, (hard, gkd) = module.losses(written)
    assert float(hard) == 0
    assert float(gkd) > 0
    _, (hard, _) = module.losses(batch)
    assert float(hard) > 0


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.5, 20, 40), (1.0, 60, 60)])
def test_a_share_of_the_batches_is_the_students(share: float, least: int, most: int, batch: dict[str, Tensor]) -> None:
    module = module_of(share)
    torch.manual_seed(0)
    assert least <= sum(STUDENT_WRITES in module.choose_targets(batch) for _ in range(60)) <= most
    assert (module.writing_seconds(batch) > 0) == (share > 0)
