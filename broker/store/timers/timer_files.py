"""The index of timed messages on disk, in ``flintmq/timers``: a file of rows for each hour, and ``cursor.json``.

Rows are appended in the order of the timer queue. ``cursor.json`` is written last, and holds how many rows of each file
are valid: the next start cuts off rows that a crash left after them, and indexes their messages again. The whole index
can be rebuilt from the queue.
"""

from __future__ import annotations

import logging
import re
import struct
import time
import zlib
from collections import deque
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from ..errors import CorruptFile, StoreError
from ..files.file_system import make_durable_folder, remove_content, replace_file
from ..files.json_table import ConfigFile
from .timer_log import TIMER_LOG_UNITS, remove_timer_log, timer_log_file_bytes, write_timer_log
from .timer_state import HOUR_SECONDS, ROWS, Indexed, TimerHour, TimerState, by_hour

if TYPE_CHECKING:
    from ..files.file_system import Files
    from ..queue.consume_queue import ConsumeQueue
    from .timer_state import Event

log = logging.getLogger(__name__)

FILES_A_ROUND = 64
ROUND_S_MAX = 60.0
"""Maximum wait of events that concern more than ``FILES_A_ROUND`` files for others, because each file costs a sync."""
REBUILD_SLACK_S = 60
"""After a rebuild of the index, messages that were due up to this long before delivery stopped are delivered again: the
queue does not tell whether messages that arrived late were delivered."""

CHECK_CHUNK_BYTES = 1 << 20

STORED_ROWS = ROWS.newbyteorder(">")

TIMERCHECK = struct.Struct(">qqqq")
"""RocketMQ's ``config/timercheck``: the time that delivery reached, ms; a position in RocketMQ's own files; twice the
queue offset to continue from."""
TIMERCHECK_BYTES = 4096

_NAME = re.compile(r"\d{12}\Z")


