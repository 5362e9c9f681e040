"""The float32 file of a model, of any kind."""

from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.export.generator import export_generator
from distill.export.mask_predictor import export_mask_predictor
from distill.export.onnx import export_onnx
from distill.models.forward import fills_targets


def export_model(model: PreTrainedModel, path: Path, *, tokenizer: PreTrainedTokenizerBase, generates: bool) -> None:
    """Writes a model as float32 ONNX, with caches if it writes text (`generates`).

    One that fills the masks of targets has an encoder beside it.
    """
    if fills_targets(model):
        export_mask_predictor(model, path)
    elif generates:
        export_generator(model, path)
    else:
        export_onnx(model, path, tokenizer=tokenizer)
