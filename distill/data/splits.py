"""The examples of a task: splits with named columns and a digest, data in memory, and a budget of texts."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

import numpy as np
from pydantic import SkipValidation

from distill.core.console import print_notice
from distill.core.contracts import IGNORED
from distill.core.errors import UserError, first_line
from distill.data.problems import find_doubled, find_shared
from distill.data.shards import Shards
from distill.data.sources import TableSource
from distill.rows.formats import Lines

if TYPE_CHECKING:
    import datasets
    import pandas


AUTO = "auto"  # The value of task.unlabelled and of augment.
SHARE = 0.5  # Of the examples of an optimizer step that are unlabelled.
COPIES = 10  # Changed copies of a training row.
BANK_FACTOR = 8  # Sentences of a bank for a training row.
MOST_FROM_BANK = 30_000  # Sentences of a bank in all.
MOST_IN_BANK = 200_000  # Sentences of a bank that are encoded, evenly spaced among all.
BANK_ROOM = 0.5  # Share of the room that a bank has before the copies, 1 if copies come last.
CANDIDATES = 2  # Near sentences for each one that is taken, so that the predicted classes can be balanced.
AUTO_TIME = 1.5  # The time of a run with further text, as a multiple of the time without.
BACKWARD = 3  # Forward passes that take as long as a forward and a backward pass.
# The best measured reason to give text, for a run that has none (docs/results.md).
AUTO_GAIN = "on 500 rows of SST-2, 30,000 sentences of film reviews raised a student's accuracy from 0.806 to 0.816"


@dataclass(frozen=True)
class Room:
    """The room for texts that only the teacher labels.

    Args:
        passes: forward passes of the teacher for one text each, within the budget of time.
        shown: unlabelled examples that the training shows, each of which may be a text of its own.
    """

    passes: int
    shown: int

    def without(self, texts: int, *, passes: int = 1) -> "Room":
        """Returns the room beside so many texts, each with so many forward passes."""
        return Room(max(0, self.passes - texts * passes), max(0, self.shown - texts))

    def fits(self, *, passes: int = 1) -> int:
        """Returns the number of texts that fit, each with so many forward passes."""
        return min(self.passes // passes, self.shown)


@dataclass(frozen=True)
class Amounts:
    """The amounts of text of the sources that may be left out.

    Args:
        copies: changed copies of each training row.
        sentences: sentences of the bank.
        wanted_copies: the copies without a budget.
        wanted_sentences: the sentences without a budget.
    """

    copies: int
    sentences: int
    wanted_copies: int
    wanted_sentences: int

    def describe_left_out(self) -> str | None:
        """Describes what does not fit, None if everything does."""
        left_out = [
            f"{wanted - taken:,} of {wanted:,} {name}"
            for taken, wanted, name in (
                (self.copies, self.wanted_copies, "copies of each row"),
                (self.sentences, self.wanted_sentences, "sentences of the bank"),
            )
            if taken < wanted
        ]
        return " and ".join(left_out) or None


def measure_room(*, rows: int, student: int, mixed: int, teacher: int, layers: float, share: float) -> Room:
    """Returns the room for further text beside a run whose work is counted in forward passes of the teacher.

    The measure is the number of texts and layers, and never a measured time, so that the same command makes the same
    data. The steps that mixing adds to a fixed number of epochs are not counted.

    Args:
        rows: labelled rows, whose outputs the teacher computes once.
        student: examples that the student's training shows without further text.
        mixed: those with it.
        teacher: examples that the teacher's fine-tuning shows, 0 without one.
        layers: the student's layers as a share of the teacher's.
        share: of unlabelled examples in a step.
    """
    work = rows + BACKWARD * (teacher + layers * student)
    return Room(int((AUTO_TIME - 1) * work), int(mixed * share))


def choose_amounts(room: Room, *, rows: int, copies: bool, bank: int) -> Amounts:
    """Returns the amounts that fit: copies first, and a bank, which has `BANK_ROOM` of the room if it can fill it.

    Args:
        room: beside the rows that the pool has already.
        rows: labelled rows.
        copies: whether copies are made.
        bank: sentences of the bank, 0 without one.
    """
    cost = 1 + CANDIDATES  # The teacher predicts the class of each candidate.
    wanted_copies = COPIES if copies else 0
    wanted = min(BANK_FACTOR * rows, MOST_FROM_BANK, bank)
    reserved = min(wanted, Room(int(BANK_ROOM * room.passes), int(BANK_ROOM * room.shown)).fits(passes=cost))
    of_each = min(wanted_copies, room.without(reserved, passes=cost).fits() // rows)
    sentences = min(wanted, room.without(of_each * rows).fits(passes=cost))
    return Amounts(of_each, sentences, wanted_copies, wanted)


# A mapping holds columns by their names, a list rows with the names of the columns, a tuple texts and labels.
if TYPE_CHECKING:
    GivenTable: TypeAlias = (
        datasets.Dataset
        | pandas.DataFrame
        | Mapping[str, Sequence[object]]
        | list[Mapping[str, object]]
        | tuple[Sequence[object], Sequence[object]]
    )
    TableSplits: TypeAlias = Mapping[str, GivenTable]
else:
    # `check_arguments` would import the libraries, and copy the data to check it.
    GivenTable = TableSplits = Annotated[object, SkipValidation]

EXPECTED = (
    "expected a path, (texts, labels), a mapping of columns, a pandas frame, rows, a datasets.Dataset, or a mapping of "
    "split names to one of these"
)


def to_tables(
    data: "GivenTable | TableSplits | None",
    splits: "Mapping[str, GivenTable | None]",
    *,
    text: Sequence[str],
    label: str,
) -> "dict[str, datasets.Dataset] | None":
    """Returns the tables by split, a single one under the name `data`, or None without data.

    Args:
        data: one table, or a mapping of split names to tables.
        splits: the tables by split, None for a missing one. Excludes `data`.
        text: names of the text columns, for data in lists.
        label: name of the label column, for data in lists.

    Raises:
        UserError: if the data is of another type, or both `data` and splits are given.
    """
    named = {name: value for name, value in splits.items() if value is not None}
    if data is None and not named:
        return None
    if data is not None and named:
        raise UserError(f"got data and {' and '.join(named)}, expected one of them: leave out the other")
    if named:
        return {name: _to_table(value, text=text, label=label) for name, value in named.items()}
    if isinstance(data, Mapping) and not any(column in data for column in (*text, label)):
        return {str(name): _to_table(value, text=text, label=label) for name, value in data.items()}
    return {"data": _to_table(data, text=text, label=label)}


def further_tables(
    sets: "Mapping[str, str | Path | GivenTable]", *, text: Sequence[str], label: str
) -> "dict[str, str | datasets.Dataset]":
    """Returns further sets by name, each the path that it was given as, or a table.

    Raises:
        UserError: for data of another type.
    """
    return {
        name: str(value) if isinstance(value, str | Path) else _to_table(value, text=text, label=label)
        for name, value in sets.items()
    }


def text_table(value: object, text: Sequence[str]) -> "datasets.Dataset":
    """Returns a table of texts without labels from a table, or from a sequence of texts or of pairs of texts.

    Raises:
        UserError: if the data is of another type.
    """
    import datasets
    import pandas

    if isinstance(value, datasets.Dataset | pandas.DataFrame | Mapping):
        return _to_table(value, text=text, label="")
    with _table_errors("the texts of unlabelled cannot be read ({}), expected text only"):
        return datasets.Dataset.from_dict(_split_texts(_to_list("unlabelled", value), text))


@contextmanager
def _table_errors(message: str) -> Iterator[None]:
    """Converts errors of pyarrow to a UserError with this message, in which `{}` is the reason."""
    import pyarrow

    try:
        yield
    except UserError:
        raise
    except (pyarrow.ArrowException, ValueError, OverflowError, NotImplementedError) as error:
        raise UserError(message.format(first_line(error))) from error


def _to_table(value: object, *, text: Sequence[str], label: str) -> "datasets.Dataset":
    import datasets
    import pandas

    if isinstance(value, datasets.Dataset):
        return value
    problem = "the data cannot be made a table ({}): every column needs a name of its own and values of one type"
    with _table_errors(problem):
        if isinstance(value, pandas.DataFrame):
            return datasets.Dataset.from_pandas(value, preserve_index=False)
        if isinstance(value, Mapping):
            return datasets.Dataset.from_dict(_to_columns(value))
        if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            names = dict.fromkeys(str(name) for row in value for name in row)
            return datasets.Dataset.from_dict({name: [row.get(name) for row in value] for name in names})
        if isinstance(value, tuple) and len(value) == 2:
            return datasets.Dataset.from_dict(_join_columns(*value, text=text, label=label))
    raise UserError(f"got data of type {type(value).__name__}, {EXPECTED}")


def _join_columns(given: object, labels: object, *, text: Sequence[str], label: str) -> dict[str, list[Any]]:
    """Returns the columns of texts, and of their labels, which may be a frame with a column for each label."""
    import pandas

    texts = _to_list("texts", given)
    columns = _split_texts(texts, text)
    if isinstance(labels, pandas.DataFrame) and len(labels.columns) > 1:
        of_labels = {str(name): labels.iloc[:, place].tolist() for place, name in enumerate(labels.columns)}
        if len(of_labels.keys() - columns.keys()) < len(labels.columns):
            raise UserError(f"got labels with the columns {', '.join(of_labels)}, expected other names than of texts")
    else:
        values = labels.iloc[:, 0] if isinstance(labels, pandas.DataFrame) else labels
        of_labels = {label: _to_list("labels", values)}
    for values in of_labels.values():
        if len(texts) != len(values):
            raise UserError(f"got {len(texts)} texts and {len(values)} labels, expected as many of both")
    return columns | of_labels


def _to_columns(table: Mapping[object, object]) -> dict[str, list[Any]]:
    columns = {str(name): _to_list(str(name), column) for name, column in table.items()}
    if len({len(column) for column in columns.values()}) > 1:
        lengths = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
        raise UserError(f"got columns of unequal lengths ({lengths}), expected as many rows in each")
    return columns


def _to_list(name: str, column: object) -> list[Any]:
    if isinstance(column, str | Set) or not isinstance(column, Iterable):  # A set has no order.
        raise UserError(f"got {name} of type {type(column).__name__}, expected a list or an array")
    return list(column)


def _split_texts(texts: list[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    """Returns the columns of texts, of pairs of texts, or of records with names."""
    if texts and all(isinstance(row, Mapping) for row in texts):
        return {name: [row[name] for row in texts] for name in _shared_names(texts)}
    if len(names) == 1:
        return {names[0]: texts}
    for row in texts:
        if isinstance(row, str) or not isinstance(row, Sized) or len(row) != len(names):
            raise UserError(f"got the text {row!r}, expected {len(names)} texts for {', '.join(names)}")
    return {name: [row[index] for row in texts] for index, name in enumerate(names)}


def _shared_names(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names that all records have."""
    names = list(records[0])
    for number, record in enumerate(records, 1):
        if set(record) != set(names):
            raise UserError(
                f"got record {number} with {', '.join(record)}, expected {', '.join(names)} as in the first"
            )
    return names


