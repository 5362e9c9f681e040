"""The texts that teacher and exported files write for the splits that are scored, and the metrics of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from distill.edge.bundle import Bundle

TextMetric = Literal[
    "exact_match", "rouge1", "rouge2", "rougeL", "chrf", "bleu", "distinct1", "distinct2", "length_ratio"
]  # fmt: skip


@dataclass(frozen=True)
class Writing:
    """How texts are written and scored.

    Args:
        metrics: of `text_metrics`.
        sources: of a split that texts are written for, evenly spaced ones; None for all.
        beams: of the search for a text; 1 takes the most probable token each time, and None has the number of the
            model.
        max_target: the most tokens of a text.
    """

    metrics: tuple[str, ...]
    sources: int | None
    beams: int | None
    max_target: int

    def write(self, bundle: "Bundle", sources: Sequence[str]) -> list[Mapping[str, Any]]:
        """Returns the text that a bundle writes for each source, which is cut at the positions of its model."""
        return list(bundle.generate_all(
            sources, beams=self.beams, max_new_tokens=self.max_target, truncate="right"
        ))  # fmt: skip

    def rows(self, examples: int) -> list[int]:
        """Returns the rows of a split of `examples` that texts are written for.

        >>> Writing(("chrf",), sources=3, beams=1, max_target=8).rows(9)
        [0, 4, 8]
        """
        number = examples if self.sources is None else min(self.sources, examples)
        rows: list[int] = np.linspace(0, examples - 1, number).round().astype(int).tolist()
        return rows
