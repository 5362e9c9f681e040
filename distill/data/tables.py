"""Reads labelled texts from a directory, a file, the Hub or memory."""

import csv
import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from distill import hub
from distill.errors import UserError
from distill.files import is_full_disk

if TYPE_CHECKING:
    import datasets

# The file or Hub names of each split.
STEMS: Mapping[str, tuple[str, ...]] = {"train": ("train",), "dev": ("dev", "validation"), "test": ("test",)}
SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet", ".tsv.gz", ".csv.gz", ".jsonl.gz")


@dataclass(frozen=True)
class Split:
    """Raw examples: texts, the second texts of pairs, and labels `[N]`, which are class indices or numbers."""

    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)

    def records(self) -> list[str | list[str]]:
        """Returns the examples in the form that a bundle reads: a text, or the two texts of a pair."""
        if self.pairs is None:
            return list(self.texts)
        return [list(pair) for pair in zip(self.texts, self.pairs, strict=True)]


@dataclass(frozen=True)
class LabelledData:
    """All splits of a task, the names of its classes in order, and the SHA-256 of the content.

    For a regression, the only name is that of the column.
    """

    labels: tuple[str, ...]
    splits: "Mapping[str, Any]"
    sha256: str

    def sizes(self) -> dict[str, int]:
        """Returns the number of examples of each split."""
        return {name: len(split) for name, split in self.splits.items()}

    def texts(self) -> list[str]:
        """Returns the training texts, without the second texts of pairs."""
        texts: list[str] = self.splits["train"].texts
        return texts

    def scored(self) -> dict[str, Any]:
        """Returns the splits that are scored and not trained on, dev first."""
        return {"dev": self.splits["dev"]} | {k: v for k, v in self.splits.items() if k not in ("train", "dev")}


