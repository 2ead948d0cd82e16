"""An IndexFile in plain Python, and calls of the index kernels with every array fenced."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flintmq.broker.kernels import dispatch, index
from flintmq.protocol.storage.layout import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
)

from .arrays import Fenced, fenced, room

Key = tuple[int, int, int]
"""(hash, physical offset, store time in ms)."""

SECONDS_MAX = 2**31 - 1


def slot_at(slot: int) -> int:
    return INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * slot


def entry_at(slots: int, number: int) -> int:
    return slot_at(slots) + INDEX_ENTRY_BYTES * number


def file_bytes(slots: int, entries: int) -> int:
    return entry_at(slots, entries)


@dataclass
class Index:
    """A file of so many slots and entries; entry 0 is never used.

    ``begin_ms``, ``begin_physical``: header fields of a new file that come from the file before.
    """

    slots: int
    entries: int
    begin_ms: int = 0
    begin_physical: int = 0
    keys: list[Key] = field(default_factory=list)

    def put(self, keys: list[Key]) -> int:
        """Put keys; return how many found room."""
        taken = keys[: self.entries - 1 - len(self.keys)]
        self.keys += taken
        return len(taken)

    def chain(self, slot: int) -> list[int]:
        """Return the numbers of the entries in a slot, oldest first."""
        return [number for number, key in enumerate(self.keys, 1) if key[0] % self.slots == slot]

    def seconds(self, number: int) -> int:
        """Return the whole seconds between the file's first entry and this one."""
        begin_ms, store_ms = self.keys[0][2], self.keys[number - 1][2]
        return min(max(store_ms - begin_ms, 0) // 1000, SECONDS_MAX) if begin_ms > 0 else 0

    def header(self) -> bytes:
        """Return the file's header."""
        if not self.keys:
            taken_over = (self.begin_ms, self.begin_ms, self.begin_physical, self.begin_physical)
            return INDEX_HEADER.pack(*taken_over, 0, 1)
        (_, first_physical, first_ms), (_, last_physical, last_ms) = self.keys[0], self.keys[-1]
        used = len({key_hash % self.slots for key_hash, _, _ in self.keys})
        return INDEX_HEADER.pack(first_ms, last_ms, first_physical, last_physical, used, len(self.keys) + 1)

    def encode(self) -> bytes:
        """Return the whole file."""
        blob = bytearray(file_bytes(self.slots, self.entries))
        blob[:INDEX_HEADER_BYTES] = self.header()
        newest = [0] * self.slots
        for number, (key_hash, physical_offset, _) in enumerate(self.keys, 1):
            slot = key_hash % self.slots
            at = entry_at(self.slots, number)
            entry = INDEX_ENTRY.pack(key_hash, physical_offset, self.seconds(number), newest[slot])
            blob[at : at + INDEX_ENTRY_BYTES] = entry
            newest[slot] = number
        for slot, number in enumerate(newest):
            blob[slot_at(slot) : slot_at(slot + 1)] = number.to_bytes(INDEX_SLOT_BYTES, "big")
        return bytes(blob)

    def select(self, key_hash: int, begin_ms: int, end_ms: int) -> list[tuple[int, int]]:
        """Return (physical offset, number) of the entries of a hash whose second touches the time range, newest
        first."""
        found = []
        for number, (each_hash, physical_offset, _) in reversed(list(enumerate(self.keys, 1))):
            entry_ms = self.keys[0][2] + 1000 * self.seconds(number)
            if each_hash == key_hash and entry_ms <= end_ms and entry_ms + 1000 > begin_ms:
                found.append((physical_offset, number))
        return found


def key_array(keys: list[Key], sentinel: int = 0xA5) -> Fenced:
    """Return the keys in the form of ``dispatch``."""
    rows = np.zeros((len(keys), dispatch.KEY_ROW), np.int64)
    for row, (key_hash, physical_offset, store_ms) in zip(rows, keys, strict=True):
        row[dispatch.K_HASH] = key_hash
        row[dispatch.K_PHYSICAL_OFFSET] = physical_offset
        row[dispatch.K_STORE_MS] = store_ms
    return fenced(rows.reshape(-1), np.int64, sentinel)


def put(file: Fenced, twin: Index, keys: list[Key], first: int = 0, sentinel: int = 0xA5) -> int:
    array = key_array(keys, sentinel)
    done = index.put(file.array, twin.slots, twin.entries, array.array, first, len(keys))
    assert array.intact
    assert file.intact
    return int(done)


def check(blob: bytes, twin: Index, sentinel: int = 0xA5) -> tuple[int, bytes]:
    """Return the result of ``check`` for a file, and the file after it."""
    file, heads = fenced(blob, sentinel=sentinel), fenced([0] * twin.slots, np.int32, sentinel)
    result = index.check(file.array, twin.slots, twin.entries, heads.array)
    assert file.intact
    assert heads.intact
    return int(result), file.bytes()


def select(
    blob: bytes,
    twin: Index,
    begin_timestamp: int,
    key_hash: int,
    begin_ms: int,
    end_ms: int,
    step: int,
    sentinel: int = 0xA5,
) -> list[tuple[int, int]]:
    """Return the whole chain, read with ``step`` entries a call."""
    file = fenced(blob, sentinel=sentinel)
    found: list[tuple[int, int]] = []
    number = 0
    while True:
        out = room(2 * step, np.int64, sentinel)
        count, number = index.select(
            file.array, twin.slots, twin.entries, begin_timestamp, key_hash, begin_ms, end_ms, number, out.array
        )
        assert out.intact
        assert 0 <= count <= step
        values = out.values()
        found += [(values[2 * k], values[2 * k + 1]) for k in range(count)]
        if not number:
            assert file.intact
            assert file.bytes() == blob
            return found
        assert count == step, "a call stops only when there is no room or no entry left"


def match(
    blob: bytes,
    twin: Index,
    number: int,
    reached: int,
    keys: list[Key],
    optional_keys: list[Key] | None,
    sentinel: int = 0xA5,
) -> tuple[int, int, bool]:
    """Compare the entries from ``number`` on with keys; return (entry, key, whether they are the same so far)."""
    file, array = fenced(blob, sentinel=sentinel), key_array(keys, sentinel)
    optional = key_array(optional_keys or [], sentinel)
    found = index.match(
        file.array,
        entry_at(twin.slots, 0),
        number,
        len(twin.keys) + 1,
        reached,
        twin.keys[0][2],
        array.array,
        0,
        optional.array,
        int(optional_keys is None),
    )
    assert file.intact
    assert file.bytes() == blob
    assert array.intact
    assert optional.intact
    return int(found[0]), int(found[1]), bool(found[2])
