"""GET_TOPICS_STATS: the figures of many topics in one request."""

from __future__ import annotations

import re
from pathlib import Path

import msgpack
import pytest

from flintmq.client import Admin, Consumer, InvalidParameter, Message, Producer, TopicNotExist, TopicTotals
from flintmq.client.operator.rates import all_topics_stats
from flintmq.protocol import commands
from tests.cli_tools import Cli
from tests.conftest import BrokerFactory, ConnectionFactory


def test_the_figures_are_the_sums_of_each_topics_queues(broker: BrokerFactory) -> None:
    running = broker()
    with Admin(running.address) as admin, Producer(running.address) as producer, Consumer(running.address) as consumer:
        for name, count in (("orders", 30), ("bills", 3)):
            admin.create_topic(name, queues=3)
            for number in range(count):
                producer.send(Message(name, b"x" * number), queue=number % 3)
        admin.create_topic("empty", queues=2)
        pulled = consumer.pull("orders", 0, 0, max_count=4)
        found = {totals.topic: totals for totals in admin.topics_stats()}
        assert {"orders", "bills", "empty"} <= found.keys()
        for name in ("orders", "bills", "empty"):
            queues = admin.topic_stats(name)
            totals = found[name]
            assert totals.queues == len(queues)
            assert totals.messages == sum(queue.count for queue in queues)
            assert totals.max_offsets == sum(queue.max_offset for queue in queues)
            assert totals.last_stored_ms == max(queue.last_stored_ms for queue in queues)
        assert [found[name].produced_messages for name in ("orders", "bills", "empty")] == [30, 3, 0]
        assert found["orders"].produced_bytes > sum(range(30))
        assert found["orders"].pulled_messages == len(pulled.messages) == 4
        assert found["empty"].last_stored_at is None


def test_one_topic_is_shown_with_its_queues_and_the_groups_that_read_it(broker: BrokerFactory, tmp_path: Path) -> None:
    running = broker()
    with Admin(running.address) as admin, Producer(running.address) as producer, Consumer(running.address) as consumer:
        admin.create_topic("orders", queues=2, retention_hours=24)
        for number in range(10):
            producer.send(Message("orders", b"x"), queue=number % 2)
        consumer.commit("billing", "orders", {0: 2, 1: 5})
        consumer.commit("reports", "orders", {0: 1})
        found = admin.topic("orders")
        assert (found.topic, found.read_queues, found.retention_hours, found.messages) == ("orders", 2, 24, 10)
        assert found.queues == admin.topic_stats("orders")
        assert found.produced_messages == 10
        assert found.log_bytes > 10 * 91
        assert [(each.group, each.lag) for each in found.groups] == [("billing", 3), ("reports", 9)]
        assert found.groups[0].known
        with pytest.raises(TopicNotExist):
            admin.topic("nowhere")
    cli = Cli(tmp_path, running.address)
    [row] = cli.run("-o", "json", "topic", "show", "orders", "--seconds", "0.1").rows
    assert (row["topic"], row["messages"], row["in_per_second"], row["groups"][0]) == (
        "orders",
        10,
        0,
        {"group": "billing", "members": 0, "lag": 3},
    )
    people = cli.run("-o", "table", "topic", "show", "orders", "--seconds", "0.1").out
    assert re.search(r"retention +24 h *\n", people)
    assert re.search(r"billing +│? *0 +│? *3", people)
    assert "groups\tbilling reports\n" in cli.run("topic", "show", "orders", "--seconds", "0.1").out


def test_pages_continue_after_a_name_in_ascending_order(broker: BrokerFactory) -> None:
    running = broker()
    with Admin(running.address) as admin:
        names = [f"topic-{number:03}" for number in range(25)]
        for name in names:
            admin.create_topic(name, queues=1)
        found: list[str] = []
        page = admin.topics_stats("topic-", max_count=10)
        sizes = [len(page)]
        while page:
            found += [totals.topic for totals in page]
            page = admin.topics_stats(page[-1].topic, max_count=10)
            sizes.append(len(page))
        assert found == names
        assert sizes == [10, 10, 5, 0]


def test_a_thousand_topics_take_the_command_line_two_requests(
    broker: BrokerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = broker()
    with Admin(running.address) as admin:
        for number in range(1_000):
            admin.create_topic(f"topic-{number:04}", queues=1)
        asked: list[str] = []
        topics_stats = Admin.topics_stats

        def counted(self: Admin, after: str = "") -> list[TopicTotals]:
            asked.append(after)
            return topics_stats(self, after)

        monkeypatch.setattr(Admin, "topics_stats", counted)
        found = all_topics_stats(admin)
        assert sum(name.startswith("topic-") for name in found) == 1_000
        assert len(asked) == 2


def test_a_topic_that_is_deleted_while_it_is_read_does_not_end_the_pages(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    running = broker()
    raw = connect(running)
    with Admin(running.address) as admin:
        for number in range(200):
            admin.create_topic(f"topic-{number:03}", queues=1)
        for number in range(0, 200, 7):
            raw.send(commands.GET_TOPICS_STATS, {"after": "topic-", "max_count": 200})
            admin.delete_topic(f"topic-{number:03}")
            rows = msgpack.unpackb(raw.receive().raise_for_error().body)
            gone = len(range(0, number, 7))
            assert len(rows) in (200 - gone, 200 - gone - 1)  # the deletion may have come first


@pytest.mark.parametrize("fields", [{"max_count": 0}, {"max_count": 1_001}, {"after": 3}])
def test_illegal_fields_are_refused(
    broker: BrokerFactory, connect: ConnectionFactory, fields: dict[str, object]
) -> None:
    assert connect(broker()).call(commands.GET_TOPICS_STATS, fields).code == InvalidParameter.code


def test_figures_follow_every_change(broker: BrokerFactory) -> None:
    running = broker()
    with Admin(running.address) as admin, Producer(running.address) as producer:

        def orders() -> tuple[int, int, int]:
            (found,) = [each for each in admin.topics_stats() if each.topic == "orders"]
            return found.messages, found.max_offsets, found.last_stored_ms

        admin.create_topic("orders", 2)
        assert orders() == (0, 0, -1)
        for number in range(1, 5):
            receipt = producer.send(Message("orders", b"x"), queue=number % 2)
            assert orders() == (number, number, int(receipt.stored_at.timestamp() * 1000))
        admin.delete_topic("orders")
        admin.create_topic("orders", 2)
        assert orders() == (0, 4, -1)
        receipt = producer.send(Message("orders", b"x"), queue=0)
        assert orders() == (1, 5, int(receipt.stored_at.timestamp() * 1000))
