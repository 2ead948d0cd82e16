"""Derivation of units and index keys from the records of the log: reput writes them, a check of a store compares them
with its files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...protocol.commands.common import QUEUES_MAX
from ...protocol.names import is_folder_name
from ...protocol.storage.layout import RECORD, UNIT_BYTES, SysFlag
from ..kernels import dispatch as kernel

if TYPE_CHECKING:
    from .files.mapped_file import MappedFile
    from .queues import ConsumeQueue, ConsumeQueueTable
    from .tables.store_state import ChecksummedRanges

UNITS_MAX = 16_384
"""Maximum number of units of one kernel call."""
KEYS_MAX = 65_536
"""Keys of one kernel call. One record fits always: its 32,767 bytes of properties hold at most 16,384 keys."""
FLAWS_MAX = 4096


class Derivation:
    """The kernel's work space and the results of its last call. One per thread.

    ``mode``: that of the kernel; ``times``: how many times the usual units and keys one call may find.
    """

    def __init__(self, mode: int, times: int = 1) -> None:
        notes_flaws = mode != kernel.DISPATCH
        units_max, keys_max = times * UNITS_MAX, times * KEYS_MAX
        self._units = np.zeros(units_max * UNIT_BYTES, np.uint8)
        self._unit_runs = np.zeros(units_max, np.int64)
        self._grouped = np.zeros(units_max * UNIT_BYTES, np.uint8)
        self.grouped = memoryview(self._grouped.data)
        """The units of all runs."""
        self._runs = np.zeros(units_max * kernel.RUN_ROW, np.int64)
        self.keys = np.zeros(keys_max * kernel.KEY_ROW, np.int64)
        """Room for keys; ``counts[S_KEYS]`` tells how many there are."""
        self._optional_keys = np.zeros(keys_max * kernel.KEY_ROW * notes_flaws, np.int64)
        self._flaws = np.zeros(FLAWS_MAX * kernel.FLAW_ROW * notes_flaws, np.int64)
        self._scratch = np.zeros(kernel.PARTS + kernel.VALUES, np.int64)
        self._state = np.zeros(kernel.STATE, np.int64)
        self._state[kernel.S_MODE] = mode
        self.counts = memoryview(self._state.data)
        """The kernel's state, as Python integers: cheaper than NumPy scalars."""

    def call(
        self,
        array: np.ndarray,
        position: int,
        end: int,
        file_base: int,
        slots: np.ndarray,
        rows: np.ndarray,
        topics: np.ndarray,
    ) -> tuple[int, int]:
        """Call the kernel once, which writes no file; return (the reason why it stopped, the position).

        ``slots``, ``rows``, ``topics``: the queues, as in ``ConsumeQueueTable``.
        """
        return kernel.dispatch(
            array,
            position,
            end,
            file_base,
            slots,
            rows,
            topics,
            self._units,
            self._unit_runs,
            self._grouped,
            self._runs,
            self.keys,
            self._optional_keys,
            self._flaws,
            self._scratch,
            self._state,
        )

    def runs(self) -> list[int]:
        """Return the rows of the last call's runs in one list: row, queue offset, first unit in ``grouped``, units."""
        runs: list[int] = self._runs[: kernel.RUN_ROW * self.counts[kernel.S_RUNS]].tolist()
        return runs

    @property
    def record_bytes(self) -> int:
        """Size of the record at which the last call stopped, if its parts are sound."""
        return int(self._scratch[kernel.R_SIZE])

    def record_queue(self, array: np.ndarray, position: int) -> tuple[bytes, int, int]:
        """Return (topic, queue id, queue offset) of the record at which the last call stopped."""
        return message_at(array, position, self._scratch)


def message_at(array: np.ndarray, position: int, parts: np.ndarray) -> tuple[bytes, int, int]:
    """Return (topic, queue id, queue offset) of the record there. ``parts``: its parts, as a kernel has found them."""
    topic = array[parts[kernel.R_TOPIC_AT] : parts[kernel.R_TOPIC_END]].tobytes()
    head = RECORD.unpack(array.data, position)
    return topic, head.queue_id, head.queue_offset


class RecordAt:
    """The bytes of a log file at a physical offset. ``array``: the file's bytes, if they are not those of its map.

    ``status``: that of the kernel ``locate``; ``is_sound``: a record with its right body is there; ``has_parts``: it
    is the record of its message, although its body may be damaged. The other attributes need parts.
    """

    def __init__(self, file: MappedFile, physical_offset: int, array: np.ndarray | None = None) -> None:
        self._array = file.array() if array is None else array
        self._position = physical_offset - file.start_offset
        self._parts = np.zeros(kernel.PARTS, np.int64)
        self.status = kernel.locate(self._array, self._position, len(self._array), physical_offset, self._parts)
        self.is_sound = self.status == kernel.DONE
        self.has_parts = self.is_sound or self.status == kernel.BAD_CRC
        self.size = int(self._parts[kernel.R_SIZE])

    @property
    def store_ms(self) -> int:
        """Store time in ms."""
        return int(self._parts[kernel.R_STORE_MS])

    @property
    def transaction(self) -> int:
        """The bits of a transaction in its sys_flag."""
        return int(self._parts[kernel.R_SYS_FLAG]) & SysFlag.TRANSACTION_MASK

    @property
    def message(self) -> tuple[bytes, int, int]:
        """Topic, queue id and queue offset."""
        return message_at(self._array, self._position, self._parts)

    @property
    def blob(self) -> bytes:
        return self._array[self._position : self._position + self.size].tobytes()

    def is_blank(self, longest: int = 1 << 62) -> bool:
        """Return whether a blank of at most ``longest`` bytes is there instead, up to the end of the file."""
        left = len(self._array) - self._position
        return self.status == kernel.BLANK and ends_file(self._array, self._position) and left <= longest


