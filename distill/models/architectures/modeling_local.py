"""BERT, RoBERTa and their relatives with local attention, for long texts. Requires torch and transformers.

`save_pretrained` copies this file into the model's directory, and `from_pretrained(directory, trust_remote_code=True)`
loads the model from there.
"""

from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from .modeling_texts import ENCODER_HEADS, derive_models, register

ATTENTION = "distill_local"
HEADS = 4  # Fewer save memory, and take more time for short texts.


def compute_local_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """Computes attention to the tokens within half a window, `[B, A, L, D]` -> `[B, L, A, D]`.

    The pattern is that of Longformer (arXiv 2004.05150, section 3.1): a token attends to `attention_window / 2` tokens
    on each side and to the global tokens, which are the first `global_tokens` and attend to every token. Queries are
    taken in blocks of half a window, padded at the end of the text. The keys of a block are its own and those of its
    two neighbours, so that time and memory grow linearly with L. The scores of `HEADS` heads are in memory at once.

    Args:
        attention_mask: `[B, L]`, False for padding.
    """
    config: Any = module.config
    side, global_tokens = config.attention_window // 2, config.global_tokens
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    length = query.shape[2]
    padding = (length + side - 1) // side * side - length
    mask = key.new_ones((key.shape[0], length)) if attention_mask is None else attention_mask
    is_token = F.pad(mask.long(), (0, padding))  # [B, P]
    near = _bias(_visible_keys(is_token, side, global_tokens), query)  # [B, 1, n, side, G + 3 * side]
    everywhere = _bias(is_token[:, None, :].bool(), query)  # [B, 1, 1, P]
    outputs = []
    for heads in zip(*(tensor.split(HEADS, dim=1) for tensor in (query * scale, key, value)), strict=True):
        queries, keys, values = (F.pad(tensor, (0, 0, 0, padding)) for tensor in heads)  # [B, HEADS, P, D]
        blocks = queries.unflatten(2, (-1, side))  # [B, HEADS, n, side, D]
        near_keys, near_values = (_with_globals(tensor, side, global_tokens) for tensor in (keys, values))
        output = _attend(blocks, near_keys, near_values, near, dropout).flatten(2, 3)  # [B, HEADS, P, D]
        if global_tokens:
            rows = _attend(queries[:, :, :global_tokens], keys, values, everywhere, dropout)
            output = torch.cat([rows, output[:, :, global_tokens:]], dim=2)
        outputs.append(output[:, :, :length])
    return torch.cat(outputs, dim=1).transpose(1, 2), None


def _attend(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor, dropout: float) -> Tensor:
    """Computes softmax attention with a bias added to the scores; the queries are scaled already."""
    weights = (torch.matmul(queries, keys.transpose(-1, -2)) + bias).softmax(dim=-1)
    if dropout:
        weights = F.dropout(weights, dropout)
    return torch.matmul(weights, values)


def _with_neighbours(tensor: Tensor, side: int) -> Tensor:
    """Returns each block of `[B, A, n * side, D]` with the blocks before and behind it, `[B, A, n, 3 * side, D]`."""
    blocks = F.pad(tensor, (0, 0, side, side)).unflatten(2, (-1, side))  # [B, A, n + 2, side, D]
    return torch.cat([blocks[:, :, :-2], blocks[:, :, 1:-1], blocks[:, :, 2:]], dim=3)


def _with_globals(tensor: Tensor, side: int, global_tokens: int) -> Tensor:
    """Returns the vectors of the global tokens and those near each block, `[B, A, n, G + 3 * side, D]`."""
    near = _with_neighbours(tensor, side)
    if not global_tokens:
        return near
    everywhere = tensor[:, :, None, :global_tokens].expand(-1, -1, near.shape[2], -1, -1)
    return torch.cat([everywhere, near], dim=3)


def _visible_keys(is_token: Tensor, side: int, global_tokens: int) -> Tensor:
    """Returns which keys of `_with_globals` each query attends to, `[B, n, side, G + 3 * side]`, from `[B, P]`.

    The global tokens stand first, and are left out of the keys near a block.
    """
    position = torch.arange(is_token.shape[1], device=is_token.device)
    is_local = is_token * (position >= global_tokens)
    near = _with_neighbours(is_local[:, None, :, None], side)[:, 0, :, None, :, 0].bool()  # [B, n, 1, 3 * side]
    place = torch.arange(3 * side, device=is_token.device)
    distance = place[None, :] - side - place[:side, None]
    visible = near & (distance.abs() <= side)  # [B, n, side, 3 * side]
    if not global_tokens:
        return visible
    everywhere = is_token[:, None, None, :global_tokens].bool().expand(-1, visible.shape[1], side, -1)
    return torch.cat([everywhere, visible], dim=-1)


def _bias(visible: Tensor, like: Tensor) -> Tensor:
    """Returns 0 for visible keys and the smallest number for the others, with an axis of heads `[B, 1, ...]`."""
    zeros = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
    return zeros.masked_fill(~visible, torch.finfo(like.dtype).min)[:, None]


def keep_padding_mask(*arguments: object, attention_mask: Tensor | None = None, **options: object) -> Tensor | None:
    """Returns the mask `[B, L]` as it is: the mask of all pairs of tokens would be quadratic."""
    return attention_mask


AttentionInterface.register(ATTENTION, compute_local_attention)
AttentionMaskInterface.register(ATTENTION, keep_padding_mask)  # type: ignore[arg-type]


class LocalAttentionModel(PreTrainedModel):
    """A model whose attention is always `compute_local_attention`; its other parts are those of its family."""

    def __init__(self, config: PreTrainedConfig) -> None:
        config._attn_implementation = ATTENTION
        super().__init__(config)

    def set_attn_implementation(self, attn_implementation: str | dict[str, str], **options: bool) -> None:
        """Raises ValueError for another attention than the local one, which the weights are trained with."""
        if attn_implementation != ATTENTION:
            raise ValueError(f"got attention {attn_implementation} for a {type(self).__name__}, expected {ATTENTION}")


# Families with a table of positions whose layers call the attention that is registered.
FAMILIES = (
    transformers.BertConfig,
    transformers.CamembertConfig,
    transformers.DistilBertConfig,
    transformers.ElectraConfig,
    transformers.RobertaConfig,
    transformers.XLMRobertaConfig,
)
_AUTO_CLASSES = (transformers.AutoModel, *ENCODER_HEADS)
# The configuration with local attention of each family.
CONFIGS: dict[type[PreTrainedConfig], type[PreTrainedConfig]] = {}


for _family in FAMILIES:
    _name = f"Local{_family.__name__}"
    _members = {
        "__module__": __name__, "__doc__": f"A {_family.__name__} of a model with local attention.",
        "model_type": f"distill_local_{_family.model_type}".replace("-", "_"),
        "__annotations__": {"attention_window": int, "global_tokens": int}, "attention_window": 256, "global_tokens": 1,
    }  # fmt: skip
    CONFIGS[_family] = globals()[_name] = type(_name, (_family,), _members)
    register(*derive_models(globals(), "Local", CONFIGS[_family], _AUTO_CLASSES, LocalAttentionModel))
