"""Export to float32 ONNX: models with a head, models that write with caches, and models that fill masks.

Export of models that write text to float32 ONNX, with caches of keys and values as inputs and outputs. The names of
inputs and outputs are those of Optimum, so that other runtimes read the files too.
"""

import contextlib
import copy
import inspect
import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.console import logging_only_errors
from distill.core.errors import UserError
from distill.core.files import make_directory
from distill.edge.bundle_files import encoder_file
from distill.edge.generation import KEPT_LOGITS, PADDING, PAST, PRESENT
from distill.models.decoding import describe_rules
from distill.models.forward import POSITIONS, exported_inputs, fills_targets, output_logits, run_exported, takes_choices
from distill.models.surgery.layers import read_positions

OPSET = 20
# From here on the weights are in a second file `NAME.data`, because a protobuf message holds 2 GB at most.
EXTERNAL_DATA_BYTES = 1_500_000_000


# The inputs of a module by name, each with its dynamic axes.
Example = Mapping[str, tuple[Tensor, dict[int, str]]]


class _Part(nn.Module):
    """A model or a part of it as a function of positional inputs, as the exporter requires.

    Attributes:
        named: number of inputs before those that are taken as `*inputs`; None where none are.
    """

    named: int | None = None

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model


class _Logits(_Part):
    """The whole model, from its inputs to logits."""

    named = 0

    def __init__(self, model: PreTrainedModel, names: Sequence[str], *, with_states: bool = False) -> None:
        super().__init__(model)
        self.names, self.with_states = names, with_states

    def forward(self, *inputs: Tensor) -> Any:
        named = dict(zip(self.names, inputs, strict=True))
        if not self.with_states:
            return run_exported(self.model, named)
        output = self.model(**named)
        mask = named.get("attention_mask", torch.ones_like(named["input_ids"]))  # A FNet takes none.
        return output_logits(self.model, output, mask), output.last_hidden_state


