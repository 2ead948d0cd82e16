"""The commands ``flintmq tx`` and ``flintmq delay``: messages that are stored and not delivered yet."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ....protocol.commands import AttemptInfo, TransactionInfo
from ....protocol.display import TABLE
from ...operator.display import plural, show_moment, show_seconds, shown_name
from ..command import CliGroup, note, pass_settings
from ..failures import EXIT_NOT_FOUND
from ..output import TableColumn, columns_of, number
from ..params import COUNT, GROUP, NumberType
from ..settings import BrokerChoice

if TYPE_CHECKING:
    from ...sync.admin import Admin

# ---- The command ``flintmq tx``.

PAGE_COUNT = 1_000
OPEN, PARKED, DELIVERED = "open", "parked", "delivered"


def _seconds_since(moment: datetime) -> float:
    return round(max((datetime.now(UTC) - moment).total_seconds(), 0.0), 3)


PREPARED_COLUMNS = (
    *columns_of(
        AttemptInfo,
        "attempt topics messages",
        {"topics": lambda info: " ".join(info.topics)},
        topics=lambda topics: " ".join(map(shown_name, topics.split())),
    ),
    number("idle_seconds", "IDLE", show_seconds, of=lambda info: _seconds_since(info.active_at)),
)


@click.group(cls=CliGroup)
def tx() -> None:
    """List open and parked transactions; commit or roll them back by hand."""


@tx.command("list")
@pass_settings
@click.option("--group", type=GROUP, default="", help="Only transactions of this producer group.")
@click.option("--parked", is_flag=True, help="Only parked transactions.")
@click.option("-n", "--count", type=COUNT, help="Maximum number to show.  [default: all]")
def list_(settings: BrokerChoice, group: str, parked: bool, count: int | None) -> None:
    """Show open and parked transactions, oldest first.

    A transaction is parked if its producer has left all of the broker's checks undecided.
    """
    states: dict[TransactionInfo, str] = {}
    with settings.admin() as admin:
        for info, state in _all(admin, open_ones=not parked):
            if group in ("", info.group):
                states[info] = state
                if len(states) == count:
                    break
    columns = (
        *columns_of(TransactionInfo, "id topic group"),
        TableColumn("state", "STATE", of=states.get),
        number("age_seconds", "AGE", show_seconds, of=lambda info: _seconds_since(info.born_at)),
        *columns_of(TransactionInfo, "checks born_at"),
    )
    of_group = f" of producer group {shown_name(group)}" if group else ""
    settings.output.rows(columns, states, empty=f"no transaction{of_group} is {'' if parked else 'open or '}parked")


def _all(admin: Admin, *, open_ones: bool) -> Iterator[tuple[TransactionInfo, str]]:
    """Yield the open transactions if ``open_ones`` is set, then the parked ones, each with its state."""
    for parked in (False, True) if open_ones else (True,):
        offset = 0
        while offset >= 0:
            page = admin.transactions(parked=parked, from_offset=offset, max_count=PAGE_COUNT)
            for info in page.rows:
                yield info, (DELIVERED if info.delivered else PARKED) if parked else OPEN
            offset = page.next_offset


@tx.command("prepared")
@pass_settings
@click.argument("prefix", default="")
@click.option("-n", "--count", type=COUNT, default=100, show_default=True, help="Maximum number to show.")
def prepared(settings: BrokerChoice, prefix: str, count: int) -> None:
    """Show the stages of transactions that are not committed yet, the longest idle first.

    PREFIX selects the stages whose names begin with it, such as the id of a Spark query.
    """
    with settings.admin() as admin:
        found = admin.prepared(prefix, max_count=min(count, PAGE_COUNT))
    settings.output.rows(PREPARED_COLUMNS, found.attempts, empty="no messages are staged")
    for each in found.copying:
        note(
            settings,
            f"transaction {each.number} of {each.series} is committed; the broker has copied "
            f"{each.copied} of {each.messages} messages",
        )


@tx.command("drop")
@pass_settings
@click.argument("prefix")
def drop(settings: BrokerChoice, prefix: str) -> None:
    """Discard the stages whose names begin with PREFIX: their messages can no longer be committed."""
    with settings.admin() as admin:
        count = admin.abort_prepared(prefix)
    note(settings, f"dropped {plural(count, 'stage')}")


@tx.command("commit")
@pass_settings
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
def commit(settings: BrokerChoice, ids: tuple[str, ...]) -> int:
    """Deliver the messages of open or parked transactions."""
    return _end(settings, ids, commit=True, said="committed")


@tx.command("rollback")
@pass_settings
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
def rollback(settings: BrokerChoice, ids: tuple[str, ...]) -> int:
    """Discard the messages of open transactions."""
    return _end(settings, ids, commit=False, said="rolled back")


def _end(settings: BrokerChoice, ids: tuple[str, ...], *, commit: bool, said: str) -> int:
    """End the transactions; end none if one of them does not exist."""
    with settings.admin() as admin:
        groups = {info.id: info.group for info, _ in _all(admin, open_ones=True) if info.id in ids}
        missing = [each for each in ids if each not in groups]
        if missing:
            note(settings, f"no open or parked transaction has the id {', '.join(missing)}; nothing was {said}")
            return EXIT_NOT_FOUND
        for each in ids:
            admin.end_transaction(each, groups[each], commit=commit)
    note(settings, f"{said} {plural(len(ids), 'transaction')}")
    return 0


# ---- The command ``flintmq delay``.

DELAY_COLUMNS = (
    TableColumn("waits", "WAITS"),
    number("messages", "MESSAGES"),
    TableColumn("next_due_at", "NEXT DUE", show_moment),
)
DELAY_DATA_COLUMNS = (
    TableColumn("kind", ""),
    TableColumn("level", ""),
    TableColumn("begins_at", ""),
    *DELAY_COLUMNS[1:],
)
"""Columns of JSON and plain output. ``kind`` is level, hour or parked."""
LEVELS = (
    "1 s, 5 s, 10 s, 30 s, 1 min, 2 min, 3 min, 4 min, 5 min, 6 min, 7 min, 8 min, 9 min, 10 min, 20 min, 30 min, "
    "1 h, 2 h"
).split(", ")
"""Delays of RocketMQ's levels, the first of which is 1."""


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
    columns = DELAY_COLUMNS if settings.output.mode == TABLE else DELAY_DATA_COLUMNS
    settings.output.rows(columns, rows, empty="no messages wait for later delivery")
    if stats.behind:
        note(settings, f"{plural(stats.behind, 'timed message')} not counted yet")
    if stats.parked:
        note(settings, "parked messages could not be delivered; flintmq pull rmq_sys_flintmq_parked shows them")
