"""Tests that the files of every architecture equal torch for all sizes of a batch, padded on each side or not."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from transformers import PreTrainedModel

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


def build_bilstm() -> PreTrainedModel:
    return BilstmForSequenceClassification(
        BilstmConfig(vocab_size=VOCABULARY, embedding_dim=8, hidden_dim=6, classifier_dim=8, pad_token_id=0)
    )


def build_cnn(head: type[PreTrainedModel], **options: Any) -> PreTrainedModel:
    model = head(CnnConfig(vocab_size=VOCABULARY, embedding_dim=8, hidden_dim=12, classifier_dim=8, **options))
    model.embeddings.weight.data.mul_(0.02)  # Nothing in the model limits its logits.
    return model


def build_local() -> PreTrainedModel:
    """Half of the window divides none of the lengths."""
    sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24, "attention_window": 24, "global_tokens": 2}
    return transformers.AutoModelForSequenceClassification.from_config(LocalDistilBertConfig(**SIZES | sizes))


FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"pad_token_id": 1, "max_position_embeddings": LONGEST + 2, "type_vocab_size": 1},
    "electra": {"embedding_size": 8},
    "albert": {"embedding_size": 8},
    "deberta-v2": {
        "relative_attention": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0,
        "max_relative_positions": -1,
    },
    # The mean of the tokens, because the first one is padding on the left.
    "modernbert": {
        "num_hidden_layers": 2, "global_attn_every_n_layers": 2, "local_attention": 8, "classifier_pooling": "mean",
    },
    # Decoders read the last token, and GPT-2 counts positions from the padding.
    "gpt2": {},
    "llama": {"num_key_value_heads": 1},
    "qwen2": {"num_key_value_heads": 1},
    "qwen3": {"num_key_value_heads": 1, "head_dim": 8},
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": 16},
    "gpt_neox": {},
}  # fmt: skip
OWN: dict[str, Callable[[], PreTrainedModel]] = {
    "cnn of pairs": lambda: build_cnn(CnnForSequenceClassification, widths=[2, 3], pair=True, sep_token_id=9),
    "cnn of tags": lambda: build_cnn(CnnForTokenClassification, dilations=[1, 2, 4]),
    "local": build_local,
}
# A text that is padded on the left has the same logits.
READS_LEFT_PADDING = {"modernbert", "cnn of pairs", "cnn of tags", "llama", "qwen2", "qwen3", "opt", "gpt_neox"}
QUICK = ("deberta-v2",)  # Each of the others is traced for seconds too.


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


def run_file(file: onnxruntime.InferenceSession, inputs: dict[str, np.ndarray]) -> np.ndarray:
    logits: np.ndarray = file.run(["logits"], inputs)[0]
    return logits


def run_torch(model: PreTrainedModel, inputs: dict[str, np.ndarray]) -> np.ndarray:
    with torch.no_grad():
        return run_model(model, {name: torch.from_numpy(values) for name, values in inputs.items()}).logits.numpy()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in (*FAMILIES, *OWN)]
)
def test_a_file_equals_torch_and_padding_changes_nothing(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    if name in OWN:
        model = OWN[name]().eval()
    else:
        config = transformers.AutoConfig.for_model(name, **SIZES | FAMILIES[name])
        model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(8)  # Large enough for differences to show.
    export_onnx(model, tmp_path / "model.onnx")
    write_dynamic(RecipeInput(tmp_path / "model.onnx", 7), tmp_path / "model.int8.onnx")
    fp32, int8 = (session(tmp_path / file, 1) for file in ("model.onnx", "model.int8.onnx"))
    for batch, length, side in itertools.product(BATCHES, LENGTHS, SIDES):
        case = make_case(model, batch, length, side)
        expected, logits = run_torch(model, case.inputs), run_file(fp32, case.inputs)
        quantized, largest = run_file(int8, case.inputs), max(1.0, float(np.abs(expected).max()))
        assert len(case.lengths) == 1 or np.ptp(expected) > 100 * TOLERANCE
        for row in range(len(case.lengths)):
            of_row, of_torch = case.select(logits, row), case.select(expected, row)
            np.testing.assert_allclose(of_row, of_torch, atol=TOLERANCE)
            np.testing.assert_allclose(case.select(quantized, row), of_torch, atol=INT8_TOLERANCE * largest)
            if case.side == "right" or (case.side == "left" and name in READS_LEFT_PADDING):
                alone = run_file(fp32, case.alone(row))[0]
                np.testing.assert_allclose(of_row, alone, atol=TOLERANCE)
