"""Tests that the files of every architecture equal torch for all sizes of a batch, padded on each side or not."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from distill.edge.bundle_files import session
from distill.export.onnx import export_onnx
from distill.export.quantization import RecipeInput, write_dynamic
from distill.models.architectures.modeling_bilstm import BilstmConfig, BilstmForSequenceClassification
from distill.models.architectures.modeling_cnn import CnnConfig, CnnForSequenceClassification, CnnForTokenClassification
from distill.models.architectures.modeling_local import LocalDistilBertConfig  # type: ignore[attr-defined]
from distill.models.forward import input_names, run_model

LONGEST = 80
BATCHES, LENGTHS, SIDES = (1, 3, 8), (1, 7, 64, LONGEST), (None, "left", "right")
VOCABULARY = 60
FIRST_WORD = 5  # Ids below are special.
TOLERANCE = 2e-5
INT8_TOLERANCE = 0.25  # Of the largest logit.
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": LONGEST, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip


def build(
    config_class: type[PreTrainedConfig], head: str = "SequenceClassification", **options: Any
) -> PreTrainedModel:
    return getattr(transformers, f"AutoModelFor{head}").from_config(config_class(**SIZES | options))


def build_bilstm() -> PreTrainedModel:
    return BilstmForSequenceClassification(
        BilstmConfig(vocab_size=VOCABULARY, embedding_dim=8, hidden_dim=6, classifier_dim=8, pad_token_id=0)
    )


def build_cnn(head: type[PreTrainedModel], **options: Any) -> PreTrainedModel:
    model = head(CnnConfig(vocab_size=VOCABULARY, embedding_dim=8, hidden_dim=12, classifier_dim=8, **options))
    model.embeddings.weight.data.mul_(0.02)  # Nothing in the model limits its logits.
    return model


# Architecture -> a function that builds it, and whether a text padded on the left has the same logits.
MODELS: dict[str, tuple[Callable[[], PreTrainedModel], bool]] = {
    "distilbert": (
        lambda: build(transformers.DistilBertConfig, dim=16, n_layers=1, n_heads=2, hidden_dim=24), False,
    ),
    "bert": (lambda: build(transformers.BertConfig), False),
    "roberta": (
        lambda: build(
            transformers.RobertaConfig, pad_token_id=1, max_position_embeddings=LONGEST + 2, type_vocab_size=1
        ),
        False,
    ),
    "electra": (lambda: build(transformers.ElectraConfig, embedding_size=8), False),
    "albert": (lambda: build(transformers.AlbertConfig, embedding_size=8), False),
    "deberta": (
        lambda: build(
            transformers.DebertaV2Config, relative_attention=True, position_buckets=16, norm_rel_ebd="layer_norm",
            share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False, type_vocab_size=0,
            max_relative_positions=-1,
        ),
        False,
    ),
    # The mean of the tokens, because the first one is padding on the left.
    "modernbert": (
        lambda: build(
            transformers.ModernBertConfig, num_hidden_layers=2, global_attn_every_n_layers=2, local_attention=8,
            classifier_pooling="mean",
        ),
        True,
    ),
    "bilstm": (build_bilstm, True),
    "cnn": (lambda: build_cnn(CnnForSequenceClassification, widths=[2, 3, 4]), True),
    "cnn of pairs": (lambda: build_cnn(CnnForSequenceClassification, widths=[2, 3], pair=True, sep_token_id=9), True),
    "cnn of tags": (lambda: build_cnn(CnnForTokenClassification, dilations=[1, 2, 4]), True),
    # Half of the window divides none of the lengths.
    "local": (
        lambda: build(
            LocalDistilBertConfig, dim=16, n_layers=1, n_heads=2, hidden_dim=24, attention_window=24, global_tokens=2
        ),
        False,
    ),
    # Decoders read the last token, and GPT-2 counts positions from the padding.
    "gpt2": (lambda: build(transformers.GPT2Config), False),
    "llama": (lambda: build(transformers.LlamaConfig, num_key_value_heads=1), True),
    "qwen2": (lambda: build(transformers.Qwen2Config, num_key_value_heads=1), True),
    "qwen3": (lambda: build(transformers.Qwen3Config, num_key_value_heads=1, head_dim=8), True),
    "opt": (lambda: build(transformers.OPTConfig, ffn_dim=24, word_embed_proj_dim=16), True),
    "gpt_neox": (lambda: build(transformers.GPTNeoXConfig), True),
}  # fmt: skip
# Exports of 4 to 13 s.
SLOW = dict.fromkeys(("local", "gpt2", "llama", "qwen2", "qwen3", "opt", "gpt_neox"), pytest.mark.slow)


@dataclass(frozen=True)
class Case:
    """Inputs `[B, L]`, and the lengths of the texts without padding, `[B]`."""

    inputs: dict[str, np.ndarray]
    lengths: list[int]
    side: str | None

    def text(self, row: int) -> slice:
        """Returns the columns of a row that are no padding."""
        end = self.inputs["input_ids"].shape[1]
        return slice(end - self.lengths[row], end) if self.side == "left" else slice(self.lengths[row])

    def alone(self, row: int) -> dict[str, np.ndarray]:
        """Returns a row as a batch of its own without padding."""
        return {name: values[row : row + 1, self.text(row)] for name, values in self.inputs.items()}

    def select(self, logits: np.ndarray, row: int) -> np.ndarray:
        """Returns the logits `[C]` of a row, or those of its tokens `[tokens, C]`."""
        return logits[row] if logits.ndim == 2 else logits[row, self.text(row)]


def make_case(model: PreTrainedModel, batch: int, length: int, side: str | None) -> Case:
    random = np.random.default_rng(100 * batch + length)
    lengths = [length if side is None or row == 0 else max(1, length // (row + 1)) for row in range(batch)]
    inputs = {
        "input_ids": np.full((batch, length), model.config.pad_token_id),
        "attention_mask": np.zeros((batch, length), dtype=np.int64),
        "token_type_ids": np.zeros((batch, length), dtype=np.int64),
    }
    case = Case({name: inputs[name] for name in input_names(model)}, lengths, side)
    types = getattr(model.config, "type_vocab_size", 1) or 1
    for row, count in enumerate(lengths):
        inputs["input_ids"][row, case.text(row)] = random.integers(FIRST_WORD, VOCABULARY, count)
        inputs["attention_mask"][row, case.text(row)] = 1
        inputs["token_type_ids"][row, case.text(row)] = random.integers(0, types, count)
    return case


def cases(model: PreTrainedModel) -> Iterator[Case]:
    for batch, length, side in itertools.product(BATCHES, LENGTHS, SIDES):
        yield make_case(model, batch, length, side)


@pytest.mark.parametrize(
    "config_class",
    [
        transformers.BertConfig,
    ],
)
def test_a_language_model_has_the_logits_of_torch_at_the_positions(
    config_class: type[PreTrainedConfig], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    own = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24} if "Distil" in config_class.__name__ else {}
    model = build(config_class, head="MaskedLM", **own).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(8)
    export_onnx(model, tmp_path / "model.onnx")
    write_dynamic(RecipeInput(tmp_path / "model.onnx", 7), tmp_path / "model.int8.onnx")
    fp32, int8 = (session(tmp_path / file, 1) for file in ("model.onnx", "model.int8.onnx"))
    for case in cases(model):
        batch, length = case.inputs["input_ids"].shape
        positions = np.random.default_rng(0).permutation(batch * length)[: max(1, batch * length // 5)]
        expected = run_torch(model, case.inputs).reshape(batch * length, -1)[positions]
        np.testing.assert_allclose(run_file(fp32, case.inputs | {"positions": positions}), expected, atol=TOLERANCE)
        quantized, largest = run_file(int8, case.inputs | {"positions": positions}), float(np.abs(expected).max())
        np.testing.assert_allclose(quantized, expected, atol=INT8_TOLERANCE * max(1.0, largest))


@pytest.mark.parametrize(
    "name",
    [
        "distilbert",
    ],
)
def test_a_structure_that_was_exported_before_has_the_weights_of_each_model(name: str, tmp_path: Path) -> None:
    model = MODELS[name][0]().eval()
    case = make_case(model, 2, 9, "right")
    for seed in (0, 1):
        torch.manual_seed(seed)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        export_onnx(model, tmp_path / f"{seed}.onnx")
        logits = run_file(session(tmp_path / f"{seed}.onnx", 1), case.inputs)
        np.testing.assert_allclose(logits, run_torch(model, case.inputs), rtol=1e-4, atol=1e-4)


def run_file(file: onnxruntime.InferenceSession, inputs: dict[str, np.ndarray]) -> np.ndarray:
    logits: np.ndarray = file.run(["logits"], inputs)[0]
    return logits


def run_torch(model: PreTrainedModel, inputs: dict[str, np.ndarray]) -> np.ndarray:
    with torch.no_grad():
        return run_model(model, {name: torch.from_numpy(values) for name, values in inputs.items()}).logits.numpy()


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in MODELS])
def test_a_file_equals_torch_and_padding_changes_nothing(name: str, tmp_path: Path) -> None:
    make, reads_left_padding = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(8)  # Large enough for differences to show.
    export_onnx(model, tmp_path / "model.onnx")
    write_dynamic(RecipeInput(tmp_path / "model.onnx", 7), tmp_path / "model.int8.onnx")
    fp32, int8 = (session(tmp_path / file, 1) for file in ("model.onnx", "model.int8.onnx"))
    for case in cases(model):
        expected, logits = run_torch(model, case.inputs), run_file(fp32, case.inputs)
        quantized, largest = run_file(int8, case.inputs), max(1.0, float(np.abs(expected).max()))
        assert len(case.lengths) == 1 or np.ptp(expected) > 100 * TOLERANCE
        for row in range(len(case.lengths)):
            of_row, of_torch = case.select(logits, row), case.select(expected, row)
            np.testing.assert_allclose(of_row, of_torch, atol=TOLERANCE)
            np.testing.assert_allclose(case.select(quantized, row), of_torch, atol=INT8_TOLERANCE * largest)
            if case.side == "right" or (case.side == "left" and reads_left_padding):
                alone = run_file(fp32, case.alone(row))[0]
                np.testing.assert_allclose(of_row, alone, atol=TOLERANCE)
