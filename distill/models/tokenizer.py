"""Loads the tokenizer of a directory, with the case of texts that its vocabulary was made for."""

import copy
import json
from pathlib import Path
from typing import Any

import transformers
from tokenizers import processors
from transformers import PreTrainedModel, PreTrainedTokenizerBase

SETTINGS_FILE = "tokenizer_config.json"
# Attributes of a tokenizer that tokenizer.json does not have.
_ATTRIBUTES = (
    "padding_side", "truncation_side", "model_input_names", "model_max_length", "src_lang", "tgt_lang",
)  # fmt: skip
_TARGET_LANGUAGE = "set_tgt_lang_special_tokens"  # Method of the tokenizers of several languages.
_CAPITALS = 0.01  # Of the tokens. A vocabulary of lower-cased texts has none but special tokens.


def load_tokenizer(directory: Path, **options: Any) -> tuple[PreTrainedTokenizerBase, list[str]]:
    """Loads the tokenizer, and returns notices about the case of texts.

    Classes such as BertTokenizer lower-case unless a file says otherwise. Where no file says anything, texts keep their
    case if the vocabulary has capitals, which lower-cased texts never give.
    """
    tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(directory, **options)
    if not tokenizer.is_fast or not lower_cases(tokenizer) or _reads_bytes(tokenizer):
        return tokenizer, []
    special = set(tokenizer.all_special_tokens)
    tokens = [token for token in tokenizer.get_vocab() if token not in special and not token.startswith(("[", "<"))]
    capitals = sum(token != token.lower() for token in tokens)
    if capitals < _CAPITALS * len(tokens) or not capitals:
        return tokenizer, []
    if _names_case(directory):
        return tokenizer, [
            f"the tokenizer of {directory} lower-cases, and {capitals:,} of its {len(tokens):,} tokens have capitals, "
            f"which no text gives then: check do_lower_case in its {SETTINGS_FILE}"
        ]
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory, do_lower_case=False, **options)
    return tokenizer, [
        f"{directory} does not say whether its tokenizer lower-cases (do_lower_case in {SETTINGS_FILE}), and its "
        "vocabulary has capitals: texts keep their case"
    ]


def lower_cases(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Returns whether a fast tokenizer lower-cases texts."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is not None and normalizer.normalize_str("A").endswith("a")


def read_vocabulary(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Returns the tokenizer's file without the settings of its last call."""
    content: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    return content | {"truncation": None, "padding": None}


def read_attributes(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Returns the settings of a tokenizer that its file does not have, by name."""
    return {name: getattr(tokenizer, name) for name in _ATTRIBUTES if hasattr(tokenizer, name)}


def adopt_special_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes the tokenizer's special tokens to the model's configuration, from which students read them."""
    model.config.cls_token_id = tokenizer.cls_token_id
    model.config.sep_token_id = tokenizer.sep_token_id
    if getattr(model.config, "pad_token_id", None) is None:  # An existing one determines where positions begin.
        model.config.pad_token_id = tokenizer.pad_token_id


def for_targets(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Returns the tokenizer for texts that are written.

    That of several languages, such as NLLB's, puts the token of `tgt_lang` beside them, without one that of `src_lang`.
    """
    if not hasattr(tokenizer, _TARGET_LANGUAGE):
        return tokenizer
    changed = copy.deepcopy(tokenizer)
    changed.src_lang = tokenizer.tgt_lang or tokenizer.src_lang  # Each call goes back to the language of sources.
    return changed


def adopt_language(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Makes a model that writes several languages begin with the token that its targets begin with.

    Returns:
        A notice if the tokenizer names no language of targets, else none.
    """
    if not hasattr(tokenizer, _TARGET_LANGUAGE):
        return []
    own = tokenizer.tgt_lang or tokenizer.src_lang
    language, first = tokenizer.convert_tokens_to_ids(own), for_targets(tokenizer)("a")["input_ids"][0]
    settings = model.generation_config
    if settings is not None and settings.forced_bos_token_id is None and first == language:
        settings.forced_bos_token_id = language
    if tokenizer.tgt_lang is not None:
        return []
    return [
        f"the tokenizer names no language of targets (tgt_lang), which are taken to be in {own}: for another one load "
        "it with AutoTokenizer.from_pretrained(DIR, src_lang=..., tgt_lang=...), and save it there again"
    ]


def separate_texts(tokenizer: PreTrainedTokenizerBase) -> None:
    """Makes a tokenizer without special tokens, such as GPT-2's, put the end of a text before each text.

    The two texts of a pair are then apart, and an empty text has a token. Another tokenizer stays as it is.
    """
    separator, backend = tokenizer.eos_token, tokenizer.backend_tokenizer
    if separator is None or any(backend.num_special_tokens_to_add(is_pair) for is_pair in (False, True)):
        return
    template = processors.TemplateProcessing(
        single=f"{separator} $A", pair=f"{separator} $A {separator} $B",
        special_tokens=[(separator, tokenizer.eos_token_id)],
    )  # fmt: skip
    own = backend.post_processor
    backend.post_processor = template if own is None else processors.Sequence([own, template])


def _reads_bytes(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Returns whether the tokens are of bytes, some of which are written as capitals."""
    backend = tokenizer.backend_tokenizer
    return "ByteLevel" in f"{backend.normalizer} {backend.pre_tokenizer}"


def _names_case(directory: Path) -> bool:
    """Returns whether a file says how the tokenizer treats capitals."""
    if (directory / "tokenizer.json").is_file():
        return True
    path = directory / SETTINGS_FILE
    return path.is_file() and "do_lower_case" in json.loads(path.read_text(encoding="utf-8"))
