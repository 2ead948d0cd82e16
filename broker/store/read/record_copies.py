"""Delivering: stored messages that wait in a topic of the broker's become messages of the topic that they are for.

Two steps. ``read`` takes records out of the log and finds where each goes to; any thread, since it may wait for the
disk. ``deliver`` writes them anew at the log's end; it belongs to who appends. Neither makes an object of a message: a
thousand of them cost two kernel calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ....protocol.storage.layout import BLANK_BYTES_MIN, RECORD_BYTES_MIN
from ....protocol.storage.record_crc import RECORD_CRC_BYTES
from ...kernels import deliver as kernel
from ...kernels.dispatch import PARTS
from ...kernels.gather import C_PHYSICAL_OFFSET, C_SIZE, CHOSEN_ROW
from ..log.commitlog import CommitLog
from .log_reads import LogReads

TOPIC_BYTES_AT_MOST = 255
_LONGER_AT_MOST = 2 * 12 + 1 + TOPIC_BYTES_AT_MOST + 1 + RECORD_CRC_BYTES
"""How much longer than the old record a new one can be: hosts, topic, and a checksum behind the properties."""

Place = tuple[str, int]
"""A topic and a queue of it."""


class PendingFlush:
    """Records that were read in order to be delivered.

    ``targets``: the topic and queue that each group of them goes to, the first for those that do not say (None), and
    ``counts``, how many of them there are. ``unsound``: how many are not the records that were asked for.
    ``checksummed``: between these physical offsets a record must have a checksum over all of it, or is not sound.
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
        """When each is due, as its TIMER_OUT_MS says; -1 where it says nothing."""
        return self.plan[kernel.P_DUE_MS :: kernel.PLAN_ROW]

    @property
    def group_of(self) -> np.ndarray:
        """The group of each; -1: it is not sound."""
        return self.plan[kernel.P_GROUP :: kernel.PLAN_ROW]

    def counts_of(self, wanted: np.ndarray) -> list[int]:
        """How many of those that are ``wanted`` each group has."""
        groups = self.group_of[wanted]
        counts: list[int] = np.bincount(groups[groups >= 0], minlength=len(self.counts)).tolist()
        return counts

    def lose_targets(self, which: np.ndarray) -> None:
        """Make these some that do not say where they go to."""
        which = which & (self.group_of != kernel.UNSOUND)
        if which.any():
            self.group_of[which] = kernel.NOWHERE
            self.counts = self.counts_of(self.group_of >= 0)

    @property
    def record_bytes(self) -> int:
        """All of them together."""
        return len(self.records)


class RecordCopier:
    """Reads records that are due, and writes them anew."""

    def __init__(self, commitlog: CommitLog, log_reads: LogReads) -> None:
        self._commitlog = commitlog
        self._log_reads = log_reads

    def read(self, chosen: np.ndarray, *, hot: bool) -> PendingFlush:
        """The records of ``chosen``: a row of (physical offset, size, anything) each, in the order of the log.

        What lies outside of the log is left out, tombstones, and what no file could hold. With ``hot``, raises
        ``WouldBlock`` where it would wait for the disk.
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
            return PendingFlush(bytearray(), flat, (0, 0))
        # Records that wait lie close together: where the option was turned on among them, the last ones tell.
        checksummed = self._log_reads.checksummed.around(int(flat[C_PHYSICAL_OFFSET - CHOSEN_ROW]))
        return PendingFlush(self._log_reads.records(flat, hot=hot), flat, checksummed)

    def deliver(
        self,
        waiting: PendingFlush,
        places: Sequence[Place | None],
        next_offset: Callable[[str, int], int],
        *,
        committed: bool = False,
    ) -> dict[Place, int]:
        """Write the records of each group to its place, in their order; those of a group without a place are not.
        ``committed``: by the transaction that prepared them, which the new records say.

        ``next_offset``: the queue offset that a place's next message gets; returns those that follow. Raises as
        ``CommitLog.append``, with nothing written.
        """
        log = self._commitlog
        texts, following = self._answer_groups(waiting, places, next_offset)
        store_ms = log.clock.store_ms(log.last_store_ms)
        largest = int(waiting.chosen[C_SIZE::CHOSEN_ROW].max(initial=0)) + _LONGER_AT_MOST
        bound = waiting.record_bytes + waiting.count * _LONGER_AT_MOST + BLANK_BYTES_MIN
        file = log.ahead.make(log.write_offset, bound, largest)
        position = log.write_offset - file.start_offset
        numbers = np.array(
            [position, file.size, file.start_offset, store_ms, len(log.store_host), committed, log.checksum_bytes],
            np.int64,
        )
        if position + bound > file.size:
            log.ahead.place_next(self._count_rolls(waiting, texts, numbers, bound), bound)
        done = 0
        while True:
            done, position = kernel.deliver(
                waiting.records, waiting.plan, done, waiting.count, waiting.groups, texts, numbers, file.array()
            )
            if done == waiting.count:
                break
            file = log.roll(file, position)
            numbers[[kernel.N_POSITION, kernel.N_FILE_BASE]] = 0, file.start_offset
        log.last_store_ms = store_ms
        log.write_offset = file.start_offset + position
        return following

    @staticmethod
    def _count_rolls(waiting: PendingFlush, texts: np.ndarray, numbers: np.ndarray, bound: int) -> int:
        """In how many further files the delivery goes on that ``numbers`` begins. It is tried in memory of its own, of
        ``bound`` bytes: only the kernel knows how long the new records are."""
        trial, tried, groups = np.empty(bound, np.uint8), numbers.copy(), waiting.groups.copy()
        tried[[kernel.N_POSITION, kernel.N_LIMIT]] = 0, numbers[kernel.N_LIMIT] - numbers[kernel.N_POSITION]
        done = rolls = 0
        while True:
            done, _ = kernel.deliver(waiting.records, waiting.plan, done, waiting.count, groups, texts, tried, trial)
            if done == waiting.count:
                return rolls
            rolls += 1
            tried[kernel.N_LIMIT] = numbers[kernel.N_LIMIT]

    def _answer_groups(
        self, waiting: PendingFlush, places: Sequence[Place | None], next_offset: Callable[[str, int], int]
    ) -> tuple[np.ndarray, dict[Place, int]]:
        """Tell the kernel each group's topic, queue and first queue offset: (the texts, the offsets that follow)."""
        texts = bytearray(self._commitlog.store_host)
        following: dict[Place, int] = {}
        group_of_place: dict[Place, int] = {}
        for number, (place, count) in enumerate(zip(places, waiting.counts, strict=True)):
            row = waiting.groups[number * kernel.GROUP_ROW : (number + 1) * kernel.GROUP_ROW]
            row[kernel.G_NEXT] = -1
            if place is None or not count:
                continue
            if place in group_of_place:
                # One row counts a queue's offsets, or they would not follow each other in the log.
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
