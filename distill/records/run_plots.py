"""Figures of one run: its seeds and predictions."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distill.records.figures import (
    CUT,
    GRID,
    HEIGHT,
    INK,
    LINES,
    MARKERS,
    SERIES,
    Figure,
    add_legend,
    draw,
    find_range,
    label,
    set_logarithmic,
    style_of,
)
from distill.records.intervals import Estimate
from distill.records.prediction_analysis import Calibration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 400  # Of a scatter plot, which would be slow to open with more.
BARS = 24  # Of a histogram, at most.
LENGTHS = 3  # From which on times are drawn against the length.


def draw_models(models: Mapping[str, Estimate], *, metric: str, split: str, bars: str) -> Figure:
    """Returns the metric of the models of a run below each other, with lines at the first one and at the baseline.

    Args:
        models: by name, in the order from the top.
        bars: the words of the caption about the bars.
    """
    ends = [end for found in models.values() for end in found.interval or ()]
    low, high, is_cut = find_range([found.value for found in models.values()], ends)

    def plot(axes: "Axes") -> None:
        for number, (name, found) in enumerate(models.items()):
            below, above = found.errors()
            color = SERIES[0] if name.startswith("student") else INK
            if number == 0 or name.startswith("baseline"):
                axes.axvline(
                    found.value, color=INK, linestyle=LINES[1 + number % 3], linewidth=0.8, alpha=0.5, zorder=1
                )
            axes.errorbar(
                [found.value], [number], xerr=[[below], [above]], color=color, marker=MARKERS[0], markersize=6,
                elinewidth=1.4, linestyle="none",
            )  # fmt: skip
            axes.text(1.02, number, f"{found.value:.4f}", transform=axes.get_yaxis_transform(), va="center")
        axes.set_yticks(range(len(models)), [label(name, longest=26) for name in models])
        axes.set_ylim(len(models) - 0.4, -0.6)
        axes.set_xlim(low, high)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"{label(metric)} on {split}")

    cut = CUT if is_cut else ""
    paired = ". A difference of two models is surer than their bars, because both saw the same examples" if bars else ""
    caption = f"{metric} on {split} of every model{bars}{cut}{paired}"
    return draw(caption, plot, name="models", height=0.9 + 0.3 * len(models))


def draw_seeds(models: Mapping[str, Sequence[float]], *, metric: str, teacher: float | None, caption: str) -> Figure:
    """Returns the metric of each model and seed, with the mean as a line."""

    def plot(axes: "Axes") -> None:
        for number, (_, values) in enumerate(models.items()):
            style = style_of(number)
            axes.scatter([number] * len(values), values, color=str(style["color"]), marker=str(style["marker"]), s=22)
            axes.hlines(float(np.mean(values)), number - 0.25, number + 0.25, color=str(style["color"]), linewidth=1.6)
        if teacher is not None:
            axes.axhline(teacher, color=INK, linestyle="--", linewidth=1, label="teacher")
        axes.set_xticks(range(len(models)), [label(name, longest=18) for name in models])
        axes.set_xlim(-0.6, len(models) - 0.4)
        axes.set_ylabel(label(metric))
        add_legend(axes)

    return draw(caption, plot, name="seeds", height=2.6)


def draw_calibration(models: Mapping[str, Calibration]) -> Figure:
    """Returns the reliability diagram of several models."""

    def plot(axes: "Axes") -> None:
        axes.plot([0, 1], [0, 1], color=GRID, linewidth=1.2)
        for number, (name, found) in enumerate(models.items()):
            text = f"{label(name)} (error {found.error:.3f})"
            axes.plot(found.confidence, found.accuracy, label=text, markersize=4, linewidth=1.2, **style_of(number))
        axes.set_xlabel("probability of the prediction")
        axes.set_ylabel("share of right predictions")
        low = min([0.5, *(value for found in models.values() for value in found.confidence)])
        axes.set_xlim(low - 0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        add_legend(axes)

    caption = "Calibration on dev: right predictions against their probability, in ten bins"
    return draw(caption, plot, name="calibration")


def draw_confusion(classes: Sequence[str], counts: np.ndarray, *, model: str) -> Figure:
    """Returns the confusion matrix `[label, prediction]`, shaded by the share of the label's examples."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = len(classes)

    def plot(axes: "Axes") -> None:
        from matplotlib.patches import Rectangle

        axes.grid(visible=False)
        for row, column in np.ndindex(size, size):
            share = float(shares[row, column])
            corner = (column - 0.5, row - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, facecolor=SERIES[0], alpha=0.02 + 0.5 * share, edgecolor="none"))
            if counts[row, column]:
                size_of_text = 9 if size <= 8 else 6
                axes.text(column, row, f"{counts[row, column]}", ha="center", va="center", fontsize=size_of_text)
        names = [label(name, longest=14) for name in classes]
        axes.set_xticks(range(size), names, rotation=0 if size <= 3 else 60, ha="center" if size <= 3 else "right")
        axes.set_yticks(range(size), names)
        axes.set_xlim(-0.5, size - 0.5)
        axes.set_ylim(size - 0.5, -0.5)
        axes.set_xlabel("prediction")
        axes.set_ylabel("label")

    height = max(HEIGHT - 0.4, 1.2 + 0.25 * size)
    return draw(f"Confusion of {model} on dev, in examples", plot, name="confusion", height=height)


