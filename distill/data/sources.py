"""Sources of labelled rows: files, the Hub, data in memory or the built-in data, and the draw of dev.

Readers of labelled rows: CSV, TSV, JSONL and Parquet files, and data sets of the `datasets` library. Every file is read
anew, so that no cache can hold an older or a damaged version of it.
"""

import math
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from distill.core import storage
from distill.core.console import print_notice
from distill.core.errors import UserError
from distill.data.prose import normalize_text
from distill.rows.columns import SAMPLED, SUFFIXES, Table, is_string, join_tables, read_table
from distill.rows.formats import check_names, read_articles, read_shard, reading_errors, show_names, suggest_column

if TYPE_CHECKING:
    import datasets

    from distill.data.splits import Split


# Of each row, for one reason to keep rows together: those with an equal key other than None are on one side.
Keys = Sequence[Hashable]


def text_key(texts: Iterable[object]) -> Hashable:
    """Returns a key that is equal for the same texts in any order, as `normalize_text` sees them."""
    return tuple(sorted(normalize_text(str(text)) for text in texts if text is not None))


def text_keys(*columns: Sequence[object]) -> Keys:
    """Returns the `text_key` of each row.

    A pair is another row's pair if both texts are. One text in common is none: the pairs of a premise, or of a question
    that many others are compared with, would be one group.

    Args:
        columns: of texts; what is no text counts as a text too.
    """
    return [text_key(values) for values in zip(*columns, strict=True)]


def number_units(keys: Iterable[Keys], rows: int) -> np.ndarray:
    """Returns the number of the unit of each row `[N]`, its first row: rows with an equal key of any kind are one unit.

    Args:
        keys: of the rows, once for each kind of them. None is no key.
    """
    parents = list(range(rows))

    def find(row: int) -> int:
        while parents[row] != row:
            parents[row] = parents[parents[row]]
            row = parents[row]
        return row

    for of_kind in keys:
        first: dict[Hashable, int] = {}
        for row, key in enumerate(of_kind):
            if key is not None:
                one, other = find(first.setdefault(key, row)), find(row)
                parents[max(one, other)] = min(one, other)
    return np.array([find(row) for row in range(rows)])


def keep_together(
    dev: np.ndarray, units: np.ndarray, *, classes: Sequence[str] | None = None, fixed: Sequence[int] = ()
) -> np.ndarray:
    """Returns the rows of dev after units that are on both sides have been put on one, in ascending order.

    Units that are on one side stay there, so that a table without repeated rows keeps its split. Of the others, as many
    are dev as make up for the rows that were drawn of them, class by class and in an order that is the same in every
    run: first those whose first row was drawn. A unit has the class of its first row.

    Args:
        dev: rows that were drawn.
        units: of all rows, `[N]`, as `number_units` returns them.
        classes: of all rows. Train keeps every one, and so does dev if it has two units.
        fixed: rows of train that stay there.
    """
    every, sizes, is_dev = np.arange(len(units)), np.bincount(units, minlength=len(units)), np.zeros(len(units), bool)
    is_dev[dev] = True
    in_dev = np.bincount(units[dev], minlength=len(units))
    crosses = (in_dev > 0) & (in_dev < sizes)  # By the first row of a unit, as `chosen`.
    if not crosses.any():
        return np.sort(dev)
    names, numbers = np.unique([""] * len(units) if classes is None else list(classes), return_inverse=True)
    count = partial(np.bincount, minlength=len(names))
    chosen = (in_dev > 0) & ~crosses
    room, units_in_dev = count(numbers[is_dev & crosses[units]]), count(numbers[chosen])
    units_in_all = count(numbers[units == every])
    crosses[units[list(fixed)]] = False
    order = np.random.default_rng(0).permutation(np.flatnonzero(crosses))
    candidates: dict[int, list[int]] = {}
    for row in order[np.argsort(~is_dev[order], kind="stable")].tolist():
        candidates.setdefault(int(numbers[row]), []).append(row)
    for number, rows in candidates.items():
        taken = _fill(rows, sizes, int(room[number]))
        if not taken and not units_in_dev[number] and units_in_all[number] > 1:
            taken = [min(rows, key=sizes.__getitem__)]
        if units_in_dev[number] + len(taken) == units_in_all[number]:
            taken.remove(max(taken, key=sizes.__getitem__))
        chosen[taken] = True
    lacking = np.flatnonzero(count(numbers[~chosen[units]]) == 0)
    chosen[units[np.isin(numbers, lacking) & (sizes[units] > 1)]] = False
    return np.flatnonzero(chosen[units])