class LogScan:
    """A check of records in the order of the log, bodies included, by the kernel ``scan``.

    ``checksummed``: where each record must have a checksum over the whole record.
    """

    def __init__(self, checksummed: ChecksummedRanges) -> None:
        self._checksummed = checksummed
        self._state = np.zeros(kernel.STATE, np.int64)
        self.counts = memoryview(self._state.data)
        """The kernel's state: the number of checked records, and the store time of the last one."""
        self.parts = np.zeros(kernel.PARTS, np.int64)
        """The parts of the last record."""

    def step(self, array: np.ndarray, begin: int, end: int, file_base: int) -> tuple[int, int]:
        """Check the records in physical offsets ``[begin, end)`` of a file; return (why it stopped, position in it).

        ``DONE`` is also returned before ``end``, where another rule for checksums begins.
        """
        self.counts[kernel.S_CHECKSUMMED], border = self._checksummed.at(begin)
        stop = min(end, border) - file_base
        return kernel.scan(array, begin - file_base, stop, file_base, self.parts, self._state)


def ends_file(array: np.ndarray, position: int) -> bool:
    """Return whether the blank at ``position`` covers the rest of its file, as every valid blank does."""
    return int.from_bytes(array[position : position + 4].tobytes(), "big") == len(array) - position


def may_be_queue(topic: bytes, queue_id: int) -> bool:
    """Return whether a queue of this topic and id can exist."""
    try:
        return is_folder_name(topic.decode()) and 0 <= queue_id < QUEUES_MAX
    except UnicodeDecodeError:
        return False


class Run(NamedTuple):
    """Units of one queue with consecutive queue offsets."""

    queue: ConsumeQueue
    queue_offset: int
    units: memoryview


class CheckDerivation(Derivation):
    """Derivation for a check: continues after wrong queue offsets, and adds unknown queues to the table in memory.

    ``mode``: ``DERIVE`` or ``EXAMINE``; ``adding``: lock of the table, if several threads add to it; ``times`` as in
    ``Derivation``.
    """

    def __init__(
        self, queues: ConsumeQueueTable, mode: int, adding: threading.Lock | None = None, *, times: int = 1
    ) -> None:
        super().__init__(mode, times)
        self._table = queues
        self._adding = adding or nullcontext()
        self.begin()

    def begin(self) -> None:
        """Forget what was seen of queues and times: each queue's next record is trusted."""
        self._rows = np.zeros((0, kernel.EXAMINED_ROW), np.int64)
        self.counts[kernel.S_LAST_STORE_MS] = 0
        self._know_queues()

    def _know_queues(self) -> None:
        """Copy the current table of queues: other threads may add to it, and reput needs its next offsets."""
        table = self._table
        with self._adding:
            self._slots, self._topics = table.slots.copy(), table.topics.copy()
            self.queues = list(table.rows)
            rows = np.zeros((len(table.kernel_rows), kernel.EXAMINED_ROW), np.int64)
            rows[:, : kernel.QUEUE_ROW] = table.kernel_rows
        # The value -1 means that this range has no record of the queue yet.
        for column in (kernel.Q_NEXT, kernel.Q_OTHER, kernel.Q_FIRST):
            rows[:, column] = -1
        # Rows keep their numbers, so what was seen of the queues stays where it is.
        rows[: len(self._rows)] = self._rows
        self._rows = rows

    def step(self, array: np.ndarray, position: int, end: int, file_base: int) -> tuple[int, int]:
        """Derive from the records of ``array[position:end]``; return (the reason of the stop, the position).

        Everything before the position is derived; it is beyond ``position`` unless the first record cannot be read.
        ``NEW_QUEUE``: the record there is of a queue that cannot exist. ``FULL``: continue there.
        """
        while True:
            status, at = self.call(array, position, end, file_base, self._slots, self._rows, self._topics)
            if status != kernel.NEW_QUEUE:
                return status, at
            topic, queue_id, _ = self.record_queue(array, at)
            if not may_be_queue(topic, queue_id):
                return status, at
            with self._adding:
                self._table.add(topic.decode(), queue_id)
            self._rows = self._rows[: len(self.queues)]
            self._know_queues()
            if at > position:
                return kernel.FULL, at

    def unit_runs(self) -> Iterator[Run]:
        """Yield the runs of the last step; their units are valid until the next one."""
        rows = self._runs[: kernel.RUN_ROW * self.counts[kernel.S_RUNS]].reshape(-1, kernel.RUN_ROW)
        for row, queue_offset, first, count in rows.tolist():
            yield Run(self.queues[row], queue_offset, self.grouped[first * UNIT_BYTES : (first + count) * UNIT_BYTES])

    def required_keys(self) -> np.ndarray:
        """Return the keys of the last step that the index must have, rows of the kernel's in one array."""
        return self.keys[: kernel.KEY_ROW * self.counts[kernel.S_KEYS]]

    def optional_keys(self) -> np.ndarray:
        """Return the keys of the last step that the index may have: those of deleted topics."""
        return self._optional_keys[: kernel.KEY_ROW * self.counts[kernel.S_OPTIONAL_KEYS]]

    def flaws(self) -> list[tuple[int, int, int]]:
        """Return (kind, position of the record, detail) of each flaw of the last step."""
        flaws = self._flaws[: kernel.FLAW_ROW * self.counts[kernel.S_FLAWS]]
        return [(kind, at, detail) for kind, at, detail in flaws.reshape(-1, kernel.FLAW_ROW).tolist()]

    def seen(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (row, columns) of each queue that had a record since ``begin``."""
        rows = self._rows[: len(self.queues)]
        for row in np.flatnonzero(rows[:, kernel.Q_RECORDS]).tolist():
            yield row, rows[row]
