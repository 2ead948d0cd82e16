"""Sorted runs of (hash of a key, physical offset): the archive's index of keys.

The hash is XXH64 with seed 0 over ``TOPIC#KEY`` in UTF-8, the text that RocketMQ's IndexFile hashes too. ``KEY`` is the
message's UNIQ_KEY or one of its KEYS. XXH64 is specified in xxHash's ``xxhash_spec.md`` and spreads evenly.

A run is a sequence of entries of 16 bytes: the hash as an unsigned integer, then the physical offset, both big-endian;
in ascending order of both. After every ``BLOCK_ENTRIES`` entries, and after the last, stands the CRC-32 of the entries
since the CRC before. Hashes are spread evenly, so the block of a hash follows from the number of entries, except that
among n entries it may be some roots of n entries away (``reader``).
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

from .checked import Bytes
from .errors import CorruptObject

Entries = npt.NDArray[np.void]

ENTRY = np.dtype([("hash", ">u8"), ("physical_offset", ">i8")])
ENTRY_BYTES = ENTRY.itemsize
BLOCK_ENTRIES = 4_096
"""Entries of a block: 64 KiB."""
_CRC = struct.Struct(">I")
BLOCK_BYTES = BLOCK_ENTRIES * ENTRY_BYTES + _CRC.size

HASH_MAX = _MASK = 0xFFFFFFFFFFFFFFFF
PRIME_1 = 0x9E3779B185EBCA87
PRIME_2 = 0xC2B2AE3D27D4EB4F
PRIME_3 = 0x165667B19E3779F9
PRIME_4 = 0x85EBCA77C2B2AE63
PRIME_5 = 0x27D4EB2F165667C5


def key_hash(topic: str, key: str) -> int:
    """Return the hash of a key in a topic, 0 to 2^64 - 1. For single keys; the broker's kernel hashes thousands."""
    return xxh64(f"{topic}#{key}".encode())


def xxh64(text: bytes) -> int:
    """Return XXH64 of ``text`` with seed 0."""
    at, size = 0, len(text)
    if size >= 32:
        lanes = [PRIME_1 + PRIME_2 & _MASK, PRIME_2, 0, -PRIME_1 & _MASK]
        while at + 32 <= size:
            words = struct.unpack_from("<4Q", text, at)
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
            at += 32
        value = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            value = ((value ^ _round(0, lane)) * PRIME_1 + PRIME_4) & _MASK
    else:
        value = PRIME_5
    value = value + size & _MASK
    while at + 8 <= size:
        value ^= _round(0, int.from_bytes(text[at : at + 8], "little"))
        value = (_rotated(value, 27) * PRIME_1 + PRIME_4) & _MASK
        at += 8
    if at + 4 <= size:
        value ^= int.from_bytes(text[at : at + 4], "little") * PRIME_1 & _MASK
        value = (_rotated(value, 23) * PRIME_2 + PRIME_3) & _MASK
        at += 4
    for byte in text[at:]:
        value = _rotated(value ^ byte * PRIME_5 & _MASK, 11) * PRIME_1 & _MASK
    value = (value ^ value >> 33) * PRIME_2 & _MASK
    value = (value ^ value >> 29) * PRIME_3 & _MASK
    return value ^ value >> 32


def _round(lane: int, word: int) -> int:
    return _rotated(lane + word * PRIME_2 & _MASK, 31) * PRIME_1 & _MASK


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _MASK


def sorted_entries(hashes: npt.NDArray[np.uint64], physical_offsets: npt.NDArray[np.int64]) -> Entries:
    """Return the entries of a run; each pair once."""
    order = np.lexsort((physical_offsets, hashes))
    entries = np.empty(len(order), ENTRY)
    entries["hash"] = hashes[order]
    entries["physical_offset"] = physical_offsets[order]
    if len(entries) > 1:
        entries = entries[np.concatenate(([True], entries[1:] != entries[:-1]))]
    return entries


def encode_run(entries: Entries) -> bytes:
    """Return the bytes of a run of sorted entries."""
    blob = entries.tobytes()
    parts: list[bytes] = []
    for at in range(0, len(blob), BLOCK_ENTRIES * ENTRY_BYTES):
        block = blob[at : at + BLOCK_ENTRIES * ENTRY_BYTES]
        parts += block, _CRC.pack(zlib.crc32(block))
    return b"".join(parts)


def run_bytes(count: int) -> int:
    """Return the size of a run of ``count`` entries."""
    return count * ENTRY_BYTES + blocks_in(count) * _CRC.size


def blocks_in(count: int) -> int:
    """Return the number of blocks of a run of ``count`` entries."""
    return -(-count // BLOCK_ENTRIES)


def block_of(hash_: int, count: int, first_hash: int = 0, last_hash: int = HASH_MAX) -> int:
    """Return the number of the block in which a hash most likely is, in a run of ``count`` > 0 entries.

    ``first_hash``, ``last_hash``: those that the run may have; the hash is one of them.
    """
    return (hash_ - first_hash) * count // (last_hash - first_hash + 1) // BLOCK_ENTRIES


def block_range(block: int, count: int) -> tuple[int, int]:
    """Return begin and end of a block in the bytes of a run of ``count`` entries."""
    return block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, run_bytes(count))


def decode_blocks(blob: Bytes, name: str) -> Entries:
    """Return the entries of whole blocks, one after the other: a run, or a part of one.

    ``name``: that of the object, for the error. Raises ``CorruptObject``.
    """
    view = memoryview(blob)
    blocks = []
    for at in range(0, len(view), BLOCK_BYTES):
        block = view[at : at + BLOCK_BYTES]
        entries = block[: -_CRC.size]
        if len(entries) % ENTRY_BYTES or zlib.crc32(entries) != int.from_bytes(block[-_CRC.size :], "big"):
            raise CorruptObject(name, "a block of its keys has a wrong checksum")
        blocks.append(np.frombuffer(entries, ENTRY))
    return np.concatenate(blocks) if blocks else np.empty(0, ENTRY)


def positions_of(hash_: int, entries: Entries) -> list[int]:
    """Return the physical offsets of a hash in sorted entries, ascending."""
    hashes = entries["hash"]
    wanted = np.uint64(hash_)
    first, end = np.searchsorted(hashes, wanted, "left"), np.searchsorted(hashes, wanted, "right")
    found: list[int] = entries["physical_offset"][first:end].tolist()
    return found
