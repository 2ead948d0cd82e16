"""Reading records of the log at physical offsets, for pulls and queries.

Every function is synchronous and takes ``hot``. With ``hot`` it reads from the page cache alone, and raises
``WouldBlock`` if that does not hold the bytes; the caller repeats the call with ``hot=False`` in a reader thread, so
that a consumer far behind never delays a producer. Functions never return a view of a map: they read records into a
fresh buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ....protocol.frames import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from ....protocol.storage.layout import RECORD, RECORD_BYTES_MIN
from ....protocol.storage.record import CorruptRecord, check_record_crc, decode_record
from ...kernels import gather as kernel

if TYPE_CHECKING:
    from ....protocol.storage.record import Record
    from ..damage.quarantine import Quarantine
    from ..files.checksummed import ChecksummedRanges
    from ..log.commitlog import CommitLog
    from ..tables.store_state import StoreState

ANSWER_BYTES_MAX = FRAME_BYTES_MAX - HEADER_BYTES_MAX - 8
"""Maximum bytes of the sizes and records in one response."""
GAP_BYTES_MAX = 4096
"""Maximum number of unwanted bytes between two records that one read covers."""
SPARSE_MAX = 8
"""Maximum ratio of the bytes of a read to the wanted bytes in it."""
SPAN_BYTES_MAX = 4 * 1024 * 1024
"""Maximum bytes of a read that covers unwanted bytes."""


class LogReads:
    """Reads of records at physical offsets. Any thread may call them."""

    def __init__(self, commitlog: CommitLog, state: StoreState, quarantine: Quarantine) -> None:
        self.quarantine = quarantine
        self._commitlog = commitlog
        self._state = state

    @property
    def checksummed(self) -> ChecksummedRanges:
        """Ranges in which every record must have a checksum over the whole record."""
        return self._state.checksummed

    def should_have(self, physical_offset: int) -> bool:
        """Return whether the offset is in the log and not covered by a tombstone."""
        commitlog = self._commitlog
        return commitlog.start_offset <= physical_offset < commitlog.write_offset and not self.quarantine.covers(
            physical_offset
        )

    def record_at(self, physical_offset: int, size: int = 0, *, hot: bool = False) -> Record | None:
        """Return the record at an offset, checked; None for a tombstone or an empty place. ``size``: 0 if unknown."""
        return self._decoded(self.bytes_of(physical_offset, size, hot=hot), physical_offset)

    def stored_ms(self, physical_offset: int, size: int, *, hot: bool = False) -> int | None:
        """Return the store time of the record at an offset in ms, or None. A tombstone has that of the record before
        it."""
        record = self._decoded(self._bytes_at(physical_offset, size, hot), physical_offset)
        return record.store_timestamp if record is not None else None

    def bytes_of(self, physical_offset: int, size: int = 0, *, hot: bool) -> bytearray | None:
        """Return the unchecked bytes of the record at an offset; None for a tombstone or an empty place."""
        if self.quarantine and self.quarantine.covers(physical_offset):
            return None
        return self._bytes_at(physical_offset, size, hot)

    def _decoded(self, blob: bytearray | None, physical_offset: int) -> Record | None:
        if blob is None:
            return None
        try:
            record = decode_record(blob)
            if self.checksummed.at(physical_offset)[0]:
                check_record_crc(blob)
        except CorruptRecord:
            return None
        return record if record.physical_offset == physical_offset else None

    def _bytes_at(self, physical_offset: int, size: int, hot: bool) -> bytearray | None:
        commitlog = self._commitlog
        file = commitlog.queue.find(physical_offset)
        end = min(file.end_offset, commitlog.write_offset) if file is not None else 0
        if physical_offset < 0 or physical_offset + max(size, RECORD_BYTES_MIN) > end:
            return None
        if size <= 0:
            head = bytearray(RECORD_BYTES_MIN)
            commitlog.queue.read(physical_offset, memoryview(head), hot=hot)
            size = RECORD.unpack(head).total_size
            if size < RECORD_BYTES_MIN or physical_offset + size > end:
                return None
        blob = bytearray(size)
        commitlog.queue.read(physical_offset, memoryview(blob), hot=hot)
        return blob

    def records(self, chosen: np.ndarray, *, hot: bool) -> bytearray:
        """Return the unchecked bytes of records, one after the other.

        ``chosen``: a row of (physical offset, size, anything) for each; all must be in the log.
        """
        count = len(chosen) // kernel.CHOSEN_ROW
        body = bytearray(int(chosen[kernel.C_SIZE :: kernel.CHOSEN_ROW].sum()))
        self.copy(chosen, count, body, 0, hot=hot)
        return body

    def copy(self, chosen: np.ndarray, count: int, body: bytearray, at: int, *, hot: bool) -> None:
        """Copy the first ``count`` records of ``chosen`` to ``body``, from ``at`` on."""
        out = np.frombuffer(body, np.uint8)
        view = memoryview(body)
        log_files = self._commitlog.queue
        reads = np.empty(count * kernel.READ_ROW, np.int64)
        read_count = kernel.plan_reads(
            chosen, count, log_files.file_bytes, GAP_BYTES_MAX, SPARSE_MAX, SPAN_BYTES_MAX, reads
        )
        for begin, length, first, records in (
            reads[: read_count * kernel.READ_ROW].reshape(-1, kernel.READ_ROW).tolist()
        ):
            wanted = int(chosen[first * 3 + 1 : (first + records) * 3 : 3].sum()) if records > 1 else length
            if wanted == length:
                log_files.read(begin, view[at : at + length], hot=hot)
                at += length
                continue
            span = bytearray(length)
            log_files.read(begin, memoryview(span), hot=hot)
            at = kernel.gather(np.frombuffer(span, np.uint8), begin, chosen, first, records, out, at)
