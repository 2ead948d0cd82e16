"""RocketMQ's own Java consumers on a FlintMQ broker: every kind, clients that come, go and die, and a mixed group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, PushConsumer
from flintmq.protocol.errors import GroupKind
from flintmq.protocol.storage.delivery import dead_letter_topic
from tests import group_tools
from tests.conftest import BrokerFactory, Brokers
from tests.group_tools import Seen
from tests.integration.rocketmq.harness import JavaDriver, class_path
from tests.remoting_tools import RemotingBroker

pytestmark = pytest.mark.slow

QUEUES = [0, 1, 2, 3]
until = partial(group_tools.until, seconds=150.0)
"""Java's clients send heartbeats every 30 s, and the first one may lack the subscription."""
Row = dict[str, Any]


class JavaClients:
    """A Java process with a producer and consumers."""

    def __init__(self, classes: str, home: Path, gateway: RemotingBroker) -> None:
        host, port = gateway.address
        self.java = JavaDriver(classes, home, "ConsumerDriver", f"{host}:{port}")
        assert self.java.answer() == {"ready": True}

    def send(self, topic: str, count: int, first: int = 0, **options: Any) -> None:
        """Send numbered messages; the first creates the topic with four queues."""
        self.java.call("send", topic=topic, count=count, first=first, **options)

    def push(self, name: str, group: str, topic: str, **options: Any) -> str:
        """Start a push consumer; return its client id."""
        return str(self.java.call("push", name=name, group=group, topic=topic, **options)["client"])

    def got(self, name: str) -> list[Row]:
        """Return the messages that a push consumer got so far."""
        return list(self.java.call("got", name=name)["got"])

    def bodies(self, *names: str) -> Counter[str]:
        """Return how often the consumers together got each body."""
        return Counter(row["body"] for name in names for row in self.got(name))

    def queues(self, name: str) -> list[int]:
        """Return the queues that a push consumer processes now."""
        return sorted(self.java.call("queues", name=name)["queues"])

    def stop(self, name: str) -> None:
        """Shut a push consumer down in order."""
        self.java.call("stop", name=name)

    def poll(self, name: str, count: int) -> list[Row]:
        """Poll until so many messages have arrived."""
        rows: list[Row] = []

        def arrived() -> bool:
            rows.extend(self.java.call("poll", name=name)["got"])
            return len(rows) >= count

        until(arrived, "the polled messages")
        return rows


StartJava = Callable[[RemotingBroker], JavaClients]


@pytest.fixture(scope="module")
def classes() -> str:
    return class_path()


@pytest.fixture(scope="module")
def gateway(classes: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemotingBroker]:
    brokers = Brokers(tmp_path_factory.mktemp("gateway"))
    yield RemotingBroker(brokers.start)
    brokers.stop_all()


@pytest.fixture
def start_java(classes: str, tmp_path: Path) -> Iterator[StartJava]:
    started: list[JavaClients] = []

    def start(gateway: RemotingBroker) -> JavaClients:
        made = JavaClients(classes, tmp_path / f"java-{len(started)}", gateway)
        started.append(made)
        return made

    yield start
    for each in started:
        each.java.kill()


@pytest.fixture(scope="module")
def java(classes: str, gateway: RemotingBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClients]:
    """Yield one Java process for the tests that do not kill theirs."""
    made = JavaClients(classes, tmp_path_factory.mktemp("java") / "home", gateway)
    yield made
    made.java.kill()


def numbers(count: int, first: int = 0) -> Counter[str]:
    return Counter(str(number) for number in range(first, first + count))


