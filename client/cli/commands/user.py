"""``flintmq user``: who may connect to a broker. Works on the store's folder, also beside a running broker."""

from __future__ import annotations

import base64
import dataclasses
import secrets
from typing import Any

import click

from ....protocol.errors import ConfigurationError
from ....protocol.permissions import ADMIN, BROKER, Grant
from ....protocol.scram import ScramError, Verifier, make_verifier
from ....protocol.users import User, Users, check_user_name
from ..access import given_password
from ..command import Group, confirm, is_interactive, note, pass_settings
from ..output import Column, number
from ..settings import Settings
from ..user_file import UserFile, store_option, user_named
from .user_grants import grant, revoke, show_grants

GENERATED_BYTES = 18
"""Random bytes of a password that is made up: 24 characters."""
PASSWORD_CHARS_SHORT = 8
"""Shorter ones are warned about: the broker's pauses slow down who guesses, they do not stop a short list."""
COLUMNS = (Column("user", "USER"), number("grants", "GRANTS"), number("iterations", "ITERATIONS"))


@click.group(cls=Group)
def user() -> None:
    """Who may connect: the users of a store, where its broker has security.auth = "scram".

    \b
        flintmq user add billing --store /var/lib/flintmq --generate
        flintmq user grant billing --consume orders --group billing --store /var/lib/flintmq
        flintmq user list --store /var/lib/flintmq

    Run it where the store is, as the user that the broker runs as. A running broker notices within 2 seconds, and
    closes the connections of who was removed or has another password.
    """


def _password_options(function: Any) -> Any:
    return click.option("--generate", is_flag=True, help="Make a random password up, and print it.")(function)


@user.command("add")
@click.argument("name")
@store_option
@_password_options
@click.option("--admin", is_flag=True, help="It may do everything; without, nothing until flintmq user grant.")
@pass_settings
def add(settings: Settings, name: str, store: str, generate: bool, admin: bool) -> None:
    """Make a user. The password is asked for, or taken from --password-file or FLINTMQ_PASSWORD."""
    check_user_name(name)
    file = UserFile(store)
    _refuse_existing(file.read(), name)
    password, verifier = _new_password(settings, name, generate)
    grants = (Grant(frozenset((ADMIN,)), BROKER).as_json(),) if admin else ()

    def edit(users: Users) -> Users:
        _refuse_existing(users, name)
        return dataclasses.replace(users, by_name=users.by_name | {name: User(name, verifier, grants)})

    file.change(edit)
    _tell(settings, name, "added", password if generate else "")


@user.command("passwd")
@click.argument("name")
@store_option
@_password_options
@pass_settings
def passwd(settings: Settings, name: str, store: str, generate: bool) -> None:
    """Give a user another password. What it may do stays; its connections are closed."""
    file = UserFile(store)
    user_named(file.read(), name)
    password, verifier = _new_password(settings, name, generate)

    def edit(users: Users) -> Users:
        changed = dataclasses.replace(user_named(users, name), verifier=verifier)
        return dataclasses.replace(users, by_name=users.by_name | {name: changed})

    file.change(edit)
    _tell(settings, name, "changed", password if generate else "")


@user.command("remove")
@click.argument("name")
@store_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_settings
def remove(settings: Settings, name: str, store: str, yes: bool) -> None:
    """Remove a user, and all it may do; its connections are closed."""
    file = UserFile(store)
    user_named(file.read(), name)
    if not yes:
        confirm(f"remove user {name}, and close its connections?", "removes", "removed")

    def edit(users: Users) -> Users:
        user_named(users, name)
        return dataclasses.replace(users, by_name={key: row for key, row in users.by_name.items() if key != name})

    file.change(edit)
    _tell(settings, name, "removed", "")


@user.command("list")
@store_option
@pass_settings
def show(settings: Settings, store: str) -> None:
    """List the users."""
    settings.output.rows(
        COLUMNS,
        (
            {"user": name, "grants": len(row.permissions), "iterations": row.verifier.iterations}
            for name, row in sorted(UserFile(store).read().by_name.items())
        ),
        empty=f"there are no users; flintmq user add NAME --store {store} makes one",
    )


def _refuse_existing(users: Users, name: str) -> None:
    if name in users.by_name:
        raise ConfigurationError(f"there is a user {name!r} already; flintmq user passwd {name} changes its password")


def _new_password(settings: Settings, name: str, generate: bool) -> tuple[str, Verifier]:
    """The password, and what is kept of it."""
    password = "" if generate else given_password(settings.password_file)
    if generate:
        password = base64.urlsafe_b64encode(secrets.token_bytes(GENERATED_BYTES)).decode()
    elif not password:
        if not is_interactive():
            raise ConfigurationError(
                f"user {name!r} needs a password: --generate makes one up; or --password-file FILE, or FLINTMQ_PASSWORD"
            )
        password = click.prompt(f"new password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    if len(password) < PASSWORD_CHARS_SHORT:
        note(settings, f"a password of {len(password)} characters is soon guessed; --generate makes a good one up")
    try:
        return password, make_verifier(password)
    except ScramError as error:
        raise ConfigurationError(f"this cannot be a password: {error}") from None


def _tell(settings: Settings, name: str, what: str, password: str) -> None:
    if settings.is_json:
        row = {"user": name, "outcome": what} | ({"password": password} if password else {})
        settings.output.record((), row)
        return
    note(settings, f"user {name} {what}" + ("; its password, which is shown nowhere again:" if password else ""))
    if password:
        click.echo(password)


for _command in (grant, revoke, show_grants):
    user.add_command(_command)
