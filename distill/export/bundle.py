"""Writes a bundle: the float32 and int8 ONNX files with their tokenizer, scored through the edge runtime."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.contracts import Scores, Splits, Task
from distill.edge import bundle as edge
from distill.edge import decode
from distill.edge.manifest import FORMAT
from distill.export.abstention import measure_abstention
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
        """Returns the examples in the form that `edge.Bundle` reads."""
        ...


class ScoredSplits(Splits, Protocol):
    """The data of a task whose students are exported."""

    def scored(self) -> Mapping[str, RawSplit]:
        """Returns the splits that are scored, dev first."""
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
) -> tuple[dict[str, ExportedFile], dict[str, dict[str, Scores]]]:
    """Writes a bundle to `directory` and returns the `export` of run.json, and the scores of each file by split.

    Each file is scored through ONNX Runtime, from raw text, and compared with `scores`, those of the torch model. A
    file whose gate failed is never recommended.
    """
    export_onnx(model, directory / FILES["fp32"], tokenizer=tokenizer)
    recipes = {
        "fp32": "float32",
        "int8": quantize(directory / FILES["fp32"], directory / FILES["int8"], settings),
    }
    _save_tokenizer(tokenizer, directory / "tokenizer.json")
    manifest = _create_manifest(directory, model=model, tokenizer=tokenizer, task=task, splits=splits)
    write_json(directory / "bundle.json", manifest)
    formats: dict[str, ExportedFile] = {}
    file_scores: dict[str, dict[str, Scores]] = {}
    share = settings.abstain
    for name, file in FILES.items():
        bundle = edge.Bundle(directory, model=name)
        file_scores[name] = {
            split: _score(bundle, splits.scored()[split], torch_scores) for split, torch_scores in scores.items()
        }
        comparison = compare(file_scores[name], scores, task=task)
        formats[name] = {
            "file": file, "bytes": edge.count_bytes(directory / file), **comparison,
            "gate": "passed" if passes(name, comparison, settings) else "failed", "recipe": recipes[name],
            "abstain": None if share is None else measure_abstention(file_scores[name], task=task, share=share),
        }  # fmt: skip
    manifest["metrics"] = {name: row["metrics"] for name, row in formats.items()}
    manifest["recommended"] = recommended(formats)
    manifest["thresholds"] = {name: row["abstain"]["threshold"] for name, row in formats.items() if row["abstain"]}
    write_json(directory / "bundle.json", manifest)
    return formats, file_scores


def _create_manifest(
    directory: Path, *, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, splits: Splits
) -> dict[str, Any]:
    """Returns the content of bundle.json for the files in `directory`, without what follows from their scores."""
    models = [path for file in FILES.values() for path in edge.list_model_files(directory / file)]
    files = [*models, directory / "tokenizer.json"]
    return {
        "format": FORMAT,
        "kind": task.kind,
        "decoder": task.decoder,
        "task": task.name,
        "pair": task.pair,
        **{name: value for name, value in task.describe(splits).items() if name in ("answer", "labels")},
        "max_length": task.max_length,
        "truncation_side": tokenizer.truncation_side,
        "inputs": input_names(model, tokenizer),
        "padding": {
            "input_ids": tokenizer.pad_token_id,
            "attention_mask": 0,
            "token_type_ids": tokenizer.pad_token_type_id,
        },
        "padding_side": tokenizer.padding_side,
        "models": FILES,
        "recommended": None,
        "metrics": {},
        "thresholds": {},
        "files": {path.name: hash_file(path) for path in files},
    }


def _score(bundle: edge.Bundle, split: RawSplit, reference: Scores) -> Scores:
    """Returns the scores of a bundle on the raw examples of a split.

    Raises:
        ValueError: if an example has another number of items than in `reference`, the scores of the torch model.
    """
    logits = bundle.item_logits(split.records())
    counts = [len(item_logits) for item_logits in logits]
    expected = np.bincount(reference.example_id, minlength=len(counts)).tolist()
    if counts != expected:
        example = next(i for i, pair in enumerate(zip(counts, expected, strict=True)) if pair[0] != pair[1])
        raise ValueError(
            f"the bundle has {counts[example]} items in example {example + 1}, expected {expected[example]} as in torch"
        )
    return Scores({"logits": np.concatenate(logits)}, reference.labels, reference.example_id)


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise TypeError(f"{type(tokenizer).__name__} has no fast version, and a bundle needs tokenizer.json")
    backend.save(str(path))
