"""The commands ``flintmq user`` and ``flintmq whoami``: users of a broker or of a store's folder, and their rights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from ....protocol.auth.permissions import ACTIONS, ADMIN, BROKER, Grant, Permissions
from ....protocol.auth.scram import AccessKey, ScramError, make_access_key, make_verifier
from ....protocol.auth.users import (
    UserFile,
    Users,
    check_user_name,
    with_access_key,
    with_grants,
    with_password,
    with_user,
    without_access_key,
    without_grants,
    without_user,
)
from ....protocol.commands import AccessKeyInfo, UserInfo
from ....protocol.display import TABLE, escape
from ....protocol.errors import ConfigurationError, UserExistsAlready, UserNotExist
from ...operator.display import plural, show_flag, shown_name
from ...operator.rights import RIGHTS, generate_password, grant_of, password_warning
from ..command import CliCommand, CliGroup, confirm, note, options, pass_settings
from ..failures import nearest
from ..output import TableColumn, columns_of, number
from ..settings import BrokerChoice, given_password, is_interactive

if TYPE_CHECKING:
    from ...sync.admin import Admin

# ---- The users that ``flintmq user`` changes.


class LocalUsers:
    """The users in a store's folder, changed by the methods that ``Admin`` has for those of a broker."""

    def __init__(self, store: str) -> None:
        self._file = UserFile(store)

    def users(self) -> list[UserInfo]:
        users = self._file.read()
        self._say_damage()
        return [
            UserInfo(
                name,
                Permissions.parse(user.permissions, name).grants,
                [AccessKeyInfo(each.key, each.created_ms) for each in user.access_keys],
            )
            for name, user in users.by_name.items()
        ]

    def create_user(self, user: str, password: str, grants: Iterable[Grant]) -> None:
        check_user_name(user)
        verifier, granted = make_verifier(password), list(grants)
        self._change(lambda users: with_user(users, user, verifier, granted))

    def change_user(
        self,
        user: str,
        *,
        password: str | None = None,
        grant: Sequence[Grant] = (),
        revoke: Sequence[Grant] | None = (),
    ) -> None:
        if password is not None:
            verifier = make_verifier(password)
            self._change(lambda users: with_password(users, user, verifier))
        elif grant:
            self._change(lambda users: with_grants(users, user, grant))
        else:
            self._change(lambda users: without_grants(users, user, revoke))

    def delete_user(self, user: str) -> None:
        self._change(lambda users: without_user(users, user))

    def add_access_key(self, user: str, *, key: str, secret: str) -> AccessKey:
        made = make_access_key(key, secret)
        self._change(lambda users: with_access_key(users, user, made))
        return made

    def remove_access_key(self, user: str, key: str) -> None:
        self._change(lambda users: without_access_key(users, user, key))

    def _change(self, edit: Callable[[Users], Users]) -> None:
        try:
            self._file.change(edit)
        except (UserNotExist, UserExistsAlready) as error:  # a wrong command line, not a broker's response
            raise ConfigurationError(error.message) from None
        finally:
            self._say_damage()

    def _say_damage(self) -> None:
        if self._file.damage:
            click.echo(f"flintmq: {escape(self._file.damage)}", err=True)


ChangedUsers: TypeAlias = "Admin | LocalUsers"


store_option = click.option(
    "--store",
    envvar="FLINTMQ_STORE__PATH",
    metavar="DIR",
    help="Use the users in this store's folder instead of asking the broker, which may run or not.",
)


@contextmanager
def open_users(settings: BrokerChoice, store: str | None) -> Iterator[ChangedUsers]:
    """Yield the users in the folder ``store``, or those of the broker if it is None."""
    if store is not None:
        yield LocalUsers(store)
        return
    with settings.admin() as admin:
        yield admin


def _how_soon(store: str | None) -> str:
    """Return how soon a running broker applies a change."""
    return "at once" if store is None else "within 2 seconds"


