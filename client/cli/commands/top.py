"""The command ``flintmq top``."""

from __future__ import annotations

import dataclasses
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ....protocol.display import JSON, TABLE
from ....protocol.errors import FlintError
from ...operator.rates import Rates, Sample, between, take
from ..command import command, note
from ..failures import EXIT_INTERRUPTED, EXIT_OK, describe
from ..output import TableColumn
from ..params import COUNT, SPAN
from ..settings import BrokerChoice

if TYPE_CHECKING:
    from ...sync.admin import Admin

ANSWER_SECONDS_MAX = 2.0
"""Maximum seconds to wait for a response: the live screen must not freeze for longer while the broker is away."""
RESIZE_SECONDS = 0.25
"""Seconds between two redraws, so that the screen follows a change of the terminal's size."""
KEY_BYTES_MAX = 8
PLAIN_COLUMNS = tuple(
    (
        "time produced_messages_per_second produced_bytes_per_second pulled_messages_per_second "
        "pulled_bytes_per_second flush_p99_seconds reput_behind_bytes index_behind_bytes disk_free_bytes "
        "disk_runway_seconds lag"
    ).split()
)


@command("top")
@click.option("-i", "--interval", type=SPAN, default="1s", show_default=True, help="Time between two samples.")
@click.option("-n", "--count", type=COUNT, help="End after this many samples.")
@click.option("--system", is_flag=True, help="Include the topics of the broker and of groups.")
def top(settings: BrokerChoice, interval: float, count: int | None, system: bool) -> int:
    """Show rates, lag and disk space live; q or Ctrl-C ends.

    If there are more topics or groups than lines, the arrow keys and Page Up/Down scroll, and Tab switches to the other
    table. s changes the order: busiest first, largest first, by name.

    In a pipe, or with -o plain or json, each interval prints one line; the one in JSON has all topics and groups.
    """
    if interval < 0.1:
        raise click.BadParameter("must be at least 0.1 seconds", param_hint="'--interval'")
    with settings.admin() as admin:
        first = take(admin, system=system)
        if first.condition.withheld:
            note(settings, f"most figures are hidden: {first.condition.withheld}")
        try:
            if settings.output.mode == TABLE and sys.stdout.isatty():
                return _live(settings, first, interval, count, system=system)
            return _lines(settings, admin, first, interval, count, system=system)
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED


def _lines(
    settings: BrokerChoice, admin: Admin, before: Sample, interval: float, count: int | None, *, system: bool
) -> int:
    output = settings.output
    shown = 0
    while count is None or shown < count:
        time.sleep(interval)
        after = take(admin, system=system)
        row = rates_row(between(before, after))
        if output.mode == JSON:
            output.json(row)
        else:
            output.rows([TableColumn(name, name) for name in PLAIN_COLUMNS], [row])
        output.flush()
        before, shown = after, shown + 1
    return EXIT_OK


def rates_row(rates: Rates) -> dict[str, Any]:
    """Return the rates under their JSON names."""
    condition, per_second = rates.condition, rates.per_second
    return {
        "time": datetime.now(UTC),
        **{f"{name}_per_second": None if value is None else round(value, 1) for name, value in per_second.items()},
        "flush_p50_seconds": condition.flush_p50_seconds,
        "flush_p99_seconds": condition.flush_p99_seconds,
        "flush_behind_bytes": condition.flush_behind_bytes,
        "reput_behind_bytes": condition.reput_behind_bytes,
        "index_behind_bytes": condition.index_behind_bytes,
        "disk_free_bytes": condition.number("disk_free_bytes"),
        "disk_runway_seconds": None if condition.disk_runway_seconds is None else round(condition.disk_runway_seconds),
        "lag": sum(group.lag or 0 for group in rates.groups),
        "topics": list(map(dataclasses.asdict, rates.topics)),
        "groups": list(map(dataclasses.asdict, rates.groups)),
    }


def _live(settings: BrokerChoice, before: Sample, interval: float, count: int | None, *, system: bool) -> int:
    from rich.live import Live

    from ..top_screen import END_KEYS, Screen

    patient = dataclasses.replace(settings, timeout=min(settings.seconds, ANSWER_SECONDS_MAX))
    screen = Screen(settings.addresses, interval)
    shown = 0
    with (
        _keys() as pressed,
        patient.admin() as admin,
        Live(screen, console=settings.output.console(), screen=True, auto_refresh=False) as live,
    ):
        while count is None or shown < count:
            deadline = time.monotonic() + interval
            while (left := deadline - time.monotonic()) > 0:
                live.refresh()
                key = pressed(min(left, RESIZE_SECONDS))
                if key in END_KEYS:
                    return EXIT_OK
                screen.view.press(key)
            try:
                after = take(admin, system=system)
            except FlintError as error:
                screen.away = describe(error)[0]
                continue
            screen.away = ""
            screen.rates = between(before, after)
            before, shown = after, shown + 1
        live.refresh()
    return EXIT_OK


def _no_keys(seconds: float) -> str:
    time.sleep(seconds)
    return ""


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits some seconds for a single key of the terminal and returns it, or ``""``."""
    try:
        import termios
        import tty
    except ImportError:  # Windows: only Ctrl-C ends the command
        termios = None  # type: ignore[assignment]  # a module elsewhere
    if termios is None or not sys.stdin.isatty():
        yield _no_keys
        return
    descriptor = sys.stdin.fileno()
    saved = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> str:
        if not select.select([descriptor], [], [], seconds)[0]:
            return ""
        key = os.read(descriptor, 1)
        while key.startswith(b"\x1b") and len(key) < KEY_BYTES_MAX and select.select([descriptor], [], [], 0)[0]:
            key += os.read(descriptor, 1)  # an arrow, Page Down, …
            if len(key) > 2 and (key[-1:].isalpha() or key.endswith(b"~")):
                break
        return key.decode("ascii", "replace") or "\x04"  # end of input: the terminal is gone

    tty.setcbreak(descriptor)
    try:
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, saved)
