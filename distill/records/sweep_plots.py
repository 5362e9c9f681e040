"""Figures of several models: metric against latency or size, and against each swept parameter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distill.options import show_value
from distill.records.figures import HEIGHT, INK, SERIES, Figure, add_legend, draw, label, set_logarithmic, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_SERIES = 6  # Of a figure with a colour for each.


@dataclass(frozen=True)
class Point:
    """A model in a figure of cost and metric.

    Attributes:
        cost: ms or MB.
        metric: the mean over seeds.
        deviation: the standard deviation over seeds; None for one seed.
        series: the name that the legend has, which several points may share.
    """

    cost: float
    metric: float
    series: str
    deviation: float | None = None


@dataclass(frozen=True)
class Setting:
    """A row of a sweep: the values of its parameters, and mean and deviation of the metric over seeds."""

    values: Mapping[str, object]
    mean: float
    deviation: float | None


def find_pareto(points: Sequence[Point], *, lower_is_better: bool = False) -> list[Point]:
    """Returns the points of which no other one costs at most as much and is better, the cheapest first."""
    sign = -1.0 if lower_is_better else 1.0
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, -sign * point.metric)):
        if not front or sign * point.metric > sign * front[-1].metric:
            front.append(point)
    return front


def draw_cost(
    points: Sequence[Point],
    *,
    metric: str,
    cost: str,
    caption: str,
    reference: float | None = None,
    lower_is_better: bool = False,
) -> Figure:
    """Returns the metric against a cost on a logarithmic axis, with the Pareto front.

    Args:
        cost: the label of that axis, with its unit.
        reference: the teacher's metric, as a dashed line.
    """
    series = list(dict.fromkeys(point.series for point in points))

    def plot(axes: "Axes") -> None:
        front = find_pareto(points, lower_is_better=lower_is_better)
        axes.step(
            [point.cost for point in front], [point.metric for point in front], where="post", color=INK, alpha=0.35,
            linewidth=1.6, label="Pareto front" if len(front) > 1 else None, zorder=1,
        )  # fmt: skip
        for number, name in enumerate(series):
            own = [point for point in points if point.series == name]
            style = style_of(number) | {"linestyle": "none"}
            axes.errorbar(
                [point.cost for point in own], [point.metric for point in own],
                yerr=[point.deviation or 0.0 for point in own], label=label(name), markersize=5, elinewidth=0.8,
                **style,  # type: ignore[arg-type]
            )  # fmt: skip
        if reference is not None:
            axes.axhline(reference, color=INK, linestyle="--", linewidth=1, label="teacher's metric", zorder=1)
        set_logarithmic(axes, "x", [point.cost for point in points])
        axes.set_xlabel(cost)
        axes.set_ylabel(label(metric))
        add_legend(axes)

    return draw(caption, plot, height=HEIGHT + 0.12 * len(series))


def draw_parameter(settings: Sequence[Setting], name: str, *, metric: str, reference: float | None) -> Figure:
    """Returns the metric against one parameter, a line for each combination of the others.

    Args:
        reference: the teacher's metric, as a dashed line.
    """
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
                x, [setting.mean for setting in own], yerr=[setting.deviation or 0.0 for setting in own],
                label=label(rest) if rest and not several else None, capsize=3, markersize=5, elinewidth=1,
                linewidth=1.2, **style,
            )  # fmt: skip
        if reference is not None:
            axes.axhline(reference, color=INK, linestyle="--", linewidth=1, label="teacher")
        if not numeric:
            slanted = len(values) > 4 or max(len(str(value)) for value in values) > 12
            names = [label(value, longest=22) for value in values]
            axes.set_xticks(
                range(len(values)), names, rotation=35 if slanted else 0, ha="right" if slanted else "center"
            )
            axes.set_xlim(-0.5, len(values) - 0.5)
        axes.set_xlabel(label(name, longest=48))
        axes.set_ylabel(label(metric))
        add_legend(axes)

    return draw(f"{metric} against {name}, with standard deviations over seeds", plot)


def draw_heat_map(settings: Sequence[Setting], names: tuple[str, str], *, metric: str) -> Figure:
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

    caption = f"{metric} by {names[0]} and {names[1]}, the mean over seeds"
    return draw(caption, plot, height=max(2.2, 1 + 0.35 * len(rows)))


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
