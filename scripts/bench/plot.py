"""Plots as SVG: panels side by side, whose lines show figures relative to each line's first one."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Line: TypeAlias = Sequence[tuple[float, float]]
"""Points of (size, figure), smallest size first."""

_WIDTH = 900
_MARGIN_LEFT = 58
_GAP = 24
_TOP = 44
_HEIGHT = 220
_LEGEND_ROW = 18
_COLORS = (
    ("#0969da", "#58a6ff"),
    ("#cf222e", "#ff7b72"),
    ("#1a7f37", "#3fb950"),
    ("#9a6700", "#d29922"),
    ("#8250df", "#bc8cff"),
    ("#57606a", "#9198a1"),
    ("#bf3989", "#f778ba"),
)
"""Color of each line on a light and on a dark page."""
_DASHES = ("none", "7 3", "2 3")


@dataclass(frozen=True, slots=True)
class Panel:
    """One coordinate system: its x axis is ``title``, its lines have names."""

    title: str
    lines: Mapping[str, Line]

    def relative(self) -> dict[str, list[tuple[float, float]]]:
        """Return the lines with each figure divided by the line's first figure; lines without one are left out."""
        return {
            name: [(size, figure / line[0][1]) for size, figure in line if figure > 0]
            for name, line in self.lines.items()
            if line and line[0][1] > 0
        }


def draw(title: str, panels: Sequence[Panel]) -> str:
    """Return an SVG image of the panels, which share one y axis; both axes are logarithmic."""
    shown = [panel.relative() for panel in panels]
    ratios = [ratio for lines in shown for line in lines.values() for _, ratio in line] or [1.0]
    low = min(-1, math.floor(math.log2(min(ratios))))
    high = max(1, math.ceil(math.log2(max(ratios))))
    width = (_WIDTH - _MARGIN_LEFT - _GAP * len(panels)) / max(len(panels), 1)
    bottom = _TOP + _HEIGHT

    def y_of(ratio: float) -> float:
        return bottom - _HEIGHT * (math.log2(ratio) - low) / (high - low)

    rows = max((len(lines) for lines in shown), default=0)
    height = bottom + 52 + rows * _LEGEND_ROW
    parts = [_head(title, height)]
    for power in range(low, high + 1):
        parts.append(_text(_MARGIN_LEFT - 6, y_of(2.0**power) + 4, f"× {2.0**power:g}", anchor="end"))
    for number, (panel, lines) in enumerate(zip(panels, shown, strict=True)):
        left = _MARGIN_LEFT + number * (width + _GAP)
        for power in range(low, high + 1):
            name = "first" if power == 0 else "grid"
            parts.append(f'<path class="{name}" d="M{left:.1f} {y_of(2.0**power):.1f}h{width:.1f}"/>')
        sizes = sorted({size for line in lines.values() for size, _ in line})
        x_of = {size: left + width * (0.06 + 0.88 * _share(size, sizes)) for size in sizes}
        parts.extend(_text(x, bottom + 16, _short(size)) for size, x in x_of.items())
        parts.append(_text(left + width / 2, bottom + 34, panel.title, cls="head"))
        for order, (name, line) in enumerate(lines.items()):
            points = [(x_of[size], y_of(ratio)) for size, ratio in line]
            at = bottom + 56 + order * _LEGEND_ROW
            parts += _line(order, points)
            parts += _line(order, [(left + 2, at - 4), (left + 26, at - 4)])
            parts.append(_text(left + 34, at, name, anchor="start"))
    return "\n".join([*parts, "</svg>", ""])


def _head(title: str, height: float) -> str:
    def colors(theme: int) -> str:
        return " ".join(
            f".c{number} {{ stroke: {pair[theme]} }} circle.c{number} {{ fill: {pair[theme]} }}"
            for number, pair in enumerate(_COLORS)
        )

    label = html.escape(title)
    box = f"0 0 {_WIDTH} {height:.0f}"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img" aria-label="{label}">
<title>{label}</title>
<style>
  text {{ font: 12px system-ui, sans-serif; fill: #1f2328 }} .head {{ font-weight: 600 }}
  path {{ fill: none; stroke-width: 2 }} .grid {{ stroke: #d0d7de; stroke-width: 1 }}
  .first {{ stroke: #57606a; stroke-width: 1 }}
  {colors(0)}
  @media (prefers-color-scheme: dark) {{
    text {{ fill: #e6edf3 }} .grid {{ stroke: #30363d }} .first {{ stroke: #8b949e }}
    {colors(1)}
  }}
</style>
{_text(_MARGIN_LEFT, 22, title, anchor="start", cls="head")}"""


def _line(order: int, points: Sequence[tuple[float, float]]) -> list[str]:
    """Return one line with a dot at each point; color and dashes follow from its order."""
    color = f"c{order % len(_COLORS)}"
    dash = _DASHES[order % len(_DASHES)]
    way = " ".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dots = [f'<circle class="{color}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in points]
    return [f'<path class="{color}" stroke-dasharray="{dash}" d="M{way}"/>', *dots]


def _text(x: float, y: float, text: str, *, anchor: str = "middle", cls: str = "") -> str:
    name = f' class="{cls}"' if cls else ""
    return f'<text{name} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _share(size: float, sizes: Sequence[float]) -> float:
    """Return the position of a size on the logarithmic x axis, 0 to 1."""
    if len(sizes) < 2:
        return 0.5
    return math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])


def _short(size: float) -> str:
    return f"{size / 1e6:g} M" if size >= 1e6 else f"{size:,.0f}"
