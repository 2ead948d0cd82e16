"""Steps of tests that receive deliveries."""

from __future__ import annotations

from typing import Any

from flintmq.client import Admin, Consumer, Delivery, GroupConsumer, Producer
from tests.group_tools import WAIT_SECONDS, numbered

FIRST: dict[str, Any] = {"start": "first", "commit_interval": 0.05}
"""Options of a member that reads from the beginning and commits at once."""


def fill(address: str, topic: str, count: int, queues: int = 1) -> None:
    with Producer(address) as producer, Admin(address) as admin:
        admin.create_topic(topic, queues=queues)
        producer.send_many(numbered(topic, count))


def receive(consumer: GroupConsumer, count: int) -> list[Delivery]:
    """Receive exactly so many deliveries."""
    found: list[Delivery] = []
    while len(found) < count:
        more = consumer.receive(count - len(found), WAIT_SECONDS)
        assert more, f"{len(found)} of {count} deliveries arrived"
        found += more
    return found


def acknowledge(consumer: GroupConsumer, count: int) -> list[Delivery]:
    """Receive exactly so many deliveries, one at a time, and acknowledge each."""
    found = []
    for _ in range(count):
        found += receive(consumer, 1)
        found[-1].ack()
    return found


def one_of_each_queue(deliveries: list[Delivery]) -> list[Delivery]:
    """Return the first delivery of each queue; acknowledge the others."""
    held: dict[int, Delivery] = {}
    for delivery in deliveries:
        if held.setdefault(delivery.message.queue, delivery) is not delivery:
            delivery.ack()
    return list(held.values())


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.message.body for delivery in deliveries]


def topics_of(consumer: GroupConsumer) -> set[str]:
    return {topic for topic, _ in consumer.health().queues}


def committed(address: str, group: str, queue: int = 0) -> int:
    with Consumer(address) as plain:
        return plain.committed(group, group).get(queue, 0)
