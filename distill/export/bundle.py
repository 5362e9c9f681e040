"""The bundle that travels to a device: both ONNX files, scored again as they will be shipped, with their tokenizer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.contracts import Scores, Splits, Task
from distill.edge import bundle as edge
from distill.edge import decode
from distill.export.gate import ExportedFile, compare, passes, recommended
from distill.export.onnx import export_onnx
from distill.export.quantization import quantize
from distill.export.settings import ExportSettings
from distill.files import hash_file, write_json
from distill.models.forward import input_names

FILES = {"fp32": "model.onnx", "int8": "model.int8.onnx"}


class RawSplit(Protocol):
    """The raw examples of a split."""

    def records(self) -> Sequence[decode.Record]:
        """The examples as a bundle reads them."""
        ...


class ScoredSplits(Splits, Protocol):
    """The data of a task whose students are exported."""

    def scored(self) -> Mapping[str, RawSplit]:
        """The splits that are scored, dev first."""
        ...


def write_bundle(
    directory: Path,
    *,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    splits: ScoredSplits,
    scores: Mapping[str, Scores],
    settings: ExportSettings,
) -> dict[str, ExportedFile]:
    """Fills `directory` with a bundle and returns run.json's `export`: each file scored through ONNX Runtime.

    The files are read back as a device reads them, from the text on, and compared with the torch model's `scores`. A
    file whose gate failed is never recommended.
    """
    export_onnx(model, directory / FILES["fp32"])
    recipes = {
        "fp32": "float32",
        "int8": quantize(directory / FILES["fp32"], directory / FILES["int8"], settings),
    }
    _save_tokenizer(tokenizer, directory / "tokenizer.json")
    about = _describe(directory, model=model, tokenizer=tokenizer, task=task, splits=splits)
    write_json(directory / "bundle.json", about)
    formats: dict[str, ExportedFile] = {}
    for name, file in FILES.items():
        bundle = edge.Bundle(directory, model=name)
        exported = {split: _score(bundle, splits.scored()[split], of_torch) for split, of_torch in scores.items()}
        row = compare(exported, scores, task=task)
        formats[name] = {
            "file": file, "bytes": (directory / file).stat().st_size, **row,
            "gate": "passed" if passes(name, row, settings) else "failed", "recipe": recipes[name],
        }  # fmt: skip
    about["metrics"] = {name: row["metrics"] for name, row in formats.items()}
    about["recommended"] = recommended(formats)
    write_json(directory / "bundle.json", about)
    return formats


def _describe(
    directory: Path, *, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, splits: Splits
) -> dict[str, Any]:
    """The content of bundle.json before the files of `directory` are scored: no metrics, and no file recommended."""
    return {
        "format": edge.FORMAT,
        "kind": task.kind,
        "decoder": task.decoder,
        "task": task.name,
        "pair": task.pair,
        **{name: value for name, value in task.describe(splits).items() if name in ("answer", "labels")},
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
        "files": {name: hash_file(directory / name) for name in (*FILES.values(), "tokenizer.json")},
    }


def _score(bundle: edge.Bundle, split: RawSplit, reference: Scores) -> Scores:
    """The scores of a bundle on the raw examples of a split, for the same items as torch's.

    Raises:
        ValueError: for a bundle that finds other items in a text than torch does.
    """
    logits = bundle.item_logits(split.records())
    counts = [len(of_example) for of_example in logits]
    expected = np.bincount(reference.example_id, minlength=len(counts)).tolist()
    if counts != expected:
        example = next(i for i, (got, wanted) in enumerate(zip(counts, expected, strict=True)) if got != wanted)
        raise ValueError(
            f"the bundle has {counts[example]} items in example {example + 1}, expected {expected[example]} as in torch"
        )
    return Scores({"logits": np.concatenate(logits)}, reference.labels, reference.example_id)


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise TypeError(f"{type(tokenizer).__name__} has no fast version, and a bundle needs tokenizer.json")
    backend.save(str(path))
