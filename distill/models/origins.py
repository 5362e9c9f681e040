"""What a student may start from besides its teacher, and the vectors that an encoder gives to single pieces."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.models.forward import run_encoder
from distill.models.narrowing import Importance
from distill.models.pooling import VectorSettings, pool, vector_settings

BATCH = 1024  # Pieces in a forward pass, each a sequence of three tokens at most.
_MEAN: VectorSettings = {"pooling": "mean", "normalize": False}


@dataclass(frozen=True)
class Origins:
    """What a student may start from besides its teacher.

    Each is computed when it is called for, and None where only the sizes of the student matter.

    Args:
        tokenizer: of the teacher and the student.
        sentence_vectors: returns the vectors of all pieces, `[V, H]`, by the teacher's encoder before its fine-tuning.
        shares: returns the share of each piece among those of the training texts with and without labels, `[V]`.
        importance: returns the importance of the teacher's heads and inner neurons for the task.
    """

    tokenizer: PreTrainedTokenizerBase
    sentence_vectors: Callable[[], Tensor] | None = None
    shares: Callable[[], Tensor] | None = None
    importance: Callable[[], Importance] | None = None


@torch.no_grad()
def encode_pieces(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """Returns the vectors `[V, H]` of an encoder for texts of one piece each, without those of special tokens.

    They are pooled as the model's configuration says, and by the mean if it says nothing (as model2vec has it).
    The rows of special tokens are 0.
    """
    before, after = tokenizer.cls_token_id, tokenizer.sep_token_id
    prefix, suffix = ([] if token is None else [token] for token in (before, after))
    settings = vector_settings(model.config)
    settings = _MEAN if settings is None else {**settings, "normalize": False}
    vectors = torch.zeros(int(model.config.vocab_size), int(model.config.hidden_size))
    special = set(tokenizer.all_special_ids)
    pieces = torch.tensor([piece for piece in range(len(tokenizer)) if piece not in special])
    was_training = model.training
    model.eval()
    for ids in pieces.split(BATCH):
        rows = torch.stack([torch.tensor([*prefix, piece, *suffix]) for piece in ids.tolist()]).to(model.device)
        mask = torch.ones_like(rows)
        batch = {"input_ids": rows, "attention_mask": mask, "token_type_ids": torch.zeros_like(rows)}
        states: Tensor = run_encoder(model, batch).last_hidden_state
        vectors[ids] = pool(states, mask, settings).cpu()
    model.train(was_training)
    return vectors
