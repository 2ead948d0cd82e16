"""The commands ``flintmq user key``: access keys, with which RocketMQ's clients sign as a user."""

from __future__ import annotations

import click

from ....protocol.auth.scram import make_access_key
from ....protocol.auth.users import check_user_name
from ....protocol.commands import AccessKeyInfo
from ....protocol.errors import ConfigurationError
from ..access import given_password
from ..command import CliGroup, confirm, note, pass_settings
from ..failures import nearest
from ..output import columns_of
from ..settings import BrokerChoice
from ..user_store import UserStore, open_users, store_option

COLUMNS = columns_of(AccessKeyInfo, "key created_at")


@click.group("key", cls=CliGroup)
def key_group() -> None:
    """Make and remove the access keys with which RocketMQ's clients sign as a user.

    \b
        flintmq user key add billing
        flintmq user key list billing

    A RocketMQ client cannot use a password: it signs each request with an access key and its secret key. What it may
    do is what the user may do. Clients with a removed key lose their access at once.
    """


@key_group.command("add")
@click.argument("name")
@click.option("--key", default="", metavar="KEY", help="The access key.  [default: a random one]")
@click.option(
    "--secret-file",
    metavar="FILE",
    help="Read the secret key from the first line of FILE (-: stdin).  [default: a random one]",
)
@store_option
@pass_settings
def add(settings: BrokerChoice, name: str, key: str, secret_file: str | None, store: str | None) -> None:
    """Add an access key to a user, and print it and its secret key.

    --key and --secret-file take over the credentials that clients already have. The secret is not shown again. Over the
    network it passes the connection as it is, so use TLS, or --store.
    """
    access_key = make_access_key(key, given_password(secret_file) if secret_file else "")
    with open_users(settings, store) as users:
        _known(users, name)
        made = users.add_key(name, access_key)
    if settings.is_json:
        settings.output.record((), {"user": name, "outcome": "added", "key": made.key, "secret": made.secret})
        return
    note(settings, f"user {name} has another access key; its secret key, the second line, is not shown again:")
    click.echo(made.key)
    click.echo(made.secret)


@key_group.command("remove")
@click.argument("name")
@click.argument("key")
@store_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_settings
def remove(settings: BrokerChoice, name: str, key: str, store: str | None, yes: bool) -> None:
    """Remove an access key of a user. Clients that sign with it lose their access."""
    with open_users(settings, store) as users:
        keys = _known(users, name)
        if key not in (each for each, _ in keys):
            hint = nearest(key, [each for each, _ in keys])
            raise ConfigurationError(f"user {name!r} has no access key {key!r}{hint}")
        if not yes:
            confirm(f"remove access key {key} of user {name}?", "removes", "removed")
        users.remove_key(name, key)
    if settings.is_json:
        settings.output.record((), {"user": name, "outcome": "removed", "key": key})
        return
    note(settings, f"access key {key} of user {name} removed; a running broker applies it {users.notice}")


@key_group.command("list")
@click.argument("name")
@store_option
@pass_settings
def show(settings: BrokerChoice, name: str, store: str | None) -> None:
    """List the access keys of a user, without the secret keys."""
    with open_users(settings, store) as users:
        keys = _known(users, name)
    where = f" --store {store}" if store is not None else ""
    settings.output.rows(
        COLUMNS,
        [AccessKeyInfo(*each) for each in keys],
        empty=f"user {name} has no access keys; flintmq user key add {name}{where} adds one",
    )


def _known(users: UserStore, name: str) -> list[tuple[str, int]]:
    """Return the access keys of a user with their times. Raises ``ConfigurationError`` if there is no such user."""
    known = users.keys()
    if check_user_name(name) not in known:
        raise ConfigurationError(f"there is no user {name!r}{nearest(name, known)}")
    return known[name]
