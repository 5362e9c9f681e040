"""What is asked of the models: the options of `job=inspect`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from distill.options import STRICT

Amount = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, config=STRICT)
class Questions:
    """The options of an inspection.

    Args:
        split: the split that the models run over.
        sentences: texts whose attention is shown; empty for the examples on which the models differ most.
        shown: so many of these.
        masked_rows: examples on which the metric is computed without each head; 0 leaves this out.
        probes: whether a linear probe of each layer is trained.
        probe_rows: items of train that it learns from, at most.
        spans: a JSONL file with `text`, `span1`, `span2` and `label`, for probes of two spans.
        relations: a CoNLL-U file, for heads that follow a relation of words.
        word: a word whose occurrences are compared; None for none.
        corpus: a text file with its occurrences, a sentence a line; None for the texts of the split.
        attributions: whether the pieces of the shown examples are weighed by gradients.
    """

    split: str = "dev"
    sentences: Sequence[str] = ()
    shown: Annotated[int, Field(ge=0)] = 8
    masked_rows: Annotated[int, Field(ge=0)] = 256
    probes: bool = True
    probe_rows: Amount = 3000
    spans: str | Path | None = None
    relations: str | Path | None = None
    word: str | None = None
    corpus: str | Path | None = None
    attributions: bool = True
