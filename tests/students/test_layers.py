"""Tests of students of chosen layers in the teacher's own class, for every layout of a causal language model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from distill.builtin.students.layers import from_teacher
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, PreTrainedConfig, PreTrainedModel

from distill.core.errors import UserError
from distill.kinds import CausalLM
from distill.models.surgery.layers import find_layer_prefix

VOCABULARY, LENGTH = 40, 16
TASK = CausalLM()
SPECIAL = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 32, **SPECIAL,
}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 32, **SPECIAL}
OPT = {key: value for key, value in SIZES.items() if key != "intermediate_size"} | {
    "ffn_dim": 64,
    "word_embed_proj_dim": 16,
}
# Layout -> its configuration with weights of this size, which random weights need for predictions that differ.
LAYOUTS: dict[str, Callable[..., PreTrainedConfig]] = {
    "gpt2": lambda: transformers.GPT2Config(**GPT2, initializer_range=0.3),
    "llama": lambda: transformers.LlamaConfig(**GROUPED, initializer_range=0.3),
    "llama_tied": lambda: transformers.LlamaConfig(**GROUPED, initializer_range=0.3, tie_word_embeddings=True),
    "qwen2": lambda: transformers.Qwen2Config(
        **GROUPED, initializer_range=0.3, use_sliding_window=True, sliding_window=4, max_window_layers=2
    ),
    "qwen3": lambda: transformers.Qwen3Config(**GROUPED, initializer_range=0.3, head_dim=8),
    "opt": lambda: transformers.OPTConfig(**OPT, init_std=0.3),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**SIZES, initializer_range=0.3),
}


def create(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(config).eval()
    return model


def batch_of() -> dict[str, Tensor]:
    """Returns three sequences of random tokens, one of which is padded."""
    ids = torch.randint(1, VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 10:] = 0
    return {"input_ids": ids, "attention_mask": mask, "example_id": torch.arange(3)}


@torch.no_grad()
def logits_of(model: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    """Returns the logits at the items as a training computes them."""
    items = TASK.select(batch)
    logits: Tensor | None = TASK.run(model, batch, items, frozenset()).at(items).logits
    assert logits is not None
    return logits


@pytest.fixture(params=LAYOUTS)
def teacher(request: pytest.FixtureRequest) -> PreTrainedModel:
    return create(LAYOUTS[request.param]())


def test_logits_and_loss_are_those_of_transformers(teacher: PreTrainedModel) -> None:
    batch = batch_of()
    items = TASK.select(batch)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    with torch.no_grad():
        expected = teacher(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels)
    logits = logits_of(teacher, batch)
    assert items.index is not None
    torch.testing.assert_close(logits, expected.logits.flatten(0, 1)[items.index], atol=1e-5, rtol=0)
    assert float(F.cross_entropy(logits, items.labels)) == pytest.approx(float(expected.loss), abs=1e-5)


def test_a_student_of_all_layers_is_the_teacher(teacher: PreTrainedModel) -> None:
    student = from_teacher(teacher, layers=range(4))
    assert student.training
    torch.testing.assert_close(logits_of(student.eval(), batch_of()), logits_of(teacher, batch_of()), atol=0, rtol=0)


def test_chosen_layers_are_copied_and_read_positions_as_in_the_teacher(
    teacher: PreTrainedModel, tmp_path: Path
) -> None:
    batch, chosen, prefix = batch_of(), (0, 2), find_layer_prefix(teacher)
    student = from_teacher(teacher, layers=chosen).eval()
    assert type(student) is type(teacher)
    assert student.config.num_hidden_layers == 2
    for place, index in enumerate(chosen):
        expected = teacher.get_submodule(f"{prefix}{index}").state_dict()
        copied = student.get_submodule(f"{prefix}{place}").state_dict()
        assert copied.keys() == expected.keys()
        assert all(torch.equal(copied[name], expected[name]) for name in copied)
    # The table of embeddings and the head are one tensor as in the teacher, and every tensor has its origin.
    tables = [(model.get_input_embeddings().weight, model.get_output_embeddings().weight)
              for model in (teacher, student)]  # fmt: skip
    assert (tables[1][0] is tables[1][1]) == (tables[0][0] is tables[0][1]) == teacher.config.tie_word_embeddings
    assert set(student.inherited) == {name for name, _ in student.named_parameters()}  # type: ignore[arg-type]
    # The other layers leave their input as it is.
    skipped = [teacher.get_submodule(f"{prefix}{index}").register_forward_hook(_pass_through) for index in (1, 3)]
    expected_logits = logits_of(teacher, batch)
    for hook in skipped:
        hook.remove()
    torch.testing.assert_close(logits_of(student, batch), expected_logits, atol=1e-5, rtol=1e-5)
    student.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits_of(loaded, batch), logits_of(student, batch), atol=0, rtol=0)


def _pass_through(layer: torch.nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
    return (inputs[0], *output[1:]) if isinstance(output, tuple) else inputs[0]


def test_a_bert_keeps_its_class() -> None:
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64
    )
    student = from_teacher(BertForSequenceClassification(config), depth=3)
    assert type(student) is BertForSequenceClassification
    assert student.config.teacher_layers == [0, 1, 3]  # 1.5 is rounded down.


def test_layers_that_scale_their_attention_by_their_place_are_not_moved() -> None:
    model = create(transformers.GPT2Config(**GPT2, scale_attn_by_inverse_layer_idx=True))
    with pytest.raises(UserError, match=r"student.layers=\[0, 3\] moves layers, .* take student.layers=first"):
        from_teacher(model)
    assert from_teacher(model, layers="first").config.num_hidden_layers == 2
