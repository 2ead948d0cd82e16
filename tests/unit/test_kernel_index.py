"""The index kernels, rule by rule, with explicit bytes."""

from __future__ import annotations

import struct

import pytest

from flintmq.broker.kernels import index as kernel
from flintmq.broker.store.read.queries import parse_cursor
from flintmq.protocol.errors import InvalidParameter
from flintmq.protocol.storage.arrays.jit import INTERPRETED
from flintmq.protocol.storage.layout import INDEX_HEADER
from tests.twins.arrays import fenced, recording
from tests.twins.index import Index, Key, check, entry_at, file_bytes, key_array, put, select, slot_at

NOW_MS = 1_700_000_000_000
SLOTS = 4
KEYS: list[Key] = [
    (5, 100, NOW_MS),
    (5, 100, NOW_MS + 999),
    (9, 300, NOW_MS + 1000),
    (2**31 - 1, 400, NOW_MS + 61_999),
    (6, 500, NOW_MS - 5000),
    (0, 600, NOW_MS + 2**31 * 1000),
]


def filled(keys: list[Key], entries: int = 20, begin_ms: int = 0, begin_physical: int = 0) -> tuple[bytes, Index]:
    """Return a file with these keys, and its twin."""
    twin = Index(SLOTS, entries, begin_ms, begin_physical)
    file = fenced(twin.encode())
    done = put(file, twin, keys)
    assert done == twin.put(keys)
    return file.bytes(), twin


def entries_of(blob: bytes, count: int) -> list[tuple[int, ...]]:
    """Return (hash, physical offset, seconds, previous) of the first entries."""
    return [struct.unpack_from(">iqii", blob, entry_at(SLOTS, number)) for number in range(1, count + 1)]


def test_entries_slots_and_header_follow_the_format() -> None:
    blob, twin = filled(KEYS)
    assert entries_of(blob, 6) == [
        (5, 100, 0, 0),
        (5, 100, 0, 1),
        (9, 300, 1, 2),
        (2**31 - 1, 400, 61, 0),
        (6, 500, 0, 0),
        (0, 600, 2**31 - 1, 0),
    ]
    assert struct.unpack_from(">4i", blob, slot_at(0)) == (6, 3, 5, 4)
    assert struct.unpack_from(">qqqqii", blob) == (NOW_MS, NOW_MS + 2**31 * 1000, 100, 600, 4, 7)
    assert not any(blob[entry_at(SLOTS, 0) : entry_at(SLOTS, 1)]), "entry 0 is never used"
    assert not any(blob[entry_at(SLOTS, 7) :])
    assert blob == twin.encode()


def test_the_first_entry_of_a_later_file_begins_its_time() -> None:
    """RocketMQ stores seconds since the end of the previous file in that entry, and so cannot find it by its time."""
    blob, twin = filled(KEYS[:2], begin_ms=NOW_MS - 3_600_000, begin_physical=77)
    assert entries_of(blob, 2) == [(5, 100, 0, 0), (5, 100, 0, 1)]
    assert struct.unpack_from(">qqqqii", blob) == (NOW_MS, NOW_MS + 999, 100, 100, 1, 3)
    assert select(blob, twin, NOW_MS, 5, NOW_MS, NOW_MS, 4) == [(100, 2), (100, 1)]


def test_the_first_entry_is_found_by_its_time_in_a_file_that_rocketmq_rolled_to() -> None:
    blob, twin = filled(KEYS[:3])
    as_rocketmq = bytearray(blob)
    struct.pack_into(">i", as_rocketmq, entry_at(SLOTS, 1) + 12, 3600)
    assert (100, 1) in select(bytes(as_rocketmq), twin, NOW_MS, 5, NOW_MS, NOW_MS + 500, 4)


def test_a_slot_without_a_valid_entry_number_is_empty() -> None:
    for stale in (-1, -(2**31), 100, 2**31 - 1):
        twin = Index(SLOTS, 20)
        blob = bytearray(twin.encode())
        struct.pack_into(">i", blob, slot_at(1), stale)
        file = fenced(blob)
        put(file, twin, KEYS[:1])
        twin.put(KEYS[:1])
        assert file.bytes() == twin.encode()


def test_a_header_of_zeros_is_an_empty_file() -> None:
    twin = Index(SLOTS, 20)
    file = fenced(bytes(file_bytes(SLOTS, 20)))
    assert put(file, twin, KEYS) == len(KEYS)
    twin.put(KEYS)
    assert file.bytes() == twin.encode()


def test_a_chain_that_points_at_itself_or_forward_ends() -> None:
    blob, twin = filled(KEYS)
    for previous in (2, 3, 19, 20, 2**31 - 1, -1):
        damaged = bytearray(blob)
        struct.pack_into(">i", damaged, entry_at(SLOTS, 2) + 16, previous)
        assert select(bytes(damaged), twin, NOW_MS, 5, 0, 2**62, 1) == [(100, 2)]


@pytest.mark.parametrize("cursor", [f"20250101000000000:{'9' * 19}:1", f"20250101000000000:1:{'9' * 19}"])
def test_a_cursor_beyond_all_integers_of_a_kernel_is_invalid(cursor: str) -> None:
    with pytest.raises(InvalidParameter, match="is not a cursor"):
        parse_cursor(cursor)
    name, _, numbers = cursor.partition(":")
    assert parse_cursor(f"{name}:{numbers.replace('9' * 19, '9' * 18)}") is not None


def test_a_file_whose_end_is_not_that_of_its_last_entry_is_damaged() -> None:
    blob, twin = filled(KEYS)
    damaged = bytearray(blob)
    struct.pack_into(">q", damaged, INDEX_HEADER.at["end_physical_offset"], 601)
    assert check(bytes(damaged), twin)[0] == kernel.DAMAGED


def test_a_wrong_count_of_slots_is_set_right() -> None:
    blob, twin = filled(KEYS)
    damaged = bytearray(blob)
    struct.pack_into(">i", damaged, INDEX_HEADER.at["hash_slot_count"], 3)
    assert check(bytes(damaged), twin) == (kernel.REPAIRED, blob)


@pytest.mark.skipif(not INTERPRETED, reason="needs to see each write; test_kernel_interpreted runs this")
def test_an_entry_is_written_before_its_slot_and_the_header_last() -> None:
    twin = Index(SLOTS, 20)
    file = recording(twin.encode())
    assert kernel.put(file, SLOTS, 20, key_array(KEYS).array, 0, len(KEYS)) == len(KEYS)
    entries_begin = entry_at(SLOTS, 0)
    kinds = ["header" if at < slot_at(0) else "slot" if at < entries_begin else "entry" for at, _ in file.writes]
    header = kinds.index("header", kinds.index("entry", kinds.index("header") + 1))  # after the beginnings
    last_slot = len(kinds) - 1 - kinds[::-1].index("slot")
    assert header > last_slot
    assert set(kinds[last_slot + 1 :]) == {"header"}
    for place, kind in enumerate(kinds):
        if kind == "slot":
            assert kinds[place - 4 : place] == ["entry"] * 4
    counted = [at for at, _ in file.writes].index(INDEX_HEADER.at["index_count"])
    assert counted > last_slot
