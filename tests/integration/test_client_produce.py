"""The producer against a real broker: each acknowledged message is stored once, where the receipt says."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Literal

import pytest

from flintmq.client import (
    Consumer,
    DeliveryFailed,
    InvalidArgument,
    InvalidMessage,
    InvalidMessageType,
    Message,
    MessageIllegal,
    Producer,
    QueueNotExist,
    Receipt,
    StoredMessage,
)
from flintmq.client.core.produce.packer import queue_of
from flintmq.protocol.storage.layout import SysFlag

if TYPE_CHECKING:
    from tests.client_drivers import Clients
    from tests.conftest import RunningBroker


def all_messages(consumer: Consumer, topic: str) -> list[StoredMessage]:
    return list(consumer.iter(topic, until="latest"))


def stored_at(consumer: Consumer, receipt: Receipt) -> StoredMessage:
    batch = consumer.pull(receipt.topic, receipt.queue, receipt.queue_offset, max_count=1)
    return batch.messages[0]


class TestSend:
    def test_a_message_is_stored_as_it_was_sent(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        before = time.time()
        sent = Message(
            topic, b"\x00body\xff", keys=["o-1", "ключ"], tags="eu", properties={"source": "web", "имя": "значение"}
        )
        receipt = producer.send(sent)
        message = stored_at(consumer, receipt)
        assert (message.topic, message.body, message.keys, message.tags) == (
            topic,
            b"\x00body\xff",
            ("o-1", "ключ"),
            "eu",
        )
        assert dict(message.user_properties) == {"source": "web", "имя": "значение"}
        assert message.properties["source"] == "web"
        assert message.message_id == receipt.message_id
        assert (message.queue, message.queue_offset) == (receipt.queue, receipt.queue_offset)
        assert message.physical_offset == receipt.physical_offset
        assert message.stored_at == receipt.stored_at
        assert before - 1 <= message.born_at.timestamp() <= message.stored_at.timestamp() + 1
        assert message.born_at.utcoffset() is not None

    def test_a_topic_is_made_with_four_queues_that_take_turns(
        self, producer: Producer, consumer: Consumer, topic: str
    ) -> None:
        receipts = [producer.send(Message(topic, b"%d" % number)) for number in range(8)]
        assert sorted(receipt.queue for receipt in receipts) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert [stats.count for stats in consumer.topic_stats(topic)] == [2, 2, 2, 2]

    def test_a_pinned_queue(self, producer: Producer, topic: str) -> None:
        receipts = [producer.send(Message(topic, b""), queue=2) for _ in range(3)]
        assert [(receipt.queue, receipt.queue_offset) for receipt in receipts] == [(2, 0), (2, 1), (2, 2)]

    def test_an_empty_body_and_no_properties(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        message = stored_at(consumer, producer.send(Message(topic, b"")))
        assert (message.body, message.keys, message.tags, dict(message.user_properties)) == (b"", (), None, {})

    def test_a_queue_that_is_not_there_is_an_error(self, producer: Producer, topic: str) -> None:
        with pytest.raises(QueueNotExist):
            producer.send(Message(topic, b""), queue=77)

    def test_a_message_that_is_too_long_is_refused_and_nothing_else_suffers(
        self, producer: Producer, topic: str
    ) -> None:
        for size in (600_000, 3_000_000):
            with pytest.raises(MessageIllegal):
                producer.send(Message(topic, os.urandom(size)))
        assert producer.send(Message(topic, b"after")).queue_offset == 0

    def test_the_longest_message_is_stored(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        body = os.urandom(520_000)
        assert stored_at(consumer, producer.send(Message(topic, body))).body == body

    @pytest.mark.parametrize("what", ["message", b"message", None, [Message("t", b"")]])
    def test_only_messages_can_be_sent(self, producer: Producer, what: Any) -> None:
        with pytest.raises(InvalidMessageType):
            producer.send(what)

    @pytest.mark.parametrize("timeout", [0, -1, "1", True])
    def test_a_timeout_is_a_number_of_seconds(self, producer: Producer, topic: str, timeout: Any) -> None:
        with pytest.raises(InvalidArgument):
            producer.send(Message(topic, b""), timeout=timeout)

    def test_flush_can_be_stricter_than_the_brokers(self, producer: Producer, topic: str) -> None:
        assert producer.send(Message(topic, b""), flush="sync").queue_offset == 0
        with pytest.raises(InvalidArgument):
            producer.send(Message(topic, b""), flush="never")  # type: ignore[arg-type]  # the wrong argument is the test


class TestCompression:
    def test_long_bodies_are_compressed_and_come_back(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        body = b"again and again " * 1000
        for receipt in (
            producer.send(Message(topic, body)),
            producer.send_many([Message(topic, body)])[0],
            producer.send_bulk(topic, [body])[0],
        ):
            message = stored_at(consumer, receipt)
            assert message.sys_flag & SysFlag.COMPRESSED
            assert len(message.record) < 1000
            assert message.body == body

    def test_a_bulk_may_mix_long_and_short_bodies(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        bodies = [b"z" * (number * 331 % 9000) for number in range(300)] + [os.urandom(6000)]
        receipts = producer.send_bulk(topic, bodies, keys=[f"k{place}" for place in range(301)], tags="eu", queue=1)
        messages = list(consumer.pull(topic, 1, 0, max_bytes=1 << 23).messages)
        assert [message.body for message in messages] == bodies
        assert [message.keys for message in messages] == [(f"k{place}",) for place in range(301)]
        assert {message.tags for message in messages} == {"eu"}
        assert [message.message_id for message in messages] == [receipt.message_id for receipt in receipts]
        assert not messages[300].sys_flag & SysFlag.COMPRESSED

    @pytest.mark.parametrize("algorithm", ["lz4", "zstd", "zlib"])
    def test_every_algorithm(
        self,
        clients: Clients,
        shared_broker: RunningBroker,
        consumer: Consumer,
        topic: str,
        algorithm: Literal["lz4", "zstd", "zlib"],
    ) -> None:
        if algorithm == "lz4":
            pytest.importorskip("lz4")
        with clients.Producer(shared_broker.address, compress_over=0, compression=algorithm) as producer:
            message = stored_at(consumer, producer.send(Message(topic, b"ab" * 500)))
        assert message.body == b"ab" * 500
        assert len(message.record) < 500

    def test_compression_can_be_off(
        self, clients: Clients, shared_broker: RunningBroker, consumer: Consumer, topic: str
    ) -> None:
        with clients.Producer(shared_broker.address, compress_over=None) as producer:
            message = stored_at(consumer, producer.send(Message(topic, b"ab" * 50_000)))
        assert not message.sys_flag & SysFlag.COMPRESSED
        assert len(message.record) > 100_000


class TestMany:
    def test_receipts_are_in_the_order_of_the_messages(
        self, producer: Producer, consumer: Consumer, topic: str
    ) -> None:
        receipts = producer.send_many(
            Message(topic, b"%d" % number, keys=[f"k-{number}"], tags="ab"[number % 2]) for number in range(20_000)
        )
        assert len(receipts) == 20_000
        by_place = {(receipt.queue, receipt.queue_offset): number for number, receipt in enumerate(receipts)}
        assert len(by_place) == 20_000
        seen = 0
        for message in consumer.iter(topic, until="latest"):
            number = by_place[message.queue, message.queue_offset]
            assert (message.body, message.keys, message.tags) == (b"%d" % number, (f"k-{number}",), "ab"[number % 2])
            assert message.message_id == receipts[number].message_id
            seen += 1
        assert seen == 20_000

    def test_frames_go_round_the_queues(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        producer.send_bulk(topic, [b"x" * 100] * 30_000)
        assert all(stats.count > 0 for stats in consumer.topic_stats(topic))
        producer.send_many([Message(topic + "m", b"x" * 100)] * 30_000)
        assert all(stats.count > 0 for stats in consumer.topic_stats(topic + "m"))

    def test_several_topics_in_one_call(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        messages = [Message(f"{topic}{number % 3}", b"%d" % number) for number in range(300)]
        receipts = producer.send_many(messages)
        assert [receipt.topic for receipt in receipts] == [message.topic for message in messages]
        for remainder in range(3):
            bodies = {message.body for message in all_messages(consumer, f"{topic}{remainder}")}
            assert bodies == {b"%d" % number for number in range(remainder, 300, 3)}

    def test_order_holds_in_a_pinned_queue(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        producer.send_many([Message(topic, b"%d" % number) for number in range(10_000)], queue=3)
        producer.send_bulk(topic, [b"%d" % number for number in range(10_000, 20_000)], queue=3)
        bodies = [message.body for message in all_messages(consumer, topic)]
        assert bodies == [b"%d" % number for number in range(20_000)]

    def test_the_illegal_one_is_named_and_the_others_are_stored(
        self, producer: Producer, consumer: Consumer, topic: str
    ) -> None:
        messages = [Message(topic, b"%d" % number) for number in range(500)]
        messages[123] = Message(topic, os.urandom(530_000))
        messages[400] = Message(topic, b"", properties={"TRAN_MSG": "true"})
        with pytest.raises(DeliveryFailed) as raised:
            producer.send_many(messages)
        error = raised.value
        assert error.failed == [123, 400]
        assert all(isinstance(one, MessageIllegal) for one in error.errors.values())
        assert "message 123" in str(error)
        assert [place for place, receipt in enumerate(error.receipts) if receipt is None] == [123, 400]
        stored = Counter(message.body for message in all_messages(consumer, topic))
        assert stored == Counter(b"%d" % number for number in range(500) if number not in (123, 400))

    def test_nothing_is_nothing(self, producer: Producer, topic: str) -> None:
        assert len(producer.send_many([])) == 0
        assert list(producer.send_bulk(topic, [])) == []

    def test_an_unsendable_message_is_refused_before_anything_is_sent(
        self, producer: Producer, consumer: Consumer, topic: str
    ) -> None:
        producer.send(Message(topic, b"only"))
        with pytest.raises(InvalidMessageType, match=r"messages\[1\]"):
            producer.send_many([Message(topic, b""), b""])  # type: ignore[list-item]  # the wrong argument is the test
        with pytest.raises(InvalidMessageType, match=r"bodies\[1\]"):
            producer.send_bulk(topic, [b"", "x"])  # type: ignore[list-item]  # the wrong argument is the test
        with pytest.raises(InvalidMessage, match=r"keys\[1\].*space"):
            producer.send_bulk(topic, [b"", b""], keys=["a", "b c"])
        with pytest.raises(InvalidArgument, match="1 keys for 2 bodies"):
            producer.send_bulk(topic, [b"", b""], keys=["a"])
        assert len(all_messages(consumer, topic)) == 1

    def test_a_bulk_has_common_properties(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        producer.send_bulk(topic, [b"a", b"b"], keys=["k", ["l", "m"]], tags="eu", properties={"source": "file"})
        messages = sorted(all_messages(consumer, topic), key=lambda message: message.body)
        assert [message.keys for message in messages] == [("k",), ("l", "m")]
        assert {(message.tags, message.properties["source"]) for message in messages} == {("eu", "file")}


class TestSharding:
    def test_the_same_key_goes_to_the_same_queue(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        messages = [Message(topic, b"%d" % number, sharding_key=f"s{number % 10}") for number in range(1000)]
        receipts = producer.send_many(messages)
        single = producer.send(Message(topic, b"1000", sharding_key="s0"))
        future = producer.send_async(Message(topic, b"1001", sharding_key="s1"))
        bulk = producer.send_bulk(topic, [b"1002"], sharding_key="s2")
        expected = [queue_of(f"s{number % 10}", 4) for number in range(1000)]
        assert [receipt.queue for receipt in receipts] == expected
        assert [single.queue, future.result().queue, bulk[0].queue] == [queue_of(key, 4) for key in ("s0", "s1", "s2")]
        by_key: dict[str | None, list[int]] = {}
        for message in all_messages(consumer, topic):
            by_key.setdefault(message.sharding_key, []).append(int(message.body))
        assert len(by_key) == 10
        assert all(numbers == sorted(numbers) for numbers in by_key.values())

    def test_a_topic_with_other_queues(
        self, clients: Clients, shared_broker: RunningBroker, producer: Producer, topic: str
    ) -> None:
        with clients.Admin(shared_broker.address) as admin:
            admin.create_topic(topic, queues=13)
        receipts = producer.send_many([Message(topic, b"", sharding_key=str(number)) for number in range(200)])
        assert [receipt.queue for receipt in receipts] == [queue_of(str(number), 13) for number in range(200)]

    def test_a_given_queue_wins(self, producer: Producer, topic: str) -> None:
        assert producer.send(Message(topic, b"", sharding_key="a"), queue=1).queue == 1


class TestAsync:
    def test_futures_complete_by_themselves(self, producer: Producer, topic: str) -> None:
        futures = [producer.send_async(Message(topic, b"%d" % number)) for number in range(2000)]
        done, missing = wait(futures, timeout=60)
        assert not missing
        assert len({(future.result().queue, future.result().queue_offset) for future in done}) == 2000

    def test_flush_waits_for_all(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        futures = [producer.send_async(Message(topic, b"%d" % number)) for number in range(5000)]
        producer.flush()
        assert all(future.done() for future in futures)
        assert len(all_messages(consumer, topic)) == 5000
        producer.flush()

    def test_close_waits_for_all(
        self, clients: Clients, shared_broker: RunningBroker, consumer: Consumer, topic: str
    ) -> None:
        with clients.Producer(shared_broker.address) as producer:
            futures = [producer.send_async(Message(topic, b"%d" % number)) for number in range(5000)]
        assert all(future.done() for future in futures)
        assert len(all_messages(consumer, topic)) == 5000

    def test_order_holds_in_a_pinned_queue(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        for number in range(3000):
            producer.send_async(Message(topic, b"%d" % number), queue=0)
        producer.flush()
        assert [int(message.body) for message in all_messages(consumer, topic)] == list(range(3000))

    def test_a_failure_is_in_its_future_and_in_flush_unless_it_was_retrieved(
        self, clients: Clients, shared_broker: RunningBroker, topic: str
    ) -> None:
        with clients.Producer(shared_broker.address) as producer:
            unseen = producer.send_async(Message(topic, os.urandom(600_000)))
            fine = producer.send_async(Message(topic, b"fine"))
            with pytest.raises(DeliveryFailed, match="MessageIllegal"):
                producer.flush()
            assert fine.result().topic == topic
            with pytest.raises(MessageIllegal):
                unseen.result()
            seen = producer.send_async(Message(topic, os.urandom(600_000)))
            assert isinstance(seen.exception(timeout=60), MessageIllegal)
            producer.flush()

    @pytest.mark.parametrize("clients", ["sync"], indirect=True)  # only the threaded client has callbacks
    def test_a_callback_may_send(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        followed = threading.Event()

        def follow_up(_: object) -> None:
            producer.send(Message(topic, b"second"))
            followed.set()

        producer.send_async(Message(topic, b"first")).add_done_callback(follow_up)
        assert followed.wait(60)
        assert sorted(message.body for message in all_messages(consumer, topic)) == [b"first", b"second"]

    @pytest.mark.parametrize("clients", ["sync"], indirect=True)  # only the threaded client has callbacks
    def test_a_callback_may_flush(self, producer: Producer, topic: str) -> None:
        flushed = threading.Event()

        def flush(_: object) -> None:
            producer.flush()
            flushed.set()

        futures = [producer.send_async(Message(topic, b"%d" % number)) for number in range(100)]
        futures[50].add_done_callback(flush)
        assert flushed.wait(60)
        assert all(future.result(60) for future in futures)

    def test_bytes_in_flight_are_bounded_and_callers_block(
        self, clients: Clients, shared_broker: RunningBroker, consumer: Consumer, topic: str
    ) -> None:
        with clients.Producer(shared_broker.address, in_flight_bytes_max=100_000, compress_over=None) as producer:
            for _ in range(300):
                producer.send_async(Message(topic, b"x" * 10_000))
                assert producer._delivery.pending_bytes <= 100_000
        assert len(all_messages(consumer, topic)) == 300


class TestThreads:
    def test_many_threads_share_a_producer(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        def work(worker: int) -> list[Receipt]:
            return [producer.send(Message(topic, b"%d-%d" % (worker, number))) for number in range(50)]

        with ThreadPoolExecutor(32) as threads:
            receipts = [receipt for receipts in threads.map(work, range(32)) for receipt in receipts]
        assert len({(receipt.queue, receipt.queue_offset) for receipt in receipts}) == 1600
        assert len({receipt.message_id for receipt in receipts}) == 1600
        stored = Counter(message.body for message in all_messages(consumer, topic))
        assert stored == Counter(b"%d-%d" % (worker, number) for worker in range(32) for number in range(50))

    def test_concurrent_senders_are_batched(
        self, clients: Clients, shared_broker: RunningBroker, producer: Producer, topic: str
    ) -> None:
        with clients.Admin(shared_broker.address) as admin:
            before = admin.status()["produces"]
            barrier = threading.Barrier(32)

            def work(worker: int) -> None:
                barrier.wait()
                for _ in range(50):
                    producer.send(Message(topic, b"x"))

            with ThreadPoolExecutor(32) as threads:
                list(threads.map(work, range(32)))
            assert admin.status()["produces"] - before < 800

    def test_all_ways_of_sending_at_once(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        def work(worker: int) -> int:
            if worker % 4 == 0:
                return sum(producer.send(Message(topic, b"s")).queue >= 0 for _ in range(100))
            if worker % 4 == 1:
                return len(producer.send_many([Message(topic, b"m")] * 5000))
            if worker % 4 == 2:
                return len(producer.send_bulk(topic, [b"b"] * 5000))
            return len([future.result() for future in [producer.send_async(Message(topic, b"a")) for _ in range(500)]])

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(work, range(8))) == [100, 5000, 5000, 500] * 2
        stored = Counter(message.body for message in all_messages(consumer, topic))
        assert stored == {b"s": 200, b"m": 10_000, b"b": 10_000, b"a": 1000}
