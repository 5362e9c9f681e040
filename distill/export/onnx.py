"""Export of a model to float32 ONNX."""

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.models.forward import POSITIONS, exported_inputs, run_exported, takes_choices

OPSET = 20
# From here on the weights are in a second file `NAME.data`, because a protobuf message holds 2 GB at most.
EXTERNAL_DATA_BYTES = 1_500_000_000


class _Logits(nn.Module):
    """The model as a function of positional inputs to logits, as the exporter requires."""

    def __init__(self, model: PreTrainedModel, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Tensor:
        return run_exported(self.model, dict(zip(self.names, inputs, strict=True)))


def export_onnx(model: PreTrainedModel, path: Path, *, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
    """Writes `model` as float32 ONNX: inputs `[B, L]` -> `logits`, with dynamic B and L.

    A model that `takes_choices` has inputs `[B, K, L]` and `logits [B, K]`, with dynamic K too. One that
    `predicts_tokens` has the further input `positions [n]` and `logits [n, V]`, as `run_exported`. The `logits` of an
    encoder of vectors are these, `[B, H]`.

    The files are those of `edge.model_files.list_model_files`, two for a large model.

    Args:
        tokenizer: makes the inputs; None for all that the model accepts.
    """
    names = exported_inputs(model, tokenizer)
    exported = copy.deepcopy(model).cpu().float().eval()
    if getattr(exported.config, "_attn_implementation", None) == "sdpa":
        # torch's function is exported with two reshapes of the keys, and with checks for rows that attend to nothing.
        exported.set_attn_implementation("eager")
    # The exporter would treat 0, 1 or a size of the model as a fixed size.
    axes = {"batch": 2, "choices": 5, "length": 9} if takes_choices(model) else {"batch": 2, "length": 9}
    shape = tuple(axes.values())
    example = {
        "input_ids": torch.randint(0, model.config.vocab_size, shape, generator=torch.Generator().manual_seed(0)),
        "attention_mask": torch.ones(shape, dtype=torch.long),
        "token_type_ids": torch.zeros(shape, dtype=torch.long),
        POSITIONS: torch.tensor([1, 3, 10]),
    }
    example["attention_mask"][1, ..., axes["length"] // 2 :] = 0
    shapes = (tuple({0: "tokens"} if name == POSITIONS else dict(enumerate(axes)) for name in names),)
    values = tuple(example[name] for name in names)
    save_program(_Logits(exported, names), values, path, inputs=names, outputs=["logits"], shapes=shapes)


def save_program(
    module: nn.Module,
    example: tuple[Tensor, ...],
    path: Path,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    shapes: tuple[Any, ...],
) -> None:
    """Writes a module as ONNX, two files for a large one.

    Args:
        shapes: the dynamic axes of each input, as `torch.onnx.export` takes them.
    """
    # The cache entry of an exported LSTM would fix the length in the next export.
    torch.ops.aten.lstm.input._dispatch_cache.clear()
    with _silence_exporter(), torch.no_grad():
        program = torch.onnx.export(
            module,
            example,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=shapes,
            verbose=False,
        )
    assert program is not None
    _keep_residuals_apart(program)
    size = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
    program.save(str(path), external_data=size > EXTERNAL_DATA_BYTES)


def _keep_residuals_apart(program: torch.onnx.ONNXProgram) -> None:
    """Makes each `Add` before a `LayerNormalization` a `Sum`, the same operation.

    ONNX Runtime would fuse the two into `SkipLayerNormalization`, whose kernel for the CPU takes three times as long as
    both (version 1.31, 128 tokens of 768).
    """
    for node in program.model.graph:
        readers = [reader.op_type for output in node.outputs for reader, _ in output.uses()]
        if node.op_type == "Add" and "LayerNormalization" in readers:
            node.op_type = "Sum"


@contextlib.contextmanager
def _silence_exporter() -> Iterator[None]:
    """Silences the exporter's progress messages, its warnings, and the graph that it prints where it fails."""
    names = ("torch.onnx", "torch.export", "torch.fx.experimental.symbolic_shapes", "onnxscript", "onnx_ir")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        hidden = io.StringIO()
        with (
            warnings.catch_warnings(), contextlib.redirect_stdout(hidden), contextlib.redirect_stderr(hidden)
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
