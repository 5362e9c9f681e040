"""A small model that fills the masks of targets, and its bundle."""

import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from distill.core.files import hash_file, write_json
from distill.models.architectures.modeling_mask_predict import MaskPredictConfig, MaskPredictForConditionalGeneration

WORDS = 30
PAD, START, END, UNKNOWN, MASK = range(5)
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
SIZE = WORDS + len(SPECIAL)


def make_tokenizer() -> PreTrainedTokenizerBase:
    """Returns a tokenizer of one token for each word `w0`, `w1` and so on, with tokens at both ends of a text."""
    vocabulary = {name: number for number, name in enumerate([*SPECIAL, *(f"w{word}" for word in range(WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", START), ("</s>", END)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        mask_token="<mask>", model_max_length=32,
    )  # fmt: skip


SIZES: dict[str, Any] = {
    "vocab_size": SIZE, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 32,
    "pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END, "decoder_start_token_id": END,
    "forced_eos_token_id": END, "init_std": 0.3,
}  # fmt: skip


def make_model(most_tokens: int = 12, *, layers: int = 2) -> MaskPredictForConditionalGeneration:
    torch.manual_seed(0)
    sizes = SIZES | {"encoder_layers": layers, "decoder_layers": layers}
    model = MaskPredictForConditionalGeneration(MaskPredictConfig(**sizes, most_tokens=most_tokens)).eval()
    model.model.decoder.embed_positions.weight.data.mul_(3)  # Else all masks of a target have the same token.
    return model


def write_fill_bundle(directory: Path, source: Path, **decoding: Any) -> None:
    """Writes the bundle of a model in `source`; `decoding` replaces values of that key of bundle.json."""
    names = ("model.onnx", "model.encoder.onnx", "tokenizer.json")
    if directory != source:
        for name in names[:2]:
            shutil.copyfile(source / name, directory / name)
    make_tokenizer().backend_tokenizer.save(str(directory / names[2]))
    content = {
        "format": 1, "kind": "mask_predict", "decoder": "mask_predict", "labels": [], "pair": False, "max_length": 16,
        "decoding": {"before": [START], "after": [END], "mask": MASK, "max_target": 12} | decoding,
        "truncation_side": "right", "doc_stride": None, "inputs": ["input_ids", "attention_mask"],
        "padding": {"input_ids": PAD, "attention_mask": 0}, "padding_side": "right", "models": {"fp32": names[0]},
        "recommended": "fp32", "metrics": {}, "gates": {}, "thresholds": {}, "targets": {}, "batch_sizes": {},
        "files": {name: hash_file(directory / name) for name in names},
    }  # fmt: skip
    write_json(directory / "bundle.json", content)
