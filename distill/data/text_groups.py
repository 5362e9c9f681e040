"""Reads rows of one or several texts, with or without a score, from the tables of a task."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distill.console import print_notice
from distill.data.columns import get_labels, is_labelled, read_text_column
from distill.data.held_out import text_keys
from distill.data.sources import TableSource, check_columns
from distill.data.tables import Column, LabelledData, Split, create_data, text_split
from distill.data.unlabelled import USUAL, Unlabelled, UnlabelledText
from distill.errors import UserError
from distill.readers.columns import Table
from distill.readers.labels import to_classes, to_numbers
from distill.readers.missing import is_blank

ADVICE = "name yours with task.text=[...] and task.label=..."
IS_QUERY = "is_query"  # The column of a retrieval set that tells its queries from its documents.
ReadLabels = Callable[[Table], np.ndarray]


def group_split(groups: list[list[str]], labels: np.ndarray | None = None, **further: Column) -> Split:
    """Returns groups of one or several texts, with their scores `[N]`, NaN for a group without one.

    Args:
        labels: None for groups without scores.
        further: columns beside those of texts and labels.
    """
    if labels is None:
        labels = np.full(len(groups), np.nan, dtype=np.float32)
    return Split({"texts": groups, "labels": labels, **further}, ("texts",), _create_record)


def _create_record(row: Mapping[str, Any]) -> list[str]:
    texts: list[str] = row["texts"]
    return texts


def list_content(splits: Mapping[str, Split]) -> Iterator[object]:
    """Yields the content of the splits, of which a digest is computed."""
    return ([name, split["texts"], split.labels.tolist()] for name, split in splits.items())


@dataclass(frozen=True, kw_only=True)
class GroupColumns:
    """The columns of groups of texts.

    Args:
        text: the columns of the texts of the splits that are scored.
        label: the column of their scores; of several names the one that a table has.
        train_text: the columns of the texts of train, which may lack all but one of them, or have `text` instead.
        train_label: the column of train's scores or classes, which train may lack.
        classes: names of train's classes in the order of the data's integers. None takes numbers for scores and words
            for classes.
        triples: two classes of pairs in train. The pairs of a first text then become groups of three texts: the first
            text, the second one of a pair of the first class, and that of a pair of the second class. Other pairs are
            left out. None leaves pairs as they are.
    """

    text: tuple[str, ...]
    label: tuple[str, ...]
    train_text: tuple[str, ...]
    train_label: tuple[str, ...]
    classes: tuple[str, ...] | None = None
    triples: tuple[str, str] | None = None

    def read(self, source: TableSource, cache_dir: Path, read_labels: ReadLabels | None = None) -> LabelledData:
        """Reads `train`, `dev` and the other splits with scores.

        Args:
            read_labels: returns the labels `[N]` of a table in the place of scores. All splits then have them.

        Raises:
            UserError: if a directory, file, column, text, score or class is missing or invalid.
            UnreachableError: if the data is not in the cache and cannot be downloaded.
        """
        tables = source.read(
            cache_dir,
            partial(self._hold_out_dev, source),
            lambda table: read_labels is not None or is_labelled(table, self.label),
        )
        groups = self._read_train(tables["train"])
        classes, numbers = self._read_train_labels(tables["train"], len(groups))
        if self.triples is not None:
            groups = _form_triples(groups, numbers, classes, self.triples, tables["train"].source)
            classes, numbers = (), np.full(len(groups), np.nan, dtype=np.float32)
        splits = {"train": group_split(groups, numbers)}
        splits |= {name: self._read_scored(table, read_labels) for name, table in tables.items() if name != "train"}
        # The classes are a part of what a teacher is fine-tuned on.
        data = create_data(source, (), splits, lambda of: [*([classes] if classes else []), *list_content(of)])
        return replace(data, classes=classes)

    def add_unlabelled(self, source: Unlabelled, data: LabelledData) -> LabelledData:
        """Returns the data with the single texts of a source that are in none of its splits, each once, as its pool.

        Raises:
            UserError: if the source is missing, cannot be read, lacks a column, or has no new text.
        """
        known = replace(data, splits={name: text_split(_known_texts(split)) for name, split in data.splits.items()})
        pool = UnlabelledText(source, text=self.text[:1], label=self.label).add_to(known).pool
        return replace(data, pool=replace(pool, rows=group_split([[text] for text in pool.rows.texts])))

    def _hold_out_dev(self, source: TableSource, table: Table) -> dict[str, Table]:
        columns = [table.columns[name] for name in (*self.text, *self.train_text) if name in table.columns]
        return source.hold_out_dev(table, together=[text_keys(*columns)] if columns else ())

    def _read_train(self, table: Table) -> list[list[str]]:
        """Returns the groups of a table to train on, of those columns that it has."""
        columns = [name for name in self.train_text if name in table.names]
        if not columns and USUAL in table.names:
            columns = [USUAL]
        check_columns(table, [] if columns else [(name,) for name in self.train_text], ADVICE)
        if missing := [name for name in self.train_text if name not in columns]:
            print_notice(f"{table.source} has no column {', '.join(missing)}: only {', '.join(columns)} is read")
        return _read_groups(table, columns, least=1)

    def _read_train_labels(self, table: Table, count: int) -> tuple[tuple[str, ...], np.ndarray]:
        """Returns the names of the classes, none for scores, and the labels `[N]`, NaN without any."""
        if not any(name in table.names for name in self.train_label):
            return (), np.full(count, np.nan, dtype=np.float32)
        column = get_labels(table, self.train_label)
        given = [row for row, value in enumerate(column.values) if not is_blank(value)]
        numbers = np.full(count, np.nan, dtype=np.float32)
        known = replace(column, values=[column.values[row] for row in given], rows=given)
        if self.classes is None and column.classes is None and any(map(_is_number, known.values)):
            numbers[given] = to_numbers(known)
            return (), numbers
        if not given:
            return (), numbers
        names, indices = to_classes({"train": known}, self.classes, print_notice)
        numbers[given] = indices["train"]
        return names, numbers

    def _read_scored(self, table: Table, read_labels: ReadLabels | None) -> Split:
        columns = [(name,) for name in self.text]
        check_columns(table, columns if read_labels is not None else [*columns, self.label], ADVICE)
        groups = _read_groups(table, self.text, least=2)
        if read_labels is not None:
            return group_split(groups, read_labels(table))
        return group_split(groups, to_numbers(get_labels(table, self.label)))


def _form_triples(
    groups: Sequence[list[str]], labels: np.ndarray, classes: Sequence[str], triples: tuple[str, str], source: str
) -> list[list[str]]:
    """Returns groups of a text, one that belongs to it and one that does not, of the pairs of two classes.

    The negative texts of a first text take turns.

    Raises:
        UserError: for a class that train does not have, and if no first text has pairs of both.
    """
    given = f"task.triples=[{','.join(triples)}]"
    if unknown := [name for name in triples if name not in classes]:
        known = f"expected two of {', '.join(classes)}" if classes else "and its pairs have no classes in words"
        raise UserError(f"{given}: {source} has no class {unknown[0]}, {known}")
    positive, negative = map(list(classes).index, triples)
    others: dict[str, list[str]] = {}
    for group, label in zip(groups, labels, strict=True):
        if label == negative and len(group) > 1:
            others.setdefault(group[0], []).append(group[1])
    negatives = {text: itertools.cycle(texts) for text, texts in others.items()}
    found = [
        [group[0], group[1], next(negatives[group[0]])]
        for group, label in zip(groups, labels, strict=True)
        if label == positive and len(group) > 1 and group[0] in negatives
    ]
    if not found:
        raise UserError(f"{given}: no first text of {source} has pairs of both classes: leave it out")
    return found


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def _read_groups(table: Table, columns: Sequence[str], *, least: int) -> list[list[str]]:
    """Returns the texts of each row; empty ones at its end are none.

    Raises:
        UserError: for a row of fewer texts, and for an empty text before another one.
    """
    texts = [read_text_column(table, name, may_be_empty=True, optional=True) for name in columns]
    groups = []
    for row, every in enumerate(zip(*texts, strict=True)):
        group = list(every)
        while group and not group[-1].strip():
            group.pop()
        empty = next((name for name, text in zip(columns, group, strict=False) if not text.strip()), None)
        if empty is None and len(group) < min(least, len(columns)):
            empty = columns[len(group)]
        if empty is not None or not group:
            raise UserError(f"{table.place(row)}: column {empty or columns[0]} is empty, expected text")
        groups.append(group)
    return groups


def _known_texts(split: Split) -> list[str]:
    """Returns the texts that one without a label is compared with: all of a split, or its queries.

    The documents of a retrieval set are known before a query is.
    """
    queries = split.select(np.flatnonzero(split[IS_QUERY])) if IS_QUERY in split.columns else split
    return list(queries.all_texts())
