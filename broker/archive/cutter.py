"""The next fragment of the log: which bytes it has, and its index, derived from the records alone.

Nothing here does I/O except by the function that reads the log, and no state of queues or index matters: a fragment
that is cut again from the same log is the same.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...protocol.storage.archive.fragment import FRAGMENT_BYTES, Compression, QueueUnits, encode_frames, encode_index
from ...protocol.storage.archive.keys import sorted_entries
from ...protocol.storage.archive.manifest import JOIN_BYTES
from ...protocol.storage.layout import MAGIC_BLANK, RECORD_BYTES_MIN, UNIT_BYTES
from ..kernels import archive as kernel
from ..kernels.dispatch import BAD_LENGTH, BAD_NAMES, BLANK, DONE, FULL, NEW_QUEUE, PARTS, VALUES
from ..store.derivation import may_be_queue, message_at
from ..store.files.file_system import Files
from ..store.queues import UNIT_DTYPE, ConsumeQueueTable

ReadLog = Callable[[int, memoryview], None]
"""Function that fills a buffer with the log from a physical offset on, within one of its files."""
EndOfFile = Callable[[int], int]
"""Function that returns the end of the log file that contains a physical offset."""

CALL_UNITS = 65_536
CALL_KEYS = 131_072
"""Units and keys of one kernel call. A record's properties hold at most 16,384 keys, so one record fits always."""
QUEUES_KEPT = 16_384
"""Queues of earlier fragments that the table keeps: those of deleted topics would stay for ever."""
_EIGHT = 8


class DamagedLog(Exception):
    """The log has something else than records where the archive should go on. ``physical_offset``: where."""

    def __init__(self, physical_offset: int, what: str) -> None:
        super().__init__(f"the log has {what} at physical offset {physical_offset:,}")
        self.physical_offset = physical_offset


@dataclass(slots=True)
class CutFragment:
    """A piece of the log that becomes a fragment.

    ``pieces``: (physical offset, bytes) of its records; ``queues``: their units; ``keys``: hashes and physical offsets,
    two columns; ``first_ms``, ``last_ms``: store times of the first and the last record.
    """

    start: int
    end: int
    pieces: list[tuple[int, memoryview]] = field(default_factory=list)
    queues: list[QueueUnits] = field(default_factory=list)
    keys: np.ndarray = field(default_factory=lambda: np.zeros((0, kernel.HASHED_ROW), np.int64))
    records: int = 0
    first_ms: int = 0
    last_ms: int = 0

    @property
    def raw_bytes(self) -> int:
        """Bytes of the log in it."""
        return sum(len(piece) for _, piece in self.pieces)

    @property
    def topics(self) -> list[str]:
        """Return the topics of its messages, sorted."""
        return sorted({each.topic for each in self.queues})

    def join_crc(self) -> int:
        """Return the CRC-32 of its last bytes, by which a writer finds its place again."""
        return join_crc(self.pieces)

    def encode(self, compression: Compression, quarantined: list[tuple[int, int]]) -> tuple[bytearray, bytes, int]:
        """Return the two objects, records and index, and the number of keys."""
        log, frames = encode_frames(self.pieces, compression)
        keys = sorted_entries(self.keys[:, kernel.H_HASH].view(np.uint64), self.keys[:, kernel.H_PHYSICAL_OFFSET])
        within = [(begin, end) for begin, end in quarantined if begin < self.end and end > self.start]
        idx = encode_index(self.start, self.end, compression, frames, self.queues, keys, self.records, within)
        return log, idx, len(keys)


def join_crc(pieces: list[tuple[int, Any]]) -> int:
    """Return the CRC-32 of the last ``JOIN_BYTES`` of ``pieces``, or of all that they have."""
    tail = b""
    for _, piece in reversed(pieces):
        tail = bytes(piece[-JOIN_BYTES:]) + tail
        if len(tail) >= JOIN_BYTES:
            break
    return zlib.crc32(tail[-JOIN_BYTES:])


