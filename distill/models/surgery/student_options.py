"""Checks of the options of students, and the labels of their configurations."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig

from distill.core.errors import UserError


def is_whole(value: Any, least: int = 1, most: int | None = None) -> bool:
    """Returns whether a value is a whole number in this range."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and value >= least and (most is None or value <= most)


def check_sizes(role: str, least: int = 1, **sizes: object) -> None:
    """Raises UserError for an option of the `role`, student or teacher, that is no whole number of at least `least`."""
    for name, value in sizes.items():
        if not is_whole(value, least):
            raise UserError(f"got {role}.{name}={value}, expected a whole number of at least {least}")


def check_optional_sizes(role: str, least: int = 1, **sizes: object) -> None:
    """Raises UserError as `check_sizes` does; None is a size that is not given."""
    check_sizes(role, least, **{name: value for name, value in sizes.items() if value is not None})


def check_names(role: str, **options: tuple[object, Sequence[str]]) -> None:
    """Raises UserError for an option of the `role` that is none of its known names."""
    for name, (given, known) in options.items():
        if given not in known:
            raise UserError(f"{role}.{name}={given} is unknown, expected one of {', '.join(known)}")


def copy_labels(config: PreTrainedConfig) -> dict[str, Any]:
    """Returns the entries of a configuration that its head has."""
    return {
        "id2label": dict(config.id2label), "label2id": {label: index for index, label in config.id2label.items()},
        "problem_type": config.problem_type,
    }  # fmt: skip
