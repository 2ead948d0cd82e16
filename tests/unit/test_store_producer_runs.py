"""Producer runs, read back from a log's tail, with the places of their messages."""

from __future__ import annotations

import itertools
import logging
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from flintmq.broker.store import MessageStore, StoredRun, TopicConfig
from flintmq.broker.store.queues import SCHEDULE_TOPIC
from flintmq.protocol.errors import MessageNotFound
from flintmq.protocol.storage.record import Record, encode_host, encode_properties, unique_key
from tests.store_tools import (
    FOREVER,
    MIB,
    SMALL,
    Message,
    Sent,
    dispatch,
    kill,
    make_batch,
    make_topic,
    open_store,
    plain,
    reopen,
    sent_of,
)

PREFIX = "7F00000155A738209801"
OTHER = "7F00000155A738209802"
V6 = encode_host("2001:db8::7", 40000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path / "store")
    yield store
    if store.failed is None:
        store.close()


def produce(
    store: MessageStore,
    first: int,
    messages: Sequence[Message],
    *,
    topic: str = "orders",
    queue: int = 0,
    prefix: str = PREFIX,
    born_host: bytes = b"",
) -> list[Sent]:
    """Store a frame of a producer and dispatch it."""
    batch = make_batch(messages, unique_prefix=prefix.encode(), unique_first=first)
    batch.born_host = born_host or batch.born_host
    sent = sent_of(store.append(make_topic(store, topic), queue, batch), topic, queue, messages)
    dispatch(store)
    return sent


def tail(store: MessageStore, tail_bytes: int = FOREVER, runs_max: int = 1000) -> list[StoredRun]:
    return store.producer_runs.tail(tail_bytes, runs_max)


def run_of(first: int, count: int, queue_offset: int, *, topic: str = "orders", queue: int = 0) -> StoredRun:
    return StoredRun(PREFIX, topic, first, count, topic, queue, queue_offset)


