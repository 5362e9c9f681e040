"""The metric of each model of a task for examples of similar length, and on texts that are cut to fewer tokens."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from distill import edge
from distill.console import print_line
from distill.contracts import Data, Scores
from distill.data.token_cache import count_tokens
from distill.export.bundle import Scorer
from distill.export.formats import FLOAT32
from distill.tasks.own_metrics import MetricError
from distill.tasks.scoring import Scoring

ENDS = (128, 512, 1024, 2048, 4096, 8192)  # Tokens of the longest example of a group.
LEAST = 20  # Examples of a group.
Groups = Sequence[tuple[int, int]]
ByLength = dict[str, dict[str, float]]


def break_down_by_length(
    models: Mapping[str, Mapping[str, Scores]], data: Data, tokenizer: PreTrainedTokenizerBase
) -> dict[str, dict[str, ByLength]]:
    """Returns the `lengths` of run.json: of each split, the metric of each model for each group of lengths.

    A split whose examples are in one group, or have no text, is left out.
    """
    scoring, first = data.scoring, next(iter(models.values()))
    by_split: dict[str, dict[str, ByLength]] = {}
    for name, split in data.scored().items():
        columns = split.text_columns()
        if not columns:  # Of a language model.
            continue
        lengths = measure_examples(columns, tokenizer)
        scored = scoring.rows(scoring.condense(first[name]))
        groups = find_groups(lengths[np.unique(scored)])
        if len(groups) > 1:
            by_split[name] = {
                model: score_groups(scoring, scores[name], lengths, groups) for model, scores in models.items()
            }
    return by_split


def measure_examples(
    columns: Mapping[str, Sequence[str | Sequence[str]]], tokenizer: PreTrainedTokenizerBase
) -> np.ndarray:
    """Returns the tokens of all texts of each example together, none of them cut off, `[N]`.

    Args:
        columns: of texts, or of lists of texts.
    """
    parts = [[[value] if isinstance(value, str) else list(value) for value in column] for column in columns.values()]
    texts = list(dict.fromkeys(text for column in parts for value in column for text in value))
    number = dict(zip(texts, count_tokens(texts, tokenizer).tolist(), strict=True))
    lengths = [[sum(number[text] for text in value) for value in column] for column in parts]
    return np.asarray(np.sum(lengths, axis=0))


def find_groups(lengths: np.ndarray) -> list[tuple[int, int]]:
    """Returns the shortest and the longest length of each group, which has at least `LEAST` examples.

    >>> find_groups(np.repeat([30, 600, 900, 3000], [40, 20, 20, 3]))
    [(30, 128), (129, 3000)]
    """
    longest = int(lengths.max())
    groups: list[tuple[int, int]] = []
    first = int(lengths.min())
    for end in [*(end for end in ENDS if first <= end < longest), longest]:
        if np.count_nonzero((first <= lengths) & (lengths <= end)) >= LEAST:
            groups.append((first, end))
            first = end + 1
    if groups:  # The last examples may be too few.
        groups[-1] = (groups[-1][0], longest)
    return groups


def score_groups(scoring: Scoring, scores: Scores, lengths: np.ndarray, groups: Groups) -> ByLength:
    """Returns the metric of the task and the `number` of examples for each group of lengths.

    Args:
        lengths: of all examples of the split, `[N]`.
    """
    scores = scoring.condense(scores)
    rows, values = scoring.rows(scores), ByLength()
    for first, last in groups:
        chosen = (first <= lengths[rows]) & (lengths[rows] <= last)
        name = f"{first:,} to {last:,}"
        values[name] = {"number": float(len(np.unique(rows[chosen])))}
        with suppress(MetricError):  # A function of a user may need both classes.
            values[name][scoring.metric] = scoring.selecting_metric(scores.select(chosen))
    return values


def score_cuts(
    files: Mapping[str, Path],
    models: Mapping[str, Mapping[str, Scores]],
    data: Data,
    lengths: Sequence[int],
    *,
    split: str,
) -> dict[str, dict[str, ByLength]]:
    """Returns the `cuts` of run.json: the metric of each file on texts of a split that are cut to so many tokens.

    Each length has the number of `truncated` examples. The last length is that of the task.

    Args:
        files: of each model, in a bundle whose other files it shares.
        models: the scores of each model without a further cut, by split.
    """
    scoring, records = data.scoring, data.scored()[split].records()
    cuts: dict[str, ByLength] = {name: {} for name in files}
    numbers: dict[int, int] = {}
    for name, path in files.items():
        print_line(f"Scoring {name} on {split} with texts cut to {', '.join(map(str, sorted(lengths)))} tokens")
        for length in [*sorted(lengths), None]:
            bundle = edge.Bundle(path.parent, model=FLOAT32, threads=torch.get_num_threads(), max_length=length)
            read = bundle.manifest["max_length"]
            if read not in numbers:
                numbers[read] = sum(map(bundle.truncates, records))
            scores = models[name]
            found = scores[split] if length is None else Scorer(bundle, data, scores).score(path, split)
            metric = scoring.selecting_metric(found)
            cuts[name][str(read)] = {scoring.metric: metric, "truncated": float(numbers[read])}
    return {split: cuts}
