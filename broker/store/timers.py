"""The timer files, RocketMQ's and FlintMQ's: which timed messages are due, and how far they have been delivered."""

from __future__ import annotations

import logging
import re
import struct
import time
import zlib
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...protocol.store_files import file_name
from .errors import CorruptFile, StoreError
from .files.file_system import make_durable_folder, remove_content, replace_file
from .files.json_table import ConfigFile

if TYPE_CHECKING:
    from .files.file_system import Files
    from .queues import ConsumeQueue


# ---- RocketMQ's ``timerlog``: the waiting timed messages, written on a clean stop for a RocketMQ that opens
# the store next.
#
# FlintMQ writes no ``timerwheel``: RocketMQ rebuilds it from the units of the log. Units of messages that are
# due in more than two days are marked, because RocketMQ defers those again.

FILE_BYTES = 100 * 1024 * 1024
"""RocketMQ's default file size, used if the store has no timerlog files yet."""
ROLL_MS = 2 * 86_400_000
PAST_MS = 3_600_000

TIMER_LOG_UNITS = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("written_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("physical_offset", ">i8"),
        ("message_bytes", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
_ENDING_BYTES = 16
_DEFAULT, _ROLL, _DELETE = 1, 2, 4


def timer_log_file_bytes(store_path: Path) -> int:
    """Return the size that a timerlog file of this store must have."""
    folder = store_path / "timerlog"
    sizes = [path.stat().st_size for path in folder.iterdir()] if folder.is_dir() else []
    return max(sizes, default=FILE_BYTES)


def remove_timer_log(files: Files, store_path: Path) -> None:
    """Remove wheel and log, so that RocketMQ uses only its ``timercheck`` and recreates both. Raises OSError."""
    if (store_path / "timerwheel").exists():
        files.unlink(store_path / "timerwheel")
    if (store_path / "timerlog").is_dir():
        remove_content(files, store_path / "timerlog")
    files.sync_folder(store_path)


def write_timer_log(
    files: Files, store_path: Path, rows: np.ndarray, newest: tuple[int, int], *, read_ms: int, file_bytes: int
) -> bool:
    """Write a timerlog of one file; return False, writing nothing, if the units do not fit. Raises OSError.

    It has a unit for each of ``rows`` (``ROWS``), in the order of their queue, and a last one for the
    queue's newest message, from which RocketMQ knows how far its log reaches. ``newest``: physical offset and size of
    that message. ``read_ms``: time up to which RocketMQ shall believe it has read. The caller has removed the old log.
    """
    if (len(rows) + 1) * TIMER_LOG_UNITS.itemsize > file_bytes - _ENDING_BYTES:
        return False
    units = np.zeros(len(rows) + 1, TIMER_LOG_UNITS)
    units["size"] = TIMER_LOG_UNITS.itemsize
    units["written_ms"] = read_ms
    slots_ms = np.maximum((rows["due_second"] - 1) * 1000, read_ms)
    rolled = slots_ms - read_ms >= ROLL_MS
    slots_ms = np.where(rolled, read_ms + ROLL_MS, slots_ms)
    units["magic"] = _DEFAULT
    units["magic"][:-1] |= np.where(rolled, _ROLL, 0) | np.where(rows["size"] < 0, _DELETE, 0)
    units["delay_ms"][:-1] = slots_ms - read_ms
    units["physical_offset"][:-1] = rows["physical_offset"]
    units["message_bytes"][:-1] = np.abs(rows["size"])
    units["previous"] = -1
    order = np.argsort(slots_ms, kind="stable")
    follows = np.flatnonzero(slots_ms[order][1:] == slots_ms[order][:-1]) + 1
    units["previous"][order[follows]] = order[follows - 1] * TIMER_LOG_UNITS.itemsize
    units["delay_ms"][-1] = -PAST_MS  # in a slot that RocketMQ has already read
    units["physical_offset"][-1], units["message_bytes"][-1] = newest
    folder = store_path / "timerlog"
    make_durable_folder(files, folder)
    with files.opened(folder / file_name(0), create=True) as fd:
        files.write(fd, units.tobytes(), 0)
        files.resize(fd, file_bytes)
        files.sync_data(fd)
    files.sync_folder(folder)
    return True


# ---- State of the timed messages: how far they are indexed and delivered, and how many wait, by hour and by
# topic.
#
# Only events change the state, in their order. There are two copies: the present state, and the state on
# disk, to which an event is applied once its records are flushed. So the state on disk is always one that
# really existed.

HOUR_SECONDS = 3600

ROWS = np.dtype([("due_second", "i8"), ("queue_offset", "i8"), ("physical_offset", "i8"), ("size", "i4")])
"""A timed message in the index: its due time in seconds since 1970 UTC, its queue offset, and its record.

The size of a recall is negative: what delivers a second must read its recalls before its messages.
"""


def count_recalls(rows: np.ndarray) -> int:
    """Return how many of the rows are recalls."""
    return int(np.count_nonzero(rows["size"] < 0))


@dataclass(slots=True)
class TimerHour:
    """Messages that are due within one hour.

    ``count``: number of waiting records, ``recalls`` of which are recalls and not messages; ``first_due_second``,
    ``first_queue_offset`` and ``first_physical_offset``: lower bounds of theirs; ``rolled_below``: records below this
    physical offset have been appended again and do not count; ``rows``: number of rows in the hour's file;
    ``checksum``: their CRC32.
    """

    count: int = 0
    first_due_second: int = 0
    first_queue_offset: int = 0
    first_physical_offset: int = 0
    rolled_below: int = 0
    rows: int = 0
    checksum: int = 0
    recalls: int = 0

    @property
    def messages(self) -> int:
        """Number of waiting messages. A recalled one counts until its second comes."""
        return self.count - self.recalls


@dataclass(slots=True)
class TimerState:
    """How far indexing and delivery are.

    ``indexed``: queue offset below which all messages of the timer queue are indexed. All messages due before
    ``second`` are delivered, and the first ``position`` of those due in it.

    ``shift``: whole hours, in seconds, by which delivery is ahead of the clock: delivery never goes back, even if the
    clock is set back. Seconds and hours here and in the rows are the clock's plus the shift. A row that was made under
    a smaller shift comes up too early, and is then moved to its right place.

    ``skip_until``, ``skip_before``: queue messages below ``skip_until`` that were due, by the clock, before
    ``skip_before`` were delivered by the previous owner of the store.
    """

    indexed: int = 0
    second: int = 0
    position: int = 0
    skip_until: int = 0
    skip_before: int = 0
    shift: int = 0
    hours: dict[int, TimerHour] = field(default_factory=dict)
    topics: Counter[str] = field(default_factory=Counter)

    @property
    def hour(self) -> int:
        """Hour that delivery has reached."""
        return self.second // HOUR_SECONDS

    @property
    def pending(self) -> int:
        """Number of waiting messages."""
        return sum(hour.messages for hour in list(self.hours.values()))

    @property
    def records(self) -> int:
        """Number of waiting messages and recalls."""
        return sum(hour.count for hour in list(self.hours.values()))

    def move_to(self, second: int, position: int) -> None:
        """Move delivery to ``second`` and ``position``, and forget the hours before."""
        self.second, self.position = second, position
        for hour in [hour for hour in self.hours if hour < self.hour]:
            del self.hours[hour]

    def to_json(self) -> dict[str, Any]:
        """Return the form that ``from_json`` reads."""
        return {
            "indexed": self.indexed,
            "second": self.second,
            "position": self.position,
            "skipUntil": self.skip_until,
            "skipBefore": self.skip_before,
            "shift": self.shift,
            "hours": {str(number): list(asdict(hour).values()) for number, hour in sorted(self.hours.items())},
            "topics": dict(self.topics),
        }

    @classmethod
    def from_json(cls, table: dict[str, Any]) -> TimerState:
        """Return the state in a JSON table. Raises one of ``SHAPE_ERRORS`` if it cannot be read."""
        return cls(
            int(table["indexed"]),
            int(table["second"]),
            int(table["position"]),
            int(table["skipUntil"]),
            int(table["skipBefore"]),
            int(table.get("shift", 0)),
            {int(number): TimerHour(*map(int, values)) for number, values in table["hours"].items()},
            Counter({str(topic): int(count) for topic, count in table["topics"].items()}),
        )


def add_counts(counts: Counter[str], change: Counter[str]) -> None:
    """Add ``change`` to ``counts``, and drop topics without a message."""
    for topic, count in change.items():
        left = counts[topic] + count
        if left > 0:
            counts[topic] = left
        else:
            del counts[topic]


def by_hour(rows: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return the rows of each hour, in their order."""
    if not len(rows):  # all examined records are lost to damage, or none is a timed message
        return []
    hours = rows["due_second"] // HOUR_SECONDS
    if (hours == hours[0]).all():
        return [(int(hours[0]), rows)]
    order = np.argsort(hours, kind="stable")
    hours, rows = hours[order], rows[order]
    starts = np.flatnonzero(np.diff(hours, prepend=-1))
    ends = [*starts[1:].tolist(), len(rows)]
    return [(int(hours[start]), rows[start:end]) for start, end in zip(starts.tolist(), ends, strict=True)]


@dataclass(slots=True)
class Indexed:
    """Event: messages below ``indexed`` were read, and ``rows`` of them wait for delivery."""

    indexed: int
    rows: np.ndarray
    topics: Counter[str]

    def apply(self, state: TimerState) -> None:
        """Make it part of the state."""
        state.indexed = self.indexed
        add_counts(state.topics, self.topics)
        for number, rows in by_hour(self.rows):
            hour = state.hours.setdefault(number, TimerHour())
            first_due = int(rows["due_second"].min())
            first_queue_offset = int(rows["queue_offset"].min())
            first_physical_offset = int(rows["physical_offset"].min())
            if hour.count:
                hour.first_due_second = min(hour.first_due_second, first_due)
                hour.first_queue_offset = min(hour.first_queue_offset, first_queue_offset)
                hour.first_physical_offset = min(hour.first_physical_offset, first_physical_offset)
            else:
                hour.first_due_second = first_due
                hour.first_queue_offset = first_queue_offset
                hour.first_physical_offset = first_physical_offset
            hour.count += len(rows)
            hour.recalls += count_recalls(rows)


@dataclass(slots=True)
class Reached:
    """Event: delivery advanced to ``second`` and ``position``, past ``count`` records of ``hour``."""

    second: int
    position: int
    hour: int
    count: int
    recalls: int
    topics: Counter[str]

    def apply(self, state: TimerState) -> None:
        """Make it part of the state."""
        add_counts(state.topics, self.topics)
        if self.hour in state.hours:
            state.hours[self.hour].count -= self.count
            state.hours[self.hour].recalls -= self.recalls
        state.move_to(self.second, self.position)


@dataclass(slots=True)
class Rolled:
    """Event: all ``count`` records of ``hour`` that waited below the physical offset ``below`` were appended again."""

    hour: int
    below: int
    count: int
    recalls: int
    topics: Counter[str]

    def apply(self, state: TimerState) -> None:
        """Make it part of the state."""
        add_counts(state.topics, self.topics)
        hour = state.hours[self.hour]
        hour.count -= self.count
        hour.recalls -= self.recalls
        hour.rolled_below = hour.first_physical_offset = self.below


@dataclass(slots=True)
class Shifted:
    """Event: the clock was set back, and delivery is now ``shift`` seconds ahead of it."""

    shift: int

    def apply(self, state: TimerState) -> None:
        """Make it part of the state."""
        state.shift = self.shift


Event: TypeAlias = Indexed | Reached | Rolled | Shifted


# ---- The index of timed messages on disk, in ``flintmq/timers``: a file of rows for each hour, and
# ``cursor.json``.
#
# Rows are appended in the order of the timer queue. ``cursor.json`` is written last, and holds how many rows
# of each file are valid: the next start cuts off rows that a crash left after them, and indexes their
# messages again. The whole index can be rebuilt from the queue.

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
                with self._files.opened(path) as fd:
                    self._files.resize(fd, wanted)
            if self._checksum_of(path, wanted) != hour.checksum:
                return f"{path} has other rows than were written: its checksum is wrong"
        return ""

    def _checksum_of(self, path: Path, size: int) -> int:
        """Return the CRC32 of the file's first ``size`` bytes. Blocks."""
        checksum = 0
        with self._files.opened(path) as fd:
            for at in range(0, size, CHECK_CHUNK_BYTES):
                chunk = bytearray(min(CHECK_CHUNK_BYTES, size - at))
                self._files.read(fd, memoryview(chunk), at, wait=True)
                checksum = zlib.crc32(chunk, checksum)
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
            with self._files.opened(self._path(number)) as fd:
                read = self._files.read(fd, memoryview(blob), 0, wait=True)
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
        with self._files.opened(self._path(number), create=True) as fd:
            # After the valid rows, and over those that a failed sync may have left there.
            self._files.write(fd, blob, hour.rows * ROWS.itemsize)
            self._files.sync_data(fd)
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
