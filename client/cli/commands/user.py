"""The command ``flintmq user``: users that may connect. Asks the broker, or edits the store's folder."""

from __future__ import annotations

from typing import Any

import click

from ....protocol.auth.permissions import ADMIN, BROKER, Grant
from ....protocol.auth.scram import ScramError, make_verifier
from ....protocol.auth.users import check_user_name
from ....protocol.errors import ConfigurationError
from ...operator.rights import generate_password, password_warning
from ..access import given_password, is_interactive
from ..command import CliGroup, confirm, note, pass_settings
from ..failures import nearest
from ..output import TableColumn, number
from ..settings import BrokerChoice
from ..user_store import UserStore, open_users, store_option
from .user_grants import grant, revoke, show_grants
from .user_keys import key_group

COLUMNS = (
    TableColumn("user", "USER"),
    TableColumn("admin", "ADMIN", lambda admin: "yes" if admin else ""),
    number("grants", "GRANTS"),
)


@click.group(cls=CliGroup)
def user() -> None:
    """Add, change and list the users of a broker with security.auth = "scram".

    \b
        flintmq user add billing --generate
        flintmq user grant billing --consume orders --group billing
        flintmq user list

    An administrator (a user with --admin) changes users over the network. Create the first one on the broker's
    machine, as the system user that the broker runs as; a running broker notices it within 2 seconds:

    \b
        flintmq user add ops --admin --generate --store /var/lib/flintmq

    The broker closes the connections of a user that is removed or gets a new password.
    """


def _password_options(function: Any) -> Any:
    for option in (
        click.option(
            "--new-password-file", metavar="FILE", help="Read the new password from the first line of FILE (-: stdin)."
        ),
        click.option("--generate", is_flag=True, help="Generate a random password and print it."),
    ):
        function = option(function)
    return function


@user.command("add")
@click.argument("name")
@store_option
@_password_options
@click.option("--admin", is_flag=True, help="Allow everything.  [default: nothing, until flintmq user grant]")
@pass_settings
def add(
    settings: BrokerChoice, name: str, store: str | None, generate: bool, new_password_file: str | None, admin: bool
) -> None:
    """Add a user.

    The password is generated, read from --new-password-file, or prompted for; with --store it may also come from
    --password-file or FLINTMQ_PASSWORD.
    """
    check_user_name(name)
    with open_users(settings, store) as users:
        if name in users.grants():
            raise ConfigurationError(f"user {name!r} already exists; flintmq user passwd {name} changes its password")
        password = _new_password(settings, name, store, generate, new_password_file)
        users.add(name, password, [Grant(frozenset((ADMIN,)), BROKER)] if admin else [])
    _tell(settings, name, "added", password if generate else "")


@user.command("passwd")
@click.argument("name")
@store_option
@_password_options
@pass_settings
def passwd(settings: BrokerChoice, name: str, store: str | None, generate: bool, new_password_file: str | None) -> None:
    """Change the password of a user. Its grants stay; the broker closes its connections."""
    with open_users(settings, store) as users:
        _check_known(users, name)
        password = _new_password(settings, name, store, generate, new_password_file)
        users.set_password(name, password)
    _tell(settings, name, "changed", password if generate else "")


@user.command("remove")
@click.argument("name")
@store_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_settings
def remove(settings: BrokerChoice, name: str, store: str | None, yes: bool) -> None:
    """Remove a user and its grants. The broker closes its connections."""
    with open_users(settings, store) as users:
        _check_known(users, name)
        if not yes:
            confirm(f"remove user {name} and close its connections?", "removes", "removed")
        users.remove(name)
    _tell(settings, name, "removed", "")


@user.command("list")
@store_option
@pass_settings
def show(settings: BrokerChoice, store: str | None) -> None:
    """List the users."""
    with open_users(settings, store) as users:
        rows = [
            {
                "user": name,
                "admin": any(each.kind == BROKER and ADMIN in each.actions for each in grants),
                "grants": len(grants),
            }
            for name, grants in sorted(users.grants().items())
        ]
    where = f" --store {store}" if store is not None else ""
    settings.output.rows(COLUMNS, rows, empty=f"there are no users; flintmq user add NAME{where} adds one")


def _check_known(users: UserStore, name: str) -> None:
    known = users.grants()
    if check_user_name(name) not in known:
        raise ConfigurationError(f"there is no user {name!r}{nearest(name, known)}")


def _new_password(
    settings: BrokerChoice, name: str, store: str | None, generate: bool, new_password_file: str | None
) -> str:
    """Return the new password of a user.

    Over the network, ``--password-file`` is the password of the administrator, so the new one cannot come from it.
    """
    password = ""
    if generate:
        password = generate_password()
    elif new_password_file or store is not None:
        password = given_password(new_password_file or settings.password_file)
    if not password:
        if not is_interactive():
            also = ", --password-file FILE or FLINTMQ_PASSWORD" if store is not None else ""
            raise ConfigurationError(f"user {name!r} needs a password: use --generate, --new-password-file FILE{also}")
        password = click.prompt(f"new password for {name}", hide_input=True, confirmation_prompt=True, err=True)
    if warning := password_warning(password):
        note(settings, f"{warning}; --generate creates a strong one")
    try:
        make_verifier(password)
    except ScramError as error:
        raise ConfigurationError(f"invalid password: {error}") from None
    return password


def _tell(settings: BrokerChoice, name: str, what: str, password: str) -> None:
    if settings.is_json:
        row = {"user": name, "outcome": what} | ({"password": password} if password else {})
        settings.output.record((), row)
        return
    note(settings, f"user {name} {what}" + ("; its password, which is not shown again:" if password else ""))
    if password:
        click.echo(password)


for _command in (grant, revoke, show_grants, key_group):
    user.add_command(_command)
