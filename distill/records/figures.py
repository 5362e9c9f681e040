"""Draws figures with matplotlib as SVG, whose colours follow the page that shows them: light, dark or printed."""

import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from xml.sax.saxutils import quoteattr

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


def draw(caption: str, plot: Callable[["Axes"], None], *, name: str = "figure", height: float = HEIGHT) -> Figure:
    """Returns the figure of one pair of axes that `plot` fills.

    Args:
        name: as in `Figure`.
        height: in inches.
    """
    svg = _clean(_render(caption, plot, height).decode(), caption)
    return Figure(
        caption, svg, name, draw_pdf=lambda: _render(caption, plot, height, "pdf"),
        create_canvas=lambda: create_canvas(plot, height),
    )  # fmt: skip


def _render(caption: str, plot: Callable[["Axes"], None], height: float, format: str = "svg") -> bytes:
    """Returns the file that matplotlib writes, always the same. The ids of SVG are hashes with `caption`."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    content = io.BytesIO()
    _register_colors(_MARKS if format == "svg" else _COLORS)
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": caption}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The page has fonts for letters that matplotlib's own lacks.
        canvas = Canvas(figsize=(WIDTH, height), layout="constrained")
        plot(canvas.add_subplot())
        canvas.savefig(content, format=format, metadata=_METADATA[format])
    return content.getvalue()


def _register_colors(colors: Mapping[str, str]) -> None:
    """Gives the names of colours these values, one by one: `update` would keep what matplotlib has looked up before."""
    import matplotlib

    known = matplotlib.colors.get_named_colors_mapping()
    for name, color in colors.items():
        known[name] = color


def create_canvas(plot: Callable[["Axes"], None], height: float) -> "Canvas":
    """Returns a figure of matplotlib that looks the same wherever it is drawn, and that a notebook shows by itself."""
    import matplotlib
    from matplotlib.backend_bases import RendererBase
    from matplotlib.figure import Figure as Canvas

    class StyledCanvas(Canvas):
        def draw(self, renderer: RendererBase) -> None:
            # matplotlib looks up names of colours, and the style of ticks, when it draws.
            _register_colors(_COLORS)
            with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Of letters that the font lacks.
                super().draw(renderer)

        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=150)
            return content.getvalue()

    _register_colors(_COLORS)
    with matplotlib.rc_context(_STYLE):
        canvas = StyledCanvas(figsize=(WIDTH, height), layout="constrained")
        plot(canvas.add_subplot())
    return canvas


def label(text: object, *, longest: int = 60) -> str:
    """Returns a name for an axis or a legend, cut to `longest` characters and without control characters."""
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in str(text)).split())
    words = words if len(words) <= longest else f"{words[: longest - 1]}…"
    return f" {words}" if words.startswith("_") else words  # matplotlib leaves such a name out of the legend.


def add_legend(axes: "Axes", *, columns: int = 2) -> None:
    """Adds a legend above the axes, where it covers no point; long names have one column."""
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
