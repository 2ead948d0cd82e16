"""Points of a sparkline, drawn as SVG by the templates."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH, HEIGHT = 90, 20


def sparkline_points(values: Sequence[float | None]) -> str:
    """Return the points of a polyline in a box of 90 × 20, newest value at the right; empty if nothing is known."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return ""
    highest = max(known) or 1.0
    step = WIDTH / (len(values) - 1)
    return " ".join(
        f"{index * step:.1f},{HEIGHT - 1 - value / highest * (HEIGHT - 2):.1f}"
        for index, value in enumerate(values)
        if value is not None
    )