# Names of sources of rows that only the teacher labels.
OWN_ROWS, GIVEN_TEXTS, CHANGED_COPIES, BANK = "rows without a label", "texts without a label", "changed copies", "bank"
# The column of the class that the teacher gives an example, `IGNORED` where it is the label of the example too.
TEACHER_CLASS = "teacher_class"
Column: TypeAlias = list[Any] | np.ndarray


@dataclass(frozen=True)
class Split:
    """Raw examples as a table, whose columns are lists or arrays with a value for each example.

    Args:
        columns: the columns by their names.
        text: names of the columns of text, whose values are a text or a list of texts. By them examples are told from
            others.
        create_record: returns an example in the form that a bundle reads, from its values by column.
        whole: name of the column with all texts of an example as one; None if the first column of text is that.
    """

    columns: Mapping[str, Column]
    text: tuple[str, ...]
    create_record: Callable[[Mapping[str, Any]], Any]
    whole: str | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, column: str) -> Any:
        return self.columns[column]

    @property
    def labels(self) -> np.ndarray:
        """Class indices or numbers `[N]`, or 0 and 1 `[N, C]` where an example has any number of labels."""
        return np.asarray(self.columns["labels"])

    @property
    def texts(self) -> list[str]:
        """The text of each example, without the second texts of pairs."""
        texts: list[str] = self[self.whole or self.text[0]]
        return texts

    @property
    def pairs(self) -> list[str] | None:
        """The second texts of pairs."""
        return self[self.text[1]] if len(self.text) == 2 else None

    def records(self) -> list[Any]:
        """Returns the examples in the form that a bundle reads."""
        rows = zip(*self.columns.values(), strict=True)
        return [self.create_record(dict(zip(self.columns, row, strict=True))) for row in rows]

    def text_columns(self) -> dict[str, list[Any]]:
        """Returns the texts as columns of predictions.parquet."""
        return {name: self[name] for name in self.text}

    def compared_texts(self) -> Iterator[tuple[str, ...]]:
        """Yields the texts of each example, by which it is told from others."""
        for row in zip(*(self.columns[name] for name in self.text), strict=True):
            yield tuple(text for value in row for text in _list_texts(value))

    def all_texts(self) -> Iterator[str]:
        """Yields every text of the examples, by itself and as a part of the whole one."""
        return self.iterate_texts(*self.text, *([] if self.whole is None else [self.whole]))

    def iterate_texts(self, *columns: str) -> Iterator[str]:
        """Yields every text of these columns, one column after another."""
        return (text for name in columns for value in self.columns[name] for text in _list_texts(value))

    def select(self, rows: np.ndarray) -> "Split":
        """Returns these examples."""
        chosen = {
            name: column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]
            for name, column in self.columns.items()
        }
        return replace(self, columns=chosen)

    def with_columns(self, **columns: Column) -> "Split":
        """Returns the examples with further columns, or with others of the same names."""
        return replace(self, columns={**self.columns, **columns})

    def __add__(self, other: "Split") -> "Split":
        columns = {
            name: np.concatenate([column, other[name]]) if isinstance(column, np.ndarray) else [*column, *other[name]]
            for name, column in self.columns.items()
        }
        return replace(self, columns=columns)


