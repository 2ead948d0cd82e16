"""Record copies: messages that wait in a topic of the broker become messages of their target topic.

This takes two steps. ``read`` copies records out of the log and finds their targets; any thread may call it, since it
may wait for the disk. ``deliver`` appends the new records to the log; it belongs to the appending thread. Neither step
creates a Python object for a message: a thousand messages cost two kernel calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.storage.layout import BLANK_BYTES_MIN, RECORD_BYTES_MIN
from ....protocol.storage.record import RECORD_CRC_BYTES
from ...kernels import deliver as kernel
from ...kernels.dispatch import PARTS
from ...kernels.gather import C_PHYSICAL_OFFSET, C_SIZE, CHOSEN_ROW

if TYPE_CHECKING:
    from ..log.commitlog import CommitLog
    from .queue_reads import LogReads

TOPIC_BYTES_AT_MOST = 255
"""The length of a topic is one byte of the record."""
_LONGER_AT_MOST = 2 * 12 + 1 + TOPIC_BYTES_AT_MOST + 1 + RECORD_CRC_BYTES
"""Maximum growth of a record by its copy: hosts, topic, and a checksum after the properties."""

Place = tuple[str, int]
"""A topic and a queue of it."""


class WaitingRecords:
    """Records that were read in order to be delivered, grouped by target.

    ``targets``: topic and queue of each group; the first group (None) has the records that name no target. ``counts``:
    number of records of each group. ``unsound``: number of records that are not the expected ones. ``checksummed``:
    range of physical offsets in which a sound record must have a checksum over the whole record.
    """

    def __init__(self, body: bytearray, chosen: np.ndarray, checksummed: tuple[int, int]) -> None:
        count = len(chosen) // CHOSEN_ROW
        self.count = count
        self.chosen = chosen
        self.records = np.frombuffer(body, np.uint8) if body else np.zeros(1, np.uint8)
        self.plan = np.empty(count * kernel.PLAN_ROW, np.int64)
        self.groups = np.empty((count + 1) * kernel.GROUP_ROW, np.int64)
        slots = np.zeros(1 << (2 * count + 1).bit_length(), np.int32)
        scratch = np.empty(PARTS + kernel.FOUND, np.int64)
        found = kernel.find_targets(self.records, chosen, count, slots, self.plan, self.groups, scratch, *checksummed)
        self.targets: list[Place | None] = [None]
        self.counts: list[int] = []
        for number, row in enumerate(self.groups[: found * kernel.GROUP_ROW].reshape(-1, kernel.GROUP_ROW).tolist()):
            self.counts.append(row[kernel.G_COUNT])
            if number:
                at = row[kernel.G_TOPIC_AT]
                topic = bytes(body[at : at + row[kernel.G_TOPIC_BYTES]]).decode("utf-8", "replace")
                self.targets.append((topic, row[kernel.G_QUEUE_ID]))
        self.unsound = count - sum(self.counts)

    @property
    def due_ms(self) -> np.ndarray:
        """Due time of each record by its TIMER_OUT_MS; -1 if it has none."""
        return self.plan[kernel.P_DUE_MS :: kernel.PLAN_ROW]

    @property
    def group_of(self) -> np.ndarray:
        """Group of each record; -1: the record is not sound."""
        return self.plan[kernel.P_GROUP :: kernel.PLAN_ROW]

    @property
    def is_recall(self) -> np.ndarray:
        """Mask of the records that recall another one."""
        return self.plan[kernel.P_RECALLED_END :: kernel.PLAN_ROW] > self.plan[kernel.P_RECALLED_AT :: kernel.PLAN_ROW]

    def recalled_keys(self) -> list[bytes]:
        """Return the names of the messages that these records, all of them recalls, recall."""
        ends = self.plan.reshape(-1, kernel.PLAN_ROW)[:, [kernel.P_RECALLED_AT, kernel.P_RECALLED_END]]
        return [self.records[at:end].tobytes() for at, end in ends.tolist()]

    def names(self) -> list[bytes]:
        """Return the name that a recall of each record would have; empty if nothing can recall it."""
        topics = [target[0].encode() + b"+" if target is not None else b"" for target in self.targets]
        keys = self.plan.reshape(-1, kernel.PLAN_ROW)[:, [kernel.P_GROUP, kernel.P_KEY_AT, kernel.P_KEY_END]]
        return [
            topics[group] + self.records[at:end].tobytes() if group > kernel.NOWHERE and end > at else b""
            for group, at, end in keys.tolist()
        ]

    def counts_of(self, wanted: np.ndarray) -> list[int]:
        """Return how many of the ``wanted`` records each group has."""
        groups = self.group_of[wanted]
        counts: list[int] = np.bincount(groups[groups >= 0], minlength=len(self.counts)).tolist()
        return counts

    def lose_targets(self, which: np.ndarray) -> None:
        """Move these records to the group that has no target."""
        which = which & (self.group_of != kernel.UNSOUND)
        if which.any():
            self.group_of[which] = kernel.NOWHERE
            self.counts = self.counts_of(self.group_of >= 0)

    @property
    def record_bytes(self) -> int:
        """Size of all records together."""
        return len(self.records)


class RecordCopier:
    """Reads records that are due, and appends copies of them to the log."""

    def __init__(self, commitlog: CommitLog, log_reads: LogReads) -> None:
        self._commitlog = commitlog
        self._log_reads = log_reads

    def read(self, chosen: np.ndarray, *, hot: bool) -> WaitingRecords:
        """Return the records of ``chosen``: a row of (physical offset, size, anything) each, in the order of the log.

        Leaves out records outside of the log, tombstones, and records that no file could hold. With ``hot``, raises
        ``WouldBlock`` instead of waiting for the disk.
        """
        rows = chosen.reshape(-1, CHOSEN_ROW)
        begin, end = self._commitlog.start_offset, self._commitlog.write_offset
        offsets, sizes = rows[:, C_PHYSICAL_OFFSET], rows[:, C_SIZE]
        sizes_max = self._commitlog.queue.file_bytes - _LONGER_AT_MOST - BLANK_BYTES_MIN
        inside = (offsets >= begin) & (offsets <= end - sizes) & (sizes >= RECORD_BYTES_MIN) & (sizes <= sizes_max)
        if self._log_reads.quarantine:
            inside &= ~self._log_reads.quarantine.mask(offsets)
        if not inside.all():
            rows = rows[inside]
        flat = np.ascontiguousarray(rows).reshape(-1)
        if not len(flat):
            return WaitingRecords(bytearray(), flat, (0, 0))
        # Waiting records are close together. If ``record_checksum`` was switched among them, the last one decides.
        checksummed = self._log_reads.checksummed.around(int(flat[C_PHYSICAL_OFFSET - CHOSEN_ROW]))
        return WaitingRecords(self._log_reads.records(flat, hot=hot), flat, checksummed)

    def deliver(
        self,
        waiting: WaitingRecords,
        places: Sequence[Place | None],
        next_offset: Callable[[str, int], int],
        *,
        committed: bool = False,
    ) -> dict[Place, int]:
        """Append the records of each group to its place, in their order; skip groups without a place.

        ``next_offset``: function that returns the queue offset of a place's next message. ``committed``: mark the new
        records as committed by their transaction. Returns the next queue offset of each place. Raises as
        ``CommitLog.append`` does, with nothing written.
        """
        log = self._commitlog
        texts, following = self._answer_groups(waiting, places, next_offset)
        store_ms = log.clock.store_ms(log.last_store_ms)
        largest = int(waiting.chosen[C_SIZE::CHOSEN_ROW].max(initial=0)) + _LONGER_AT_MOST
        bound = waiting.record_bytes + waiting.count * _LONGER_AT_MOST + BLANK_BYTES_MIN
        file, writer = log.ahead.make(log.write_offset, bound, largest), log.writer
        writer.begin(file, log.write_offset, largest)
        numbers = np.array([0, 0, store_ms, len(log.store_host), committed, log.checksum_bytes], np.int64)
        if bound > writer.room:
            log.ahead.place_next(self._count_rolls(waiting, texts, numbers, writer.room, file.size, bound), bound)
        done = 0
        while done < waiting.count:
            numbers[[kernel.N_LIMIT, kernel.N_BASE]] = writer.limit, writer.offset
            done, size = kernel.deliver(
                waiting.records, waiting.plan, done, waiting.count, waiting.groups, texts, numbers, writer.array
            )
            writer.put(size, is_last=done == waiting.count)
        log.last_store_ms = store_ms
        log.write_offset = writer.finish()
        return following

    @staticmethod
    def _count_rolls(
        waiting: WaitingRecords, texts: np.ndarray, numbers: np.ndarray, room: int, file_bytes: int, bound: int
    ) -> int:
        """Return how many further files the delivery of ``numbers`` takes if the current file has ``room`` bytes left.

        Runs the kernel into a buffer of ``bound`` bytes, because only the kernel knows the size of the new records.
        """
        trial, tried, groups = np.empty(bound, np.uint8), numbers.copy(), waiting.groups.copy()
        tried[kernel.N_LIMIT] = room
        done = rolls = 0
        while True:
            done, _ = kernel.deliver(waiting.records, waiting.plan, done, waiting.count, groups, texts, tried, trial)
            if done == waiting.count:
                return rolls
            rolls += 1
            tried[kernel.N_LIMIT] = file_bytes

    def _answer_groups(
        self, waiting: WaitingRecords, places: Sequence[Place | None], next_offset: Callable[[str, int], int]
    ) -> tuple[np.ndarray, dict[Place, int]]:
        """Tell the kernel each group's topic, queue and first queue offset; return (the texts, the next offsets)."""
        texts = bytearray(self._commitlog.store_host)
        following: dict[Place, int] = {}
        group_of_place: dict[Place, int] = {}
        for number, (place, count) in enumerate(zip(places, waiting.counts, strict=True)):
            row = waiting.groups[number * kernel.GROUP_ROW : (number + 1) * kernel.GROUP_ROW]
            row[kernel.G_NEXT] = -1
            if place is None or not count:
                continue
            if place in group_of_place:
                # All records of a queue must be in one group, which counts the queue's offsets: with two counters the
                # offsets would not be consecutive in the log.
                waiting.group_of[waiting.group_of == number] = group_of_place[place]
                following[place] += count
                continue
            name = place[0].encode()
            assert len(name) <= TOPIC_BYTES_AT_MOST
            first = next_offset(*place)
            row[kernel.G_NAME_AT :] = (len(texts), len(texts) + len(name), place[1], first)
            group_of_place[place] = number
            following[place] = first + count
            texts += name
        return np.frombuffer(texts, np.uint8), following
