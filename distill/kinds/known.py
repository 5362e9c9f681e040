"""Outputs of a teacher that stand in a table: what a row of it says of the items of a task, as logits.

A hard label has the probability `trust`, and so have several candidates together, in equal shares (arXiv 2506.03857);
the other classes share the rest. Distributions are taken as they are.
"""

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distill.core.errors import UserError
from distill.data.prose import normalize_text
from distill.rows.columns import Table
from distill.rows.formats import name_row, show_names

Key = tuple[str, ...]  # The texts of an item, as they are compared.
Found = Iterator[tuple[int, Key, np.ndarray]]  # Rows of a table with the texts and the outputs `[k, C]` of items.
ID = "id"
LABEL, CANDIDATES, PROBABILITIES = "label", "labels", "probabilities"
SCORE, SCORES, VECTOR, TAGS, SPANS = "score", "scores", "vector", "tags", "spans"
TOLERANCE = 0.01  # Of a sum of probabilities, which files have with few digits.
SMALLEST = 1e-6  # Probabilities that are smaller count as this one.
EQUAL = 1e-4  # Difference of equal logits, numbers and vectors.
TRUST = 0.9


@dataclass(frozen=True)
class KnownTable:
    """A table with the outputs of a teacher.

    Args:
        table: with the texts of the items, or those of its ids.
        labels: the classes of the task.
        trust: the probability of a label that has none.
    """

    table: Table
    labels: tuple[str, ...]
    trust: float = TRUST

    def has(self, *names: str) -> bool:
        """Returns whether there are all of these columns."""
        return all(name in self.table.names for name in names)

    def value(self, row: int, name: str) -> Any:
        """Returns the value of a column."""
        return self.table.columns[name][row]

    def fail(self, row: int, reason: str) -> UserError:
        """Returns the error for a row."""
        return UserError(f"{self.table.place(row)}: {reason}")

    def texts(self, names: Sequence[str]) -> Iterator[Key]:
        """Yields the texts of each row in these columns.

        Raises:
            UserError: for columns that are missing, and values that are no text.
        """
        if not self.has(*names):
            raise UserError(
                f"{self.table.source} has the columns {show_names(self.table.names)}, expected the texts in "
                f"{show_names(names)}, or {ID} and teacher.texts=FILE with {ID} and {show_names(names)}"
            )
        for row, values in enumerate(zip(*(self.table.columns[name] for name in names), strict=True)):
            if not all(isinstance(value, str) for value in values):
                raise self.fail(row, f"column {show_names(names)} is {reprlib.repr(values)}, expected text")
            yield values

    def number(self, row: int, name: str, value: object, expected: str) -> float:
        """Returns a value of a column as a number."""
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise self.fail(row, f"column {name} is {reprlib.repr(value)}, expected {expected}") from None
        if not np.isfinite(number) and expected != "a probability":
            raise self.fail(row, f"column {name} is {number}, expected {expected}")
        return number

    def words(self, row: int, name: str) -> list[str]:
        """Returns the list of words in a column."""
        values = self.value(row, name)
        if not isinstance(values, list | tuple | np.ndarray):
            raise self.fail(row, f"column {name} is {reprlib.repr(values)}, expected a list of words")
        return list(map(str, values))

    def numbers(self, row: int, name: str, expected: str) -> np.ndarray:
        """Returns the list of numbers in a column, `[K]`."""
        values = self.value(row, name)
        if not isinstance(values, list | tuple | np.ndarray):
            raise self.fail(row, f"column {name} is {reprlib.repr(values)}, expected {expected}")
        return np.array([self.number(row, name, value, expected) for value in values])

    def class_logits(self, row: int) -> np.ndarray:
        """Returns the logarithms of the probabilities of the classes that a row gives, `[C]`."""
        given = self._distribution(row)
        if given is None:
            chosen = self._candidates(row)
            return spread(chosen, len(self.labels), self.trust)
        if abs(sum(given) - 1) > TOLERANCE:
            raise self.fail(
                row,
                f"the probabilities {self._show(given)} have a sum of {sum(given):.3g}, expected 1: give those of all "
                "classes, or with task.multi_label=true one for each label",
            )
        logits: np.ndarray = np.log(np.maximum(given, SMALLEST))
        return logits

    def label_logits(self, row: int) -> np.ndarray:
        """Returns the log-odds of each label, where an example has any number of them, `[C]`."""
        given = self._distribution(row)
        if given is None:
            given = np.full(len(self.labels), 1 - self.trust, dtype=float)
            given[self._candidates(row, may_be_none=True)] = self.trust
        given = np.clip(given, SMALLEST, 1 - SMALLEST)
        logits: np.ndarray = np.log(given) - np.log1p(-given)
        return logits

    def _distribution(self, row: int) -> np.ndarray | None:
        """Returns the probabilities of a row in the order of the labels, `[C]`; None if it has labels alone."""
        is_nested = self.has(PROBABILITIES) and PROBABILITIES not in self.labels
        if not is_nested and not self.has(*self.labels) and (self.has(LABEL) or self.has(CANDIDATES)):
            return None
        values = self.value(row, PROBABILITIES) if is_nested else None
        if is_nested:
            if not isinstance(values, Mapping):
                raise self.fail(row, f"{PROBABILITIES} is {reprlib.repr(values)}, expected a mapping of classes")
            self._check_labels(self.table.place(row), tuple(map(str, values)), is_exact=True)
        else:
            self._check_labels(self.table.source, self.table.names)
            values = {name: self.value(row, name) for name in self.labels}
        found = np.array([self.number(row, name, values[name], "a probability") for name in self.labels])
        if not all(0 <= value <= 1 for value in found):  # NaN is neither.
            raise self.fail(row, f"got {self._show(found)}, expected probabilities from 0 to 1")
        return found

    def _candidates(self, row: int, *, may_be_none: bool = False) -> list[int]:
        """Returns the numbers of the classes that a row names."""
        value = self.value(row, CANDIDATES) if self.has(CANDIDATES) else self.value(row, LABEL)
        names = value if isinstance(value, list | tuple | np.ndarray) else [value]
        unknown = [name for name in names if str(name) not in self.labels]
        if unknown or (not len(names) and not may_be_none):
            shown = reprlib.repr(unknown[0]) if unknown else "none"
            raise self.fail(
                row, f"the label {shown} is no class of the task, expected one of {show_names(self.labels)}"
            )
        return [self.labels.index(str(name)) for name in names]

    def _check_labels(self, place: str, names: Sequence[str], *, is_exact: bool = False) -> None:
        """Raises UserError for names without those of all classes, or with `is_exact` with others."""
        if missing := [label for label in self.labels if label not in names]:
            raise UserError(
                f"{place} has no probabilities of {show_names(missing)}: it has {show_names(names)}, and the classes "
                f"of the task are {show_names(self.labels)}"
            )
        if is_exact and (others := [name for name in names if name not in self.labels]):
            raise UserError(
                f"{place} has probabilities of {show_names(others)}, and the classes of the task are "
                f"{show_names(self.labels)}"
            )

    def _show(self, values: Sequence[float] | np.ndarray) -> str:
        return show_names([f"{label} {value:.3g}" for label, value in zip(self.labels, values, strict=True)])


