"""The kernels on a store that Apache RocketMQ wrote: they find its records and rebuild its units and its index."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass, field

import numpy as np
import pytest

from flintmq.broker.kernels import dispatch as kernel
from flintmq.broker.kernels import index
from flintmq.protocol.storage.arrays.jit import INTERPRETED
from flintmq.protocol.storage.layout import INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, INDEX_SLOT_BYTES, UNIT_BYTES
from tests.store_tools import ROCKETMQ_ARCHIVE
from tests.twins.arrays import fenced
from tests.twins.dispatch import Answer, Table, Work, dispatch
from tests.twins.index import key_array
from tests.twins.log import Queue, QueueName, Queues

INDEX_SLOTS = 5_000_000
INDEX_ENTRIES = 20_000_000
LOG_BYTES = 1 << 20
"""More than its records take; the rest of the file is a hole."""
QUEUE_BYTES = 1000 * UNIT_BYTES
ENTRIES_READ = 2000


@dataclass
class GoldenStore:
    """The beginnings of the store's files."""

    log: bytes = b""
    queues: dict[QueueName, bytes] = field(default_factory=dict)
    index: bytes = b""


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo, byte_count: int) -> bytes:
    content = archive.extractfile(member)
    assert content is not None
    # In pieces: the time that tarfile needs to join a sparse file's segments grows with the square of their number.
    return b"".join(content.read(min(1 << 16, byte_count - at)) for at in range(0, byte_count, 1 << 16))


@pytest.fixture(scope="module")
def golden() -> GoldenStore:
    store = GoldenStore()
    with tarfile.open(ROCKETMQ_ARCHIVE) as archive:
        for member in archive:
            match member.name.split("/"):
                case ["store-pristine", "commitlog", _]:
                    store.log = _read(archive, member, LOG_BYTES)
                case ["store-pristine", "consumequeue", topic, queue, _]:
                    store.queues[topic.encode(), int(queue)] = _read(archive, member, QUEUE_BYTES)
                case ["store-pristine", "index", _]:
                    entries_at = INDEX_HEADER_BYTES + INDEX_SLOTS * INDEX_SLOT_BYTES
                    store.index = _read(archive, member, entries_at + ENTRIES_READ * INDEX_ENTRY_BYTES)
    return store


def dispatch_all(log: bytes) -> tuple[dict[QueueName, bytes], Answer]:
    """Return the units by queue and the answer of the call that reached the end; queues are added when they first
    occur.
    """
    queues: Queues = {}
    array = fenced(log)
    while True:
        table = Table((name, Queue()) for name in queues)
        answer = dispatch(array, 0, len(log), 0, table, work=Work(unit_room=1000))
        if answer.status != kernel.NEW_QUEUE:
            return {name: b"".join(units) for name, units in answer.units.items()}, answer
        parts = fenced([0] * kernel.PARTS, np.int64)
        assert kernel.locate(array.array, answer.at, len(log), answer.at, parts.array) == kernel.DONE
        values = parts.values()
        topic = log[values[kernel.R_TOPIC_AT] : values[kernel.R_TOPIC_END]]
        queues[topic, int.from_bytes(log[answer.at + 12 : answer.at + 16], "big")] = Queue()


def test_a_scan_finds_every_record_and_the_end(golden: GoldenStore) -> None:
    log, parts = fenced(golden.log), fenced([0] * kernel.PARTS, np.int64)
    state = fenced([0] * kernel.STATE, np.int64)
    status, end = kernel.scan(log.array, 0, len(golden.log), 0, parts.array, state.array)
    assert (status, state.array[kernel.S_RECORDS]) == (kernel.NO_RECORD, 552)
    assert not any(golden.log[end:])


def test_the_units_are_rocketmqs(golden: GoldenStore) -> None:
    units, answer = dispatch_all(golden.log)
    assert (answer.status, answer.records) == (kernel.NO_RECORD, 552)
    assert units.keys() == golden.queues.keys()
    for name, blob in units.items():
        assert golden.queues[name] == blob.ljust(QUEUE_BYTES, b"\0"), name


def test_the_index_is_rocketmqs(golden: GoldenStore) -> None:
    _, answer = dispatch_all(golden.log)
    made = np.zeros(len(golden.index), np.uint8)
    keys = key_array(answer.keys).array
    assert len(answer.keys) == 1119
    assert index.put(made, INDEX_SLOTS, INDEX_ENTRIES, keys, 0, len(answer.keys)) == len(answer.keys)
    assert made.tobytes() == golden.index


@pytest.mark.skipif(INTERPRETED, reason="five million slots are too many for plain Python")
def test_rocketmqs_index_is_sound_and_damage_in_it_is_found(golden: GoldenStore) -> None:
    blob = np.frombuffer(bytearray(golden.index), np.uint8)
    assert index.check(blob, INDEX_SLOTS, INDEX_ENTRIES, np.zeros(INDEX_SLOTS, np.int32)) == index.SOUND
    assert blob.tobytes() == golden.index
    used = np.flatnonzero(blob[INDEX_HEADER_BYTES : INDEX_HEADER_BYTES + INDEX_SLOTS * INDEX_SLOT_BYTES])
    blob[INDEX_HEADER_BYTES + used[100]] = 0
    assert index.check(blob, INDEX_SLOTS, INDEX_ENTRIES, np.zeros(INDEX_SLOTS, np.int32)) == index.DAMAGED
