"""Class probabilities in a file as a teacher, from a large language model or from anywhere else."""

import hashlib
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import nn
from transformers import PreTrainedTokenizerBase

from distill.core.contracts import Data, Examples, Task
from distill.core.errors import UserError
from distill.data.labelled_text import LabelledText
from distill.data.prose import normalize_text
from distill.data.splits import text_split
from distill.data.tokenization import tokenize_split
from distill.models.wrappers import EQUAL, KnownLogits
from distill.rows.columns import SUFFIXES, Table, read_table
from distill.rows.formats import name_row, show_names

from .pretrained import Pretrained

ID = "id"
PROBABILITIES = "probabilities"
TOLERANCE = 0.01  # Of a sum of probabilities, which files have with few digits.
BATCH = 1024  # Texts that are compared with those of the file at once.


class ProbabilityFile:
    """A table of class probabilities, and an encoder that gives a student its start, its tokenizer and hidden states.

    A row has the text in the columns of `task.text`, or an id that `texts` has the text of. The probabilities are in
    one column for each class, under its name, or in a column `probabilities` that maps classes to them.

    Args:
        name: name of the teacher in records and directories.
        path: the table: CSV, TSV, JSONL or Parquet.
        encoder: directory of the encoder.
        texts: a table with the columns of `task.text` and `id`, for a `path` without texts; None for a path with them.
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
        precision: str = "float32",
        trust_remote_code: bool = False,
    ) -> None:
        self.path, self.texts = Path(path).expanduser(), None if texts is None else Path(texts).expanduser()
        self.encoder = Pretrained(name=name, path=encoder, precision=precision, trust_remote_code=trust_remote_code)
        self.origin = f"probabilities of {self.path.name}"

    def check(self, task: Task) -> None:
        """Raises UserError for a task without classes of texts, and files that are missing."""
        info = task.info
        if not isinstance(getattr(task, "rows", None), LabelledText) or info.likelihood not in ("softmax", "sigmoid"):
            raise UserError(
                f"teacher {self.encoder.name} has probabilities of classes of texts, and task {info.name} is "
                f"{info.kind}: take task=classification, or another teacher"
            )
        for option, file in (("path", self.path), ("texts", self.texts)):
            if file is not None and not (file.is_file() and file.name.endswith(SUFFIXES)):
                expected = f"a table of probabilities in {', '.join(SUFFIXES)}"
                raise UserError(f"teacher.{option}={file} is no such file, expected {expected}")

    def resolved(self) -> str:
        """Returns the name in records."""
        return self.path.name

    def fingerprint(self) -> str:
        """Returns a digest of the files."""
        digest = hashlib.sha256()
        for file in filter(None, (self.path, self.texts)):
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def load(self, task: Task, data: Data, tokenizer: PreTrainedTokenizerBase, cache_dir: Path) -> nn.Module:
        """Returns the module that gives the logits of the texts of the file.

        Raises:
            UserError: for other classes than the task's, values that are no probabilities, texts and ids that are there
                twice with different values, and texts of the task without probabilities.
        """
        independent = task.info.likelihood == "sigmoid"
        table = read_table(self.path)
        probabilities = _read_probabilities(table, data.labels, sums_to_one=not independent)
        rows = getattr(task, "rows", None)
        assert isinstance(rows, LabelledText)
        columns = [list(column) for column in zip(*self._read_texts(table, rows.text), strict=True)]
        split = text_split(*columns)
        tokens = tokenize_split(split, tokenizer, task.info.max_length)
        ids = np.split(tokens.columns["input_ids"], tokens.offsets[1:-1])
        check_repeated(table, columns, ids, probabilities, data.labels)
        known = KnownLogits(ids, probabilities, independent=independent)
        known.report_alike(table.source)
        for name, examples in task.encode(data, tokenizer, cache_dir).items():
            assert isinstance(examples, Examples)  # A stream has no labels.
            self._check_all_known(known, name, examples, tokenizer)
        return known

    def _read_texts(self, table: Table, text: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Yields the texts of each row of the table, its own or those of its id."""
        if all(name in table.names for name in text):
            yield from _iterate_texts(table, text)
            return
        if self.texts is None or ID not in table.names:
            raise UserError(
                f"{table.source} has the columns {show_names(table.names)}, expected the texts in {show_names(text)}, "
                f"or {ID} and teacher.texts=FILE with {ID} and {show_names(text)}"
            )
        texts = read_table(self.texts)
        if missing := [name for name in (ID, *text) if name not in texts.names]:
            raise UserError(
                f"{texts.source} has no column {show_names(missing)}: it has {show_names(texts.names)}, expected "
                f"{show_names((ID, *text))}"
            )
        by_id = map_ids(texts, text)
        for row, id in enumerate(table.columns[ID]):
            if str(id) not in by_id:
                raise UserError(f"{table.place(row)}: {texts.source} has no row with the id {id}, expected its text")
            yield by_id[str(id)]

    def _check_all_known(
        self, known: KnownLogits, name: str, examples: Examples, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        """Raises UserError for examples without probabilities."""
        missing: list[list[int]] = []
        for first in range(0, len(examples), BATCH):
            batch = examples[range(first, min(len(examples), first + BATCH))]
            rows = zip(batch["input_ids"], batch["attention_mask"].bool(), strict=True)
            ids = [row[mask].tolist() for row, mask in rows]
            missing += [ids[number] for number in known.find_missing(ids)]
        if missing:
            first_text = reprlib.repr(tokenizer.decode(missing[0], skip_special_tokens=True))
            raise UserError(
                f"{self.path} has no probabilities for {len(missing):,} of {len(examples):,} texts of {name}, the "
                f"first of them {first_text}: add their rows, or leave the texts out of the data"
            )


def map_ids(table: Table, text: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns the texts of each id.

    Raises:
        UserError: for an id with two different texts.
    """
    by_id: dict[str, tuple[int, tuple[str, ...]]] = {}
    for row, (id, values) in enumerate(zip(table.columns[ID], _iterate_texts(table, text), strict=True)):
        first, of_id = by_id.setdefault(str(id), (row, values))
        if of_id != values:
            raise UserError(
                f"{table.place(first)}, and {name_row(row, table.lines)}: the id {id} is there twice with different "
                f"texts, {reprlib.repr(of_id[0])} and {reprlib.repr(values[0])}, expected it once: take one of them out"
            )
    return {id: values for id, (_, values) in by_id.items()}


def check_repeated(
    table: Table,
    columns: Sequence[list[str]],
    ids: Sequence[np.ndarray],
    probabilities: np.ndarray,
    labels: Sequence[str],
) -> None:
    """Raises UserError for a text that the table has twice with different probabilities.

    A text in other letters is the same one if the encoder reads the same tokens of both.

    Args:
        columns: the texts of the rows, one column or those of pairs.
        ids: the tokens of each row.
    """
    first: dict[object, int] = {}
    different: list[tuple[int, int]] = []
    for row, (texts, tokens) in enumerate(zip(zip(*columns, strict=True), ids, strict=True)):
        earlier = first.setdefault((tokens.tobytes(), *map(normalize_text, texts)), row)
        if np.abs(probabilities[row] - probabilities[earlier]).max() > EQUAL:
            different.append((earlier, row))
    if different:
        [one, other], number = different[0], len(different)
        more = f"; {number:,} rows of the file are such repetitions" if number > 1 else ""
        raise UserError(
            f"{table.place(one)}, and {name_row(other, table.lines)}: the text {reprlib.repr(columns[0][other])} is "
            f"there twice with different probabilities, {_show(labels, probabilities[one])} and "
            f"{_show(labels, probabilities[other])}, expected them once: take one of them out, or give both the "
            f"mean{more}"
        )


def _iterate_texts(table: Table, text: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for row, values in enumerate(zip(*(table.columns[name] for name in text), strict=True)):
        if not all(isinstance(value, str) for value in values):
            raise UserError(f"{table.place(row)}: column {show_names(text)} is {reprlib.repr(values)}, expected text")
        yield values


def _read_probabilities(table: Table, labels: Sequence[str], *, sums_to_one: bool) -> np.ndarray:
    """Returns the probabilities of each row, `[N, C]` in the order of the labels."""
    found = list(_iterate_probabilities(table, labels))
    for row, values in enumerate(found):
        if not all(0 <= value <= 1 for value in values):  # NaN is neither.
            raise UserError(f"{table.place(row)}: got {_show(labels, values)}, expected probabilities from 0 to 1")
        if sums_to_one and abs(sum(values) - 1) > TOLERANCE:
            raise UserError(
                f"{table.place(row)}: the probabilities {_show(labels, values)} have a sum of {sum(values):.3g}, "
                "expected 1: give those of all classes, or with task.multi_label=true one for each label"
            )
    return np.array(found)


def _iterate_probabilities(table: Table, labels: Sequence[str]) -> Iterator[list[float]]:
    """Yields the probabilities of each row in the order of the labels."""
    is_nested = PROBABILITIES in table.names and PROBABILITIES not in labels
    if not is_nested:
        _check_labels(table.source, table.names, labels)
    for row in range(len(table)):
        values = table.columns[PROBABILITIES][row] if is_nested else None
        if is_nested:
            if not isinstance(values, Mapping):
                shown = reprlib.repr(values)
                raise UserError(f"{table.place(row)}: {PROBABILITIES} is {shown}, expected a mapping of classes")
            _check_labels(table.place(row), tuple(map(str, values)), labels, is_exact=True)
        else:
            values = {name: table.columns[name][row] for name in labels}
        yield [_to_number(values[name], table, row, name) for name in labels]


def _check_labels(place: str, names: Sequence[str], labels: Sequence[str], *, is_exact: bool = False) -> None:
    """Raises UserError for names without those of all classes, or with `is_exact` with others."""
    if missing := [label for label in labels if label not in names]:
        raise UserError(
            f"{place} has no probabilities of {show_names(missing)}: it has {show_names(names)}, and the classes of "
            f"the task are {show_names(labels)}"
        )
    if is_exact and (others := [name for name in names if name not in labels]):
        raise UserError(
            f"{place} has probabilities of {show_names(others)}, and the classes of the task are {show_names(labels)}"
        )


def _to_number(value: object, table: Table, row: int, name: str) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        shown = reprlib.repr(value)
        raise UserError(f"{table.place(row)}: column {name} is {shown}, expected a probability") from None


def _show(labels: Sequence[str], values: Sequence[float]) -> str:
    return show_names([f"{label} {value:.3g}" for label, value in zip(labels, values, strict=True)])
