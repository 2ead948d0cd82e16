"""``check``, ``status`` and ``top`` for a user who may not see the broker's figures: hidden figures never look fine."""

from __future__ import annotations

from pathlib import Path

import pytest

from flintmq.client import Consumer
from tests.cli_tools import Cli
from tests.conftest import BrokerFactory, RunningBroker
from tests.security_tools import PASSWORD, SCRAM, set_grants

CALM = ["--disk-warning", "0", "--disk-critical", "0"]
HOW = "flintmq user grant shop --query-broker"


@pytest.fixture
def guarded(broker: BrokerFactory, tmp_path: Path) -> RunningBroker:
    store = tmp_path / "store"
    set_grants(
        store,
        {
            "shop": [{"actions": ["publish", "consume"], "topic": "orders"}, {"actions": ["consume"], "group": "g"}],
            "watcher": [{"actions": ["query"], "broker": True}],
            "root": [{"actions": ["admin"], "broker": True}],
        },
    )
    return broker(store=store, settings=SCRAM)


def cli_of(user: str, running: RunningBroker, folder: Path) -> Cli:
    return Cli(folder / user, running.address, {"FLINTMQ_USER": user, "FLINTMQ_PASSWORD": PASSWORD})


@pytest.fixture
def shop(guarded: RunningBroker, tmp_path: Path) -> Cli:
    return cli_of("shop", guarded, tmp_path)


def test_check_is_unknown_and_names_the_right_to_grant(shop: Cli) -> None:
    done = shop.run("check")
    assert done.code == 3
    assert done.out.startswith("FLINTMQ UNKNOWN: ")
    assert HOW in done.out
    row = shop.run("check", "-o", "json").rows[0]
    assert row["state"] == "UNKNOWN"
    assert HOW in row["reason"]


def test_check_of_a_permitted_user_is_ok(guarded: RunningBroker, tmp_path: Path) -> None:
    done = cli_of("watcher", guarded, tmp_path).run("check", *CALM)
    assert (done.code, done.out[:11]) == (0, "FLINTMQ OK:"), done.out


def test_a_critical_lag_is_reported_although_the_rest_is_withheld(
    shop: Cli, guarded: RunningBroker, tmp_path: Path
) -> None:
    root = cli_of("root", guarded, tmp_path)
    assert root.run("topic", "create", "orders", "--queues", "1").code == 0
    assert root.run("send", "orders", "a").code == 0
    assert root.run("offset", "reset", "g", "orders", "--to", "earliest").code == 0
    done = shop.run("check", "--group", "g", "--lag-critical", "0")
    assert done.code == 2
    assert HOW in done.out


def test_a_lag_that_no_group_has_is_unknown_with_a_reason(guarded: RunningBroker, tmp_path: Path) -> None:
    root = cli_of("root", guarded, tmp_path)
    done = root.run("check", *CALM, "--lag-critical", "5")
    assert (done.code, "no group has consumed anything, or the user may not see it" in done.out) == (3, True), done.out
    assert root.run("topic", "create", "orders").code == 0
    done = root.run("check", *CALM, "--lag-critical", "5", "--group", "absent", "--topic", "orders")
    assert (done.code, "group absent has consumed nothing of topic orders" in done.out) == (3, True), done.out


def test_topics_of_a_group_that_may_not_be_seen_are_not_called_gone(guarded: RunningBroker, tmp_path: Path) -> None:
    root = cli_of("root", guarded, tmp_path)
    assert root.run("topic", "create", "refunds").code == 0
    with Consumer(guarded.address, user="root", password=PASSWORD) as consumer:
        consumer.commit("g", "refunds", {0: 0})
    shop = cli_of("shop", guarded, tmp_path).run("group", "status", "g", "-o", "table")
    assert "you may see none of its topics" in shop.out
    assert "exists" not in shop.out


def test_status_shows_permitted_values_and_reports_the_rest_as_withheld(shop: Cli) -> None:
    shown = shop.run("status", "-o", "table").out
    assert HOW in shown.replace("\n", " ")
    for wrong in ("pid None", "recovery", "errors", "connections"):
        assert wrong not in shown
    assert HOW in shop.run("status", "-o", "json").rows[0]["withheld"]


def test_top_shows_no_zeros_for_withheld_values(shop: Cli) -> None:
    done = shop.run("top", "-n", "1", "-i", "100ms", "-o", "json")
    assert HOW in done.err
    row = done.rows[0]
    assert row["produced_messages_per_second"] is None
    assert row["errors_per_second"] is None


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