@dataclass(frozen=True)
class LabelledText:
    """A source of rows with one or two columns of text and a label.

    Args:
        name: name of the task in messages.
        text: the column of the text, or the two columns of a pair.
        label: the column of the class or number. Of several names, the first one that the data has is used.
        label_names: names of the classes in the order of the data's integers; None uses the labels of the training
            split.
        regression: whether the label is a number.
        tables: data in memory by split, a single table under the name `data`.
        data_dir: a directory with `train` and `dev`, or a single file. None uses the Hub's `hub_id`.
        dev_fraction: share of a single file or table that is held out as dev, stratified by class and the same in
            every run.
        stems: possible names of each split's file or Hub split.
        hub_id: a data set of the Hub and, after a colon, its configuration: `nyu-mll/glue:sst2`.
        builtin: whether to use the built-in data.
        train_examples, dev_examples: number of examples to use, always the same ones; None uses all.
    """

    name: str
    text: tuple[str, ...]
    label: tuple[str, ...]
    label_names: tuple[str, ...] | None = None
    regression: bool = False
    tables: "Mapping[str, datasets.Dataset] | None" = None
    data_dir: str | None = None
    dev_fraction: float = 0.1
    stems: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: dict(STEMS))
    hub_id: str | None = None
    builtin: bool = False
    train_examples: int | None = None
    dev_examples: int | None = None

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads `train`, `dev` and the other splits with labels.

        The sample of `train_examples` does not depend on the run, so that the seeds of a sweep share data and teacher.

        Raises:
            UserError: if a directory, file, column, text or label is missing or invalid.
            UnreachableError: if the data is not in the cache and cannot be downloaded.
        """
        tables = self._read_tables(cache_dir)
        labels = _determine_labels(self, *tables["train"])
        splits = {
            name: _create_split(self, table, source, labels)
            for name, (table, source) in tables.items()
            if name in ("train", "dev") or _is_labelled(self, table)
        }
        for name, size in (("train", self.train_examples), ("dev", self.dev_examples)):
            splits[name] = _sample(splits[name], size)
        return LabelledData(labels=labels, splits=splits, sha256=_compute_digest(labels, splits))

    def _read_tables(self, cache_dir: Path) -> "dict[str, tuple[datasets.Dataset, str]]":
        if self.tables is not None:
            return _name_tables(self, self.tables)
        if self.data_dir is not None:
            path = Path(self.data_dir).expanduser()
            return _read_one_file(self, path, cache_dir) if path.is_file() else _read_directory(self, path, cache_dir)
        if self.builtin:
            from distill.data import docstrings

            return _read_directory(self, docstrings.prepare_dataset(cache_dir, seed=0), cache_dir)
        return _read_hub(self)


def _name_tables(
    rows: LabelledText, tables: "Mapping[str, datasets.Dataset]"
) -> "dict[str, tuple[datasets.Dataset, str]]":
    if set(tables) == {"data"}:
        return _hold_out_dev(rows, tables["data"], "the data")
    names = {split: next((stem for stem in stems if stem in tables), None) for split, stems in rows.stems.items()}
    missing = [split for split in ("train", "dev") if names.get(split) is None]
    if missing:
        raise UserError(
            f"the data has no split {' and '.join(missing)}, expected train and dev: it has {', '.join(tables)}"
        )
    return {split: (tables[stem], f"the split {stem}") for split, stem in names.items() if stem is not None}


def _read_directory(rows: LabelledText, directory: Path, cache_dir: Path) -> "dict[str, tuple[datasets.Dataset, str]]":
    """Returns the table and the path of each split in the directory."""
    if not directory.is_dir():
        raise UserError(f"task.data_dir={directory} does not exist, expected a directory with train and dev, or a file")
    tables = {}
    for split, stems in rows.stems.items():
        candidates = (directory / f"{stem}{suffix}" for stem in stems for suffix in SUFFIXES)
        path = next((candidate for candidate in candidates if candidate.is_file()), None)
        if path is not None:
            tables[split] = (_read_file(path, cache_dir), str(path))
        elif split in ("train", "dev"):
            content = ", ".join(sorted(entry.name for entry in directory.iterdir())) or "nothing"
            names = " or ".join(stems)
            raise UserError(
                f"{directory} has no {names} file (found {content}), expected {names} with one of "
                f"{', '.join(SUFFIXES)}; task.data_dir=FILE holds out dev from one file"
            )
    return tables


def _read_one_file(rows: LabelledText, path: Path, cache_dir: Path) -> "dict[str, tuple[datasets.Dataset, str]]":
    """Reads a single file and holds out dev."""
    if not path.name.endswith(SUFFIXES):
        raise UserError(f"task.data_dir={path} is of no known kind, expected one of {', '.join(SUFFIXES)}")
    return _hold_out_dev(rows, _read_file(path, cache_dir), str(path))


def _hold_out_dev(
    rows: LabelledText, table: "datasets.Dataset", path: str
) -> "dict[str, tuple[datasets.Dataset, str]]":
    """Splits a table into train and dev, stratified by class and the same in every run."""
    from sklearn.model_selection import train_test_split

    _check_columns(rows, table, path)
    classes = None if rows.regression else list(map(str, table[_find_label_column(rows, table)]))
    try:
        train, dev = train_test_split(
            np.arange(len(table)), test_size=rows.dev_fraction, random_state=0, stratify=classes
        )
    except ValueError as error:
        raise UserError(
            f"{path} cannot be split with task.dev_fraction={rows.dev_fraction} so that train and dev hold every "
            f"class ({error}): give a directory with train and dev instead"
        ) from error
    sources = f"{path} without task.dev_fraction={rows.dev_fraction}", f"{path}, task.dev_fraction={rows.dev_fraction}"
    return {
        name: (table.select(np.sort(indices)), source)
        for name, indices, source in zip(("train", "dev"), (train, dev), sources, strict=True)
    }


def _read_file(path: Path, cache_dir: Path) -> "datasets.Dataset":
    import datasets

    datasets.disable_progress_bars()  # Reading a file takes seconds.
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # Its errors are reported below in one line.

    suffix = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty, expected a header and examples")
    options: dict[str, Any] = {"cache_dir": str(cache_dir / "datasets"), "keep_in_memory": True}
    try:
        if suffix.startswith((".tsv", ".csv")):
            # As strings, and TSV without quotes, because otherwise "NA" would become null and rows would be lost.
            separator = "\t" if suffix.startswith(".tsv") else ","
            quoting: Literal[0, 1, 2, 3] = csv.QUOTE_NONE if separator == "\t" else csv.QUOTE_MINIMAL
            columns = _read_header(path, separator, quoting)
            features = datasets.Features({column: datasets.Value("string") for column in columns})
            return datasets.Dataset.from_csv(
                str(path), features=features, sep=separator, quoting=quoting, keep_default_na=False, **options
            )
        if suffix.startswith(".jsonl"):
            return datasets.Dataset.from_json(str(path), **options)
        return datasets.Dataset.from_parquet(str(path), **options)
    except (
        datasets.exceptions.DatasetGenerationError, OSError, ValueError, NotImplementedError, EOFError, csv.Error,
        zlib.error,
    ) as error:  # fmt: skip
        if is_full_disk(error):
            raise
        reason = str(error.__cause__ or error).splitlines()[0]
        raise UserError(f"{path} cannot be read: {reason}") from error


def _read_header(path: Path, separator: str, quoting: Literal[0, 1, 2, 3]) -> list[str]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig") as lines:  # Spreadsheets write a byte order mark.
        rows = csv.reader(lines, delimiter=separator, quoting=quoting)
        columns, first = next(rows, []), next(rows, None)
    if first is None:
        raise UserError(f"{path} has a header and no examples")
    if len(first) > len(columns):
        # pandas would use the first field as an index and shift the others by one column.
        raise UserError(f"{path} cannot be read: its first example has {len(first)} fields, its header {len(columns)}")
    return columns


def _read_hub(rows: LabelledText) -> "dict[str, tuple[datasets.Dataset, str]]":
    if rows.hub_id is None:
        raise UserError(f"task {rows.name} has no data of its own: give task.data_dir=DIR with train and dev files")
    loaded = hub.load_dataset(
        rows.hub_id, f"data set {rows.hub_id}",
        advice="with train and dev files, go online once, or use the built-in data with task=docstrings",
    )  # fmt: skip
    tables = {}
    for split, stems in rows.stems.items():
        name = next((stem for stem in stems if stem in loaded), None)
        if name is not None:
            tables[split] = (loaded[name], f"{rows.hub_id} {name}")
        elif split in ("train", "dev"):
            raise UserError(f"data set {rows.hub_id} has no split {' or '.join(stems)}: it has {', '.join(loaded)}")
    return tables


def _check_columns(rows: LabelledText, table: "datasets.Dataset", source: str) -> None:
    missing = [column for column in rows.text if column not in table.column_names]
    if not any(column in table.column_names for column in rows.label):
        missing.append(" or ".join(rows.label))
    if missing:
        raise UserError(
            f"{source} has no column {', '.join(missing)}: it has {', '.join(table.column_names)}; "
            "name yours with task.text=[...] and task.label=..."
        )
    if len(table) == 0:
        raise UserError(f"{source} has a header and no examples")


def _find_label_column(rows: LabelledText, table: "datasets.Dataset") -> str:
    return next(column for column in rows.label if column in table.column_names)


def _determine_labels(rows: LabelledText, train: "datasets.Dataset", source: str) -> tuple[str, ...]:
    """Returns the classes of the task, or those of the training split, sorted as numbers or alphabetically."""
    _check_columns(rows, train, source)
    column = _find_label_column(rows, train)
    if rows.regression:
        return (column,)
    classes = {str(value) for value in train[column] if value not in (None, "")}
    if len(classes) < 2:
        raise UserError(f"{source} has one class only ({', '.join(classes) or 'none'}), expected at least two")
    if rows.label_names:
        return rows.label_names
    numeric = all(value.removeprefix("-").isdecimal() for value in classes)
    return tuple(sorted(classes, key=int) if numeric else sorted(classes))


def _is_labelled(rows: LabelledText, table: "datasets.Dataset") -> bool:
    """Returns whether a split has labels. GLUE on the Hub has -1 for the hidden labels of a test split."""
    columns = [column for column in rows.label if column in table.column_names]
    return bool(columns) and {str(value) for value in table[columns[0]]} not in ({"-1"}, {"-1.0"})


def _create_split(rows: LabelledText, table: "datasets.Dataset", source: str, labels: tuple[str, ...]) -> Split:
    _check_columns(rows, table, source)
    columns = [list(table[column]) for column in rows.text]
    for name, texts in zip(rows.text, columns, strict=True):
        for row, text in enumerate(texts):
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"{source}, example {row + 1}: column {name} is {text!r}, expected text")
    values = list(table[_find_label_column(rows, table)])
    return Split(
        texts=columns[0],
        pairs=columns[1] if len(columns) == 2 else None,
        labels=_to_numbers(values, source) if rows.regression else _to_class_indices(rows, values, labels, source),
    )


def _to_numbers(values: Sequence[Any], source: str) -> np.ndarray:
    """Returns the labels as numbers, float32."""
    numbers = np.empty(len(values), dtype=np.float32)
    for row, value in enumerate(values):
        try:
            numbers[row] = float(value)
        except (TypeError, ValueError):
            numbers[row] = np.nan
        if not np.isfinite(numbers[row]):
            raise UserError(
                f"{source}, example {row + 1}: label {value!r} is no number; for classes take task=classification"
            )
    return numbers


def _to_class_indices(rows: LabelledText, values: Sequence[object], labels: tuple[str, ...], source: str) -> np.ndarray:
    """Returns the class index of each label. Only if the task names its classes, numbers are indices."""
    index = {str(number): number for number in range(len(labels))} if rows.label_names else {}
    index |= {name: number for number, name in enumerate(labels)}
    classes = np.empty(len(values), dtype=np.int64)
    for row, value in enumerate(values):
        if str(value) not in index:
            raise UserError(
                f"{source}, example {row + 1}: label {value!r} is unknown, expected one of {', '.join(labels)}"
            )
        classes[row] = index[str(value)]
    return classes


def _sample(split: Split, size: int | None) -> Split:
    if size is None or size >= len(split):
        return split
    chosen = np.sort(np.random.default_rng(0).permutation(len(split))[:size])
    pairs = None if split.pairs is None else [split.pairs[i] for i in chosen]
    return Split(texts=[split.texts[i] for i in chosen], pairs=pairs, labels=split.labels[chosen])


def _compute_digest(labels: tuple[str, ...], splits: dict[str, Split]) -> str:
    digest = hashlib.sha256(json.dumps(labels).encode())
    for name, split in splits.items():
        digest.update(json.dumps([name, split.texts, split.pairs, split.labels.tolist()]).encode())
    return digest.hexdigest()
