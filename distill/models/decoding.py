"""Rules by which a model writes, continuations of prompts, and logits over a vocabulary in chunks."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, ModelOutput

from distill.core.contracts import IGNORED, Batch, Items, Outputs
from distill.edge.decoder import MASKED
from distill.models.forward import ENCODE, collect_outputs, run_encoder, run_head, segment_logits, shift_targets

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


def adopt_decoding(student: PreTrainedModel, teacher: PreTrainedModel) -> None:
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


def describe_rules(model: PreTrainedModel) -> dict[str, Any]:
    """Returns the rules of a model's generation configuration that have an effect, and the tokens that end a text."""
    config = model.generation_config
    rules = _effective(config, RULES)
    if config.min_new_tokens:
        rules.pop("min_length", None)  # `generate` replaces it.
    return rules if config.eos_token_id is None else {"eos_token_id": config.eos_token_id, **rules}


def _effective(config: GenerationConfig, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the fields of a generation configuration that have another value than the one without effect."""
    values = {name: getattr(config, name, None) for name in defaults}
    return {name: value for name, value in values.items() if value is not None and value != defaults[name]}


def list_notices(model: PreTrainedModel, *, fills: bool, max_target: int | None) -> list[str]:
    """Returns notices of what texts are not written with here, of a teacher's generation configuration.

    Args:
        fills: whether students fill all masks of a target at once.
        max_target: tokens of a target; None for those of any number.
    """
    if not model.can_generate():
        return []
    config, name, notices = model.generation_config, "the teacher's generation_config.json", []
    unread, rules = _effective(config, DROPPED), describe_rules(model)
    rules.pop("eos_token_id", None)
    if not model.config.is_encoder_decoder and config.max_length is not None and config.max_new_tokens is None:
        unread["max_length"] = config.max_length
    if unread:
        notices.append(
            f"{_show(unread)} of {name} is for transformers alone: bundles write without it, and so does the teacher "
            "where its texts are scored or teach"
        )
    if config.do_sample:  # Which is a field of a sampling that has an effect.
        notices.append(
            f"{_show(_effective(config, SAMPLING))} of {name} samples: a bundle takes the most probable tokens unless "
            "a call gives a temperature, and so does the teacher where its texts are scored"
        )
    if fills and rules:
        notices.append(
            f"{_show(rules)} of {name} is for texts that are written token by token, which no student here does"
        )
    least = max(config.min_new_tokens or 0, (rules.get("min_length") or 1) - 1)
    if not fills and max_target is not None and least >= max_target:
        notices.append(
            f"{name} has texts of at least {least:,} tokens, and task.max_target={max_target}: no text that is scored "
            "comes to its end"
        )
    return notices


def _show(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in fields.items())


def choose_tokens(temperature: float | None) -> dict[str, Any]:
    """Returns the options of `generate` for sampling from all tokens, or for the search that exported files do.

    Sampled texts have the probabilities of the model, which no penalty changes.
    """
    if temperature is None:
        return {**DROPPED, "do_sample": False}
    unchanged = {name: RULES[name] for name in _CHANGES}
    sampling = {**SAMPLING, "do_sample": True, "temperature": temperature, "top_k": 0}
    return {**DROPPED, **unchanged, **sampling}


@torch.no_grad()
def continue_prompts(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    room: Sequence[int],
    *,
    beams: int = 1,
    temperature: float | None = None,
) -> list[list[list[int]]]:
    """Returns the tokens behind each prompt, the most likely of all beams first, with the token that ends a text.

    Args:
        room: the most tokens behind each prompt.
        beams: sequences of the search, each of which is returned; 1 for one text.
        temperature: of the sampling; None takes the most probable tokens.
    """
    width, lengths = max(map(len, prompts)), [len(prompt) for prompt in prompts]
    end, pad = model.generation_config.eos_token_id, model.generation_config.pad_token_id
    # The padding is on the left, so that all texts go on at the same place.
    ids = torch.full((len(prompts), width), 0 if pad is None else pad)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - lengths[row] :] = torch.tensor(prompt, dtype=torch.long)
        mask[row, width - lengths[row] :] = 1
    written = model.generate(
        input_ids=ids.to(model.device), attention_mask=mask.to(model.device), max_new_tokens=max(1, *room),
        num_beams=beams, num_return_sequences=beams, pad_token_id=0 if pad is None else pad,
        **choose_tokens(temperature),
    )[:, width:]  # fmt: skip
    texts = [row[kept].tolist() for row, kept in zip(written, up_to_end(written, end), strict=True)]
    return [[text[:most] for text in texts[number * beams : (number + 1) * beams]] for number, most in enumerate(room)]


def up_to_end(ids: Tensor, end: int | list[int] | None) -> Tensor:
    """Returns whether each token `[B, T]` is in its text: all to the first one that ends it, this one included."""
    is_end = _find_ends(ids, end)
    return is_end.cumsum(dim=1) - is_end.long() == 0


def before_end(ids: Tensor, end: int | list[int] | None) -> Tensor:
    """Returns whether each token `[B, T]` is before the first one that ends its text."""
    return _find_ends(ids, end).cumsum(dim=1) == 0


def _find_ends(ids: Tensor, end: int | list[int] | None) -> Tensor:
    ends = torch.tensor([] if end is None else end, device=ids.device, dtype=ids.dtype).flatten()
    return torch.isin(ids, ends)


CHUNK_LOGITS = 2**23  # 32 MiB in float32, about 270 tokens of BERT's vocabulary and 170 of GPT-2's.


def run_encoder_pass(
    model: PreTrainedModel,
    batch: Mapping[str, Tensor],
    items: Items,
    needs: frozenset[str] = frozenset(),
    *,
    segments: bool = False,
    select_states: Callable[[ModelOutput], Tensor] | None = None,
) -> Outputs:
    """Runs the encoder, and the head at the items alone when their logits `[n, V]` are read, in chunks.

    For all tokens, the logits over a vocabulary would take as long as the encoder.

    Args:
        segments: whether to run the head for two segments too.
        select_states: returns the states `[n, D]` that the head reads at the items; None for the last hidden states of
            their tokens.
    """
    # A method if FSDP has sharded the model.
    encode: Callable[..., Any] = getattr(model, ENCODE, partial(run_encoder, model))
    output = encode(batch, needs)
    states = (  # [n, H]
        output.last_hidden_state.flatten(0, 1)[items.index] if select_states is None else select_states(output)
    )
    # The head for two segments reads only the pooled output.
    order = segment_logits(run_head(model, output, output.last_hidden_state[:, 0])) if segments else None

    def decode(states: Tensor) -> Tensor:
        logits: Tensor = run_head(model, output, states).logits[0]
        return logits

    return replace(
        collect_outputs(output),
        segment_logits=order,
        last_hidden_state=output.last_hidden_state,
        decode=decode,
        states=states,
        head=lambda span: decode(states[span]),
        chunk_size=max(1, CHUNK_LOGITS // int(model.config.vocab_size)),
    )


def score_words(model: PreTrainedModel, batch: Batch, words: Tensor) -> Tensor:
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
