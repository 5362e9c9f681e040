"""The rules by which a model writes: those of its generation configuration that exported files have too, and others."""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Fields of a generation configuration that exported files have too, with the value that has no effect.
RULES: Mapping[str, Any] = {
    "num_beams": 1, "length_penalty": 1.0, "early_stopping": False, "renormalize_logits": False,
    "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "bad_words_ids": None, "min_length": 0,
    "min_new_tokens": None, "forced_bos_token_id": None, "forced_eos_token_id": None, "suppress_tokens": None,
    "begin_suppress_tokens": None,
}  # fmt: skip
# Those that no texts are written with here.
DROPPED: Mapping[str, Any] = {
    "exponential_decay_length_penalty": None, "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0,
    "sequence_bias": None, "guidance_scale": None, "watermarking_config": None, "token_healing": None,
    "stop_strings": None, "max_time": None, "penalty_alpha": None, "dola_layers": None, "num_beam_groups": 1,
    "diversity_penalty": 0.0, "constraints": None, "force_words_ids": None,
    "prompt_lookup_num_tokens": None, "assistant_early_exit": None, "use_mtp": None, "custom_generate": None,
}  # fmt: skip
# Those of a sampling, in which only a temperature that is given has an effect here.
SAMPLING: Mapping[str, Any] = {
    "do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None, "top_h": None, "typical_p": 1.0,
    "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
}  # fmt: skip
# Rules that change the probabilities of a text, which are no longer those of the model.
_CHANGES = (
    "repetition_penalty", "no_repeat_ngram_size", "min_length", "min_new_tokens", "renormalize_logits",
    "begin_suppress_tokens",
)  # fmt: skip


def adopt_decoding(student: "PreTrainedModel", teacher: "PreTrainedModel") -> None:
    """Gives a student that writes text the generation configuration of its teacher.

    A student whose decoder begins with another token keeps that token.
    """
    if not (student.can_generate() and teacher.can_generate()):
        return
    adopted, own = copy.deepcopy(teacher.generation_config), student.generation_config
    starts = [getattr(model.config, "decoder_start_token_id", None) for model in (student, teacher)]
    if starts[0] != starts[1]:
        adopted.decoder_start_token_id = own.decoder_start_token_id
    student.generation_config = adopted


def describe_rules(model: "PreTrainedModel") -> dict[str, Any]:
    """Returns the rules of a model's generation configuration that have an effect, and the tokens that end a text."""
    config = model.generation_config
    values = {"eos_token_id": config.eos_token_id, **{name: getattr(config, name, None) for name in RULES}}
    if config.min_new_tokens:
        values["min_length"] = None  # `generate` replaces it.
    return {name: value for name, value in values.items() if value is not None and value != RULES.get(name)}


def list_notices(model: "PreTrainedModel", *, fills: bool, max_target: int | None) -> list[str]:
    """Returns notices of what texts are not written with here, of a teacher's generation configuration.

    Args:
        fills: whether students fill all masks of a target at once.
        max_target: tokens of a target; None for those of any number.
    """
    if not model.can_generate():
        return []
    name, notices = "the teacher's generation_config.json", []
    if lost := _list_lost(model):
        notices.append(
            f"{', '.join(lost)} of {name} is for transformers alone: bundles write without it, and so does the teacher "
            "where its texts are scored or teach"
        )
    if sampling := _list_sampling(model):
        notices.append(
            f"{', '.join(sampling)} of {name} samples: a bundle takes the most probable tokens unless a call gives a "
            "temperature, and so does the teacher where its texts are scored"
        )
    rules = {name: value for name, value in describe_rules(model).items() if name != "eos_token_id"}
    if fills and rules:
        shown = ", ".join(f"{name}={value}" for name, value in rules.items())
        notices.append(f"{shown} of {name} is for texts that are written token by token, which no student here does")
    least = max(model.generation_config.min_new_tokens or 0, (rules.get("min_length") or 1) - 1)
    if not fills and max_target is not None and least >= max_target:
        notices.append(
            f"{name} has texts of at least {least:,} tokens, and task.max_target={max_target}: no text that is scored "
            "comes to its end"
        )
    return notices


def _list_lost(model: "PreTrainedModel") -> list[str]:
    """Returns the fields of a model's generation configuration that nothing is written with here, with their values."""
    config = model.generation_config
    lost = {name: getattr(config, name, None) for name in DROPPED}
    shown = {name: value for name, value in lost.items() if value is not None and value != DROPPED[name]}
    if not model.config.is_encoder_decoder and config.max_length is not None and config.max_new_tokens is None:
        shown["max_length"] = config.max_length
    return [f"{name}={value}" for name, value in shown.items()]


def _list_sampling(model: "PreTrainedModel") -> list[str]:
    """Returns the fields of a sampling that a model's `generate` does by itself, with their values."""
    config = model.generation_config
    values = {name: getattr(config, name, None) for name in SAMPLING} if config.do_sample else {}
    return [f"{name}={value}" for name, value in values.items() if value is not None and value != SAMPLING[name]]


def choose_tokens(temperature: float | None) -> dict[str, Any]:
    """Returns the options of `generate` for sampling from all tokens, or for the search that exported files do.

    Sampled texts have the probabilities of the model, which no penalty changes.
    """
    if temperature is None:
        return {**DROPPED, "do_sample": False}
    unchanged = {name: RULES[name] for name in _CHANGES}
    sampling = {**SAMPLING, "do_sample": True, "temperature": temperature, "top_k": 0}
    return {**DROPPED, **unchanged, **sampling}
