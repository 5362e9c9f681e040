"""Outputs in a file as a teacher, from a large language model or from anywhere else."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from distill.core.contracts import Data, Task
from distill.core.errors import OptionError, UserError
from distill.core.options import show_value
from distill.data.splits import LabelledData
from distill.kinds.kind import Kind
from distill.kinds.known import CANDIDATES, ID, LABEL, SPANS, TAGS, TRUST, VECTOR, KnownTable, collect, join_texts
from distill.kinds.outputs import KnownOutputs, Labelling
from distill.rows.columns import SUFFIXES, Table, read_table

from .pretrained import Pretrained

VECTORS = ".npy"
MEASURED: Literal["measured"] = "measured"  # The value of `teacher.trust` that takes the share of right labels.


class OutputFile:
    """A table of outputs, and an encoder that gives a student its start, its tokenizer and hidden states.

    A row has the text in the columns of the task, or an id that `texts` has the text of, and the outputs of its kind:

    - classes: a column for each class, or `probabilities` that maps classes to them, or `label`, or `labels` with
      candidates. Where a text has any number of labels, `labels` has them all.
    - numbers: `score` or `label`. Rankings: `score` of `query` and `document`.
    - vectors: `vector` of `text`, or a `.npy` file whose rows are those of `texts`.
    - choices: `scores` or `probabilities`, a list, or `label`.
    - tags: `tags`, one for each word, or `spans` with `start`, `end`, `type` and maybe `score`, by characters of
      `text`.

    A file beside it that ends in .json, if there is one, names the model that gave them and its cost (`Labelling`).

    Args:
        name: name of the teacher in records and directories.
        path: the table: CSV, TSV, JSONL or Parquet, or `.npy`.
        encoder: directory of the encoder.
        texts: a table with the texts and `id`, for a `path` without texts; None for a path with them.
        trust: probability of a label that has none; `measured` for the share of such labels that are right in train.
        precision, trust_remote_code: of the encoder, as in `Pretrained`.
    """

    labels_any_text = False

    def __init__(
        self,
        *,
        name: str,
        path: str,
        encoder: str,
        texts: str | None = None,
        trust: float | Literal["measured"] = TRUST,
        precision: str = "float32",
        trust_remote_code: bool = False,
    ) -> None:
        self.path, self.texts = Path(path).expanduser(), None if texts is None else Path(texts).expanduser()
        if trust != MEASURED and (isinstance(trust, str | bool) or not 0 < trust < 1):
            raise OptionError("teacher.trust", show_value(trust), f"a number between 0 and 1, or {MEASURED}")
        self.trust = trust
        self.encoder = Pretrained(name=name, path=encoder, precision=precision, trust_remote_code=trust_remote_code)
        self.origin = f"outputs of {self.path.name}"

    def check(self, task: Task) -> None:
        """Raises UserError for a task whose outputs cannot stand in a file, and files that are missing."""
        if not getattr(task, "known_columns", ()):
            raise UserError(
                f"teacher {self.encoder.name} has outputs of a file, and task {task.info.name} is {task.info.kind}: "
                "take a task of classes, numbers, tags, choices, rankings or vectors, or another teacher"
            )
        for option, file in (("path", self.path), ("texts", self.texts)):
            suffixes = (*SUFFIXES, VECTORS) if option == "path" else SUFFIXES
            if file is not None and not (file.is_file() and file.name.endswith(suffixes)):
                expected = f"a table of outputs in {', '.join(suffixes)}"
                raise UserError(f"teacher.{option}={file} is no such file, expected {expected}")

    def resolved(self) -> str:
        """Returns the name in records."""
        return self.path.name

    def fingerprint(self) -> str:
        """Returns a digest of the files and of the trust in their labels."""
        digest = hashlib.sha256(str(self.trust).encode())
        for file in filter(None, (self.path, self.texts)):
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def read(self, task: Task, data: Data) -> KnownOutputs:
        """Returns the outputs of the file.

        Raises:
            UserError: for outputs that are none of the task's kind, texts and ids that are there twice with different
                values, and a damaged record of the labelling.
        """
        assert isinstance(task, Kind)
        assert isinstance(data, LabelledData)
        table = self._read_table(task.known_columns)
        known = KnownTable(table, tuple(data.labels), TRUST if self.trust == MEASURED else float(self.trust))
        has_labels = any(name in table.names for name in (LABEL, CANDIDATES, TAGS, SPANS))
        outputs = collect(table, task.read_known(known, data))
        labelling = Labelling.read(self.path.with_suffix(".json"))
        found = KnownOutputs(str(self.path), outputs, has_distributions=not has_labels, labelling=labelling)
        if self.trust != MEASURED:
            return found
        trust = _measure_trust(task, data, found)
        return replace(found, found=collect(table, task.read_known(replace(known, trust=trust), data)))

    def _read_table(self, names: tuple[str, ...]) -> Table:
        """Returns the table with the texts of its rows, its own or those of its ids."""
        if self.path.name.endswith(VECTORS):
            if self.texts is None:
                raise UserError(f"{self.path} has vectors alone: give teacher.texts=FILE with {', '.join(names)}")
            vectors, texts = np.load(self.path, mmap_mode="r"), read_table(self.texts)
            if vectors.ndim != 2 or len(vectors) != len(texts):
                raise UserError(
                    f"{self.path} has an array of shape {list(vectors.shape)}, and {self.texts} {len(texts):,} rows: "
                    "expected a vector for each row"
                )
            return replace(texts, names=(*texts.names, VECTOR), columns={**texts.columns, VECTOR: list[Any](vectors)})
        table = read_table(self.path)
        if self.texts is None or ID not in table.names or any(name in table.names for name in names):
            return table
        return join_texts(table, read_table(self.texts), names)


def _measure_trust(task: Kind, data: LabelledData, found: KnownOutputs) -> float:
    """Returns the share of the labelled rows of train whose most probable class is that of the file.

    Raises:
        UserError: for a task without one class for each row, and a file of which no row of train has a label.
    """
    train = data.splits["train"]
    if task.info.likelihood != "softmax" or "labels" not in train.columns:
        raise OptionError("teacher.trust", MEASURED, f"a number, because task {task.info.name} has no single classes")
    pairs = zip(found.look_up(task, train), train.labels.tolist(), strict=True)
    right = [int(outputs[0].argmax()) == label for outputs, label in pairs if outputs is not None and label >= 0]
    if not right:
        raise UserError(f"{found.source} has no row of a labelled example of train, by which it could be measured")
    return float(np.clip(np.mean(right), 1e-3, 1 - 1e-3))
