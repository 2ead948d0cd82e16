"""The lag of a group counts the messages it would be given, also in queues for which it has committed nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from flintmq.client import Admin, Consumer, Producer
from tests.cli_tools import Cli
from tests.client_drivers import Clients
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker
from tests.group_tools import RawMember
from tests.metrics_tools import Scrape
from tests.security_tools import PASSWORD, SCRAM, set_grants

CALM = ["--disk-warning", "0", "--disk-critical", "0", "--reput-warning", "1Gi", "--index-warning", "1Gi"]


@pytest.fixture
def cli(shared_broker: RunningBroker, tmp_path: Path) -> Cli:
    return Cli(tmp_path / "home", shared_broker.address)


def fill(running: RunningBroker, topic: str, queues: int, each: int) -> None:
    """Create a topic of so many queues with so many messages in each, or add to it."""
    with Admin(running.address) as admin, Producer(running.address) as producer:
        admin.create_topic(topic, queues=queues)
        for queue in range(queues):
            producer.send_bulk(topic, [b"x"] * each, queue=queue)


def lag_in_words(cli: Cli, group: str) -> tuple[int | None, int | None]:
    """Return the lag that ``group list`` and ``group status`` print."""
    (listed,) = cli.run("group", "list", group, "-o", "json").rows
    (status,) = cli.run("group", "status", group, "-o", "json").rows
    return listed["lag"], status["lag"]


def test_queues_that_a_stopped_group_has_not_seen_yet_count_from_their_first_message(
    cli: Cli, shared_broker: RunningBroker, clients: Clients, topic: str
) -> None:
    group = f"{topic}-g"
    fill(shared_broker, topic, 2, 5)
    with clients.Consumer(shared_broker.address) as consumer:
        consumer.commit(group, topic, {0: 5, 1: 5})
    assert lag_in_words(cli, group) == (0, 0)
    fill(shared_broker, topic, 4, 10)  # two more queues, ten messages in each of the four
    assert lag_in_words(cli, group) == (40, 40)
    assert Scrape(shared_broker)("flintmq_group_lag_messages", group=group, topic=topic) == 40
    critical = cli.run("check", *CALM, "--group", group, "--lag-critical", "39", "-o", "json")
    assert (critical.code, critical.rows[0]["lag"]) == (2, 40)
    shown = cli.run("offset", "show", group, "-o", "json").rows
    assert [(row["queue"], row["committed"], row["lag"]) for row in shown] == [
        (0, 5, 10),
        (1, 5, 10),
        (2, None, 10),
        (3, None, 10),
    ]
    top = cli.run("top", "-n", "1", "-i", "100ms", "-o", "json").rows[0]
    assert {row["lag"] for row in top["groups"] if row["group"] == group} == {40}
    with clients.Admin(shared_broker.address) as admin:
        assert sum(row.lag for row in admin.consume_stats(group, uncommitted=True)) == 40
        assert [row.queue for row in admin.consume_stats(group)] == [0, 1]


def test_the_first_commit_of_one_queue_does_not_make_the_others_disappear(
    cli: Cli, shared_broker: RunningBroker, topic: str
) -> None:
    group = f"{topic}-g"
    fill(shared_broker, topic, 4, 7)
    with Consumer(shared_broker.address) as consumer:
        consumer.commit(group, topic, {2: 7})
    assert lag_in_words(cli, group) == (21, 21)


def test_a_member_gets_as_many_messages_as_the_lag_said(
    shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
) -> None:
    group = f"{topic}-g"
    fill(shared_broker, topic, 3, 4)
    with Consumer(shared_broker.address) as consumer:
        consumer.commit(group, topic, {0: 1})
    with Admin(shared_broker.address) as admin:
        said = sum(row.lag for row in admin.consume_stats(group, uncommitted=True))
    member = RawMember(connect(shared_broker), group, "m", start="last", session_timeout_ms=60_000)
    member.beat(topic).raise_for_error()
    begins = {queue: row[0] for (name, queue), row in member.rows.items() if name == topic}
    assert begins == {0: 1, 1: 0, 2: 0}
    assert sum(4 - begin for begin in begins.values()) == said == 11
    member.leave()


def test_the_start_of_a_group_is_reported_once_for_all_queues_of_a_topic(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    """Two members that begin at the end get their queues in two heartbeats: the second gets no old messages either."""
    first = broker()
    fill(first, "orders", 4, 3)
    first.kill()  # after a crash the broker assigns queues when all members have had time to come back
    running = broker(store=first.store)
    members = [RawMember(connect(running), "g", name, start="last", session_timeout_ms=60_000) for name in ("a", "b")]
    for member in members:
        member.beat("orders").raise_for_error()
        assert member.rows == {}
    for member in members:
        member.connection.wait_until_told()
        member.beat("orders").raise_for_error()
    begins = {queue: row[0] for member in members for queue, row in member.rows.items() if queue[0] == "orders"}
    assert begins == {("orders", number): 3 for number in range(4)}
    for member in members:
        member.leave()


def test_figures_of_a_member_are_unknown_after_it_left(
    broker: BrokerFactory, connect: ConnectionFactory, tmp_path: Path
) -> None:
    """Members of a broadcasting group begin where each of them says, and keep their own progress."""
    running = broker()
    cli = Cli(tmp_path / "home", running.address)
    fill(running, "orders", 2, 3)
    member = RawMember(connect(running), "g", "m", start="last", mode="broadcasting", session_timeout_ms=60_000)
    member.beat("orders").raise_for_error()
    assert lag_in_words(cli, "g") == (0, 0), "it was told to begin at the end"
    fill(running, "orders", 2, 2)
    assert lag_in_words(cli, "g") == (4, 4)
    member.commit("orders", 0, 4).raise_for_error()
    assert lag_in_words(cli, "g") == (3, 3)
    member.leave()
    done = cli.run("check", *CALM, "--lag-critical", "100")
    assert done.code == 3
    assert "the lag of group g:m is not known: it has not started 1 queue" in done.out
    assert Scrape(running)("flintmq_group_lag_unknown_queues", group="g:m", topic="orders") == 1
    assert cli.run("check", *CALM, "--lag-critical", "0").code == 2, "one message is known"


def test_a_topic_that_the_user_may_not_see_makes_the_lag_unknown(broker: BrokerFactory, tmp_path: Path) -> None:
    store = tmp_path / "store"
    set_grants(
        store,
        {
            "root": [{"actions": ["admin"], "broker": True}],
            "monitor": [
                {"actions": ["query"], "broker": True},
                {"actions": ["query"], "group": "g"},
                {"actions": ["query"], "topic": "seen"},
            ],
        },
    )
    running = broker(store=store, settings=SCRAM)
    root = Cli(tmp_path / "root", running.address, {"FLINTMQ_USER": "root", "FLINTMQ_PASSWORD": PASSWORD})
    monitor = Cli(tmp_path / "monitor", running.address, {"FLINTMQ_USER": "monitor", "FLINTMQ_PASSWORD": PASSWORD})
    for topic in ("seen", "hidden"):
        assert root.run("topic", "create", topic, "--queues", "1").code == 0
        assert root.run("send", topic, stdin="a\nb\nc\n").code == 0
        assert root.run("offset", "reset", "g", topic, "--to", "earliest").code == 0
    assert lag_in_words(root, "g") == (6, 6)
    assert lag_in_words(monitor, "g") == (None, None)
    done = monitor.run("check", *CALM, "--lag-critical", "100")
    assert done.code == 3
    assert "the lag of group g is not known" in done.out
    assert monitor.run("check", *CALM, "--lag-critical", "2").code == 2, "what is seen is too much already"
    assert monitor.run("check", *CALM, "--group", "g", "--topic", "seen", "--lag-critical", "100").code == 0
