"""Metrics of texts that a model wrote, against one or several references of each.

>>> text_metrics(["the cat sat"], [["the cat sat", "a cat sat"]])["exact_match"]
1.0

All values are in 0..1, except the length ratio: BLEU and chrF too, which are often printed as percentages.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from distill.errors import UserError
from distill.installation import install_command

ROUGE = ("rouge1", "rouge2", "rougeL")
MEANS = ("exact_match", *ROUGE)  # Metrics that are the mean over the examples.
CORPUS = ("chrf", "bleu")  # Metrics that are a function of counts, which are summed over the examples.
DISTINCT = (1, 2)  # The lengths of n-grams of which the share of different ones is counted.
METRICS = (*MEANS, *CORPUS, *(f"distinct{size}" for size in DISTINCT), "length_ratio")
LONGEST = (8, 16, 32, 64)  # Words of the longest text of each group of `break_down_by_length` but the last.
References = Sequence[Sequence[str]]


def text_metrics(
    predictions: Sequence[str], references: References, metrics: Sequence[str] = METRICS
) -> dict[str, float]:
    """Returns the metrics of all predictions together.

    `exact_match`, `rouge1`, `rouge2` and `rougeL` are means over the examples. `bleu` (Papineni et al., 2002, as
    sacrebleu has it, arXiv 1804.08771) and `chrf` (Popović, 2015) are of the whole corpus, which is not the mean of its
    sentences. `distinct1` and `distinct2` are the share of different n-grams among all (Li et al., arXiv 1510.03055).
    `length_ratio` is the number of words written over that of the references that are nearest in length.

    Args:
        predictions: `N` texts.
        references: at least one for each of them.
        metrics: their names.

    Raises:
        UserError: if a library is not installed.
        ValueError: for no prediction, an example without a reference, or another number of examples.
    """
    columns = score_examples(predictions, references, metrics)
    values = {name: combine_examples(name, column) for name, column in columns.items()}
    values |= {f"distinct{size}": distinct_ngrams(predictions, size) for size in DISTINCT}
    values["length_ratio"] = _length_ratio(predictions, references)
    return {name: values[name] for name in metrics}


def score_examples(
    predictions: Sequence[str], references: References, metrics: Sequence[str] = (*MEANS, *CORPUS)
) -> dict[str, np.ndarray]:
    """Returns the column of each metric that `combine_examples` computes from any examples.

    It has the value of each example, `[N]`, for one of `MEANS`, where ROUGE is the F-measure with the best reference.
    It has the counts of each example, `[N, K]`, for one of `CORPUS`. Other metrics have no column.

    Raises:
        UserError: if a library is not installed.
        ValueError: for no prediction, an example without a reference, or another number of examples.
    """
    _check(predictions, references)
    pairs = list(zip(predictions, references, strict=True))
    columns: dict[str, np.ndarray] = {}
    if "exact_match" in metrics:
        exact = [_normalize(text) in map(_normalize, of) for text, of in pairs]
        columns["exact_match"] = np.array(exact, dtype=np.float64)
    if rouge := [name for name in ROUGE if name in metrics]:
        scorer = _import("rouge_score", "rouge_scorer").RougeScorer(rouge)
        scores = [scorer.score_multi(list(of), text) for text, of in pairs]
        columns |= {name: np.array([of[name].fmeasure for of in scores]) for name in rouge}
    streams = _reference_streams(references)
    for name in CORPUS:
        if name in metrics:
            counts = _create_scorer(name)._extract_corpus_statistics(list(predictions), streams)
            columns[name] = np.array(counts, dtype=np.float64)
    return columns


def combine_examples(metric: str, column: np.ndarray) -> float:
    """Returns a metric of the examples of a column of `score_examples`."""
    if metric in CORPUS:
        return float(_create_scorer(metric)._compute_score_from_stats(column.sum(axis=0).tolist()).score) / 100
    return float(column.mean())


def score_sentences(predictions: Sequence[str], references: References, metric: str) -> np.ndarray:
    """Returns the `chrf` or `bleu` of each prediction, `[N]` in 0..1."""
    scorer = _create_scorer(metric, is_sentence=True)
    scores = [scorer.sentence_score(text, list(of)).score for text, of in zip(predictions, references, strict=True)]
    return np.array(scores) / 100


def distinct_ngrams(texts: Sequence[str], size: int) -> float:
    """Returns the share of different n-grams of words among those of all texts, 0 without any."""
    ngrams = [ngram for text in texts for ngram in _ngrams(text.split(), size)]
    return len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def break_down_by_length(columns: Mapping[str, np.ndarray], texts: Sequence[str]) -> dict[str, dict[str, float]]:
    """Returns the metrics and `number` of the examples by the words of their texts: `up to 8 words`.

    Args:
        columns: as `score_examples` returns them.
        texts: whose words are counted, such as the sources.
    """
    groups = np.searchsorted(LONGEST, [len(text.split()) for text in texts])
    titles = [*(f"up to {longest} words" for longest in LONGEST), f"more than {LONGEST[-1]} words"]
    return {
        title: {
            **{name: combine_examples(name, column[groups == group]) for name, column in columns.items()},
            "number": float((groups == group).sum()),
        }
        for group, title in enumerate(titles)
        if (groups == group).any()
    }


def _check(predictions: Sequence[str], references: References) -> None:
    if not predictions:
        raise ValueError("got no predictions, expected at least one")
    if len(predictions) != len(references):
        raise ValueError(f"got {len(predictions)} predictions and references of {len(references)} examples")
    for row, of in enumerate(references):
        if isinstance(of, str) or not of:
            raise ValueError(f"got {of!r} as the references of example {row}, expected a list of at least one text")


def _normalize(text: str) -> str:
    """Returns the words with one space between them."""
    return " ".join(text.split())


def _ngrams(words: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    return (tuple(words[first : first + size]) for first in range(len(words) - size + 1))


def _length_ratio(predictions: Sequence[str], references: References) -> float:
    """Returns the words written over those of the references, 0 where these have none."""
    written = [len(text.split()) for text in predictions]
    nearest = [
        min((len(text.split()) for text in of), key=lambda words: (abs(words - length), words))
        for length, of in zip(written, references, strict=True)
    ]
    return sum(written) / sum(nearest) if sum(nearest) else 0.0


def _reference_streams(references: References) -> list[list[str | None]]:
    """Returns the first, second, ... reference of all examples, None for those with fewer."""
    most = max(map(len, references))
    return [[of[number] if number < len(of) else None for of in references] for number in range(most)]


def _create_scorer(metric: str, *, is_sentence: bool = False) -> Any:
    """Returns sacrebleu's scorer, of BLEU for a sentence with the n-grams alone that it is long enough for."""
    module = _import("sacrebleu", "metrics")
    return module.CHRF() if metric == "chrf" else module.BLEU(effective_order=is_sentence)


def _import(package: str, module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"{package}.{module}")
    except ModuleNotFoundError as error:
        raise UserError(
            f"texts are scored with {package.replace('_', '-')}, which is not installed: {install_command('train')}"
        ) from error