def draw_share(count: int, share: float, classes: Sequence[str] | None = None) -> np.ndarray:
    """Returns the indices of a share of some rows, the same in every run, with as large a share of every class.

    They are those that scikit-learn's `train_test_split` draws with seed 0, whose import takes half a second.

    Raises:
        ValueError: if one side would lack rows or a class.
    """
    drawn, random = math.ceil(share * count), np.random.RandomState(0)
    _, numbers, counts = np.unique([0] * count if classes is None else classes, return_inverse=True, return_counts=True)
    if min(drawn, count - drawn) < len(counts) or counts.min() < 2:
        kinds = "" if classes is None else f" of {len(counts):,} classes, the smallest of which has {counts.min():,}"
        raise ValueError(f"{drawn:,} of {count:,}{kinds}")
    if classes is None:
        return random.permutation(count)[:drawn]
    kept = _apportion(counts, count - drawn, random)
    taken = _apportion(counts - kept, drawn, random)
    found = []
    members = np.split(np.argsort(numbers, kind="stable"), np.cumsum(counts)[:-1])
    for of_class, first, number in zip(members, kept, taken, strict=True):
        found.append(of_class[random.permutation(len(of_class))][first : first + number])
    return np.concatenate(found)


def _apportion(counts: np.ndarray, number: int, random: np.random.RandomState) -> np.ndarray:
    """Returns how many rows of each class are among a number of them; the largest remainders are rounded up."""
    shares = counts / counts.sum() * number
    whole = np.floor(shares)
    remainders, lacking = shares - whole, int(number - whole.sum())
    for remainder in np.unique(remainders)[::-1]:
        if lacking > 0:
            equal = np.flatnonzero(remainders == remainder)
            rounded = random.choice(equal, size=min(len(equal), lacking), replace=False)
            whole[rounded] += 1
            lacking -= len(rounded)
    return np.asarray(whole.astype(int))


def _fill(rows: Sequence[int], sizes: np.ndarray, room: int) -> list[int]:
    """Returns the units whose sizes together are nearest to a number of rows, taken one after another."""
    taken = []
    for row in rows:
        if sizes[row] <= 2 * room:
            taken.append(row)
            room -= int(sizes[row])
    return taken


SQUAD = (".json", ".json.gz")  # Questions in the nested format of SQuAD.


def read_file(path: Path, wanted: Collection[str]) -> Table:
    """Reads the wanted columns of a file of a type in `SUFFIXES` or `SQUAD`.

    Each question of SQuAD's JSON becomes a row with its `context`, the `title` of the article if it has one, and its
    own keys, such as `id`, `question` and `answers`. The classes of a data set that the `datasets` library has written
    as Parquet are read too.

    Raises:
        UserError: if the file cannot be read, or a line of it has no clear meaning.
    """
    if not path.name.endswith(SQUAD):
        table = read_table(path, wanted)
        if table.note:
            print_notice(f"{path}: {table.note}")
        return table if table.schema is None else _add_classes(table)
    with reading_errors(path):
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty, expected a header and examples")
        rows = read_articles(path)
        names = tuple(dict.fromkeys(name for row in rows for name in row))
        return Table(str(path), names, {name: [row.get(name) for row in rows] for name in names if name in wanted})


def from_dataset(dataset: "datasets.Dataset", source: str, wanted: Collection[str]) -> Table:
    """Converts a data set of the `datasets` library."""
    names = tuple(dataset.column_names)
    check_names(source, names)
    plain = dataset.with_format(None)  # Another format would return tensors.
    columns = {name: list(plain[name]) for name in names if name in wanted}
    others = [name for name in names if name not in wanted and is_string(dataset.features[name])]
    samples = dict(plain.select_columns(others)[:SAMPLED]) if others else {}
    return Table(source, names, columns, _get_class_names(dataset.features, columns), samples=samples)


