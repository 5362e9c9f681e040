"""The parts that tasks with labelled rows share: columns of text, texts without labels, and scores of logits."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypedDict, Unpack

import numpy as np
import torch
from pydantic import Field

from distill.contracts import IGNORED, Batch, Examples, Items, Likelihood, Outputs, Scores, Task
from distill.data import in_memory, readers
from distill.data.in_memory import Table, TableSplits
from distill.data.sources import STEMS, TableSource
from distill.data.tables import LabelledData, LabelledText, Split
from distill.data.unlabelled import Unlabelled, UnlabelledText
from distill.edge.classes import pad_classes
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
UNLABELLED = "task.unlabelled"  # Names the rows of the pool, which are encoded as a split.


class DataOptions(TypedDict, total=False):
    """The options of every task that say where its rows are, as in `Classification`."""

    data: Table | TableSplits | str | Path | None
    train: Table | None
    dev: Table | None
    test: Table | None
    data_dir: str | Path | None
    splits: Mapping[str, Sequence[str]] | None
    dev_fraction: float
    train_examples: int | None
    dev_examples: int | None
    hub_id: str | None
    builtin: bool


def column_names(names: Columns) -> tuple[str, ...]:
    """The names of one column or of several."""
    return (str(names),) if isinstance(names, str | int) else tuple(map(str, names))


def table_source(
    *,
    name: str,
    text: tuple[str, ...],
    label: tuple[str, ...],
    data: Table | TableSplits | str | Path | None = None,
    train: Table | None = None,
    dev: Table | None = None,
    test: Table | None = None,
    data_dir: str | Path | None = None,
    splits: Mapping[str, Sequence[str]] | None = None,
    dev_fraction: float = 0.1,
    train_examples: int | None = None,
    dev_examples: int | None = None,
    hub_id: str | None = None,
    builtin: bool = False,
    further: tuple[str, ...] = (),
    suffixes: tuple[str, ...] = readers.SUFFIXES,
    read_file: Callable[[Path, Collection[str]], readers.Table] = readers.read_file,
) -> TableSource:
    """The source of the tables with these columns.

    Args:
        further: columns that are read if they are there.
        suffixes: of the files that `read_file` reads.

    Raises:
        UserError: for data of a type that cannot be read.
    """
    if isinstance(data, str | Path):
        data_dir, data = data, None
    return TableSource(
        name=name,
        wanted=(*text, *label, *further),
        tables=in_memory.tables(data, {"train": train, "dev": dev, "test": test}, text=text, label=label[0]),
        data_dir=None if data_dir is None else str(data_dir),
        # The usual names of a split, and in their place those of `splits`.
        stems={**STEMS, **{split: tuple(names) for split, names in (splits or {}).items()}},
        dev_fraction=dev_fraction,
        train_examples=train_examples,
        dev_examples=dev_examples,
        hub_id=hub_id,
        builtin=builtin,
        suffixes=suffixes,
        read_file=read_file,
    )


def labelled_text(
    *,
    name: str,
    text: Columns,
    label: Columns,
    label_names: tuple[str, ...] | None = None,
    regression: bool = False,
    **options: Unpack[DataOptions],
) -> LabelledText:
    """The source of a task's rows.

    Raises:
        OptionError: for more than two columns of text.
        UserError: for data of a type that cannot be read.
    """
    columns, labels = column_names(text), column_names(label)
    if not 1 <= len(columns) <= 2:
        raise OptionError("text", show_value(columns), "one column or the two of a pair")
    source = table_source(name=name, text=columns, label=labels, **options)
    return LabelledText(source=source, text=columns, label=labels, label_names=label_names, regression=regression)


def unlabelled_text(source: Unlabelled | None, labelled: LabelledText) -> UnlabelledText | None:
    """The source of texts without labels for a task with these rows."""
    return None if source is None else UnlabelledText(source, text=labelled.text, label=labelled.label)


class UnlabelledRows(Protocol):
    """A source of rows without labels."""

    def add_to(self, data: LabelledData) -> LabelledData:
        """Returns the data with the rows that are in none of its splits as its pool."""
        ...


def add_unlabelled(data: LabelledData, unlabelled: UnlabelledRows | None, share: float) -> LabelledData:
    """Adds the rows without labels if there are any, with their share of every step."""
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
    """Tokenizes every split as `encode_splits`, each example as one text or a pair of texts.

    The texts of the pool have the label `no_label`.
    """
    from distill.data import token_cache
    from distill.data.batching import TokenizedExamples

    def encode(name: str, split: Split) -> TokenizedExamples:
        tokens = token_cache.tokenize_split(split, tokenizer, max_length, cache_dir)
        return TokenizedExamples(tokens, tokenizer, per_example={"labels": split.labels})

    dtype = splits.splits["train"].labels.dtype
    return encode_splits(
        splits, encode, lambda pool: replace(pool, labels=np.full(len(pool), no_label, dtype=dtype))
    )  # fmt: skip


def encode_splits(
    splits: LabelledData, encode: "Callable[[str, Any], TokenizedExamples]", unlabelled: Callable[[Any], object]
) -> "dict[str, Examples]":
    """Tokenizes `train`, mixed with the pool if there is one, and the splits that are scored, dev first.

    Args:
        encode: tokenizes a split, which has a name for messages.
        unlabelled: returns the rows of the pool as a split without labels.
    """
    from distill.data.mixing import MixedExamples

    pool, train = splits.pool, encode("train", splits.splits["train"])
    scored = {name: encode(name, split) for name, split in splits.scored().items()}
    if not len(pool):
        return {"train": train, **scored}
    mixed = encode(UNLABELLED, unlabelled(pool.shuffled()))
    return {"train": MixedExamples(train, mixed, share=pool.share, record=pool.record()), **scored}


def select_examples(
    batch: Batch, likelihood: Likelihood, class_weights: Sequence[float] | None = None, valid: "Tensor | None" = None
) -> Items:
    """The items of a batch whose items are its examples; `valid [B, C]` are the classes that each can have."""
    labels = batch["labels"]
    labelled = ~labels.isnan() if likelihood == "gaussian" else labels != IGNORED
    row = torch.arange(len(labels), device=labels.device)
    weights = item_weights(class_weights, labels)
    return Items(
        batch=batch, row=row, labels=labels, labelled=labelled, likelihood=likelihood, weights=weights, valid=valid
    )


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


def rescore(scores: Scores, logits: Sequence[np.ndarray]) -> Scores:
    """The scores with the logits of another model, padded to the width of those they replace."""
    width = scores.columns["logits"].shape[-1]
    return replace(
        scores, columns={**scores.columns, "logits": np.concatenate([pad_classes(of, width) for of in logits])}
    )


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
