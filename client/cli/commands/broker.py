"""The commands ``flintmq config``, ``connections``, ``quarantine`` and ``replica``: the broker and its replica set."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ....protocol.commands import (
    CONNECTIONS_MAX,
    QUARANTINE_MAX,
    ChangedSetting,
    ConnectionInfo,
    QuarantineEntry,
    SetMember,
    Setting,
)
from ....protocol.display import JSON, TABLE, escape
from ....protocol.errors import ConfigurationError, RequestTimeout
from ...operator.display import plural, show_seconds, shown_name
from ..command import CliCommand, CliGroup, CommandGroup, confirm, note, pass_settings
from ..failures import nearest
from ..output import TableColumn, columns_of, number, values_of
from ..params import CHANGE, SETTING, NumberType, RealType
from ..settings import BrokerChoice

if TYPE_CHECKING:
    from ...core.admin import ReplicaSetStatus
    from ...sync.admin import Admin

R = TypeVar("R")


def _all_rows(page: Callable[..., list[R]], page_rows: int, after: Callable[[R], Any]) -> list[R]:
    """Return all rows of a list that the broker gives in pages. ``after``: returns the argument for the page that
    follows a row."""
    rows = page()
    found = list(rows)
    while len(rows) == page_rows:
        rows = page(after(rows[-1]))
        found += rows
    return found


# ---- The command ``flintmq config``.

SETTING_COLUMNS = columns_of(Setting, "name value at_start hot")
UNCHANGED_SETTING_COLUMNS = columns_of(Setting, "name value hot")
"""Columns of the table if every value is as it was at the start."""
SETTING_DATA_COLUMNS = columns_of(Setting, "name value at_start hot rule")
HIDDEN = "security."
"""Beginning of the names of settings that the broker shows to no client."""
CHANGED_SETTING_COLUMNS = columns_of(ChangedSetting, "name before after")


@click.group(cls=CliGroup)
def config() -> None:
    """List, show and change the broker's settings."""


@config.command("list")
@pass_settings
@click.option("--hot", is_flag=True, help="Only settings that can be changed while the broker runs.")
@click.option("--changed", is_flag=True, help="Only settings that were changed since the start.")
def list_settings(settings: BrokerChoice, hot: bool, changed: bool) -> None:
    """List the settings, except those of [security], which the broker shows to no client."""
    with settings.admin() as admin:
        found = admin.settings()
    chosen = [each for each in found if (each.hot or not hot) and (each.value != each.at_start or not changed)]
    columns = SETTING_COLUMNS if any(each.value != each.at_start for each in chosen) else UNCHANGED_SETTING_COLUMNS
    if settings.output.mode != TABLE:
        columns = SETTING_DATA_COLUMNS
    settings.output.rows(columns, chosen, empty="no setting has been changed since the start")


@config.command("get")
@pass_settings
@click.argument("name", metavar="SECTION.NAME", type=SETTING)
def get(settings: BrokerChoice, name: str) -> None:
    """Show one setting."""
    with settings.admin() as admin:
        found = {setting.name: setting for setting in admin.settings()}
    if name.startswith(HIDDEN):
        raise ConfigurationError(
            f"the broker shows no setting of [security] to clients, so not {name}: look at the file, the variables and "
            "the arguments with which it was started"
        )
    if name not in found:
        raise ConfigurationError(f"there is no setting {name}; flintmq config list shows all{nearest(name, found)}")
    settings.output.record(SETTING_DATA_COLUMNS, values_of(SETTING_DATA_COLUMNS, found[name]))


