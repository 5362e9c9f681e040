"""Forward passes of a whole model, or of its encoder and its head separately."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions, ModelOutput

from distill.contracts import DECODER_INPUTS, ENCODER_FEATURES, IGNORED, TARGET_MASK, Outputs
from distill.errors import UserError, first_line
from distill.models.attention import layers_of, record_attention
from distill.models.modeling_mask_predict import MaskPredictForConditionalGeneration
from distill.models.pooling import pool, vector_settings

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
POSITIONS = "positions"  # An input of exported files alone, as in `run_exported`.
SEQ2SEQ = "AutoModelForSeq2SeqLM"
ENCODE = "run_encoder"  # Method of a model sharded by FSDP, which gathers the weights and runs the encoder.


def collect_outputs(output: ModelOutput, logits: Tensor | None = None) -> Outputs:
    """Returns the outputs of a forward pass as terms read them, with the logits `[n, C]` of all items."""
    return Outputs(
        logits=logits,
        hidden_states=output.get("hidden_states"),
        attentions=output.get("attentions"),
        attention_vectors=output.get("attention_vectors"),
        length_logits=output.get("length_logits"),
        decoder=_decoder_outputs(output),
    )


def _decoder_outputs(output: ModelOutput) -> Outputs | None:
    """Returns the outputs of the second half of an encoder-decoder, None of another model."""
    if "encoder_last_hidden_state" not in output:
        return None
    return Outputs(
        hidden_states=output.get("decoder_hidden_states"),
        attentions=output.get("decoder_attentions"),
        cross_attentions=output.get("cross_attentions"),
    )


def run_model(model: PreTrainedModel, batch: Mapping[str, Tensor], needs: frozenset[str] = frozenset()) -> ModelOutput:
    """Runs the whole model on the tensors `[S, L]` of the batch that it reads.

    A model that `takes_choices` gives every sequence a score, `logits [S, 1]`, as if it were the only choice.
    """
    return _with_logits(model, _run(model, model, batch, needs), batch["attention_mask"])


def try_model(model: PreTrainedModel, batch: Mapping[str, Tensor], needs: frozenset[str] = frozenset()) -> ModelOutput:
    """Runs the whole model on a sample, before anything is trained; raises UserError if it cannot be run."""
    try:
        return run_model(model, batch, needs)
    except Exception as error:  # Of any family.
        name, count = type(model).__name__, batch["input_ids"].shape[-1]
        if model.config.is_encoder_decoder and not writes_targets(model):
            raise UserError(
                f"a {name} is an encoder-decoder and cannot be run on a text without a target ({first_line(error)}): "
                "take task=seq2seq, or an encoder such as BERT"
            ) from error
        raise UserError(
            f"a {name} cannot be run on a sample of {count} tokens ({first_line(error)}), expected a model that reads "
            "texts of any number of tokens: take one of another family, such as BERT or GPT-2"
        ) from error


def run_encoder(
    model: PreTrainedModel, batch: Mapping[str, Tensor], needs: frozenset[str] = frozenset()
) -> ModelOutput:
    """Runs the encoder without the model's head: `last_hidden_state [B, L, H]`, and the outputs that terms need.

    Of an encoder-decoder both halves run, and the last hidden states are those of its decoder, `[B, T, H]`.
    """
    if not _has_inner_model(model):
        return _run(model, _without_head(model), batch, needs)
    return _run(model, model.base_model, batch, needs)


def run_head(model: PreTrainedModel, encoded: ModelOutput, states: Tensor) -> ModelOutput:
    """Applies only the head to hidden states `[n, H]`: `logits [1, n, V]`.

    Model families have different names for their heads, so the whole `forward` runs, with an encoder that returns these
    states. `encoded` is the output of the encoder, whose pooled output the head may read.
    """
    if not _has_inner_model(model):
        return ModelOutput(logits=model.get_output_embeddings()(states.unsqueeze(0)))
    output = _StatesOnly(last_hidden_state=states.unsqueeze(0), pooler_output=getattr(encoded, "pooler_output", None))
    head = _with_encoder(model, _FixedEncoder(model.base_model, output))
    ids = states.new_zeros((1, len(states)), dtype=torch.long)
    return _with_logits(model, head(input_ids=ids), torch.ones_like(ids))


def _with_logits(model: PreTrainedModel, output: ModelOutput, attention_mask: Tensor) -> ModelOutput:
    output.logits = output_logits(model, output, attention_mask)
    return output


def output_logits(model: PreTrainedModel, output: ModelOutput, attention_mask: Tensor) -> Tensor:
    """Returns the logits of a model's output, those of the start and the end of an answer as `[B, L, 2]`.

    In their place an encoder without a head has the vectors `[B, H]` of texts, or without a pooling in its
    configuration its last hidden states `[B, L, H]`.
    """
    if "last_hidden_state" in output and "logits" not in output:
        settings, states = vector_settings(model.config), output.last_hidden_state
        return states if settings is None else pool(states, attention_mask, settings)
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    # The name in models for pre-training, which have a second head.
    logits: Tensor = output.prediction_logits if "prediction_logits" in output else output.logits
    return logits


def segment_logits(output: ModelOutput) -> Tensor | None:
    """Returns the logits `[B, 2]` of a head for two segments as BERT and ALBERT name them, None without one."""
    logits: Tensor | None = output.get("seq_relationship_logits", output.get("sop_logits"))
    return logits


def run_exported(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """Returns the logits of a model's exported file, from the inputs `exported_inputs`.

    A model that `predicts_tokens` has `logits [n, V]` at `positions [n]` alone, counted over the batch `[B * L]`. At
    all tokens the head would take as long as the encoder.
    """
    named = dict(inputs)
    positions = named.pop(POSITIONS, None)
    mask = named.get("attention_mask", torch.ones_like(named["input_ids"]))  # A FNet takes none.
    if positions is None:
        return output_logits(model, model(**named), mask)

    def select_states(encoder: nn.Module, arguments: object, output: ModelOutput) -> ModelOutput:
        output.last_hidden_state = output.last_hidden_state.flatten(0, 1).index_select(0, positions).unsqueeze(0)
        return output

    handle = model.base_model.register_forward_hook(select_states)
    try:
        return output_logits(model, model(**named), mask)[0]
    finally:
        handle.remove()


def _run(model: PreTrainedModel, part: nn.Module, batch: Mapping[str, Tensor], needs: frozenset[str]) -> ModelOutput:
    layers = layers_of(needs, model.config.num_hidden_layers)
    if layers is not None:
        with record_attention(model, layers) as vectors:
            output = _call(model, part, batch, needs)
            output["attention_vectors"] = vectors()
        return output
    return _call(model, part, batch, needs)


def _call(model: PreTrainedModel, part: nn.Module, batch: Mapping[str, Tensor], needs: frozenset[str]) -> ModelOutput:
    names = (*input_names(model), ENCODER_FEATURES, DECODER_INPUTS, *([TARGET_MASK] if fills_targets(model) else []))
    inputs: dict[str, Any] = {name: batch[name] for name in names if name in batch}
    if writes_targets(model):  # A text without a target is its own one.
        inputs.setdefault(DECODER_INPUTS, batch["input_ids"])
    if part is model and takes_choices(model):
        inputs = {name: tensor.unsqueeze(1) for name, tensor in inputs.items()}  # [S, 1, L]
    accepted = inspect.signature(part.forward).parameters
    if "use_cache" in accepted:
        inputs["use_cache"] = False  # Of keys and values, which only generation reads.
    if "global_attention_mask" in accepted and _has_head(model, "AutoModelForQuestionAnswering"):
        inputs["global_attention_mask"] = _mask_question(model, batch["input_ids"])
    with _returned_probabilities(model, needs):
        output: ModelOutput = part(
            **inputs,
            output_hidden_states=not needs.isdisjoint(("hidden_states", "decoder_hidden_states")),
            output_attentions=not needs.isdisjoint(("attentions", "cross_attentions")),
        )
    return _name_halves(output)


@contextmanager
def _returned_probabilities(model: PreTrainedModel, needs: frozenset[str]) -> Iterator[None]:
    """Computes attention so that it returns its probabilities, where a term needs those of a decoder to the source."""
    implementation = getattr(model.config, "_attn_implementation", None)
    if "cross_attentions" not in needs or implementation == "eager":
        yield
        return
    model.set_attn_implementation("eager")  # The only one that returns probabilities.
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)


def _name_halves(output: ModelOutput) -> ModelOutput:
    """Gives the outputs of the encoder of an encoder-decoder the names that they have without a decoder."""
    for name in ("hidden_states", "attentions"):
        if f"encoder_{name}" in output:
            output[name] = output[f"encoder_{name}"]
    if "encoder_last_hidden_state" in output and "last_hidden_state" not in output and "logits" in output:
        output["last_hidden_state"] = output.logits  # Those of a model without its head, as in `_without_head`.
    return output


def _mask_question(model: PreTrainedModel, input_ids: Tensor) -> Tensor:
    """Returns 1 for the tokens before the first separator, `[B, L]`, which a Longformer gives global attention.

    Its own class does so only for texts with three separators each.
    """
    separator = getattr(model.config, "sep_token_id", None)  # A LED separates by the token that ends a text.
    separator = model.config.eos_token_id if separator is None else separator
    before: Tensor = (input_ids == separator).cumsum(dim=1) == 0
    return before.long()


def count_outputs(model: PreTrainedModel) -> int:
    """Returns the number of logits of an item, or the width of the vector of a text."""
    return int(model.config.num_labels if vector_settings(model.config) is None else model.config.hidden_size)


def shift_targets(model: PreTrainedModel, labels: Tensor) -> Tensor:
    """Returns the tokens `[B, T]` before `labels`, which a decoder reads: its first token, and all labels but the last.

    The first token is that with which the model writes a text. M2M100 and NLLB have no method for this, and that of
    mBART takes the last label for the first token.
    """
    inputs = labels.roll(1, dims=-1)
    inputs[..., 0] = model.config.decoder_start_token_id
    return inputs.masked_fill(inputs == IGNORED, model.config.pad_token_id)


def takes_choices(model: PreTrainedModel) -> bool:
    """Returns whether the model scores choices: its inputs are `[B, K, L]`, and its logits `[B, K]`."""
    return _has_head(model, "AutoModelForMultipleChoice")


def predicts_tokens(model: PreTrainedModel) -> bool:
    """Returns whether the model has a head over its vocabulary, for masked tokens."""
    # A BART is registered for masked tokens too.
    return _has_head(model, "AutoModelForMaskedLM") and not writes_targets(model)


def writes_targets(model: PreTrainedModel) -> bool:
    """Returns whether the model is an encoder-decoder that writes a text for a text."""
    return _has_head(model, SEQ2SEQ)


def fills_targets(model: PreTrainedModel) -> bool:
    """Returns whether the model is an encoder-decoder that fills all masks of a target at once."""
    return isinstance(model, MaskPredictForConditionalGeneration)


def _has_head(model: PreTrainedModel, auto_class: str) -> bool:
    head = model_class(auto_class, type(model.config))
    return head is not None and isinstance(model, head)


def model_class(auto_class: str, config_class: type[PreTrainedConfig]) -> type[PreTrainedModel] | None:
    """Returns the model class with this head for a configuration, None if transformers has none."""
    mapping = getattr(transformers, auto_class)._model_mapping
    if config_class not in mapping:
        return None
    classes = mapping[config_class]
    first: type[PreTrainedModel] = classes[0] if isinstance(classes, tuple | list) else classes
    return first


def _has_inner_model(model: PreTrainedModel) -> bool:
    """Returns whether all but the head is a module of its own, which it is not in a T5 that writes a text."""
    return model.base_model is not model or not writes_targets(model)


def _without_head(model: PreTrainedModel) -> PreTrainedModel:
    """Returns an object with the model's modules whose `logits` are the states that the head reads; no copy."""
    head = model.get_output_embeddings()
    [name] = [name for name, module in model.named_children() if module is head]
    return _with_module(model, name, nn.Identity())


