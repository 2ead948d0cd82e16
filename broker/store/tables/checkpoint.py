"""The checkpoint file: RocketMQ's five timestamps, followed by FlintMQ's mark.

RocketMQ starts its recovery a little before the timestamps; FlintMQ recovers from the offsets in its mark. The mark's
checksum covers RocketMQ's part too, so the mark becomes invalid as soon as RocketMQ writes the file.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ....protocol.storage.layout import CHECKPOINT, CHECKPOINT_FILE_BYTES, CheckpointTimes
from ....protocol.store_files import checkpoint_mark, encode_checkpoint
from ..files.file_system import is_plain_file

if TYPE_CHECKING:
    from ..files.file_system import Files

log = logging.getLogger(__name__)

FUTURE_MS_MAX = 24 * 3600 * 1000
"""Maximum time in the future of the file's timestamps, because clocks differ."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Offsets into the CommitLog: the log is on disk below ``flushed_offset``, queues and index are on disk for the
    records below ``dispatched_offset``."""

    flushed_offset: int
    dispatched_offset: int

    def log_begins_at_most(self, recorded_start: int) -> int:
        """Return the physical offset at which the log must have begun, or below. ``recorded_start``: the start that
        FlintMQ recorded last, -1 if none; the mark may be older than it."""
        return self.flushed_offset if recorded_start < 0 else min(recorded_start, self.flushed_offset)

    def missing_ends(self, begin: int, end: int, recorded_start: int, file_bytes: int) -> list[tuple[int, str]]:
        """Return (start of a missing file, what shows it) where a log of ``[begin, end)`` ends before what was flushed,
        or begins after where it must."""
        missing = []
        if self.flushed_offset > end:
            missing.append((end, f"the log ends at {end:,}, but {self.flushed_offset:,} bytes were flushed"))
        expected = self.log_begins_at_most(recorded_start)
        if begin > expected:
            missing.append((expected - expected % file_bytes, f"the log now begins at {begin:,}"))
        return missing


class StoreCheckpoint:
    """The file. The flush thread may call ``flushed`` while another thread calls ``dispatched``."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self.path = path
        self._lock = threading.Lock()
        self._fd = -1
        self._flushed_offset = 0
        self._dispatched_offset = 0
        self._master_flushed_offset = 0
        self._confirm_offset = 0
        self.physic_msg_timestamp = 0
        self.logics_msg_timestamp = 0
        self.index_msg_timestamp = 0
        self.mark: Mark | None = None
        """Mark of the previous FlintMQ process; None if RocketMQ wrote the file last, or it is missing or damaged."""

    def load(self) -> None:
        """Read the file if it exists; changes nothing."""
        if not is_plain_file(self.path):
            return
        blob = bytearray(CHECKPOINT_FILE_BYTES)
        with self._files.opened(self.path) as fd:
            self._files.read(fd, memoryview(blob), 0, wait=True)
        fields = CHECKPOINT.unpack(blob)
        mark = checkpoint_mark(blob)
        if mark is not None:
            self.mark = Mark(mark.flushed_offset, mark.dispatched_offset)
            self._flushed_offset, self._dispatched_offset = self.mark.flushed_offset, self.mark.dispatched_offset
        elif not all(0 <= value <= time.time() * 1000 + FUTURE_MS_MAX for value in fields[:3]):
            return  # not times: damage, which must not be taken for "all was flushed"
        (
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self._master_flushed_offset,
            self._confirm_offset,
        ) = fields

    @property
    def dispatched_offset(self) -> int:
        """Physical offset below which queues and index are on disk."""
        return self._dispatched_offset

    def warn_of_lost_mark(self) -> None:
        """Log a warning: a store that FlintMQ used before has no valid mark."""
        log.warning(
            "%s: FlintMQ's mark is missing or invalid: the file is damaged or lost, or RocketMQ used the store last. "
            "The start relies on what log and queues prove",
            self.path,
        )

    def create(self) -> None:
        """Open the file for writing, creating it if needed. The caller must sync the folder."""
        self._fd = self._files.open(self.path, create=True)
        if self._files.size(self._fd) != CHECKPOINT_FILE_BYTES:
            self._files.resize(self._fd, CHECKPOINT_FILE_BYTES)

    def lower(self, physical_offset: int) -> None:
        """Lower the mark to the end of a log that is about to be cut, and sync. Before ``create``."""
        if self.mark is None:
            return
        flushed, dispatched = self.mark.flushed_offset, self.mark.dispatched_offset
        self.mark = Mark(min(flushed, physical_offset), min(dispatched, physical_offset))
        self._confirm_offset = min(self._confirm_offset, physical_offset)
        self.write_alone(self.mark, self.physic_msg_timestamp, self.logics_msg_timestamp, self.index_msg_timestamp)

    def begin_at(self, physical_offset: int) -> None:
        """Write the mark of an empty log that begins at ``physical_offset``, and sync. Before ``create``."""
        self.mark = Mark(physical_offset, physical_offset)
        self._confirm_offset = 0
        self.write_alone(self.mark)

    def write_alone(self, mark: Mark, physic_ms: int = 0, logics_ms: int = 0, index_ms: int = 0) -> None:
        """Open the file, write these values as ``reset`` does, and close it. The caller must sync the folder."""
        self.create()
        try:
            self.reset(
                flushed_offset=mark.flushed_offset,
                dispatched_offset=mark.dispatched_offset,
                physic_ms=physic_ms,
                logics_ms=logics_ms,
                index_ms=index_ms,
            )
        finally:
            self.close()

    @property
    def confirmed_offset(self) -> int:
        """Physical offset below which all members in sync of a replica set had the log on disk; 0 without a set."""
        return self._confirm_offset

    def confirmed(self, physical_offset: int) -> None:
        """Note that the log is confirmed below ``physical_offset``; the next write of the file contains it."""
        with self._lock:
            self._confirm_offset = max(self._confirm_offset, physical_offset)

    def flushed(self, flushed_offset: int, store_ms: int) -> None:
        """Note that the CommitLog is on disk below ``flushed_offset``; ``store_ms``: store time of its last record."""
        with self._lock:
            self._flushed_offset = max(self._flushed_offset, flushed_offset)
            self.physic_msg_timestamp = max(self.physic_msg_timestamp, store_ms)
            # Not synced: after a power failure the file may say less than what is on disk, never more.
            self._write()

    def dispatched(self, flushed_offset: int, dispatched_offset: int, store_ms: int, index_ms: int) -> None:
        """Note that the CommitLog is on disk below ``flushed_offset``, and queues and index for all records below
        ``dispatched_offset``. Syncs the file.

        ``store_ms``: store time of the last of these records; ``index_ms``: end time of the newest full index file, 0
        if no file is full.
        """
        with self._lock:
            self._flushed_offset = max(self._flushed_offset, flushed_offset)
            self._dispatched_offset = dispatched_offset
            self.logics_msg_timestamp = max(self.logics_msg_timestamp, store_ms)
            self.index_msg_timestamp = max(self.index_msg_timestamp, index_ms)
            self._write()
        # Outside of the lock, so that the flush thread does not wait for this sync.
        self._files.sync_data(self._fd)

    def reset(
        self, *, flushed_offset: int, dispatched_offset: int, physic_ms: int, logics_ms: int, index_ms: int
    ) -> None:
        """Set exactly these values, even if they are lower than before, and sync. For recovery."""
        with self._lock:
            self._flushed_offset = flushed_offset
            self._dispatched_offset = dispatched_offset
            self.physic_msg_timestamp = physic_ms
            self.logics_msg_timestamp = logics_ms
            self.index_msg_timestamp = index_ms
            self._write()
        self._files.sync_data(self._fd)

    def _write(self) -> None:
        times = CheckpointTimes(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self._master_flushed_offset,
            self._confirm_offset,
        )
        blob = encode_checkpoint(times, self._flushed_offset, self._dispatched_offset)
        self._files.write(self._fd, blob, 0)

    def close(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1
