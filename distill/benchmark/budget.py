"""The limits of an exported file: its size and its latency."""

from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass

from distill.options import STRICT, raise_option_errors


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class Budget:
    """Limits of the exported student, the keys of `budget` in `conf/config.yaml`.

    Args:
        mb: largest size of the int8 file, in MB of 1,000,000 bytes; None for any.
        ms: largest p50 of the int8 file in ms, for one text of the benchmark's smallest length; None for any.
    """

    mb: PositiveFloat | None = None
    ms: PositiveFloat | None = None

    @property
    def is_set(self) -> bool:
        """Returns whether there is a limit."""
        return self.mb is not None or self.ms is not None

    def allows(self, *, size: int, p50_ms: float) -> bool:
        """Returns whether a file of `size` bytes and this latency is within the limits."""
        return (self.mb is None or size <= self.mb * 1e6) and (self.ms is None or p50_ms <= self.ms)

    def __str__(self) -> str:
        limits = {"mb": self.mb, "ms": self.ms}
        return " ".join(f"budget.{name}={limit:g}" for name, limit in limits.items() if limit is not None)
