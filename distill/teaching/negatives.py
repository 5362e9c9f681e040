"""Vectors of the texts of a retrieval set by the teacher, by which hard negatives are found for the student."""

from pathlib import Path

import numpy as np
import torch

from distill.console import ProgressMeter, print_line
from distill.data import token_cache
from distill.data.batching import TokenizedExamples, scored_tokens, scoring_steps
from distill.data.tables import LabelledData, text_split
from distill.errors import NumericalError
from distill.models.forward import count_outputs, run_model, to_device
from distill.storage.cache import entry_key, has_entry, new_entry
from distill.teaching.output_cache import library_versions
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


@torch.inference_mode()
def _compute_vectors(examples: TokenizedExamples, teacher: PreparedTeacher) -> np.ndarray:
    model = teacher.running()
    vectors = np.empty((len(examples), count_outputs(model)), dtype=np.float32)
    with ProgressMeter("negatives", len(examples), unit="texts") as meter:
        for rows in scoring_steps(examples.lengths, scored_tokens(teacher.device)):
            batch = to_device(examples[rows], teacher.device)
            vectors[rows] = run_model(model, batch).logits.float().cpu().numpy()
            meter.advance(len(rows))
    if not np.isfinite(vectors).all():
        raise NumericalError("the teacher gives vectors that are not finite: check its weights")
    return vectors
