"""Users of a store, written as the command line writes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flintmq.protocol.auth.scram import ITERATIONS_MIN, MECHANISM, ClientExchange, make_verifier
from flintmq.protocol.auth.users import User, UserFile, Users
from flintmq.protocol.commands import AUTH
from tests.conftest import Brokers, RawConnection, RunningBroker

PASSWORD = "correct horse"
SCRAM = {"security.auth": "scram"}


def set_user(store: Path, name: str, password: str | None = PASSWORD) -> None:
    """Create a user with all permissions, change its password, or (None) remove it; with few iterations, to save
    time."""
    (store / "config").mkdir(parents=True, exist_ok=True)
    verifier = None if password is None else make_verifier(password, ITERATIONS_MIN)

    def edit(users: Users) -> Users:
        others = {key: user for key, user in users.by_name.items() if key != name}
        if verifier is not None:
            before = users.by_name.get(name, User(name, verifier, ({"actions": ["admin"], "broker": True},)))
            others[name] = dataclasses.replace(before, verifier=verifier)
        return dataclasses.replace(users, by_name=others)

    UserFile(store).change(edit)


def set_grants(store: Path, grants: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Create users, or change their grants; all have ``PASSWORD``."""
    (store / "config").mkdir(parents=True, exist_ok=True)
    verifier = make_verifier(PASSWORD, ITERATIONS_MIN)

    def edit(users: Users) -> Users:
        found = dict(users.by_name)
        for name, permissions in grants.items():
            before = found.get(name, User(name, verifier))
            found[name] = dataclasses.replace(before, permissions=tuple(permissions))
        return dataclasses.replace(users, by_name=found)

    UserFile(store).change(edit)


@contextmanager
def broker_with_users(
    folder: Path, grants: Mapping[str, Sequence[dict[str, Any]]], settings: dict[str, Any]
) -> Iterator[RunningBroker]:
    """Start a broker that demands a password, and stop it at the end."""
    set_grants(folder / "store", grants)
    brokers = Brokers(folder)
    yield brokers.start(store=folder / "store", settings=SCRAM | {"topics.auto_create": True} | settings)
    brokers.stop_all()


LogIn = Callable[[str], RawConnection]
"""Opens a connection of the named user."""


def authenticate(connection: RawConnection, name: str = "billing", password: str = PASSWORD) -> RawConnection:
    exchange = ClientExchange(name, password)
    answer = connection.call(AUTH, {"message": exchange.first(), "mechanism": MECHANISM}).raise_for_error()
    assert not answer.fields.get("done")
    answer = connection.call(AUTH, {"message": exchange.final(answer.fields["message"])}).raise_for_error()
    exchange.check(answer.fields["message"])
    assert answer.fields["done"]
    return connection
