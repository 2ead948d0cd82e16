"""The consumer against a real broker: pulling, iterating, searching, offsets."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flintmq.client import (
    Admin,
    Batch,
    ClientClosed,
    Consumer,
    CorruptMessage,
    InvalidArgument,
    Message,
    MessageNotFound,
    OffsetOutOfRange,
    Producer,
    QueueNotExist,
    TopicNotExist,
)
from tests.group_tools import SOON_S, WAIT_SECONDS, fill
from tests.overload_tools import soon

if TYPE_CHECKING:
    from tests.client_drivers import Clients
    from tests.conftest import BrokerFactory, RunningBroker


class TestPull:
    def test_a_batch_names_the_next_offset(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        fill(producer, topic, 100, queues=1)
        batch = consumer.pull(topic, queue=0, offset=10, max_count=20)
        assert [message.body for message in batch] == [b"%d" % number for number in range(10, 30)]
        assert batch.bodies() == [b"%d" % number for number in range(10, 30)]
        assert (batch.next_offset, batch.min_offset, batch.max_offset) == (30, 0, 100)

    def test_at_the_end_there_is_nothing(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        fill(producer, topic, 3, queues=1)
        batch = consumer.pull(topic, queue=0, offset=3)
        assert (len(batch), list(batch.messages), batch.next_offset, batch.max_offset) == (0, [], 3, 3)

    @pytest.mark.parametrize("offset", [4, 10**15])
    def test_beyond_the_end_is_out_of_range(
        self, producer: Producer, consumer: Consumer, topic: str, offset: int
    ) -> None:
        fill(producer, topic, 3, queues=1)
        with pytest.raises(OffsetOutOfRange) as raised:
            consumer.pull(topic, queue=0, offset=offset)
        assert (raised.value.min_offset, raised.value.max_offset) == (0, 3)

    def test_a_pull_returns_at_least_one_message_of_any_length(
        self, producer: Producer, consumer: Consumer, topic: str
    ) -> None:
        producer.send_many([Message(topic, b"x" * 4000), Message(topic, b"y" * 4000)], queue=0)
        assert len(consumer.pull(topic, 0, 0, max_bytes=1)) == 1
        assert len(consumer.pull(topic, 0, 0, max_bytes=10_000)) == 2

    def test_a_large_batch_comes_whole(
        self, clients: Clients, shared_broker: RunningBroker, producer: Producer, consumer: Consumer, topic: str
    ) -> None:
        bodies = [b"%06d" % number * 500 for number in range(2000)]
        with clients.Producer(shared_broker.address, compress_over=None) as plain:
            plain.send_bulk(topic, bodies, queue=0)
        pulled: list[Batch] = []

        def is_whole() -> bool:
            pulled.append(consumer.pull(topic, 0, 0, max_count=10_000, max_bytes=8 << 20))
            return len(pulled[-1]) == len(bodies)

        soon(is_whole)  # fewer come until the producer's last turn is a moment ago
        batch = pulled[-1]
        following = consumer.pull(topic, 0, 0, max_count=1)
        assert len(batch.raw) > 6_000_000
        assert batch.bodies() == bodies
        assert following.bodies() == bodies[:1]
        assert [message.body for message in batch.messages] == bodies

    def test_waiting_for_a_message(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        producer.send(Message(topic, b"first"), queue=0)
        began = time.monotonic()
        assert not consumer.pull(topic, 0, 1, wait_ms=200)
        assert 0.15 < time.monotonic() - began < SOON_S
        timer = threading.Timer(0.3, producer.send, [Message(topic, b"second")], {"queue": 0})
        timer.start()
        began = time.monotonic()
        batch = consumer.pull(topic, 0, 1, wait_ms=20_000)
        timer.join()
        assert batch.bodies() == [b"second"]
        assert time.monotonic() - began < SOON_S

    def test_tags_are_compared_exactly(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        # "Aa" and "BB" have the same Java hash.
        messages = [Message(topic, b"%d" % number, tags=("Aa", "BB", "C", None)[number % 4]) for number in range(100)]
        producer.send_many(messages, queue=0)
        for tags, remainders in (("Aa", {0}), ("BB || C", {1, 2}), (["Aa", "C"], {0, 2}), ("*", {0, 1, 2, 3})):
            batch = consumer.pull(topic, 0, 0, tags=tags)
            assert [int(body) for body in batch.bodies()] == [n for n in range(100) if n % 4 in remainders]

    def test_a_rare_tag_is_found_in_one_pull(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        producer.send_bulk(topic, [b"x"] * 20_000, tags="BB", queue=0)
        producer.send(Message(topic, b"found", tags="Aa"), queue=0)
        assert consumer.pull(topic, 0, 0, tags="Aa").bodies() == [b"found"]

    def test_a_pull_by_tag_finds_acknowledged_messages_after_a_backlog(
        self, producer: Producer, consumer: Consumer, topic: str
    ) -> None:
        # Dispatch lags so many messages behind: a pull that does not wait must still find the last message.
        for queue in range(4):
            producer.send_bulk(topic, [b"x"] * 60_000, tags="BB", queue=queue)
            producer.send(Message(topic, b"found", tags="Aa"), queue=queue)
            end = consumer.pull(topic, queue, 60_000 - 1_000, tags="Aa")
            assert end.bodies() == [b"found"]

    def test_missing_objects_raise_errors(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        with pytest.raises(TopicNotExist):
            consumer.pull(topic, 0, 0)
        producer.send(Message(topic, b""))
        with pytest.raises(QueueNotExist):
            consumer.pull(topic, 99, 0)

    def test_a_held_pull_keeps_no_other_thread_waiting(
        self, producer: Producer, consumer: Consumer, topic: str
    ) -> None:
        producer.send(Message(topic, b"first"), queue=0)
        with ThreadPoolExecutor(1) as threads:
            held = threads.submit(consumer.pull, topic, 0, 1, wait_ms=20_000)
            for _ in range(20):
                assert consumer.pull(topic, 0, 0).bodies() == [b"first"]
            assert not held.done()
            producer.send(Message(topic, b"second"), queue=0)
            assert held.result(60).bodies() == [b"second"]

    def test_close_interrupts_waiting_calls(
        self, clients: Clients, producer: Producer, admin: Admin, shared_broker: RunningBroker, topic: str
    ) -> None:
        producer.send(Message(topic, b"first"), queue=0)
        consumer = clients.Consumer(shared_broker.address)
        consumer.pull(topic, 0, 0)
        with ThreadPoolExecutor(2) as threads:
            held = threads.submit(consumer.pull, topic, 0, 1, wait_ms=60_000)
            followed = threads.submit(next, consumer.iter(topic, "latest"))
            while admin.status()["held_pulls"] < 5:
                time.sleep(0.01)
            began = time.monotonic()
            consumer.close()
            for waiting in (held, followed):
                with pytest.raises(ClientClosed):
                    waiting.result(60)
            assert time.monotonic() - began < SOON_S
        consumer.close()
        with pytest.raises(ClientClosed):
            consumer.pull(topic, 0, 0)


class TestIter:
    def test_all_queues_each_in_its_order(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        fill(producer, topic, 10_000)
        numbers = [int(message.body) for message in consumer.iter(topic, from_="earliest", until="latest")]
        assert sorted(numbers) == list(range(10_000))
        for queue in range(4):
            mine = [number for number in numbers if number % 4 == queue]
            assert mine == sorted(mine)

    def test_the_end_is_the_end_as_it_was(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        fill(producer, topic, 100)
        messages = consumer.iter(topic, until="latest")
        first = next(messages)
        fill(producer, topic, 100)
        assert len([first, *messages]) == 100

    def test_until_a_moment_to_come(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        fill(producer, topic, 20)
        began = time.monotonic()
        timer = threading.Timer(0.2, producer.send, [Message(topic, b"new")])
        timer.start()
        until = datetime.now(UTC) + timedelta(seconds=2)
        assert len(list(consumer.iter(topic, until=until))) == 21
        timer.join()
        assert 1.9 < time.monotonic() - began < WAIT_SECONDS

    def test_tags(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        producer.send_many([Message(topic, b"%d" % number, tags="ab"[number % 2]) for number in range(20_000)])
        numbers = {int(message.body) for message in consumer.iter(topic, until="latest", tags="a")}
        assert numbers == set(range(0, 20_000, 2))
        assert list(consumer.iter(topic, until="latest", tags="none")) == []

    def test_following_sees_new_messages_of_every_queue_at_once(
        self, producer: Producer, consumer: Consumer, topic: str
    ) -> None:
        fill(producer, topic, 8)
        messages = consumer.iter(topic)
        assert len(list(islice(messages, 8))) == 8
        for number in range(20):
            timer = threading.Timer(0.05, producer.send, [Message(topic, b"new %d" % number)], {"queue": number % 4})
            timer.start()
            message = next(messages)
            assert (message.body, message.queue) == (b"new %d" % number, number % 4)
            assert (datetime.now(UTC) - message.stored_at).total_seconds() < SOON_S
            timer.join()

    def test_following_from_the_end_sees_only_new_messages(
        self, producer: Producer, consumer: Consumer, topic: str
    ) -> None:
        fill(producer, topic, 8)
        seen: list[bytes] = []
        done = threading.Event()

        def follow() -> None:
            for message in consumer.iter(topic, from_="latest"):
                seen.append(message.body)
                if message.body == b"stop":
                    done.set()
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        while not done.wait(0.1):  # until it catches up, its beginning may be later than the messages that are sent
            producer.send(Message(topic, b"stop"))
        thread.join()
        assert set(seen) == {b"stop"}

    def test_following_reads_queues_that_are_added(
        self, producer: Producer, consumer: Consumer, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("flintmq.client.core.consume.queue_reader.QUEUES_ASKED_SECONDS", 0.2)
        admin.create_topic(topic, queues=1)
        producer.send(Message(topic, b"old"), queue=0)
        messages = consumer.iter(topic)
        assert next(messages).body == b"old"
        admin.create_topic(topic, queues=3)
        producer.send(Message(topic, b"new"), queue=2)
        assert next(messages).body == b"new"

    def test_an_iteration_can_be_left(
        self, clients: Clients, shared_broker: RunningBroker, producer: Producer, admin: Admin, topic: str
    ) -> None:
        fill(producer, topic, 8)
        with clients.Consumer(shared_broker.address) as consumer:
            for _ in range(50):
                for _ in consumer.iter(topic):
                    break
            assert admin.status()["connections"] < 20

    def test_other_calls_within_the_loop(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        fill(producer, topic, 50, keys=["k"])
        for message in consumer.iter(topic, until="latest"):
            assert consumer.message(message.message_id).body == message.body

    def test_a_topic_that_is_not_there(self, consumer: Consumer, topic: str) -> None:
        with pytest.raises(TopicNotExist):
            next(consumer.iter(topic))


class TestSearch:
    def test_messages_are_found_by_each_key_newest_first(
        self, producer: Producer, consumer: Consumer, topic: str
    ) -> None:
        for number in range(10):
            producer.send(Message(topic, b"%d" % number, keys=["shared", f"own-{number}"]))
        found = consumer.query(topic, "shared")
        assert [message.body for message in found] == [b"%d" % number for number in range(9, -1, -1)]
        assert (len(found), found.cursor, found.index_behind_bytes, found[0].topic) == (10, None, 0, topic)
        assert [message.body for message in consumer.query(topic, "own-3")] == [b"3"]
        assert list(consumer.query(topic, "nobody")) == []

    def test_page_by_page(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        producer.send_many([Message(topic, b"%d" % number, keys=["k"]) for number in range(100)])
        bodies, cursor, pages = [], None, 0
        while pages == 0 or cursor:
            page = consumer.query(topic, "k", max_count=30, cursor=cursor)
            assert len(page) <= 30
            bodies += [int(message.body) for message in page]
            cursor, pages = page.cursor, pages + 1
        assert bodies == list(range(99, -1, -1))
        assert pages == 4

    def test_all_pages_one_after_the_other(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        producer.send_many([Message(topic, b"%d" % number, keys=["k"]) for number in range(200)])
        assert [int(message.body) for message in consumer.query_iter(topic, "k")] == list(range(199, -1, -1))
        assert list(consumer.query_iter(topic, "nobody")) == []
        middle = consumer.query_iter(topic, "k", until=datetime(2020, 1, 1, tzinfo=UTC))
        assert list(middle) == []

    def test_within_a_time(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        producer.send(Message(topic, b"early", keys=["k"]))
        time.sleep(0.05)
        between = datetime.now(UTC)
        time.sleep(0.05)
        producer.send(Message(topic, b"late", keys=["k"]))
        assert [message.body for message in consumer.query(topic, "k", since=between)] == [b"late"]
        assert [message.body for message in consumer.query(topic, "k", until=between)] == [b"early"]
        with pytest.raises(InvalidArgument, match="time zone"):
            consumer.query(topic, "k", since=datetime(2026, 1, 1))  # noqa: DTZ001

    def test_by_either_form_of_id(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        receipts = producer.send_many([Message(topic, b"%d" % number) for number in range(10)])
        message = consumer.message(receipts[7].message_id)
        assert (message.body, message.topic) == (b"7", topic)
        assert consumer.message(receipts[7].message_id, topic=topic).body == b"7"
        assert consumer.message(message.offset_id).body == b"7"
        with pytest.raises(MessageNotFound):
            consumer.message("F" * 32)

    def test_an_id_is_not_a_key_of_a_later_message(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        request = producer.send(Message(topic, b"request"))
        producer.send_many([Message(topic, b"reply", keys=[request.message_id]) for _ in range(3)])
        assert len(consumer.query(topic, request.message_id)) == 4
        assert consumer.message(request.message_id).body == b"request"
        assert consumer.message(request.message_id, topic).body == b"request"
        other = producer.send(Message(topic, b"x", keys=["no-id"]))
        with pytest.raises(MessageNotFound):
            consumer.message("no-id")
        assert consumer.message(other.message_id).keys == ("no-id",)

    @pytest.mark.parametrize("arguments", [{"key": ""}, {"key": "k", "max_count": 65}, {"key": "k", "max_count": 0}])
    def test_invalid_requests_are_refused(self, consumer: Consumer, arguments: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgument):
            consumer.query("t", **arguments)


class TestOffsets:
    def test_of_a_queue(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        fill(producer, topic, 40)
        assert (consumer.min_offset(topic, 1), consumer.max_offset(topic, 1)) == (0, 10)
        assert consumer.offset_at(topic, 1, datetime(2000, 1, 1, tzinfo=UTC)) == 0
        assert [(stats.queue, stats.count) for stats in consumer.topic_stats(topic)] == [(n, 10) for n in range(4)]

    def test_of_a_group(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        fill(producer, topic, 40)
        assert consumer.committed("group", topic) == {}
        consumer.commit("group", topic, {0: 3, 2: 7})
        consumer.commit("group", topic, {2: 8})
        assert consumer.committed("group", topic) == {0: 3, 2: 8}


def test_a_damaged_message_is_named_and_the_others_are_read(
    clients: Clients, broker: BrokerFactory, tmp_path: Path
) -> None:
    running = broker()
    with clients.Producer(running.address) as producer:
        receipts = producer.send_many([Message("t", b"precious %d" % number) for number in range(5)], queue=0)
    (log,) = (running.store / "commitlog").glob("0*")
    with log.open("r+b") as file:
        content = file.read(1 << 16)
        file.seek(content.index(b"precious 3"))
        file.write(b"p")
        file.write(b"!")
    with clients.Consumer(running.address) as consumer:
        batch = consumer.pull("t", 0, 0)
        assert [batch.messages[place].body for place in (0, 1, 2, 4)] == [b"precious %d" % n for n in (0, 1, 2, 4)]
        for read in (
            batch.bodies,
            lambda: batch.messages[3].body,
            lambda: [m.body for m in consumer.iter("t", until="latest")],
        ):
            with pytest.raises(CorruptMessage) as raised:
                read()
            assert (raised.value.topic, raised.value.queue, raised.value.queue_offset) == ("t", 0, 3)
            assert raised.value.physical_offset == receipts[3].physical_offset
        assert Counter(message.queue for message in batch) == {0: 5}
