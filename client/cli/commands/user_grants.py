"""``flintmq user grant``, ``revoke`` and ``show``: the rights of users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ....protocol.errors import ConfigurationError
from ....protocol.escaping import escape
from ....protocol.permissions import (
    ACTIONS,
    ADMIN,
    BROKER,
    CONSUME,
    GROUP,
    PUBLISH,
    QUERY,
    TOPIC,
    Grant,
    make_grant,
)
from ....protocol.users import check_user_name
from ..command import Command, note, pass_settings
from ..failures import nearest
from ..output import TABLE, Column
from ..settings import Settings
from ..user_store import UserStore, open_users, store_option

COLUMNS = (Column("actions", "MAY", ", ".join), Column("on", "ON"), Column("name", "NAME"))
DATA_COLUMNS = (Column("actions", "MAY"), Column("on", "ON"), Column("name", "NAME"), Column("prefix", "PREFIX"))

_OPTIONS: dict[str, tuple[str, str, str]] = {
    "publish": (PUBLISH, TOPIC, "Send to a topic."),
    "consume": (CONSUME, TOPIC, "Read a topic."),
    "query": (QUERY, TOPIC, "Look up messages and offsets of a topic; who may consume it may this too."),
    "manage": (ADMIN, TOPIC, "Create, change and delete a topic."),
    "group": (CONSUME, GROUP, "Be in a consumer group, commit for it, and read what it tries again."),
    "query_group": (QUERY, GROUP, "See members and lag of a group; who may be in it may this too."),
    "manage_group": (ADMIN, GROUP, "Reset and delete a group."),
    "producer_group": (PUBLISH, GROUP, "Send transactions as a producer group."),
}
"""By option: the action and what it is on, and the help."""


def _grant_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What to grant or revoke; each may be given several times."""
    decorators = [
        click.option(f"--{name.replace('_', '-')}", name, multiple=True, metavar=kind.upper(), help=text)
        for name, (_, kind, text) in _OPTIONS.items()
    ]
    decorators += [
        click.option("--prefix", is_flag=True, help="The names are prefixes: of all topics or groups that begin so."),
        click.option("--query-broker", is_flag=True, help="See figures, settings and lists of the whole broker."),
        click.option("--admin", is_flag=True, help="Everything, the broker's own topics included."),
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


@click.command("grant", cls=Command)
@click.argument("name")
@_grant_options
@store_option
@pass_settings
def grant(settings: Settings, /, name: str, store: str | None, **given: Any) -> None:
    """Let a user do something. What nothing grants is refused.

    \b
        flintmq user grant shop --publish orders --producer-group shop
        flintmq user grant billing --consume orders --group billing
        flintmq user grant reports --query flights- --consume flights- --prefix

    A prefix, also an empty one, never covers the broker's own topics, nor %RETRY% and %DLQ% ones: a group brings its
    retry topic along, dead letters take --consume '%DLQ%billing'.
    """
    grants = _grants(given)
    with open_users(settings, store) as users:
        users.grant(name, grants)
        _tell(settings, users, name, "now")


@click.command("revoke", cls=Command)
@click.argument("name")
@_grant_options
@click.option("--all", "everything", is_flag=True, help="All that it was granted.")
@store_option
@pass_settings
def revoke(settings: Settings, /, name: str, store: str | None, everything: bool, **given: Any) -> None:
    """Take something away that a user was granted: the same options as for grant."""
    grants = None if everything else _grants(given)
    with open_users(settings, store) as users:
        users.revoke(name, grants)
        _tell(settings, users, name, "left")


@click.command("show", cls=Command)
@click.argument("name")
@store_option
@pass_settings
def show_grants(settings: Settings, name: str, store: str) -> None:
    """Show what a user may do."""
    with open_users(settings, store) as users:
        known = users.grants()
    if check_user_name(name) not in known:
        raise ConfigurationError(f"there is no user {name!r}{nearest(name, known)}")
    table = settings.output.mode == TABLE
    settings.output.rows(
        COLUMNS if table else DATA_COLUMNS,
        [_row(each, table=table) for each in known[name]],
        empty=f"user {name} may do nothing; flintmq user grant {name} lets it",
    )


def _row(each: Grant, *, table: bool) -> dict[str, Any]:
    actions = [action for action in ACTIONS if action in each.actions]
    name = f"{each.name}…" if table and each.prefix else each.name
    return {"actions": actions, "on": each.kind, "name": name, "prefix": each.prefix}


def _grants(given: dict[str, Any]) -> list[Grant]:
    """What the options say. Raises ``ConfigurationError`` for a name that cannot be."""
    prefix = given["prefix"]
    found = [
        make_grant((action,), kind, name, prefix, f"--{option.replace('_', '-')} {escape(name)}")
        for option, (action, kind, _) in _OPTIONS.items()
        for name in given[option]
    ]
    if given["query_broker"]:
        found.append(Grant(frozenset((QUERY,)), BROKER))
    if given["admin"]:
        found.append(Grant(frozenset((ADMIN,)), BROKER))
    if not found:
        raise click.UsageError("say what: --publish, --consume, --group, … or --admin", click.get_current_context())
    return found


def _tell(settings: Settings, users: UserStore, name: str, when: str) -> None:
    count = len(users.grants()[name])
    note(
        settings,
        f"user {name} has {count} grant{'' if count == 1 else 's'} {when}; a running broker goes by it {users.notice}",
    )