class TestTail:
    def test_an_empty_log_has_no_runs(self, store: MessageStore) -> None:
        assert tail(store) == []

    def test_frames_that_follow_each_other_are_one_run(self, store: MessageStore) -> None:
        produce(store, 100, plain(5))
        produce(store, 105, plain(5))
        produce(store, 110, plain(5), queue=1)
        produce(store, 7, plain(1), prefix=OTHER)
        assert tail(store) == [
            run_of(100, 10, 0),
            run_of(110, 5, 0, queue=1),
            StoredRun(OTHER, "orders", 7, 1, "orders", 0, 10),
        ]

    def test_messages_without_a_counter_have_no_runs(self, store: MessageStore) -> None:
        store.append(make_topic(store, "orders"), 0, make_batch(plain(5)))
        dispatch(store)
        assert tail(store) == []

    def test_a_killed_brokers_messages_are_there(self, tmp_path: Path) -> None:
        store = open_store(tmp_path)
        produce(store, 100, plain(5))
        kill(store)
        store = open_store(tmp_path)
        assert tail(store) == [run_of(100, 5, 0)]
        store.close()

    def test_the_remains_of_a_torn_frame_are_found(self, tmp_path: Path) -> None:
        store = open_store(tmp_path)
        produce(store, 0, plain(1))
        batch = make_batch(plain(5), unique_prefix=PREFIX.encode(), unique_first=1)
        appended = store.append(make_topic(store, "orders"), 0, batch)  # not flushed
        (fourth,) = struct.unpack_from(">q", appended.physical_offsets, 8 * 3)
        kill(store)
        log_file = next((tmp_path / "commitlog").iterdir())
        with log_file.open("r+b") as file:
            file.seek(fourth + 20)
            file.write(bytes(5000))
        store, report = reopen(tmp_path)
        assert report.truncated_bytes > 0
        assert tail(store) == [run_of(0, 4, 0)]
        store.close()

    def test_only_the_last_bytes_are_read(self, store: MessageStore) -> None:
        sent = [produce(store, 2 * number, plain(1))[0] for number in range(10)]
        end = store.write_offset
        for number in (0, 3, 9):
            at = sent[number].physical_offset
            assert [run.first for run in tail(store, end - at)] == list(range(2 * number, 20, 2))
            assert [run.first for run in tail(store, end - at - 1)] == list(range(2 * number + 2, 20, 2))
        assert tail(store, 0) == []

    def test_no_more_than_the_newest_runs_are_taken(self, store: MessageStore) -> None:
        for number in range(10):
            produce(store, 2 * number, plain(1))
        assert [run.first for run in tail(store, runs_max=3)] == [14, 16, 18]
        assert tail(store, runs_max=0) == []

    def test_a_run_goes_over_files_of_log_and_index(self, store: MessageStore) -> None:
        counters, sizes = itertools.count(0, 8), itertools.cycle([60_000, 100])
        while len(store.commitlog.queue.files) < 4 or len(store.index.files) < 3:
            first = next(counters)
            produce(store, first, plain(8, size=next(sizes), first=first), born_host=V6 if first % 3 else b"")
        runs = tail(store)
        count = next(counters)
        assert sum(run.messages for run in runs) == count
        # One run for each file of the log; the reader of the runs joins them.
        assert all(run.queue_offset == run.first for run in runs)
        assert len(runs) == len(store.commitlog.queue.files)
        assert sum(run.messages for run in tail(store, 5 * MIB)) < count

    def test_more_runs_than_a_call_has_room_for(self, store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("flintmq.broker.store.dispatch.RUNS_A_CALL", 3)
        for number in range(10):
            produce(store, 2 * number, plain(1))
        assert [run.first for run in tail(store)] == list(range(0, 20, 2))
        assert [run.first for run in tail(store, runs_max=5)] == list(range(10, 20, 2))

    def test_a_deleted_topics_messages_do_not_count(self, store: MessageStore) -> None:
        produce(store, 0, plain(5))
        produce(store, 0, plain(5), topic="payments")
        store.topics.remove("orders")
        store.delete_topic("orders")
        dispatch(store)
        assert tail(store) == [run_of(0, 5, 0, topic="payments")]
        produce(store, 5, plain(5))  # continues from the deleted topic's last offsets
        assert tail(store) == [run_of(0, 5, 0, topic="payments"), run_of(5, 5, 5)]

    def test_a_message_that_waits_belongs_to_the_topic_that_it_was_sent_to(self, store: MessageStore) -> None:
        make_topic(store, "orders")
        store.topics.put(TopicConfig(SCHEDULE_TOPIC, 18, 18))
        waiting = {"UNIQ_KEY": unique_key(PREFIX, 5), "DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "1"}
        delivered = Record(b"orders", b"x", encode_properties(waiting), 1, 0)
        store.append_records([Record(SCHEDULE_TOPIC.encode(), b"x", encode_properties(waiting), 2, 0), delivered])
        dispatch(store)
        assert tail(store) == [StoredRun(PREFIX, "orders", 5, 1, SCHEDULE_TOPIC, 2, 0)]

    def test_a_damaged_record_ends_the_scan_and_is_reported(
        self, store: MessageStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        produce(store, 0, plain(1))
        damaged = produce(store, 2, plain(1))[0].physical_offset
        produce(store, 4, plain(1))
        store.commitlog.queue.files[0].array()[damaged + 4] ^= 0xFF
        with caplog.at_level(logging.WARNING):
            assert tail(store) == [run_of(0, 1, 0)]
        assert f"a wrong magic number at byte {damaged}" in caplog.text


class TestPlaces:
    @pytest.mark.parametrize("born_host", [b"", V6])
    def test_runs_equal_the_producers_acknowledgements(self, store: MessageStore, born_host: bytes) -> None:
        produce(store, 0, plain(3))
        sent = produce(store, 3, plain(4), born_host=born_host)
        places = store.producer_runs.places("orders", 0, 3, 4, hot=True)
        assert struct.unpack(">4q", places.physical_offsets) == tuple(each.physical_offset for each in sent)
        assert (places.store_ms, places.queue) == (sent[0].store_ms, 0)

    def test_expired_messages_are_reported(self, store: MessageStore) -> None:
        counters = itertools.count(0, 8)
        while len(store.commitlog.queue.files) < 3:
            produce(store, next(counters), plain(8, size=60_000))
        assert store.expire(1) > 0
        with pytest.raises(MessageNotFound, match="message 0 of queue 0 of topic orders was stored before"):
            store.producer_runs.places("orders", 0, 0, 8, hot=False)
        first = store.queue_reads.min_offset("orders", 0, hot=False)
        assert len(store.producer_runs.places("orders", 0, first, 2, hot=False).physical_offsets) == 16

    @pytest.mark.parametrize(("queue", "queue_offset"), [(0, 3), (0, 77), (1, 0)])
    def test_messages_missing_from_the_queue_are_not_found(
        self, store: MessageStore, queue: int, queue_offset: int
    ) -> None:
        produce(store, 0, plain(4))
        with pytest.raises(MessageNotFound):
            store.producer_runs.places("orders", queue, queue_offset, 2, hot=False)


assert SMALL.index_entries < 1000, "the index rolls in the tests above"