def export_onnx(
    model: PreTrainedModel, path: Path, *, tokenizer: PreTrainedTokenizerBase | None = None, with_states: bool = False
) -> None:
    """Writes `model` as float32 ONNX: inputs `[B, L]` -> `logits`, with dynamic B and L.

    A model that `takes_choices` has inputs `[B, K, L]` and `logits [B, K]`, with dynamic K too. One that
    `predicts_tokens` has the further input `positions [n]` and `logits [n, V]`, as `run_exported`. The `logits` of an
    encoder of vectors are these, `[B, H]`.

    The files are those of `edge.bundle_files.list_model_files`, two for a large model.

    Args:
        tokenizer: makes the inputs; None for all that the model accepts.
        with_states: whether an encoder of vectors has the output `last_hidden_state [B, L, H]` too.
    """
    names = exported_inputs(model, tokenizer)
    exported = _copy(model)
    if getattr(exported.config, "_attn_implementation", None) == "sdpa":
        # torch's function is exported with two reshapes of the keys, and with checks for rows that attend to nothing.
        exported.set_attn_implementation("eager")
    # The exporter would treat 0, 1 or a size of the model as a fixed size.
    axes = {"batch": 2, "choices": 5, "length": 9} if takes_choices(model) else {"batch": 2, "length": 9}
    shape = tuple(axes.values())
    example = {
        "input_ids": torch.randint(0, model.config.vocab_size, shape, generator=torch.Generator().manual_seed(0)),
        "attention_mask": torch.ones(shape, dtype=torch.long),
        "token_type_ids": torch.zeros(shape, dtype=torch.long),
        POSITIONS: torch.tensor([1, 3, 10]),
    }
    example["attention_mask"][1, ..., axes["length"] // 2 :] = 0
    every = {name: (values, dict(enumerate(axes))) for name, values in example.items()}
    every[POSITIONS] = (example[POSITIONS], {0: "tokens"})
    module = _Logits(exported, names, with_states=with_states)
    outputs = ["logits", *(["last_hidden_state"] if with_states else [])]
    _save(module, {name: every[name] for name in names}, outputs, path)


_HUB_FILES = {"fp32": "model.onnx", "int8": "model_quantized.onnx"}
VECTORS = "sentence_embedding"  # The name of `logits` in the files for other libraries.


def write_hub(bundle: Path, directory: Path, files: Mapping[str, str]) -> None:
    """Writes files of a bundle of vectors into the directory of its model, with the name of vectors there.

    Args:
        files: the file of the bundle for each format.
    """
    make_directory(directory / "onnx")
    for format, name in _HUB_FILES.items():
        if format not in files:
            continue
        model = onnx.load(bundle / files[format])
        for node in model.graph.node:
            node.output[:] = [VECTORS if output == "logits" else output for output in node.output]
            node.input[:] = [VECTORS if value == "logits" else value for value in node.input]
        for output in model.graph.output:
            output.name = VECTORS if output.name == "logits" else output.name
        onnx.save(model, directory / "onnx" / name)


def _copy(model: PreTrainedModel) -> PreTrainedModel:
    return copy.deepcopy(model).cpu().float().eval()


def _save(module: _Part, example: Example, outputs: Sequence[str], path: Path) -> None:
    """Writes a module as ONNX, two files for a large one, with the names and the dynamic axes of its inputs."""
    values, axes = zip(*example.values(), strict=True)
    shapes: tuple[Any, ...] = axes if module.named is None else (*axes[: module.named], axes[module.named :])
    # The cache entry of an exported LSTM would fix the length in the next export.
    torch.ops.aten.lstm.input._dispatch_cache.clear()
    # The exporter prints its progress, warns, and shows the graph where it fails.
    names = ("torch.onnx", "torch.export", "torch.fx.experimental.symbolic_shapes", "onnxscript", "onnx_ir")
    hidden = io.StringIO()
    with (
        logging_only_errors(*names), warnings.catch_warnings(), contextlib.redirect_stdout(hidden),
        contextlib.redirect_stderr(hidden), torch.no_grad(),
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module, values, dynamo=True, opset_version=OPSET, input_names=list(example), output_names=list(outputs),
            dynamic_shapes=shapes, verbose=False,
        )  # fmt: skip
    assert program is not None
    _keep_residuals_apart(program)
    for node in program.model.graph.all_nodes():  # They would show the directories of this machine.
        node.metadata_props.pop("pkg.torch.onnx.stack_trace", None)
    size = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
    program.save(str(path), external_data=size > EXTERNAL_DATA_BYTES)


def _keep_residuals_apart(program: torch.onnx.ONNXProgram) -> None:
    """Makes each `Add` before a `LayerNormalization` a `Sum`, the same operation.

    ONNX Runtime would fuse the two into `SkipLayerNormalization`, whose kernel for the CPU takes three times as long as
    both (version 1.31, 128 tokens of 768).
    """
    for node in program.model.graph:
        readers = [reader.op_type for output in node.outputs for reader, _ in output.uses()]
        if node.op_type == "Add" and "LayerNormalization" in readers:
            node.op_type = "Sum"


# The axis of the texts: transformers.js makes the empty caches by this name, and those of other axes have no row.
ROWS = "batch_size"
# Sizes of the example, none of them 0, 1, another one or a sum of two, which the exporter would treat as fixed.
BATCH, TOKENS, CACHED, SOURCE, CACHED_SOURCE = 2, 5, 3, 13, 4


def export_mask_predictor(model: PreTrainedModel, path: Path) -> None:
    """Writes two files: a decoder to `path`, and its encoder beside it, which runs once for all rounds.

    The encoder has the inputs `input_ids [B, L]` and `attention_mask [B, L]`, and the outputs `last_hidden_state
    [B, L, H]` and `length_logits [B, M+1]`, of the lengths of a target from 0. The decoder has the inputs `input_ids
    [B, T]`, `attention_mask [B, T]`, `encoder_hidden_states [B, L, H]`, `encoder_attention_mask [B, L]` and
    `positions [n]`, counted over `[B * T]`, and the output `logits [n, V]`.
    """
    exported = _copy(model)
    exported.set_attn_implementation("eager")
    encoder = _encoder_example(exported)
    _save(_MaskedEncoder(exported), encoder, ["last_hidden_state", "length_logits"], encoder_file(path))
    read = torch.ones(BATCH, TOKENS, dtype=torch.long)
    read[1, -2:] = 0
    axes = {0: ROWS, 1: "length"}
    example = {
        "input_ids": (_tokens(exported, TOKENS), axes), "attention_mask": (read, axes), **_states_example(exported),
        "encoder_attention_mask": encoder["attention_mask"], "positions": (torch.tensor([1, 3, 6]), {0: "tokens"}),
    }  # fmt: skip
    _save(_MaskedDecoder(exported), example, ["logits"], path)


class _Encoder(_Part):
    """The encoder of an encoder-decoder."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return self.model.get_encoder()(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class _MaskedEncoder(_Encoder):
    """The encoder, with the prediction of lengths."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        states = super().forward(input_ids, attention_mask)
        return states, self.model.model.predict_lengths(states, attention_mask)


class _MaskedDecoder(_Part):
    """The decoder, with the head over the vocabulary at some positions."""

    def forward(
        self, input_ids: Tensor, mask: Tensor, states: Tensor, source_mask: Tensor, positions: Tensor
    ) -> Tensor:
        output = self.model.model(
            attention_mask=source_mask, decoder_input_ids=input_ids, decoder_attention_mask=mask,
            encoder_outputs=(states,),
        )  # fmt: skip
        chosen = output.last_hidden_state.flatten(0, 1).index_select(0, positions)
        logits: Tensor = self.model.lm_head(chosen) + self.model.final_logits_bias
        return logits


ONNX_END = 2**62  # Behind the last element of any axis.


def export_generator(model: PreTrainedModel, path: Path) -> None:
    """Writes a model that writes text as float32 ONNX: one file, and for an encoder-decoder its encoder beside it.

    A causal model has the inputs `input_ids [B, S]`, `attention_mask [B, P+S]`, `position_ids [B, S]` if its `forward`
    takes them, and `past_key_values.{i}.key|value [B, A, P, D]`, and the outputs `logits [B, S, V]` and
    `present.{i}.key|value [B, A, P+S, D]`. There may be no tokens in the cache, P = 0, so that one file serves the
    first and the later steps.

    A decoder has `input_ids [B, S]`, `encoder_attention_mask [B, L]`, `encoder_hidden_states [B, L, H]`, and the caches
    `past_key_values.{i}.decoder.key|value [B, A, P, D]` and `past_key_values.{i}.encoder.key|value [B, A, C, D]`, of
    which the latter has none of the source, C = 0, or all of it, C = L. The keys and values of the source that the
    cache lacks are computed, which needs no branch. The optional input `past_padding [B]`, the first places of each
    row's own caches that are padding, lets texts that began at different steps be read together. Its encoder has
    `input_ids [B, L]` and `attention_mask [B, L]`, and the output `last_hidden_state [B, L, H]`.

    Raises:
        UserError: for a model without such caches, or whose caches are of several shapes.
    """
    exported = _copy(model)
    exported.set_attn_implementation("eager")
    if exported.config.is_encoder_decoder:
        _save(_Encoder(exported), _encoder_example(exported), ["last_hidden_state"], encoder_file(path))
    layers, heads, width = _probe_caches(exported)
    if exported.config.is_encoder_decoder:
        example = {
            "input_ids": (_tokens(exported, TOKENS), {0: ROWS, 1: "length"}),
            "encoder_attention_mask": _encoder_example(exported)["attention_mask"], **_states_example(exported),
            PADDING: (torch.arange(BATCH), {0: ROWS}),
        }  # fmt: skip
        module: _Part = _Decoder(exported, layers)
        kinds = {".decoder": (CACHED, "past"), ".encoder": (CACHED_SOURCE, "past_source")}
    else:
        example = _causal_example(exported)
        module, kinds = _Causal(exported, list(example)), {"": (CACHED, "past")}
    caches = {
        f"{PAST}{layer}{kind}.{part}": (torch.zeros(BATCH, heads, length, width), {0: ROWS, 2: axis})
        for layer in range(layers)
        for kind, (length, axis) in kinds.items()
        for part in ("key", "value")
    }
    outputs = ["logits", *(PRESENT + name.removeprefix(PAST) for name in caches)]
    _save(module, example | caches, outputs, path)
    if isinstance(module, _Decoder):
        _let_padding_be_left_out(path, is_read=module.reads_padding)
    else:
        _let_logits_be_left_out(path)


def takes_positions(model: PreTrainedModel) -> bool:
    """Returns whether the positions of tokens are an input of a causal model, so that padding may be on the left."""
    return "position_ids" in inspect.signature(model.forward).parameters


class _Causal(_Part):
    """A causal model as a function of positional inputs, the caches last, as the exporter requires."""

    named = 0

    def __init__(self, model: PreTrainedModel, names: Sequence[str]) -> None:
        super().__init__(model)
        self.names = names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self.names, inputs[: len(self.names)], strict=True))
        cache = DynamicCache(_pair(inputs[len(self.names) :]))
        output = self.model(**named, past_key_values=cache, use_cache=True)
        return output.logits, *_tensors(cache)