def draw_numbers(pairs: np.ndarray, *, model: str) -> Figure:
    """Returns the predictions of a model against the teacher's, `[n, 2]` with the teacher's first."""

    def plot(axes: "Axes") -> None:
        shown = pairs[:: max(1, len(pairs) // POINTS)]
        low, high = float(pairs.min()), float(pairs.max())
        axes.plot([low, high], [low, high], color=GRID, linewidth=1.2)
        axes.scatter(shown[:, 0], shown[:, 1], s=7, color=SERIES[0], alpha=0.5, linewidths=0)
        axes.set_xlabel("teacher")
        axes.set_ylabel(label(model))

    return draw(f"Predictions of {model} and of the teacher on dev", plot, name="predictions")


def draw_by_length(models: Mapping[str, Mapping[str, Mapping[str, float]]], *, metric: str, split: str) -> Figure:
    """Returns the metric of each model for each group of lengths, as the `lengths` of run.json have them.

    Args:
        models: the groups of each model.
    """
    groups = next(iter(models.values()))

    def plot(axes: "Axes") -> None:
        for number, (name, values) in enumerate(models.items()):
            found = [values[group].get(metric, np.nan) for group in groups]
            axes.plot(range(len(groups)), found, label=label(name), markersize=4, linewidth=1.2, **style_of(number))
        names = [f"{group}\n({values['number']:,.0f})" for group, values in groups.items()]
        axes.set_xticks(range(len(groups)), names)
        axes.set_xlim(-0.3, len(groups) - 0.7)
        axes.set_xlabel("tokens of an example (examples)")
        axes.set_ylabel(f"{label(metric)} on {split}")
        add_legend(axes, columns=4)

    return draw(f"{metric} on {split} by the length of an example in tokens", plot, name="metric-by-length")


def draw_pruning(steps: Sequence[Mapping[str, Any]], *, metric: str) -> Figure:
    """Returns the metric on dev against the share of the layers' weights that iterative pruning has removed.

    Args:
        steps: the `pruning` of run.json.
    """
    curves = {"after the training that follows": "after", "right after the removal": "before"}

    def plot(axes: "Axes") -> None:
        for number, (name, field) in enumerate(curves.items()):
            points = [(step["removed"], step[field]) for step in steps if step.get(field) is not None]
            if points:
                shares, values = zip(*points, strict=True)
                axes.plot(shares, values, label=name, markersize=4, linewidth=1.2, **style_of(number))
        axes.set_xlabel("share of the weights in the layers that was removed")
        axes.set_ylabel(f"{label(metric)} on dev")
        add_legend(axes)

    return draw(f"{metric} on dev against the share that was removed; 0 is the teacher", plot, name="pruning")


def draw_cost_by_length(rows: Sequence[Mapping[str, Any]], *, conditions: str) -> Figure | None:
    """Returns the median time of each model against the length of the text; None for fewer than `LENGTHS` lengths.

    Args:
        rows: of run.json's `benchmark`, of one batch size and one number of threads.
        conditions: of the times, in words.
    """
    times: dict[str, dict[int, float]] = {}
    for row in rows:
        times.setdefault(f"{row['model']} {row['format'].removeprefix('onnx-')}", {})[row["length"]] = row["p50_ms"]
    lengths = sorted({length for of in times.values() for length in of})
    if len(lengths) < LENGTHS:
        return None

    def plot(axes: "Axes") -> None:
        for number, (name, of) in enumerate(times.items()):
            points = sorted(of.items())
            axes.plot(*zip(*points, strict=True), label=label(name), markersize=4, linewidth=1.2, **style_of(number))
        set_logarithmic(axes, "x", lengths)
        set_logarithmic(axes, "y", [value for of in times.values() for value in of.values()])
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.set_xlabel("tokens of a text")
        axes.set_ylabel("p50 latency in ms")
        add_legend(axes, columns=3)

    caption = f"p50 latency against the length of a text, both on logarithmic axes: {conditions}"
    return draw(caption, plot, name="cost-by-length")


def bin_lengths(shortest: int, longest: int) -> list[int]:
    """Returns the edges of at most `BARS` bars for whole numbers, each of which has equally many of them.

    Bars of 2 and of 1 numbers in turns would look like gaps that the lengths do not have.

    >>> bin_lengths(3, 5), bin_lengths(1, 50)[:3]
    ([3, 4, 5, 6], [1, 4, 7])
    """
    width = max(1, -(-(longest - shortest + 1) // BARS))
    return [*range(shortest, longest + 1, width), shortest + width * -(-(longest - shortest + 1) // width)]


def draw_lengths(lengths: Sequence[int]) -> Figure:
    """Returns the histogram of the words of the examples."""

    def plot(axes: "Axes") -> None:
        top = int(np.quantile(lengths, 0.99)) + 1
        axes.hist(np.minimum(lengths, top), bins=bin_lengths(min(lengths), top), color=SERIES[0], alpha=0.7)
        median = float(np.median(lengths))
        axes.axvline(median, color=INK, linestyle="--", linewidth=1, label=f"median {median:g}")
        axes.set_xlabel("words of an example of dev")
        axes.set_ylabel("examples")
        add_legend(axes)

    return draw("Length of the examples of dev; the last bar has all longer ones", plot, name="lengths", height=2.6)
