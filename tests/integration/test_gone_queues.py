"""Queues of a topic that was deleted and made again: what is due for one that is gone is parked, and the others begin
where they must."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flintmq.client import Admin, Consumer, Message, Producer
from tests.conftest import BrokerFactory, RunningBroker
from tests.group_tools import until


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
