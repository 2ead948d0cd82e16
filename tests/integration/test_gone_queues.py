"""Queues of a topic that was deleted and made again: what is due for one that is gone is parked, and the others begin
where they must."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from flintmq.client import Admin, Consumer, GroupConsumer, Message, Producer
from flintmq.protocol.remoting import codes
from flintmq.protocol.storage.delivery import pop_retry_topic
from tests.conftest import BrokerFactory, RunningBroker
from tests.console_tools import console_of
from tests.group_tools import until
from tests.remoting_tools import RemotingBroker, json_of


@pytest.mark.parametrize("delay", [{"delay_level": 1}, {"delay": timedelta(seconds=1)}], ids=["level", "timed"])
def test_what_is_due_for_a_queue_that_is_gone_is_parked(
    broker: BrokerFactory, topic: str, delay: dict[str, Any]
) -> None:
    address = broker().address
    with Admin(address) as admin, Producer(address) as producer, Consumer(address) as consumer:
        admin.create_topic(topic, queues=4)
        producer.send(Message(topic, b"earlier"), queue=3)
        producer.send(Message(topic, b"waits", **delay), queue=3)
        producer.send(Message(topic, b"beside", **delay), queue=0)
        admin.delete_topic(topic)
        admin.create_topic(topic, queues=1)
        assert [each.body for each in consumer.pull(topic, 0, 0, wait_ms=30_000).messages] == [b"beside"]
        until(lambda: admin.delays().parked == 1, "parking")
        admin.create_topic(topic, queues=4)
        assert [each.body for each in consumer.iter(topic, until="latest")] == [b"beside"]


def test_a_topic_made_again_after_a_kill_begins_at_its_first_new_message(broker: BrokerFactory, topic: str) -> None:
    def filled(running: RunningBroker, count: int) -> RunningBroker:
        with Producer(running.address) as producer:
            producer.send_bulk(topic, [b"x"] * count)
        return running

    running = broker()
    with Admin(running.address) as admin:
        admin.create_topic(topic, queues=1)
    assert filled(running, 15).stop() == 0  # the units of these are on disk, those of the next ones are not
    running = filled(broker(store=running.store), 10)
    with Admin(running.address) as admin:
        admin.delete_topic(topic)
    running.kill()
    running = broker(store=running.store)
    with Admin(running.address) as admin, Consumer(running.address) as consumer:
        admin.create_topic(topic, queues=1)
        assert (consumer.min_offset(topic, 0), consumer.max_offset(topic, 0)) == (25, 25)
        filled(running, 1)
        assert consumer.min_offset(topic, 0) == 25
        assert [each.queue_offset for each in consumer.iter(topic, until="latest")] == [25]
        (row,) = admin.topic_stats(topic)
        assert (row.min_offset, row.max_offset) == (25, 26)


def lags(gateway: RemotingBroker, group: str) -> dict[str, int]:
    """Return the lag of a group as each program shows it. ``mqadmin`` subtracts what RocketMQ's requests return."""

    def difference(table: list[tuple[Any, dict[str, int]]]) -> int:
        return sum(row["brokerOffset"] - row["consumerOffset"] for _, row in table)

    with gateway.connect() as tool:
        progress = json_of(tool.call(codes.GET_CONSUME_STATS, {"consumerGroup": group}))
        everything = json_of(tool.call(codes.GET_BROKER_CONSUME_STATS, {"isOrder": False}))
    listed = [stats for row in everything["consumeStatsList"] for stats in row.get(group, [])]
    with console_of(gateway.running) as console, Admin(gateway.running.address) as admin:
        pages = {path: console.get(path).text for path in ("/groups", f"/groups/{group}")}
        native = sum(row.lag for row in admin.consume_stats(group, uncommitted=True))
    (row,) = re.findall(r'<td class="number" data-label="Lag"[^>]*>([\d,]+)</td>', pages["/groups"])
    (shown,) = re.findall(r"<dt>Lag</dt><dd>([\d,]+) ", pages[f"/groups/{group}"])
    return {
        "native": native,
        "consumer progress": difference(progress["offsetTable"]),
        "broker's consumers": sum(difference(stats["offsetTable"]) for stats in listed),
        "sum of the broker's": everything["totalDiff"],
        "console, list": int(row),
        "console, group": int(shown),
    }


def test_each_lag_counts_what_waits_after_messages_were_deleted(broker: BrokerFactory, topic: str) -> None:
    gateway = RemotingBroker(broker)
    address = gateway.running.address
    with Admin(address) as admin, Producer(address) as producer, Consumer(address) as consumer:
        admin.create_topic(topic, queues=2)
        producer.send_bulk(topic, [b"gone"] * 30)
        admin.delete_topic(topic)
        admin.create_topic(topic, queues=2)
        producer.send_bulk(topic, [b"x"] * 3, queue=0)
        producer.send_bulk(topic, [b"x"] * 4, queue=1)
        consumer.commit("g", topic, {0: 1})  # before the first message that is there; none in the other queue
        assert len(list(consumer.iter(topic, until="latest"))) == 7
        assert set(lags(gateway, "g").values()) == {7}
        consumer.commit("g", topic, {0: consumer.max_offset(topic, 0)})
        assert set(lags(gateway, "g").values()) == {4}


def test_each_lag_counts_what_waits_to_be_delivered_again(broker: BrokerFactory, topic: str) -> None:
    gateway = RemotingBroker(broker)
    address = gateway.running.address
    with Admin(address) as admin, Producer(address) as producer:
        admin.create_topic(topic, queues=1)
        producer.send_many([Message(topic, b"%d" % number) for number in range(3)])
    with GroupConsumer(address, "g", topic, mode="work", start="earliest") as work:
        first, second, third = work.receive(3, 20)
        first.ack()
        second.retry(1)
        third.ack()
    with Consumer(address) as consumer:
        until(lambda: consumer.max_offset(pop_retry_topic("g", topic), 0) == 1, "the retry")
    assert set(lags(gateway, "g").values()) == {1}
