"""Entries of an IndexFile: put them, check that a file is consistent, and compare them with the keys of the log."""

from __future__ import annotations

import numpy as np

from ...protocol.storage.arrays.jit import bytes_array, i32_array, i64, i64_array, inlined, kernel, results
from ...protocol.storage.arrays.words import load_be32, load_be64, store_be32, store_be64
from ...protocol.storage.layout import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
)
from .dispatch import K_HASH, K_PHYSICAL_OFFSET, K_STORE_MS, KEY_ROW

_AT_BEGIN_TIMESTAMP = INDEX_HEADER.at["begin_timestamp"]
_AT_END_TIMESTAMP = INDEX_HEADER.at["end_timestamp"]
_AT_BEGIN_PHYSICAL = INDEX_HEADER.at["begin_physical_offset"]
_AT_END_PHYSICAL = INDEX_HEADER.at["end_physical_offset"]
_AT_SLOT_COUNT = INDEX_HEADER.at["hash_slot_count"]
_AT_INDEX_COUNT = INDEX_HEADER.at["index_count"]
_AT_PHYSICAL = INDEX_ENTRY.at["physical_offset"]
_AT_SECONDS = INDEX_ENTRY.at["seconds"]
_AT_PREVIOUS = INDEX_ENTRY.at["previous"]
_SECONDS_MAX = 2**31 - 1

SOUND = 0
REPAIRED = 1
"""Slots pointed at entries that a killed process had not counted yet; ``check`` reset them to the newest counted
one."""
DAMAGED = 2