def _add_classes(table: Table) -> Table:
    """Returns the rows of Parquet with the names of classes that the `datasets` library has written."""
    if b"huggingface" not in (table.schema.metadata or {}):
        return table
    import datasets

    try:
        features = datasets.Features.from_arrow_schema(table.schema)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{table.source} has damaged metadata of the datasets library, expected its features"
        ) from error
    return replace(table, classes=_get_class_names(features, table.columns))


def _get_class_names(features: Mapping[str, object], columns: Collection[str]) -> dict[str, tuple[str, ...]]:
    import datasets

    # The classes of a column of lists, such as the tags of words, are those of its values.
    of_values = {name: getattr(feature, "feature", feature) for name, feature in features.items()}
    return {
        name: tuple(feature.names)
        for name, feature in of_values.items()
        if name in columns and isinstance(feature, datasets.ClassLabel)
    }


# The file or Hub names of each split.
STEMS: Mapping[str, tuple[str, ...]] = {"train": ("train",), "dev": ("dev", "validation", "valid"), "test": ("test",)}
# Splits a table, the only one of a source or its train, into train and dev.
HoldOut = Callable[[Table], dict[str, Table]]
MOST_OF_WANTED = 2  # A notice says if dev has more than this multiple of its share.
SINGLE = "data"  # The name of the only table of a source, of which dev is held out.


S = TypeVar("S", Table, "Split")


