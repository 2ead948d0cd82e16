"""Timed messages: RocketMQ's TimerMessageStore, with FlintMQ's own index.

They wait in queue 0 of rmq_sys_wheel_timer, which is not ordered by time. The index stores 28 bytes for each message in
a file for the hour in which it is due; only the hour being delivered is in memory. A message is delivered when the
second after its TIMER_OUT_MS begins: never early, up to a second late.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.storage.delivery import TIMER_TOPIC
from ....protocol.storage.layout import RECORD
from ...kernels.deliver import UNSOUND
from ...kernels.gather import C_PHYSICAL_OFFSET, C_QUEUE_OFFSET, C_SIZE, CHOSEN_ROW
from ...store.timers import HOUR_SECONDS, ROWS, Indexed, Reached, Rolled, Shifted, TimerState, by_hour, count_recalls
from ..routing import SECOND_MS
from .delay_levels import CopyFinder
from .delivery import BYTES_A_STEP, PLACES, RECORDS_A_STEP, DeliveryFigures, choose, chosen_places, topics_of

if TYPE_CHECKING:
    from ...store.read.record_copies import WaitingRecords
    from ...store.timers import Event, TimerFiles
    from .delivery import Deliverer


# ---- Recalls of timed messages.
#
# A recall is a timed record of the broker, as RocketMQ writes it: it is due in the same second as its message
# and has that message's topic and unique key. Delivery leaves out the recalls of a second, and the messages
# that they name. So the log alone decides whether a message is recalled, on every member of a replica set and
# after every restart.

_DIGEST_BYTES = 16
_DIGEST = f"S{_DIGEST_BYTES}"


class RecallsOfSecond:
    """The messages that are recalled in the second being delivered: 16 bytes in memory for each."""

    def __init__(self, deliverer: Deliverer) -> None:
        self._deliverer = deliverer
        self._second = -1
        self._examined = 0
        self._recalled = np.empty(0, _DIGEST)

    async def read(self, second: int, places: bytearray) -> None:
        """Read the recalls of a second, except those that were read before; ``places``: all its ``PLACES``."""
        if second != self._second:
            self._second, self._examined, self._recalled = second, 0, np.empty(0, _DIGEST)
        # Late messages extend the second while it is delivered. A copy, because a bytearray with a view cannot grow.
        fresh = np.frombuffer(bytes(places[self._examined :]), PLACES)
        self._examined = len(places)
        recalls = fresh[fresh["size"] < 0]
        found = [self._recalled]
        for at in range(0, len(recalls), RECORDS_A_STEP):
            waiting = await self._deliverer.read_records(chosen_places(recalls[at : at + RECORDS_A_STEP]))
            found.append(_digests(waiting, waiting.recalled_keys()))
        self._recalled = np.concatenate(found) if len(found) > 1 else self._recalled

    def of(self, waiting: WaitingRecords) -> np.ndarray:
        """Return the mask of the records that are recalled, or are recalls themselves."""
        if not len(self._recalled):
            return waiting.is_recall
        return waiting.is_recall | np.isin(_digests(waiting, waiting.names()), self._recalled)


def _digests(waiting: WaitingRecords, names: list[bytes]) -> np.ndarray:
    """Return a digest of the name and the second of each record: late messages of several seconds come up together."""
    seconds = (waiting.due_ms // SECOND_MS).tolist()
    named = [b"%d %b" % pair for pair in zip(seconds, names, strict=True)]
    return np.array([blake2b(each, digest_size=_DIGEST_BYTES).digest() for each in named], _DIGEST)


_QUEUE_OFFSET_AT = RECORD.at["queue_offset"]


class Timers:
    """Indexing and delivery of the timer queue, and the rolling of messages that retention would delete.

    ``state``: the progress of all three. Its changes go to ``timer_files``, which persist each one after the records
    that it refers to are on disk. After a crash the files may be behind, so delivery then looks for copies in the log,
    as ``DelayLevels`` does. A message without a unique key may be delivered again, but none is skipped.
    """

    def __init__(self, deliverer: Deliverer, timer_files: TimerFiles) -> None:
        self.figures = DeliveryFigures()
        self.state = TimerState()
        self.timer_files = timer_files
        self._deliverer = deliverer
        self._store = deliverer.store
        self.opened = False
        self._loaded_hour = -1
        self._seconds: dict[int, bytearray] = {}
        """By second: the hour's undelivered messages, and all messages of the second being delivered."""
        self._roll_below = 0
        self._copies = CopyFinder(deliverer.store)
        self._recalls = RecallsOfSecond(deliverer)
        self._complete_at, self._log_end, self._queue_end = -1, -1, -1
        """Last second for which ``_is_complete`` was true, and the ends of log and queue that the index must reach for
        the present second (-1: not known yet)."""
        self._crashed_end, self._crashed_ms = 0, 0
        """Messages below this physical offset that were due before this time may have been delivered before a crash."""

    async def step(self, now_ms: int) -> bool:
        """Do about a millisecond of work. Return whether there was any."""
        now = now_ms // SECOND_MS
        if not self.opened:
            await self._open(now, now_ms)
        self._stay_ahead(now)
        if not self._is_complete(now):
            # No message is left in any second, so delivery may follow the clock before the index is complete.
            if not self.state.records and self.state.second < now + self.state.shift:
                self._move_to(now + self.state.shift)
            return await self._index()
        # Due messages first, then new ones; the rolling needs a complete index.
        return await self._deliver(now, now_ms) or await self._index() or await self._roll()

    def next_due_ms(self) -> int | None:
        """Return when there is something to do: 0 while the log's dispatch is awaited, None if no message waits."""
        return 0 if self._log_end >= 0 else self.first_due_ms()

    def first_due_ms(self) -> int | None:
        """Return when the next message is due; None if none waits."""
        state = self.state
        due = [second for second in self._seconds if second > state.second]
        due += [hour.first_due_second for number, hour in state.hours.items() if number > state.hour and hour.count]
        return SECOND_MS * (min(due) - state.shift) if due else None

    def backlog(self) -> int:
        """Return the number of messages that are not indexed yet; 0 while the index is not open."""
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        return max(queue.max_offset - self.state.indexed, 0) if queue is not None and self.opened else 0

    def roll_below(self, physical_offset: int) -> None:
        """Request that waiting messages below this offset be appended again: retention is about to delete their file.

        The caller wakes the timers afterwards.
        """
        self._roll_below = max(self._roll_below, physical_offset)

    async def _open(self, now: int, now_ms: int) -> None:
        if not self._store.ended_clean:
            self._crashed_end, self._crashed_ms = self._store.write_offset, now_ms
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        first = await self._deliverer.first_offset(queue) if queue is not None else 0
        end = queue.max_offset if queue is not None else 0
        self.state = await self._deliverer.in_reader(lambda: self.timer_files.open(first, end, now))
        self.opened = True

    def _stay_ahead(self, now: int) -> None:
        """Run ahead of the clock if it was set back: the index is by hour and cannot go back."""
        missing = self.state.second - self.state.shift - now
        if missing > 0:
            hours = -(-missing // HOUR_SECONDS)
            # The shift depends on no record, so it may be saved at once.
            self._happened(0, Shifted(self.state.shift + hours * HOUR_SECONDS))

    def _is_complete(self, now: int) -> bool:
        """Return whether the index has everything that was in the log when the present second began.

        Recalls are accepted only before their second, so no message is delivered whose recall was acknowledged.
        """
        if now == self._complete_at:
            return True
        # In two steps: only when the dispatch has reached the log's end of that moment is it known where the queue
        # ends.
        if self._log_end < 0:
            self._log_end = self._store.write_offset
        if self._queue_end < 0 and self._store.reput_offset >= self._log_end:
            queue = self._store.queues.get(TIMER_TOPIC, 0)
            self._queue_end = queue.max_offset if queue is not None else 0
        if self._queue_end < 0 or self.state.indexed < self._queue_end:
            return False
        self._complete_at, self._log_end, self._queue_end = now, -1, -1
        return True

    def _happened(self, end_offset: int, event: Event) -> None:
        event.apply(self.state)
        self.timer_files.add(end_offset, event)

    # Delivering.

    async def _deliver(self, now: int, now_ms: int) -> bool:
        state = self.state
        while True:
            # In the loop, because the next second may be in another hour.
            await self._load()
            rows = self._seconds.get(state.second)
            count = len(rows) // PLACES.itemsize if rows is not None else 0
            if rows is not None and state.position < count:
                at = state.position * PLACES.itemsize
                # A copy: messages may join the second while this part is read.
                part = bytes(rows[at : at + RECORDS_A_STEP * PLACES.itemsize])
                await self._deliver_part(np.frombuffer(part, PLACES), now_ms)
                return True
            if state.second >= now + state.shift:
                return False
            self._move_to(self._next_second(now + state.shift))

    def _move_to(self, second: int) -> None:
        # Delivery never returns to a second, so its messages leave the memory.
        self._seconds.pop(self.state.second, None)
        self.state.move_to(second, 0)

    def _next_second(self, now: int) -> int:
        """Return the next second, at most ``now``, in which a message is due, or ``now``."""
        state = self.state
        due = min(self._seconds, default=None)
        if due is not None:
            return min(due, now)
        following = min((number for number in state.hours if number > state.hour), default=None)
        return min(following * HOUR_SECONDS, now) if following is not None else now

    async def _deliver_part(self, rows: np.ndarray, now_ms: int) -> None:
        state = self.state
        number = state.hour
        count = min(int(np.searchsorted(np.cumsum(np.abs(rows["size"])), BYTES_A_STEP)) + 1, len(rows))
        rolled_below = state.hours[number].rolled_below
        rows = rows[:count]
        rows = rows[rows["physical_offset"] >= rolled_below]
        waiting = await self._deliverer.read_records(chosen_places(rows))
        # Even those that have become due meanwhile: a message and its recall must come up in the same second.
        early = waiting.due_ms // SECOND_MS + 1 + state.shift > state.second
        # A record without a time is parked, and one that cannot be read is counted: neither is put off.
        early &= (waiting.due_ms >= 0) & (waiting.group_of != UNSOUND)
        asked = len(rows)
        if early.any():
            await self._put_off(waiting, early)
            put_off = np.isin(rows["physical_offset"], waiting.chosen[C_PHYSICAL_OFFSET::CHOSEN_ROW][early])
            asked -= int(put_off.sum())
            waiting = await self._deliverer.read_records(chosen_places(rows[~put_off]))
        # Before recalled and already delivered ones are left out: those no longer wait either.
        topics = topics_of(waiting, -1, ~waiting.is_recall)
        await self._recalls.read(state.second, self._seconds[state.second])
        waiting, recalled = await self._without(waiting, self._recalls.of(waiting))
        waiting, delivered = await self._without(waiting, await self._delivered_before(waiting))
        asked -= recalled + delivered
        end_offset = await self._deliverer.deliver_records(waiting, asked, timed=True)
        due_ms = (state.second - state.shift) * SECOND_MS
        reached = Reached(state.second, state.position + count, number, len(rows), count_recalls(rows), topics)
        self._happened(end_offset, reached)
        self.figures.count(waiting.count, now_ms - due_ms)

    async def _without(self, waiting: WaitingRecords, which: np.ndarray) -> tuple[WaitingRecords, int]:
        """Return the records that the mask ``which`` does not select, and the number of those that it does."""
        if not which.any():
            return waiting, 0
        others = waiting.chosen.reshape(-1, CHOSEN_ROW)[~which]
        return await self._deliverer.read_records(others.reshape(-1)), int(which.sum())

    async def _delivered_before(self, waiting: WaitingRecords) -> np.ndarray:
        """Return the mask of the messages that were delivered before a crash."""
        chosen = waiting.chosen.reshape(-1, CHOSEN_ROW)
        # Only messages of before the crash that were due by then can have a copy.
        suspect = (chosen[:, C_PHYSICAL_OFFSET] < self._crashed_end) & (waiting.due_ms < self._crashed_ms)
        delivered = np.zeros(len(chosen), bool)
        if suspect.any():
            places = chosen[suspect][:, [C_PHYSICAL_OFFSET, C_SIZE]].tolist()
            delivered[suspect] = await self._deliverer.in_reader(lambda: self._copies.delivered(places))
        return delivered

    async def _put_off(self, waiting: WaitingRecords, early: np.ndarray) -> None:
        """Index again the messages that came up too early: the clock was set back after they had been indexed."""
        chosen = waiting.chosen.reshape(-1, CHOSEN_ROW)

        # Queue offsets are not among the columns that were read, so they are taken from the records' own bytes.
        begins = np.cumsum(chosen[:, C_SIZE]) - chosen[:, C_SIZE]
        at = begins[early, None] + np.arange(_QUEUE_OFFSET_AT, _QUEUE_OFFSET_AT + 8)
        rows = np.empty(int(early.sum()), ROWS)
        rows["due_second"] = waiting.due_ms[early] // SECOND_MS + 1 + self.state.shift
        rows["queue_offset"] = np.ascontiguousarray(waiting.records[at]).view(">i8")[:, 0]
        rows["physical_offset"] = chosen[early, C_PHYSICAL_OFFSET]
        rows["size"] = np.where(waiting.is_recall, -chosen[:, C_SIZE], chosen[:, C_SIZE])[early]
        hours = self.state.hours
        rolled = [
            hours[number].rolled_below if number in hours else 0
            for number in (rows["due_second"] // HOUR_SECONDS).tolist()
        ]
        below_rolled = rows["physical_offset"] < np.array(rolled, np.int64)
        topics: Counter[str] = Counter()
        if below_rolled.any():
            # In their new hour, messages below ``rolled_below`` count as already appended again, so they would be lost:
            # append them again now, for a new physical offset.
            appended = await self._deliverer.read_records(chosen_places(rows[below_rolled]))
            await self._deliverer.append_copies(appended, (TIMER_TOPIC, 0))
            rows, topics = rows[~below_rolled], topics_of(appended, -1, ~appended.is_recall)
        self._keep(self._store.write_offset, Indexed(self.state.indexed, rows, topics))

    async def _load(self) -> None:
        """Load the messages of the hour being delivered, unless they are in memory."""
        state = self.state
        if self._loaded_hour == state.hour:
            return
        self._seconds = {}
        hour = state.hours.get(state.hour)
        if hour is not None:
            number, second = state.hour, state.second
            self._seconds = await self._deliverer.in_reader(lambda: _by_second(self.timer_files.rows(number), second))
        self._loaded_hour = state.hour

    # Indexing.

    async def _index(self) -> bool:
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        state = self.state
        first = state.indexed
        if queue is None or first >= queue.max_offset:
            return False
        units = await self._deliverer.read_units(queue, first, min(RECORDS_A_STEP, queue.max_offset - first))
        chosen, count = choose(units, first)
        waiting = await self._deliverer.read_records(chosen)
        rows, end_offset, wanted = self._rows(waiting)
        self._deliverer.count_unreadable(len(chosen) // CHOSEN_ROW - waiting.count + waiting.unsound)
        self._keep(end_offset, Indexed(first + count, rows, topics_of(waiting, 1, wanted & ~waiting.is_recall)))
        return True

    def _keep(self, end_offset: int, indexed: Indexed) -> None:
        """Add messages to the index, and to memory if they are due in the loaded hour."""
        self._happened(end_offset, indexed)
        for number, mine in by_hour(indexed.rows):
            if number == self._loaded_hour:
                for second, blob in _by_second(mine, self.state.second).items():
                    self._seconds.setdefault(second, bytearray()).extend(blob)

    def _rows(self, waiting: WaitingRecords) -> tuple[np.ndarray, int, np.ndarray]:
        """Return (index rows, end of the log after them, mask of those to deliver) for the messages read."""
        state = self.state
        waiting.lose_targets(waiting.due_ms < 0)
        chosen = waiting.chosen.reshape(-1, CHOSEN_ROW)
        due_second = waiting.due_ms // SECOND_MS + 1
        # Delivered already, by RocketMQ or before the index had to be built again.
        skipped = (chosen[:, C_QUEUE_OFFSET] < state.skip_until) & (due_second < state.skip_before)
        wanted = (waiting.group_of != UNSOUND) & ~(skipped & (waiting.due_ms >= 0))
        rows = np.empty(int(wanted.sum()), ROWS)
        # Messages that are due already go into the present second, because delivery never goes back.
        rows["due_second"] = np.maximum(due_second[wanted] + state.shift, state.second)
        rows["queue_offset"] = chosen[wanted, C_QUEUE_OFFSET]
        rows["physical_offset"] = chosen[wanted, C_PHYSICAL_OFFSET]
        rows["size"] = np.where(waiting.is_recall, -chosen[:, C_SIZE], chosen[:, C_SIZE])[wanted]
        end_offset = int((chosen[:, C_PHYSICAL_OFFSET] + chosen[:, C_SIZE]).max(initial=0))
        return rows, end_offset, wanted

    # Rolling.

    async def _roll(self) -> bool:
        """Append again the messages of one hour that wait below ``_roll_below``.

        All of them go in one step, because no message of the hour may be delivered meanwhile.
        """
        # A message that is not indexed yet must not count as rolled.
        below = min(self._roll_below, self._store.reput_offset)
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        if queue is None or self.state.indexed < queue.max_offset:
            return queue is not None
        found = [
            number for number, hour in self.state.hours.items() if hour.count and hour.first_physical_offset < below
        ]
        if not found:
            return False
        number, hour = found[0], self.state.hours[found[0]]
        rows = await self._waiting_rows(number)
        rows = rows[(rows["physical_offset"] < below) & (rows["physical_offset"] >= hour.rolled_below)]
        # In the order of the log, so that after each part one offset says which messages were appended again.
        rows = rows[np.argsort(rows["physical_offset"], kind="stable")]
        at = 0
        while at < len(rows):
            part = rows[at : at + RECORDS_A_STEP]
            part = part[: int(np.searchsorted(np.cumsum(np.abs(part["size"])), BYTES_A_STEP)) + 1]
            waiting = await self._deliverer.read_records(chosen_places(part))
            end_offset = await self._deliverer.append_copies(waiting, (TIMER_TOPIC, 0))
            self._deliverer.count_unreadable(len(part) - waiting.count + waiting.unsound)
            at += len(part)
            rolled_below = int(part["physical_offset"][-1]) + 1
            topics = topics_of(waiting, -1, ~waiting.is_recall)
            self._happened(end_offset, Rolled(number, rolled_below, len(part), count_recalls(part), topics))

            # The loop serves others between the parts, of which an hour may have many.
            await asyncio.sleep(0)
        # The hour's bound rises to ``below`` in any case: otherwise the next step would find the hour again.
        self._happened(self._store.write_offset, Rolled(number, below, 0, 0, Counter()))
        return True

    async def _waiting_rows(self, number: int) -> np.ndarray:
        """Return physical offset and size of an hour's undelivered messages."""
        state = self.state
        if number == self._loaded_hour:
            skipped = state.position * PLACES.itemsize
            blobs = [
                bytes(blob[skipped:] if second == state.second else blob) for second, blob in self._seconds.items()
            ]
            return np.frombuffer(b"".join(blobs), PLACES)
        rows = await self._deliverer.in_reader(lambda: self.timer_files.rows(number))
        return rows[["physical_offset", "size"]].astype(PLACES)


def _by_second(rows: np.ndarray, first_second: int) -> dict[int, bytearray]:
    """Return the places of each second's messages, in their order, from ``first_second`` on."""
    seconds = rows["due_second"]
    places = np.empty(len(rows), PLACES)
    places["physical_offset"] = rows["physical_offset"]
    places["size"] = rows["size"]
    if len(rows) and not (seconds == seconds[0]).all():
        # Stable, because the saved position is a number within the second.
        order = np.argsort(seconds, kind="stable")
        seconds, places = seconds[order], places[order]
    starts = np.flatnonzero(np.diff(seconds, prepend=-1)).tolist()
    return {
        int(seconds[start]): bytearray(places[start:end].tobytes())
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True)
        if seconds[start] >= first_second
    }
