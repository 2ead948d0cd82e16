"""The command ``flintmq connections``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ....protocol.commands import CONNECTIONS_MAX, ConnectionInfo
from ....protocol.display import TABLE, escape
from ....protocol.errors import ConfigurationError
from ...operator.display import show_seconds
from ..command import CommandGroup, confirm, note, pass_settings
from ..output import columns_of
from ..settings import BrokerChoice

if TYPE_CHECKING:
    from ...sync.admin import Admin

COLUMNS = columns_of(
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
    if click.get_current_context().invoked_subcommand is None:
        _show(settings)


def _show(settings: BrokerChoice) -> None:
    with settings.admin() as admin:
        rows = _all(admin)
    hidden = {
        name
        for name in ("user", "tls")
        if settings.output.mode == TABLE and not any(getattr(row, name) for row in rows)
    }
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
            who = f"connection {number} of {escape(found.address)}"
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