class _Decoder(_Part):
    """The decoder and the head of an encoder-decoder, whose caches of the source are completed."""

    named = 4

    def __init__(self, model: PreTrainedModel, layers: int) -> None:
        super().__init__(model)
        self.layers = layers
        self.positions, decoder = _Positions(), model.get_decoder()
        table = getattr(decoder, "embed_positions", None)
        # Positions of T5 are relative to each other, those of BART are rows of a table.
        self.reads_padding = hasattr(model.config, "relative_attention_num_buckets")
        if table is not None and "position_ids" in inspect.signature(table.forward).parameters:
            self.positions.table, decoder.embed_positions, self.reads_padding = table, self.positions, True

    def forward(
        self, input_ids: Tensor, mask: Tensor, states: Tensor, padding: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        own = [cache for i in range(0, len(caches), 4) for cache in caches[i : i + 2]]
        source = [cache for i in range(2, len(caches), 4) for cache in caches[i : i + 2]]
        cache = EncoderDecoderCache(DynamicCache(_pair(own)), DynamicCache(_pair(source)))
        # The attention adds what it projects to the cache as long as that is said to be incomplete.
        cache.is_updated = dict.fromkeys(range(self.layers), False)
        # Of [B, 1, 1, L] only the values are read; of [B, L] the length would have to be that of the states below.
        hidden = (1.0 - mask[:, None, None].to(states.dtype)) * torch.finfo(states.dtype).min
        past, total = own[0].shape[2], own[0].shape[2] + input_ids.shape[1]
        places, own_places = torch.arange(total), torch.arange(past, total)
        is_read = (places <= own_places[:, None]) & (places >= padding[:, None, None, None])  # [B, 1, S, P+S]
        self.positions.choose(total, (own_places - padding[:, None]).clamp(min=0))
        output = self.model(
            encoder_outputs=(states[:, source[0].shape[2] :],), attention_mask=hidden, decoder_input_ids=input_ids,
            decoder_attention_mask=torch.where(is_read, 0.0, torch.finfo(states.dtype).min), past_key_values=cache,
            use_cache=True,
        )  # fmt: skip
        presents = zip(
            _pair(_tensors(cache.self_attention_cache)), _pair(_tensors(cache.cross_attention_cache)), strict=True
        )
        return output.logits, *(tensor for pairs in presents for pair in pairs for tensor in pair)


class _Positions(nn.Module):
    """The embeddings of the positions of a decoder, other ones for each row, in the place of those of the model."""

    table: nn.Module

    def choose(self, total: int, places: Tensor) -> None:
        """Sets the positions `[B, S]`, which are below `total`, for the next call."""
        self.total, self.places = total, places

    def forward(self, ids: Any, *arguments: Any, **options: Any) -> Tensor:
        embedded: Tensor = self.table(ids, position_ids=torch.arange(self.total)).reshape(self.total, -1)
        return embedded[self.places]


def _pair(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def _tensors(cache: DynamicCache) -> list[Tensor]:
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]


def _tokens(model: PreTrainedModel, length: int) -> Tensor:
    size = model.config.get_text_config(decoder=True).vocab_size
    return torch.randint(0, size, (BATCH, length), generator=torch.Generator().manual_seed(0))


def _causal_example(model: PreTrainedModel) -> dict[str, Any]:
    mask = torch.ones(BATCH, CACHED + TOKENS, dtype=torch.long)
    mask[1, :2] = 0
    example: dict[str, Any] = {
        "input_ids": (_tokens(model, TOKENS), {0: ROWS, 1: "length"}),
        "attention_mask": (mask, {0: ROWS, 1: "past + length"}),
    }
    if takes_positions(model):
        positions = torch.arange(CACHED, CACHED + TOKENS).repeat(BATCH, 1)
        example["position_ids"] = (positions, {0: ROWS, 1: "length"})
    return example


def _encoder_example(model: PreTrainedModel) -> dict[str, Any]:
    mask = torch.ones(BATCH, SOURCE, dtype=torch.long)
    mask[1, -2:] = 0
    axes = {0: ROWS, 1: "source"}
    return {"input_ids": (_tokens(model, SOURCE), axes), "attention_mask": (mask, axes)}


def _states_example(model: PreTrainedModel) -> dict[str, Any]:
    states = torch.zeros(BATCH, SOURCE, model.config.hidden_size)
    return {"encoder_hidden_states": (states, {0: ROWS, 1: "source"})}


def _probe_caches(model: PreTrainedModel) -> tuple[int, int, int]:
    """Returns the layers with caches, of a decoder those of its own tokens, and the heads and the width of all caches.

    Raises:
        UserError: for other states than the keys and values `[B, A, S, D]` of all tokens, and for several shapes.
    """
    tokens, is_pair = _tokens(model, TOKENS), model.config.is_encoder_decoder
    targets = {"decoder_input_ids": tokens} if is_pair else {}
    with torch.no_grad():
        cache = model(input_ids=tokens, use_cache=True, **targets).get("past_key_values")
    cache = getattr(cache, "self_attention_cache", None) if is_pair else cache
    keys = [getattr(layer, "keys", None) for layer in getattr(cache, "layers", ())]
    if not keys or any(key is None or key.ndim != 4 or key.shape[2] != TOKENS for key in keys):
        raise UserError(
            f"got a {model.config.model_type}, which keeps other states than the keys and values of all tokens, "
            "expected a layout such as GPT-2, Llama, OPT, T5 or BART: set export.enabled=false"
        )
    shapes = sorted({(key.shape[1], key.shape[3]) for key in keys if key is not None})
    if len(shapes) > 1:
        raise UserError(
            f"got layers with caches of {shapes[0]} and {shapes[1]} (heads, width), expected one shape: set "
            "export.enabled=false"
        )
    return len(keys), *shapes[0]


def _let_padding_be_left_out(path: Path, *, is_read: bool) -> None:
    """Makes the input `past_padding` optional, so that other runtimes need not know it: no row is padded then.

    Args:
        is_read: False makes it a constant, for a decoder whose positions do not depend on it.
    """
    model = onnx.load(str(path), load_external_data=False)
    [given] = [value for value in model.graph.input if value.name == PADDING]
    given.type.tensor_type.shape.dim[0].dim_param = "padded_rows"  # One for all rows, or one for each.
    if not is_read:
        model.graph.input.remove(given)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, dtype=np.int64), PADDING))
    rows, expanded = f"{PADDING}_rows", f"{PADDING}_of_rows"
    for node in model.graph.node:
        node.input[:] = [expanded if name == PADDING else name for name in node.input]
    # ONNX Runtime plans memory by the names of axes, which a default of one row would contradict.
    model.graph.node.insert(0, helper.make_node("Expand", [PADDING, rows], [expanded], name=expanded))
    model.graph.node.insert(0, helper.make_node("Shape", ["input_ids"], [rows], name=rows, start=0, end=1))
    onnx.save(model, str(path))


