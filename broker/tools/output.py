"""Output of the tools: numbers, times, JSON lines, and a progress bar on a terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

TABLE, JSON, PLAIN = "table", "json", "plain"
MODES = (TABLE, JSON, PLAIN)
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Terminal control characters and line ends: a damaged file may contain anything."""
_JSON = json.JSONEncoder(ensure_ascii=False)
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")

Progress = Callable[[str, int, int], None]
"""Callback with (stage, amount done, total amount)."""


def escape(text: str) -> str:
    """Return ``text`` on one line, without control characters."""
    return text if text.isprintable() else _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def to_json(row: Mapping[str, Any]) -> str:
    """Return one object as a line of JSON without control characters."""
    return escape(_JSON.encode(row))


def to_plain(values: list[Any]) -> str:
    """Return the values separated by tabs; None is empty."""
    return "\t".join("" if value is None else escape(str(value)) for value in values)


def iso_time(ms: int | None) -> str | None:
    """Return ``2026-11-21T10:00:00.123Z``; None for an invalid time."""
    if ms is None or ms <= 0:
        return None
    second = _iso_second(ms // 1000)
    return f"{second}.{ms % 1000:03d}Z" if second else None


@lru_cache(maxsize=64)
def _iso_second(seconds: int) -> str | None:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
    except (OverflowError, OSError, ValueError):
        return None


def show_bytes(count: float) -> str:
    """Format ``1234567`` as ``1.23 MB``, in powers of 1000."""
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(_BYTE_UNITS) - 1:
        value /= 1000
        unit += 1
    return f"{value:.3g} {_BYTE_UNITS[unit]}"


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show a bar on standard error if it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total or None)

        yield show
