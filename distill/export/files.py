"""The float32 file of a model, of either kind."""

from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.export.generator import export_generator
from distill.export.onnx import export_onnx


def export_model(model: PreTrainedModel, path: Path, *, tokenizer: PreTrainedTokenizerBase, generates: bool) -> None:
    """Writes a model as float32 ONNX, with caches if it writes text (`generates`)."""
    if generates:
        export_generator(model, path)
    else:
        export_onnx(model, path, tokenizer=tokenizer)
