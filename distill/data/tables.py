"""The examples of a task: splits with named columns, rows that only the teacher labels, and a digest of the content."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias

import numpy as np

from distill.console import print_notice
from distill.contracts import IGNORED
from distill.data.auto_text import SHARE
from distill.data.sources import TableSource
from distill.errors import UserError
from distill.readers.lines import Lines
from distill.readers.problems import find_doubled, find_shared

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
        create_record=_create_text_record if pairs is None else _create_pair_record,
    )


def _create_text_record(row: Mapping[str, Any]) -> str:
    text: str = row["text"]
    return text


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
    """

    rows: Any = None
    share: float = SHARE
    removed: Mapping[str, int] = field(default_factory=dict)
    augmentation: Mapping[str, Any] | None = None
    sources: tuple[Mapping[str, Any], ...] = ()

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
            `[N, D]` of texts; None where no teacher is asked.
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
    mine: "Callable[[LabelledData, Callable[[list[str]], np.ndarray]], LabelledData] | None" = None

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
        notices += [] if doubled is None else [f"train: {doubled}"]
    if notices:
        print_notice("; ".join(notices))


def compute_digest(content: Iterable[object]) -> str:
    """Returns the SHA-256 of the JSON of all of these; bytes are taken as they are."""
    digest = hashlib.sha256()
    for part in content:
        digest.update(part if isinstance(part, bytes) else json.dumps(part).encode())
    return digest.hexdigest()
