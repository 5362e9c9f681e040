"""The parts that tasks with labelled rows share: columns of text, texts without labels, and scores of logits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import numpy as np
import torch
from pydantic import Field

from distill.contracts import IGNORED, Batch, Examples, Items, Likelihood, Outputs, Scores, Task
from distill.data import in_memory
from distill.data.in_memory import Table, TableSplits
from distill.data.sources import STEMS
from distill.data.tables import LabelledData, LabelledText, Pool, Split
from distill.data.unlabelled import Unlabelled, UnlabelledText
from distill.edge.decode import softmax
from distill.errors import OptionError
from distill.options import show_value
from distill.tasks.class_weights import item_weights

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distill.data.batching import TokenizedExamples
    from distill.models.forward import FullPass

# A column may be called 0, which the command line passes as a number.
Columns = str | int | Sequence[str | int]
MaxLength = Annotated[int, Field(ge=3, description="at least 3 tokens")]
Share = Annotated[float, Field(gt=0, lt=1, description="a share between 0 and 1")]
Amount = Annotated[int, Field(ge=1)]
CALIBRATION_BINS = 15


def labelled_text(
    *,
    name: str,
    text: Columns,
    label: Columns,
    data: Table | TableSplits | str | Path | None = None,
    train: Table | None = None,
    dev: Table | None = None,
    test: Table | None = None,
    data_dir: str | Path | None = None,
    splits: Mapping[str, Sequence[str]] | None = None,
    dev_fraction: float = 0.1,
    train_examples: int | None = None,
    dev_examples: int | None = None,
    label_names: tuple[str, ...] | None = None,
    regression: bool = False,
    hub_id: str | None = None,
    builtin: bool = False,
) -> LabelledText:
    """The source of a task's rows.

    Raises:
        OptionError: for more than two columns of text.
        UserError: for data of a type that cannot be read.
    """
    columns, labels = (
        (str(names),) if isinstance(names, str | int) else tuple(map(str, names)) for names in (text, label)
    )
    if not 1 <= len(columns) <= 2:
        raise OptionError("text", show_value(columns), "one column or the two of a pair")
    if isinstance(data, str | Path):
        data_dir, data = data, None
    return LabelledText(
        name=name,
        text=columns,
        label=labels,
        tables=in_memory.tables(data, {"train": train, "dev": dev, "test": test}, text=columns, label=labels[0]),
        data_dir=None if data_dir is None else str(data_dir),
        stems=split_stems(splits),
        dev_fraction=dev_fraction,
        train_examples=train_examples,
        dev_examples=dev_examples,
        label_names=label_names,
        regression=regression,
        hub_id=hub_id,
        builtin=builtin,
    )


def split_stems(splits: Mapping[str, Sequence[str]] | None) -> dict[str, tuple[str, ...]]:
    """Returns the possible names of each split: the usual ones, and in their place those of `splits`."""
    return {**STEMS, **{split: tuple(names) for split, names in (splits or {}).items()}}


def unlabelled_text(source: Unlabelled | None, labelled: LabelledText) -> UnlabelledText | None:
    """The source of texts without labels for a task with these rows."""
    return None if source is None else UnlabelledText(source, text=labelled.text, label=labelled.label)


class Labelled(Protocol):
    """A source of labelled rows."""

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads every split."""
        ...


def read_rows(labelled: Labelled, unlabelled: UnlabelledText | None, share: float, cache_dir: Path) -> LabelledData:
    """Reads the splits, and the texts without labels if there are any, with their share of every step."""
    data = labelled.read(cache_dir)
    data = replace(data, pool=replace(data.pool, share=share))
    return data if unlabelled is None else unlabelled.add_to(data)


def encode_rows(
    splits: LabelledData,
    tokenizer: "PreTrainedTokenizerBase",
    max_length: int,
    cache_dir: Path | None,
    *,
    no_label: float = IGNORED,
) -> "dict[str, Examples]":
    """Tokenizes `train`, mixed with the pool if there is one, and the splits that are scored, dev first.

    The texts of the pool have the label `no_label`.
    """
    from distill.data import token_cache
    from distill.data.batching import TokenizedExamples

    def encode(name: str, split: Split) -> TokenizedExamples:
        tokens = token_cache.tokenize_split(split, tokenizer, max_length, cache_dir)
        return TokenizedExamples(tokens, tokenizer, per_example={"labels": split.labels})

    dtype = splits.splits["train"].labels.dtype
    return encode_splits(splits, encode, lambda pool: pool.split(no_label, dtype))


