"""Templates, and what shows figures in them: filters, plots and sparklines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from ...protocol.display import escape, iso, show_bytes
from ...protocol.rows import Display, ValueKind, displays_of
from ...protocol.times import from_millis
from ..operator.display import plural, show_count, show_rate, show_seconds, shown_name
from .sampler import HISTORY_SECONDS

FOLDER = Path(__file__).parent
_NOTHING = "–"
PART_LINES = 100
"""Number of lines of a body that the browser lays out at once; ``.part`` in the style has their height."""


def environment() -> Environment:
    """Return the environment of all templates. Values are escaped, and a missing value is an error."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # The templates belong to the release: no page looks whether one has changed.
        auto_reload=False,
    )
    made.filters.update(
        count=show_count,
        size=show_bytes,
        rate=show_rate,
        seconds=show_seconds,
        moment=moment,
        millis=lambda ms: moment(None if ms is None or ms < 0 else from_millis(ms)),
        part=lambda text: quote(str(text), safe=""),
        parts=line_parts,
        visible=_visible,
        named=_named,
        sparkline=sparkline_points,
    )
    made.globals.update(plural=plural, query=query)
    return made


# ---- Tables of rows: headings and kinds of values are those that the rows declare, as on the command line.


@dataclass(frozen=True, slots=True)
class PageColumn:
    """One column of a table. ``show``: function that returns the text of a value; ``css``: class of its cells."""

    name: str
    heading: str
    show: Callable[[Any], Markup | str]
    css: str = ""


def columns_of(cls: type[Any], names: str, **others: str | Display) -> tuple[PageColumn, ...]:
    """Return columns of a row class. ``names``: of its columns and properties, separated by spaces; ``others``:
    headings that differ from what the row declares, and how cells are shown that the row does not declare."""
    declared = [name for name in names.split() if not isinstance(others.get(name), Display)]
    displays = displays_of(cls, declared)
    found = []
    for name in names.split():
        other = others.get(name)
        display = other if isinstance(other, Display) else displays[name]
        show, css = _SHOWN[display.kind]
        heading = other if isinstance(other, str) else display.heading[0].upper() + display.heading[1:]
        is_long = display.fold and display.kind is ValueKind.TEXT
        found.append(PageColumn(name, heading, show, "preview" if is_long else css))
    return tuple(found)


def moment(value: datetime | None) -> Markup | str:
    """Return a time element: UTC to the millisecond, which the page's script shows in the browser's zone."""
    if value is None:
        return _NOTHING
    stamp = iso(value)
    # The stamp has digits and punctuation only, so it needs no escaping, which would take most of the time of a list.
    return Markup(f'<time datetime="{stamp}">{stamp[:-1].replace("T", " ")} UTC</time>')  # noqa: S704


def _visible(value: object) -> str:
    return escape(str(value))


def _named(name: str) -> str:
    return escape(shown_name(name))


_SHOWN: dict[ValueKind, tuple[Callable[[Any], Markup | str], str]] = {
    ValueKind.TEXT: (_visible, ""),
    ValueKind.NAME: (_named, ""),
    ValueKind.COUNT: (show_count, "number"),
    ValueKind.NUMBER: (str, "number"),
    ValueKind.BYTES: (show_bytes, "number"),
    ValueKind.SECONDS: (show_seconds, "number"),
    ValueKind.MOMENT: (moment, ""),
    ValueKind.SECOND: (moment, ""),
    ValueKind.FLAG: (lambda flag: "yes" if flag else "no", ""),
}
"""How a page shows each kind of value, and the class of its cells."""


def line_parts(text: str) -> list[str]:
    """Return a text in parts of ``PART_LINES`` lines; joined, they are the text."""
    lines = text.split("\n")
    parts = ["\n".join(lines[first : first + PART_LINES]) for first in range(0, len(lines), PART_LINES)]
    return [f"{part}\n" for part in parts[:-1]] + parts[-1:]


def query(**arguments: object) -> str:
    """Return ``?name=value&…`` without the empty arguments."""
    given = {name.rstrip("_"): value for name, value in arguments.items() if value not in (None, "", False)}
    return f"?{urlencode(given)}" if given else "?"


# ---- Plots, drawn as SVG by the templates.

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


# ---- The sparkline of a topic.

SPARK_WIDTH, SPARK_HEIGHT = 90, 20


def sparkline_points(values: Sequence[float | None]) -> str:
    """Return the points of a polyline in a box of 90 × 20, newest value at the right; empty if nothing is known."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return ""
    highest = max(known) or 1.0
    step = SPARK_WIDTH / (len(values) - 1)
    return " ".join(
        f"{index * step:.1f},{SPARK_HEIGHT - 1 - value / highest * (SPARK_HEIGHT - 2):.1f}"
        for index, value in enumerate(values)
        if value is not None
    )
