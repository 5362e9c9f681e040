"""The side on which a model reads padding without a change of its outputs."""

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.models.forward import try_model

TOLERANCE = 1e-3  # Of the largest logit. Padding on the wrong side changes logits by as much as another text does.
_TEXTS = ("a", "a b c d e f g h")


def choose_padding_side(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Sets the tokenizer's `padding_side` to one that does not change the model's logits for a text.

    Most encoders pool the first token, and count positions from it. Padded on the left, they read the padding there,
    in training and afterwards. The tokenizer's own side stays if it is right, or if no side is.

    Returns:
        A notice if the side was changed or every side changes the logits, else none.
    """
    own: str = tokenizer.padding_side
    other = "left" if own == "right" else "right"
    if _is_padding_ignored(model, tokenizer, own):
        return []
    name = type(model).__name__
    if not _is_padding_ignored(model, tokenizer, other):
        return [f"the logits of a {name} for a text depend on the padding that longer texts add to its batch"]
    tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = other  # The latter is saved.
    return [f"the tokenizer pads on the {own}, where a {name} reads it as text: batches are padded on the {other}"]


@torch.no_grad()
def _is_padding_ignored(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, side: str) -> bool:
    """Returns whether a short text has the same logits alone and in a batch with a longer one."""
    alone = tokenizer(_TEXTS[:1], return_tensors="pt", return_attention_mask=True)
    batch = tokenizer(_TEXTS, return_tensors="pt", return_attention_mask=True, padding=True, padding_side=side)
    expected: Tensor = try_model(model, alone).logits
    logits: Tensor = try_model(model, batch).logits[:1]
    if not bool(expected.isfinite().all()):
        return True  # Damaged weights are an error of their own.
    if logits.shape != expected.shape:  # One row for each token.
        logits = logits[:, batch["attention_mask"][0].bool()]
    return bool((logits - expected).abs().max() <= TOLERANCE * expected.abs().max())