def spread(chosen: Sequence[int], classes: int, trust: float) -> np.ndarray:
    """Returns the logarithms of probabilities, of which the chosen classes have `trust` together, `[C]`."""
    others = classes - len(chosen)
    share = 1.0 if not others else trust
    probabilities = np.full(classes, (1 - share) / max(1, others))
    probabilities[list(chosen)] = share / len(chosen)
    logits: np.ndarray = np.log(np.maximum(probabilities, SMALLEST))
    return logits


def normalize(texts: Sequence[str]) -> Key:
    """Returns the key of texts."""
    return tuple(normalize_text(text) for text in texts)


def collect(table: Table, found: Found) -> dict[Key, np.ndarray]:
    """Returns the outputs `[k, C]` of all items of a table by their texts.

    Args:
        found: the row, the texts and the outputs of each item.

    Raises:
        UserError: for a text that is there twice with different outputs, and vectors of several widths.
    """
    known: dict[Key, tuple[int, np.ndarray]] = {}
    different: list[tuple[int, int, str]] = []
    for row, texts, outputs in found:
        first, earlier = known.setdefault(normalize(texts), (row, outputs))
        if earlier.shape != outputs.shape or np.abs(earlier - outputs).max(initial=0) > EQUAL:
            different.append((first, row, texts[0]))
    if different:
        [(one, other, text), *_], number = different, len(different)
        more = f"; {number:,} rows of the file are such repetitions" if number > 1 else ""
        raise UserError(
            f"{table.place(one)}, and {name_row(other, table.lines)}: the text {reprlib.repr(text)} is there twice "
            f"with different outputs, expected them once: take one of them out, or give both the mean{more}"
        )
    return {key: outputs for key, (_, outputs) in known.items()}


def join_texts(table: Table, texts: Table, names: Sequence[str]) -> Table:
    """Returns a table with `id` that has the texts of another one with the same ids.

    Raises:
        UserError: for columns and ids that are missing, and an id with two different texts.
    """
    if missing := [name for name in (ID, *names) if name not in texts.names]:
        raise UserError(
            f"{texts.source} has no column {show_names(missing)}: it has {show_names(texts.names)}, expected "
            f"{show_names((ID, *names))}"
        )
    by_id: dict[str, tuple[int, tuple[Any, ...]]] = {}
    values = zip(*(texts.columns[name] for name in names), strict=True)
    for row, (id, of_row) in enumerate(zip(texts.columns[ID], values, strict=True)):
        first, of_id = by_id.setdefault(str(id), (row, of_row))
        if of_id != of_row:
            raise UserError(
                f"{texts.place(first)}, and {name_row(row, texts.lines)}: the id {id} is there twice with different "
                f"texts, {reprlib.repr(of_id[0])} and {reprlib.repr(of_row[0])}, expected it once: take one of them out"
            )
    for row, id in enumerate(table.columns[ID]):
        if str(id) not in by_id:
            raise UserError(f"{table.place(row)}: {texts.source} has no row with the id {id}, expected its text")
    found = [by_id[str(id)][1] for id in table.columns[ID]]
    columns = {name: [of_row[number] for of_row in found] for number, name in enumerate(names)}
    return replace(table, names=(*table.names, *names), columns={**table.columns, **columns})