class _StatesOnly(BaseModelOutputWithPoolingAndCrossAttentions):
    """An encoder's output for its head, which passes on fields that only its own family has: they are None here."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):  # Of Python's protocols.
            raise AttributeError(name)


class _FixedEncoder:
    """Returns a given output in place of an encoder; its other attributes are those of the encoder.

    An encoder that is made of one module alone, such as OPT's decoder, is this module too: some heads call it directly.
    """

    def __init__(self, encoder: nn.Module, output: ModelOutput) -> None:
        self.encoder, self.output = encoder, output

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.encoder, name)
        return self if isinstance(value, nn.Module) and list(self.encoder.children()) == [value] else value

    def __call__(self, *inputs: object, **options: object) -> ModelOutput:
        return self.output


def _with_encoder(model: PreTrainedModel, encoder: _FixedEncoder) -> PreTrainedModel:
    """Returns an object with the model's modules and this encoder; the model is not changed."""
    return _with_module(model, model.base_model_prefix, encoder)


def _with_module(model: PreTrainedModel, name: str, module: object) -> PreTrainedModel:
    """Returns an object with the model's modules but one; the model is not changed."""
    viewed = object.__new__(type(model))  # `copy.copy` would call the constructor of a model that FSDP has sharded.
    # An attribute of the object comes before a module of the same name.
    viewed.__dict__.update({**model.__dict__, name: module})
    return viewed


def to_device(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Returns the batch on another device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


def input_names(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> list[str]:
    """Returns the names of a model's inputs: those that its `forward` accepts and the tokenizer's batches hold.

    Training, an exported file and a device thus give the model the same inputs. A BERT without token types reads zeros.

    Args:
        tokenizer: None for all inputs that the model accepts.
    """
    accepted = inspect.signature(model.forward).parameters
    # Every batch has a mask, whatever the tokenizer returns.
    held = {"input_ids", "attention_mask"} | set(_INPUTS if tokenizer is None else tokenizer.model_input_names)
    return [name for name in _INPUTS if name in accepted and name in held]


def exported_inputs(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> list[str]:
    """Returns the names of the inputs of the model's exported file, `input_names` and maybe `positions`."""
    return input_names(model, tokenizer) + ([POSITIONS] if predicts_tokens(model) else [])
