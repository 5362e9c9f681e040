"""From a trained model to a bundle: ONNX, quantized, and scored again on dev as it will be shipped."""

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.data.tables import Split
from distill.edge.bundle import FORMAT, Bundle
from distill.export.settings import ExportSettings
from distill.files import sha256, write_json
from distill.models.forward import input_names
from distill.tasks import SequenceTask

FILES = {"fp32": "model.onnx", "int8": "model.int8.onnx"}
FP32_AGREEMENT = 0.999
ROUNDING = 1e-9  # 0.762 - 0.752 is a little more than 0.01.
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


def quantize(fp32: Path, int8: Path, settings: ExportSettings) -> str:
    """Write an int8 copy (weights ahead of time, activations on the fly) and return the recipe in words."""
    graph = onnx.load(str(fp32))
    del graph.graph.value_info[:]  # Shapes of the exporter's example would contradict the quantized graph.
    cleaned = int8.with_suffix(".cleaned")
    onnx.save(graph, str(cleaned))
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # It advises a preparation that changes nothing for these graphs.
    try:
        quantize_dynamic(
            cleaned, int8, weight_type=QuantType.QInt8, per_channel=settings.per_channel,
            reduce_range=settings.reduce_range, nodes_to_exclude=_small_tables(graph),
        )  # fmt: skip
    finally:
        root.setLevel(level)
        cleaned.unlink()
    bits = "7-bit range" if settings.reduce_range else "8-bit range"
    return (
        f"dynamic, weights {'per channel' if settings.per_channel else 'per tensor'} in a {bits}, positions in float32"
    )


def _small_tables(graph: onnx.ModelProto) -> list[str]:
    """Look-ups in every table but the largest, by the names of their nodes.

    A table has one scale for all its rows. Left in float32, the positions of a DistilBERT of 70 MB cost 0.6 MB, and
    int8 lost 0.000 on SST-2 where it had lost 0.010.
    """
    sizes = {tensor.name: int(np.prod(tensor.dims)) for tensor in graph.graph.initializer}
    tables = {
        node.name: sizes[node.input[0]]
        for node in graph.graph.node
        if node.op_type == "Gather" and node.input[0] in sizes
    }
    largest = max(tables, key=lambda name: tables[name], default=None)
    return [name for name in tables if name != largest]


def write_bundle(
    directory: Path,
    *,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: SequenceTask,
    labels: Sequence[str],
    splits: Mapping[str, Split],
    logits: Mapping[str, np.ndarray],
    settings: ExportSettings,
) -> dict[str, dict[str, Any]]:
    """Fill `directory` with a bundle and return run.json's `export`: each file scored through ONNX Runtime.

    `logits` are the torch model's `[N, C]` on each of the `splits`, of which dev decides. The files are read back the
    way a device reads them, from the text on. The gate of fp32 asks for an agreement of `FP32_AGREEMENT` too. What
    failed its gate is never recommended.
    """
    export_onnx(model, directory / FILES["fp32"])
    recipes = {
        "fp32": "float32",
        "int8": quantize(directory / FILES["fp32"], directory / FILES["int8"], settings),
    }
    _save_tokenizer(tokenizer, directory / "tokenizer.json")
    about: dict[str, Any] = {
        "format": FORMAT,
        "kind": task.kind,
        "answer": task.answer,
        "task": task.name,
        "labels": list(labels),
        "pair": len(task.text) == 2,
        "max_length": task.max_length,
        "inputs": input_names(model),
        "padding": {
            "input_ids": tokenizer.pad_token_id,
            "attention_mask": 0,
            "token_type_ids": tokenizer.pad_token_type_id,
        },
        "padding_side": tokenizer.padding_side,
        "models": FILES,
        "recommended": None,
        "metrics": {},
        "files": {name: sha256(directory / name) for name in (*FILES.values(), "tokenizer.json")},
    }
    write_json(directory / "bundle.json", about)
    labels_of = {name: split.labels for name, split in splits.items()}
    formats = {}
    for name, file in FILES.items():
        bundle = Bundle(directory, model=name)
        answers = {split: bundle.logits(rows.texts, rows.pairs) for split, rows in splits.items()}
        row = check(answers, logits, labels_of, task=task)
        formats[name] = {
            "file": file, "bytes": (directory / file).stat().st_size, **row,
            "gate": "passed" if passes(name, row, settings) else "failed", "recipe": recipes[name],
        }  # fmt: skip
    about["metrics"] = {name: row["metrics"] for name, row in formats.items()}
    about["recommended"] = recommended(formats)
    write_json(directory / "bundle.json", about)
    return formats


def check(
    logits: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
    *,
    task: SequenceTask,
) -> dict[str, Any]:
    """How an exported file's `logits` (split -> `[N, C]`) compare with torch's, on dev but for the `metrics`.

    `drop` is what the task's metric lost, below 0 a gain.
    """
    metrics = task.split_metrics(logits, labels)
    before = task.metrics(reference["dev"], labels["dev"])
    return {
        "max_abs_diff": float(np.abs(logits["dev"] - reference["dev"]).max()),
        "agreement": task.agreement(logits["dev"], reference["dev"]),
        "metrics": metrics,
        "drop": before[task.metric] - metrics[task.metric],
    }


def passes(name: str, row: Mapping[str, Any], settings: ExportSettings) -> bool:
    """Whether a file kept enough of the metric, and as fp32 said the same as torch besides."""
    kept: bool = row["drop"] <= settings.max_drop + ROUNDING
    return kept and (name != "fp32" or row["agreement"] >= FP32_AGREEMENT)


def recommended(formats: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The smallest file whose gate passed; None where all failed."""
    passed = [name for name, row in formats.items() if row["gate"] == "passed"]
    return min(passed, key=lambda name: int(formats[name]["bytes"]), default=None)


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise TypeError(f"{type(tokenizer).__name__} has no fast version, and a bundle needs tokenizer.json")
    backend.save(str(path))


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
