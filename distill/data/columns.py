"""The columns of a table: its labels, and its texts."""

import reprlib
from collections.abc import Sequence

from distill.console import print_notice
from distill.data.sources import missing_columns
from distill.errors import UserError
from distill.readers.columns import Table
from distill.readers.label_vectors import stack_columns
from distill.readers.labels import LabelColumn
from distill.readers.missing import is_missing, is_without_label


def get_labels(table: Table, names: Sequence[str]) -> LabelColumn:
    """Returns the column of the labels: the one of these names that the table has.

    Raises:
        UserError: if it has several.
    """
    found = [name for name in names if name in table.names]
    if len(found) > 1:
        raise UserError(
            f"{table.source} has the columns {' and '.join(found)}, expected one of them, because an example has one "
            f"label: name it, as in task.label={found[0]}"
        )
    return LabelColumn(table.source, table.columns[found[0]], table.classes.get(found[0]), lines=table.lines)


def stack_labels(table: Table, names: Sequence[str]) -> LabelColumn:
    """Returns the labels of a table with a column of 0 and 1 for each of these names.

    Raises:
        UserError: for a column that is missing, and for another value.
    """
    missing = [name for name in names if name not in table.names]
    if missing:
        raise missing_columns(table, ", ".join(missing), "task.label names a column of 0 and 1 for each label")
    return stack_columns(table.source, {name: table.columns[name] for name in names}, table.lines)


def is_labelled(table: Table, names: Sequence[str]) -> bool:
    """Returns whether a split has labels. GLUE on the Hub has -1 for the hidden labels of a test split."""
    found = [name for name in names if name in table.names]
    return not all(is_without_label(value) for name in found for value in table.columns[name])


def lacks_labels(table: Table, names: Sequence[str]) -> bool:
    """Returns whether no row of a table has a label; several columns of labels have one for every row."""
    found = [name for name in names if name in table.names]
    return len(found) == 1 and all(is_missing(value) for value in table.columns[found[0]])


def leave_out_unlabelled(table: Table, names: Sequence[str]) -> Table:
    """Returns the table without the examples that have no label in a `datasets.ClassLabel`.

    Raises:
        UserError: if no example has a label.
    """
    column = get_labels(table, names)
    if column.classes is None:
        return table
    labelled = [row for row, value in enumerate(column.values) if not is_without_label(value)]
    missing = len(column.values) - len(labelled)
    if not labelled:
        raise UserError(f"{table.source} has no example with a label: all {missing:,} have none (-1)")
    if not missing:
        return table
    print_notice(f"{table.source}: {missing:,} of {len(column.values):,} examples have no label (-1) and are left out")
    return table.select(labelled, table.source)


def read_text_column(table: Table, name: str, *, may_be_empty: bool, optional: bool = False) -> list[str]:
    """Returns the texts of a column; with `optional`, a missing value is an empty text.

    Raises:
        UserError: for a value that is no text, or for an empty text unless it `may_be_empty`.
    """
    texts = []
    for row, value in enumerate(table.columns[name]):
        text = "" if optional and value is None else value
        if not isinstance(text, str) or not (text.strip() or may_be_empty):
            raise UserError(f"{table.place(row)}: column {name} is {reprlib.repr(text)}, expected text")
        if not text.isascii():
            check_surrogates(text, f"{table.place(row)}: column {name}")
        texts.append(text)
    return texts


def check_surrogates(text: str, source: str) -> None:
    """Raises UserError for a text that is no Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can contain "\ud800", which tokenizers do not accept.
        raise UserError(f"{source} contains the unpaired surrogate {text[error.start]!r}") from error