def _let_logits_be_left_out(path: Path) -> None:
    """Gives a file the optional input `num_logits_to_keep`, the number of last tokens with logits; 0 for all.

    Only the last token of a prompt needs logits, and the head is half of all operations of a small model.
    """
    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    producers = {output: node for node in graph.node for output in node.output}
    head = producers["logits"]
    while head.op_type != "MatMul":
        if head.input[0] not in producers:
            return
        head = producers[head.input[0]]
    for name, values in {KEPT_LOGITS: 0, f"{KEPT_LOGITS}_axis": [1], f"{KEPT_LOGITS}_end": [ONNX_END]}.items():
        graph.initializer.append(numpy_helper.from_array(np.array(values, dtype=np.int64), name))
    # A constant that is an input as well may be given or not.
    graph.input.append(helper.make_tensor_value_info(KEPT_LOGITS, TensorProto.INT64, []))
    first, states = f"{KEPT_LOGITS}_first", f"{KEPT_LOGITS}_states"
    place = list(graph.node).index(head)
    nodes = [
        helper.make_node("Neg", [KEPT_LOGITS], [f"{first}_place"]),
        helper.make_node("Reshape", [f"{first}_place", f"{KEPT_LOGITS}_axis"], [first]),  # From [] to [1].
        helper.make_node("Slice", [head.input[0], first, f"{KEPT_LOGITS}_end", f"{KEPT_LOGITS}_axis"], [states]),
    ]
    for number, node in enumerate(nodes):
        node.name = f"{KEPT_LOGITS}_{number}"
        graph.node.insert(place + number, node)
    head.input[0] = states
    onnx.save(model, str(path))


