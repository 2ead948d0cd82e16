"""The users that ``flintmq user`` changes: those of a running broker, or those in a store's folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import click

from ...protocol.auth.permissions import Grant, Permissions
from ...protocol.auth.scram import AccessKey, make_verifier
from ...protocol.auth.users import (
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
from ...protocol.display import escape
from ...protocol.errors import ConfigurationError, UserExistsAlready, UserNotExist

if TYPE_CHECKING:
    from ..sync.admin import Admin
    from .settings import BrokerChoice


class UserStore(Protocol):
    """Users that can be listed and changed. Every method raises ``FlintError`` if the change is impossible."""

    notice: str
    """Phrase for the confirmation: how soon a change takes effect."""

    def grants(self) -> dict[str, Sequence[Grant]]:
        """Return the grants of every user, by name."""

    def add(self, name: str, password: str, grants: Sequence[Grant]) -> None:
        """Add a user."""

    def set_password(self, name: str, password: str) -> None:
        """Change the password of a user."""

    def remove(self, name: str) -> None:
        """Remove a user."""

    def grant(self, name: str, grants: Sequence[Grant]) -> None:
        """Add grants to a user."""

    def revoke(self, name: str, grants: Sequence[Grant] | None) -> None:
        """Remove grants from a user; None: all."""

    def keys(self) -> dict[str, list[tuple[str, int]]]:
        """Return the access keys of every user, by name, each with its time in milliseconds since the epoch."""

    def add_key(self, name: str, access_key: AccessKey) -> AccessKey:
        """Add an access key to a user; return it."""

    def remove_key(self, name: str, key: str) -> None:
        """Remove an access key of a user."""


def store_option(function: Any) -> Any:
    """Add ``--store``."""
    return click.option(
        "--store",
        envvar="FLINTMQ_STORE__PATH",
        metavar="DIR",
        help="Use the users in this store's folder instead of asking the broker, which may run or not.",
    )(function)


@contextmanager
def open_users(settings: BrokerChoice, store: str | None) -> Iterator[UserStore]:
    """Yield the users in the folder ``store``, or those of the broker if it is None."""
    if store is not None:
        yield _LocalUsers(store)
        return
    with settings.admin() as admin:
        yield _BrokerUsers(admin)


class _BrokerUsers:
    """The users of a broker, over the network."""

    notice = "at once"

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self.add = admin.create_user
        self.remove = admin.delete_user
        self.remove_key = admin.remove_access_key

    def grants(self) -> dict[str, Sequence[Grant]]:
        return {user.user: user.grants for user in self._admin.users()}

    def set_password(self, name: str, password: str) -> None:
        self._admin.change_user(name, password=password)

    def grant(self, name: str, grants: Sequence[Grant]) -> None:
        self._admin.change_user(name, grant=grants)

    def revoke(self, name: str, grants: Sequence[Grant] | None) -> None:
        self._admin.change_user(name, revoke=grants)

    def keys(self) -> dict[str, list[tuple[str, int]]]:
        return {user.user: [(each.key, each.created_ms) for each in user.access_keys] for user in self._admin.users()}

    def add_key(self, name: str, access_key: AccessKey) -> AccessKey:
        return self._admin.add_access_key(name, key=access_key.key, secret=access_key.secret)


class _LocalUsers:
    """The users in a store's folder."""

    notice = "within 2 seconds"

    def __init__(self, store: str) -> None:
        self._file = UserFile(store)

    def grants(self) -> dict[str, Sequence[Grant]]:
        users = self._file.read()
        self._say_damage()
        return {name: Permissions.parse(user.permissions, name).grants for name, user in users.by_name.items()}

    def add(self, name: str, password: str, grants: Sequence[Grant]) -> None:
        check_user_name(name)
        verifier = make_verifier(password)
        self._change(lambda users: with_user(users, name, verifier, grants))

    def set_password(self, name: str, password: str) -> None:
        verifier = make_verifier(password)
        self._change(lambda users: with_password(users, name, verifier))

    def remove(self, name: str) -> None:
        self._change(lambda users: without_user(users, name))

    def grant(self, name: str, grants: Sequence[Grant]) -> None:
        self._change(lambda users: with_grants(users, name, grants))

    def revoke(self, name: str, grants: Sequence[Grant] | None) -> None:
        self._change(lambda users: without_grants(users, name, grants))

    def keys(self) -> dict[str, list[tuple[str, int]]]:
        users = self._file.read()
        self._say_damage()
        return {
            name: [(each.key, each.created_ms) for each in user.access_keys] for name, user in users.by_name.items()
        }

    def add_key(self, name: str, access_key: AccessKey) -> AccessKey:
        self._change(lambda users: with_access_key(users, name, access_key))
        return access_key

    def remove_key(self, name: str, key: str) -> None:
        self._change(lambda users: without_access_key(users, name, key))

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
