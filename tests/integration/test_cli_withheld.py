"""``check`` and ``status`` for users who may see the broker; a transcript, ``withheld``, is of one who may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli_tools import Cli
from tests.conftest import BrokerFactory, RunningBroker
from tests.security_tools import PASSWORD, SCRAM, set_grants

CALM = ["--disk-warning", "0", "--disk-critical", "0"]


@pytest.fixture
def guarded(broker: BrokerFactory, tmp_path: Path) -> RunningBroker:
    store = tmp_path / "store"
    set_grants(
        store, {"watcher": [{"actions": ["query"], "broker": True}], "root": [{"actions": ["admin"], "broker": True}]}
    )
    return broker(store=store, settings=SCRAM)


def cli_of(user: str, running: RunningBroker, folder: Path) -> Cli:
    return Cli(folder / user, running.address, {"FLINTMQ_USER": user, "FLINTMQ_PASSWORD": PASSWORD})


def test_check_of_a_permitted_user_is_ok(guarded: RunningBroker, tmp_path: Path) -> None:
    done = cli_of("watcher", guarded, tmp_path).run("check", *CALM)
    assert (done.code, done.out[:11]) == (0, "FLINTMQ OK:"), done.out


def test_a_lag_that_no_group_has_is_unknown_with_a_reason(guarded: RunningBroker, tmp_path: Path) -> None:
    root = cli_of("root", guarded, tmp_path)
    done = root.run("check", *CALM, "--lag-critical", "5")
    assert (done.code, "no group has consumed anything, or the user may not see it" in done.out) == (3, True), done.out
    assert root.run("topic", "create", "orders").code == 0
    done = root.run("check", *CALM, "--lag-critical", "5", "--group", "absent", "--topic", "orders")
    assert (done.code, "group absent has consumed nothing of topic orders" in done.out) == (3, True), done.out


def test_status_counts_groups_apart_from_those_with_members(guarded: RunningBroker, tmp_path: Path) -> None:
    root = cli_of("root", guarded, tmp_path)
    assert root.run("topic", "create", "orders").code == 0
    for group in ("one", "two"):
        assert root.run("offset", "reset", group, "orders", "--to", "earliest").code == 0
    row = root.run("status", "-o", "json").rows[0]
    assert (row["known_groups"], row["groups"], row["group_members"]) == (2, 0, 0)
    assert "2, of which none with live members" in root.run("status", "-o", "table").out


def test_the_start_prints_how_much_it_examined(broker: BrokerFactory, tmp_path: Path) -> None:
    first = broker(store=tmp_path / "banner")
    assert "after a clean stop; there were no messages to check" in "\n".join(first.output)
    cli = Cli(tmp_path / "home", first.address)
    assert cli.run("send", "orders", stdin="a\nb\nc\n").code == 0
    assert first.stop() == 0
    again = "\n".join(broker(store=tmp_path / "banner").output)
    assert "after a clean stop; the newest 3 messages of the log were checked, none had to be recovered" in again