class TimerFiles:
    """The files. The event loop adds events; ``sync`` belongs to one thread."""

    def __init__(self, files: Files, folder: Path, store_path: Path) -> None:
        self.state: TimerState | None = None
        """State on disk; None before ``open``. Changed under ``lock``."""
        self.lock = Lock()
        self.folder = folder
        self._files = files
        self._store_path = store_path
        self._cursor = ConfigFile(files, folder / "cursor.json")
        self._waiting: deque[tuple[int, Event]] = deque()
        self._synced_at = 0.0
        self._dirty = False

    def open(self, first_offset: int, max_offset: int, now_second: int) -> TimerState:
        """Read the index, cut off rows that are not valid, and return a copy of the state. Blocks.

        Rebuilds the index if it is damaged, or if RocketMQ has used the store meanwhile. ``first_offset``,
        ``max_offset``: both ends of the timer queue. Raises OSError.
        """
        make_durable_folder(self._files, self.folder)
        try:
            state = self.read()
            problem = self._cut(state) if state is not None else ""
        except CorruptFile as error:
            state, problem = None, str(error)
        if state is None or problem or not first_offset <= max(state.indexed, first_offset) <= max_offset:
            if problem or state is not None:
                log.warning("the index of timed messages in %s is rebuilt from their queue: %s", self.folder, problem)
            state = self._begin_again(state, first_offset, max_offset, now_second)
        elif (taken := self._rocketmq_was_further(state, max_offset)) is not None:
            log.info("a RocketMQ delivered timed messages meanwhile: the index is rebuilt from their queue")
            remove_content(self._files, self.folder)
            self._dirty = True
            state = TimerState(first_offset, taken.second, 0, taken.skip_until, taken.second)
        state.indexed = max(state.indexed, first_offset)
        if state.shift and not state.records and state.indexed == max_offset:
            remove_content(self._files, self.folder)
            self._dirty = True
            state = TimerState(max_offset, now_second)
        self.state = state
        return TimerState.from_json(state.to_json())

    def read(self) -> TimerState | None:
        """Return the state on disk, or None; changes nothing. Raises ``CorruptFile``."""
        return self._cursor.load(lambda table: TimerState.from_json(table) if table else None)

    def _cut(self, state: TimerState) -> str:
        """Cut each hour's file to its valid rows; return what is wrong with a damaged file, or an empty string."""
        for path in sorted(path for path in self.folder.iterdir() if _NAME.match(path.name)):
            hour = state.hours.get(int(path.name) // HOUR_SECONDS)
            if hour is None or not hour.rows:
                self._files.unlink(path)
        for number, hour in state.hours.items():
            if not hour.rows:
                continue
            path = self._path(number)
            size = path.stat().st_size if path.exists() else 0
            if size < hour.rows * ROWS.itemsize:
                return f"{path} has {size} bytes, not the {hour.rows * ROWS.itemsize} that were written"
            wanted = hour.rows * ROWS.itemsize
            if size > wanted:
                fd = self._files.open(path)
                try:
                    self._files.resize(fd, wanted)
                finally:
                    self._files.close(fd)
            if self._checksum_of(path, wanted) != hour.checksum:
                return f"{path} has other rows than were written: its checksum is wrong"
        return ""

    def _checksum_of(self, path: Path, size: int) -> int:
        """Return the CRC32 of the file's first ``size`` bytes. Blocks."""
        checksum = 0
        fd = self._files.open(path)
        try:
            for at in range(0, size, CHECK_CHUNK_BYTES):
                chunk = bytearray(min(CHECK_CHUNK_BYTES, size - at))
                self._files.read(fd, memoryview(chunk), at, wait=True)
                checksum = zlib.crc32(chunk, checksum)
        finally:
            self._files.close(fd)
        return checksum

    def _begin_again(
        self, before: TimerState | None, first_offset: int, max_offset: int, now_second: int
    ) -> TimerState:
        remove_content(self._files, self.folder)
        self._dirty = True
        if max_offset == first_offset:
            return TimerState(first_offset, now_second)
        log.info("timed messages %d to %d of the queue are indexed", first_offset, max_offset - 1)
        if before is not None:
            delivered = before.second - before.shift - REBUILD_SLACK_S
            return TimerState(first_offset, delivered, 0, min(before.indexed, max_offset), delivered)
        second, queue_offset = self._rocketmq_delivered()
        return TimerState(first_offset, second, 0, min(queue_offset, max_offset), second)

    def _rocketmq_was_further(self, state: TimerState, max_offset: int) -> TimerState | None:
        """Return what RocketMQ delivered after FlintMQ had the store, or None.

        RocketMQ delivered the messages below ``skip_until`` that were due before ``second``.
        """
        second, queue_offset = self._rocketmq_delivered()
        if second <= state.second - state.shift:
            return None
        return TimerState(second=second, skip_until=min(queue_offset, max_offset))

    def _rocketmq_delivered(self) -> tuple[int, int]:
        """Return (second, queue offset): RocketMQ delivered the messages below the offset that were due before the
        second.

        Both are 0 if RocketMQ left no record of it.
        """
        try:
            blob = (self._store_path / "config" / "timercheck").read_bytes()
        except FileNotFoundError:
            return 0, 0
        if len(blob) < TIMERCHECK.size:
            return 0, 0
        time_ms, _, *queue_offsets = TIMERCHECK.unpack_from(blob)
        # RocketMQ's time is that of a slot, which is one second before its messages are due.
        return time_ms // 1000 + 1, min(queue_offsets)

    def add(self, end_offset: int, event: Event) -> None:
        """Add an event; it goes to disk once the log below ``end_offset`` is flushed."""
        with self.lock:
            self._waiting.append((end_offset, event))

    def rows(self, number: int) -> np.ndarray:
        """Return all rows of an hour, including delivered ones, in the order of the queue. Blocks."""
        with self.lock:
            assert self.state is not None
            hour = self.state.hours.get(number)
            count, checksum = (hour.rows, hour.checksum) if hour is not None else (0, 0)
            fresh = [
                rows[rows["due_second"] // HOUR_SECONDS == number]
                for rows in (event.rows for _, event in self._waiting if isinstance(event, Indexed))
            ]
        blob = bytearray(count * ROWS.itemsize)
        if count:
            fd = self._files.open(self._path(number))
            try:
                read = self._files.read(fd, memoryview(blob), 0, wait=True)
            finally:
                self._files.close(fd)
            if read < len(blob) or zlib.crc32(blob) != checksum:
                wrong = f"has {read} bytes of {len(blob)}" if read < len(blob) else "has a wrong checksum"
                raise CorruptFile(
                    f"{self._path(number)} {wrong}. Start the broker again: it rebuilds the index of timed "
                    "messages from the log"
                )
        return np.concatenate([np.frombuffer(blob, STORED_ROWS).astype(ROWS), *fresh])

    def sync(self, flushed_offset: int, *, last: bool = False) -> None:
        """Put the events on disk whose records are flushed. ``last``: do so however many files it takes.

        Raises OSError; the caller may then call it again. Blocks.
        """
        if self.state is None:
            return
        with self.lock:
            events = []
            for end_offset, event in self._waiting:
                if end_offset > flushed_offset:
                    break
                events.append(event)
        parts: dict[int, list[np.ndarray]] = {}
        for event in events:
            for number, rows in by_hour(event.rows) if isinstance(event, Indexed) else ():
                parts.setdefault(number, []).append(rows)
        now = time.monotonic()
        if len(parts) > FILES_A_ROUND and now - self._synced_at < ROUND_S_MAX and not last:
            return
        written = {number: self._append(number, np.concatenate(rows)) for number, rows in sorted(parts.items())}
        if parts:
            self._files.sync_folder(self.folder)
        with self.lock:
            # Only this method removes events, so the first ones are still those that were written.
            for _ in events:
                self._waiting.popleft()[1].apply(self.state)
            for number, (length, checksum) in written.items():
                if number in self.state.hours:
                    self.state.hours[number].rows = length
                    self.state.hours[number].checksum = checksum
        if events or self._dirty:
            self._synced_at = now
            self._dirty = True
            self._cursor.save(self.state.to_json())
            self._dirty = False
            # After the cursor: a file may go only when no cursor on disk counts its rows.
            self._remove_past()

    def _append(self, number: int, rows: np.ndarray) -> tuple[int, int]:
        """Write rows after the valid ones, durably; return the number of all rows and their checksum."""
        assert self.state is not None
        hour = self.state.hours.get(number) or TimerHour()
        blob = rows.astype(STORED_ROWS).tobytes()
        fd = self._files.open(self._path(number), create=True)
        try:
            # After the valid rows, and over those that a failed sync may have left there.
            self._files.write(fd, blob, hour.rows * ROWS.itemsize)
            self._files.sync_data(fd)
        finally:
            self._files.close(fd)
        return hour.rows + len(rows), zlib.crc32(blob, hour.checksum)

    def _remove_past(self) -> None:
        assert self.state is not None
        for path in self.folder.iterdir():
            if _NAME.match(path.name) and int(path.name) // HOUR_SECONDS not in self.state.hours:
                self._files.unlink(path)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number * HOUR_SECONDS:012d}"

    def first_pending(self) -> tuple[int, int] | None:
        """Return a lower bound of (queue offset, physical offset) of the waiting indexed messages, by the state on
        disk.

        Returns None if no message waits. Any thread may call it.
        """
        with self.lock:
            hours = [hour for hour in self.state.hours.values() if hour.count > 0] if self.state is not None else []
        if not hours:
            return None
        return min(hour.first_queue_offset for hour in hours), min(hour.first_physical_offset for hour in hours)

    def oldest_offset(self, queue: ConsumeQueue) -> int | None:
        """Return the physical offset of the oldest waiting message of the timer queue, or None if none waits.

        A message waits until its delivery or its rolling is on disk. After ``open``; any thread; reads from disk.
        """
        assert self.state is not None
        first = self.first_pending()
        offsets = [first[1]] if first is not None else []
        if self.state.indexed < queue.max_offset:
            offsets.append(queue.unit(self.state.indexed, hot=False)[0])
        return min(offsets, default=None)

    def tell_rocketmq(self, queue: ConsumeQueue | None) -> None:
        """Tell RocketMQ where to continue, so that it delivers waiting messages once. For a clean stop, after ``sync``.

        If every message from some queue offset on waits, RocketMQ continues there. Otherwise it gets a ``timerlog`` of
        the waiting messages. If that does not fit into one file, or if the clock was set back, RocketMQ continues from
        the first waiting message, and repeats messages after it that were already delivered. Blocks; raises OSError.
        """
        state = self.state
        check = self._store_path / "config" / "timercheck"
        if state is None or queue is None or not (state.indexed or check.exists()):
            return
        read_ms = (state.second - state.shift - 1) * 1000
        first = self.first_pending()
        queue_offset = min(first[0], state.indexed) if first is not None else state.indexed
        file_bytes = timer_log_file_bytes(self._store_path)
        # The cautious offset first: if anything below fails, RocketMQ repeats messages, but loses none.
        remove_timer_log(self._files, self._store_path)
        self._write_timercheck(check, read_ms, queue_offset)
        if state.shift or state.indexed <= queue.start_offset or state.records * TIMER_LOG_UNITS.itemsize > file_bytes:
            return
        try:
            rows = self._waiting_rows()
            physical_offset, size, _ = queue.unit(state.indexed - 1, hot=False)
        except StoreError as error:
            log.warning("a RocketMQ that opens %s next may repeat timed messages: %s", self._store_path, error)
            return
        if not len(rows) or state.indexed - int(rows["queue_offset"][0]) == len(rows):
            queue_offset = int(rows["queue_offset"][0]) if len(rows) else state.indexed
        elif write_timer_log(
            self._files, self._store_path, rows, (physical_offset, size), read_ms=read_ms, file_bytes=file_bytes
        ):
            queue_offset = state.indexed
        self._write_timercheck(check, read_ms, queue_offset)

    def _write_timercheck(self, path: Path, read_ms: int, queue_offset: int) -> None:
        blob = TIMERCHECK.pack(read_ms, 0, queue_offset, queue_offset)
        make_durable_folder(self._files, path.parent)
        replace_file(self._files, path, blob.ljust(TIMERCHECK_BYTES, b"\0"))

    def _waiting_rows(self) -> np.ndarray:
        """Return the rows of all waiting messages, by the state on disk, in the order of their queue. Blocks."""
        state = self.state
        assert state is not None
        found = [np.empty(0, ROWS)]
        for number, hour in state.hours.items():
            rows = self.rows(number)
            if number == state.hour:
                present = np.flatnonzero(rows["due_second"] == state.second)
                rows = rows[
                    np.concatenate([present[state.position :], np.flatnonzero(rows["due_second"] > state.second)])
                ]
            found.append(rows[rows["physical_offset"] >= hour.rolled_below])
        waiting = np.concatenate(found)
        return waiting[np.argsort(waiting["queue_offset"], kind="stable")]