def export_model(
    model: PreTrainedModel,
    path: Path,
    *,
    tokenizer: PreTrainedTokenizerBase,
    generates: bool,
    with_states: bool = False,
) -> None:
    """Writes a model as float32 ONNX, with caches if it writes text (`generates`), `with_states` as `export_onnx` does.

    One that fills the masks of targets has an encoder beside it.
    """
    if fills_targets(model):
        export_mask_predictor(model, path)
    elif generates:
        export_generator(model, path)
    else:
        export_onnx(model, path, tokenizer=tokenizer, with_states=with_states)


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

    eos, rules, encoding = find("eos_token_id"), describe_rules(model), tokenizer.encode("a")
    before = encoding.ids[0] if encoding.special_tokens_mask[:1] == [1] else None
    layers, heads, width = _probe_caches(_copy(model))
    length = own.max_new_tokens
    if length is None and config.is_encoder_decoder and own.max_length is not None:
        length = max(1, own.max_length - 1)  # It counts the token that a decoder starts with.
    return {
        "eos": sorted({int(token) for token in (eos if isinstance(eos, list | tuple) else [eos]) if token is not None}),
        "pad": find("pad_token_id"),
        "start": find("decoder_start_token_id") if config.is_encoder_decoder else before,
        "max_new_tokens": int(length or max_target or MAX_NEW_TOKENS),
        "positions": count_positions(model),
        "layers": layers, "heads": heads, "head_width": width,
        "positions_input": not config.is_encoder_decoder and takes_positions(model),
        **{name: rules.get(field) for name, field in RULES.items()},
        "beams": beams or rules.get("num_beams"),
    }  # fmt: skip


def count_positions(model: PreTrainedModel) -> int | None:
    """Returns the tokens that a model has positions for; None for one with relative positions, which has no limit."""
    return read_positions(model.config, writes=True)
