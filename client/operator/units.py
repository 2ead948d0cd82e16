"""Figures formatted for people. ``output.py`` gives programs plain numbers."""

from __future__ import annotations

from datetime import datetime

from ...protocol.display import three_digits

_UNKNOWN = "–"
_TO_THE_SECOND = len("2026-11-21 11:00:00")


def show_count(count: float | None) -> str:
    """Return ``1234567`` as ``1,234,567``."""
    return _UNKNOWN if count is None else f"{count:,.0f}"


def show_rate(per_second: float | None) -> str:
    """Return events per second: ``1234567`` as ``1.23 M/s``, ``12.345`` as ``12.3/s``."""
    if per_second is None:
        return _UNKNOWN
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        # Three digits would round what is above to 1,000 of the smaller unit.
        if per_second >= limit * 0.9995:
            value = per_second / (1e3 if unit == " k" else limit)
            return f"{value:.{three_digits(value)}f}{unit}/s"
    return f"{per_second:,.0f}/s" if per_second >= 100 or per_second == int(per_second) else f"{per_second:.1f}/s"


def show_seconds(seconds: float | None) -> str:
    """Return a duration: ``850 µs``, ``12.3 ms``, ``4.20 s``, ``3 min 20 s``, ``2 h 5 min``, ``6 d 3 h``, ``120 d``."""
    if seconds is None or seconds < 0:
        return _UNKNOWN
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.{three_digits(seconds * 1e3)}f} ms"
    if seconds < 59.95:
        return f"{seconds:.{three_digits(seconds)}f} s"
    whole = round(seconds)
    for size, unit, smaller_size, smaller_unit in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller_size if whole < 100 * size else 0
            return f"{whole // size:,} {unit} {rest} {smaller_unit}" if rest else f"{whole // size:,} {unit}"
    raise AssertionError("at least a minute")


def show_moment(moment: datetime | None) -> str:
    """Return a local time with milliseconds, for tables: ``2026-11-21 11:00:00.123``."""
    if moment is None:
        return _UNKNOWN
    return moment.astimezone().replace(tzinfo=None).isoformat(" ", "milliseconds")


def show_second(moment: datetime | None) -> str:
    """Return a local time to the second: ``2026-11-21 11:00:00``."""
    return _UNKNOWN if moment is None else show_moment(moment)[:_TO_THE_SECOND]


def plural(count: int, noun: str, several: str = "") -> str:
    """Return ``1 message``, ``2,000 messages``. ``several``: the plural if it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else several or f'{noun}s'}"
