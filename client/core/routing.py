"""Which queue a message goes to.

A message with a sharding key goes to queue CRC-32(UTF-8 of the key) mod the topic's write queues: stable while the
number of queues is, and the same in every language. For everything else the broker chooses, the queues in turn.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from .topics import TopicInfo

TOPICS_FRESH_SECONDS = 30.0
"""How long a topic's number of queues is taken as known."""

ANY_QUEUE = -1
"""The broker chooses."""


def queue_of(sharding_key: str, write_queues: int) -> int:
    """The queue of all messages with this sharding key while the topic has ``write_queues`` queues."""
    return zlib.crc32(sharding_key.encode()) % write_queues


class QueueCounts:
    """How many queues each topic can be written to, as the broker said last.

    The driver asks the broker when ``of`` does not know; a topic that is not there yet gets what the broker gives to a
    topic at its first message.
    """

    __slots__ = ("_counts", "_fresh_until")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._fresh_until = 0.0

    def of(self, topic: str, now: float) -> int | None:
        """The topic's write queues, or None where the broker must be asked. ``now``: monotonic seconds."""
        return self._counts.get(topic) if now < self._fresh_until else None

    def last_known(self, topic: str) -> int | None:
        """The topic's write queues as they were last known, or None."""
        return self._counts.get(topic)

    def learned(self, topics: Sequence[TopicInfo], now: float) -> None:
        """What the broker answered."""
        self._counts = {topic.topic: topic.write_queues for topic in topics}
        self._fresh_until = now + TOPICS_FRESH_SECONDS

    def will_be_created(self, topic: str, write_queues: int) -> int:
        """The topic is not there: its first message makes it, with ``write_queues`` queues (at least 1)."""
        return self._counts.setdefault(topic, max(1, write_queues))

    def forget(self) -> None:
        """The broker knows better (it refused a queue): ask again."""
        self._fresh_until = 0.0
