"""Settings of a benchmark."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from distill.options import STRICT, raise_option_errors

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
        seconds: time for each model, format, batch size and length, in s.
    """

    batches: Sizes = (1, 8)
    lengths: Sizes = (32, 128)
    enabled: bool = True
    teacher: bool = True
    threads: PositiveInt | None = None
    seconds: PositiveFloat = 1.0
