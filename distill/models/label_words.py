"""The log-likelihoods of given texts, such as the words of labels, after a source."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from distill.contracts import IGNORED
from distill.edge.classes import MASKED
from distill.models.chunked_logits import CHUNK_LOGITS
from distill.models.forward import shift_targets

if TYPE_CHECKING:
    from distill.contracts import Batch


def score_words(model: PreTrainedModel, batch: "Batch", words: Tensor) -> Tensor:
    """Returns the log-likelihood of each word after its source, `[B, K]` in float32, `MASKED` where there is none.

    It is the sum over the tokens of the word, of which the last one ends it. A source is encoded once.

    Args:
        model: an encoder-decoder.
        batch: the sources, `input_ids` and `attention_mask`.
        words: `[B, K, T]`, `IGNORED` behind the tokens of a word. Every source has the first one.
    """
    size = max(1, CHUNK_LOGITS // (words.shape[2] * int(model.config.vocab_size)))
    parts = zip(*(tensor.split(size) for tensor in (batch["input_ids"], batch["attention_mask"], words)), strict=True)
    return torch.cat([_score_part(model, *part) for part in parts])


def _score_part(model: PreTrainedModel, ids: Tensor, mask: Tensor, words: Tensor) -> Tensor:
    scores = torch.full(words.shape[:2], MASKED, device=words.device)
    states = None
    for number in range(words.shape[1]):
        rows = (words[:, number] != IGNORED).any(dim=-1).nonzero().squeeze(-1)
        if not len(rows):
            continue
        labels = words[rows, number]  # [rows, T]
        encoded = None if states is None else BaseModelOutput(last_hidden_state=states[rows])
        output = model(
            input_ids=ids if encoded is None else None, encoder_outputs=encoded, attention_mask=mask[rows],
            use_cache=False,
            decoder_input_ids=shift_targets(model, labels),
        )  # fmt: skip
        states = output.encoder_last_hidden_state if states is None else states
        losses = F.cross_entropy(
            output.logits.float().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
        )  # [rows, T]
        scores[rows, number] = -losses.sum(dim=-1)
    return scores
