"""Figures of trainings: the loss of each term and the metric on dev over the steps, of one run or of several."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from distill.records.curves import Curve
from distill.records.figures import Figure, add_legend, draw, label, set_logarithmic, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 80  # Of the curve of a loss; each one is the mean of as many steps.
WIDE = 4  # Ratio of the largest to the smallest loss, from which an axis is logarithmic.
ONE_RUN = "one run each with their first seed, without intervals"
TERM, DEV = "train/", "dev/"
TOTAL = "loss"  # Of all terms, whose scale is that of their weights.


def draw_losses(curves: Mapping[str, Curve]) -> Figure | None:
    """Returns the loss of each term of a run; None without any."""
    terms = {name.removeprefix(TERM): curve for name, curve in curves.items() if name.startswith(TERM)}
    return _draw("Loss by term over the training", "loss", terms, name="losses", is_loss=True) if terms else None


def draw_dev(curve: Curve, *, metric: str) -> Figure:
    """Returns the metric on dev of a run."""
    return _draw(f"{metric} on dev over the training", f"{metric} on dev", {"": curve}, name="training")


def draw_rows(curves: Mapping[str, Curve], *, metric: str) -> Figure:
    """Returns the metric on dev of the runs of several rows, by their name in the legend."""
    caption = f"{metric} on dev over the training, of the rows with a run of their own, {ONE_RUN}"
    return _draw(caption, f"{metric} on dev", curves, name=f"{metric}-over-steps", is_loss=True)


def compare_trainings(runs: Mapping[str, Mapping[str, Curve]], *, metric: str) -> list[Figure]:
    """Returns the metric on dev of several runs, and the loss of each term that two of them have.

    Args:
        runs: the curves of each run by its name in the legend.
    """

    def select(name: str) -> dict[str, Curve]:
        return {run: curves[name] for run, curves in runs.items() if name in curves}

    figures = []
    scored = select(f"{DEV}{metric}")
    if len(scored) > 1 and max(map(len, scored.values())) > 1:  # One evaluation each is in the table.
        caption = f"{metric} on dev over the training, of several rows, {ONE_RUN}"
        figures.append(_draw(caption, f"{metric} on dev", scored, name="training"))
    names = dict.fromkeys(name for curves in runs.values() for name in curves if name.startswith(TERM))
    for name in names:
        term = name.removeprefix(TERM)
        if term != TOTAL and len(losses := select(name)) > 1:
            caption = f"Loss {term} over the training, of several rows, {ONE_RUN}"
            figures.append(_draw(caption, f"loss {term}", losses, name=f"loss-{term}", is_loss=True))
    return figures


def _draw(caption: str, axis: str, curves: Mapping[str, Curve], *, name: str, is_loss: bool = False) -> Figure:
    """Returns curves over the steps.

    Args:
        axis: the name of the vertical axis.
        curves: by their name in the legend, which an empty name is not in.
        name: of the figure.
        is_loss: whether there are many values, without marks. The axis is logarithmic if some are far above others.
    """

    def plot(axes: "Axes") -> None:
        points = {series: np.array(_thin(curve) if is_loss else curve) for series, curve in curves.items()}
        for number, (series, of) in enumerate(points.items()):
            style = style_of(number) | ({"marker": ""} if is_loss else {})
            axes.plot(*of.T, label=label(series), linewidth=1.3, markersize=4, **style)
        values = [float(value) for of in points.values() for value in of[:, 1]]
        if is_loss and max(values) > WIDE * min(values) > 0:
            set_logarithmic(axes, "y", values)
        axes.set_xlabel("optimizer step")
        axes.set_ylabel(label(axis))
        if any(curves):
            add_legend(axes, columns=3)

    return draw(caption, plot, name=name)


def _thin(curve: Curve) -> Curve:
    """Returns at most `POINTS` points of a curve, each the mean of as many neighbours."""
    step = -(-len(curve) // POINTS)
    groups = (curve[start : start + step] for start in range(0, len(curve), step))
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]
