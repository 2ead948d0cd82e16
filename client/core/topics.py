"""Topics as the broker describes them, and the progress of groups in them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from .times import from_millis

EMPTY_QUEUE_MS = -1


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic's configuration. ``system``: it belongs to the broker itself; ``perm``: 4 readable + 2 writable.

    ``retention_hours``: how long its messages are kept; 0: as long as the broker keeps its log, -1: forever.
    ``retention_bytes``: maximum bytes of its records, the newest are kept; 0: no limit.
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
    """The contents of one queue: offsets in ``[min_offset, max_offset)``."""

    queue: int
    min_offset: int
    max_offset: int
    last_stored_ms: int
    """Store time of its last message in ms since 1970 UTC, -1 if the queue is empty."""

    @property
    def count(self) -> int:
        """Number of messages in the queue."""
        return self.max_offset - self.min_offset

    @property
    def last_stored_at(self) -> datetime | None:
        """Store time of its last message, None if the queue is empty."""
        return from_millis(self.last_stored_ms) if self.last_stored_ms != EMPTY_QUEUE_MS else None


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """A group's progress in one queue, which has the offsets in ``[min_offset, max_offset)``.

    ``committed``: offset of the next message to read; -1: the group has not committed one in this queue. In that case
    it reads the queue from its first message, unless ``known`` is False: then it has not started with the topic, and
    its first member will set the start rule.
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
        """Number of messages still to read; an upper bound if not ``known``."""
        return max(0, self.max_offset - max(self.committed, self.min_offset))
