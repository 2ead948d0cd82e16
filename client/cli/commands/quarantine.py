"""The command ``flintmq quarantine``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ....protocol.commands import QUARANTINE_MAX, QuarantineEntry
from ....protocol.display import JSON, TABLE
from ...operator.display import plural, shown_name
from ..command import CliCommand, note, pass_settings
from ..output import columns_of, number
from ..settings import BrokerChoice

if TYPE_CHECKING:
    from ...sync.admin import Admin

COLUMNS = columns_of(
    QuarantineEntry,
    "physical_offset bytes found_at stored_at lost_messages lost reason file",
    lost_messages=lambda count: f"{count:,}" if count else "none known",
    lost=str,
)
TABLE_LOST_MAX = 3
"""Number of ranges of lost messages that a row of a table names."""
DATA_COLUMNS = (*COLUMNS, number("lost_left_out", ""))
"""Columns of JSON and plain output."""


@click.command("quarantine", cls=CliCommand)
@pass_settings
def quarantine(settings: BrokerChoice) -> None:
    """List the damaged ranges of the broker's log, and the messages that are lost in them.

    The broker keeps the damaged bytes in the folder flintmq/quarantine of its store.
    """
    output = settings.output
    with settings.admin() as admin:
        entries = list(_all(admin))
    output.rows(
        COLUMNS if output.mode == TABLE else DATA_COLUMNS,
        [_row(each, output.mode) for each in entries],
        empty="nothing is in the quarantine",
    )
    if entries:
        note(settings, "consumers skip the lost messages; flintmq/quarantine in the broker's store has the bytes")


def _all(admin: Admin) -> Iterator[QuarantineEntry]:
    """Yield all entries; takes a request for each thousand."""
    page = admin.quarantine()
    while page:
        yield from page
        page = admin.quarantine(page[-1]) if len(page) == QUARANTINE_MAX else []


def _row(each: QuarantineEntry, mode: str) -> dict[str, Any]:
    lost = list(map(asdict, each.lost)) if mode == JSON else _text(each, table=mode == TABLE)
    return {column.name: getattr(each, column.name) for column in DATA_COLUMNS} | {"lost": lost}


def _text(each: QuarantineEntry, *, table: bool) -> str:
    """Return the lost messages as a line of text."""
    shown = each.lost[:TABLE_LOST_MAX] if table else each.lost
    texts = [
        f"{shown_name(lost.topic) if table else lost.topic} queue {lost.queue}: {lost.queue_offset:,}"
        + (f" to {lost.queue_offset + lost.messages - 1:,}" if lost.messages > 1 else "")
        for lost in shown
    ]
    if more := each.lost_left_out + len(each.lost) - len(shown):
        texts.append(f"and {plural(more, 'more range')}")
    return "; ".join(texts)
