"""Figures drawn with matplotlib as SVG: trainings, and several models against cost or a swept parameter."""

import csv
import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, overload
from xml.sax.saxutils import quoteattr

import numpy as np

from distill.core.options import show_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


LONGEST_IN_COLUMNS = 22  # Characters of a name in a legend of several columns.
WIDTH, HEIGHT = 5.0, 3.2  # Inches. At this size the text is readable on a telephone.
CUT = ", some of which end outside the figure"  # The words of a caption after its bars.
# Names of the colours of a figure, which matplotlib knows while it draws one.
INK, GRID, PAPER = "distill:ink", "distill:grid", "distill:paper"
SERIES = tuple(f"distill:series-{number}" for number in range(1, 7))
# Series differ in these too, so that they can be told apart in grey.
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
# Name -> the colour outside a page. In a page it is the CSS variable of the name behind the colon.
_COLORS = {
    INK: "#1f2328", GRID: "#d0d7de", PAPER: "#ffffff", SERIES[0]: "#2563eb", SERIES[1]: "#d97706",
    SERIES[2]: "#059669", SERIES[3]: "#dc2626", SERIES[4]: "#7c3aed", SERIES[5]: "#0891b2",
}  # fmt: skip
_MARKS = {name: f"#0a00{place:02x}" for place, name in enumerate(_COLORS)}  # What matplotlib writes for a page.
_STYLE = {
    "svg.fonttype": "none", "pdf.fonttype": 42, "text.parse_math": False, "font.size": 9,
    "font.sans-serif": ["DejaVu Sans"],
    "text.color": INK, "axes.edgecolor": GRID, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.facecolor": "none", "figure.facecolor": PAPER, "grid.color": GRID, "axes.grid": True, "grid.linewidth": 0.6,
    "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    "legend.fontsize": 8, "axes.unicode_minus": False,
}  # fmt: skip
_METADATA = {
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True)
class Figure:
    """An SVG element with its caption, which is also its description for readers who do not see it.

    Attributes:
        name: of a file with it, without an ending.
        draw_pdf: returns it as the content of a PDF file, with the colours of light paper and its fonts as text.
        create_canvas: returns it as a new figure of matplotlib, with the colours of light paper.
    """

    caption: str
    svg: str
    name: str
    draw_pdf: Callable[[], bytes] = field(repr=False, compare=False)
    create_canvas: "Callable[[], Canvas]" = field(repr=False, compare=False)


def draw(
    caption: str, plot: Callable[["Axes"], None], *, name: str = "figure", height: float = HEIGHT, columns: int = 2
) -> Figure:
    """Returns the figure of one pair of axes that `plot` fills, with a legend of what has a label.

    Args:
        name: as in `Figure`.
        height: in inches.
        columns: of the legend, which has one where names are long.
    """

    def fill(canvas: "Canvas") -> None:
        axes = canvas.add_subplot()
        plot(axes)
        _add_legend(axes, columns)

    svg = _clean(_render(caption, fill, height).decode(), caption)
    return Figure(
        caption, svg, name, draw_pdf=lambda: _render(caption, fill, height, "pdf"),
        create_canvas=lambda: create_canvas(fill, height),
    )  # fmt: skip


def _render(caption: str, fill: Callable[["Canvas"], None], height: float, format: str = "svg") -> bytes:
    """Returns the file that matplotlib writes, always the same. The ids of SVG are hashes with `caption`."""
    import matplotlib

    content = io.BytesIO()
    canvas = create_canvas(fill, height, _MARKS if format == "svg" else _COLORS)
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": caption}):
        canvas.savefig(content, format=format, metadata=_METADATA[format])
    return content.getvalue()


def _register_colors(colors: Mapping[str, str]) -> None:
    """Gives the names of colours these values, one by one: `update` would keep what matplotlib has looked up before."""
    import matplotlib

    known = matplotlib.colors.get_named_colors_mapping()
    for name, color in colors.items():
        known[name] = color


