"""Pairs of a source and a target, some of whose tokens are masked."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from distill.contracts import DECODER_INPUTS, IGNORED, TARGET_LENGTHS, TARGET_MASK
from distill.data import token_cache
from distill.data.batching import Batch, TokenizedExamples
from distill.edge.target_masks import TargetFrame, choose_masked

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class MaskedTargets(TokenizedExamples):
    """Sources and targets with masks. Batches have `labels [B, T]` at these alone, and `decoder_input_ids [B, T]`.

    Args:
        frame: of the targets.
        visits: ways in which a target is masked, as in `Examples`; None for new masks in each epoch.
        options: those of `TokenizedExamples`.
    """

    def __init__(
        self,
        encoded: token_cache.Tokens,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        frame: TargetFrame,
        visits: int | None,
        **options: Any,
    ) -> None:
        super().__init__(encoded, tokenizer, **options)
        self.frame, self.visits = frame, visits
        self.digest = hashlib.sha256(f"masked {visits} {self.digest}".encode()).hexdigest()

    def __getitem__(self, indices: Sequence[int]) -> Batch:
        example_id = np.asarray(indices)
        visits, rows = np.divmod(example_id, len(self))
        batch = super().__getitem__(rows.tolist())
        mask = batch[TARGET_MASK] == 1
        inputs = batch["labels"].masked_fill(~mask, self.padding["input_ids"])
        labels, first = torch.full_like(inputs, IGNORED), len(self.frame.before)
        lengths = mask.sum(dim=1) - first - len(self.frame.after)
        for row, (length, visit) in enumerate(zip(lengths.tolist(), visits.tolist(), strict=True)):
            tokens = inputs[row, first : first + length].tolist()
            chosen = torch.tensor(choose_masked(tokens, visit), dtype=torch.long) + first
            labels[row, chosen], inputs[row, chosen] = inputs[row, chosen], self.frame.mask
        own = {"labels": labels, DECODER_INPUTS: inputs, TARGET_LENGTHS: lengths}
        return {**batch, **own, "example_id": torch.from_numpy(example_id)}
