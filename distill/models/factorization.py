"""Narrow embeddings and a projection to the width of the layers, in place of a teacher's embeddings (ALBERT).

ALBERT (arXiv 1909.11942, section 3.1) normalizes its embeddings at their own width E, a BERT at the width H of its
layers. The two agree exactly if the teacher's normalized embeddings are of rank E - 1 at most.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

TOKENS = 30_000  # Of the vocabulary at most, at which the projection is fitted.
LENGTH = 64  # Of the sequences that these tokens are read in.
PENALTY = 1e-6  # Of the ridge regression, a share of the mean square of a feature.


class _FirstLayer(Exception):
    """Ends a forward pass at the first layer, with its input."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states


@dataclass(frozen=True)
class EmbeddingTables:
    """The tables whose rows a model adds up and then normalizes.

    Attributes:
        words: `[V, W]`.
        positions: `[P, W]` from position 0 on, None for a model with other positions.
        types: of the token types `[T, W]`, None for a model without them.
        norm: the norm of the sums, None for a model without one.
    """

    words: nn.Embedding
    positions: nn.Embedding | None
    types: nn.Embedding | None
    norm: nn.LayerNorm | None

    @classmethod
    def of(cls, model: PreTrainedModel) -> "EmbeddingTables":
        """Returns the tables of a model; those of its positions and types stand beside its word embeddings."""
        words = model.get_input_embeddings()
        assert isinstance(words, nn.Embedding)
        name = next(name for name, module in model.named_modules() if module is words)
        beside = dict(model.get_submodule(name.rpartition(".")[0]).named_children())
        tables = {
            key: table
            for key in ("position_embeddings", "token_type_embeddings")
            if isinstance(table := beside.get(key), nn.Embedding) and table.embedding_dim == words.embedding_dim
        }
        norms = [module for module in beside.values() if isinstance(module, nn.LayerNorm)]
        return cls(
            words, tables.get("position_embeddings"), tables.get("token_type_embeddings"), norms[0] if norms else None
        )

    @property
    def first_position(self) -> int:
        """The row of position 0: RoBERTa and its relatives count from the one behind the padding's."""
        reserved = None if self.positions is None else self.positions.padding_idx
        return 0 if reserved is None else reserved + 1

    def position_rows(self) -> Tensor | None:
        """Returns the rows `[P, W]` from position 0 on."""
        return None if self.positions is None else _rows(self.positions)[self.first_position :]

    def add_up(self, ids: Tensor) -> Tensor:
        """Returns the sums `[n, L, W]` for `ids [n, L]` before the norm."""
        sums = _rows(self.words, ids)
        if (rows := self.position_rows()) is not None:
            sums = sums + rows[: ids.shape[1]]
        return sums if self.types is None else sums + _rows(self.types)[0]


@torch.no_grad()
def factorize_embeddings(
    teacher: PreTrainedModel,
    student: PreTrainedModel,
    *,
    first_layer: nn.Module,
    projection: nn.Linear,
    method: Literal["svd", "ridge"],
) -> list[tuple[Tensor, Tensor]]:
    """Starts the student's embeddings and its `projection` from the teacher's embeddings.

    The tables are projected onto the principal directions of the normalized embeddings, turned so that the student's
    norm leaves them as they are. Tables of the teacher's own width are copied, with their norm.

    Args:
        first_layer: of the teacher, whose inputs the projected embeddings are to equal.
        method: `svd` projects back by the same directions with one scale, `ridge` by a ridge regression.

    Returns:
        The student's parameters that changed, each with the teacher's that it was made from.
    """
    source, target = EmbeddingTables.of(teacher), EmbeddingTables.of(student)
    width = target.words.embedding_dim
    ids = _sample_tokens(teacher, source, target)
    back = None
    if width < source.words.embedding_dim:
        directions = _principal_directions(source.add_up(ids).flatten(0, 1), width - 1)  # [W, E - 1]
        back = _zero_mean_basis(width) @ directions.T  # [E, W]
    pairs = _copy_tables(source, target, back)
    wanted = _read_first_inputs(teacher, first_layer, ids).flatten(0, 1)
    given = student.base_model.embeddings.eval()(ids).flatten(0, 1)
    if method == "ridge" or back is None or back.shape[1] != wanted.shape[1]:
        weight, bias = fit_ridge(given, wanted)
    else:
        weight, bias = _fit_scale(given, wanted, back)
    projection.weight.copy_(weight.T)
    projection.bias.copy_(bias)
    return [*pairs, *((parameter, source.words.weight) for parameter in projection.parameters())]


