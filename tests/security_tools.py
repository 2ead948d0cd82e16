"""Users of a store for tests, written as the command line writes them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from flintmq.client.cli.user_file import UserFile
from flintmq.protocol.scram import ITERATIONS_MIN, make_verifier
from flintmq.protocol.users import User, Users

PASSWORD = "correct horse"
SCRAM = {"security.auth": "scram"}


def set_user(store: Path, name: str, password: str | None = PASSWORD) -> None:
    """Make a user of a store who may do all, give it another password, or (None) remove it; few iterations, so that it
    takes no time."""
    (store / "config").mkdir(parents=True, exist_ok=True)
    verifier = None if password is None else make_verifier(password, ITERATIONS_MIN)

    def edit(users: Users) -> Users:
        others = {key: user for key, user in users.by_name.items() if key != name}
        if verifier is not None:
            before = users.by_name.get(name, User(name, verifier, ({"actions": ["admin"], "broker": True},)))
            others[name] = dataclasses.replace(before, verifier=verifier)
        return dataclasses.replace(users, by_name=others)

    UserFile(store).change(edit)
