"""Pulling, and the offsets of queues: a consumer's view of the ConsumeQueues."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flintmq.broker.filters import compile_filter
from flintmq.broker.kernels.short_sends import NEWEST_BYTES_MAX
from flintmq.broker.store import (
    DamagedRecord,
    KeySearch,
    MessageStore,
    PullResult,
    PullSelection,
    TopicConfig,
    WouldBlock,
)
from flintmq.broker.store.read.pulls import FILTERED_RECORDS_MAX
from flintmq.broker.store.read.queue_reads import ANSWER_BYTES_MAX
from flintmq.protocol.errors import (
    PULL_NOT_FOUND,
    PULL_RETRY_IMMEDIATELY,
    SUCCESS,
    OffsetOutOfRange,
    QueueNotExist,
    TopicNotExist,
)
from flintmq.protocol.storage.javahash import tags_code
from flintmq.protocol.storage.layout import UNIT
from flintmq.protocol.storage.record import decode_record, offset_id
from tests.store_tools import (
    HOST,
    MIB,
    SMALL,
    Message,
    Sent,
    UnsyncedFiles,
    append,
    assert_holds,
    dispatch,
    make_topic,
    open_store,
    plain,
    put,
    queue_files,
    split_answer,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    opened = open_store(tmp_path / "store")
    yield opened
    opened.close()


def pull(
    store: MessageStore, offset: int, max_count: int = 1000, max_bytes: int = MIB, tags: tuple[str, ...] = ()
) -> PullResult:
    """Pull from queue 0 of `orders`."""
    wanted = frozenset(tags_code(tag) for tag in tags) or None
    return store.pulls.pull("orders", 0, offset, PullSelection(max_count, max_bytes, wanted), hot=False)


def offsets_of(pulled: PullResult) -> list[int]:
    return [decode_record(blob).queue_offset for blob in split_answer(pulled.body, pulled.count)]


def size_of(store: MessageStore, sent: Sent) -> int:
    """Return the size of the record."""
    pulled = store.pulls.pull(sent.topic, sent.queue, sent.queue_offset, PullSelection(1, 1), hot=False)
    size: int = struct.unpack_from(">I", pulled.body)[0]
    return size


def test_units_are_the_place_size_and_tag_of_each_message_and_files_roll(store: MessageStore) -> None:
    messages = [Message(b"x" * number, tags="eu" if number % 2 else "") for number in range(120)]
    sent = put(store, "orders", 3, messages)
    files = queue_files(store.path)
    assert list(files) == [f"orders/3/{number * 1000:020d}" for number in range(3)]
    assert {len(content) for content in files.values()} == {SMALL.consumequeue_file_bytes}
    units = list(UNIT.unpack_all(b"".join(files.values())))
    assert units[:120] == [
        (each.physical_offset, size_of(store, each), tags_code(each.message.tags or None)) for each in sent
    ]
    assert set(units[120:]) == {(0, 0, 0)}


def test_a_pull_returns_fitting_messages_in_order_and_the_next_offset(store: MessageStore) -> None:
    sent = put(store, "orders", 0, [Message(b"x" * 100)] * 30)
    size = size_of(store, sent[0])
    first = pull(store, 0, max_count=7)
    assert (first.code, first.next_offset, first.min_offset, first.max_offset) == (SUCCESS, 7, 0, 30)
    assert offsets_of(first) == list(range(7))
    assert offsets_of(pull(store, 7, max_bytes=5 * size)) == list(range(7, 12))
    assert offsets_of(pull(store, 7, max_bytes=5 * size + size - 1)) == list(range(7, 12))
    assert offsets_of(pull(store, 25)) == list(range(25, 30))


@pytest.mark.parametrize("max_bytes", [1, 100, 399_999])
def test_a_pull_returns_at_least_one_message_for_any_limit(store: MessageStore, max_bytes: int) -> None:
    put(store, "orders", 0, [Message(b"x" * 400_000), Message(b"y")])
    pulled = pull(store, 0, max_bytes=max_bytes)
    assert (pulled.count, pulled.next_offset) == (1, 1)


def test_an_answer_never_outgrows_a_frame(store: MessageStore) -> None:
    put(store, "orders", 0, [Message(b"x" * 500_000)] * 50)
    pulled = pull(store, 0, max_bytes=2**31 - 1)
    assert len(pulled.body) <= ANSWER_BYTES_MAX
    assert 16 * MIB - len(pulled.body) < 600_000
    assert pulled.next_offset == pulled.count == 33


def test_at_the_end_there_is_nothing_and_outside_an_error_names_both_ends(store: MessageStore) -> None:
    put(store, "orders", 0, plain(3))
    end = pull(store, 3)
    assert (end.code, end.count, end.next_offset, bytes(end.body)) == (PULL_NOT_FOUND, 0, 3, b"")
    for offset in (-1, 4, 2**62):
        with pytest.raises(OffsetOutOfRange) as raised:
            pull(store, offset)
        assert (raised.value.min_offset, raised.value.max_offset) == (0, 3)


def test_a_queue_without_messages_is_empty_and_an_unknown_queue_is_an_error(store: MessageStore) -> None:
    make_topic(store, "orders", 2)
    assert pull(store, 0).code == PULL_NOT_FOUND
    assert (store.queue_reads.min_offset("orders", 1, hot=False), store.queue_reads.max_offset("orders", 1)) == (0, 0)
    assert store.queue_reads.earliest_store_time("orders", 1, hot=False) == -1
    assert store.queue_reads.offset_by_time("orders", 1, 0, hot=False) == 0
    for queue in (-1, 2):
        with pytest.raises(QueueNotExist, match="queues 0 to 1"):
            store.pulls.pull("orders", queue, 0, PullSelection(1, 1), hot=False)
    with pytest.raises(TopicNotExist, match="topic bills does not exist"):
        store.queue_reads.max_offset("bills", 0)


def test_a_filter_gives_the_messages_of_its_tags_and_passes_over_the_others(store: MessageStore) -> None:
    tags = ["eu", "us", "", "asia"]
    sent = put(store, "orders", 0, [Message(b"x", tags=tags[number % 4]) for number in range(400)])
    assert offsets_of(pull(store, 0, tags=("eu",))) == list(range(0, 400, 4))
    pulled = pull(store, 10, max_count=5, tags=("us", "asia"))
    assert offsets_of(pulled) == [11, 13, 15, 17, 19]
    assert pulled.next_offset == 20
    nothing = pull(store, 0, tags=("africa",))
    assert (nothing.code, nothing.count, nothing.next_offset) == (PULL_NOT_FOUND, 0, len(sent))


def test_a_filter_looks_at_no_more_than_64_k_units_a_pull(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", dataclasses.replace(SMALL, consumequeue_file_bytes=20 * 20_000))
    for _ in range(7):
        append(store, "orders", 0, [Message(b"", tags="us")] * 10_000)
    append(store, "orders", 0, [Message(b"found", tags="eu")])
    dispatch(store)
    pulled = pull(store, 0, tags=("eu",))
    assert (pulled.code, pulled.count, pulled.next_offset) == (PULL_RETRY_IMMEDIATELY, 0, 65_536)
    pulled = pull(store, pulled.next_offset, tags=("eu",))
    assert (pulled.code, offsets_of(pulled), pulled.next_offset) == (SUCCESS, [70_000], 70_001)
    store.close()


def test_a_condition_and_tags_must_both_hold(store: MessageStore) -> None:
    messages = [
        Message(b"x", tags="eu" if number % 2 else "us", properties=(("n", str(number)),)) for number in range(2000)
    ]
    put(store, "orders", 0, messages)
    wanted = compile_filter("n BETWEEN 900 AND 910")
    found: list[int] = []
    offset = steps = 0
    while offset < 2000:
        pulled = store.pulls.pull(
            "orders", 0, offset, PullSelection(1000, MIB, frozenset({tags_code("eu")}), wanted), hot=False
        )
        assert offset < pulled.next_offset <= 2000
        assert pulled.code == (
            SUCCESS if pulled.count else PULL_NOT_FOUND if pulled.next_offset == 2000 else PULL_RETRY_IMMEDIATELY
        )
        found += offsets_of(pulled)
        offset = pulled.next_offset
        steps += 1
    assert found == [901, 903, 905, 907, 909]
    assert steps >= 2


def test_a_condition_looks_at_no_more_than_512_records_a_pull(store: MessageStore) -> None:
    put(store, "orders", 0, plain(2000, size=10))
    pulled = store.pulls.pull(
        "orders", 0, 0, PullSelection(1000, MIB, records=compile_filter("KEYS IS NULL")), hot=False
    )
    assert (pulled.code, pulled.count, pulled.min_offset, pulled.max_offset) == (PULL_RETRY_IMMEDIATELY, 0, 0, 2000)
    assert 0 < pulled.next_offset <= FILTERED_RECORDS_MAX


def test_interleaved_queues_come_apart_again(store: MessageStore) -> None:
    sent = []
    for number in range(300):
        sent += append(store, ("orders", "bills")[number % 2], number % 3, plain(1, first=number, size=number * 37))
    dispatch(store)
    assert_holds(store, sent)


def test_offsets_by_time_are_those_of_a_search_through_all(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [1_700_000_000_000 + step for step in (0, 0, 5, 5, 5, 900, 1000, 1000, 60_000)]
    for at in times:
        monkeypatch.setattr("time.time_ns", lambda at=at: at * 1_000_000)
        append(store, "orders", 0, plain(1))
    monkeypatch.undo()
    dispatch(store)
    assert store.queue_reads.earliest_store_time("orders", 0, hot=False) == times[0]
    for wanted in sorted({time + step for time in times for step in (-1, 0, 1)} | {0, 2**62}):
        expected = next((offset for offset, time in enumerate(times) if time >= wanted), len(times))
        assert store.queue_reads.offset_by_time("orders", 0, wanted, hot=False) == expected, wanted
    assert store.queue_reads.topic_stats("orders", hot=False) == [
        (0, 0, 9, times[-1]),
        *((queue, 0, 0, -1) for queue in (1, 2, 3)),
    ]


def test_a_topic_may_get_more_queues_later(store: MessageStore) -> None:
    sent = put(store, "orders", 3, plain(2))
    store.topics.put(TopicConfig("orders", 6, 6))
    store.topics.persist()
    sent += put(store, "orders", 5, plain(2, first=2))
    assert_holds(store, sent)
    assert [row[:3] for row in store.queue_reads.topic_stats("orders", hot=False)][3:] == [
        (3, 0, 2),
        (4, 0, 0),
        (5, 0, 2),
    ]


class ColdFiles(UnsyncedFiles):
    """Files that are not in the page cache while ``cold`` is set."""

    cold = False

    def read(self, fd: int, buffer: memoryview, at: int, *, wait: bool) -> int:
        """Read only if the caller may wait."""
        return 0 if self.cold and not wait else super().read(fd, buffer, at, wait=wait)


def test_uncached_data_is_read_only_in_a_reader_thread(tmp_path: Path) -> None:
    files = ColdFiles()
    store = open_store(tmp_path / "store", files=files)
    sent = put(store, "orders", 0, plain(30))
    identity = offset_id(HOST, sent[3].physical_offset)
    reads: list[Callable[[bool], object]] = [
        lambda hot: store.pulls.pull("orders", 0, 3, PullSelection(10, MIB), hot=hot).count,
        lambda hot: store.pulls.pull("orders", 0, 3, PullSelection(10, MIB, frozenset({1})), hot=hot).next_offset,
        lambda hot: (
            store.pulls.pull(
                "orders", 0, 3, PullSelection(10, MIB, records=compile_filter("KEYS = 'key-5'")), hot=hot
            ).count
        ),
        lambda hot: store.query(KeySearch("orders", "key-7", max_count=10), hot=hot).count,
        lambda hot: store.view(identity, "", hot).count,
        lambda hot: store.queue_reads.offset_by_time("orders", 0, sent[0].store_ms, hot=hot),
        lambda hot: store.queue_reads.earliest_store_time("orders", 0, hot=hot),
        lambda hot: store.queue_reads.topic_stats("orders", hot=hot),
    ]
    for read in reads:
        warm = read(True)
        files.cold = True
        with pytest.raises(WouldBlock):
            read(True)
        assert read(False) == warm
        files.cold = False
    store.close()


def test_the_newest_message_is_what_a_pull_returns(store: MessageStore) -> None:
    make_topic(store, "orders")
    for number, size in enumerate((0, 1, 100, 3_000, NEWEST_BYTES_MAX - 500, 17)):
        put(store, "orders", 0, [Message(b"x" * size, tags="eu")])
        newest = store.pulls.newest("orders", 0, number)
        assert newest == pull(store, number)
        assert newest is not None
        assert newest.body == pull(store, number).body


def test_newest_leaves_everything_else_to_a_pull(store: MessageStore) -> None:
    make_topic(store, "orders")
    assert store.pulls.newest("orders", 0, 0) is None
    sent = put(store, "orders", 0, plain(3))
    assert [store.pulls.newest("orders", 0, offset) is None for offset in range(5)] == [True, True, False, True, True]
    put(store, "orders", 0, [Message(b"x" * NEWEST_BYTES_MAX)])
    assert store.pulls.newest("orders", 0, 3) is None
    with pytest.raises(TopicNotExist):
        store.pulls.newest("offers", 0, 0)
    # A record that is not the queue's: its unit points at another one.
    queue = store.queue_reads.queue("orders", 0)
    assert queue is not None
    queue.append(memoryview(UNIT.pack(sent[0].physical_offset, size_of(store, sent[0]), 0)))
    assert store.pulls.newest("orders", 0, 4) is None
    with pytest.raises(DamagedRecord):
        pull(store, 4)