@config.command("set")
@pass_settings
@click.argument("assignments", metavar="SECTION.NAME=VALUE...", type=CHANGE, nargs=-1, required=True)
def set_settings(settings: BrokerChoice, assignments: tuple[str, ...]) -> None:
    """Change settings of the running broker: all that are given, or none.

    The changes last until the broker is restarted. To make them permanent, put them into its broker.toml.
    """
    changes: dict[str, int | str | bool] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator or "." not in name:
            raise click.UsageError(
                f"expected SECTION.NAME=VALUE, such as retention.file_reserved_hours=24; got {assignment!r}",
                click.get_current_context(),
            )
        changes[name.strip()] = value
    with settings.admin() as admin:
        changed = admin.change_settings(changes)
    settings.output.rows(CHANGED_SETTING_COLUMNS, changed)
    note(
        settings,
        "this lasts until the broker is restarted; to make it permanent, put it into the file for `flintmq-broker "
        "serve --config`, such as the broker.toml that `flintmq-broker conf DIR` writes",
    )


# ---- The command ``flintmq connections``.

CONNECTION_COLUMNS = columns_of(
    ConnectionInfo,
    "id address user client opened_at idle_seconds frames_in bytes_in bytes_out held_pulls tls",
    idle_seconds=lambda seconds: show_seconds(seconds) if seconds >= 1 else "",
)


