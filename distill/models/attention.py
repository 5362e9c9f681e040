"""Reads queries, keys and values out of a model's layers with forward hooks, only while a term needs them.

`output_attentions` is of no use here: it gives probabilities, and nothing at all with torch's fused attention.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.contracts import AttentionVectors

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
        yield lambda: recorder.vectors(int(model.config.num_attention_heads)) if found else {}
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