def _list_texts(value: str | Sequence[str]) -> Sequence[str]:
    return (value,) if isinstance(value, str) else value


def text_split(texts: list[str], pairs: list[str] | None = None, *, labels: np.ndarray | None = None) -> Split:
    """Returns texts, or pairs of texts, as a split; without labels they are all 0, which means nothing."""
    columns = {"text": texts} if pairs is None else {"text": texts, "second_text": pairs}
    return Split(
        {**columns, "labels": np.zeros(len(texts)) if labels is None else labels},
        text=tuple(columns),
        create_record=itemgetter("text") if pairs is None else _create_pair_record,
    )


def _create_pair_record(row: Mapping[str, Any]) -> list[str]:
    return [row["text"], row["second_text"]]


@dataclass(frozen=True)
class Pool:
    """Rows without labels, which the teacher labels and which are mixed with the training rows.

    Args:
        rows: the rows, whose labels mean nothing; None without any.
        share: of the examples of every optimizer step.
        removed: number of texts that were left out, by reason.
        augmentation: of run.json, if some of the texts are changed copies of the training texts.
        sources: the `sources` of run.json.
        shards: further texts in shards with the teacher's outputs; None without.
    """

    rows: Any = None
    share: float = SHARE
    removed: Mapping[str, int] = field(default_factory=dict)
    augmentation: Mapping[str, Any] | None = None
    sources: tuple[Mapping[str, Any], ...] = ()
    shards: Shards | None = None

    def __len__(self) -> int:
        return 0 if self.rows is None else len(self.rows)

    def fit_share(self, labelled: int) -> "Pool":
        """Returns the pool with its share of a step: without other rows, the task's own are shown as the labelled ones.

        Without this, the few rows of a table that lack a label would be half of every step.
        """
        if not len(self) or {source["name"] for source in self.sources} != {OWN_ROWS}:
            return self
        return replace(self, share=min(self.share, len(self) / (len(self) + labelled)))

    def shuffled(self) -> Any:
        """Returns the rows in an order that is the same in every run."""
        return self.rows.select(np.random.default_rng(0).permutation(len(self)))

    def add(self, rows: Any, name: str, origin: str) -> "Pool":
        """Returns the pool with further rows, whose source has a name and an origin in words."""
        source = {"name": name, "examples": len(rows), "from": origin}
        return replace(self, rows=self.rows + rows if len(self) else rows, sources=(*self.sources, source))

    def record(self) -> dict[str, Any]:
        """Returns the `unlabelled` of the task in run.json; the sureness of the teacher is not known yet."""
        augmentation = {} if self.augmentation is None else {"augmentation": dict(self.augmentation)}
        return {
            "examples": len(self), "share": self.share, "removed": dict(self.removed), **augmentation,
            "sources": [*map(dict, self.sources)], "sureness": None,
        }  # fmt: skip