@dataclass(frozen=True, kw_only=True)
class TableSource:
    """A source that has a table of rows for each split.

    Args:
        name: name of the task in messages.
        wanted: all columns that may be read.
        tables: data in memory by split, a single table under the name `data`.
        data_dir: a directory with `train` and `dev`, or a single file. None uses the Hub's `hub_id`.
        stems: possible names of each split's file or Hub split. Without names for dev it is held out of train, and the
            other splits are kept.
        hub_id: a data set of the Hub and, after a colon, its configuration: `nyu-mll/glue:sst2`.
        builtin: whether to use the built-in data.
        suffixes: of the files that `read_file` reads.
        read_file: reads the wanted columns of a file.
        dev_fraction: share of a single file or table, or of train, that is held out as dev, the same in every run.
        train_examples, dev_examples: number of examples to use, always the same ones; None uses all.
        transfer: further sets that are scored as splits of their own, by name: a file, a directory, or a data set.
    """

    name: str
    wanted: tuple[str, ...]
    tables: "Mapping[str, datasets.Dataset] | None" = None
    data_dir: str | None = None
    stems: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: dict(STEMS))
    hub_id: str | None = None
    builtin: bool = False
    suffixes: tuple[str, ...] = SUFFIXES
    read_file: Callable[[Path, Collection[str]], Table] = read_file
    dev_fraction: float = 0.1
    train_examples: int | None = None
    dev_examples: int | None = None
    transfer: "Mapping[str, str | datasets.Dataset]" = field(default_factory=dict)

    def read(self, cache_dir: Path, hold_out: HoldOut, is_labelled: Callable[[Table], bool]) -> dict[str, Table]:
        """Returns the tables of train, of dev, of the other splits that are labelled, and of the sets of `transfer`.

        Args:
            hold_out: splits the table of a source that has only one, or train where there are no names for dev.

        Raises:
            UserError: if a directory, file or split is missing or cannot be read, and for a set without labels.
            UnreachableError: if the data is not in the cache and cannot be downloaded.
        """
        tables = self._read_splits(cache_dir, hold_out)
        tables = {name: of for name, of in tables.items() if name in ("train", "dev", SINGLE) or is_labelled(of)}
        further = {name: self._read_further(name, content) for name, content in self.transfer.items()}
        for name, table in further.items():
            if not is_labelled(table):
                raise UserError(f"{table.source} has no labels, expected those of task.transfer.{name}: it is scored")
        return {**tables, **further}

    def _read_splits(self, cache_dir: Path, hold_out: HoldOut) -> dict[str, Table]:
        """Returns the table of each split."""
        if self.is_single:
            return hold_out(self._read_single())
        tables = self._read_several(cache_dir)
        return tables if self.stems["dev"] else {**hold_out(tables.pop("train")), **tables}

    def _read_several(self, cache_dir: Path) -> dict[str, Table]:
        """Returns the table of each split that the source has."""
        if self.tables is not None:
            return self._read_memory(self.tables)
        if self.data_dir is not None:
            return self._read_directory(Path(self.data_dir).expanduser())
        if self.builtin:
            from distill.data import docstrings

            return self._read_directory(docstrings.prepare_dataset(cache_dir, seed=0))
        return self._read_hub()

    @property
    def _needed(self) -> list[str]:
        """Returns the splits that a source of several tables must have."""
        return [split for split in ("train", "dev") if self.stems[split]]

    @property
    def is_on_hub(self) -> bool:
        """Returns whether the data is a data set of the Hub."""
        return self.tables is None and self.data_dir is None and not self.builtin

    @property
    def is_single(self) -> bool:
        """Returns whether the data is one table or file, of which dev is held out."""
        if self.tables is not None:
            return set(self.tables) == {SINGLE}
        return self.data_dir is not None and Path(self.data_dir).expanduser().is_file()

    def _check_size(self, table: Table, held_out: int) -> None:
        """Raises UserError for no row of dev, and prints a notice of far more than were wanted."""
        if not held_out:
            raise self.too_few_texts(table)
        if held_out > MOST_OF_WANTED * max(1.0, self.dev_fraction * len(table)):
            print_notice(
                f"dev has {held_out:,} of the {len(table):,} rows of {table.source}, more than task.dev_fraction="
                f"{self.dev_fraction} says, because rows of equal texts are on one side"
            )

    def too_few_texts(self, table: Table) -> UserError:
        """Returns the error of a table that cannot be split, because nearly all of its rows have equal texts."""
        return UserError(
            f"{table.source} cannot be split with task.dev_fraction={self.dev_fraction} so that equal texts are on one "
            f"side, because too few of its {len(table):,} rows have different texts: give a directory with train and "
            "dev instead"
        )

    def hold_out_dev(
        self,
        table: Table,
        *,
        classes: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        group: str = "group",
        train: Sequence[int] = (),
        together: Iterable[Keys] = (),
    ) -> dict[str, Table]:
        """Splits a table into train and dev, the same in every run. Rows of equal texts are on one side.

        Args:
            classes: of the rows, by which the split is stratified; None draws dev from all rows alike.
            groups: of the rows; those of one group are in one split. None has no groups.
            group: the name of a group in messages.
            train: rows that are not held out; there are none with classes or groups.
            together: keys of the rows, such as their texts; those with an equal key are in one split.

        Raises:
            UserError: if train or dev would lack rows, a class, or a group.
        """
        path, option, every = table.source, f"task.dev_fraction={self.dev_fraction}", np.arange(len(table))
        numbers = np.setdiff1d(every, np.asarray(train, dtype=np.int64))
        try:
            if groups is None:
                dev = numbers[draw_share(len(numbers), self.dev_fraction, classes)]
            else:
                names, of_rows = np.unique(groups, return_inverse=True)
                dev = np.flatnonzero(np.isin(of_rows, draw_share(len(names), self.dev_fraction)))
        except ValueError as error:
            held = "every class" if classes is not None else None if groups is None else f"a {group} each"
            condition = "" if held is None else f" so that train and dev hold {held}"
            raise UserError(
                f"{path} cannot be split with {option}{condition} ({error}): give a directory with train and dev "
                "instead"
            ) from error
        dev = keep_together(dev, number_units(together, len(table)), classes=classes, fixed=train)
        self._check_size(table, len(dev))
        sources = {"train": f"{path} without {option}", "dev": f"{path}, {option}"}
        return {
            name: table.select(np.sort(indices).tolist(), sources[name])
            for name, indices in (("train", np.setdiff1d(every, dev)), ("dev", dev))
        }

    def sample(self, splits: "Mapping[str, S]") -> "dict[str, S]":
        """Returns the splits with `train_examples` and `dev_examples` examples, which are the same in every run."""
        sizes = {"train": self.train_examples, "dev": self.dev_examples}
        return {name: _sample(split, sizes.get(name)) for name, split in splits.items()}

    def _read_single(self) -> Table:
        """Returns the only table of the source."""
        if self.tables is not None:
            return from_dataset(self.tables[SINGLE], "the data", self.wanted)
        path = Path(str(self.data_dir)).expanduser()
        check_suffix(path, f"task.data_dir={path}", self.suffixes)
        return self.read_file(path, self.wanted)

    def _read_memory(self, tables: "Mapping[str, datasets.Dataset]") -> dict[str, Table]:
        names = self._name_splits(tables)
        if missing := [split for split in self._needed if split not in names]:
            raise UserError(
                f"the data has no split {' and '.join(missing)}, expected {' and '.join(self._needed)}: it has "
                f"{', '.join(tables)}"
            )
        return {split: from_dataset(tables[stem], f"the split {stem}", self.wanted) for split, stem in names.items()}

    def _name_splits(self, given: Collection[str]) -> dict[str, str]:
        """Returns the name that each split has among those given, the first one of its possible names."""
        named = {split: [stem for stem in stems if stem in given] for split, stems in self.stems.items()}
        return {split: found[0] for split, found in named.items() if found}

    def _read_directory(self, directory: Path) -> dict[str, Table]:
        """Returns the table of each split in the directory."""
        if not directory.is_dir():
            raise missing_data(directory)
        files = find_files(directory, self.stems, self.suffixes)
        for split in self._needed:
            if split not in files:
                raise missing_file(directory, self.stems[split], self.suffixes)
        return {split: self._read_parts(paths) for split, paths in files.items()}

    def _read_parts(self, paths: Sequence[Path]) -> Table:
        """Returns the rows of a file, or of all of its parts."""
        return join_tables([self.read_file(path, self.wanted) for path in paths])

    def _read_further(self, name: str, content: "str | datasets.Dataset") -> Table:
        """Returns the table of a set of `transfer`: a file, or the one of test, or else of dev, in a directory."""
        if not isinstance(content, str):
            return from_dataset(content, f"the set {name}", self.wanted)
        path = Path(content).expanduser()
        if path.is_dir():
            files = find_files(path, {split: self.stems[split] for split in ("test", "dev")}, self.suffixes)
            if not files:
                raise missing_file(path, [*self.stems["test"], *self.stems["dev"]], self.suffixes)
            return self._read_parts(files.get("test") or files["dev"])
        if not path.is_file():
            raise UserError(f"task.transfer.{name}={content} does not exist, expected a file, or a directory with test")
        check_suffix(path, f"task.transfer.{name}={content}", self.suffixes)
        return self.read_file(path, self.wanted)

    def _read_hub(self) -> dict[str, Table]:
        if self.hub_id is None:
            raise UserError(f"task {self.name} has no data of its own: give task.data_dir=DIR with train and dev files")
        loaded = storage.load_hub_dataset(
            self.hub_id, f"data set {self.hub_id}",
            advice="with train and dev files, go online once, or use the built-in data with task=docstrings",
        )  # fmt: skip
        names = self._name_splits(loaded)
        for split in self._needed:
            if split not in names:
                expected = " or ".join(self.stems[split])
                raise UserError(f"data set {self.hub_id} has no split {expected}: it has {', '.join(loaded)}")
        return {
            split: from_dataset(loaded[name], f"{self.hub_id} {name}", self.wanted) for split, name in names.items()
        }


