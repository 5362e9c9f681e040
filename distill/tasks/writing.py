"""The texts that teacher and exported files write for the splits that are scored, and the metrics of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

TextMetric = Literal[
    "exact_match", "rouge1", "rouge2", "rougeL", "chrf", "bleu", "distinct1", "distinct2", "length_ratio"
]  # fmt: skip


@dataclass(frozen=True)
class Writing:
    """How texts are written and scored.

    Args:
        metrics: of `text_metrics`.
        sources: of a split that texts are written for, evenly spaced ones; None for all.
        beams: of the search for a text; 1 takes the most probable token each time.
        max_target: the most tokens of a text.
    """

    metrics: tuple[str, ...]
    sources: int | None
    beams: int
    max_target: int

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of `Bundle.generate_all`, which cuts sources with more tokens than there are positions."""
        return {"beams": self.beams, "max_new_tokens": self.max_target, "truncate": "right"}

    def rows(self, examples: int) -> list[int]:
        """Returns the rows of a split of `examples` that texts are written for.

        >>> Writing(("chrf",), sources=3, beams=1, max_target=8).rows(9)
        [0, 4, 8]
        """
        number = examples if self.sources is None else min(self.sources, examples)
        rows: list[int] = np.linspace(0, examples - 1, number).round().astype(int).tolist()
        return rows