@dataclass(frozen=True)
class LabelledData:
    """All splits of a task, the names of its classes in order, and the SHA-256 of the content.

    For a regression, the only name is that of the column. The SHA-256 does not cover the pool, on which no teacher is
    fine-tuned. `scoring`, `terms`, `head_bias` and `choices` are set by the task, as `contracts.Data` has them.

    Args:
        classes: names of the classes of train alone, where the other splits have scores.
        needs_all_texts: whether an example has nothing to learn from without each of its texts, as a question without
            its context.
        mine: makes the data again with other negatives of train, by a function that returns the teacher's vectors
            `[N, D]` of texts, and its prompts of queries and documents; None where no teacher is asked.
    """

    labels: tuple[str, ...]
    splits: Mapping[str, Split]
    sha256: str
    pool: Pool = field(default_factory=Pool)
    classes: tuple[str, ...] = ()
    needs_all_texts: bool = False
    scoring: Any = None
    terms: Mapping[str, Any] = field(default_factory=dict)
    head_bias: Sequence[float] | None = None
    choices: int | None = None
    mine: "Callable[[LabelledData, Callable[[list[str]], np.ndarray], Mapping[str, str]], LabelledData] | None" = None

    def with_examples(self, examples: object) -> Self:
        """Returns the data as it is, because students are scored on its rows."""
        return self

    def with_option(self, option: str) -> Self:
        """Returns the data with a SHA-256 that depends on an option too."""
        return replace(self, sha256=hashlib.sha256(f"{self.sha256} {option}".encode()).hexdigest())

    def with_teacher(self, classes: Mapping[str, np.ndarray]) -> Self:
        """Returns the data with the classes `[N]` that a teacher gives each split that is scored.

        They are also the labels of examples without one.
        """
        splits = dict(self.splits)
        for name, of_split in classes.items():
            labels = splits[name].labels
            is_missing = labels == IGNORED
            columns = {
                "labels": np.where(is_missing, of_split, labels),
                TEACHER_CLASS: np.where(is_missing, IGNORED, of_split),
            }
            splits[name] = splits[name].with_columns(**columns)
        return replace(self, splits=splits)

    def sizes(self) -> dict[str, int]:
        """Returns the number of examples of each split."""
        return {name: len(split) for name, split in self.splits.items()}

    def texts(self) -> list[str]:
        """Returns the training texts, with the second texts of pairs, each once, only if an example needs both."""
        train = self.splits["train"]
        further = train.iterate_texts(*train.text[1:]) if self.needs_all_texts else ()
        return [*train.iterate_texts(train.whole or train.text[0]), *dict.fromkeys(further)]

    def is_empty(self, texts: Sequence[str]) -> bool:
        """Returns whether an example of these texts has nothing to learn from."""
        return not (all(texts) if self.needs_all_texts else any(texts))

    def labelled_texts(self) -> Iterator[str]:
        """Yields the texts of the labelled rows that are trained on, also the second ones of pairs."""
        yield from self.splits["train"].all_texts()

    def unlabelled_texts(self) -> Iterator[str]:
        """Yields the texts that only a teacher labels."""
        if self.pool.rows is not None:
            yield from self.pool.rows.all_texts()

    def training(self) -> Split:
        """Returns the labelled rows that are trained on."""
        return self.splits["train"]

    def scored(self) -> dict[str, Split]:
        """Returns the splits that are scored and not trained on, dev first."""
        return {"dev": self.splits["dev"]} | {k: v for k, v in self.splits.items() if k not in ("train", "dev")}


