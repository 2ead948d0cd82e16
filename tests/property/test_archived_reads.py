"""A queue that is read from the archive has the same messages, offsets and times as the same queue on the disk."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.broker.archive.reads import ArchivedReads
from flintmq.broker.filters import compile_filter
from flintmq.broker.store import MessageStore
from flintmq.broker.store.errors import InArchive
from flintmq.broker.store.read.pulls import ArchivedPull, PullSelection
from flintmq.protocol.storage.archive.objects import Objects
from flintmq.protocol.storage.javahash import tags_code
from tests.store_tools import Message, make_topic, open_store, put
from tests.written_archive import archive

TAGS = ("red", "green", "blue")


@dataclass
class Both:
    """A store that still has everything, and its archive in several fragments."""

    store: MessageStore
    archived: ArchivedReads

    def in_archive(self, call: Any, *arguments: Any, **options: Any) -> Any:
        """Return the result of a call in one of the archive's threads."""
        return self.archived.threads.submit(call, *arguments, **options).result()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("both")
    store = open_store(folder / "store")
    objects = Objects(folder / "archive")
    shuffled = random.Random(5)
    for topic in ("orders", "rare"):
        make_topic(store, topic)
    for round_ in range(30):
        topic = "rare" if round_ % 11 == 5 else "orders"
        messages = [
            Message(shuffled.randbytes(shuffled.choice([10, 700, 9_000])), (f"k{round_}",), shuffled.choice(TAGS))
            for _ in range(shuffled.choice([1, 20, 60]))
        ]
        put(store, topic, shuffled.randrange(3), messages)
        if round_ % 4 == 3:
            archive(store, objects)
    while len(store.commitlog.queue.files) < 3:  # the blank at a file's end is short, and within a fragment
        put(store, "orders", 0, [Message(shuffled.randbytes(700), (), "red") for _ in range(60)])
    archive(store, objects)
    reads = ArchivedReads(objects, lambda: None)
    yield Both(store, reads)
    reads.close()
    store.close()


queues = st.tuples(st.sampled_from(["orders", "rare"]), st.integers(0, 2))
FILTERS = ("TAGS = 'red'", "KEYS STARTSWITH 'k1'", "TAGS = 'none'")
selections = st.builds(
    PullSelection,
    st.integers(1, 200),
    st.integers(1, 100_000),
    st.none() | st.frozensets(st.sampled_from(TAGS).map(tags_code), min_size=1),
    st.none() | st.sampled_from(FILTERS).map(compile_filter),
    st.just(True),
)


def records_of(body: bytes | bytearray, count: int) -> list[bytes]:
    """Return the records of a response."""
    sizes = [int.from_bytes(body[4 * number : 4 * number + 4], "big") for number in range(count)]
    at, found = 4 * count, []
    for size in sizes:
        found.append(bytes(body[at : at + size]))
        at += size
    assert at == len(body)
    return found


@given(queues, selections, st.data())
def test_pulls_return_what_the_disk_has(
    both: Both, queue: tuple[str, int], wanted: PullSelection, data: st.DataObject
) -> None:
    topic, queue_id = queue
    reads = both.store.queue_reads
    low, high = reads.min_offset(topic, queue_id, hot=False), reads.max_offset(topic, queue_id)
    start = data.draw(st.integers(low, max(low, high - 1)))
    end = data.draw(st.integers(start, high))
    here: list[bytes] = []
    offset = start
    while offset < end:
        asked = ArchivedPull(topic, queue_id, offset, end, low, high, wanted)
        pulled = both.in_archive(both.archived.pull, asked)
        assert (pulled.min_offset, pulled.max_offset) == (low, high)
        assert offset < pulled.next_offset <= end
        assert pulled.count <= wanted.max_count
        assert pulled.count <= 1 or len(pulled.body) - 4 * pulled.count <= wanted.max_bytes
        here += records_of(pulled.body, pulled.count)
        offset = pulled.next_offset
    there: list[bytes] = []
    offset = start
    unlimited = wanted._replace(max_count=10_000, max_bytes=1 << 24)
    while offset < high:
        local = both.store.pulls.pull(topic, queue_id, offset, unlimited, hot=False)
        there += records_of(local.body, local.count)
        offset = local.next_offset
    assert here == [record for record in there if int.from_bytes(record[20:28], "big") < end]


@given(queues, st.integers(-2, 2), st.data())
def test_offsets_by_time_are_those_of_the_disk(
    both: Both, queue: tuple[str, int], shift: int, data: st.DataObject
) -> None:
    topic, queue_id = queue
    reads = both.store.queue_reads
    low, high = reads.min_offset(topic, queue_id, hot=False), reads.max_offset(topic, queue_id)
    if low == high:
        return
    moment = reads.stored_ms(topic, queue_id, data.draw(st.integers(low, high - 1)), hot=False)
    assert moment is not None
    found = both.in_archive(both.archived.offset_by_time, topic, queue_id, moment + shift, hot=False)
    wanted = reads.offset_by_time(topic, queue_id, moment + shift, hot=False)
    assert (high if found is None else found) == wanted


@given(queues, st.data())
def test_the_first_offset_is_that_of_the_first_message_that_is_shown(
    both: Both, queue: tuple[str, int], data: st.DataObject
) -> None:
    topic, queue_id = queue
    held = both.store.queues.get(topic, queue_id)
    positions = [] if held is None else [held.unit(offset, hot=False)[0] for offset in range(held.max_offset)]
    visible_from = data.draw(st.integers(0, both.store.write_offset))
    found = both.in_archive(both.archived.first_offset, topic, queue_id, visible_from, hot=False)
    assert found == next((number for number, at in enumerate(positions) if at >= visible_from), None)


def test_other_threads_are_sent_away(both: Both) -> None:
    wanted = ArchivedPull("orders", 0, 0, 1, 0, 1, PullSelection(1, 1))
    for read in (
        lambda: both.archived.pull(wanted),
        lambda: both.archived.first_offset("rare", 1, 1 << 50, hot=True),
        lambda: both.archived.offset_by_time("orders", 0, 0, hot=True),
        lambda: both.archived.record_at(0),
        lambda: next(both.archived.find_key("orders", "k1", 0, 1, 1)),
    ):
        with pytest.raises(InArchive):
            read()