@pytest.mark.long(seconds=25)
def test_consumers_share_the_queues_and_divide_them_again_when_one_joins_leaves_or_dies(
    gateway: RemotingBroker, start_java: StartJava, topic: str, group: str
) -> None:
    java, other = start_java(gateway), start_java(gateway)
    java.send(topic, 8)
    java.push("a", group, topic)
    until(lambda: java.bodies("a") == numbers(8))
    java.push("b", group, topic)
    until(lambda: sorted(java.queues("a") + java.queues("b")) == QUEUES and len(java.queues("a")) == 2)
    other.push("c", group, topic)
    until(lambda: sorted(java.queues("a") + java.queues("b") + other.queues("c")) == QUEUES)
    until(lambda: len(other.queues("c")) == 1 and len(java.queues("a")) in (1, 2))
    other.java.kill()
    until(lambda: sorted(java.queues("a") + java.queues("b")) == QUEUES)
    java.stop("b")
    until(lambda: java.queues("a") == QUEUES)
    java.send(topic, 8, first=8)
    until(lambda: java.bodies("a") & numbers(16) == numbers(16))


@pytest.mark.long(seconds=25)
def test_consumers_in_order_get_each_queue_in_order_and_never_together(
    gateway: RemotingBroker, java: JavaClients, topic: str, group: str
) -> None:
    java.send(topic, 40)
    java.push("o1", group, topic, orderly=True)
    java.push("o2", group, topic, orderly=True)
    until(lambda: sorted(java.queues("o1") + java.queues("o2")) == QUEUES and len(java.queues("o1")) == 2)
    java.send(topic, 40, first=40)
    until(lambda: java.bodies("o1", "o2").keys() == numbers(80).keys())
    for name in ("o1", "o2"):
        for queue in QUEUES:
            offsets = [row["offset"] for row in java.got(name) if row["queue"] == queue]
            assert offsets == sorted(offsets)
    with Admin(gateway.running.address) as admin:
        assert [member.orderly for member in admin.group(group).members] == [True, True]
    java.stop("o1")
    java.send(topic, 8, first=80)
    until(lambda: java.bodies("o2") & numbers(8, 80) == numbers(8, 80))
    java.stop("o2")


@pytest.mark.long(seconds=25)
def test_broadcasting_consumers_each_get_everything_and_commit_nothing(
    gateway: RemotingBroker, java: JavaClients, topic: str, group: str
) -> None:
    java.send(topic, 8)
    for name in ("b1", "b2"):
        java.push(name, group, topic, broadcasting=True)
    java.send(topic, 8, first=8)
    until(lambda: java.bodies("b1") == java.bodies("b2") == numbers(16))
    with Admin(gateway.running.address) as admin:
        found = admin.group(group)
        assert (found.mode, len(found.members)) == ("broadcasting", 2)
        assert {queue.committed for queue in found.queues} == {-1}
    for name in ("b1", "b2"):
        java.stop(name)


@pytest.mark.parametrize(
    "selection", [{"tags": "even || none"}, {"sql": "number between 0 and 8 and TAGS = 'even'"}], ids=["tags", "sql"]
)
def test_a_consumer_gets_only_what_it_selects(
    java: JavaClients, topic: str, group: str, selection: dict[str, str]
) -> None:
    java.send(topic, 10)
    java.push("s", group, topic, **selection)
    until(lambda: sum(java.bodies("s").values()) >= 5)
    assert java.bodies("s") == Counter(["0", "2", "4", "6", "8"])
    java.stop("s")


def test_a_failed_message_comes_again_and_becomes_a_dead_letter_at_last(
    gateway: RemotingBroker, java: JavaClients, topic: str, group: str
) -> None:
    java.send(topic, 1)
    java.push("f", group, topic, fail=5, maxTimes=1)
    until(lambda: [row["times"] for row in java.got("f")] == [0, 1])
    assert {row["topic"] for row in java.got("f")} == {topic}, "the client sees the first topic"
    dead = dead_letter_topic(group)
    with Admin(gateway.running.address) as admin:
        until(lambda: dead in admin.topics() and [row.max_offset for row in admin.topic_stats(dead)] == [1])
    java.stop("f")


