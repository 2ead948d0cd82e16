"""Calls of the index kernels, every array fenced."""

from __future__ import annotations

import numpy as np

from flintmq.broker.kernels import dispatch, index

from .arrays import Fenced, fenced, room
from .index import Index, Key, entry_at


def key_array(keys: list[Key], sentinel: int = 0xA5) -> Fenced:
    """Return the keys in the form of ``dispatch``."""
    rows = np.zeros((len(keys), dispatch.KEY_ROW), np.int64)
    for row, (key_hash, physical_offset, store_ms) in zip(rows, keys, strict=True):
        row[dispatch.K_HASH] = key_hash
        row[dispatch.K_PHYSICAL_OFFSET] = physical_offset
        row[dispatch.K_STORE_MS] = store_ms
    return fenced(rows.reshape(-1), np.int64, sentinel)


def put(file: Fenced, twin: Index, keys: list[Key], first: int = 0, sentinel: int = 0xA5) -> int:
    """Put the keys from ``first`` on."""
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
