"""The settings of an export."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """How to export: the keys of `conf/export`.

    `max_drop` is how far an exported file's metric on dev may be below torch's before its gate says failed.
    `reduce_range` keeps int8 weights to 7 bits: without it a processor that lacks VNNI instructions saturates.
    """

    max_drop: float = 0.01
    reduce_range: bool = True
    per_channel: bool = True

    def __post_init__(self) -> None:
        if not self.max_drop >= 0:
            raise ValueError(f"got export.max_drop={self.max_drop}, expected 0 or more")
