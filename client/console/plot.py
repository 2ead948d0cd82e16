"""The plot of messages in and out per second during the last hour: points of SVG polylines, and a table of the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .sampler import HISTORY_SECONDS

WIDTH, HEIGHT = 720, 160
SLOT_SECONDS = 15.0
"""Samples are averaged over this time: four points a minute are as fine as the plot is wide."""
ROW_SECONDS = 300.0
Rates = tuple[float, float, float]
"""Seconds ago, messages in per second, messages out per second."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot in a box of ``WIDTH`` × ``HEIGHT``. ``incoming``, ``outgoing``: points of polylines, one for each time
    without a gap; ``highest``: rate at the upper edge; ``rows``: averages over five minutes, the newest first."""

    incoming: list[str]
    outgoing: list[str]
    highest: float
    rows: list[Rates]


def plot(history: Sequence[Rates]) -> Plot | None:
    """Return the plot of a sampler's history, or None if fewer than two times are known."""
    slots = _averages(history, SLOT_SECONDS)
    if len(slots) < 2:
        return None
    highest = _round_up(max(max(incoming, outgoing) for _, incoming, outgoing in slots))
    runs: list[list[Rates]] = []
    for slot in slots:
        # A slot without samples is a gap of the plot, not a line across it.
        if not runs or runs[-1][-1][0] - slot[0] > 1.5 * SLOT_SECONDS:
            runs.append([])
        runs[-1].append(slot)
    return Plot(
        [_points([(ago, incoming) for ago, incoming, _ in run], highest) for run in runs],
        [_points([(ago, outgoing) for ago, _, outgoing in run], highest) for run in runs],
        highest,
        _averages(history, ROW_SECONDS)[::-1],
    )


def _averages(history: Sequence[Rates], seconds: float) -> list[Rates]:
    """Return the averages over consecutive spans, the oldest first; spans without samples are left out."""
    spans: dict[int, list[Rates]] = {}
    for rates in history:
        if 0 <= rates[0] <= HISTORY_SECONDS:
            spans.setdefault(int(rates[0] / seconds), []).append(rates)
    return [
        (span * seconds, sum(each[1] for each in found) / len(found), sum(each[2] for each in found) / len(found))
        for span, found in sorted(spans.items(), reverse=True)
    ]


def _points(values: Sequence[tuple[float, float]], highest: float) -> str:
    if len(values) == 1:
        values = [*values, (values[0][0] - SLOT_SECONDS / 2, values[0][1])]  # a line needs two points
    return " ".join(
        f"{WIDTH * (1 - ago / HISTORY_SECONDS):.1f},{HEIGHT * (1 - rate / highest):.1f}" for ago, rate in values
    )


def _round_up(rate: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, …"""
    power = 1.0
    while True:
        for digit in (1, 2, 5):
            if rate <= digit * power:
                return digit * power
        power *= 10
