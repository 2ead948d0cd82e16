"""Output of the tools: times, and a progress bar on a terminal."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import click

from ...protocol.display import escape

Progress = Callable[[str, int, int], None]
"""Callback with (stage, amount done, total amount)."""


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


# ---- Exit codes and errors of the commands in this package.

EXIT_REFUSED = 2
"""The tool could not do its work: an invalid argument, a store in use, an error of the disk."""
EXIT_INTERRUPTED = 130
"""Ctrl-C, as 128 + SIGINT."""


def tool_command(work: Callable[..., int]) -> Callable[..., None]:
    """Wrap a command: turn errors into one line and an exit code. ``work`` returns the exit code."""

    @functools.wraps(work)
    def run(**arguments: Any) -> None:
        from ...protocol.errors import FlintError

        try:
            code = work(**arguments)
        except KeyboardInterrupt:
            click.echo("flintmq-broker: interrupted", err=True)
            code = EXIT_INTERRUPTED
        except (FlintError, OSError) as error:
            for line in (str(error), *getattr(error, "__notes__", ())):
                click.echo(f"flintmq-broker: {escape(line)}", err=True)
            code = EXIT_REFUSED
        sys.exit(code)

    return run
