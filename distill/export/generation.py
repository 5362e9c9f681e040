"""The key `generation` of bundle.json: what a device must know to write text with a model."""

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedModel

from distill.export.generator import generator_caches, takes_positions
from distill.models.decoding import describe_rules
from distill.models.layers import read_positions

MAX_NEW_TOKENS = 64  # Where a call gives no number, and the model has no other.
# Rules by their names in bundle.json, and in a generation configuration.
RULES: Mapping[str, str] = {
    "forced_bos": "forced_bos_token_id", "forced_eos": "forced_eos_token_id", "length_penalty": "length_penalty",
    "early_stopping": "early_stopping", "renormalizes": "renormalize_logits",
    **{
        name: name
        for name in ("repetition_penalty", "min_length", "min_new_tokens", "no_repeat_ngram_size", "bad_words_ids",
                     "suppress_tokens", "begin_suppress_tokens")
    },
}  # fmt: skip


def describe_generation(
    model: PreTrainedModel, tokenizer: Tokenizer, *, beams: int | None = None, max_target: int | None = None
) -> dict[str, Any]:
    """Returns the special tokens, the lengths, the rules and the sizes of caches of a model that writes text.

    Special tokens of its generation configuration come before those of its configuration.

    Args:
        beams: of the search for a text; None for the number of the model.
        max_target: tokens of a text if the model has no number; None for `MAX_NEW_TOKENS`.
        tokenizer: puts the token before a prompt of a causal model that the model was trained with, such as Llama's
            BOS; GPT-2's puts none.
    """
    config, own = model.config, model.generation_config

    def find(name: str) -> Any:
        value = getattr(own, name, None)
        return getattr(config, name, None) if value is None else value

    eos, rules = find("eos_token_id"), describe_rules(model)
    layers, heads, width = generator_caches(model)
    length = own.max_new_tokens
    if length is None and config.is_encoder_decoder and own.max_length is not None:
        length = max(1, own.max_length - 1)  # It counts the token that a decoder starts with.
    return {
        "eos": sorted({int(token) for token in (eos if isinstance(eos, list | tuple) else [eos]) if token is not None}),
        "pad": find("pad_token_id"),
        "start": find("decoder_start_token_id") if config.is_encoder_decoder else find_start(tokenizer),
        "max_new_tokens": int(length or max_target or MAX_NEW_TOKENS),
        "positions": count_positions(model),
        "layers": layers, "heads": heads, "head_width": width,
        "positions_input": not config.is_encoder_decoder and takes_positions(model),
        **{name: rules.get(field) for name, field in RULES.items()},
        "beams": beams or rules.get("num_beams"),
    }  # fmt: skip


def find_start(tokenizer: Tokenizer) -> int | None:
    """Returns the token that a tokenizer puts before a text; None if it puts none."""
    encoding = tokenizer.encode("a")
    return encoding.ids[0] if encoding.special_tokens_mask[:1] == [1] else None


def count_positions(model: PreTrainedModel) -> int | None:
    """Returns the tokens that a model has positions for; None for one with relative positions, which has no limit."""
    return read_positions(model.config, writes=True)