def create_canvas(
    fill: Callable[["Canvas"], None], height: float, colors: Mapping[str, str] = MappingProxyType(_COLORS)
) -> "Canvas":
    """Returns a figure of matplotlib that looks the same wherever it is drawn, and that a notebook shows by itself."""
    import matplotlib
    from matplotlib.backend_bases import RendererBase
    from matplotlib.figure import Figure as Canvas

    class StyledCanvas(Canvas):
        def draw(self, renderer: RendererBase) -> None:
            # matplotlib looks up names of colours, and the style of ticks, when it draws.
            _register_colors(colors)
            with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Of letters that the font lacks, for which a page has others.
                super().draw(renderer)

        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=150)
            return content.getvalue()

    _register_colors(colors)
    with matplotlib.rc_context(_STYLE):
        canvas = StyledCanvas(figsize=(WIDTH, height), layout="constrained")
        fill(canvas)
    return canvas


def label_axes(text: object, *, longest: int = 60) -> str:
    """Returns a name for an axis or a legend, cut to `longest` characters and without control characters."""
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in str(text)).split())
    words = words if len(words) <= longest else f"{words[: longest - 1]}…"
    return f" {words}" if words.startswith("_") else words  # matplotlib leaves such a name out of the legend.


def _add_legend(axes: "Axes", columns: int) -> None:
    """Adds a legend above the axes, where it covers no point, if anything has a label."""
    _, names = axes.get_legend_handles_labels()
    if names:
        columns = 1 if max(map(len, names)) > LONGEST_IN_COLUMNS else columns
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2, handlelength=2.4)


def set_logarithmic(axes: "Axes", direction: Literal["x", "y"], values: Sequence[float]) -> None:
    """Makes an axis logarithmic, with plain numbers at its ticks."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = min(values) / 1.25, max(values) * 1.25
    axes.set(**{f"{direction}scale": "log", f"{direction}lim": (low, high)})
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = [1.0, 2.0, 5.0] if high / low > 4 else [1.0, 1.5, 2.0, 2.5, *map(float, range(3, 10))]
    if high / low > 1000:
        factors = [1.0]
    ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
    axis = axes.xaxis if direction == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high] or [values[0]]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def find_range(values: Sequence[float], ends: Sequence[float]) -> tuple[float, float, bool]:
    """Returns the limits of an axis that shows all values, and whether they cut off an interval.

    Intervals of two seeds are so wide that the values could not be told apart beside them.

    Args:
        ends: of the intervals.
    """
    low, high = min([*values, *ends]), max([*values, *ends])
    room = max(max(values) - min(values), 0.25 * (high - low))
    shown = max(low, min(values) - room), min(high, max(values) + room)
    margin = 0.05 * (shown[1] - shown[0]) or 0.05 * abs(high) or 0.05
    return shown[0] - margin, shown[1] + margin, low < shown[0] - margin or high > shown[1] + margin


def standalone(figure: Figure) -> str:
    """Returns the figure as the content of an SVG file, with the colours of light paper."""
    svg = re.sub(r"var\(--[a-z0-9-]+, (#[0-9a-f]{6})\)", r"\1", figure.svg)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{svg}\n'


def plot_lines(axes: "Axes", lines: Mapping[str, Sequence[Any] | np.ndarray], **style: Any) -> None:
    """Draws lines by their name in the legend, each a series of its own.

    Args:
        lines: their horizontal and vertical values.
        style: of all lines.
    """
    for number, (name, (x, y)) in enumerate(lines.items()):
        given = {"linewidth": 1.2, "markersize": 4, **style_of(number), **style}
        axes.plot(x, y, label=label_axes(name), **given)


def plot_references(axes: "Axes", references: Mapping[str, float], **style: Any) -> None:
    """Draws metrics of other models as lines across the axes, by their name in the legend."""
    for number, (name, value) in enumerate(references.items(), 1):
        axes.axhline(value, color=INK, linestyle=LINES[number], linewidth=1, label=label_axes(name), **style)


def plot_cells(
    axes: "Axes",
    cells: Mapping[tuple[int, int], tuple[str, float]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    fontsize: int,
) -> None:
    """Draws a table of shades, with the first row at the top.

    Args:
        cells: by their numbers of row and column, the text of each one and its shade from 0 to 1.
        rows, columns: their names.
    """
    from matplotlib.patches import Rectangle

    axes.grid(visible=False)
    for (row, column), (text, shade) in cells.items():
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=SERIES[0], alpha=shade, edgecolor="none"))
        if text:
            axes.text(column, row, text, ha="center", va="center", fontsize=fontsize)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))


def style_of(number: int) -> dict[str, Any]:
    """Returns colour, marker and line of a series."""
    turn = number % len(SERIES)
    return {"color": SERIES[turn], "marker": MARKERS[turn], "linestyle": LINES[turn]}


def _clean(svg: str, caption: str) -> str:
    """Returns the SVG element with the caption as its name, and with variables for the colours."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    for name, mark in _MARKS.items():
        svg = svg.replace(mark, f"var(--{name.partition(':')[2]}, {_COLORS[name]})")
    svg = svg.replace("'DejaVu Sans'", "system-ui, sans-serif")
    svg = svg.replace("<svg ", f'<svg role="img" aria-label={quoteattr(caption)} ', 1)
    return re.sub(r"\n\s*", "\n", svg)


