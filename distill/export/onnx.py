"""Export of a model to float32 ONNX."""

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.models.forward import input_names

OPSET = 20


class _Logits(nn.Module):
    """The model as a plain function of its inputs, in order, which is what the exporter wants."""

    def __init__(self, model: PreTrainedModel, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(**dict(zip(self.names, inputs, strict=True))).logits
        return logits


def export_onnx(model: PreTrainedModel, path: Path) -> None:
    """Write `model` as float32 ONNX: `logits [B, C]` of the inputs that it reads `[B, L]`, B and L free."""
    names = input_names(model)
    exported = copy.deepcopy(model).cpu().float().eval()
    length = 9  # Neither 0 nor 1, which the exporter would take for fixed, nor a size of the model.
    example = {
        "input_ids": torch.randint(0, model.config.vocab_size, (2, length), generator=torch.Generator().manual_seed(0)),
        "attention_mask": torch.ones((2, length), dtype=torch.long),
        "token_type_ids": torch.zeros((2, length), dtype=torch.long),
    }
    example["attention_mask"][1, length // 2 :] = 0
    # What the first export of an LSTM leaves behind here fixes the length of the next one.
    torch.ops.aten.lstm.input._dispatch_cache.clear()
    with _silence(), torch.no_grad():
        program = torch.onnx.export(
            _Logits(exported, names),
            tuple(example[name] for name in names),
            dynamo=True,
            opset_version=OPSET,
            input_names=list(names),
            output_names=["logits"],
            dynamic_shapes=(tuple({0: "batch", 1: "length"} for _ in names),),
            verbose=False,
        )
    assert program is not None
    program.save(str(path))


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Without the exporter's account of its own passes, and its notices about libraries nobody asked for."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
