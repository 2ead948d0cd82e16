"""The command ``flintmq connections``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ....protocol.commands import CONNECTIONS_MAX
from ....protocol.display import TABLE, escape, show_bytes
from ....protocol.errors import ConfigurationError
from ...operator.display import show_second, show_seconds
from ..command import CommandGroup, confirm, note, pass_settings
from ..output import TableColumn, number
from ..settings import BrokerChoice

if TYPE_CHECKING:
    from ....protocol.commands import ConnectionInfo
    from ...sync.admin import Admin

COLUMNS = (
    number("id", "ID"),
    TableColumn("address", "ADDRESS"),
    TableColumn("user", "USER"),
    TableColumn("client", "CLIENT", fold=True),
    TableColumn("opened_at", "SINCE", show_second, spare=True),
    TableColumn("idle_seconds", "IDLE", lambda seconds: show_seconds(seconds) if seconds >= 1 else ""),
    number("frames_in", "FRAMES IN"),
    TableColumn("bytes_in", "IN", show_bytes),
    TableColumn("bytes_out", "OUT", show_bytes),
    number("held_pulls", "HELD PULLS"),
    TableColumn("tls", "TLS", lambda tls: "yes" if tls else ""),
)


@click.group("connections", cls=CommandGroup)
@pass_settings
def connections(settings: BrokerChoice) -> None:
    """List the clients that are connected to the broker, this one last; close a connection.

    \b
        flintmq connections
        flintmq connections close 17
    """
    if click.get_current_context().invoked_subcommand is None:
        _show(settings)


def _show(settings: BrokerChoice) -> None:
    with settings.admin() as admin:
        rows = [_row(each) for each in _all(admin)]
    hidden = {name for name in ("user", "tls") if settings.output.mode == TABLE and not any(row[name] for row in rows)}
    settings.output.rows(tuple(column for column in COLUMNS if column.name not in hidden), rows)


@connections.command("close")
@click.argument("ids", metavar="ID...", type=click.IntRange(min=0), nargs=-1, required=True)
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
            who = f"connection {number} of {escape(_row(found)['address'])}"
            who += (
                f" ({escape(' '.join(filter(None, (found.user, found.client))))})" if found.user or found.client else ""
            )
            if not yes:
                confirm(f"close {who}?", "closes", "closed")
            admin.close_connection(found.id, found.opened_ms)
            note(settings, f"closed {who}")


def _all(admin: Admin) -> list[ConnectionInfo]:
    """Return all connections; takes a request for each thousand."""
    found: list[ConnectionInfo] = []
    page = admin.connections()
    while page:
        found += page
        page = admin.connections(page[-1].id) if len(page) == CONNECTIONS_MAX else []
    return found


def _row(each: ConnectionInfo) -> dict[str, Any]:
    host = f"[{each.host}]" if ":" in each.host else each.host
    return {
        "id": each.id,
        "address": f"{host}:{each.port}",
        "user": each.user,
        "client": each.client,
        "opened_at": each.opened_at,
        "idle_seconds": each.idle_ms / 1000,
        "frames_in": each.frames_in,
        "bytes_in": each.bytes_in,
        "bytes_out": each.bytes_out,
        "held_pulls": each.held_pulls,
        "tls": each.tls,
    }
