"""Figures of one run: its seeds and predictions."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

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
    style_of,
)
from distill.records.intervals import Estimate
from distill.records.prediction_analysis import Calibration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 400  # Of a scatter plot, which would be slow to open with more.


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


def draw_lengths(lengths: Sequence[int]) -> Figure:
    """Returns the histogram of the words of the examples."""

    def plot(axes: "Axes") -> None:
        top = int(np.quantile(lengths, 0.99)) + 1
        bins = np.unique(np.linspace(min(lengths), max(top, min(lengths) + 1), 25).astype(int))
        axes.hist(np.minimum(lengths, top), bins=[*bins, bins[-1] + 1], color=SERIES[0], alpha=0.7)
        median = float(np.median(lengths))
        axes.axvline(median, color=INK, linestyle="--", linewidth=1, label=f"median {median:g}")
        axes.set_xlabel("words of an example of dev")
        axes.set_ylabel("examples")
        add_legend(axes)

    return draw("Length of the examples of dev; the last bar has all longer ones", plot, name="lengths", height=2.6)