class Plots(Sequence["Canvas"]):
    """Figures of matplotlib, which belong to the caller: pyplot does not know them.

    A notebook shows all of them, and each one by itself.

    Attributes:
        captions: of the figures.
    """

    def __init__(self, figures: Sequence[Figure]) -> None:
        self._figures = list(figures)
        self._canvases: dict[int, Canvas] = {}
        self.captions = [figure.caption for figure in self._figures]

    def __len__(self) -> int:
        return len(self._figures)

    @overload
    def __getitem__(self, index: int) -> "Canvas": ...

    @overload
    def __getitem__(self, index: slice) -> "list[Canvas]": ...

    def __getitem__(self, index: int | slice) -> "Canvas | list[Canvas]":
        """Returns a figure, always the same one, so that a caller may change it."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        if number not in self._canvases:
            self._canvases[number] = self._figures[number].create_canvas()
        return self._canvases[number]

    def __repr__(self) -> str:
        lines = [f"  {number}  {caption}" for number, caption in enumerate(self.captions)]
        return "\n".join([f"{len(self)} figures", *lines])

    def _repr_html_(self) -> str:
        return "".join(
            f'<figure style="margin: 0 0 1em 0; max-width: 34em" aria-label="{escape(figure.caption)}">{figure.svg}'
            f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
            for figure in self._figures
        )


Curve = Sequence[tuple[int, float]]  # Optimizer steps and values.


def read_curves(directory: Path) -> Mapping[str, Curve]:
    """Returns each logged value over the steps: `train/soft`, `dev/accuracy`, ...; empty without metrics.csv.

    A resumed run has several files. Lines that a killed run cut off are left out.
    """
    curves: dict[str, dict[int, float]] = {}
    for path in [*sorted(directory.glob("metrics.before-*.csv")), directory / "metrics.csv"]:
        if not path.is_file():
            continue
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            for row in csv.DictReader(line.replace("\0", "") for line in file):
                values = {name: value for name, text in row.items() if (value := _number(text)) is not None}
                if (step := values.pop("step", None)) is not None:
                    for name, value in values.items():
                        if name.startswith((TERM, DEV)):
                            curves.setdefault(name, {})[int(step)] = value
    return {name: sorted(points.items()) for name, points in curves.items()}


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except (TypeError, ValueError):
        return None
    return value if abs(value) < float("inf") else None


POINTS = 80  # Of the curve of a loss; each one is the mean of as many steps.
WIDE_LOSSES = 4  # Ratio of the largest to the smallest loss, from which an axis is logarithmic.
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
        points = {series: np.array(_thin(curve) if is_loss else curve).T for series, curve in curves.items()}
        plot_lines(axes, points, linewidth=1.3, **{"marker": ""} if is_loss else {})
        values = [float(value) for of in points.values() for value in of[1]]
        if is_loss and max(values) > WIDE_LOSSES * min(values) > 0:
            set_logarithmic(axes, "y", values)
        axes.set(xlabel="optimizer step", ylabel=label_axes(axis))

    return draw(caption, plot, name=name, columns=3)


def _thin(curve: Curve) -> Curve:
    """Returns at most `POINTS` points of a curve, each the mean of as many neighbours."""
    step = -(-len(curve) // POINTS)
    groups = (curve[start : start + step] for start in range(0, len(curve), step))
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


MOST_SERIES = 6  # Of a figure with a colour for each.
MOST_TICKS = 8  # Values of a parameter that are marked, each one.
WIDE_PARAMETER = 8  # Ratio of the largest to the smallest value of a parameter, from which its axis is logarithmic.


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
                    [point.cost], [point.metric], yerr=[[below], [above]], label=None if turn else label_axes(name),
                    markersize=5, elinewidth=1, alpha=0.3 if point in behind else 1.0,
                    **style_of(number) | {"linestyle": "none"},
                )  # fmt: skip
        plot_references(axes, references, zorder=1)
        set_logarithmic(axes, "x", [point.cost for point in points])
        axes.set(ylim=(low, high), xlabel=cost, ylabel=label_axes(metric))

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
    settings: Sequence[Setting], name: str, *, metric: str, caption: str, references: Mapping[str, float] | None = None
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
                label=label_axes(rest) if rest and not several else None, capsize=3, markersize=5, elinewidth=1,
                linewidth=1.2, **style,
            )  # fmt: skip
        plot_references(axes, references)
        (_scale_numbers if numeric else _name_values)(axes, values)
        axes.set(ylim=(low, high), xlabel=label_axes(name, longest=48), ylabel=label_axes(metric))

    return draw(f"{caption}{CUT if is_cut else ''}", plot, name=f"by-{name}")


def _scale_numbers(axes: "Axes", numbers: Sequence[object]) -> None:
    """Marks the values of the horizontal axis if they are few. The axis is logarithmic if they are far apart."""
    from matplotlib.ticker import NullLocator

    values = [float(str(number)) for number in numbers]
    if 0 < WIDE_PARAMETER * min(values) <= max(values):
        set_logarithmic(axes, "x", values)
    if len(values) <= MOST_TICKS:
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(values, [f"{value:g}" for value in values])


def _name_values(axes: "Axes", values: Sequence[object]) -> None:
    """Names the values of the horizontal axis, which are no numbers."""
    slanted = len(values) > 4 or max(len(str(value)) for value in values) > 12
    names = [label_axes(value, longest=22) for value in values]
    axes.set_xticks(range(len(values)), names, rotation=35 if slanted else 0, ha="right" if slanted else "center")
    axes.set_xlim(-0.5, len(values) - 0.5)


def draw_heat_map(settings: Sequence[Setting], names: tuple[str, str], *, caption: str) -> Figure:
    """Returns the metric of each combination of two parameters as a table of shades."""
    rows, columns = (order_values([setting.values.get(name) for setting in settings]) for name in names)
    means = [setting.mean for setting in settings]
    span = max(means) - min(means) or 1.0
    cells = {
        (rows.index(of.values.get(names[0])), columns.index(of.values.get(names[1]))): (
            f"{of.mean:.4f}", 0.05 + 0.5 * (of.mean - min(means)) / span,
        )
        for of in settings
    }  # fmt: skip

    def plot(axes: "Axes") -> None:
        names_of_rows, names_of_columns = ([label_axes(value, longest=12) for value in of] for of in (rows, columns))
        plot_cells(axes, cells, rows=names_of_rows, columns=names_of_columns, fontsize=8)
        axes.set(ylabel=label_axes(names[0], longest=40), xlabel=label_axes(names[1], longest=48))

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
