"""State of the timed messages: how far they are indexed and delivered, and how many wait, by hour and by topic.

Only events change the state, in their order. There are two copies: the present state, and the state on disk, to which
an event is applied once its records are flushed. So the state on disk is always one that really existed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np

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
