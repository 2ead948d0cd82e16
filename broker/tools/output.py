"""What the tools print: figures, moments, JSON lines; and a progress bar where a terminal shows it."""

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
"""What would drive a terminal or end a line: a damaged file may hold anything."""
_JSON = json.JSONEncoder(ensure_ascii=False)
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")

Progress = Callable[[str, int, int], None]
"""Called with (what is done, how much of it, how much there is in all)."""


def escape(text: str) -> str:
    """``text`` on one line and without control characters."""
    return text if text.isprintable() else _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def to_json(row: Mapping[str, Any]) -> str:
    """One object as a line of JSON, in which nothing can drive a terminal."""
    return escape(_JSON.encode(row))


def to_plain(values: list[Any]) -> str:
    """Values separated by tabs; nothing for None."""
    return "\t".join("" if value is None else escape(str(value)) for value in values)


def iso_time(ms: int | None) -> str | None:
    """``2026-11-21T10:00:00.123Z``; None for what is no time."""
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
    """``1234567`` as ``1.23 MB``, in powers of 1000."""
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(_BYTE_UNITS) - 1:
        value /= 1000
        unit += 1
    return f"{value:.3g} {_BYTE_UNITS[unit]}"


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on standard error while it is a terminal; else nothing is shown."""
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
