"""Evaluation of a model on a split: the scores that a task's metrics are computed from."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.contracts import TASK_ID, Batch, Items, Learnable, Loader, Outputs, Scores
from distill.models.forward import to_device
from distill.tasks.scoring import Scoring

_NO_OUTPUTS = frozenset[str]()
Columns = dict[str, Tensor]


def score_batch(
    model: PreTrainedModel,
    task: Learnable,
    scoring: Scoring,
    batch: Batch,
    *,
    reference: PreTrainedModel | None = None,
) -> tuple[Columns, Columns]:
    """Scores one batch: the columns of the scoring, and `labels [n]` and `example_id [n]`, all on the CPU."""
    items = task.select(batch)
    outputs = task.run(model, batch, items, _NO_OUTPUTS)
    reference_outputs = None
    if reference is not None:
        reference_batch = to_device(batch, reference.device)
        reference_items = task.select(reference_batch)
        reference_outputs = task.run(reference, reference_batch, reference_items, _NO_OUTPUTS)
    return score_items(scoring, outputs, items, reference_outputs)


def score_items(
    scoring: Scoring, outputs: Outputs, items: Items, reference: Outputs | None = None
) -> tuple[Columns, Columns]:
    """Scores the outputs of a model at the items of one batch, with the results of `score_batch`.

    Logits over a vocabulary are computed and scored in chunks of `outputs.chunk_size` items.
    """
    chunks = []
    for part in items.parts(outputs.chunk_size):
        columns = scoring.score(outputs.at(part), part)
        if reference is not None:
            columns |= scoring.compare(columns, reference.at(part))
        chunks.append({name: column.cpu() for name, column in columns.items()})
    columns = {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}
    number = {TASK_ID: items[TASK_ID].cpu()} if TASK_ID in items.batch else {}
    return columns, {"labels": items.labels.cpu(), "example_id": items.example_id().cpu(), **number}


def concatenate(batches: Iterable[tuple[Columns, Columns]]) -> Scores:
    """Joins the scores of several batches in their order, those of several tasks each by itself."""
    by_task: dict[int | None, list[tuple[Columns, Columns]]] = {}
    for columns, identity in batches:
        number = int(identity[TASK_ID][0]) if TASK_ID in identity else None
        by_task.setdefault(number, []).append((columns, identity))
    if None in by_task:
        return _concatenate(by_task[None])
    return Scores.of_tasks({number: _concatenate(of_task) for number, of_task in by_task.items() if number is not None})


def _concatenate(batches: list[tuple[Columns, Columns]]) -> Scores:
    columns, identities = zip(*batches, strict=True)

    def joined(parts: tuple[Columns, ...], name: str) -> np.ndarray:
        return torch.cat([part[name] for part in parts]).numpy()

    return Scores(
        {name: joined(columns, name) for name in columns[0]},
        joined(identities, "labels"),
        joined(identities, "example_id"),
    )


@torch.inference_mode()
def evaluate(
    model: PreTrainedModel,
    task: Learnable,
    scoring: Scoring,
    loader: Iterable[list[Batch]],
    *,
    reference: PreTrainedModel | None = None,
) -> Scores:
    """Scores a whole split on the model's device, in the order of the loader; the model's mode is restored.

    Args:
        loader: yields lists of batches.
        reference: a teacher whose outputs the task compares the model's with.
    """
    was_training = model.training
    model.eval()
    batches = itertools.chain.from_iterable(loader)
    scores = concatenate(
        [score_batch(model, task, scoring, to_device(batch, model.device), reference=reference) for batch in batches]
    )
    model.train(was_training)
    return scores


def evaluate_splits(
    model: PreTrainedModel,
    task: Learnable,
    scoring: Scoring,
    loaders: Mapping[str, Loader],
    *,
    reference: PreTrainedModel | None = None,
) -> dict[str, Scores]:
    """Scores every split but `train` as `evaluate`, each in the order of its examples."""
    scores = {
        name: evaluate(model, task, scoring, loader, reference=reference).by_example()
        for name, loader in loaders.items()
        if name != "train"
    }
    return fit_decoding(scoring, scores)


def fit_decoding(scoring: Scoring, scores: Mapping[str, Scores]) -> dict[str, Scores]:
    """Returns the scores of one model with the values of its decoder, which are chosen on dev for all splits.

    Dev itself is decoded by halves, each with the values that the other one chose, because its metrics would be too
    good with values that it chose itself.
    """
    decoding = scoring.fit_decoder(scores["dev"])
    fitted = {name: replace(split_scores, decoding=decoding) for name, split_scores in scores.items()}
    return fitted | {"dev": scoring.held_out(fitted["dev"])}


def dev_metrics(scoring: Scoring, scores: Scores) -> dict[str, float]:
    """Returns the metrics of a model's scores on dev, decoded as `fit_decoding` does."""
    return scoring.metrics(fit_decoding(scoring, {"dev": scores})["dev"])


def split_metrics(scoring: Scoring, scores: Mapping[str, Scores]) -> dict[str, float]:
    """Returns the metrics of dev under their own names, and those of every other split as `split/metric`."""
    metrics: dict[str, float] = {}
    for split, split_scores in scores.items():
        prefix = "" if split == "dev" else f"{split}/"
        metrics |= {f"{prefix}{name}": value for name, value in scoring.metrics(split_scores).items()}
    return metrics
