"""Cutting the log into fragments: whole records, all of them, with the units and keys that the store has for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flintmq.broker.archive.cutter import CutFragment, Cutter, DamagedLog
from flintmq.broker.store import MessageStore
from flintmq.broker.store.queues import UNIT_DTYPE
from flintmq.protocol.storage.archive.fragment import decode_index, pieces_in
from flintmq.protocol.storage.archive.keys import key_hash, positions_of
from flintmq.protocol.storage.layout import UNIT_BYTES
from tests.store_tools import MIB, SMALL, Message, make_topic, open_store, put, unpack_rocketmq


def cutter_of(store: MessageStore) -> Cutter:
    queue = store.commitlog.queue

    def end_of_file(offset: int) -> int:
        file = queue.find(offset)
        assert file is not None
        return file.end_offset

    return Cutter(lambda offset, buffer: queue.read(offset, buffer, hot=False), end_of_file)


def all_cuts(store: MessageStore, size: int, limit: int | None = None) -> list[CutFragment]:
    """Return the fragments of the whole log."""
    cutter, cuts, at = cutter_of(store), list[CutFragment](), store.min_physical_offset
    while (cut := cutter.cut(at, store.write_offset if limit is None else limit, size)) is not None:
        cuts.append(cut)
        at = cut.end
    return cuts


def units_by_queue(cuts: list[CutFragment]) -> dict[tuple[str, int], bytes]:
    """Return the units of each queue, which must follow each other without a gap."""
    held: dict[tuple[str, int], bytes] = {}
    for cut in cuts:
        for run in cut.queues:
            before = held.get((run.topic, run.queue_id), b"")
            assert not before or run.first == first_of(run.topic, run.queue_id, cuts) + len(before) // UNIT_BYTES
            held[run.topic, run.queue_id] = before + run.units
    return held


def first_of(topic: str, queue_id: int, cuts: list[CutFragment]) -> int:
    return next(run.first for cut in cuts for run in cut.queues if (run.topic, run.queue_id) == (topic, queue_id))


def units_of_store(store: MessageStore) -> dict[tuple[str, int], bytes]:
    """Return the units of each queue, without those that only fill a file."""
    held = {}
    for queue in store.queues:
        first = store.queue_reads.first_offset(queue)
        if queue.max_offset > first:
            units = queue.read_units(first, queue.max_offset - first, hot=False)
            held[queue.topic, queue.queue_id] = bytes(units)
    return held


@pytest.fixture
def filled(tmp_path: Path) -> MessageStore:
    """A store of several log files, three topics, and records of all sizes."""
    store = open_store(tmp_path)
    for topic in ("orders", "payments", "Überweisung"):
        make_topic(store, topic)
    random = np.random.default_rng(3)
    for batch in range(40):
        topic = ("orders", "payments", "Überweisung")[batch % 3]
        messages = [
            Message(random.bytes(int(random.integers(0, 9_000))), (f"k{batch}", f"k{batch}-{number}"), "t")
            for number in range(60)
        ]
        put(store, topic, batch % 4, messages)
    return store


@pytest.mark.parametrize("size", [100, 200_000, 3 * MIB, 64 * MIB])
def test_fragments_have_the_whole_log_and_the_units_of_the_store(filled: MessageStore, size: int) -> None:
    cuts = all_cuts(filled, size)
    assert len(filled.commitlog.queue.files) > 2
    assert [cut.start for cut in cuts] == [0, *(cut.end for cut in cuts[:-1])]
    assert cuts[-1].end == filled.write_offset
    for cut in cuts:
        for at, piece in cut.pieces:
            held = memoryview(bytearray(len(piece)))
            filled.commitlog.queue.read(at, held, hot=False)
            assert held == piece
        assert cut.raw_bytes <= size or cut.records == 1
    assert sum(cut.records for cut in cuts) == 40 * 60
    assert units_by_queue(cuts) == units_of_store(filled)


def test_every_key_is_found_where_its_message_is(filled: MessageStore) -> None:
    cuts = all_cuts(filled, MIB)
    indexes = []
    for cut in cuts:
        log, idx, keys = cut.encode("zstd", [])
        index = decode_index(idx, "x.idx")
        assert list(pieces_in(log, index, "x.log"))
        assert len(index.keys) == keys
        indexes.append(index)
    for batch in (0, 17, 39):
        topic = ("orders", "payments", "Überweisung")[batch % 3]
        found = [at for index in indexes for at in positions_of(key_hash(topic, f"k{batch}"), index.keys)]
        assert len(found) == 60
        (one,) = [at for index in indexes for at in positions_of(key_hash(topic, f"k{batch}-7"), index.keys)]
        record = filled.log_reads.record_at(one, 0)
        assert record is not None
        assert record.property_map()["KEYS"] == f"k{batch} k{batch}-7"


def test_a_limit_in_the_middle_of_a_record_ends_the_fragment_before_it(filled: MessageStore) -> None:
    whole = all_cuts(filled, 64 * MIB)[0]
    middle = int(np.frombuffer(whole.queues[0].units, UNIT_DTYPE)[5]["physical_offset"]) + 40
    cut = all_cuts(filled, 64 * MIB, middle)[-1]
    assert cut.end == middle - 40
    assert cutter_of(filled).cut(cut.end, middle) is None


def test_a_fragment_that_begins_at_a_blank_continues_in_the_next_file(filled: MessageStore) -> None:
    first_file = filled.commitlog.queue.files[0]
    last = max(piece[0] + len(piece[1]) for cut in all_cuts(filled, 64 * MIB) for piece in cut.pieces[:1])
    assert last < first_file.end_offset
    cut = cutter_of(filled).cut(last, filled.write_offset)
    assert cut is not None
    assert cut.pieces[0][0] == first_file.end_offset
    assert cutter_of(filled).cut(last, first_file.end_offset) is None


def test_damage_stops_the_cutter_at_its_place(filled: MessageStore) -> None:
    cutter = cutter_of(filled)
    cut = cutter.cut(0, filled.write_offset, 100_000)
    assert cut is not None
    queue = filled.commitlog.queue

    def read(offset: int, buffer: memoryview) -> None:
        queue.read(offset, buffer, hot=False)
        if offset <= cut.end < offset + len(buffer):
            buffer[cut.end - offset + 4] ^= 0xFF

    damaged = Cutter(read, lambda offset: queue.files[0].end_offset)
    with pytest.raises(DamagedLog, match=f"{cut.end:,}") as raised:
        damaged.cut(0, filled.write_offset)
    assert raised.value.physical_offset == cut.end


def test_a_store_that_rocketmq_wrote_is_cut_into_its_own_units(tmp_path: Path) -> None:
    unpack_rocketmq(tmp_path)
    store = open_store(next(tmp_path.glob("**/commitlog")).parent, type(SMALL)())
    assert units_by_queue(all_cuts(store, 20_000)) == units_of_store(store)