def _known(users: ChangedUsers, name: str) -> UserInfo:
    """Return a user. Raises ``ConfigurationError`` if there is none of that name."""
    known = {each.user: each for each in users.users()}
    if check_user_name(name) not in known:
        raise ConfigurationError(f"there is no user {name!r}{nearest(name, known)}")
    return known[name]


# ---- Users and their passwords.

USER_COLUMNS = (
    *columns_of(UserInfo, "user"),
    TableColumn(
        "admin",
        "ADMIN",
        show_flag,
        of=lambda info: any(each.kind == BROKER and ADMIN in each.actions for each in info.grants),
    ),
    number("grants", "GRANTS", of=lambda info: len(info.grants)),
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


_password_options = options(
    click.option("--generate", is_flag=True, help="Generate a random password and print it."),
    click.option(
        "--new-password-file", metavar="FILE", help="Read the new password from the first line of FILE (-: stdin)."
    ),
)


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
        if name in [each.user for each in users.users()]:
            raise ConfigurationError(f"user {name!r} already exists; flintmq user passwd {name} changes its password")
        password = _new_password(settings, name, store, generate, new_password_file)
        users.create_user(name, password, [Grant(frozenset((ADMIN,)), BROKER)] if admin else [])
    _tell(settings, name, "added", password if generate else "")


@user.command("passwd")
@click.argument("name")
@store_option
@_password_options
@pass_settings
def passwd(settings: BrokerChoice, name: str, store: str | None, generate: bool, new_password_file: str | None) -> None:
    """Change the password of a user. Its grants stay; the broker closes its connections."""
    with open_users(settings, store) as users:
        _known(users, name)
        password = _new_password(settings, name, store, generate, new_password_file)
        users.change_user(name, password=password)
    _tell(settings, name, "changed", password if generate else "")


@user.command("remove")
@click.argument("name")
@store_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_settings
def remove(settings: BrokerChoice, name: str, store: str | None, yes: bool) -> None:
    """Remove a user and its grants. The broker closes its connections."""
    with open_users(settings, store) as users:
        _known(users, name)
        if not yes:
            confirm(f"remove user {name} and close its connections?", "removes", "removed")
        users.delete_user(name)
    _tell(settings, name, "removed", "")


@user.command("list")
@store_option
@pass_settings
def show(settings: BrokerChoice, store: str | None) -> None:
    """List the users."""
    with open_users(settings, store) as users:
        rows = sorted(users.users(), key=lambda info: info.user)
    where = f" --store {store}" if store is not None else ""
    settings.output.rows(USER_COLUMNS, rows, empty=f"there are no users; flintmq user add NAME{where} adds one")


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


# ---- Permissions.

GRANT_COLUMNS = (TableColumn("actions", "MAY", ", ".join), TableColumn("on", "ON"), TableColumn("name", "NAME"))
GRANT_DATA_COLUMNS = (
    TableColumn("actions", "MAY"),
    TableColumn("on", "ON"),
    TableColumn("name", "NAME"),
    TableColumn("prefix", "PREFIX"),
)


def _option(right: str) -> str:
    return f"--{right.replace('_', '-')}"


_grant_options = options(
    *(
        click.option(_option(name), name, multiple=True, metavar=right.kind.upper(), help=right.text)
        for name, right in RIGHTS.items()
        if right.kind != BROKER
    ),
    click.option("--prefix", is_flag=True, help="Treat the names as prefixes of topics or groups."),
    *(
        click.option(_option(name), name, is_flag=True, help=right.text)
        for name, right in RIGHTS.items()
        if right.kind == BROKER
    ),
)
"""Options for the permissions to grant or revoke; each is repeatable."""


@user.command("grant")
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
        users.change_user(name, grant=grants)
        _tell_grants(settings, users, store, name, "now")


@user.command("revoke")
@click.argument("name")
@_grant_options
@click.option("--all", "everything", is_flag=True, help="All grants of the user.")
@store_option
@pass_settings
def revoke(settings: BrokerChoice, /, name: str, store: str | None, everything: bool, **given: Any) -> None:
    """Revoke permissions from a user, with the same options as grant."""
    grants = None if everything else _grants(given)
    with open_users(settings, store) as users:
        users.change_user(name, revoke=grants)
        _tell_grants(settings, users, store, name, "left")


@user.command("show")
@click.argument("name")
@store_option
@pass_settings
def show_grants(settings: BrokerChoice, name: str, store: str) -> None:
    """Show the permissions of a user."""
    with open_users(settings, store) as users:
        found = _known(users, name)
    table = settings.output.mode == TABLE
    settings.output.rows(
        GRANT_COLUMNS if table else GRANT_DATA_COLUMNS,
        [grant_row(each, table=table) for each in found.grants],
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


def _tell_grants(settings: BrokerChoice, users: ChangedUsers, store: str | None, name: str, when: str) -> None:
    count = plural(len(_known(users, name).grants), "grant")
    note(settings, f"user {name} has {count} {when}; a running broker applies it {_how_soon(store)}")


@click.command("whoami", cls=CliCommand)
@pass_settings
def whoami(settings: BrokerChoice) -> None:
    """Show as which user the broker knows this client, and what that user may do."""
    with settings.admin() as admin:
        own = admin.whoami()
    table = settings.output.mode == TABLE
    rows = [{"user": own.user, **grant_row(each, table=table)} for each in own.grants]
    if not own.user:
        empty = "the broker has no users: every client may do everything"
    elif not rows:
        empty = f"user {own.user} has no permissions; ask an administrator for some"
    else:
        empty = ""
        note(settings, f"user {own.user} may:")
    settings.output.rows(
        GRANT_COLUMNS if table else (TableColumn("user", "USER"), *GRANT_DATA_COLUMNS), rows, empty=empty
    )


# ---- Access keys, with which RocketMQ's clients sign as a user.

KEY_COLUMNS = columns_of(AccessKeyInfo, "key created_at")


@user.group("key", cls=CliGroup)
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
def add_key(settings: BrokerChoice, name: str, key: str, secret_file: str | None, store: str | None) -> None:
    """Add an access key to a user, and print it and its secret key.

    --key and --secret-file take over the credentials that clients already have. The secret is not shown again. Over the
    network it passes the connection as it is, so use TLS, or --store.
    """
    secret = given_password(secret_file) if secret_file else ""
    made = make_access_key(key, secret)  # a wrong one is named before the broker is asked
    with open_users(settings, store) as users:
        _known(users, name)
        made = users.add_access_key(name, key=made.key, secret=made.secret)
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
def remove_key(settings: BrokerChoice, name: str, key: str, store: str | None, yes: bool) -> None:
    """Remove an access key of a user. Clients that sign with it lose their access."""
    with open_users(settings, store) as users:
        keys = [each.key for each in _known(users, name).access_keys]
        if key not in keys:
            raise ConfigurationError(f"user {name!r} has no access key {key!r}{nearest(key, keys)}")
        if not yes:
            confirm(f"remove access key {key} of user {name}?", "removes", "removed")
        users.remove_access_key(name, key)
    if settings.is_json:
        settings.output.record((), {"user": name, "outcome": "removed", "key": key})
        return
    note(settings, f"access key {key} of user {name} removed; a running broker applies it {_how_soon(store)}")


@key_group.command("list")
@click.argument("name")
@store_option
@pass_settings
def show_keys(settings: BrokerChoice, name: str, store: str | None) -> None:
    """List the access keys of a user, without the secret keys."""
    with open_users(settings, store) as users:
        keys = _known(users, name).access_keys
    where = f" --store {store}" if store is not None else ""
    settings.output.rows(
        KEY_COLUMNS, keys, empty=f"user {name} has no access keys; flintmq user key add {name}{where} adds one"
    )
