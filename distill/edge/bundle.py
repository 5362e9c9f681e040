"""Reads a bundle and predicts with onnxruntime, tokenizers and numpy."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from distill.edge import decode
from distill.errors import UserError
from distill.files import JsonObject, hash_file

FORMAT = 3
READABLE = (1, 2, 3)
Tokens = list[int | None] | None  # The token of each item; None if a text has one row of logits.


class Bundle:
    """An exported student: its tokenizer, its labels, and one of its models.

    Args:
        directory: contains bundle.json, tokenizer.json and the models.
        model: `fp32`, `int8`, or None for the recommended one.
        threads: number of threads of onnxruntime; None uses its default.

    Raises:
        UserError: if the directory is not a bundle or lacks the model, or a file does not match its SHA-256.
    """

    def __init__(self, directory: str | Path, *, model: str | None = None, threads: int | None = None) -> None:
        self.directory = Path(directory)
        self.manifest = read_manifest(self.directory)
        self.labels: list[str] = self.manifest["labels"]
        self.pair: bool = self.manifest["pair"]
        self.decoder: decode.Decoder = _create_decoder(self.manifest, self.directory)
        models: dict[str, str] = self.manifest["models"]
        self.model = self.manifest["recommended"] if model is None else model
        if self.model is None:
            raise UserError(
                f"{directory} recommends no model because all failed the gate: choose one of {', '.join(models)}"
            )
        if self.model not in models:
            raise UserError(f"{directory} has no model {self.model}, expected one of {', '.join(models)}")
        data = data_file(Path(models[self.model])).name
        for name in (models[self.model], *self.manifest["files"].keys() & {data}, "tokenizer.json"):
            if not (self.directory / name).is_file():
                raise UserError(f"{directory} is incomplete: {name} is missing")
            if hash_file(self.directory / name) != self.manifest["files"].get(name):
                raise UserError(f"{self.directory / name} is damaged: its SHA-256 is not the one in bundle.json")
        self.tokenizer = Tokenizer.from_file(str(self.directory / "tokenizer.json"))
        # Formats 1 and 2 have no side. Training cuts the longer text of a pair first, which is the default here too.
        self.truncation_side: str = self.manifest.get("truncation_side", "right")
        self.tokenizer.enable_truncation(self.manifest["max_length"], direction=self.truncation_side)
        self.tokenizer.no_padding()
        self.session = session(self.directory / models[self.model], threads)

    def item_logits(self, records: Sequence[decode.Record], *, batch_size: int = 32) -> list[NDArray[np.floating]]:
        """Returns the logits `[n, C]` of the items of each record. Records of similar length share a batch."""
        examples = [self.decoder.read(record) for record in records]
        return [logits for _, logits in self._run(examples, batch_size)]

    def logits(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, batch_size: int = 32
    ) -> NDArray[np.floating]:
        """Returns the logits `[texts, C]` of a model with one row of logits for each text."""
        rows = self.item_logits(self._records(texts, pairs), batch_size=batch_size)
        return np.concatenate(rows) if rows else np.empty((0, len(self.labels)), dtype=np.float32)

    def predict(
        self, records: Sequence[decode.Record], pairs: Sequence[str] | None = None, *, batch_size: int = 32
    ) -> list[decode.Prediction]:
        """Returns the prediction for each record, or for each text and its pair.

        For classes it has `label`, `probability` and the `probabilities` of all labels, for a number `value`.
        """
        examples = [self.decoder.read(record) for record in self._records(records, pairs)]
        outputs = self._run(examples, batch_size)
        return [
            self.decoder.decode(example, items, logits)
            for example, (items, logits) in zip(examples, outputs, strict=True)
        ]

    def _records(self, records: Sequence[decode.Record], pairs: Sequence[str] | None) -> list[decode.Record]:
        if pairs is None:
            return list(records)
        if not self.pair:
            raise UserError("got pairs, the bundle reads single texts: leave out pairs")
        return [list(pair) for pair in zip(cast(Sequence[str], records), pairs, strict=True)]

    def _run(self, examples: Sequence[decode.Example], batch_size: int) -> list[tuple[Tokens, NDArray[np.floating]]]:
        """Returns the tokens of the items of each example, and their logits `[n, C]`."""
        inputs = [example.text if example.pair is None else (example.text, example.pair) for example in examples]
        encodings: list[Encoding] = self.tokenizer.encode_batch(inputs)
        order = sorted(range(len(encodings)), key=lambda i: len(encodings[i].ids))
        outputs: list[Any] = [None] * len(encodings)
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            logits = self.session.run(["logits"], self._make_inputs([encodings[i] for i in batch]))[0]
            for row, i in enumerate(batch):
                outputs[i] = self._select_items(examples[i], encodings[i], logits[row])
        return outputs

    def _select_items(
        self, example: decode.Example, encoding: Encoding, logits: NDArray[np.floating]
    ) -> tuple[Tokens, NDArray[np.floating]]:
        """Returns the items' tokens and logits `[n, C]`, from logits `[C]` of the text or `[L, C]` of its tokens."""
        tokens = self.decoder.items(example, encoding.offsets, encoding.special_tokens_mask)
        if tokens is None:
            return None, np.asarray(logits[None])
        if self.truncation_side == "left":
            cut = _find_cut(encoding)
            tokens = [None if start < cut else token for (start, _), token in zip(example.words, tokens, strict=True)]
        padding = len(logits) - len(encoding.ids) if self.manifest["padding_side"] == "left" else 0
        rows = [padding + token for token in tokens if token is not None]
        return tokens, np.asarray(logits[rows])

    def _make_inputs(self, batch: Sequence[Encoding]) -> dict[str, NDArray[np.int64]]:
        """Returns the model's inputs `[B, L]`, padded to the longest of the batch."""
        length = max(len(encoding.ids) for encoding in batch)
        sources = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        inputs = {}
        for name in self.manifest["inputs"]:
            padding = self.manifest["padding"][name]
            array = np.full((len(batch), length), padding, dtype=np.int64)
            for row, encoding in enumerate(batch):
                values = getattr(encoding, sources[name])
                columns = slice(-len(values), None) if self.manifest["padding_side"] == "left" else slice(len(values))
                array[row, columns] = values
            inputs[name] = array
        return inputs


