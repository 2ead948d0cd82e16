"""Progress of consumer groups, over the wire and through the client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pytest

from flintmq.client import Admin, Consumer, ConsumeStats, InvalidArgument, InvalidParameter, Producer, TopicNotExist
from flintmq.protocol.commands import GET_CONSUME_STATS
from tests.client_drivers import Clients
from tests.conftest import RawConnection, RunningBroker

Connect: TypeAlias = Callable[..., RawConnection]


@pytest.fixture
def filled(shared_broker: RunningBroker, topic: str) -> str:
    """Create a topic of two queues with three messages each, on which two groups have committed offsets."""
    with Admin(shared_broker.address) as admin, Producer(shared_broker.address) as producer:
        admin.create_topic(topic, queues=2)
        for queue in (0, 1):
            producer.send_bulk(topic, [b"x"] * 3, queue=queue)
    with Consumer(shared_broker.address) as consumer:
        consumer.commit(f"{topic}-a", topic, {0: 3, 1: 1})
        consumer.commit(f"{topic}-b", topic, {1: 0})
    return topic


def test_every_queue_that_a_group_has_committed_is_listed(
    shared_broker: RunningBroker, clients: Clients, filled: str
) -> None:
    with clients.Admin(shared_broker.address) as admin:
        assert admin.consume_stats(topic=filled) == [
            ConsumeStats(f"{filled}-a", filled, 0, 3, 0, 3),
            ConsumeStats(f"{filled}-a", filled, 1, 1, 0, 3),
            ConsumeStats(f"{filled}-b", filled, 1, 0, 0, 3),
        ]
        assert [row.lag for row in admin.consume_stats(group=f"{filled}-a")] == [0, 2]
        everything = admin.consume_stats()
        assert [row for row in everything if row.topic == filled] == admin.consume_stats(topic=filled)
        assert everything == sorted(everything, key=lambda row: (row.group, row.topic, row.queue))


def test_the_next_message_of_each_queue_is_timed_if_asked_for(
    shared_broker: RunningBroker, clients: Clients, filled: str
) -> None:
    with clients.Admin(shared_broker.address) as admin, Consumer(shared_broker.address) as consumer:
        stored = {
            (queue, offset): next(iter(consumer.pull(filled, queue, offset))).stored_at
            for queue, offset in ((0, 0), (1, 1), (1, 0))
        }
        rows = admin.consume_stats(topic=filled, uncommitted=True, times=True)
        untimed = admin.consume_stats(topic=filled, uncommitted=True)
        with pytest.raises(InvalidArgument, match="uncommitted"):
            admin.consume_stats(topic=filled, times=True)
    assert {(row.group[-1], row.queue): row.next_stored_at for row in rows} == {
        ("a", 0): None,
        ("a", 1): stored[1, 1],
        ("b", 0): stored[0, 0],
        ("b", 1): stored[1, 0],
    }
    assert [replace(row, next_stored_ms=-1) for row in rows] == untimed


def test_a_group_that_has_committed_nothing_has_no_rows(shared_broker: RunningBroker, filled: str) -> None:
    with Admin(shared_broker.address) as admin:
        assert admin.consume_stats(group="nobody") == []


def test_a_topic_that_is_deleted_is_left_out(shared_broker: RunningBroker, filled: str) -> None:
    with Admin(shared_broker.address) as admin:
        admin.delete_topic(filled)
        assert admin.consume_stats(group=f"{filled}-a") == []
        with pytest.raises(TopicNotExist, match=filled):
            admin.consume_stats(topic=filled)


def test_more_rows_than_the_loop_looks_up_itself_are_complete(shared_broker: RunningBroker, topic: str) -> None:
    with Admin(shared_broker.address) as admin, Consumer(shared_broker.address) as consumer:
        admin.create_topic(topic, queues=300)
        consumer.commit(f"{topic}-g", topic, dict.fromkeys(range(300), 0))
        assert [row.queue for row in admin.consume_stats(group=f"{topic}-g")] == list(range(300))
        with Producer(shared_broker.address) as producer:
            producer.send_bulk(topic, [b"x"], queue=299)
        timed = admin.consume_stats(group=f"{topic}-g", uncommitted=True, times=True)
        assert [row.queue for row in timed if row.next_stored_at is not None] == [299]


def test_a_group_name_that_cannot_be_is_refused(shared_broker: RunningBroker, connect: Connect) -> None:
    with pytest.raises(InvalidParameter, match="group"):
        connect(shared_broker).call(GET_CONSUME_STATS, {"group": "a b"}).raise_for_error()
    with Admin(shared_broker.address) as admin, pytest.raises(InvalidArgument, match="group"):
        admin.consume_stats(group="g" * 121)
