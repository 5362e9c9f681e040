"""Computes what a student may start from besides its teacher: vectors of pieces, and their shares in the texts."""

import copy
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from distill.console import print_line
from distill.contracts import Data
from distill.export.vocabulary import Cut
from distill.models.loading import ENCODER
from distill.models.origins import Origins, encode_pieces
from distill.models.tokenizer import read_vocabulary
from distill.storage.cache import entry_key, has_entry, new_entry
from distill.teaching.source import TeacherSource

CHUNK = 1000  # Texts that are tokenized at a time.
_FORMAT = 1  # Of the vectors of pieces in the cache.


class OriginSource:
    """Computes the origins of the students of one task, each once.

    Args:
        source: of the teacher, whose weights have the encoder as it was before its fine-tuning.
        data: with the texts in which pieces are counted.
        cache_dir: keeps the vectors of pieces for later runs.
        device: of the encoder.
        cut: the vocabulary of the students, if it is smaller than the teacher's.
    """

    def __init__(
        self, source: TeacherSource, data: Data, cache_dir: Path, device: torch.device, cut: Cut | None = None
    ) -> None:
        self.source, self.data, self.cache_dir, self.device, self.cut = source, data, cache_dir, device, cut
        self._shares: Tensor | None = None

    def of(self, tokenizer: PreTrainedTokenizerBase) -> Origins:
        """Returns the origins of a student that reads the tokens of this tokenizer."""
        return Origins(tokenizer, partial(self._sentence_vectors, tokenizer), partial(self._count_shares, tokenizer))

    def _sentence_vectors(self, tokenizer: PreTrainedTokenizerBase) -> Tensor:
        weights = self.source.weights
        key = entry_key("pieces", _FORMAT, weights.fingerprint(), read_vocabulary(tokenizer))
        directory = self.cache_dir / "pieces" / f"{weights.name}-{key[:16]}"
        if not has_entry(directory):
            print_line(f"Student: {weights.resolved()} as it is encodes each of {len(tokenizer):,} pieces, once")
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)  # Of weights that are new.
                model = weights.load(ENCODER, None, self.data.texts()).model
            model = model if self.cut is None else self.cut.apply(model)
            vectors = encode_pieces(model.to(self.device), tokenizer)
            with new_entry(directory) as temporary:
                save_file({"vectors": vectors}, temporary / "vectors.safetensors")
        return load_file(directory / "vectors.safetensors")["vectors"]

    def _count_shares(self, tokenizer: PreTrainedTokenizerBase) -> Tensor:
        if self._shares is None:
            texts = chain(self.data.labelled_texts(), self.data.unlabelled_texts())
            counts = _count_pieces(tokenizer, texts)
            self._shares = counts / counts.sum().clamp(min=1)
        return self._shares


def _count_pieces(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Tensor:
    """Returns how often each piece stands in the texts, which are read whole, `[V]`, without special tokens."""
    backend = copy.deepcopy(tokenizer.backend_tokenizer)  # type: ignore[attr-defined]
    backend.no_truncation()
    backend.no_padding()
    counts = torch.zeros(len(tokenizer))
    for chunk in _chunks(texts):
        for encoding in backend.encode_batch_fast(chunk, add_special_tokens=False):
            ids = torch.tensor(encoding.ids, dtype=torch.long)
            counts.scatter_add_(0, ids, torch.ones(len(ids)))
    counts[torch.tensor(sorted(set(tokenizer.all_special_ids)), dtype=torch.long)] = 0
    return counts


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(texts)
    while chunk := list(islice(remaining, CHUNK)):
        yield chunk
