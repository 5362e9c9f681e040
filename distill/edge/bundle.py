"""A bundle without torch: from text to predictions with onnxruntime, tokenizers and numpy."""

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

FORMAT = 2
READABLE = (1, 2)
Tokens = list[int | None] | None  # Of the items of an example; None for one row of logits a text.


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
        self.decoder: decode.Decoder = _decoder(self.about, self.directory)
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

    def item_logits(self, records: Sequence[decode.Record], *, batch_size: int = 32) -> list[NDArray[np.floating]]:
        """For every record the logits `[n, C]` of its items; records of about one length run together."""
        examples = [self.decoder.read(record) for record in records]
        return [logits for _, logits in self._run(examples, batch_size)]

    def logits(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, batch_size: int = 32
    ) -> NDArray[np.floating]:
        """Logits `[texts, C]` of a model that returns one row of logits a text."""
        rows = self.item_logits(self._records(texts, pairs), batch_size=batch_size)
        return np.concatenate(rows) if rows else np.empty((0, len(self.labels)), dtype=np.float32)

    def predict(
        self, records: Sequence[decode.Record], pairs: Sequence[str] | None = None, *, batch_size: int = 32
    ) -> list[decode.Prediction]:
        """The prediction for every record, or for every text and its pair.

        For classes it holds `label`, `probability` and the `probabilities` of all labels; for a number `value`.
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
            raise UserError("got pairs, the bundle reads single texts")
        return [list(pair) for pair in zip(cast(Sequence[str], records), pairs, strict=True)]

    def _run(self, examples: Sequence[decode.Example], batch_size: int) -> list[tuple[Tokens, NDArray[np.floating]]]:
        """For each example the tokens of its items, and their logits `[n, C]`."""
        inputs = [example.text if example.pair is None else (example.text, example.pair) for example in examples]
        encodings: list[Encoding] = self.tokenizer.encode_batch(inputs)
        order = sorted(range(len(encodings)), key=lambda i: len(encodings[i].ids))
        outputs: list[Any] = [None] * len(encodings)
        for start in range(0, len(order), batch_size):
            members = order[start : start + batch_size]
            logits = self.session.run(["logits"], self._feed([encodings[i] for i in members]))[0]
            for row, i in enumerate(members):
                outputs[i] = self._select(examples[i], encodings[i], logits[row])
        return outputs

    def _select(
        self, example: decode.Example, encoding: Encoding, logits: NDArray[np.floating]
    ) -> tuple[Tokens, NDArray[np.floating]]:
        """The items' logits `[n, C]`, out of `[C]` of the text or `[L, C]` of its tokens with padding."""
        tokens = self.decoder.items(example, encoding.offsets, encoding.special_tokens_mask)
        if tokens is None:
            return None, np.asarray(logits[None])
        skipped = len(logits) - len(encoding.ids) if self.about["padding_side"] == "left" else 0
        rows = [skipped + token for token in tokens if token is not None]
        return tokens, np.asarray(logits[rows])

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
    if about.get("format") not in READABLE:
        known = " and ".join(map(str, READABLE))
        raise UserError(f"{path} is of format {about.get('format')}, this version of distill reads {known}")
    return about


def _decoder(about: JsonObject, directory: Path) -> decode.Decoder:
    # Format 1 has no decoder, but `answer`: classes or number.
    name = about.get("decoder", about.get("answer"))
    if name not in decode.DECODERS:
        known = ", ".join(decode.DECODERS)
        raise UserError(f"{directory} needs the decoder {name}, this version of distill has {known}: update distill")
    return decode.DECODERS[name](about["labels"], about["pair"])


def session(path: Path, threads: int | None = None) -> onnxruntime.InferenceSession:
    """An onnxruntime session on the CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
