"""Trains the rows of a table of embeddings that the batches read, with the same weights as the whole table.

A row that no batch reads has no gradient. AdamW (arXiv 1711.05101, algorithm 2) multiplies it by one minus learning
rate times weight decay in every step, and does nothing else: such rows are their start times a factor that they share.
A compact table has one row for all of them, which starts with ones and therefore is this factor, after any schedule and
in any average of the weights. The norm of the gradient, by which it is clipped, is the same.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.contracts import Loader
from distill.data.batching import examples_and_buckets
from distill.models.heads import find_table
from distill.training.module import DistillationModule
from distill.training.settings import TrainerSettings


@dataclass(frozen=True)
class TrainedRows:
    """The rows of a student's table of embeddings that are trained.

    Attributes:
        total: rows of the table; 0 for a student without one that is trained.
        pieces: the ids of the rows that are trained, ascending, `[n]`; None for all.
        reason: why all rows are trained.
    """

    total: int
    pieces: np.ndarray | None = None
    reason: str = ""

    def describe(self) -> str:
        """Describes the rows in a line, which is empty for a student without a table."""
        if self.pieces is not None:
            return f"{len(self.pieces):,} of {self.total:,} rows are trained, the others decay: no batch reads them"
        return f"all {self.total:,} rows are trained: {self.reason}" if self.total else ""

    def identity(self) -> dict[str, int]:
        """Returns the properties that a resumed training must share with the checkpoint."""
        return {} if self.pieces is None else {"compact_embeddings": len(self.pieces)}


def choose_rows(module: DistillationModule, train: Loader, settings: TrainerSettings) -> TrainedRows:
    """Returns the rows that are trained: those that the batches of `train` read, as far as these are known before."""
    table = find_table(module.student)
    if not isinstance(table, nn.Embedding) or not table.weight.requires_grad:
        return TrainedRows(0)
    total = table.num_embeddings
    if settings.compact_embeddings is False:
        return TrainedRows(total, reason="compact_embeddings=false")
    if settings.strategy == "fsdp" and settings.processes() > 1:
        return TrainedRows(total, reason="strategy=fsdp shards the whole table")
    if type(table) is not nn.Embedding or _count_owners(module, table.weight) > 1:
        return TrainedRows(total, reason="the output layer or another module has the same weights")
    examples, _ = examples_and_buckets(train)
    if (pieces := examples.pieces()) is None:
        return TrainedRows(total, reason="masking, targets or a stream read pieces that are not known before")
    pieces = np.union1d(pieces, _special_ids(module.student, table))
    if len(pieces) + 1 >= total:
        return TrainedRows(total, reason="the batches read them")
    return TrainedRows(total, pieces)


def _count_owners(module: nn.Module, weight: Tensor) -> int:
    return sum(weight is own for part in module.modules() for own in part.parameters(recurse=False))


def _special_ids(student: PreTrainedModel, table: nn.Embedding) -> list[int]:
    """Returns the ids that the student itself may add to a text, such as padding up to a window of attention."""
    named = [value for name, value in vars(student.config).items() if name.endswith("_token_id")]
    ids = {value for value in (*named, table.padding_idx) if isinstance(value, int)}
    return sorted(number for number in ids if 0 <= number < table.num_embeddings)


class CompactEmbedding(nn.Embedding):
    """The rows of a table that a training reads, and behind them one that stands for all others.

    No gradient reaches the last row, which starts with ones. The other rows of the table are `start` times this row. A
    state dict has the whole table. In evaluation mode all pieces can be read.

    Attributes:
        weight: `[n + 1, H]`.
        start: the whole table before the training, `[V, H]`.
        places: the row of each piece, -1 for one without a row of its own, `[V]`.

    Args:
        table: the whole table, which is not changed.
        pieces: ids of the pieces that are read, ascending, `[n]`.
    """

    def __init__(self, table: nn.Embedding, pieces: np.ndarray) -> None:
        start = table.weight.detach()
        rows = torch.from_numpy(pieces).to(start.device)
        places = torch.full((len(start),), -1, device=start.device)
        places[rows] = torch.arange(len(rows), device=start.device)
        weight = torch.cat([start[rows], torch.ones_like(start[:1])])
        padding = None if table.padding_idx is None else int(places[table.padding_idx])
        super().__init__(len(weight), weight.shape[1], padding_idx=padding, _weight=weight)
        self.start, self.places = start, places
        self.train(table.training)

    def forward(self, input: Tensor) -> Tensor:
        """Returns the embeddings `[..., H]` of pieces `[...]`."""
        places = self.places[input]
        if self.training:
            return super().forward(places)
        others = self.start[input] * self.weight[-1]
        return torch.where(places[..., None] < 0, others, super().forward(places.clamp(min=0)))

    @torch.no_grad()
    def whole(self) -> Tensor:
        """Returns the rows of all pieces, `[V, H]`."""
        table = self.start * self.weight[-1]
        table[self.places >= 0] = self.weight[:-1]
        return table

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "CompactEmbedding":
        super()._apply(fn, recurse)
        self.start, self.places = fn(self.start), fn(self.places)
        return self

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.whole()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        name = f"{prefix}weight"
        if name in state_dict:
            state_dict[name] = self._compact(state_dict[name].to(self.start))
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def _compact(self, table: Tensor) -> Tensor:
        """Returns the `weight` of a whole table of this training, whose other rows are a multiple of their start.

        Averages of the weights in a checkpoint refer to this start too. Rows of another start become the start.
        """
        is_other = self.places < 0
        start, now = self.start[is_other], table[is_other]
        products, squares = (start * now).sum(dtype=torch.float64), start.square().sum(dtype=torch.float64)
        factor = (products / squares).to(table.dtype)
        if not torch.allclose(start * factor, now, rtol=1e-5, atol=1e-12):
            factor, self.start = torch.ones_like(factor), table
        return torch.cat([table[~is_other], factor.expand(1, table.shape[1])])


@contextmanager
def compact_embeddings(module: DistillationModule, rows: TrainedRows) -> Iterator[None]:
    """Replaces the student's table by one of the `rows` that are trained, and on exit writes these into the table."""
    table = find_table(module.student)
    if rows.pieces is None or not isinstance(table, nn.Embedding):
        yield
        return
    compact = CompactEmbedding(table, rows.pieces)
    _replace(module, table, compact)
    try:
        yield
    finally:
        _replace(module, compact, table)
        table.train(compact.training).to(compact.weight.device)
        with torch.no_grad():
            table.weight.copy_(compact.whole())


def _replace(module: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replaces a module wherever it is a part, because the heads of several tasks share an encoder."""
    for part in module.modules():
        for name, child in part.named_children():
            if child is old:
                setattr(part, name, new)
