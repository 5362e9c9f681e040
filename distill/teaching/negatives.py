"""Vectors of the texts of a retrieval set by the teacher, by which hard negatives are found for the student."""

from pathlib import Path

import numpy as np
from torch import Tensor

from distill.console import print_line
from distill.data import token_cache
from distill.data.batching import Batch, TokenizedExamples
from distill.data.tables import LabelledData, text_split
from distill.errors import NumericalError
from distill.models.forward import run_model
from distill.storage.cache import entry_key, has_entry, new_entry
from distill.teaching.output_cache import library_versions
from distill.teaching.passes import compute_rows
from distill.teaching.prepared import PreparedTeacher

FORMAT = 1  # Of the entries in the cache.
VECTORS = "vectors.npy"


def mine_negatives(data: LabelledData, teacher: PreparedTeacher, *, max_length: int, cache_dir: Path) -> LabelledData:
    """Returns the data with the negatives of train that the teacher finds, if its task leaves them to the teacher.

    Args:
        max_length: tokens that a text is cut to.

    Raises:
        NumericalError: if a vector of the teacher is not finite.
    """
    if data.mine is None:
        return data
    return data.mine(data, lambda texts: encode_texts(texts, teacher, max_length=max_length, cache_dir=cache_dir))


def encode_texts(texts: list[str], teacher: PreparedTeacher, *, max_length: int, cache_dir: Path) -> np.ndarray:
    """Returns the teacher's vectors `[N, D]` of texts (float32), cached or computed."""
    tokens = token_cache.tokenize_split(text_split(texts), teacher.tokenizer, max_length, cache_dir)
    key = entry_key("negatives", FORMAT, tokens.digest, teacher.fingerprint, library_versions(), teacher.device.type)
    directory = cache_dir / "negatives" / key[:20]
    if not has_entry(directory):
        print_line(f"task.negatives_by=teacher: encodes {len(texts):,} texts once, for {directory}")
        vectors = _compute_vectors(TokenizedExamples(tokens, teacher.tokenizer), teacher)
        with new_entry(directory) as temporary:
            np.save(temporary / VECTORS, vectors)
    return np.asarray(np.load(directory / VECTORS))


def _compute_vectors(examples: TokenizedExamples, teacher: PreparedTeacher) -> np.ndarray:
    model = teacher.running()

    def encode(batch: Batch) -> Tensor:
        logits: Tensor = run_model(model, batch).logits
        return logits.float()

    vectors = compute_rows(encode, examples, teacher.device, title="negatives", unit="texts")
    if not np.isfinite(vectors).all():
        raise NumericalError("the teacher gives vectors that are not finite: check its weights")
    return vectors
