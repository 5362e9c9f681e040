"""Tests of the continuation of prompts by a decoder."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from distill.models.decoding import continue_prompts, up_to_end

END = 1


def make_gpt2(*, vocabulary: int = 20, **options: int | None) -> PreTrainedModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=vocabulary, n_embd=16, n_layer=1, n_head=2, n_positions=12, eos_token_id=END, bos_token_id=END,
        initializer_range=1.0, **options,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def make_llama() -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        eos_token_id=END, bos_token_id=2, initializer_range=1.0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("model", [make_gpt2(), make_llama()], ids=["gpt2", "llama"])
@pytest.mark.parametrize("beams", [1, 3])
def test_padded_prompts_go_on_as_they_do_alone(model: PreTrainedModel, beams: int) -> None:
    prompts, room = [[5, 6, 7, 8, 9], [3], [4, 5, 2]], [6, 2, 4]
    written = continue_prompts(model, prompts, room, beams=beams)
    for prompt, most, texts in zip(prompts, room, written, strict=True):
        ids = torch.tensor([prompt])
        alone = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, num_beams=beams,
            num_return_sequences=beams, pad_token_id=0,
        )[:, len(prompt) :]  # fmt: skip
        expected = [row[kept].tolist()[:most] for row, kept in zip(alone, up_to_end(alone, END), strict=True)]
        assert texts == expected
        assert len(texts) == beams


def test_a_text_ends_with_the_end_token_and_within_its_room() -> None:
    model = make_gpt2()
    torch.manual_seed(0)
    written = continue_prompts(model, [[5]] * 200, [8] * 200, temperature=3.0)
    assert all(END not in text[:-1] for [text] in written)
    assert {text[-1] == END for [text] in written} == {True, False}
    assert {len(text) for [text] in written if text[-1] != END} == {8}
    assert continue_prompts(model, [[5, 6]], [0]) == [[[]]]
    endless = make_gpt2()
    endless.generation_config.eos_token_id = None
    assert [len(text) for [text] in continue_prompts(endless, [[5]] * 3, [8, 7, 1], temperature=3.0)] == [8, 7, 1]


def test_sampled_texts_may_have_any_token_of_the_vocabulary() -> None:
    texts = continue_prompts(make_gpt2(vocabulary=60), [[5]] * 1000, [1] * 1000, temperature=1e6)
    assert {token for [[token]] in texts} == set(range(60))
