"""Vectors of source texts by another encoder, which the vectors of their translations learn (arXiv 2004.09813)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distill.console import print_notice
from distill.contracts import VECTOR_SETTINGS
from distill.data.tables import text_split
from distill.errors import UserError
from distill.models.loading import check_directory, load_directory
from distill.models.pooling import VectorSettings, configure, vector_settings
from distill.tasks.frozen_outputs import cached_outputs

AUTO_CLASS = "AutoModel"


@dataclass(frozen=True)
class SourceEncoder:
    """An encoder of the language of the first texts. Its vocabulary may be another one than the student's.

    Args:
        directory: a directory that `save_pretrained` or sentence-transformers wrote.
        settings: how its vectors are computed. If the directory names another pooling, that one is taken.
    """

    directory: Path
    settings: VectorSettings

    def check(self) -> None:
        """Raises UserError for a directory without a model."""
        check_directory(self.directory, f"task.source_encoder={self.directory}")

    def encode(self, texts: list[str], cache_dir: Path | None) -> np.ndarray:
        """Returns the vectors of texts, `[N, D]` (float32), cached or computed.

        Raises:
            UserError: if the model cannot be loaded, or has no trained encoder.
        """
        start = load_directory(self.directory, AUTO_CLASS, None, trust_remote_code=False)
        if not start.fits:
            raise UserError(f"task.source_encoder={self.directory} does not encode texts: {start.reason}")
        for notice in start.notices:
            print_notice(notice)
        own = vector_settings(start.model.config)
        pooling = self.settings["pooling"] if own is None else own["pooling"]
        configure(start.model, {VECTOR_SETTINGS: {**self.settings, "pooling": pooling}})
        rows = text_split(texts)
        return cached_outputs(start, self.directory, rows, self.settings["max_length"], cache_dir, "Source encoder")
