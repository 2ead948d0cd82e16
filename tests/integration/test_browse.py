"""BROWSE_MESSAGES: pages of a topic across its queues, in the order in which the messages were stored."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import (
    Admin,
    Consumer,
    FilterIllegal,
    InvalidArgument,
    Message,
    NoPermission,
    Producer,
    QueueNotExist,
    TopicNotExist,
    TopicPage,
)
from flintmq.protocol.storage.layout import SysFlag
from tests.conftest import BrokerFactory, RunningBroker
from tests.security_tools import PASSWORD, broker_with_users


@pytest.fixture
def filled(broker: BrokerFactory) -> RunningBroker:
    """Return a broker with 300 messages of the topic ``mixed`` in 7 queues, in random turns."""
    running = broker()
    dice = random.Random(7)
    with Admin(running.address) as admin, Producer(running.address) as producer:
        admin.create_topic("mixed", 7)
        for number in range(300):
            message = Message(
                "mixed",
                b"%d" % number,
                keys=f"k{number}",
                tags=dice.choice(["red", "green", "blue"]),
                properties={"n": str(number)},
            )
            producer.send(message, queue=min(int(dice.expovariate(0.5)), 6))
    return running


@pytest.fixture
def consumer(filled: RunningBroker) -> Iterator[Consumer]:
    with Consumer(filled.address) as made:
        yield made


def numbers(page: TopicPage) -> list[int]:
    return [int(row.body) for row in page]


def all_pages(consumer: Consumer, **arguments: object) -> list[int]:
    """Return the numbers of all messages, from pages that each continue the one before."""
    found: list[int] = []
    physical = None
    for _ in range(1000):
        page = consumer.browse("mixed", physical=physical, **arguments)  # type: ignore[arg-type] # any arguments
        found += numbers(page)
        if page.next_physical is None:
            return found
        physical = page.next_physical
    raise AssertionError("the pages do not end")


@pytest.mark.parametrize("count", [1, 2, 49, 50, 63, 64, 65, 150, 200])
def test_pages_have_every_message_once_in_the_order_of_the_log(consumer: Consumer, count: int) -> None:
    assert all_pages(consumer, count=count) == list(range(299, -1, -1))
    assert all_pages(consumer, count=count, newest_first=False) == list(range(300))


def test_a_page_shows_the_newest_messages_and_the_totals(consumer: Consumer) -> None:
    page = consumer.browse("mixed")
    assert numbers(page) == list(range(299, 249, -1))
    assert (page.messages, page.max_offsets, page.lost) == (300, 300, 0)
    newest = page[0]
    assert (newest.keys, newest.properties["n"], newest.has_whole_body) == (("k299",), "299", True)
    stored = consumer.message(newest.offset_id)
    assert (stored.queue, stored.queue_offset, stored.body) == (newest.queue, newest.queue_offset, b"299")
    assert stored.message_id == newest.message_id
    assert stored.stored_at == newest.stored_at


def test_a_page_goes_back_from_the_place_where_the_other_one_ended(consumer: Consumer) -> None:
    older = consumer.browse("mixed", count=20, physical=consumer.browse("mixed", count=20).next_physical)
    newer = consumer.browse("mixed", count=20, newest_first=False, physical=older[0].physical_offset + 1)
    assert numbers(newer) == list(range(280, 300))


def test_one_queue_is_shown_from_an_offset(consumer: Consumer) -> None:
    queue = list(consumer.browse("mixed", 1, count=200, newest_first=False))
    assert [row.queue_offset for row in queue] == list(range(len(queue)))
    from_five = consumer.browse("mixed", 1, 5, newest_first=False, count=3)
    assert [row.queue_offset for row in from_five] == [5, 6, 7]
    before_five = consumer.browse("mixed", 1, 5, count=3)
    assert [row.queue_offset for row in before_five] == [4, 3, 2]
    assert before_five.messages == len(queue)
    assert not consumer.browse("mixed", 1, 10**12, newest_first=False)


def test_a_page_begins_at_a_store_time(broker: BrokerFactory) -> None:
    running = broker()
    with Producer(running.address) as producer, Consumer(running.address) as consumer:
        stored = []
        for number in range(20):
            receipt = producer.send(Message("timed", b"%d" % number), queue=number % 4)
            stored.append(receipt.stored_at)
            while datetime.now(UTC) - receipt.stored_at < timedelta(milliseconds=2):
                time.sleep(0.0005)  # so that no two messages have the same store time
        assert numbers(consumer.browse("timed", from_=stored[7])) == [6, 5, 4, 3, 2, 1, 0]
        assert numbers(consumer.browse("timed", from_=stored[7], newest_first=False)) == list(range(7, 20))


@pytest.mark.parametrize("scan_max", [1, 10, 64, 100, 20_000])
def test_tags_and_filters_select_and_the_search_continues(consumer: Consumer, scan_max: int) -> None:
    every = consumer.browse("mixed", count=200, newest_first=False)
    every_tag = {int(row.body): row.tags for page in (every, consumer.browse("mixed", count=200)) for row in page}
    red = [number for number in range(300) if every_tag[number] == "red"]
    assert all_pages(consumer, tags="red", scan_max=scan_max, newest_first=False) == red
    assert all_pages(consumer, tags="red", scan_max=scan_max, count=7) == red[::-1]
    big = [number for number in red if number > 200]
    assert all_pages(consumer, tags="red", filter="n > 200", scan_max=scan_max, count=3) == big[::-1]


def test_a_search_says_how_far_it_came(consumer: Consumer) -> None:
    page = consumer.browse("mixed", filter="n = 0", scan_max=100)
    assert (len(page), page.examined) == (0, 128)  # whole chunks
    assert page.next_physical is not None
    assert page.reached_at is not None
    assert page.reached_physical == page.next_physical
    assert consumer.browse("mixed", count=50)[-1].physical_offset == consumer.browse("mixed").reached_physical
    everything = consumer.browse("mixed", filter="n = 0", newest_first=False)
    assert everything.next_physical is None
    assert everything.reached_physical == consumer.browse("mixed", count=1)[0].physical_offset


def test_long_bodies_are_cut_at_the_broker(broker: BrokerFactory) -> None:
    running = broker()
    with Producer(running.address, compress_over=None) as producer, Consumer(running.address) as consumer:
        sizes = [0, 1, 255, 256, 257, 16_384, 20_000, 500_000]
        for size in sizes:
            producer.send(Message("long", bytes(index % 251 for index in range(size)), keys=f"size{size}"))
        rows = consumer.browse("long", newest_first=False)
        assert [row.body_bytes for row in rows] == sizes
        assert [len(row.body) for row in rows] == [min(size, 256) for size in sizes]
        assert all(row.keys == (f"size{size}",) for row, size in zip(rows, sizes, strict=True))
        assert rows[-1].body == bytes(index % 251 for index in range(256))
        assert [row.has_whole_body for row in rows] == [size <= 256 for size in sizes]
        assert len(consumer.browse("long", body_bytes=65_536)[0].body) == 65_536
        assert consumer.browse("long", body_bytes=0)[0].body == b""


def test_a_page_of_long_bodies_ends_early_and_continues(broker: BrokerFactory) -> None:
    running = broker()
    with Producer(running.address, compress_over=None) as producer, Consumer(running.address) as consumer:
        producer.send_many([Message("mixed", b"%05d" % number + bytes(70_000)) for number in range(60)])
        found, physical = [], None
        while True:
            page = consumer.browse("mixed", physical=physical, count=200, body_bytes=65_536)
            assert 0 < len(page) <= 18
            found += [int(row.body[:5]) for row in page]
            physical = page.next_physical
            if physical is None:
                break
        assert found == list(range(59, -1, -1))


def test_a_compressed_body_is_marked(broker: BrokerFactory) -> None:
    running = broker()
    with Producer(running.address, compress_over=100) as producer, Consumer(running.address) as consumer:
        producer.send(Message("packed", b"x" * 5000))
        row = consumer.browse("packed")[0]
        assert row.sys_flag & SysFlag.COMPRESSED
        assert row.body_bytes < 100


def test_an_acknowledged_message_is_on_the_next_page(broker: BrokerFactory) -> None:
    running = broker()
    with Producer(running.address) as producer, Consumer(running.address) as consumer:
        for number in range(200):
            producer.send(Message("mixed", b"%d" % number))
            assert numbers(consumer.browse("mixed", count=1)) == [number]


def test_an_empty_topic_has_an_empty_page(broker: BrokerFactory) -> None:
    running = broker()
    with Admin(running.address) as admin, Consumer(running.address) as consumer:
        admin.create_topic("empty", 3)
        page = consumer.browse("empty")
        assert (len(page), page.next_physical, page.messages, page.reached_at) == (0, None, 0, None)


def test_bad_requests_get_typed_errors(consumer: Consumer) -> None:
    with pytest.raises(TopicNotExist):
        consumer.browse("nowhere")
    with pytest.raises(QueueNotExist):
        consumer.browse("mixed", 7)
    with pytest.raises(FilterIllegal) as wrong:
        consumer.browse("mixed", filter="n >")
    assert wrong.value.column == 4
    with pytest.raises(InvalidArgument, match="needs the queue"):
        consumer.browse("mixed", from_=5)
    with pytest.raises(InvalidArgument, match="pass one of them"):
        consumer.browse("mixed", 1, 5, physical=0)
    with pytest.raises(InvalidArgument, match="count"):
        consumer.browse("mixed", count=201)
    with pytest.raises(NoPermission):
        consumer.browse("SCHEDULE_TOPIC_XXXX")


def test_browsing_needs_the_permission_to_query(tmp_path: Path) -> None:
    grants: dict[str, list[dict[str, Any]]] = {
        "ops": [{"actions": ["admin"], "broker": True}],
        "reader": [{"actions": ["query"], "topic": "orders"}],
        "writer": [{"actions": ["publish"], "topic": "orders"}],
    }
    with broker_with_users(tmp_path, grants, {}) as running:
        with Admin(running.address, user="ops", password=PASSWORD) as ops:
            ops.create_topic("orders")
        with Consumer(running.address, user="reader", password=PASSWORD) as reader:
            assert reader.browse("orders").messages == 0
        with Consumer(running.address, user="writer", password=PASSWORD) as writer, pytest.raises(NoPermission):
            writer.browse("orders")
