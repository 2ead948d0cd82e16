"""The client spreads bulks over the queues of their topic, so that every member of a pool of workers gets some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from flintmq.client import Consumer, Message, Producer, Receipt
from flintmq.client.core.produce.packer import queue_of

if TYPE_CHECKING:
    pass


def by_queue(receipts: Sequence[Receipt]) -> list[int]:
    """Return how many messages each of the four queues got."""
    counts = Counter(receipt.queue for receipt in receipts)
    return [counts[queue] for queue in range(4)]


def bodies_at(consumer: Consumer, receipts: Sequence[Receipt]) -> list[bytes]:
    """Return the bodies of the messages that the receipts name, in the order of the receipts."""
    return [
        consumer.pull(receipt.topic, receipt.queue, receipt.queue_offset, max_count=1).messages[0].body
        for receipt in receipts
    ]


def test_the_first_bulk_of_a_producer_gives_each_queue_its_share(
    producer: Producer, consumer: Consumer, topic: str
) -> None:
    bodies = [b"job %d" % number for number in range(23)]
    receipts = producer.send_bulk(topic, bodies)
    assert sorted(by_queue(receipts)) == [5, 6, 6, 6]
    assert bodies_at(consumer, receipts) == bodies


def test_send_many_gives_each_queue_its_share(producer: Producer, consumer: Consumer, topic: str) -> None:
    messages = [Message(topic, b"job %d" % number, keys=[f"k{number}"]) for number in range(1000)]
    receipts = producer.send_many(messages)
    assert all(240 <= count <= 260 for count in by_queue(receipts))
    assert bodies_at(consumer, receipts[::50]) == [message.body for message in messages[::50]]


@pytest.mark.parametrize("count", [5, 23, 1000, 20_000])
def test_a_producer_that_knows_the_queues_spreads_evenly(producer: Producer, topic: str, count: int) -> None:
    producer.send_bulk(topic, [b""] * 64)
    counts = by_queue(producer.send_bulk(topic, [b"x" * 100] * count))
    assert min(counts) >= count // 5


def test_short_bulks_go_to_one_queue_in_turn(producer: Producer, topic: str) -> None:
    queues = [{receipt.queue for receipt in producer.send_bulk(topic, [b"a", b"b", b"c", b"d"])} for _ in range(4)]
    assert sorted(queue for chosen in queues for queue in chosen) == [0, 1, 2, 3]


def test_a_pinned_bulk_stays_in_its_queue_in_order(producer: Producer, consumer: Consumer, topic: str) -> None:
    bodies = [b"%d" % number for number in range(2000)]
    pinned = producer.send_bulk(topic, bodies, queue=2)
    assert [(receipt.queue, receipt.queue_offset) for receipt in pinned] == [(2, place) for place in range(2000)]
    sharded = producer.send_bulk(topic, bodies, sharding_key="o-1")
    assert {receipt.queue for receipt in sharded} == {queue_of("o-1", 4)}
    assert bodies_at(consumer, sharded[::100]) == bodies[::100]


def test_sharded_messages_among_others_keep_queue_and_order(producer: Producer, consumer: Consumer, topic: str) -> None:
    messages = [
        Message(topic, b"%d" % number, sharding_key=f"o-{number % 3}" if number % 2 else None) for number in range(600)
    ]
    receipts = producer.send_many(messages)
    for key in ("o-0", "o-1", "o-2"):
        mine = [receipt for message, receipt in zip(messages, receipts, strict=True) if message.sharding_key == key]
        assert {receipt.queue for receipt in mine} == {queue_of(key, 4)}
        assert [receipt.queue_offset for receipt in mine] == sorted(receipt.queue_offset for receipt in mine)
    others = [receipt for message, receipt in zip(messages, receipts, strict=True) if message.sharding_key is None]
    assert min(by_queue(others)) >= 60
    assert bodies_at(consumer, receipts[::40]) == [message.body for message in messages[::40]]
