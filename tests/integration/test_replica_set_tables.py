"""The next primary of a replica set has what the killed one had beside its log."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from flintmq.client import Admin, Consumer, Message, Producer
from tests.group_tools import until
from tests.replica_set import ReplicaSet

LATER = "later"


def bodies(replicas: ReplicaSet, topic: str) -> Counter[bytes]:
    """Return how often the topic has each body."""
    with Consumer(replicas.bootstrap) as consumer:
        return Counter(message.body for message in consumer.iter(topic, from_="earliest", until="latest"))


def send_later(replicas: ReplicaSet, name: str, seconds: float) -> set[bytes]:
    """Send messages that are due after so many seconds, and one of the first delay level; return their bodies."""
    with Producer(replicas.bootstrap) as producer:
        for number in range(3):
            producer.send(Message(LATER, f"{name}-{number}".encode(), delay=timedelta(seconds=seconds)))
        producer.send(Message(LATER, f"{name}-level".encode(), delay_level=1))
    return {f"{name}-{number}".encode() for number in range(3)} | {f"{name}-level".encode()}


def test_each_delayed_message_is_delivered_once_whoever_leads(replicas: ReplicaSet) -> None:
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    sent = send_later(replicas, "before", 0.2)
    until(lambda: bodies(replicas, LATER) == Counter(sent), "the delivery by the first primary")
    first = replicas.leader()
    sent |= send_later(replicas, "between", 1)
    replicas.kill(first)
    until(lambda: bodies(replicas, LATER) >= Counter(sent), "the delivery by the next primary")
    second = replicas.leader()
    assert second != first
    sent |= send_later(replicas, "after", 0.2)
    until(lambda: bodies(replicas, LATER) >= Counter(sent), "the delivery of new messages")
    assert bodies(replicas, LATER) == Counter(sent)

    # The first primary leads again, with what its own files said before its end.
    replicas.start(first)
    replicas.wait_in_sync("a", "b", "c")
    with Admin(replicas.bootstrap) as admin:
        admin.switch_primary(first)
    until(lambda: replicas.leader() == first, "the switch")
    sent |= send_later(replicas, "last", 0.2)
    until(lambda: bodies(replicas, LATER) >= Counter(sent), "the delivery after the switch")
    assert bodies(replicas, LATER) == Counter(sent)
