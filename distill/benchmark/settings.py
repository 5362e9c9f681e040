"""Settings of a benchmark."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from distill.options import STRICT, raise_option_errors

SECONDS = 1.0
SHARE = 0.1  # Of the run before, that the timing may take.

Sizes = Annotated[
    Sequence[PositiveInt], Field(min_length=1, description="whole numbers of at least 1 in a list like [1,8]")
]


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class BenchmarkSettings:
    """Settings of a benchmark, the keys of `conf/benchmark`.

    Args:
        batches: batch sizes B of the inputs `[B, L]`.
        lengths: lengths L of the inputs `[B, L]`, in tokens.
        enabled: whether anything is timed.
        teacher: whether to time the teacher too, in torch and as ONNX files.
        threads: number of threads of each runtime; None for as many as the process may use cores.
        seconds: time for each model, format, batch size and length, in s; `auto` for 1.0, or for less where all of them
            would take more than a tenth of a run.
        max_lengths: lengths that texts are cut to, in tokens, at which the exported files are scored besides
            `task.max_length`; None for none.
        dev_pass: whether a pass over all of dev is timed, one example at a time in its own length.
    """

    batches: Sizes = (1, 8)
    lengths: Sizes = (32, 128)
    enabled: bool = True
    teacher: bool = True
    threads: PositiveInt | None = None
    seconds: PositiveFloat | Literal["auto"] = "auto"
    max_lengths: Sizes | None = None
    dev_pass: bool = False

    def longest(self) -> float:
        """Returns the time for each model, format, batch size and length, in s, where nothing limits all of them."""
        return SECONDS if self.seconds == "auto" else self.seconds

    def limit(self, before: float) -> float:
        """Returns the time for all measurements, in s, in a run that took `before` s until now."""
        return SHARE * before if self.seconds == "auto" else math.inf
