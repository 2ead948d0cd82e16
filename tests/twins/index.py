"""An IndexFile in plain Python: its content after keys were put, and the entries of a chain."""

from __future__ import annotations

from dataclasses import dataclass, field

from flintmq.protocol.storage.layout import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
)

Key = tuple[int, int, int]
"""(hash, physical offset, store time in ms)."""

SECONDS_MAX = 2**31 - 1


def slot_at(slot: int) -> int:
    """Return the position of a slot."""
    return INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * slot


def entry_at(slots: int, number: int) -> int:
    """Return the position of an entry."""
    return slot_at(slots) + INDEX_ENTRY_BYTES * number


def file_bytes(slots: int, entries: int) -> int:
    """Return the size of a file."""
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
