"""The command ``flintmq tx``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ....protocol.commands import AttemptInfo, TransactionInfo
from ...operator.display import plural, show_seconds, shown_name
from ..command import CliGroup, note, pass_settings
from ..failures import EXIT_NOT_FOUND
from ..output import TableColumn, columns_of, number
from ..params import COUNT, GROUP
from ..settings import BrokerChoice

if TYPE_CHECKING:
    from ...sync.admin import Admin

PAGE_COUNT = 1_000
LIST_COLUMNS = (
    *columns_of(TransactionInfo, "id topic group"),
    TableColumn("state", "STATE"),
    number("age_seconds", "AGE", show_seconds),
    *columns_of(TransactionInfo, "checks born_at"),
)
PREPARED_COLUMNS = (
    *columns_of(
        AttemptInfo, "attempt topics messages", topics=lambda topics: " ".join(map(shown_name, topics.split()))
    ),
    number("idle_seconds", "IDLE", show_seconds),
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
    rows: list[dict[str, Any]] = []
    with settings.admin() as admin:
        for info, state in _all(admin, open_ones=not parked):
            if group in ("", info.group):
                rows.append(_row(info, state))
                if len(rows) == count:
                    break
    of_group = f" of producer group {shown_name(group)}" if group else ""
    settings.output.rows(LIST_COLUMNS, rows, empty=f"no transaction{of_group} is {'' if parked else 'open or '}parked")


def _all(admin: Admin, *, open_ones: bool) -> Iterator[tuple[TransactionInfo, str]]:
    """Yield the open transactions if ``open_ones`` is set, then the parked ones, each with its state."""
    for parked in (False, True) if open_ones else (True,):
        offset = 0
        while offset >= 0:
            page = admin.transactions(parked=parked, from_offset=offset, max_count=PAGE_COUNT)
            for info in page.rows:
                yield info, ("delivered" if info.delivered else "parked") if parked else "open"
            offset = page.next_offset


def _row(info: TransactionInfo, state: str) -> dict[str, Any]:
    return {
        "id": info.id,
        "topic": info.topic,
        "group": info.group,
        "state": state,
        "age_seconds": round(max((datetime.now(UTC) - info.born_at).total_seconds(), 0.0), 3),
        "checks": info.checks,
        "born_at": info.born_at,
    }


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
    now = datetime.now(UTC)
    rows = [
        {
            "attempt": info.attempt,
            "topics": " ".join(info.topics),
            "messages": info.messages,
            "idle_seconds": round(max((now - info.active_at).total_seconds(), 0.0), 3),
        }
        for info in found.attempts
    ]
    settings.output.rows(PREPARED_COLUMNS, rows, empty="no messages are staged")
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
        groups = _groups(admin, set(ids).__contains__)
        missing = [each for each in ids if each not in groups]
        if missing:
            note(settings, f"no open or parked transaction has the id {', '.join(missing)}; nothing was {said}")
            return EXIT_NOT_FOUND
        for each in ids:
            admin.end_transaction(each, groups[each], commit=commit)
    note(settings, f"{said} {plural(len(ids), 'transaction')}")
    return 0


def _groups(admin: Admin, wanted: Callable[[str], bool]) -> dict[str, str]:
    """Return the producer groups of the wanted transactions, by id."""
    return {info.id: info.group for info, _ in _all(admin, open_ones=True) if wanted(info.id)}