def encode_splits(
    splits: LabelledData, encode: "Callable[[str, Any], TokenizedExamples]", unlabelled: Callable[[Pool], object]
) -> "dict[str, Examples]":
    """Tokenizes `train`, mixed with the pool if there is one, and the splits that are scored, dev first.

    Args:
        encode: tokenizes a split, which has a name for messages.
        unlabelled: returns the texts of the pool, in a random order, as a split.
    """
    from distill.data.mixing import MixedExamples

    pool, train = splits.pool, encode("train", splits.splits["train"])
    scored = {name: encode(name, split) for name, split in splits.scored().items()}
    if not len(pool):
        return {"train": train, **scored}
    mixed = encode("task.unlabelled", unlabelled(pool.shuffled()))
    return {"train": MixedExamples(train, mixed, share=pool.share, record=pool.record()), **scored}


def select_examples(batch: Batch, likelihood: Likelihood, class_weights: Sequence[float] | None = None) -> Items:
    """The items of a batch whose items are its examples."""
    labels = batch["labels"]
    labelled = ~labels.isnan() if likelihood == "gaussian" else labels != IGNORED
    row = torch.arange(len(labels), device=labels.device)
    weights = item_weights(class_weights, labels)
    return Items(batch=batch, row=row, labels=labels, labelled=labelled, likelihood=likelihood, weights=weights)


def run_whole_model(model: "PreTrainedModel", batch: Batch, needs: frozenset[str]) -> "FullPass":
    """Runs a model whose output is `logits [B, C]`."""
    from distill.models.forward import FullPass, run_model

    output = run_model(model, batch, needs)
    return FullPass(output, output.logits)


def score_logits(outputs: Outputs) -> "dict[str, Tensor]":
    """The logits `[n, C]`, float32."""
    if outputs.logits is None:
        raise ValueError("got outputs without logits, expected [n, C] at the items")
    return {"logits": outputs.logits.float()}


def probability_diff(scores: Scores, reference: Scores) -> float:
    """The largest difference of the probabilities of two models' `logits [n, C]`."""
    probabilities, expected = (softmax(of.columns["logits"].astype(np.float64)) for of in (scores, reference))
    return float(np.abs(probabilities - expected).max())


def calibration_error(scores: Scores) -> float:
    """The expected calibration error of `logits [n, C]` (Guo et al., arXiv 1706.04599, equation 3)."""
    probabilities = softmax(scores.columns["logits"].astype(np.float64))
    return expected_calibration_error(probabilities.max(axis=-1), probabilities.argmax(axis=-1) == scores.labels)


def expected_calibration_error(confidences: np.ndarray, correct: np.ndarray) -> float:
    """The expected calibration error of predictions with these probabilities `[n]`, `correct [n]` are the right ones.

    The predictions are put into `CALIBRATION_BINS` bins of equal width by their probability. The error is the mean over
    them of the difference of accuracy and mean probability in their bin.
    """
    bins = np.minimum((confidences * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, weights=correct - confidences, minlength=CALIBRATION_BINS)
    return float(np.abs(gaps).sum() / len(confidences))


def compute_metrics(functions: Mapping[str, Callable[[], float]], names: Sequence[str]) -> dict[str, float]:
    """The named metrics as floats."""
    return {name: float(functions[name]()) for name in names}


def compare_with_constant(task: Task, scores: Scores, constant: np.ndarray, name: str) -> str | None:
    """Compares the task's metric with that of the logits `constant [N, C]`, which `name` describes.

    Returns the comparison in words if the scores are worse, else None.
    """
    other = replace(scores, columns={"logits": constant})
    value, constant_value = (task.metrics(each)[task.metric] for each in (scores, other))
    if value >= constant_value:
        return None
    return f"has {task.metric} {value:.3f} on dev, and {name} has {constant_value:.3f}"


def is_constant(values: np.ndarray) -> bool:
    """Returns whether all values are the same."""
    return bool(np.ptp(values) == 0)
