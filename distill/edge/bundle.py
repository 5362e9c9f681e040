"""A bundle without torch: from text to predictions with onnxruntime, tokenizers and numpy."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from distill.edge import decode
from distill.errors import UserError
from distill.files import hash_file

FORMAT = 1


class Bundle:
    """An exported student: its tokenizer, its labels, and one of its models.

    Args:
        directory: holds bundle.json, tokenizer.json and the models.
        model: `fp32`, `int8`, or None for the one that the bundle recommends.
        threads: of onnxruntime; None leaves the choice to it.

    Raises:
        UserError: when the directory is no bundle, a file differs from its recorded SHA-256, or the model is not in it.
    """

    def __init__(self, directory: str | Path, *, model: str | None = None, threads: int | None = None) -> None:
        self.directory = Path(directory)
        self.about = read_about(self.directory)
        self.labels: list[str] = self.about["labels"]
        self.pair: bool = self.about["pair"]
        models: dict[str, str] = self.about["models"]
        self.model = self.about["recommended"] if model is None else model
        if self.model is None:
            raise UserError(f"{directory} recommends no model, all failed their check: name one of {', '.join(models)}")
        if self.model not in models:
            raise UserError(f"{directory} has no model {self.model}, expected one of {', '.join(models)}")
        for name in (models[self.model], "tokenizer.json"):
            if not (self.directory / name).is_file():
                raise UserError(f"{directory} is not whole: {name} is missing")
            if hash_file(self.directory / name) != self.about["files"].get(name):
                raise UserError(f"{self.directory / name} is damaged: its SHA-256 is not the one in bundle.json")
        self.tokenizer = Tokenizer.from_file(str(self.directory / "tokenizer.json"))
        self.tokenizer.enable_truncation(self.about["max_length"])
        self.tokenizer.no_padding()
        self.session = session(self.directory / models[self.model], threads)

    def logits(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, batch_size: int = 32
    ) -> NDArray[np.floating]:
        """Logits `[texts, C]`; texts of about one length are computed together."""
        if (pairs is not None) != self.pair:
            raise UserError(f"got {'pairs' if pairs is not None else 'single texts'}, the bundle reads {self._reads()}")
        inputs = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
        encodings: list[Encoding] = self.tokenizer.encode_batch(inputs)
        order = sorted(range(len(encodings)), key=lambda i: len(encodings[i].ids))
        rows: list[NDArray[np.floating]] = []
        for start in range(0, len(order), batch_size):
            batch = [encodings[i] for i in order[start : start + batch_size]]
            rows.extend(self.session.run(["logits"], self._feed(batch))[0])
        result = np.empty((len(encodings), len(self.labels)), dtype=np.float32)
        for i, row in zip(order, rows, strict=True):
            result[i] = row
        return result

    def predict(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[dict[str, object]]:
        """For every text: `label`, `probability`, and the `probabilities` of all labels; for a regression `value`."""
        logits = self.logits(texts, pairs)
        return decode.read_off(logits) if self.about["answer"] == "number" else decode.classify(logits, self.labels)

    def _feed(self, batch: Sequence[Encoding]) -> dict[str, NDArray[np.int64]]:
        """Inputs `[B, L]`, padded to the longest of the batch."""
        length = max(len(encoding.ids) for encoding in batch)
        sources = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        feed = {}
        for name in self.about["inputs"]:
            padding = self.about["padding"][name]
            array = np.full((len(batch), length), padding, dtype=np.int64)
            for row, encoding in enumerate(batch):
                values = getattr(encoding, sources[name])
                # The tokenizer pads on the side it was trained with.
                where = slice(-len(values), None) if self.about["padding_side"] == "left" else slice(len(values))
                array[row, where] = values
            feed[name] = array
        return feed

    def _reads(self) -> str:
        return "pairs" if self.pair else "single texts"


def read_about(directory: Path) -> dict[str, Any]:
    """The content of bundle.json; UserError when there is none that this version can read."""
    path = directory / "bundle.json"
    if not path.is_file():
        raise UserError(f"{directory} is no bundle: it has no bundle.json")
    try:
        about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if not isinstance(about, dict):
        raise UserError(f"{path} is damaged: expected an object")
    if about.get("format") != FORMAT:
        raise UserError(f"{path} is of format {about.get('format')}, this version of distill reads {FORMAT}")
    return about


def session(path: Path, threads: int | None = None) -> onnxruntime.InferenceSession:
    """An onnxruntime session on the CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
