"""The labels of the splits of a task, whose notices are printed."""

import numpy as np

from distill.console import print_notice
from distill.readers import labels
from distill.readers.labels import Columns
from distill.readers.labels import LabelColumn as LabelColumn
from distill.readers.labels import is_blank as is_blank
from distill.readers.labels import is_without_label as is_without_label
from distill.readers.labels import simplify as simplify
from distill.readers.labels import to_numbers as to_numbers


def to_classes(columns: Columns, given: tuple[str, ...] | None) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Returns the names of the classes in order, and the class index of each example by split."""
    return labels.to_classes(columns, given, print_notice)
