"""Tests of the tokens before a prompt: those of a bundle are those of the tokenizer of transformers."""

from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, GPT2Tokenizer, LlamaTokenizer, PreTrainedTokenizerBase

from distill.edge import Bundle
from distill.edge.generation import Prompts
from distill.edge.sampling import GenerationOptions, GenerationSettings
from distill.export.onnx import describe_generation
from tests.edge.test_text_bundles import write_text_bundle
from tests.export.test_generator import draw_model

SIZES = {
    "gpt2": {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 48},
    "qwen3": {
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 16, "head_dim": 8,
        "intermediate_size": 16,
    },
    "opt": {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "ffn_dim": 16,
            "max_position_embeddings": 48, "word_embed_proj_dim": 16},
}  # fmt: skip
TEXTS = ["a film", "films of a city", "  two spaces", "", "a </s>"]


def make_tokenizer(kind: str, directory: Path) -> PreTrainedTokenizerBase:
    """Saves a tokenizer of a layout, and returns it as transformers loads it."""
    specials = {"gpt2": ["<|endoftext|>"], "llama": ["<unk>", "<s>", "</s>"], "opt": ["<s>", "<pad>", "</s>"]}[kind]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = (
        pre_tokenizers.Metaspace() if kind == "llama" else pre_tokenizers.ByteLevel(add_prefix_space=False)
    )
    alphabet = list("\u2581abcdefghijklmnopqrstuvwxyz</>") if kind == "llama" else pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        TEXTS * 3, trainers.BpeTrainer(special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    )
    (directory / "files").mkdir(parents=True)
    vocabulary, merges = trained.model.save(str(directory / "files"))
    if kind == "gpt2":
        tokenizer: PreTrainedTokenizerBase = GPT2Tokenizer(vocabulary, merges)
    elif kind == "opt":
        end = AddedToken("</s>", special=True)
        tokenizer = GPT2Tokenizer(
            vocabulary, merges, bos_token=end, eos_token=end, unk_token=end, pad_token="<pad>", add_bos_token=True
        )
    else:
        tokenizer = LlamaTokenizer(vocabulary, merges, add_bos_token=True)
    tokenizer.save_pretrained(directory)
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(directory)
    return loaded


@pytest.mark.parametrize(("kind", "start"), [("gpt2", None), ("llama", "<s>"), ("opt", "</s>")])
def test_a_prompt_has_the_tokens_of_the_tokenizer(kind: str, start: str | None, tmp_path: Path) -> None:
    """The models of the last two also write what `generate` does. That of Llama's tokenizer is a Qwen3."""
    tokenizer = make_tokenizer(kind, tmp_path / "tokenizer")
    end = tokenizer.eos_token_id
    name = "qwen3" if kind == "llama" else kind
    model = draw_model(
        name, vocab_size=len(tokenizer), eos_token_id=end, bos_token_id=end, pad_token_id=end, **SIZES[name]
    )
    described = describe_generation(model, tokenizer.backend_tokenizer)
    assert described["start"] == (None if start is None else tokenizer.convert_tokens_to_ids(start))
    prompts = Prompts(tokenizer.backend_tokenizer, GenerationSettings.read(described), has_encoder=False)
    for text in TEXTS:
        expected = tokenizer(text)["input_ids"] or [end]  # A model cannot go on from nothing.
        assert prompts.read(text, GenerationOptions()).tokens == expected, text
    if kind == "gpt2":
        return
    (tmp_path / "bundle").mkdir()
    write_text_bundle(
        tmp_path / "bundle", "gpt2", model=model, tokenizer=tokenizer.backend_tokenizer, **described
    )  # fmt: skip
    [written] = Bundle(tmp_path / "bundle").generate_all(["a film"], max_new_tokens=8)
    ids = tokenizer("a film", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        torched = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    assert written["tokens"] == torched[0, ids.shape[1] :].tolist()
