"""Statistics of delayed messages, for the commands and metrics that show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.storage.delivery import DELAY_LEVEL_MAX, PARKED_TOPIC, SCHEDULE_TOPIC
from ...store.queue.queue_check import UNIT_DTYPE
from ...store.timers.timer_state import HOUR_SECONDS
from .timers import SECOND_MS

if TYPE_CHECKING:
    from ...store import MessageStore
    from .worker import Delays

Row = tuple[int, int, int]
"""A level or the beginning of an hour (ms), the number of waiting messages, and when the next is due (ms; 0: none)."""


@dataclass(frozen=True, slots=True)
class DelayedCounts:
    """Delayed messages at one moment.

    ``levels``: a row for each level that has ever had a message; ``by_hour``: a row for each hour in which timed
    messages are due; ``timed``: their number; ``unindexed``: number of timed messages that are not indexed yet;
    ``parked``: number of messages in the parked topic.
    """

    levels: list[Row]
    by_hour: list[Row]
    timed: int
    unindexed: int
    parked: int

    def hours(self, max_rows: int) -> list[Row]:
        """Return ``by_hour`` in at most ``max_rows`` rows; the last one may cover several hours."""
        if len(self.by_hour) <= max_rows:
            return self.by_hour
        rest = self.by_hour[max_rows - 1 :]
        return [*self.by_hour[: max_rows - 1], (rest[0][0], sum(row[1] for row in rest), rest[0][2])]


def delayed_counts(delays: Delays, *, hot: bool) -> DelayedCounts:
    """Return the statistics. Any thread; with ``hot`` raises ``WouldBlock`` if it would have to read from disk."""
    store, timers = delays.redeliverer.store, delays.timers
    ahead_ms = timers.state.shift * SECOND_MS
    by_hour = [
        # A copy, because the loop may change the dict while another thread is here.
        (number * HOUR_SECONDS * SECOND_MS - ahead_ms, hour.messages, hour.first_due_second * SECOND_MS - ahead_ms)
        for number, hour in sorted(timers.state.hours.copy().items())
        if hour.messages > 0
    ]
    # The hour in delivery: its first message may be delivered already, so the next one is looked up.
    if by_hour and by_hour[0][0] == timers.state.hour * HOUR_SECONDS * SECOND_MS - ahead_ms:
        due_ms = timers.first_due_ms()
        by_hour[0] = (by_hour[0][0], by_hour[0][1], due_ms if due_ms is not None else by_hour[0][2])
    timed = sum(row[1] for row in by_hour)
    levels = _levels(delays, store, hot=hot)
    return DelayedCounts(levels, by_hour, timed, timers.backlog(), _parked(store, hot=hot))


def _levels(delays: Delays, store: MessageStore, *, hot: bool) -> list[Row]:
    rows = []
    for number in range(1, DELAY_LEVEL_MAX + 1):
        queue = store.queues.get(SCHEDULE_TOPIC, number - 1)
        if queue is None or queue.max_offset == queue.start_offset:
            continue
        level = delays.levels.levels.get(number)
        next_offset = level.next_offset if level is not None else store.delay_offsets.delivered(number)
        messages = max(queue.max_offset - next_offset, 0)
        unit = queue.unit(next_offset, hot=hot) if messages else (0, 0, 0)
        due_ms = unit[2]
        if messages and level is not None:
            due_ms = int(delays.levels.due_ms(level, np.array([unit], UNIT_DTYPE), next_offset)[0])
        rows.append((number, messages, due_ms))
    return rows


def _parked(store: MessageStore, *, hot: bool) -> int:
    queue = store.queues.get(PARKED_TOPIC, 0)
    if queue is None:
        return 0
    return max(queue.max_offset - store.queue_reads.first_offset(queue, hot=hot), 0)
