"""The key `generation` of bundle.json: what a device must know to write text with a model."""

from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedModel

from distill.export.generator import generator_caches, takes_positions
from distill.models.layers import read_positions

MAX_NEW_TOKENS = 64  # Where a call gives no number, and the model has no other.


def describe_generation(model: PreTrainedModel, tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the special tokens, the lengths and the sizes of caches of a model that writes text.

    A generation configuration that was saved with the model comes before its configuration.

    Args:
        tokenizer: puts the token before a prompt of a causal model that the model was trained with, such as Llama's
            BOS; GPT-2's puts none.
    """
    config, own = model.config, getattr(model, "generation_config", None)

    def find(name: str) -> Any:
        value = getattr(own, name, None)
        return getattr(config, name, None) if value is None else value

    eos = find("eos_token_id")
    layers, heads, width = generator_caches(model)
    length = find("max_new_tokens") or (find("max_length") if config.is_encoder_decoder else None)
    return {
        "eos": sorted({int(token) for token in (eos if isinstance(eos, list | tuple) else [eos]) if token is not None}),
        "pad": find("pad_token_id"),
        "start": find("decoder_start_token_id") if config.is_encoder_decoder else find_start(tokenizer),
        "max_new_tokens": int(length or MAX_NEW_TOKENS),
        "positions": count_positions(model),
        "layers": layers, "heads": heads, "head_width": width,
        "positions_input": not config.is_encoder_decoder and takes_positions(model),
        "forced_bos": find("forced_bos_token_id"), "forced_eos": find("forced_eos_token_id"),
        "length_penalty": find("length_penalty"), "early_stopping": find("early_stopping"),
    }  # fmt: skip


def find_start(tokenizer: Tokenizer) -> int | None:
    """Returns the token that a tokenizer puts before a text; None if it puts none."""
    encoding = tokenizer.encode("a")
    return encoding.ids[0] if encoding.special_tokens_mask[:1] == [1] else None


def count_positions(model: PreTrainedModel) -> int | None:
    """Returns the tokens that a model has positions for; None for one with relative positions, which has no limit."""
    return read_positions(model.config, writes=True)
