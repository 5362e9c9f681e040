"""Forward passes of a model, or of its encoder and its head, with pooling and the vectors of attention.

Reads queries, keys and values out of a model's layers with forward hooks, only while a term needs them.
`output_attentions` is of no use here: it gives probabilities, and nothing at all with torch's fused attention.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions, ModelOutput

from distill.core.contracts import (
    DECODER_INPUTS,
    ENCODER_FEATURES,
    IGNORED,
    POOLED,
    TARGET_MASK,
    VECTOR_SETTINGS,
    AttentionVectors,
    Outputs,
)
from distill.core.errors import UserError, first_line
from distill.models.architectures.modeling_mask_predict import MaskPredictForConditionalGeneration
from distill.models.architectures.modeling_narrow import count_groups
from distill.models.surgery.copies import pass_on
from distill.models.vectors import AUTO, POOLINGS, encode_states, list_dense, put_dense, vector_settings, vector_width

NAME = "attention_vectors"  # In the `needs` of a term; `attention_vectors.3` reads only the third layer.
_PROJECTIONS = (
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("q_proj", "k_proj", "v_proj"),
    ("query_proj", "key_proj", "value_proj"),
    ("q", "k", "v"),
    ("Wqkv",),  # Queries, keys and values of all heads one after another, as in ModernBERT.
)


def find_projections(model: PreTrainedModel) -> list[tuple[nn.Module, tuple[nn.Linear, ...]]]:
    """Returns the attention modules of a model in the order of its layers, each with its projections.

    These are three linear layers for queries, keys and values, or one for all of them. A model that shares one set of
    weights has one module for all layers. Of an encoder-decoder they are those of its encoder.
    """
    found = []
    encoder = model.get_encoder() if model.config.is_encoder_decoder else model.base_model
    for module in encoder.modules():
        children = dict(module.named_children())
        for names in _PROJECTIONS:
            linear = tuple(layer for name in names if isinstance(layer := children.get(name), nn.Linear))
            if len(linear) == len(names):
                found.append((module, linear))
                break
    return found


def count_heads(config: PreTrainedConfig) -> int:
    """Returns the number of heads of a layer, of a narrow model that of the layer that has most."""
    groups = count_groups(config)
    return int(max(getattr(config, "layer_heads", None) or [groups]) * config.num_attention_heads // groups)


def attention_width(model: PreTrainedModel) -> int | None:
    """Returns the width of the queries of all heads; None for a model whose layers have none, or different ones."""
    widths = {linear[0].out_features // (3 if len(linear) == 1 else 1) for _, linear in find_projections(model)}
    return widths.pop() if len(widths) == 1 else None


def layers_of(needs: frozenset[str], depth: int) -> frozenset[int] | None:
    """Returns the layers whose attention vectors are needed, counted from 1; None if none are needed at all."""
    if NAME in needs:
        return frozenset(range(1, depth + 1))
    layers = frozenset(int(name.rpartition(".")[2]) for name in needs if name.startswith(f"{NAME}."))
    return layers or None


@contextmanager
def record_attention(
    model: PreTrainedModel, layers: Collection[int]
) -> Iterator[Callable[[], dict[int, AttentionVectors]]]:
    """Yields a function that returns the attention vectors of these layers after a forward pass of the model."""
    recorder = _Recorder(layers)
    found = find_projections(model) if attention_width(model) is not None else []
    is_shared = len(found) != model.config.num_hidden_layers
    handles = []
    for layer, (module, linear) in enumerate(found, start=1):
        if is_shared or layer in layers:
            handles.append(module.register_forward_pre_hook(recorder.begin(None if is_shared else layer)))
            handles += [projection.register_forward_hook(recorder.record) for projection in linear]
    try:
        yield lambda: recorder.vectors(count_heads(model.config)) if found else {}
    finally:
        for handle in handles:
            handle.remove()


class _Recorder:
    """The outputs of the projections of each layer, in the order of the calls."""

    def __init__(self, layers: Collection[int]) -> None:
        self.layers = layers
        self.current = 0
        self.outputs: dict[int, dict[nn.Module, Tensor]] = {}

    def begin(self, layer: int | None) -> Callable[..., None]:
        """Returns a hook for the beginning of a layer: of the one given, or of the one after the last."""

        def hook(*arguments: object) -> None:
            self.current = self.current + 1 if layer is None else layer

        return hook

    def record(self, projection: nn.Module, arguments: object, output: Tensor) -> None:
        if self.current in self.layers:
            # DeBERTa calls its projections once more, for the embeddings of the positions.
            self.outputs.setdefault(self.current, {}).setdefault(projection, output)

    def vectors(self, heads: int) -> dict[int, AttentionVectors]:
        return {layer: _split(list(outputs.values()), heads) for layer, outputs in self.outputs.items()}


def _split(outputs: list[Tensor], heads: int) -> AttentionVectors:
    """Splits `[B, L, A * D]` of queries, keys and values, or `[B, L, 3 * A * D]` of all, into heads `[B, A, L, D]`."""
    vectors = outputs[0].chunk(3, dim=-1) if len(outputs) == 1 else outputs
    queries, keys, values = (tensor.unflatten(-1, (heads, -1)).transpose(-2, -3) for tensor in vectors)
    return AttentionVectors(queries, keys, values)


def has_plain_scores(attentions: Collection[Tensor], vectors: dict[int, AttentionVectors]) -> bool:
    """Returns whether the probabilities `[B, A, L, L]` of all layers are `softmax(Q K^T / sqrt(D))`.

    They are not with rotary embeddings, relative positions, or a scale of another size.
    """
    if len(attentions) != len(vectors):
        return False
    for layer, probabilities in enumerate(attentions, start=1):
        queries, keys, _ = vectors[layer]
        expected = (queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5).softmax(dim=-1)
        if expected.shape != probabilities.shape or not torch.allclose(expected, probabilities, atol=1e-5):
            return False
    return True


def configure(model: PreTrainedModel, settings: Mapping[str, Any]) -> list[str]:
    """Writes a task's `model_settings` to the configuration of a model. An encoder of vectors loses its own pooler.

    Returns:
        A notice if the encoder was trained with another pooling, else none.
    """
    own, wanted, layers = vector_settings(model.config), settings.get(VECTOR_SETTINGS), list_dense(model)
    for name, value in settings.items():
        setattr(model.config, name, value)
    if wanted is None:
        return []
    pooling = wanted["pooling"] if wanted["pooling"] != AUTO else own["pooling"] if own is not None else POOLINGS[0]
    cut = {"dimensions": own["dimensions"]} if own is not None and "dimensions" in own else {}
    setattr(model.config, VECTOR_SETTINGS, {**wanted, "pooling": pooling, **cut})
    if layers:
        put_dense(model, layers)
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
        pass_on(model, model, {name: name for name, _ in model.named_parameters()})
    if own is None or own["pooling"] == pooling:
        return []
    trained = own["pooling"]
    return [
        f"the teacher was trained with {trained} pooling, and task.pooling is {wanted['pooling']}: set "
        f"task.pooling={trained} for the vectors that it was trained for"
    ]


_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
POSITIONS = "positions"  # An input of exported files alone, as in `run_exported`.
SEQ2SEQ = "AutoModelForSeq2SeqLM"
ENCODE = "run_encoder"  # Method of a model sharded by FSDP, which gathers the weights and runs the encoder.


def collect_outputs(output: ModelOutput, logits: Tensor | None = None) -> Outputs:
    """Returns the outputs of a forward pass as terms read them, with the logits `[n, C]` of all items."""
    decoder = None
    if "encoder_last_hidden_state" in output:  # Of an encoder-decoder, which has a second half.
        decoder = Outputs(
            hidden_states=output.get("decoder_hidden_states"),
            attentions=output.get("decoder_attentions"),
            cross_attentions=output.get("cross_attentions"),
        )
    return Outputs(
        logits=logits,
        hidden_states=output.get("hidden_states"),
        pooled=next(iter(output.get(POOLED) or ()), None),
        attentions=output.get("attentions"),
        attention_vectors=output.get("attention_vectors"),
        length_logits=output.get("length_logits"),
        decoder=decoder,
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
    return _run(model, model.base_model if _has_inner_model(model) else _without_head(model), batch, needs)


def run_head(model: PreTrainedModel, encoded: ModelOutput, states: Tensor) -> ModelOutput:
    """Applies only the head to hidden states `[n, H]`: `logits [1, n, V]`.

    Model families have different names for their heads, so the whole `forward` runs, with an encoder that returns these
    states. `encoded` is the output of the encoder, whose pooled output the head may read.
    """
    if not _has_inner_model(model):
        return ModelOutput(logits=model.get_output_embeddings()(states.unsqueeze(0)))
    output = _StatesOnly(last_hidden_state=states.unsqueeze(0), pooler_output=getattr(encoded, "pooler_output", None))
    head = _with_module(model, model.base_model_prefix, _FixedEncoder(model.base_model, output))
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
    if "last_hidden_state" in output and vector_settings(model.config) is not None:
        return encode_states(model, output.get("logits", output.last_hidden_state), attention_mask)
    if "last_hidden_state" in output and "logits" not in output:
        states: Tensor = output.last_hidden_state
        return states
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
            output_hidden_states=not needs.isdisjoint(("hidden_states", "decoder_hidden_states", POOLED)),
            output_attentions=not needs.isdisjoint(("attentions", "cross_attentions")),
        )
    if POOLED in needs:
        weights = batch["attention_mask"].unsqueeze(-1).to(output.hidden_states[-1].dtype)
        output[POOLED] = ((output.hidden_states[-1] * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1),)
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


def input_embeddings(model: PreTrainedModel) -> nn.Module | None:
    """Returns the embeddings of the pieces; None for a model of transformers without a table."""
    try:
        table: nn.Module = model.get_input_embeddings()
    except NotImplementedError:
        return None
    return table


def count_outputs(model: PreTrainedModel) -> int:
    """Returns the number of logits of an item, or the width of the vector of a text."""
    return int(model.config.num_labels if vector_settings(model.config) is None else vector_width(model.config))


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


# Of the largest logit. Padding on the wrong side changes logits by as much as another text does.
PADDING_TOLERANCE = 1e-3
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
    return bool((logits - expected).abs().max() <= PADDING_TOLERANCE * expected.abs().max())


BOTH_SIDES = ("AutoModelForTokenClassification", "AutoModelForQuestionAnswering")  # Read the tokens behind each too.
# Of the largest logit. A model of both directions changes logits by as much as another text does.
CAUSALITY_TOLERANCE = 1e-3
_LENGTH = 8


@torch.no_grad()
def check_causal(model: PreTrainedModel, name: str) -> None:
    """Raises UserError if the logits at a token depend on the tokens behind it, which they are to predict.

    Transformers loads a masked language model such as BERT's as a causal one too, which then reads in both directions.
    """
    ids = torch.arange(1, _LENGTH + 1).unsqueeze(0) % int(model.config.vocab_size)
    other = ids.clone()
    other[:, -1] = 0
    batches = ({"input_ids": tokens, "attention_mask": torch.ones_like(tokens)} for tokens in (other, ids))
    logits, expected = (try_model(model, batch).logits[:, :-1] for batch in batches)  # [1, L - 1, V]
    if bool((logits - expected).abs().max() > CAUSALITY_TOLERANCE * expected.abs().max()):
        raise UserError(
            f"{name} has a {type(model).__name__} that reads the tokens behind each token too, expected a model that "
            "reads those before it alone: take one such as GPT-2 (job=pretrain has +teacher=gpt2_tiny), or task=mlm"
        )


def check_reads_both_sides(config: PreTrainedConfig, auto_class: str, name: str) -> None:
    """Raises UserError for a decoder with a head for tags or answers, which depend on the tokens behind each token."""
    if is_decoder(config) and auto_class in BOTH_SIDES:
        asked = "tags" if auto_class == BOTH_SIDES[0] else "answers"
        raise UserError(
            f"{name} has a model of type {config.model_type}, a decoder, which reads the tokens before each token "
            f"alone, and {asked} depend on those behind it too: take an encoder such as BERT, or task=classification, "
            "which a decoder can learn"
        )


def is_decoder(config: PreTrainedConfig) -> bool:
    """Returns whether a model reads the tokens before each token alone.

    A family is one of decoders if it has a causal language model and no masked one. XLNet, which reads both sides, says
    so in its configuration.
    """
    causal, masked = (model_class(head, type(config)) for head in ("AutoModelForCausalLM", "AutoModelForMaskedLM"))
    return causal is not None and masked is None and getattr(config, "attn_type", "uni") != "bi"
