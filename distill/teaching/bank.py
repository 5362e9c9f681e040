"""Chooses the sentences of a bank that a teacher labels: near the training texts, and balanced by predicted class.

The method is that of SentAugment (arXiv 2010.02194), with the vectors of the teacher's encoder before its fine-tuning.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.console import print_line
from distill.contracts import Task
from distill.data import token_cache
from distill.data.auto_text import CANDIDATES
from distill.data.bank import Bank, balance, find_nearest, take_in_turns
from distill.data.batching import Batch, TokenizedExamples
from distill.data.tables import BANK, LabelledData, text_split
from distill.data.unlabelled import clean
from distill.models.forward import run_encoder, run_model
from distill.models.pooling import VectorSettings, pool
from distill.storage.cache import entry_key, has_entry, new_entry
from distill.teaching.output_cache import library_versions
from distill.teaching.passes import compute_rows
from distill.teaching.prepared import PreparedTeacher
from distill.teaching.source import TeacherSource
from distill.training.settings import has_bf16

FORMAT = 1  # Of the entries in the cache.
CHOICE = 2  # Of those of chosen sentences.
VECTORS, CHOSEN = "vectors.npy", "chosen.npy"
MOST_QUERIES = 10_000  # Training texts, evenly spaced, whose neighbours are found.
FEWEST_NEIGHBOURS = 32  # Of a training text, because texts share them.
POOLING: VectorSettings = {"pooling": "mean", "normalize": True}


@dataclass(frozen=True)
class Search:
    """The search of a bank with the encoder of a teacher before its fine-tuning.

    Args:
        source: of the teacher's weights.
        cache_dir: holds the vectors and the chosen sentences.
    """

    bank: Bank
    task: Task
    source: TeacherSource
    cache_dir: Path
    device: torch.device

    def add_to(self, data: LabelledData, teacher: PreparedTeacher, count: int) -> LabelledData:
        """Returns the data with `count` sentences in its pool, fewer if no more are near and new."""
        chosen = self._choose(data, teacher, count)
        rows = text_split([self.bank.sentences[row] for row in chosen.tolist()])
        if not len(rows):
            return data
        origin = f"of {len(self.bank):,} sentences of {self.bank.name}"
        print_line(f"task.bank: {len(rows):,} sentences near the training texts, {origin}")
        return replace(data, pool=data.pool.add(rows, BANK, origin))

    def _choose(self, data: LabelledData, teacher: PreparedTeacher, count: int) -> np.ndarray:
        """Returns the places of the chosen sentences in the bank, cached or computed."""
        train = data.splits["train"].texts
        queries = [train[row] for row in np.linspace(0, len(train) - 1, min(len(train), MOST_QUERIES)).astype(int)]
        model, tokenizer = self._load(data)
        pool_texts = [] if data.pool.rows is None else data.pool.rows.texts
        parts: list[object] = [self._key(self.bank.sentences, tokenizer), data.sha256, pool_texts, queries]
        parts += [teacher.fingerprint, count, CANDIDATES, self.task.info.max_length]
        directory = self.cache_dir / "banks" / entry_key("chosen", CHOICE, *parts)[:20]
        if not has_entry(directory):
            vectors = self._cached_vectors(model, tokenizer)
            near = self._find(vectors, self._encode(queries, model, tokenizer), count)
            chosen = self._select(near, data, teacher, count)
            with new_entry(directory) as temporary:
                np.save(temporary / CHOSEN, chosen)
        return np.asarray(np.load(directory / CHOSEN))

    def _find(self, vectors: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
        """Returns the places of sentences in the order in which they are candidates."""
        neighbours = max(FEWEST_NEIGHBOURS, math.ceil(4 * CANDIDATES * count / len(queries)))
        return take_in_turns(find_nearest(vectors, queries, neighbours))

    def _select(self, near: np.ndarray, data: LabelledData, teacher: PreparedTeacher, count: int) -> np.ndarray:
        """Returns the places of `count` candidates that are in no split, balanced by class if there are classes."""
        near = near[: 2 * CANDIDATES * count]  # Few are in a split.
        numbered = text_split([self.bank.sentences[row] for row in near.tolist()], labels=near)
        kept, _ = clean(numbered, data, by_sentence=True)
        has_classes = self.task.info.likelihood in ("softmax", "sigmoid")
        candidates = kept.select(np.arange(min(len(kept), (CANDIDATES if has_classes else 1) * count)))
        if not has_classes or len(candidates) <= count:
            return candidates.labels
        return np.asarray(candidates.labels[balance(self._predict(candidates.texts, teacher), count)])

    def _predict(self, texts: Sequence[str], teacher: PreparedTeacher) -> np.ndarray:
        """Returns the class of each text that the teacher predicts, of an ensemble the first one, `[N]`."""
        member = teacher.members[0]
        examples, model = self._tokenize(texts, member.tokenizer), member.running()

        def predict(batch: Batch) -> Tensor:
            logits: Tensor = run_model(model, batch).logits
            return logits.argmax(dim=-1)

        return compute_rows(predict, examples, member.device, title="classes of the bank", unit="sentences")

    def _load(self, data: LabelledData) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """Returns the teacher before its fine-tuning."""
        start = self.source.weights.load(self.task.info.auto_class, data.labels or None, data.texts())
        return start.model, start.tokenizer

    def _cached_vectors(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
        """Returns the vectors of the bank, `[N, H]` (float16), cached or computed."""
        directory = self.cache_dir / "banks" / self._key(self.bank.sentences, tokenizer)
        if not has_entry(directory):
            print_line(f"task.bank: encodes {len(self.bank):,} sentences once, for {directory}")
            vectors = self._encode(self.bank.sentences, model, tokenizer)
            with new_entry(directory) as temporary:
                np.save(temporary / VECTORS, vectors)
        return np.asarray(np.load(directory / VECTORS, mmap_mode="r"))

    def _key(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> str:
        tokens = token_cache.compute_digest(text_split(list(texts)), tokenizer, self.task.info.max_length)
        parts = (tokens, self.source.weights.fingerprint(), dict(POOLING), str(self._dtype), library_versions())
        return entry_key("banks", FORMAT, *parts, self.device.type)[:20]

    @property
    def _dtype(self) -> torch.dtype:
        return torch.bfloat16 if has_bf16(self.device) else torch.float32

    def _tokenize(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> TokenizedExamples:
        tokens = token_cache.tokenize_split(
            text_split(list(texts)), tokenizer, self.task.info.max_length, self.cache_dir
        )
        return TokenizedExamples(tokens, tokenizer)

    def _encode(self, texts: Sequence[str], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
        """Returns the vectors of length 1 of texts, `[N, H]` (float16)."""
        model = model.to(self.device, self._dtype).eval()

        def encode(batch: Batch) -> Tensor:
            return pool(run_encoder(model, batch).last_hidden_state, batch["attention_mask"], POOLING).half()

        return compute_rows(encode, self._tokenize(texts, tokenizer), self.device, title="bank", unit="sentences")