def create_data(
    source: TableSource,
    labels: tuple[str, ...],
    splits: Mapping[str, Split],
    list_content: Callable[[Mapping[str, Split]], Iterable[object]],
    *,
    lines: Mapping[str, Lines] | None = None,
) -> LabelledData:
    """Returns the data of all splits, those of train and dev limited, and prints how many rows they have in common.

    The digest does not cover the sets of `transfer`, on which nothing that is trained depends.

    Args:
        labels: names of the classes.
        list_content: returns the content of the splits, of which the digest is computed.
        lines: of the rows of the limited splits, where a row has one label; None for labels that are not compared.
    """
    splits = source.sample(splits)
    for name in source.transfer.keys() - splits.keys():
        raise UserError(f"the set task.transfer.{name} has no row with a text and a label, expected at least one")
    _report_shared_texts(splits, lines)
    own = {name: split for name, split in splits.items() if name not in source.transfer}
    return LabelledData(labels, splits, compute_digest(list_content(own)))


def _report_shared_texts(splits: Mapping[str, Split], lines: Mapping[str, Lines] | None) -> None:
    """Prints how many rows have the text of a row in an earlier split, or with another label in train itself."""
    texts = {name: list(map(str, split.records())) for name, split in splits.items()}
    labels = None if lines is None else {name: split.labels.tolist() for name, split in splits.items()}
    notices = list(map(str, find_shared(texts, labels, lines)))
    if labels is not None and lines is not None:
        doubled = find_doubled(texts["train"], labels["train"], lines["train"], differing=True)
        notices += [f"train: {problem}" for problem in doubled]
    if notices:
        print_notice("; ".join(notices))


def compute_digest(content: Iterable[object]) -> str:
    """Returns the SHA-256 of the JSON of all of these; bytes are taken as they are."""
    digest = hashlib.sha256()
    for part in content:
        digest.update(part if isinstance(part, bytes) else json.dumps(part).encode())
    return digest.hexdigest()