@click.group("connections", cls=CommandGroup)
@pass_settings
def connections(settings: BrokerChoice) -> None:
    """List the clients that are connected to the broker, this one last; close a connection.

    \b
        flintmq connections
        flintmq connections close 17
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    with settings.admin() as admin:
        rows = _all_rows(admin.connections, CONNECTIONS_MAX, lambda row: row.id)
    hidden = {
        name
        for name in ("user", "tls")
        if settings.output.mode == TABLE and not any(getattr(row, name) for row in rows)
    }
    settings.output.rows([column for column in CONNECTION_COLUMNS if column.name not in hidden], rows)


@connections.command("close")
@click.argument("ids", metavar="ID...", type=NumberType(0), nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@pass_settings
def close(settings: BrokerChoice, ids: tuple[int, ...], yes: bool) -> None:
    """Close connections, by the ID of flintmq connections. Needs --admin.

    The broker tells the client why. A client of FlintMQ connects again with its next request: to keep it out, remove
    its user or change the password.
    """
    with settings.admin() as admin:
        for number in dict.fromkeys(ids):
            found = next(
                (each for each in admin.connections(max(0, number - 1), max_count=1) if each.id == number), None
            )
            if found is None:
                raise ConfigurationError(f"connection {number} is not open; flintmq connections lists the open ones")
            who = f"connection {number} of {escape(found.address)}"
            who += (
                f" ({escape(' '.join(filter(None, (found.user, found.client))))})" if found.user or found.client else ""
            )
            if not yes:
                confirm(f"close {who}?", "closes", "closed")
            admin.close_connection(found.id, found.opened_ms)
            note(settings, f"closed {who}")


# ---- The command ``flintmq quarantine``.

TABLE_LOST_MAX = 3
"""Number of ranges of lost messages that a row of a table names."""


@click.command("quarantine", cls=CliCommand)
@pass_settings
def quarantine(settings: BrokerChoice) -> None:
    """List the damaged ranges of the broker's log, and the messages that are lost in them.

    The broker keeps the damaged bytes in the folder flintmq/quarantine of its store.
    """
    output = settings.output
    with settings.admin() as admin:
        entries = _all_rows(admin.quarantine, QUARANTINE_MAX, lambda entry: entry)
    columns = columns_of(
        QuarantineEntry,
        "physical_offset bytes found_at stored_at lost_messages lost reason file",
        {"lost": lambda each: list(map(asdict, each.lost)) if output.mode == JSON else _lost(each, output.mode)},
        lost_messages=lambda count: f"{count:,}" if count else "none known",
        lost=str,
    )
    if output.mode != TABLE:
        columns += (number("lost_left_out", ""),)
    output.rows(columns, entries, empty="nothing is in the quarantine")
    if entries:
        note(settings, "consumers skip the lost messages; flintmq/quarantine in the broker's store has the bytes")


def _lost(each: QuarantineEntry, mode: str) -> str:
    """Return the lost messages as a line of text."""
    table = mode == TABLE
    shown = each.lost[:TABLE_LOST_MAX] if table else each.lost
    texts = [
        f"{shown_name(lost.topic) if table else lost.topic} queue {lost.queue}: {lost.queue_offset:,}"
        + (f" to {lost.queue_offset + lost.messages - 1:,}" if lost.messages > 1 else "")
        for lost in shown
    ]
    if more := each.lost_left_out + len(each.lost) - len(shown):
        texts.append(f"and {plural(more, 'more range')}")
    return "; ".join(texts)


# ---- The command ``flintmq replica``.

POLL_S = 0.1
SET_COLUMNS = (
    TableColumn("replica_set", "set", style="bold"),
    TableColumn("primary", "primary", lambda member: member or "none"),
    number("epoch", "epoch", str),
    number("min_in_sync", "needs in sync"),
    number("end", "log ends at"),
    number("confirmed", "confirmed"),
    TableColumn("reason", "problem"),
)
MEMBER_COLUMNS = columns_of(
    SetMember,
    "member address in_sync connected flushed behind_ms",
    in_sync=lambda is_so: "yes" if is_so else "no",
    connected=lambda is_so: "yes" if is_so else "no",
    flushed=lambda offset: f"{offset:,}" if offset >= 0 else "",
    behind_ms=lambda ms: show_seconds(ms / 1000) if ms >= 0 else "away",
)


@click.group(cls=CliGroup)
def replica() -> None:
    """Show and change the replica set of the broker.

    \b
        flintmq replica status
        flintmq replica switch b
        flintmq replica add d 10.0.0.4:10911
        flintmq replica remove c

    On a member's own machine, `flintmq-broker replica init` begins a set, and `flintmq-broker replica force` decides
    after a loss.
    """


@replica.command()
@pass_settings
def status(settings: BrokerChoice) -> None:
    """Show the primary, the members, and how far behind each is."""
    with settings.admin() as admin:
        found = _required(admin)
    if settings.output.mode == TABLE:
        settings.output.record(SET_COLUMNS, asdict(found))
    role = TableColumn("role", "ROLE", of=lambda each: found.role if each.member == found.member else "follower")
    settings.output.rows((*MEMBER_COLUMNS[:2], role, *MEMBER_COLUMNS[2:]), found.members)


def _required(admin: Admin) -> ReplicaSetStatus:
    found = admin.replica_status()
    if not found.replica_set:
        raise ConfigurationError("the broker is on its own: replication.set of its settings is empty")
    return found


@replica.command()
@click.argument("member")
@click.option(
    "--within",
    type=RealType(0.1, 600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Maximum time that MEMBER gets to have the whole log; if it is too slow, nothing changes.",
)
@pass_settings
def switch(settings: BrokerChoice, member: str, within: float) -> None:
    """Hand the leadership to MEMBER, which must be in sync. Clients follow by themselves."""
    with settings.admin() as admin:
        _required(admin)
        admin.switch_primary(member, within=within)
        end = time.monotonic() + within
        while admin.replica_status().primary != member:
            if time.monotonic() > end:
                raise RequestTimeout(f"{member} did not take over within {within:g} s; the primary continues to lead")
            time.sleep(POLL_S)
    note(settings, f"{member} leads")


@replica.command()
@click.argument("member")
@click.argument("address", metavar="HOST:PORT")
@pass_settings
def add(settings: BrokerChoice, member: str, address: str) -> None:
    """Add MEMBER, which listens at HOST:PORT. Start it afterwards, with an empty store: it copies everything."""
    with settings.admin() as admin:
        _required(admin)
        admin.add_member(member, address)
    note(settings, f"{member} is being added: start it, then see `flintmq replica status`")


@replica.command()
@click.argument("member")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_settings
def remove(settings: BrokerChoice, member: str, yes: bool) -> None:
    """Remove MEMBER from the set. It keeps its store, and can no longer lead."""
    if not yes:
        confirm(f"Remove {member} from the replica set?", "removes", "removed")
    with settings.admin() as admin:
        _required(admin)
        admin.remove_member(member)
    note(settings, f"{member} is being removed")
