"""Metrics of exported files on plain text, beside those on the words of the data."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from distill.console import print_notice

POINT = 0.01  # A larger difference of the two metrics is reported.


class TextResult(NamedTuple):
    """The metric of a file on a split.

    Attributes:
        on_words: with the words of the data.
        on_text: with the plain text of the sentences, which the bundle splits into words itself.
        split_differently: share of the sentences that it splits into other words than those of the data.
    """

    file: str
    split: str
    on_words: float
    on_text: float
    split_differently: float | None


def list_text_results(task: Mapping[str, Any], export: Mapping[str, Any]) -> list[TextResult]:
    """Returns the results of all files on all splits; none for a task whose examples are texts.

    Args:
        task, export: of run.json.
    """
    return [
        TextResult(
            file["file"], split, file["metrics"][f"{prefix}{task['metric']}"], value,
            (task.get("split_differently") or {}).get(split),
        )
        for file in export.values()
        for split, prefix, value in _text_metrics(task, file["metrics"])
    ]  # fmt: skip


def _text_metrics(task: Mapping[str, Any], metrics: Mapping[str, float]) -> Iterator[tuple[str, str, float]]:
    """Yields each split with the prefix of its metrics, and its metric on plain text."""
    for name, value in metrics.items():
        prefix, slash, metric = name.rpartition("/")
        if metric == f"text_{task.get('metric')}":
            yield prefix or "dev", f"{prefix}{slash}", value


def warn_of_text(task: Mapping[str, Any], export: Mapping[str, Any]) -> None:
    """Prints a notice for each split on which the two metrics of a file differ by more than a point.

    Args:
        task, export: of run.json.
    """
    metric = task["metric"]
    for result in list_text_results(task, export):
        if abs(result.on_words - result.on_text) <= POINT:
            continue
        share = result.split_differently
        reason = f", because it splits {share:.1%} of the sentences into other words than the data has" if share else ""
        print_notice(
            f"{result.file} has {metric} {result.on_text:.4f} on the plain text of {result.split}, and "
            f"{result.on_words:.4f} on its words{reason}; report.md has both of every file"
        )
