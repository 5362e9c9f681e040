"""The options of a general stage: plain text from which a student learns its teacher's states before any task."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from distill.errors import OptionError, UserError
from distill.options import STRICT, raise_option_errors, show_value

OPTION = "student.general"
GENERAL = "general"  # Among the names of the option `init` of a student.


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class GeneralSettings:
    """The text and the training of a general stage, the keys of `student.general`.

    Args:
        corpus: a file of text, or a folder of files; None for the texts without labels of the task.
        documents: unit of the documents in a text file, a share of which is held out.
        tokens: most tokens of a pass. Each pass over a longer text goes on where the one before ended.
        passes: number of passes.
        learning_rate: its peak.
        batch_size: number of sequences in an optimizer step.
        max_length: number of tokens in a sequence.
    """

    corpus: str | None = None
    documents: Literal["file", "paragraph", "line"] = "paragraph"
    tokens: PositiveInt = 6_000_000
    passes: PositiveInt = 3
    learning_rate: PositiveFloat = 5e-4
    batch_size: PositiveInt = 32
    max_length: Annotated[int, Field(ge=8)] = 128

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> "GeneralSettings":
        """Returns the settings that `student.general` gives; None gives none.

        Raises:
            UserError: for an option that there is not, or that got a value it cannot take.
        """
        given = dict(options or {})
        known = tuple(cls.__dataclass_fields__)
        if unknown := [name for name in given if name not in known]:
            raise UserError(f"{OPTION}.{unknown[0]} is unknown, expected one of {', '.join(known)}")
        try:
            return cls(**given)
        except OptionError as error:
            raise error.with_prefix(OPTION) from None


def names_general(init: object) -> bool:
    """Returns whether the option `init` of a student names the general stage."""
    return GENERAL in ([init] if isinstance(init, str) else init if isinstance(init, list | tuple) else ())


def check_general(init: object, options: Mapping[str, Any] | None, **chosen: object) -> None:
    """Raises UserError for options of a general stage that it does not have, or that do not combine with it.

    Args:
        chosen: options of the student that are chosen for one task, None where they are not given.
    """
    GeneralSettings.of(options)
    given = {name: value for name, value in chosen.items() if value is not None}
    if names_general(init) and given:
        name, value = next(iter(given.items()))
        raise UserError(
            f"student.init=general starts the students of all tasks from the same weights, and "
            f"student.{name}={show_value(value)} chooses them for one task: leave out one"
        )
