"""Tests of training on texts that the student writes."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, T5Config, T5ForConditionalGeneration

from distill.core.contracts import IGNORED, TARGET_MASK
from distill.kinds import CausalLM, Seq2Seq
from distill.losses import GeneralizedKD, HardLabels, Objective
from distill.teachers.signal import Live
from distill.training.module import STUDENT_WRITES, DistillationModule, write_batch

ROWS = [{"source": "1 2", "target": "2 1"}]


@pytest.fixture
def t5() -> PreTrainedModel:
    return make_t5(0)


def make_t5(seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=12, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0,
        pad_token_id=0, eos_token_id=1, dropout_rate=0.5,
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
        """Writes with a student in training, whose dropout is not of its texts."""
        torch.manual_seed(seed)
        labels: list[list[int]] = write_batch(t5.train(), batch, temperature=temperature)["labels"].tolist()
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


def test_the_mean_losses_of_a_module_in_training_are_without_its_dropout(batch: dict[str, Tensor]) -> None:
    module = module_of(0.0).train()
    with torch.no_grad():
        found = module.mean_losses([[batch]])
        assert module.student.training  # As it was.
        _, sums = module.eval().losses(batch)
    assert list(found.values()) == pytest.approx((sums / 6).tolist())  # Of six tokens.


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.5, 20, 40)])
def test_a_share_of_the_batches_is_the_students(share: float, least: int, most: int, batch: dict[str, Tensor]) -> None:
    module = module_of(share)
    torch.manual_seed(0)
    assert least <= sum(STUDENT_WRITES in module.choose_targets(batch) for _ in range(60)) <= most
    assert (module.writing_seconds(batch) > 0) == (share > 0)


def make_gpt2(seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=12, n_embd=16, n_layer=1, n_head=2, n_positions=8, eos_token_id=1, bos_token_id=1,
        initializer_range=1.0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


TEXTS = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7], [4, 9, 8, 0, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]),
    "prompt_tokens": torch.tensor([2, 3]), "example_id": torch.arange(2),
}  # fmt: skip


@pytest.mark.parametrize("left", [False, True])
def test_a_decoder_continues_its_prompts(left: bool) -> None:
    columns = {name: TEXTS[name].flip(1) if left else TEXTS[name] for name in ("input_ids", "attention_mask")}
    if left:  # The tokens in their own order, behind the padding.
        columns["input_ids"] = torch.tensor([[2, 3, 4, 5, 6, 7], [0, 0, 0, 4, 9, 8]])
    student, seen = make_gpt2(0).train(), set()
    for seed in range(30):
        torch.manual_seed(seed)
        written = write_batch(student, TEXTS | columns, temperature=2.0)
        first, second = (
            row[mask.bool()].tolist() for row, mask in zip(written["input_ids"], written["attention_mask"], strict=True)
        )
        assert first[:2] == [2, 3]
        assert 1 not in first[2:-1]
        assert len(first) == 6 or first[-1] == 1
        assert second == [4, 9, 8]  # Nothing is left to write.
        assert written["attention_mask"][:, 0].all()  # Padding is behind the tokens.
        seen.add(tuple(first))
    assert len(seen) > 5
    assert student.training


def test_a_decoder_learns_on_its_own_texts_from_the_teacher_alone() -> None:
    objective = Objective(hard=HardLabels(), gkd=GeneralizedKD(divergence="reverse", student_share=1.0))
    task = CausalLM(data="anywhere", max_length=8)
    signal = Live(make_gpt2(1), task, objective, reason="a test")
    module = DistillationModule(student=make_gpt2(0), objective=objective, task=task, signal=signal)
    torch.manual_seed(0)
    written = module.choose_targets(TEXTS)
    loss, (hard, gkd) = module.losses(written)
    assert float(hard) == 0
    items = int(written["attention_mask"].sum()) - 2
    torch.manual_seed(0)
    logits = [
        model(input_ids=written["input_ids"], attention_mask=written["attention_mask"]).logits.log_softmax(-1)
        for model in (make_gpt2(0).eval(), make_gpt2(1).eval())
    ]
    kept = (written["attention_mask"][:, 1:]).bool()
    expected = (logits[0].exp() * (logits[0] - logits[1])).sum(-1)[:, :-1][kept].sum()
    assert float(gkd.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()) / items, rel=1e-4)
