"""The command ``flintmq delay``."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from ....protocol.display import TABLE
from ...operator.display import plural, show_moment
from ..command import CliGroup, note, pass_settings
from ..output import TableColumn, number
from ..params import NumberType
from ..settings import BrokerChoice

COLUMNS = (
    TableColumn("waits", "WAITS"),
    number("messages", "MESSAGES"),
    TableColumn("next_due_at", "NEXT DUE", show_moment),
)
DATA_COLUMNS = (TableColumn("kind", ""), TableColumn("level", ""), TableColumn("begins_at", ""), *COLUMNS[1:])
"""Columns of JSON and plain output. ``kind`` is level, hour or parked."""
LEVELS = (
    "1 s",
    "5 s",
    "10 s",
    "30 s",
    "1 min",
    "2 min",
    "3 min",
    "4 min",
    "5 min",
    "6 min",
    "7 min",
    "8 min",
    "9 min",
    "10 min",
    "20 min",
    "30 min",
    "1 h",
    "2 h",
)


@click.group(cls=CliGroup)
def delay() -> None:
    """Messages waiting for later delivery."""


@delay.command("list")
@pass_settings
@click.option(
    "--hours", type=NumberType(1, 10_000), default=24, show_default=True, help="Maximum number of hours to list."
)
def list_delays(settings: BrokerChoice, hours: int) -> None:
    """Count the waiting messages, by delay level, and by the hour in which timed messages are due.

    The last hour includes all later messages.
    """
    with settings.admin() as admin:
        stats = admin.delays(max_hours=hours)

    def row(kind: str, waits: str, messages: int, next_due_at: datetime | None, **which: Any) -> dict[str, Any]:
        return {"kind": kind, "waits": waits, "messages": messages, "next_due_at": next_due_at, **which}

    rows = [
        row("level", f"level {level} ({LEVELS[level - 1]})", waiting.messages, waiting.next_due_at, level=level)
        for level, waiting in stats.levels.items()
        if waiting.messages
    ]
    rows += [
        row("hour", f"from {show_moment(begins_at)[:16]}", waiting.messages, waiting.next_due_at, begins_at=begins_at)
        for begins_at, waiting in stats.hours
    ]
    if stats.parked:
        rows.append(row("parked", "parked", stats.parked, None))
    columns = COLUMNS if settings.output.mode == TABLE else DATA_COLUMNS
    settings.output.rows(columns, rows, empty="no messages wait for later delivery")
    if stats.behind:
        note(settings, f"{plural(stats.behind, 'timed message')} not counted yet")
    if stats.parked:
        note(settings, "parked messages could not be delivered; flintmq pull rmq_sys_flintmq_parked shows them")