def _find_cut(encoding: Encoding) -> int:
    """Returns the end of the last token that was truncated on the left, in characters; 0 if none was."""
    cut = (
        end
        for part in encoding.overflowing
        for (_, end), special in zip(part.offsets, part.special_tokens_mask, strict=True)
        if not special
    )
    return max(cut, default=0)


def read_manifest(directory: Path) -> dict[str, Any]:
    """Returns the content of bundle.json.

    Raises:
        UserError: if it is missing, damaged or of an unknown format.
    """
    path = directory / "bundle.json"
    if not path.is_file():
        raise UserError(f"{directory} is no bundle: it has no bundle.json")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if not isinstance(manifest, dict):
        raise UserError(f"{path} is damaged: expected a JSON object")
    if manifest.get("format") not in READABLE:
        raise UserError(
            f"{path} is of format {manifest.get('format')}, this version of distill reads 1, 2 and 3: update distill"
        )
    return manifest


def _create_decoder(manifest: JsonObject, directory: Path) -> decode.Decoder:
    # Format 1 has `answer` instead of `decoder`.
    name = manifest.get("decoder", manifest.get("answer"))
    if name not in decode.DECODERS:
        known = ", ".join(decode.DECODERS)
        raise UserError(f"{directory} needs the decoder {name}, this version of distill has {known}: update distill")
    return decode.DECODERS[name](manifest["labels"], manifest["pair"])


def data_file(path: Path) -> Path:
    """Returns the second file of an ONNX model, which has the weights of a large one."""
    return path.with_name(f"{path.name}.data")


def list_model_files(path: Path) -> list[Path]:
    """Returns the files of an ONNX model: `path`, and `data_file(path)` if it exists."""
    return [path, *(data for data in (data_file(path),) if data.is_file())]


def count_bytes(path: Path) -> int:
    """Returns the size of an ONNX model with all of its files."""
    return sum(file.stat().st_size for file in list_model_files(path))


def session(path: Path, threads: int | None = None) -> onnxruntime.InferenceSession:
    """Returns an onnxruntime session on the CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
