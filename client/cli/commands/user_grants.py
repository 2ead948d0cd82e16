"""The commands ``flintmq user grant``, ``revoke`` and ``show``: the permissions of users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ....protocol.auth.permissions import ACTIONS, BROKER, Grant
from ....protocol.auth.users import check_user_name
from ....protocol.display import TABLE, escape
from ....protocol.errors import ConfigurationError
from ...operator.display import shown_name
from ...operator.rights import RIGHTS, grant_of
from ..command import CliCommand, note, pass_settings
from ..failures import nearest
from ..output import TableColumn
from ..settings import BrokerChoice
from ..user_store import UserStore, open_users, store_option

COLUMNS = (TableColumn("actions", "MAY", ", ".join), TableColumn("on", "ON"), TableColumn("name", "NAME"))
DATA_COLUMNS = (
    TableColumn("actions", "MAY"),
    TableColumn("on", "ON"),
    TableColumn("name", "NAME"),
    TableColumn("prefix", "PREFIX"),
)


def _option(right: str) -> str:
    return f"--{right.replace('_', '-')}"


def _grant_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the permissions to grant or revoke; each is repeatable."""
    decorators = [
        click.option(_option(name), name, multiple=True, metavar=right.kind.upper(), help=right.text)
        for name, right in RIGHTS.items()
        if right.kind != BROKER
    ]
    decorators.append(click.option("--prefix", is_flag=True, help="Treat the names as prefixes of topics or groups."))
    decorators += [
        click.option(_option(name), name, is_flag=True, help=right.text)
        for name, right in RIGHTS.items()
        if right.kind == BROKER
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


@click.command("grant", cls=CliCommand)
@click.argument("name")
@_grant_options
@store_option
@pass_settings
def grant(settings: BrokerChoice, /, name: str, store: str | None, **given: Any) -> None:
    """Grant permissions to a user. The broker refuses everything that is not granted.

    \b
        flintmq user grant shop --publish orders --producer-group shop
        flintmq user grant billing --consume orders --group billing
        flintmq user grant reports --query flights- --consume flights- --prefix

    A prefix, even an empty one, never covers the broker's own topics or %RETRY% and %DLQ% topics. --group includes the
    group's retry topic; its dead letters need --consume '%DLQ%billing'.
    """
    grants = _grants(given)
    with open_users(settings, store) as users:
        users.grant(name, grants)
        _tell(settings, users, name, "now")


@click.command("revoke", cls=CliCommand)
@click.argument("name")
@_grant_options
@click.option("--all", "everything", is_flag=True, help="All grants of the user.")
@store_option
@pass_settings
def revoke(settings: BrokerChoice, /, name: str, store: str | None, everything: bool, **given: Any) -> None:
    """Revoke permissions from a user, with the same options as grant."""
    grants = None if everything else _grants(given)
    with open_users(settings, store) as users:
        users.revoke(name, grants)
        _tell(settings, users, name, "left")


@click.command("show", cls=CliCommand)
@click.argument("name")
@store_option
@pass_settings
def show_grants(settings: BrokerChoice, name: str, store: str) -> None:
    """Show the permissions of a user."""
    with open_users(settings, store) as users:
        known = users.grants()
    if check_user_name(name) not in known:
        raise ConfigurationError(f"there is no user {name!r}{nearest(name, known)}")
    table = settings.output.mode == TABLE
    settings.output.rows(
        COLUMNS if table else DATA_COLUMNS,
        [grant_row(each, table=table) for each in known[name]],
        empty=f"user {name} has no permissions; flintmq user grant {name} adds some",
    )


def grant_row(each: Grant, *, table: bool) -> dict[str, Any]:
    """Return the row of a grant; ``table``: for a person to read."""
    actions = [action for action in ACTIONS if action in each.actions]
    name = f"{shown_name(each.name)}{'…' if each.prefix else ''}" if table else each.name
    return {"actions": actions, "on": each.kind, "name": name, "prefix": each.prefix}


def _grants(given: dict[str, Any]) -> list[Grant]:
    """Return the grants for the options. Raises ``ConfigurationError`` for an invalid name."""
    names = {name: ("",) * given[name] if right.kind == BROKER else given[name] for name, right in RIGHTS.items()}
    found = [
        grant_of(right, name, given["prefix"], f"{_option(right)} {escape(name)}")
        for right, chosen in names.items()
        for name in chosen
    ]
    if not found:
        raise click.UsageError(
            "pass what to grant or revoke: --publish, --consume, --group, … or --admin", click.get_current_context()
        )
    return found


def _tell(settings: BrokerChoice, users: UserStore, name: str, when: str) -> None:
    count = len(users.grants()[name])
    note(
        settings,
        f"user {name} has {count} grant{'' if count == 1 else 's'} {when}; a running broker applies it {users.notice}",
    )
