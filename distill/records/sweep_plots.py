"""Figures of several models: metric against latency or size, and against each swept parameter."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distill.options import show_value
from distill.records.figures import (
    CUT,
    HEIGHT,
    INK,
    LINES,
    SERIES,
    Figure,
    add_legend,
    draw,
    find_range,
    label,
    set_logarithmic,
    style_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_SERIES = 6  # Of a figure with a colour for each.
MOST_TICKS = 8  # Values of a parameter that are marked, each one.
WIDE = 8  # Ratio of the largest to the smallest value of a parameter, from which its axis is logarithmic.


@dataclass(frozen=True)
class Point:
    """A model in a figure of cost and metric.

    Attributes:
        cost: ms or MB.
        metric: the mean over seeds.
        series: the name that the legend has, which several points may share.
        interval: of the metric, at 95%; None where it is not known.
    """

    cost: float
    metric: float
    series: str
    interval: tuple[float, float] | None = None

    def ends(self) -> tuple[float, float]:
        """Returns the ends of its bar."""
        return self.interval or (self.metric, self.metric)

    def errors(self) -> tuple[float, float]:
        """Returns the lengths of its bar below and above the metric."""
        low, high = self.ends()
        return max(0.0, self.metric - low), max(0.0, high - self.metric)


@dataclass(frozen=True)
class Setting:
    """A row of a sweep: the values of its parameters, and the metric with the lengths of its bar below and above."""

    values: Mapping[str, object]
    mean: float
    errors: tuple[float, float] = (0.0, 0.0)


def find_pareto(points: Sequence[Point], *, lower_is_better: bool = False) -> list[Point]:
    """Returns the points of which no other one costs at most as much and is better, the cheapest first."""
    sign = -1.0 if lower_is_better else 1.0
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, -sign * point.metric)):
        if not front or sign * point.metric > sign * front[-1].metric:
            front.append(point)
    return front


def find_behind(points: Sequence[Point], *, lower_is_better: bool = False) -> list[Point]:
    """Returns the points that another one beats beyond noise, at no higher cost.

    The bars of two points are taken as independent of each other, and a point without one beats none.
    """
    return [
        point
        for point in points
        if any(other.cost <= point.cost and _beats(other, point, lower_is_better) for other in points)
    ]


def _beats(point: Point, other: Point, lower_is_better: bool) -> bool:
    if point.interval is None or other.interval is None:
        return False
    if lower_is_better:
        return other.metric - point.metric > math.hypot(point.errors()[1], other.errors()[0])
    return point.metric - other.metric > math.hypot(point.errors()[0], other.errors()[1])


def draw_cost(
    points: Sequence[Point],
    *,
    metric: str,
    cost: str,
    caption: str,
    references: Mapping[str, float] | None = None,
    lower_is_better: bool = False,
) -> Figure:
    """Returns the metric against a cost on a logarithmic axis, with the Pareto front and its band.

    Points that are behind the front beyond noise are faint.

    Args:
        cost: the label of that axis, with its unit.
        references: metrics of models without a cost, as lines, by their name in the legend.
    """
    series = list(dict.fromkeys(point.series for point in points))
    references = references or {}
    front = find_pareto(points, lower_is_better=lower_is_better)
    behind = find_behind(points, lower_is_better=lower_is_better)
    ends = [end for point in points for end in point.ends()]
    low, high, is_cut = find_range([*(point.metric for point in points), *references.values()], ends)

    def plot(axes: "Axes") -> None:
        _plot_front(axes, front)
        for number, name in enumerate(series):
            own = [point for point in points if point.series == name]
            for turn, point in enumerate(sorted(own, key=behind.__contains__)):
                below, above = point.errors()
                axes.errorbar(
                    [point.cost], [point.metric], yerr=[[below], [above]], label=None if turn else label(name),
                    markersize=5, elinewidth=1, alpha=0.3 if point in behind else 1.0,
                    **style_of(number) | {"linestyle": "none"},
                )  # fmt: skip
        for number, (name, value) in enumerate(references.items(), 1):
            axes.axhline(value, color=INK, linestyle=LINES[number], linewidth=1, label=label(name), zorder=1)
        set_logarithmic(axes, "x", [point.cost for point in points])
        axes.set_ylim(low, high)
        axes.set_xlabel(cost)
        axes.set_ylabel(label(metric))
        add_legend(axes)

    cut = CUT if is_cut else ""
    return draw(
        f"{caption}{cut}{_describe_front(points, front, behind)}",
        plot,
        name="cost",
        height=HEIGHT + 0.12 * (len(series) + len(references)),
    )


def _plot_front(axes: "Axes", front: Sequence[Point]) -> None:
    """Draws the Pareto front as a line of steps, in the band of its intervals if all of its points have one."""
    if len(front) < 2:
        return
    costs = [point.cost for point in front]
    axes.step(
        costs, [point.metric for point in front], where="post", color=INK, alpha=0.35, linewidth=1.6,
        label="Pareto front", zorder=1,
    )  # fmt: skip
    if all(point.interval for point in front):
        lows, highs = zip(*(point.ends() for point in front), strict=True)
        axes.fill_between(costs, lows, highs, step="post", color=INK, alpha=0.08, linewidth=0, zorder=0)


def _describe_front(points: Sequence[Point], front: Sequence[Point], behind: Sequence[Point]) -> str:
    """Returns the words of the caption about the points behind the front, which begin with `; `."""
    if behind:
        return "; faint points are behind the Pareto front beyond noise"
    is_known = len(points) > len(front) and all(point.interval for point in points)
    return "; no point is behind the Pareto front beyond noise" if is_known else ""


def draw_parameter(
    settings: Sequence[Setting],
    name: str,
    *,
    metric: str,
    caption: str,
    references: Mapping[str, float] | None = None,
) -> Figure:
    """Returns the metric against one parameter, a line for each combination of the others.

    Args:
        references: metrics of other models, as lines, by their name in the legend.
    """
    references = references or {}
    ends = [end for of in settings for end in (of.mean - of.errors[0], of.mean + of.errors[1])]
    low, high, is_cut = find_range([*(of.mean for of in settings), *references.values()], ends)
    values = order_values([setting.values.get(name) for setting in settings])
    numeric = all(_is_number(value) for value in values)
    lines: dict[str, list[Setting]] = {}
    for setting in settings:
        rest = " ".join(f"{key}={show_value(value)}" for key, value in setting.values.items() if key != name)
        lines.setdefault(rest, []).append(setting)

    def plot(axes: "Axes") -> None:
        several = len(lines) > MOST_SERIES
        for number, (rest, own) in enumerate(lines.items()):
            own.sort(key=lambda setting: values.index(setting.values.get(name)))
            x: list[Any] = [
                setting.values.get(name) if numeric else values.index(setting.values.get(name)) for setting in own
            ]
            style: dict[str, Any] = style_of(number)
            if several:
                style = {"color": SERIES[0], "marker": "o", "alpha": 0.5}
            if several or not numeric:
                style |= {"linestyle": "none"}
            axes.errorbar(
                x, [setting.mean for setting in own], yerr=[*zip(*(setting.errors for setting in own), strict=True)],
                label=label(rest) if rest and not several else None, capsize=3, markersize=5, elinewidth=1,
                linewidth=1.2, **style,
            )  # fmt: skip
        for number, (rest, value) in enumerate(references.items(), 1):
            axes.axhline(value, color=INK, linestyle=LINES[number], linewidth=1, label=label(rest))
        axes.set_ylim(low, high)
        (_scale_numbers if numeric else _name_values)(axes, values)
        axes.set_xlabel(label(name, longest=48))
        axes.set_ylabel(label(metric))
        add_legend(axes)

    return draw(f"{caption}{CUT if is_cut else ''}", plot, name=f"by-{name}")


def _scale_numbers(axes: "Axes", numbers: Sequence[object]) -> None:
    """Marks the values of the horizontal axis if they are few. The axis is logarithmic if they are far apart."""
    from matplotlib.ticker import NullLocator

    values = [float(str(number)) for number in numbers]
    if 0 < WIDE * min(values) <= max(values):
        set_logarithmic(axes, "x", values)
    if len(values) <= MOST_TICKS:
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(values, [f"{value:g}" for value in values])


def _name_values(axes: "Axes", values: Sequence[object]) -> None:
    """Names the values of the horizontal axis, which are no numbers."""
    slanted = len(values) > 4 or max(len(str(value)) for value in values) > 12
    names = [label(value, longest=22) for value in values]
    axes.set_xticks(range(len(values)), names, rotation=35 if slanted else 0, ha="right" if slanted else "center")
    axes.set_xlim(-0.5, len(values) - 0.5)


def draw_heat_map(settings: Sequence[Setting], names: tuple[str, str], *, caption: str) -> Figure:
    """Returns the metric of each combination of two parameters as a table of shades."""
    rows, columns = (order_values([setting.values.get(name) for setting in settings]) for name in names)
    means = [setting.mean for setting in settings]
    span = max(means) - min(means) or 1.0

    def plot(axes: "Axes") -> None:
        from matplotlib.patches import Rectangle

        axes.grid(visible=False)
        for setting in settings:
            row, column = rows.index(setting.values.get(names[0])), columns.index(setting.values.get(names[1]))
            alpha = 0.05 + 0.5 * (setting.mean - min(means)) / span
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=SERIES[0], alpha=alpha))
            axes.text(column, row, f"{setting.mean:.4f}", ha="center", va="center", fontsize=8)
        axes.set_xticks(range(len(columns)), [label(value, longest=12) for value in columns])
        axes.set_yticks(range(len(rows)), [label(value, longest=12) for value in rows])
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_ylabel(label(names[0], longest=40))
        axes.set_xlabel(label(names[1], longest=48))

    return draw(caption, plot, name=f"by-{names[0]}-and-{names[1]}", height=max(2.2, 1 + 0.35 * len(rows)))


def is_varied(settings: Sequence[Setting], name: str) -> bool:
    """Returns whether two settings differ in this parameter and in no other one, or there are many of them."""
    names = {key for setting in settings for key in setting.values}
    if len(settings) >= 4 * len(names):
        return True
    rest = [repr([(key, setting.values.get(key)) for key in sorted(names - {name})]) for setting in settings]
    return len(set(rest)) < len(rest)


def order_values(values: Sequence[object]) -> list[object]:
    """Returns the different values, numbers in their order and others as they come."""
    unique: list[object] = []
    for value in values:
        if value not in unique:
            unique.append(value)
    if all(_is_number(value) for value in unique):
        unique.sort(key=lambda value: float(str(value)))
    return unique


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
