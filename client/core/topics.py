"""What the broker says of a topic, and of how far groups are in it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from .times import from_millis

EMPTY_QUEUE_MS = -1


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic's configuration. ``system``: it belongs to the broker itself; ``perm``: 4 readable + 2 writable.

    ``retention_hours``: how long its messages are kept; 0: as long as the broker keeps its log, -1: for ever.
    ``retention_bytes``: most bytes of its records, the newest; 0: no limit.
    """

    topic: str
    read_queues: int
    write_queues: int
    perm: int = 6
    order: bool = False
    system: bool = False
    retention_hours: int = 0
    retention_bytes: int = 0

    @property
    def name(self) -> str:
        """The same as ``topic``."""
        return self.topic

    @property
    def queues(self) -> int:
        """Queues that can be read."""
        return self.read_queues


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What one queue holds: offsets in ``[min_offset, max_offset)``."""

    queue: int
    min_offset: int
    max_offset: int
    last_stored_ms: int
    """Store time of its last message in ms since 1970 UTC, -1 where it is empty."""

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return self.max_offset - self.min_offset

    @property
    def last_stored_at(self) -> datetime | None:
        """Store time of its last message, None where it is empty."""
        return from_millis(self.last_stored_ms) if self.last_stored_ms != EMPTY_QUEUE_MS else None


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """How far a group is in one queue, which holds offsets in ``[min_offset, max_offset)``.

    ``committed``: the next offset that it will read; -1: it has committed nothing of this queue. Then it reads the
    queue from its first message; or (``known`` is False) it has not begun with the topic, and its first member will say
    where.
    """

    group: str
    topic: str
    queue: int
    committed: int
    min_offset: int
    max_offset: int
    known: bool = True

    @property
    def lag(self) -> int:
        """How many messages it has still to read; the most that it can be if that is not ``known``."""
        return max(0, self.max_offset - max(self.committed, self.min_offset))
