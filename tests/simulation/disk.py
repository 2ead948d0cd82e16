"""A member's disk: records in the page cache, of which a power cut keeps what was flushed and perhaps a little more."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from flintmq.broker.replication.core.configuration import Epochs
from flintmq.broker.replication.core.messages import Cut, Restart, SaveState


class Violation(AssertionError):
    """The replica set broke a promise."""


class Record(NamedTuple):
    """A record of the log. Two records are the same if their content is."""

    start: int
    end: int
    content: int


Step = Cut | Restart | SaveState
Rows = dict[str, tuple[int, int]]
"""Rows of a table: the newest change of each, (epoch, number)."""


@dataclass(slots=True)
class Disk:
    """Log and state of one member; both outlive its process."""

    cluster_id: str = ""
    epochs: Epochs = ()
    complete: bool = False
    confirmed: int = 0
    """The confirmed offset that was put on disk last."""
    begin: int = 0
    flushed: int = 0
    records: list[Record] = field(default_factory=list)
    tables: dict[str, Rows] = field(default_factory=dict)
    generation: int = 0
    """Grows with each cut: a flush that began before says nothing about the log after it."""

    @property
    def end(self) -> int:
        """Physical offset at which the log ends."""
        return self.records[-1].end if self.records else self.begin

    def append(self, *records: Record) -> None:
        """Write records into the page cache."""
        for record in records:
            if record.start != self.end:
                raise Violation(f"a record is written at {record.start}, beyond the log's end at {self.end}")
            self.records.append(record)

    def between(self, start: int, end: int) -> tuple[Record, ...]:
        """Return the records in a range that begins and ends between records."""
        first = bisect_left(self.records, start, key=lambda record: record.start)
        last = bisect_right(self.records, end, key=lambda record: record.end)
        return tuple(self.records[first:last])

    def piece_end(self, offset: int, limit: int) -> int:
        """Return the end of the last whole record below ``limit``, or of the first one."""
        first = bisect_left(self.records, offset, key=lambda record: record.start)
        last = bisect_right(self.records, limit, key=lambda record: record.end)
        if first == len(self.records) or self.records[first].start != offset:
            raise Violation(f"no record begins at {offset}, which a follower is said to have reached")
        return self.records[max(first, last - 1)].end

    def do(self, step: Step) -> None:
        """Do a step of the core, all of it."""
        match step:
            case Cut(to):
                self.generation += 1
                self._cut(to)
            case Restart(begin, cluster_id, epochs):
                self.generation += 1
                self.records.clear()
                self.begin = self.flushed = begin
                self.confirmed = min(self.confirmed, begin)
                self.cluster_id, self.epochs, self.complete = cluster_id, epochs, False
            case SaveState(cluster_id, epochs, complete):
                self.cluster_id, self.epochs, self.complete = cluster_id, epochs, complete

    def _cut(self, to: int) -> None:
        del self.records[bisect_right(self.records, to, key=lambda record: record.end) :]
        self.flushed = min(self.flushed, self.end)
        self.confirmed = min(self.confirmed, self.end)

    def delete_oldest(self, count: int) -> None:
        """Delete the oldest records, as retention does."""
        self.begin = self.records[count - 1].end
        del self.records[:count]

    def cut_power(self, random: Random) -> None:
        """Lose what was not flushed, or a part of it."""
        lost = self.between(self.flushed, self.end)
        kept = random.randrange(len(lost) + 1) if lost and random.random() < 0.3 else 0
        self._cut(lost[kept].start if kept < len(lost) else self.end)
        self.generation += 1

    def note_confirmed(self, offset: int) -> None:
        """Put the confirmed offset on disk."""
        self.confirmed = min(offset, self.flushed)
