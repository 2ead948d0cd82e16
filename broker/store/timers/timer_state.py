"""How far timed messages are: what is indexed, what is delivered, and what waits by hour and by topic.

The state changes by events alone, in their order. It is kept twice: as it is, and as it is on disk, where an event
arrives once the records that it speaks of are there. So what is on disk is always a state that once was.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np

HOUR_SECONDS = 3600

ROWS = np.dtype([("due_second", "i8"), ("queue_offset", "i8"), ("physical_offset", "i8"), ("size", "i4")])
"""A timed message in the index: when it is due, seconds since 1970 UTC, and which it is."""


@dataclass(slots=True)
class TimerHour:
    """Messages that are due within one hour. ``count``: how many wait; ``first_due_second``, ``first_queue_offset`` and
    ``first_physical_offset``: none of them has less; ``rolled_below``: those that lie before have been appended again
    and do not count; ``rows``: how many the hour's file has; ``checksum``: the CRC32 of these."""

    count: int = 0
    first_due_second: int = 0
    first_queue_offset: int = 0
    first_physical_offset: int = 0
    rolled_below: int = 0
    rows: int = 0
    checksum: int = 0


@dataclass(slots=True)
class TimerState:
    """``indexed``: messages of the timer queue below it are in the index. Of those due before ``second`` all are
    delivered, and the first ``position`` of those due in it.

    ``shift``: seconds that delivery is ahead of the clock, whole hours; the seconds and hours here and in the rows are
    the clock's and this, because delivery never goes back, and the clock was set back. A row that was made when there
    was less of it comes up too soon, and is put where it belongs then.

    ``skip_until``, ``skip_before``: messages of the queue below the one, due by the clock before the other, were
    delivered by who had the store before.
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
        """The hour that delivery is in."""
        return self.second // HOUR_SECONDS

    @property
    def pending(self) -> int:
        """How many messages wait."""
        return sum(hour.count for hour in list(self.hours.values()))

    def move_to(self, second: int, position: int) -> None:
        """Delivery is there; hours before are over."""
        self.second, self.position = second, position
        for hour in [hour for hour in self.hours if hour < self.hour]:
            del self.hours[hour]

    def to_json(self) -> dict[str, Any]:
        """As ``from_json`` reads it."""
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
        """Raises one of ``SHAPE_ERRORS`` where it cannot be read."""
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
    """Count up and down, by topic; none stays that has no message."""
    for topic, count in change.items():
        left = counts[topic] + count
        if left > 0:
            counts[topic] = left
        else:
            del counts[topic]


def by_hour(rows: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """The rows of each hour, in their order."""
    if not len(rows):  # everything that was looked at is lost to damage, or nothing timed
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
    """Messages up to ``indexed`` were looked at, and these are to be delivered."""

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


@dataclass(slots=True)
class Reached:
    """Delivery moved on to ``second`` and ``position``, past ``count`` messages of ``hour``."""

    second: int
    position: int
    hour: int
    count: int
    topics: Counter[str]

    def apply(self, state: TimerState) -> None:
        """Make it part of the state."""
        add_counts(state.topics, self.topics)
        if self.hour in state.hours:
            state.hours[self.hour].count -= self.count
        state.move_to(self.second, self.position)


@dataclass(slots=True)
class Rolled:
    """``count`` messages of ``hour``, all that waited below the physical offset ``below``, were appended again."""

    hour: int
    below: int
    count: int
    topics: Counter[str]

    def apply(self, state: TimerState) -> None:
        """Make it part of the state."""
        add_counts(state.topics, self.topics)
        hour = state.hours[self.hour]
        hour.count -= self.count
        hour.rolled_below = hour.first_physical_offset = self.below


@dataclass(slots=True)
class Shifted:
    """The clock was set back: delivery is ``shift`` seconds ahead of it from now on."""

    shift: int

    def apply(self, state: TimerState) -> None:
        """Make it part of the state."""
        state.shift = self.shift


Event: TypeAlias = Indexed | Reached | Rolled | Shifted
