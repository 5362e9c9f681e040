"""Exported models that write text: their inputs and outputs, and the tokens before a prompt."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, GPT2Tokenizer, LlamaTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from distill.edge.bundle_files import encoder_file, input_names, session
from distill.edge.generation import CachedModel, Generator, Prompts
from distill.edge.sampling import GenerationOptions, GenerationSettings
from distill.export.onnx import describe_generation, export_generator

VOCABULARY = 97
SIZES = {
    "gpt2": {"n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 48},
    "t5": {
        "num_layers": 1, "num_decoder_layers": 2, "num_heads": 2, "d_model": 32, "d_kv": 8, "d_ff": 40,
        "decoder_start_token_id": 0,
    },
    "bart": {
        "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "d_model": 32, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 48,
    },
}  # fmt: skip


@functools.cache
def make_model(kind: str) -> PreTrainedModel:
    return draw_model(kind, vocab_size=VOCABULARY, **SIZES[kind])


def draw_model(kind: str, **settings: Any) -> PreTrainedModel:
    """Returns a model with random weights, whose logits are about as large as those of a trained one."""
    config = transformers.AutoConfig.for_model(kind, **settings)
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    model: PreTrainedModel = auto.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that returns the file of a kind of model, written once."""

    @functools.cache
    def export(kind: str) -> Path:
        path = tmp_path_factory.mktemp(kind) / "model.fp32.onnx"
        export_generator(make_model(kind), path)
        return path

    return export


def test_logits_of_all_tokens_but_the_last_ones_may_be_left_out(exported: Any) -> None:
    loaded: Any = session(exported("gpt2"), 1)
    ids = np.random.default_rng(9).integers(3, VOCABULARY, (2, 9))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(9)[None].repeat(2, 0)}
    for value in loaded.get_inputs():
        if value.name.startswith("past"):  # Caches without any token.
            inputs[value.name] = np.zeros((2, value.shape[1], 0, value.shape[3]), dtype=np.float32)
    assert "num_logits_to_keep" in input_names(loaded)
    whole, *caches = loaded.run(None, inputs)
    for kept in (1, 3):
        logits, *same = loaded.run(None, inputs | {"num_logits_to_keep": np.array(kept)})
        np.testing.assert_allclose(logits, whole[:, -kept:], atol=1e-4)
        assert all(map(np.array_equal, caches, same))


# The names of Optimum's exports, with a cache and, for a decoder, in its merged file. That has `use_cache_branch` too,
# because it has a branch, and transformers.js gives a file the inputs that it has.
def test_names_of_inputs_and_outputs_are_those_of_optimum(exported: Any) -> None:
    own = {
        "gpt2": {"input_ids", "attention_mask", "position_ids"},
        "t5": {"encoder_attention_mask", "input_ids", "encoder_hidden_states"},
    }
    for kind, layers, kinds in (("gpt2", 1, [""]), ("t5", 2, [".decoder", ".encoder"])):
        loaded = session(exported(kind), 1)
        caches = [f".{i}{of}.{part}" for i in range(layers) for of in kinds for part in ("key", "value")]
        inputs, outputs = ({of.name for of in each} for each in (loaded.get_inputs(), loaded.get_outputs()))
        assert inputs == {*own[kind], *(f"past_key_values{name}" for name in caches)}
        assert outputs == {"logits", *(f"present{name}" for name in caches)}
    loaded = session(encoder_file(exported("t5")), 1)
    assert {value.name for value in loaded.get_inputs()} == {"input_ids", "attention_mask"}
    assert {value.name for value in loaded.get_outputs()} == {"last_hidden_state"}


PROMPTED: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 48},
    "qwen3": {
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 16, "head_dim": 8,
        "intermediate_size": 16,
    },
    "opt": {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "ffn_dim": 16,
            "max_position_embeddings": 48, "word_embed_proj_dim": 16},
}  # fmt: skip
TEXTS = ["a film", "films of a city", "  two spaces", "", "a </s>"]


def save_tokenizer(kind: str, directory: Path) -> PreTrainedTokenizerBase:
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
    tokenizer = save_tokenizer(kind, tmp_path / "tokenizer")
    end = tokenizer.eos_token_id
    name = "qwen3" if kind == "llama" else kind
    model = draw_model(
        name, vocab_size=len(tokenizer), eos_token_id=end, bos_token_id=end, pad_token_id=end, **PROMPTED[name]
    )
    described = describe_generation(model, tokenizer.backend_tokenizer)
    assert described["start"] == (None if start is None else tokenizer.convert_tokens_to_ids(start))
    settings = GenerationSettings.read(described)
    prompts = Prompts(tokenizer.backend_tokenizer, settings, has_encoder=False)
    for prompt in TEXTS:
        expected = tokenizer(prompt)["input_ids"] or [end]  # A model cannot go on from nothing.
        assert prompts.read(prompt, GenerationOptions()).tokens == expected, prompt
    if kind == "gpt2":
        return
    export_generator(model, tmp_path / "model.onnx")
    written = Generator(CachedModel(session(tmp_path / "model.onnx", 1)), tokenizer.backend_tokenizer, settings)
    [text] = written.start(["a film"], GenerationOptions(max_new_tokens=8))
    while written.running:
        written.step()
    ids = tokenizer("a film", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        torched = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    assert text.tokens == torched[0, ids.shape[1] :].tolist()
