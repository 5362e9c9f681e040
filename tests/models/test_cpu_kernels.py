"""Tests that the CPU kernels agree with torch."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from distill.models import cpu_kernels
from tests.conftest import toy_bert

SIZE = torch.Size([64, 100, 31])  # No multiple of the four numbers that share a word.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_mask_has_the_right_probability_and_mean(p: float, dtype: torch.dtype):
    torch.manual_seed(0)
    mask = cpu_kernels.draw_dropout_mask(SIZE, p, dtype).float()
    count, dropped = SIZE.numel(), mask == 0
    assert abs(dropped.float().mean().item() - p) < 4 * (p * (1 - p) / count) ** 0.5
    scale = mask[~dropped].unique()
    assert len(scale) == 1
    assert scale.item() == pytest.approx(1 / (1 - p), rel=4e-3 if dtype == torch.bfloat16 else 1e-4)


def test_elements_of_one_word_are_independent():
    """The four elements that share one random word must be independent."""
    torch.manual_seed(0)
    dropped = (cpu_kernels.draw_dropout_mask(torch.Size([400_000]), 0.3, torch.float32) == 0).double()
    for distance in (1, 2, 3, 4):
        together = (dropped[distance:] * dropped[:-distance]).mean().item()
        assert abs(together - 0.09) < 4 * (0.09 * 0.91 / 400_000) ** 0.5


@pytest.mark.parametrize(("p", "expected"), [(0.0, 1.0), (1.0, 0.0)])
def test_dropout_of_zero_keeps_everything_and_of_one_nothing(p: float, expected: float):
    values = torch.ones(5)
    assert cpu_kernels.apply_dropout(values, p).tolist() == [expected] * 5


def test_the_gradient_uses_the_same_mask():
    values = torch.randn(SIZE, requires_grad=True)
    dropped = cpu_kernels.apply_dropout(values, 0.25)
    dropped.sum().backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad * values, dropped)


def test_no_dropout_outside_training():
    values = torch.randn(4)
    assert cpu_kernels.apply_dropout(values, 0.5, training=False) is values


def test_the_mask_depends_on_the_seed():
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        draws.append(cpu_kernels.draw_dropout_mask(SIZE, 0.1, torch.bfloat16))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


# Models


def models(tokenizer: PreTrainedTokenizerBase) -> list[PreTrainedModel]:
    teacher = toy_bert(len(tokenizer))
    return [teacher.train(), from_teacher(teacher)]


def test_without_dropout_outputs_and_gradients_equal_torch(tokenizer: PreTrainedTokenizerBase):
    batch = tokenizer(["a film", "a lovely and moving film"], padding=True, return_tensors="pt")
    batch.pop("token_type_ids")
    for model in models(tokenizer):
        for layer in model.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
            for name in ("attention_dropout", "dropout_prob"):
                if isinstance(getattr(layer, name, None), float):
                    setattr(layer, name, 0.0)
        model.config.attention_dropout = model.config.attention_probs_dropout_prob = 0.0
        results = []
        for fast in (False, True):
            model.zero_grad()
            if fast:
                with cpu_kernels.use_cpu_kernels(model):
                    assert model.config._attn_implementation == cpu_kernels.ATTENTION
                    logits = model(**batch).logits
                    logits.square().sum().backward()
            else:
                logits = model(**batch).logits
                logits.square().sum().backward()
            results.append(
                (logits, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
            )
        (expected, gradients), (logits, ours) = results
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
        assert gradients.keys() == ours.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(ours[name], gradient, atol=2e-4, rtol=1e-3)


def test_attention_and_layers_use_the_kernels_inside_the_context(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
):
    batch = tokenizer(["a lovely and moving film"], return_tensors="pt")
    drawn: list[int] = []
    original = cpu_kernels.draw_dropout_mask
    monkeypatch.setattr(
        cpu_kernels, "draw_dropout_mask", lambda shape, *rest: drawn.append(len(shape)) or original(shape, *rest)
    )
    model = models(tokenizer)[0]
    with cpu_kernels.use_cpu_kernels(model):
        first, second = model(**batch).logits, model(**batch).logits
    assert not torch.equal(first, second)
    assert set(drawn) == {2, 3, 4}  # In front of the head, between the layers, and inside attention.
    drawn.clear()
    model(**batch)
    assert not drawn
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("padded", [False, True])
def test_a_batch_of_one_length_has_no_attention_mask(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch, padded: bool
):
    """Its outputs are those without a mask among the inputs."""
    texts = ["a lovely and moving film", "a lovely film" if padded else "a moving and lovely film"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    masks: list[Tensor | None] = []
    kernel = cpu_kernels.compute_attention

    def compute(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any):
        masks.append(mask)
        return kernel(module, query, key, value, mask, **options)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, cpu_kernels.ATTENTION, compute)
    model = models(tokenizer)[0].eval()
    with cpu_kernels.use_cpu_kernels(model):
        logits = model(**batch).logits
        assert len(masks) == 4
        assert all((mask is not None) == padded for mask in masks)
        batch.pop("attention_mask")
        assert torch.equal(model(**batch).logits, logits) != padded


def test_a_model_is_restored_after_an_error(tokenizer: PreTrainedTokenizerBase):
    model = models(tokenizer)[1]
    with pytest.raises(RuntimeError, match="stop"), cpu_kernels.use_cpu_kernels(model):
        raise RuntimeError("stop")
    assert model.config._attn_implementation == "sdpa"
    assert all("forward" not in vars(module) for module in model.modules())


@pytest.mark.parametrize("numbers", [False, True])
def test_bf16_rounds_like_eager_attention(numbers: bool):
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, 9, 16).bfloat16() for _ in range(3))
    mask = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    mask[1, ..., 6:] = False
    if numbers:  # Float32, as a model adds them to its scores.
        mask = (~mask).float() * torch.finfo(torch.float32).min
    module = nn.Module().eval()
    module.is_causal = False  # type: ignore[assignment]
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = cpu_kernels.compute_attention(module, query, key, value, mask)
    exact, _ = cpu_kernels.compute_attention(module, query.float(), key.float(), value.float(), mask)
    assert (output.dtype, output.shape) == (torch.bfloat16, (2, 9, 4, 16))
    torch.testing.assert_close(output.float(), exact, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("case", ["causal", "fewer keys", "position bias", "mixed"])
def test_unsupported_attention_is_passed_to_torch(case: str, monkeypatch: pytest.MonkeyPatch):
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(cpu_kernels, "sdpa_attention_forward", lambda *tensors, **named: calls.append(named))
    query = torch.randn(1, 4, 3, 8)
    key = torch.randn(1, 2, 3, 8) if case == "fewer keys" else query
    value = key.bfloat16() if case == "mixed" else key
    module = nn.Module()
    module.is_causal = case == "causal"  # type: ignore[assignment]
    others = {"position_bias": torch.zeros(1)} if case == "position bias" else {}
    cpu_kernels.compute_attention(module, query, key, value, None, dropout=0.1, scaling=0.5, **others)
    assert calls == [{**others, "dropout": 0.1, "scaling": 0.5}]


def test_other_attention_implementations_are_unchanged():
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        attn_implementation="eager",
    )  # fmt: skip
    model = BertForSequenceClassification(config).train()
    with cpu_kernels.use_cpu_kernels(model):
        assert model.config._attn_implementation == "eager"
        assert len(model(torch.ones((1, 3), dtype=torch.long), output_attentions=True).attentions) == 1


def test_the_benchmark_of_a_step_runs_at_toy_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    ways = "plain,distill,teacher"
    options = ["--students=tiny", "--lengths=8", "--batch=2", "--rounds=1", f"--ways={ways}", "--device=cpu"]
    monkeypatch.setattr(sys, "argv", ["training_step.py", *options])
    importlib.import_module("training_step").main()
    rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if "tiny" in line]
    assert [row[3].strip() for row in rows] == ways.split(",")
    assert all(float(row[4]) > 0 for row in rows)
