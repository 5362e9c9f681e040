"""Settings of an export."""

from typing import Annotated

from pydantic import Field, NonNegativeFloat
from pydantic.dataclasses import dataclass

from distill.options import STRICT, raise_option_errors


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class ExportSettings:
    """Settings of an export, the keys of `conf/export`.

    Args:
        max_drop: largest drop of the task's metric on dev with which an exported file passes.
        reduce_range: whether to limit int8 weights to 7 bits, because processors without VNNI saturate on 8.
        abstain: share of dev with the lowest confidence on which an exported file gives no label; None for none.
        per_channel: whether to give each output channel of a weight a scale of its own.
    """

    max_drop: NonNegativeFloat = 0.01
    abstain: Annotated[float, Field(gt=0, lt=1)] | None = None
    reduce_range: bool = True
    per_channel: bool = True
