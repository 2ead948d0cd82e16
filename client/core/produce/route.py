"""Selection of a message's queue.

A message with a sharding key goes to queue CRC-32(UTF-8 of the key) mod the topic's write queues: stable as long as the
number of queues is, and the same in every language. For all other messages the broker chooses, round-robin.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from ..topics import TopicInfo

TOPICS_FRESH_SECONDS = 30.0
"""How long a topic's number of queues is considered valid."""


def queue_of(sharding_key: str, write_queues: int) -> int:
    """Return the queue of all messages with this sharding key while the topic has ``write_queues`` queues."""
    return zlib.crc32(sharding_key.encode()) % write_queues


class QueueCounts:
    """Number of write queues of each topic, as last reported by the broker.

    The driver asks the broker if ``of`` returns None; a topic that does not exist yet counts with the number of queues
    that the broker gives to a topic created by its first message.
    """

    __slots__ = ("_counts", "_fresh_until")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._fresh_until = 0.0

    def of(self, topic: str, now: float) -> int | None:
        """Return the topic's write queues, or None if the broker must be asked. ``now``: monotonic seconds."""
        return self._counts.get(topic) if now < self._fresh_until else None

    def last_known(self, topic: str) -> int | None:
        """Return the last known number of the topic's write queues, or None."""
        return self._counts.get(topic)

    def learned(self, topics: Iterable[TopicInfo], now: float) -> None:
        """Record the topics that the broker reported."""
        self._counts = {topic.topic: topic.write_queues for topic in topics}
        self._fresh_until = now + TOPICS_FRESH_SECONDS

    def will_be_created(self, topic: str, write_queues: int) -> int:
        """Record a missing topic, which its first message creates with ``write_queues`` queues (at least 1)."""
        return self._counts.setdefault(topic, max(1, write_queues))

    def forget(self) -> None:
        """Expire the counts, because the broker refused a queue."""
        self._fresh_until = 0.0
