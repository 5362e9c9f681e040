"""The limits of an exported file: its size and its latency."""

from typing import Annotated

from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass

from distill.options import STRICT, raise_option_errors

WIDTHS = (1.0, 0.75, 0.5, 0.25)  # Shares that are tried with `widths=true`.
Share = Annotated[float, Field(gt=0, le=1)]


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class Budget:
    """Limits of the exported student, the keys of `budget` in `conf/config.yaml`.

    Args:
        mb: largest size of the int8 file, in MB of 1,000,000 bytes; None for any.
        ms: largest p50 of the int8 file in ms, for one text of the benchmark's smallest length; None for any.
        widths: shares of the teacher's heads and inner neurons, of which one is chosen too; true for `WIDTHS`, false
            for all of them.
    """

    mb: PositiveFloat | None = None
    ms: PositiveFloat | None = None
    widths: bool | Annotated[list[Share], Field(min_length=1)] = False

    @property
    def is_set(self) -> bool:
        """Returns whether there is a limit."""
        return self.mb is not None or self.ms is not None

    def shares(self) -> tuple[float, ...]:
        """Returns the shares that are tried; none if the width is not chosen."""
        if isinstance(self.widths, bool):
            return WIDTHS if self.widths else ()
        return tuple(self.widths)

    def allows(self, *, size: int, p50_ms: float) -> bool:
        """Returns whether a file of `size` bytes and this latency is within the limits."""
        return (self.mb is None or size <= self.mb * 1e6) and (self.ms is None or p50_ms <= self.ms)

    def __str__(self) -> str:
        limits = {"mb": self.mb, "ms": self.ms}
        return " ".join(f"budget.{name}={limit:g}" for name, limit in limits.items() if limit is not None)