class Cutter:
    """Cuts fragments. One thread at a time. ``read``, ``end_of_file``: the log."""

    def __init__(self, read: ReadLog, end_of_file: EndOfFile) -> None:
        self._read = read
        self._end_of_file = end_of_file
        self._begin_table()
        self._units = np.zeros(CALL_UNITS * kernel.DERIVED_ROW, np.int64)
        self._keys = np.zeros(CALL_KEYS * kernel.HASHED_ROW, np.int64)
        self._text = np.zeros(kernel.TEXT_BYTES, np.uint8)
        self._scratch = np.zeros(PARTS + VALUES, np.int64)
        self._state = np.zeros(kernel.TALLY, np.int64)

    def _begin_table(self) -> None:
        # Only its arrays are used: it opens no file.
        self._table = ConsumeQueueTable(Files(), Path(), Path(), UNIT_BYTES)

    def cut(self, start: int, limit: int, size: int = FRAGMENT_BYTES) -> CutFragment | None:
        """Return the fragment that begins at ``start``, the boundary of a record; None if there is no whole record.

        It ends at the last record before ``limit`` that keeps it within ``size`` bytes, or after one larger record.
        Raises ``DamagedLog``, and what ``read`` raises.
        """
        if len(self._table.rows) > QUEUES_KEPT:
            self._begin_table()
        cut = CutFragment(start, start)
        derived = _Derived()
        room = size
        while cut.end < limit and room > 0:
            file_end = self._end_of_file(cut.end)
            stop = min(limit, file_end, cut.end + room)
            status, blob, position = self._piece(cut.end, stop, derived)
            if position:
                cut.pieces.append((cut.end, blob[:position]))
            cut.end += position
            room -= position
            if status == DONE:
                continue
            needed = self._needed(blob, position, status)
            if needed is None:
                raise DamagedLog(cut.end, BAD_NAMES.get(status, "a record of an impossible queue"))
            if needed < 0:  # a blank
                if file_end > limit:
                    break
                cut.end = file_end
            elif cut.end + needed <= min(limit, file_end) and not cut.pieces:
                room = needed  # one record that is larger than a fragment
            else:
                break
        if not cut.pieces:
            return None
        self._finish(cut, derived)
        return cut

    def derive(self, start: int, end: int, pieces: list[tuple[int, bytes]]) -> CutFragment:
        """Return the fragment ``[start, end)`` of whole records that are not read from the log.

        ``pieces``: (physical offset, bytes), each with whole records. Raises ``DamagedLog`` if they have none.
        """
        cut, derived = CutFragment(start, end), _Derived()
        for begin, piece in pieces:
            blob = memoryview(bytearray(piece))
            status, position = self._derive(begin, blob, derived)
            if status != DONE:
                raise DamagedLog(begin + position, BAD_NAMES.get(status, "a record of an impossible queue"))
            cut.pieces.append((begin, blob))
        self._finish(cut, derived)
        return cut

    def _piece(self, begin: int, stop: int, derived: _Derived) -> tuple[int, memoryview, int]:
        """Read and derive ``[begin, stop)``, all in one file. Return (status, bytes, the position it came to)."""
        blob = memoryview(bytearray(stop - begin))
        self._read(begin, blob)
        status, position = self._derive(begin, blob, derived)
        return status, blob, position

    def _derive(self, begin: int, blob: memoryview, derived: _Derived) -> tuple[int, int]:
        """Derive the records of a piece that begins at a physical offset. Return (status, the position it came to)."""
        array = np.frombuffer(blob, np.uint8)
        position = 0
        while True:
            table = self._table
            status, position = kernel.derive(
                array,
                position,
                len(array),
                begin,
                table.slots,
                table.kernel_rows,
                table.topics,
                self._units,
                self._keys,
                self._text,
                self._scratch,
                self._state,
            )
            derived.take(self._units, self._keys, self._state)
            if status == NEW_QUEUE:
                topic, queue_id, _ = message_at(array, position, self._scratch)
                if not may_be_queue(topic, queue_id):
                    return status, position
                table.add(topic.decode(), queue_id)
            elif status != FULL:
                return status, position

    def _needed(self, blob: memoryview, position: int, status: int) -> int | None:
        """Return how many bytes the record needs that the piece cuts; -1: a blank is there; None: damage."""
        left = len(blob) - position
        if left < _EIGHT:
            return _EIGHT
        size, magic = (int.from_bytes(blob[at : at + 4], "big", signed=True) for at in (position, position + 4))
        if status == BLANK or (magic == MAGIC_BLANK and size >= _EIGHT):
            return -1
        return size if status == BAD_LENGTH and size > left and size >= RECORD_BYTES_MIN else None

    def _finish(self, cut: CutFragment, derived: _Derived) -> None:
        """Fill in what was derived from the cut's records."""
        cut.records, cut.first_ms, cut.last_ms = derived.records, derived.first_ms, derived.last_ms
        cut.keys = np.concatenate(derived.keys or [np.zeros(0, np.int64)]).reshape(-1, kernel.HASHED_ROW)
        rows = np.concatenate(derived.units or [np.zeros(0, np.int64)]).reshape(-1, kernel.DERIVED_ROW)
        rows = rows[np.argsort(rows[:, kernel.D_QUEUE], kind="stable")]
        if not len(rows):
            return
        units = np.empty(len(rows), UNIT_DTYPE)
        units["physical_offset"] = rows[:, kernel.D_PHYSICAL_OFFSET]
        units["size"] = rows[:, kernel.D_SIZE]
        units["tags_code"] = rows[:, kernel.D_TAGS_CODE]
        blob = units.tobytes()
        ends = np.flatnonzero((np.diff(rows[:, kernel.D_QUEUE]) != 0) | (np.diff(rows[:, kernel.D_QUEUE_OFFSET]) != 1))
        bounds = [0, *(ends + 1).tolist(), len(rows)]
        for first, end in itertools.pairwise(bounds):
            queue = self._table.rows[rows[first, kernel.D_QUEUE]]
            cut.queues.append(
                QueueUnits(
                    queue.topic,
                    queue.queue_id,
                    int(rows[first, kernel.D_QUEUE_OFFSET]),
                    blob[first * UNIT_BYTES : end * UNIT_BYTES],
                    int(rows[first, kernel.D_STORE_MS]),
                    int(rows[end - 1, kernel.D_STORE_MS]),
                )
            )
        cut.queues.sort(key=lambda each: (each.topic, each.queue_id, each.first))


class _Derived:
    """Results of several kernel calls, in the order of the log."""

    def __init__(self) -> None:
        self.units: list[np.ndarray] = []
        self.keys: list[np.ndarray] = []
        self.records = self.first_ms = self.last_ms = 0

    def take(self, units: np.ndarray, keys: np.ndarray, state: np.ndarray) -> None:
        """Copy the results of one call."""
        records, made, hashed, first_ms, last_ms = state.tolist()
        if not records:
            return
        self.units.append(units[: made * kernel.DERIVED_ROW].copy())
        self.keys.append(keys[: hashed * kernel.HASHED_ROW].copy())
        if not self.records:
            self.first_ms = first_ms
        self.records += records
        self.last_ms = last_ms