def find_files(
    directory: Path, stems: Mapping[str, Sequence[str]], suffixes: Sequence[str] = SUFFIXES
) -> dict[str, tuple[Path, ...]]:
    """Returns the file of each split that a directory has, or its parts: `train-00000-of-00002.parquet` and the next.

    Raises:
        UserError: for several files of one split that are no parts of one, and for parts that are not all there.
    """
    parts = _find_parts(directory, suffixes)
    files: dict[str, tuple[Path, ...]] = {}
    for split, names in stems.items():
        candidates = (directory / f"{stem}{suffix}" for stem in names for suffix in suffixes)
        paths: list[tuple[Path, ...]] = [(candidate,) for candidate in candidates if candidate.is_file()]
        paths += [of for stem in names for (name, _), of in parts.items() if name == stem]
        if len(paths) > 1:
            raise UserError(
                f"{directory} has {' and '.join(of[0].name for of in paths)}, expected one file for {split}: "
                "move the others away"
            )
        if paths:
            files[split] = paths[0]
    for (stem, count), of in parts.items():
        if of in files.values() and len(of) != count:
            raise UserError(
                f"{directory} has {len(of)} of the {count} files {stem}-...-of-{count:05} (found "
                f"{', '.join(path.name for path in of[:5])}), expected all of them"
            )
    return files