def _sample_tokens(teacher: PreTrainedModel, source: EmbeddingTables, target: EmbeddingTables) -> Tensor:
    """Returns different tokens of the vocabulary as sequences `[n, L]`, the same in every call."""
    limits = [len(rows) for rows in (source.position_rows(), target.position_rows()) if rows is not None]
    length = min(LENGTH, *limits)
    order = torch.randperm(source.words.num_embeddings, generator=torch.Generator().manual_seed(0))
    order = order[order != teacher.config.pad_token_id][:TOKENS]
    length = min(length, len(order))
    return order[: len(order) // length * length].view(-1, length)


def _read_first_inputs(teacher: PreTrainedModel, first_layer: nn.Module, ids: Tensor) -> Tensor:
    """Returns the inputs `[n, L, H]` of the teacher's first layer, in float32."""

    def stop(module: nn.Module, arguments: tuple[Tensor, ...], options: dict[str, Tensor]) -> None:
        raise _FirstLayer(arguments[0] if arguments else options["hidden_states"])

    is_training = teacher.training
    handle = first_layer.register_forward_pre_hook(stop, with_kwargs=True)
    inputs = []
    try:
        teacher.eval()
        for part in ids.to(teacher.device).split(LENGTH):
            try:
                teacher.base_model(input_ids=part, attention_mask=torch.ones_like(part))
            except _FirstLayer as reached:
                inputs.append(reached.states.float().cpu())
    finally:
        handle.remove()
        teacher.train(is_training)
    return torch.cat(inputs)


def _principal_directions(rows: Tensor, number: int) -> Tensor:
    """Returns orthonormal directions `[W, number]` that preserve most of the normalized `rows [n, W]`."""
    normalized = F.layer_norm(rows, rows.shape[1:]).double()
    _, directions = torch.linalg.eigh(normalized.T @ normalized)  # Ascending.
    directions = directions[:, -number:]
    centred: Tensor = (directions - directions.mean(dim=0)).float()  # The mean is 0 but for rounding errors.
    return centred


def _zero_mean_basis(width: int) -> Tensor:
    """Returns orthonormal columns `[E, E - 1]` whose elements have the mean 0, which a norm would subtract."""
    columns = torch.cat([torch.ones(width, 1), torch.eye(width)[:, : width - 1]], dim=1)
    basis: Tensor = torch.linalg.qr(columns.double())[0][:, 1:].float()
    return basis


def _rows(table: nn.Embedding, ids: Tensor | slice = slice(None)) -> Tensor:
    """Returns rows of a table in float32, all by default, on the CPU."""
    chosen = ids.to(table.weight.device) if isinstance(ids, Tensor) else ids
    return table.weight.detach()[chosen].float().cpu()


def _copy_tables(source: EmbeddingTables, target: EmbeddingTables, back: Tensor | None) -> list[tuple[Tensor, Tensor]]:
    """Projects the source's tables by `back [E, W]`, or copies them and their norm."""
    pairs: list[tuple[Tensor, Tensor]] = []
    tables = ((target.words, source.words), (target.positions, source.positions), (target.types, source.types))
    for own, other in tables:
        if own is None or other is None:
            continue
        rows = _rows(other)[source.first_position if other is source.positions else 0 :]
        own.weight.copy_(rows if back is None else rows @ back.T)
        pairs.append((own.weight, other.weight))
    for own, other in tables[1:]:
        if own is not None and other is None:  # The teacher's embeddings do not depend on them.
            own.weight.zero_()
    if back is None and source.norm is not None and target.norm is not None:
        own_norm = dict(target.norm.named_parameters())
        for name, tensor in source.norm.named_parameters():  # ModernBERT's has no bias.
            own_norm[name].copy_(tensor)
            pairs.append((own_norm[name], tensor))
    return pairs


def fit_ridge(given: Tensor, wanted: Tensor, *, penalty: float = PENALTY) -> tuple[Tensor, Tensor]:
    """Returns weight `[E, H]` and bias `[H]` of the ridge regression of `wanted [n, H]` on `given [n, E]`.

    Args:
        penalty: of the squared weights, a share of the mean sum of squares of a feature.
    """
    features, targets = given.double(), wanted.double()
    feature_mean, target_mean = features.mean(dim=0), targets.mean(dim=0)
    features = features - feature_mean
    gram = features.T @ features
    gram.diagonal().add_(penalty * gram.diagonal().mean().clamp_min(1e-12))  # Features may be constant.
    weight = torch.linalg.solve(gram, features.T @ (targets - target_mean))
    return weight.float(), (target_mean - feature_mean @ weight).float()


def _fit_scale(given: Tensor, wanted: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """Returns `scale * back [E, H]` and the bias `[H]` that fit best."""
    features, target_mean = given - given.mean(dim=0), wanted.mean(dim=0)
    projected = features @ back
    scale = (projected * (wanted - target_mean)).sum() / projected.square().sum()
    weight = scale * back
    return weight, target_mean - given.mean(dim=0) @ weight
