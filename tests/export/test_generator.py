"""Exported models that write text: their inputs, and their logits with and without caches against torch."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import PreTrainedModel

from distill.edge.bundle_files import encoder_file, input_names, session
from distill.export.onnx import export_generator

TOLERANCE = 1e-4
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


def draw(rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(3, VOCABULARY, (rows, length))


def empty(loaded: Any, rows: int) -> dict[str, np.ndarray]:
    """Returns the caches without any token."""
    return {
        value.name: np.zeros((rows, value.shape[1], 0, value.shape[3]), dtype=np.float32)
        for value in loaded.get_inputs()
        if value.name.startswith("past")
    }


def step(loaded: Any, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns the logits and the caches for the next step."""
    names = [value.name for value in loaded.get_outputs()]
    outputs = dict(zip(names, loaded.run(names, dict(inputs)), strict=True))
    logits = outputs.pop("logits")
    return logits, {name.replace("present", "past_key_values"): value for name, value in outputs.items()}


def test_causal_logits_are_those_of_torch_with_and_without_caches(exported: Any) -> None:
    loaded, rows, length = session(exported("gpt2"), 1), 3, 17
    ids, mask = draw(rows, length), np.ones((rows, length), dtype=np.int64)
    mask[1, :4] = 0
    positions = (mask.cumsum(axis=1) - 1).clip(min=0)
    with torch.no_grad():
        expected = make_model("gpt2")(
            input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask),
            position_ids=torch.from_numpy(positions),
        ).logits.numpy()  # fmt: skip

    def run(begin: int, end: int, caches: Mapping[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        inputs = {"input_ids": ids[:, begin:end], "attention_mask": mask[:, :end]}
        return step(loaded, inputs | {"position_ids": positions[:, begin:end]} | dict(caches))

    whole, _ = run(0, length, empty(loaded, rows))
    first, caches = run(0, 6, empty(loaded, rows))
    parts = [first]
    for begin, end in [(6, 7), (7, 8), (8, 14), (14, length)]:
        logits, caches = run(begin, end, caches)
        parts.append(logits)
    is_token = mask.astype(bool)
    assert np.abs(whole - expected)[is_token].max() < TOLERANCE
    assert np.abs(np.concatenate(parts, axis=1) - expected)[is_token].max() < TOLERANCE


def test_logits_of_all_tokens_but_the_last_ones_may_be_left_out(exported: Any) -> None:
    loaded, ids = session(exported("gpt2"), 1), draw(2, 9)
    mask = np.ones_like(ids)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": mask.cumsum(axis=1) - 1} | empty(loaded, 2)
    assert "num_logits_to_keep" in input_names(loaded)
    whole, caches = step(loaded, inputs)
    for kept in (1, 3):
        logits, same = step(loaded, inputs | {"num_logits_to_keep": np.array(kept)})
        assert np.abs(logits - whole[:, -kept:]).max() < TOLERANCE
        assert all(np.array_equal(caches[name], same[name]) for name in caches)


def test_logits_of_an_encoder_decoder_are_those_of_torch_with_and_without_caches(exported: Any) -> None:
    path, model, rows = exported("t5"), make_model("t5"), 3
    decoder, encoder = session(path, 1), session(encoder_file(path), 1)
    source, target = draw(rows, 19), draw(rows, 11)
    mask = np.ones_like(source)
    mask[1, 12:] = 0
    with torch.no_grad():
        expected = model(
            input_ids=torch.from_numpy(source), attention_mask=torch.from_numpy(mask),
            decoder_input_ids=torch.from_numpy(target),
        ).logits.numpy()  # fmt: skip
    [states] = encoder.run(["last_hidden_state"], {"input_ids": source, "attention_mask": mask})
    source_inputs = {"encoder_attention_mask": mask, "encoder_hidden_states": states}
    whole, _ = step(decoder, {"input_ids": target} | source_inputs | empty(decoder, rows))
    caches, parts = empty(decoder, rows), []
    for begin, end in [(0, 1), (1, 2), (2, 3), (3, 8), (8, 11)]:
        logits, caches = step(decoder, {"input_ids": target[:, begin:end]} | source_inputs | caches)
        parts.append(logits)
    assert np.abs(whole - expected).max() < TOLERANCE
    assert np.abs(np.concatenate(parts, axis=1) - expected).max() < TOLERANCE


def test_rows_of_a_decoder_that_began_at_different_steps_are_read_together(exported: Any) -> None:
    path = exported("t5")
    decoder, encoder = session(path, 1), session(encoder_file(path), 1)
    source, target, late = draw(2, 19), draw(2, 11), 4
    [states] = encoder.run(["last_hidden_state"], {"input_ids": source, "attention_mask": np.ones_like(source)})

    def run(rows: slice, begin: int, end: int, caches: Mapping[str, np.ndarray], **extra: np.ndarray) -> Any:
        inputs = {"encoder_attention_mask": np.ones_like(source[rows]), "encoder_hidden_states": states[rows]}
        return step(decoder, {"input_ids": target[rows, begin:end]} | inputs | dict(caches) | extra)

    assert "past_padding" in input_names(decoder)
    expected, _ = run(slice(None), 0, 11, empty(decoder, 2))
    _, first = run(slice(0, 1), 0, late + 1, empty(decoder, 1))
    _, second = run(slice(1, 2), 0, 1, empty(decoder, 1))  # Four tokens behind.
    missing = {name: cache.shape[2] - second[name].shape[2] for name, cache in first.items()}
    padded = {name: np.pad(second[name], ((0, 0), (0, 0), (size, 0), (0, 0))) for name, size in missing.items()}
    caches = {name: np.concatenate([cache, padded[name]]) for name, cache in first.items()}
    inputs = {
        "input_ids": np.array([[target[0, late + 1]], [target[1, 1]]]), "past_padding": np.array([0, late]),
        "encoder_attention_mask": np.ones_like(source), "encoder_hidden_states": states,
    }  # fmt: skip
    logits, _ = step(decoder, inputs | caches)
    assert np.abs(logits[:, 0] - np.stack([expected[0, late + 1], expected[1, 1]])).max() < TOLERANCE


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