def _find_parts(directory: Path, suffixes: Sequence[str]) -> dict[tuple[str, int], tuple[Path, ...]]:
    """Returns the parts of files in their order, by the name and the number of all parts."""
    found: dict[tuple[str, int], list[Path]] = {}
    for path in sorted(directory.iterdir()):
        part = read_shard(path, suffixes)
        if part is not None and path.name.endswith(tuple(suffixes)) and path.is_file():
            found.setdefault((part[0], part[2]), []).append(path)
    return {key: tuple(paths) for key, paths in found.items()}


def check_suffix(path: Path, given: str, suffixes: tuple[str, ...]) -> None:
    """Raises UserError for a file of another kind than those of `suffixes`; `given` is the option with its value."""
    if not path.name.endswith(suffixes):
        raise UserError(f"{given} is of no known kind, expected one of {', '.join(suffixes)}")


def missing_data(path: Path) -> UserError:
    """Returns the error of a path of data that is not there."""
    return UserError(f"task.data_dir={path} does not exist, expected a directory with train and dev, or a file")


def missing_file(directory: Path, stems: Sequence[str], suffixes: Sequence[str] = SUFFIXES) -> UserError:
    """Returns the error of a directory without the file of a split."""
    content = ", ".join(sorted(entry.name for entry in directory.iterdir())) or "nothing"
    names = " or ".join(stems)
    return UserError(
        f"{directory} has no {names} file (found {content}), expected {names} with one of {', '.join(suffixes)}; "
        "task.data_dir=FILE holds out dev from one file"
    )


def _sample(split: S, size: int | None) -> S:
    if size is None or size >= len(split):
        return split
    return split.select(np.sort(np.random.default_rng(0).permutation(len(split))[:size]))


def check_columns(table: Table, columns: Sequence[Sequence[str]], advice: str) -> None:
    """Raises UserError for a table that lacks a column, or has no rows.

    Args:
        columns: names of each column, of which the table needs one.
        advice: how to name other columns, for messages.
    """
    check_names_of(table, columns, advice)
    if not len(table):
        raise UserError(f"{table.source} has no examples")


def check_names_of(table: Table, columns: Sequence[Sequence[str]], advice: str) -> None:
    """Raises UserError for a table that lacks a column, as `check_columns`."""
    missing = [" or ".join(names) for names in columns if not table.find(names)]
    if missing:
        raise missing_columns(table, ", ".join(missing), advice)


def check_memory(source: TableSource, columns: Sequence[Sequence[str]], advice: str) -> None:
    """Raises UserError for data in memory in which train or dev lacks a column or has nothing but missing values in it.

    Args:
        columns: names of each column, of which a table needs one.
        advice: how to name other columns, for messages.
    """
    for name, dataset in (source.tables or {}).items():
        if name != SINGLE and not any(name in source.stems[split] for split in ("train", "dev")):
            continue
        table = from_dataset(dataset, "the data" if name == SINGLE else f"the split {name}", ())
        check_names_of(table, columns, advice)
        for names in columns:
            found = table.find(names)
            if len(dataset) and all(_is_empty(dataset, column) for column in found):
                raise UserError(
                    f"{table.source} has no value in the column {' or '.join(found)}: all {len(dataset):,} are None; "
                    f"{advice}"
                )


def _is_empty(dataset: "datasets.Dataset", column: str) -> bool:
    """Returns whether every row of a data set lacks this value."""
    return bool(dataset.data.column(column).null_count == dataset.data.num_rows > 0)


def missing_columns(table: Table, columns: str, advice: str) -> UserError:
    """Returns the error of a table without these columns."""
    hint = suggest_column(re.split(", | or ", columns), table.names)
    return UserError(f"{table.source} has no column {columns}{hint}: it has {show_names(table.names)}; {advice}")
