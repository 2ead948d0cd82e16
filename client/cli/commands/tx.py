"""``flintmq tx``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ..command import Group, note, pass_settings
from ..failures import EXIT_NOT_FOUND
from ..output import Column, number
from ..params import COUNT
from ..settings import Settings
from ..units import plural, show_moment, show_seconds

if TYPE_CHECKING:
    from ...core.transactions import TransactionInfo
    from ...sync.admin import Admin

PAGE_COUNT = 1_000
LIST_COLUMNS = (
    Column("id", "ID"),
    Column("topic", "TOPIC", fold=True),
    Column("group", "GROUP", fold=True),
    Column("state", "STATE"),
    number("age_seconds", "AGE", show_seconds),
    number("checks", "CHECKS"),
    Column("born_at", "SENT", show_moment, spare=True),
)

PREPARED_COLUMNS = (
    Column("attempt", "ATTEMPT"),
    Column("topics", "TOPICS"),
    number("messages", "MESSAGES"),
    number("idle_seconds", "IDLE", show_seconds),
)


@click.group(cls=Group)
def tx() -> None:
    """Transactions that are open, or that nobody could tell the end of: list, commit, roll back."""


@tx.command("list")
@pass_settings
@click.option("--group", default="", help="Only of this producer group.")
@click.option("--parked", is_flag=True, help="Only those that were parked.")
@click.option("-n", "--count", type=COUNT, help="At most so many.  [default: all]")
def list_(settings: Settings, group: str, parked: bool, count: int | None) -> None:
    """Show open and parked transactions, the oldest first.

    Parked are those whose producers could not say how they ended, however often they were asked.
    """
    rows: list[dict[str, Any]] = []
    with settings.admin() as admin:
        for info, state in _all(admin, open_ones=not parked):
            if group in ("", info.group):
                rows.append(_row(info, state))
                if len(rows) == count:
                    break
    of_group = f" of producer group {group}" if group else ""
    settings.output.rows(LIST_COLUMNS, rows, empty=f"no transaction{of_group} is {'' if parked else 'open or '}parked")


def _all(admin: Admin, *, open_ones: bool) -> Iterator[tuple[TransactionInfo, str]]:
    """Open transactions, if they are wanted, then those that were parked, each with its state."""
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
@click.option("-n", "--count", type=COUNT, default=100, show_default=True, help="At most so many.")
def prepared(settings: Settings, prefix: str, count: int) -> None:
    """Show what attempts have prepared that nobody has committed.

    With PREFIX those whose names begin so, such as the id of a Spark query. First are those to which nothing came for
    longest.
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
    settings.output.rows(PREPARED_COLUMNS, rows, empty="nothing is prepared")
    for each in found.copying:
        note(settings, f"transaction {each.number} of {each.series} is committed; {each.copied} of {each.messages} "
                       "messages are copied")  # fmt: skip


@tx.command("drop")
@pass_settings
@click.argument("prefix")
def drop(settings: Settings, prefix: str) -> None:
    """Drop what the attempts prepared whose names begin with PREFIX; nothing of it can be committed then."""
    with settings.admin() as admin:
        count = admin.abort_prepared(prefix)
    note(settings, f"dropped {plural(count, 'attempt')}")


@tx.command("commit")
@pass_settings
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
def commit(settings: Settings, ids: tuple[str, ...]) -> int:
    """Deliver the messages of transactions that are open or parked."""
    return _end(settings, ids, commit=True, said="committed")


@tx.command("rollback")
@pass_settings
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
def rollback(settings: Settings, ids: tuple[str, ...]) -> int:
    """Never deliver the messages of transactions that are open."""
    return _end(settings, ids, commit=False, said="rolled back")


def _end(settings: Settings, ids: tuple[str, ...], *, commit: bool, said: str) -> int:
    """End each of them; none where one is not there."""
    with settings.admin() as admin:
        groups = _groups(admin, set(ids).__contains__)
        missing = [each for each in ids if each not in groups]
        if missing:
            note(settings, f"no transaction {', '.join(missing)} is open or parked; nothing was {said}")
            return EXIT_NOT_FOUND
        for each in ids:
            admin.end_transaction(each, groups[each], commit=commit)
    note(settings, f"{said} {plural(len(ids), 'transaction')}")
    return 0


def _groups(admin: Admin, wanted: Callable[[str], bool]) -> dict[str, str]:
    """The producer groups of transactions, by id."""
    return {info.id: info.group for info, _ in _all(admin, open_ones=True) if wanted(info.id)}