def test_a_lite_pull_consumer_seeks_and_commits_backwards(
    gateway: RemotingBroker, java: JavaClients, topic: str, group: str
) -> None:
    java.send(topic, 6, queue=0)
    java.java.call("lite", name="l", group=group, topic=topic)
    assert [row["body"] for row in java.poll("l", 6)] == [str(number) for number in range(6)]
    java.java.call("commit", name="l")
    with Admin(gateway.running.address) as admin:

        def committed() -> int:
            rows = admin.group(group).queues
            return next((row.committed for row in rows if (row.topic, row.queue) == (topic, 0)), -1)

        def after_seek(offset: int) -> Row:
            """Seek until messages arrive: RocketMQ's client loses a seek that its ending pull task takes for itself."""
            rows: list[Row] = []

            def arrived() -> bool:
                java.java.call("seek", name="l", topic=topic, queue=0, offset=offset)
                rows.extend(java.java.call("poll", name="l")["got"])
                return bool(rows)

            until(arrived, f"a message after the seek to {offset}")
            return rows[0]

        until(lambda: committed() == 6)
        assert after_seek(3)["body"] == "3"
        assert after_seek(1)["body"] == "1"


@pytest.mark.long(seconds=25)
def test_consumers_go_on_after_a_restart_of_the_broker(
    broker: BrokerFactory, start_java: StartJava, topic: str, group: str
) -> None:
    gateway = RemotingBroker(broker)
    java = start_java(gateway)
    java.send(topic, 8)
    java.push("a", group, topic)
    java.push("b", group, topic)
    until(lambda: java.bodies("a", "b").keys() == numbers(8).keys())
    until(lambda: sorted(java.queues("a") + java.queues("b")) == QUEUES)
    gateway.running.stop()
    host, port = gateway.address
    broker(store=gateway.running.store, settings={"remoting.listen": f"{host}:{port}", "remoting.vip_channel": False})
    java.send(topic, 8, first=8)
    until(lambda: java.bodies("a", "b").keys() == numbers(16).keys())


def test_a_reset_of_a_live_group_reaches_its_consumers(
    gateway: RemotingBroker, java: JavaClients, topic: str, group: str
) -> None:
    java.send(topic, 4, queue=0)
    java.push("r", group, topic)
    with Admin(gateway.running.address) as admin:
        until(lambda: [queue.committed for queue in admin.group(group).queues if queue.topic == topic][:1] == [4])
        admin.reset_offsets(group, topic, {0: 1}, force=True)
        until(lambda: java.bodies("r") == numbers(4) + numbers(3, 1))
        until(lambda: [queue.committed for queue in admin.group(group).queues if queue.topic == topic][:1] == [4])
    java.stop("r")


# ---- both kinds ----


def test_a_group_of_java_consumers_passes_to_flintmqs_and_back(
    gateway: RemotingBroker, java: JavaClients, topic: str, group: str
) -> None:
    address, seen = gateway.running.address, Seen()
    java.send(topic, 8)
    client = java.push("j", group, topic)
    until(lambda: java.bodies("j") == numbers(8))
    with pytest.raises(GroupKind, match=client.partition("@")[0]):
        PushConsumer(address, group, topic, seen).start()
    java.stop("j")
    with PushConsumer(address, group, topic, seen):
        java.send(topic, 8, first=8)
        assert Counter(message.body.decode() for message in seen.wait(8)) == numbers(8, 8)
        waiting = java.push("k", group, topic)
        with Admin(address) as admin:
            until(lambda: list(admin.group(group).waiting) == [waiting])
        java.send(topic, 8, first=16)
        assert Counter(message.body.decode() for message in seen.wait(16)) == numbers(16, 8)
        assert java.queues("k") == []
        assert java.got("k") == []
    java.send(topic, 8, first=24)
    until(lambda: java.bodies("k") == numbers(8, 24))
    java.stop("k")
    assert len(seen.messages) == 16