@inlined
def _seconds_since(begin_ms: int, store_ms: int) -> int:
    # The entry has seconds since the file's begin time in 31 bits; an earlier time counts as that, as in RocketMQ.
    if begin_ms <= 0 or store_ms <= begin_ms:
        return 0
    return min((store_ms - begin_ms) // 1000, _SECONDS_MAX)


@kernel(i64, bytes_array, i64, i64, i64_array, i64, i64)
def put(index: np.ndarray, slots: int, entries: int, keys: np.ndarray, first: int, count: int) -> int:
    """Put the keys ``[first, count)`` of ``dispatch``'s ``keys`` into the file mapped at ``index``.

    Returns how many of the ``count`` keys are in the file now; fewer than ``count`` if it is full. An entry is stored
    before its slot, and the header last, so that a concurrent reader, and a process that starts after this one was
    killed, find complete chains.
    """
    if first >= count:
        return count
    # Entry 0 is never used: 0 is the end of a chain.
    number = max(load_be32(index, _AT_INDEX_COUNT), 1)
    slot_count = load_be32(index, _AT_SLOT_COUNT)
    begin_ms = load_be64(index, _AT_BEGIN_TIMESTAMP)
    entries_at = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * slots
    key = first
    while key < count and number < entries:
        row = key * KEY_ROW
        key_hash = keys[row + K_HASH]
        store_ms = keys[row + K_STORE_MS]
        slot_at = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * (key_hash % slots)
        previous = load_be32(index, slot_at)
        # RocketMQ's rule for a slot that is empty or that points at an entry that was never counted.
        if previous <= 0 or previous > number:
            previous = 0
            slot_count += 1
        at = entries_at + INDEX_ENTRY_BYTES * number
        store_be32(index, at, key_hash)
        store_be64(index, at + _AT_PHYSICAL, keys[row + K_PHYSICAL_OFFSET])
        # The first entry sets the file's begin time: it is at second 0, whatever time the previous file ended with.
        store_be32(index, at + _AT_SECONDS, 0 if number == 1 else _seconds_since(begin_ms, store_ms))
        store_be32(index, at + _AT_PREVIOUS, previous)
        # After the entry, so that no reader finds a chain that begins with an unwritten entry.
        store_be32(index, slot_at, number)
        if number == 1:
            begin_ms = store_ms
            store_be64(index, _AT_BEGIN_TIMESTAMP, store_ms)
            store_be64(index, _AT_BEGIN_PHYSICAL, keys[row + K_PHYSICAL_OFFSET])
        number += 1
        key += 1
    if key > first:
        row = (key - 1) * KEY_ROW
        # The header after all entries: a process that is killed before this leaves entries that no count includes,
        # which ``check`` takes back.
        store_be32(index, _AT_SLOT_COUNT, slot_count)
        store_be64(index, _AT_END_TIMESTAMP, keys[row + K_STORE_MS])
        store_be32(index, _AT_INDEX_COUNT, number)
        store_be64(index, _AT_END_PHYSICAL, keys[row + K_PHYSICAL_OFFSET])
    return key


@kernel(results(i64, i64), bytes_array, i64, i64, i64, i64, i64, i64, i64, i64_array)
def select(
    index: np.ndarray,
    slots: int,
    entries: int,
    begin_timestamp: int,
    key_hash: int,
    begin_ms: int,
    end_ms: int,
    number: int,
    found: np.ndarray,
) -> tuple[int, int]:
    """Follow the chain of one hash, starting at entry ``number`` (0: at its slot), newest first.

    ``found`` gets (physical offset, entry number) of each entry that has the hash and whose second touches
    ``[begin_ms, end_ms]``, until it is full. Returns (how many, the entry to continue from; 0: end of the chain).
    """
    entries_at = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * slots
    if number == 0:
        number = load_be32(index, INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * (key_hash % slots))
    count = 0
    while 0 < number < entries:
        # The caller takes what there is and continues at this entry, so a long chain needs no more memory.
        if 2 * count == len(found):
            return count, number
        at = entries_at + INDEX_ENTRY_BYTES * number
        # RocketMQ counts the first entry of a later file from the end of the previous file, although it begins this
        # one.
        entry_ms = begin_timestamp + (1000 * load_be32(index, at + _AT_SECONDS) if number > 1 else 0)
        if load_be32(index, at) == key_hash and entry_ms <= end_ms and entry_ms + 1000 > begin_ms:
            found[2 * count] = load_be64(index, at + _AT_PHYSICAL)
            found[2 * count + 1] = number
            count += 1
        previous = load_be32(index, at + _AT_PREVIOUS)
        # Entries of a chain get older, so the rest is too old. A chain that does not descend is damaged and could be a
        # circle.
        if entry_ms + 1000 <= begin_ms or previous >= number:
            break
        number = previous
    return count, 0


@kernel(i64, bytes_array, i64, i64, i32_array)
def check(index: np.ndarray, slots: int, entries: int, heads: np.ndarray) -> int:
    """Check whether every chain of the file is complete; repair slots left by an interrupted ``put``.

    ``heads``: ``slots`` zeros, work space. The kernel replays the entries in order and tracks in ``heads`` what each
    slot held: an entry must name the previous one of its slot, physical offsets must not decrease, and in the end every
    slot must hold its head.
    """
    count = load_be32(index, _AT_INDEX_COUNT)
    if count < 1 or count > entries:
        return DAMAGED
    entries_at = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * slots
    last_physical = np.int64(0)
    used = 0
    for number in range(1, count):
        at = entries_at + INDEX_ENTRY_BYTES * number
        key_hash = load_be32(index, at)
        physical = load_be64(index, at + _AT_PHYSICAL)
        if key_hash < 0 or physical < last_physical:
            return DAMAGED
        last_physical = physical
        slot = key_hash % slots
        # ``heads`` now holds the slot as it was when this entry was put.
        if np.int64(heads[slot]) != load_be32(index, at + _AT_PREVIOUS):
            return DAMAGED
        if heads[slot] == 0:
            used += 1
        heads[slot] = number
    if count > 1 and load_be64(index, _AT_END_PHYSICAL) != last_physical:
        return DAMAGED
    result = SOUND
    for slot in range(slots):
        at = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * slot
        head = load_be32(index, at)
        if head == np.int64(heads[slot]):
            continue
        # A head that is counted but is not the newest of its slot was never written by ``put``; a head at or beyond the
        # count is what a killed ``put`` leaves.
        if head < count:
            return DAMAGED
        store_be32(index, at, np.int64(heads[slot]))
        result = REPAIRED
    if load_be32(index, _AT_SLOT_COUNT) != used:
        store_be32(index, _AT_SLOT_COUNT, used)
        result = REPAIRED
    return result


@kernel(results(i64, i64, i64), bytes_array, i64, i64, i64, i64, i64, i64_array, i64, i64_array, i64)
def match(
    index: np.ndarray,
    entries_at: int,
    number: int,
    stop: int,
    reached: int,
    begin_ms: int,
    keys: np.ndarray,
    key: int,
    optional_keys: np.ndarray,
    any_optional: int,
) -> tuple[int, int, int]:
    """Compare the entries ``[number, stop)`` of records below the physical offset ``reached`` with ``dispatch``'s keys
    from ``key`` on.

    ``entries_at``: position of entry 0; ``begin_ms``: the header's begin time. Entries of deleted topics may be there
    too: those of ``optional_keys`` or, with ``any_optional``, those of all records without a key in ``keys``.
    Returns (first entry, first key that was not compared; 1, or 0 if these two differ). The time of entry 1 is not
    compared because RocketMQ counts it from the end of the previous file.
    """
    # Physical offsets never decrease within a file, not even from the call before to this one.
    last = load_be64(index, entries_at + INDEX_ENTRY_BYTES * (number - 1) + _AT_PHYSICAL) if number > 1 else 0
    count, optional = len(keys) // KEY_ROW, 0
    while number < stop:
        at = entries_at + INDEX_ENTRY_BYTES * number
        physical = load_be64(index, at + _AT_PHYSICAL)
        if physical >= reached:
            break
        row = key * KEY_ROW
        if key < count and keys[row + K_PHYSICAL_OFFSET] == physical:
            if load_be32(index, at) != keys[row + K_HASH]:
                return number, key, 0
            # RocketMQ's first entry counts from another file's end; see the docstring.
            if number > 1 and load_be32(index, at + _AT_SECONDS) != _seconds_since(begin_ms, keys[row + K_STORE_MS]):
                return number, key, 0
            key += 1
        elif (
            physical < last
            or (key < count and keys[row + K_PHYSICAL_OFFSET] < physical)
            or (key > 0 and keys[row - KEY_ROW + K_PHYSICAL_OFFSET] == physical)
        ):
            return number, key, 0
        elif not any_optional:
            while optional < len(optional_keys) and (
                optional_keys[optional + K_PHYSICAL_OFFSET] != physical
                or optional_keys[optional + K_HASH] != load_be32(index, at)
            ):
                optional += KEY_ROW
            if optional >= len(optional_keys):
                return number, key, 0
            optional += KEY_ROW
        last = physical
        number += 1
    return number, key, 1
