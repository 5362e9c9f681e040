"""Predicts with a bundle through onnxruntime, tokenizers and numpy."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime
import tokenizers
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from distill.edge import decode
from distill.edge.manifest import read_manifest
from distill.edge.processor import ANY, runs, this_target
from distill.errors import UserError, first_line
from distill.files import hash_file

MOST_THREADS = 1024
SOURCES = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
Tokens = list[int | None] | None  # The token of each item; None if a text has one row of logits.


class Bundle:
    """An exported student: its tokenizer, its labels, and one of its models.

    Args:
        directory: contains bundle.json, tokenizer.json and the models.
        model: `fp32`, `int8`, or None for the recommended one.
        threads: number of threads of onnxruntime; None uses its default.

    Raises:
        UserError: if the directory is not a bundle or lacks the model, or a file is damaged.
    """

    def __init__(self, directory: str | Path, *, model: str | None = None, threads: int | None = None) -> None:
        if threads is not None:
            _check_count("threads", threads, most=MOST_THREADS)
        self.directory = Path(directory)
        self.manifest = read_manifest(self.directory)
        self.labels: list[str] = self.manifest["labels"]
        self.pair: bool = self.manifest["pair"]
        self.truncation_side: str = self.manifest["truncation_side"]
        self.decoder = _create_decoder(self.manifest["decoder"], self.labels, self.pair, self.directory)
        models: dict[str, str] = self.manifest["models"]
        self.model = self.manifest["recommended"] if model is None else model
        if self.model is None:
            raise UserError(
                f"{directory} recommends no model because all failed the gate: choose one of {', '.join(models)}"
            )
        if self.model not in models:
            raise UserError(f"{directory} has no model {self.model}, expected one of {', '.join(models)}")
        self._check_target()
        self.threshold: float | None = self.manifest["thresholds"].get(self.model)
        if self.threshold is not None and "probability" not in self.decoder.fields:
            raise UserError(f"{directory} is damaged: the decoder {self.manifest['decoder']} has no thresholds")
        path = self.directory / models[self.model]
        self._check_files(path)
        self.tokenizer = self._load_tokenizer()
        self.session = session(path, threads)
        self._check_model(path)

    def item_logits(self, records: Sequence[decode.Record], *, batch_size: int = 32) -> list[NDArray[np.floating]]:
        """Returns the logits `[n, C]` of the items of each record. Records of similar length share a batch."""
        examples = [self.decoder.read(record) for record in self._records(records, None)]
        return [logits for _, logits in self._run(examples, batch_size)]

    def inputs(
        self, records: Sequence[decode.Record], *, batch_size: int = 32
    ) -> Iterator[dict[str, NDArray[np.int64]]]:
        """Yields the model's inputs `[B, L]` for the records. Records of similar length share a batch."""
        encodings = self._encode([self.decoder.read(record) for record in self._records(records, None)])
        for batch in _batches(encodings, batch_size):
            yield self._make_inputs([encodings[i] for i in batch])

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

        For classes it has `label`, `probability` and the `probabilities` of all labels, for a number `value`. The label
        is None where the bundle has a threshold and the probability is below.

        Raises:
            UserError: for a record of another form, and a model whose logits are not finite.
        """
        examples = [self.decoder.read(record) for record in self._records(records, pairs)]
        outputs = self._run(examples, batch_size)
        for number, (_, logits) in enumerate(outputs, 1):
            if not np.isfinite(logits).all():
                raise UserError(f"{self.directory}: the logits of {self.model} for record {number} are not finite")
        return [
            self._withhold(self.decoder.decode(example, items, logits))
            for example, (items, logits) in zip(examples, outputs, strict=True)
        ]

    def _withhold(self, prediction: decode.Prediction) -> decode.Prediction:
        """Returns the prediction, without its label if the probability is below the threshold."""
        if self.threshold is None or prediction["probability"] >= self.threshold:
            return prediction
        return {**prediction, "label": None}

    def _records(self, records: Sequence[decode.Record], pairs: Sequence[str] | None) -> list[decode.Record]:
        for values in (records, pairs):
            if isinstance(values, str | bytes | Mapping):
                raise UserError(f"got {decode.shorten(values)}, expected a list of records, for one too")
        if pairs is None:
            return list(records)
        if not self.pair:
            raise UserError("got pairs, the bundle reads single texts: leave out pairs")
        if len(records) != len(pairs):
            raise UserError(f"got {len(records)} texts and {len(pairs)} pairs, expected one pair for each text")
        return [list(pair) for pair in zip(cast(Sequence[str], records), pairs, strict=True)]

    def _run(self, examples: Sequence[decode.Example], batch_size: int) -> list[tuple[Tokens, NDArray[np.floating]]]:
        """Returns the tokens of the items of each example, and their logits `[n, C]`."""
        _check_count("batch_size", batch_size)
        encodings = self._encode(examples)
        outputs: list[Any] = [None] * len(encodings)
        for batch in _batches(encodings, batch_size):
            try:
                logits = self.session.run(["logits"], self._make_inputs([encodings[i] for i in batch]))[0]
            except Exception as error:  # The errors of onnxruntime have no class in common.
                reason = first_line(error)
                raise UserError(f"{self.directory}: onnxruntime cannot run {self.model}: {reason}") from error
            for row, i in enumerate(batch):
                outputs[i] = self._select_items(examples[i], encodings[i], logits[row])
        return outputs

    def _encode(self, examples: Sequence[decode.Example]) -> "list[_Encoded]":
        """Returns the examples as the model reads them, truncated by the tokenizer or else by the decoder."""
        inputs = [example.text if example.pair is None else (example.text, example.pair) for example in examples]
        encodings: list[Encoding] = self.tokenizer.encode_batch(inputs)
        return [self._cut(example, encoding) for example, encoding in zip(examples, encodings, strict=True)]

    def _cut(self, example: decode.Example, encoding: Encoding) -> "_Encoded":
        """Returns the tokens of an example that the model reads."""
        if not self.decoder.truncates:
            return encoding
        kept = self.decoder.keep(
            example, encoding.offsets, encoding.special_tokens_mask, length=self.manifest["max_length"],
            side=self.truncation_side,
        )  # fmt: skip
        return encoding if len(kept) == len(encoding.ids) else _CutEncoding.select(encoding, kept)

    def _select_items(
        self, example: decode.Example, encoding: "_Encoded", logits: NDArray[np.floating]
    ) -> tuple[Tokens, NDArray[np.floating]]:
        """Returns the items' tokens and logits `[n, C]`, from logits `[C]` of the text or `[L, C]` of its tokens."""
        tokens = self.decoder.items(example, encoding.offsets, encoding.special_tokens_mask)
        if tokens is None:
            return None, np.asarray(logits[None])
        padding = len(logits) - len(encoding.ids) if self.manifest["padding_side"] == "left" else 0
        rows = [padding + token for token in tokens if token is not None]
        return tokens, np.asarray(logits[rows])

    def _make_inputs(self, batch: "Sequence[_Encoded]") -> dict[str, NDArray[np.int64]]:
        """Returns the model's inputs `[B, L]`, padded to the longest of the batch."""
        length = max(len(encoding.ids) for encoding in batch)
        inputs = {}
        for name in self.manifest["inputs"]:
            padding = self.manifest["padding"][name]
            array = np.full((len(batch), length), padding, dtype=np.int64)
            for row, encoding in enumerate(batch):
                values = getattr(encoding, SOURCES[name])
                columns = slice(-len(values), None) if self.manifest["padding_side"] == "left" else slice(len(values))
                array[row, columns] = values
            inputs[name] = array
        return inputs

    def _check_target(self) -> None:
        """Raises UserError for a model that gives wrong answers on this processor, with the one to take instead."""
        targets, device = self.manifest["targets"], this_target()
        if runs(targets.get(self.model, ANY), device):
            return
        right = [name for name in self.manifest["models"] if runs(targets.get(name, ANY), device)]
        # The smallest file is named last.
        instead = f"choose {' or '.join(reversed(right))}" if right else "export it with export.target=avx2"
        raise UserError(
            f"{self.directory}: the model {self.model} is for processors of the kind {targets[self.model]}, and this "
            f"one is {device}, on which int8 sums of it overflow: {instead}"
        )

    def _check_files(self, model: Path) -> None:
        """Raises UserError for a file of the model or the tokenizer that is missing or damaged."""
        checksums = self.manifest["files"]
        data = data_file(model).name
        for name in (model.name, *checksums.keys() & {data}, "tokenizer.json"):
            path = self.directory / name
            if not path.is_file():
                raise UserError(f"{self.directory} is incomplete: {name} is missing")
            try:
                digest = hash_file(path)
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror}") from error
            if digest != checksums[name]:
                raise UserError(f"{path} is damaged: its SHA-256 is not the one in bundle.json")

    def _load_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer, which truncates as in training unless the decoder does, and does not pad."""
        path = self.directory / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_str(path.read_bytes().decode("utf-8"))
        except Exception as error:  # tokenizers raises no narrower class.
            raise UserError(
                f"{path} cannot be read by tokenizers {tokenizers.__version__}: {first_line(error)}"
            ) from error
        special, length = tokenizer.num_special_tokens_to_add(self.pair), self.manifest["max_length"]
        if length < special:
            raise UserError(
                f"{self.directory} is damaged: max_length is {length}, less than its {special} special tokens"
            )
        if self.decoder.truncates:
            tokenizer.no_truncation()
        else:  # Training cuts the longer text of a pair first, which is the default here too.
            tokenizer.enable_truncation(length, direction=self.truncation_side)
        tokenizer.no_padding()
        return tokenizer

    def _check_model(self, path: Path) -> None:
        """Raises UserError if inputs or outputs of the model are not those of bundle.json."""
        names, expected = [value.name for value in self.session.get_inputs()], self.manifest["inputs"]
        if set(names) != set(expected):
            raise UserError(f"{path} has the inputs {', '.join(names)}, bundle.json has {', '.join(expected)}")
        shapes = {value.name: value.shape for value in self.session.get_outputs()}
        shape, axes = shapes.get("logits", []), self.decoder.axes
        classes = shape[-1] if shape and isinstance(shape[-1], int) else len(self.labels)
        if len(shape) != axes or classes != len(self.labels):
            raise UserError(
                f"{path} has logits {shape}, expected {axes} axes and {len(self.labels)} classes as in bundle.json"
            )


def _batches(encodings: "Sequence[_Encoded]", batch_size: int) -> Iterator[list[int]]:
    """Yields the positions of the encodings of each batch, the short ones first."""
    order = sorted(range(len(encodings)), key=lambda i: len(encodings[i].ids))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def _create_decoder(name: str, labels: Sequence[str], pair: bool, directory: Path) -> decode.Decoder:
    if name not in decode.DECODERS:
        known = ", ".join(decode.DECODERS)
        raise UserError(f"{directory} needs the decoder {name}, this version of distill has {known}: update distill")
    decoder = decode.DECODERS[name]
    if not decoder.accepts(len(labels)):
        raise UserError(f"{directory} is damaged: the decoder {name} does not fit {len(labels)} labels")
    return decoder(labels, pair)


def _check_count(name: str, value: object, *, most: int | None = None) -> None:
    """Raises UserError unless the value is a whole number of at least 1."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or int(value) < 1 or int(value) > (most or int(value)):  # type: ignore[call-overload]
        expected = f"a whole number from 1 to {most}" if most else "a whole number of at least 1"
        raise UserError(f"got {name}={value}, expected {expected}")


@dataclass(frozen=True)
class _CutEncoding:
    """Those tokens of a `tokenizers.Encoding` that are left of a truncated example, with its attributes."""

    ids: list[int]
    attention_mask: list[int]
    type_ids: list[int]
    offsets: list[tuple[int, int]]
    special_tokens_mask: list[int]

    @classmethod
    def select(cls, encoding: Encoding, kept: Sequence[int]) -> "_CutEncoding":
        columns = {field.name: getattr(encoding, field.name) for field in fields(cls)}
        return cls(**{name: [values[token] for token in kept] for name, values in columns.items()})


_Encoded = Encoding | _CutEncoding


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
    """Returns an onnxruntime session on the CPU.

    Raises:
        UserError: if onnxruntime cannot load the model.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = int(threads)
        options.inter_op_num_threads = 1
    try:
        # Under a C locale Python cannot decode the name of a path, and onnxruntime reads UTF-8.
        name = str(path) if decode.find_surrogate(str(path)) is None else os.fsencode(path).decode("utf-8")
        return onnxruntime.InferenceSession(name, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # The errors of onnxruntime have no class in common.
        raise UserError(
            f"{path} cannot be loaded by onnxruntime {onnxruntime.__version__}: {first_line(error)}"
        ) from error
