"""Draws latency against metric as an SVG file."""

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 40, 60  # Margins in pixels; names of points stand on the right.
COLORS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2")
STYLE = "font: 12px system-ui, sans-serif"


class Point(NamedTuple):
    """A model: its latency in ms, its metric, and its name."""

    ms: float
    metric: float
    name: str


def draw_latency(
    points: Sequence[Point], *, metric: str, title: str, reference: tuple[str, float] | None = None
) -> str:
    """Returns an SVG with the latency on a logarithmic axis, and the metric of a reference as a dashed line."""
    low, high = _limits([math.log10(point.ms) for point in points], 0.1)
    values = [point.metric for point in points] + ([reference[1]] if reference else [])
    bottom, top = _limits(values, 0.02)

    def x(ms: float) -> float:
        return LEFT + (math.log10(ms) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)

    parts = [_text(LEFT, TOP - 18, title, weight="bold"), _text(LEFT, HEIGHT - 12, "p50 in ms, logarithmic")]
    parts.append(_text(12, TOP - 4, metric))
    parts += [_tick(x(ms), HEIGHT - BOTTOM, f"{ms:g}", vertical=True) for ms in _ticks(low, high)]
    steps = [bottom + step * (top - bottom) / 4 for step in range(5)]
    parts += [_tick(LEFT, y(value), f"{value:.3f}") for value in steps]
    if reference:
        name, value = reference
        parts.append(_line(LEFT, y(value), WIDTH - RIGHT, y(value), dash=True))
        parts.append(_text(WIDTH - RIGHT + 6, y(value) + 4, name))
    for number, point in enumerate(points):
        color = COLORS[number % len(COLORS)]
        parts.append(f'<circle cx="{x(point.ms):.1f}" cy="{y(point.metric):.1f}" r="5" fill="{color}"/>')
        row = TOP + 18 * number
        parts.append(f'<circle cx="{WIDTH - RIGHT + 12}" cy="{row + 16}" r="5" fill="{color}"/>')
        parts.append(_text(WIDTH - RIGHT + 22, row + 20, f"{point.name} {point.ms:.2f} ms"))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" style="{STYLE}">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _limits(values: Sequence[float], least: float) -> tuple[float, float]:
    """Returns the ends of an axis, with a margin around the values."""
    low, high = min(values), max(values)
    margin = max((high - low) * 0.1, least)
    return low - margin, high + margin


def _ticks(low: float, high: float) -> list[float]:
    """Returns 1, 2 and 5 times the powers of ten between two logarithms."""
    exponents = range(math.floor(low), math.ceil(high) + 1)
    values = [factor * 10.0**exponent for exponent in exponents for factor in (1, 2, 5)]
    return [value for value in values if low <= math.log10(value) <= high]


def _tick(x: float, y: float, label: str, *, vertical: bool = False) -> str:
    if vertical:
        return _line(x, TOP, x, y) + _text(x, y + 18, label, anchor="middle")
    return _line(x, y, WIDTH - RIGHT, y) + _text(x - 6, y + 4, label, anchor="end")


def _line(x1: float, y1: float, x2: float, y2: float, *, dash: bool = False) -> str:
    style = 'stroke="#111" stroke-dasharray="6 4"' if dash else 'stroke="#ddd"'
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {place}>{html.escape(text)}</text>"
