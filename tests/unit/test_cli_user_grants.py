"""``flintmq user grant``, ``revoke`` and ``show`` on a store without a broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flintmq.protocol.auth.users import USERS_FILE
from tests.cli_tools import Cli, Done
from tests.security_tools import set_grants


class Store:
    """A store with the user ``ann``, on which ``flintmq user`` runs."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store"
        set_grants(self.path, {"ann": [], "bob": [{"actions": ["consume"], "topic": "bobs"}]})
        self._cli = Cli(folder)

    def user(self, *args: str) -> Done:
        return self._cli.run("user", *args, "--store", str(self.path))

    def grants(self, name: str = "ann") -> Any:
        return json.loads((self.path / USERS_FILE).read_text())["users"][name]["permissions"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_grants_are_added_to_existing_ones_and_other_users_are_unchanged(store: Store) -> None:
    assert store.user("grant", "ann", "--publish", "orders", "--publish", "bills", "--group", "billing").code == 0
    done = store.user("grant", "ann", "--consume", "orders")
    assert "user ann has 3 grants now" in done.err
    assert store.grants() == [
        {"actions": ["publish", "consume"], "topic": "orders"},
        {"actions": ["publish"], "topic": "bills"},
        {"actions": ["consume"], "group": "billing"},
    ]
    assert store.grants("bob") == [{"actions": ["consume"], "topic": "bobs"}]


@pytest.mark.parametrize(
    ("option", "grant"),
    [
        (["--publish", "x"], {"actions": ["publish"], "topic": "x"}),
        (["--consume", "x"], {"actions": ["consume"], "topic": "x"}),
        (["--query", "x"], {"actions": ["query"], "topic": "x"}),
        (["--manage", "x"], {"actions": ["admin"], "topic": "x"}),
        (["--group", "x"], {"actions": ["consume"], "group": "x"}),
        (["--query-group", "x"], {"actions": ["query"], "group": "x"}),
        (["--manage-group", "x"], {"actions": ["admin"], "group": "x"}),
        (["--producer-group", "x"], {"actions": ["publish"], "group": "x"}),
        (["--publish", "x", "--prefix"], {"actions": ["publish"], "topicPrefix": "x"}),
        (["--consume", "", "--prefix"], {"actions": ["consume"], "topicPrefix": ""}),
        (["--group", "x", "--prefix"], {"actions": ["consume"], "groupPrefix": "x"}),
        (["--consume", "%DLQ%x"], {"actions": ["consume"], "topic": "%DLQ%x"}),
        (["--query-broker"], {"actions": ["query"], "broker": True}),
        (["--admin"], {"actions": ["admin"], "broker": True}),
    ],
)
def test_each_option_grants_one_thing_and_revokes_it(store: Store, option: list[str], grant: dict[str, Any]) -> None:
    assert store.user("grant", "ann", *option).code == 0
    assert store.grants() == [grant]
    assert store.user("revoke", "ann", *option).code == 0
    assert store.grants() == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["grant", "nobody", "--admin"], "there is no user 'nobody'"),
        (["grant", "ann"], "pass what to grant"),
        (["grant", "ann", "--publish", "orders*"], "characters that are not allowed"),
        (["grant", "ann", "--publish", "a\x1b[2J"], "a\\x1b[2J"),
        (["grant", "ann", "--publish", ""], "is empty"),
        (["grant", "ann", "--consume", "%DLQ%", "--prefix"], "covers nothing"),
        (["revoke", "ann", "--publish", "orders"], "there is no grant of publish on topic orders"),
        (["revoke", "bob", "--consume", "bobs", "--prefix"], "there is no grant of consume on topics that begin with"),
        (["show", "nobody"], "there is no user 'nobody'"),
    ],
)
def test_an_invalid_change_is_refused_and_changes_nothing(store: Store, args: list[str], says: str) -> None:
    before = (store.path / USERS_FILE).read_text()
    done = store.user(*args)
    assert done.code != 0
    assert says in done.err
    assert "\x1b" not in done.err
    assert (store.path / USERS_FILE).read_text() == before


def test_all_grants_can_be_revoked_at_once(store: Store) -> None:
    store.user("grant", "ann", "--publish", "a", "--admin", "--group", "b")
    assert "has 0 grants left" in store.user("revoke", "ann", "--all").err
    assert store.grants() == []


def test_show_lists_the_grants_of_a_user(store: Store) -> None:
    assert "ann has no permissions" in store.user("show", "ann").out + store.user("show", "ann", "-o", "table").out
    store.user("grant", "ann", "--publish", "flights-", "--consume", "flights-", "--prefix")
    store.user("grant", "ann", "--query-broker")
    assert store.user("show", "ann", "-o", "json").rows == [
        {"actions": ["publish", "consume"], "on": "topic", "name": "flights-", "prefix": True},
        {"actions": ["query"], "on": "broker", "name": "", "prefix": False},
    ]
    assert "flights-…" in store.user("show", "ann", "-o", "table").out
