"""The queue offsets of the next messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping


class AppendOffsets:
    """Queue offset of each queue's next message. RocketMQ: topicQueueTable. Belongs to the appending thread.

    ``stored_end``: returns the offset that follows a queue's units, for a queue that nothing was appended to yet.
    """

    def __init__(self, stored_end: Callable[[str, int], int]) -> None:
        self._stored_end = stored_end
        self._by_topic: dict[str, dict[int, int]] = {}

    def known(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue that messages were appended to since the store was opened; -1 for another."""
        queues = self._by_topic.get(topic)
        return -1 if queues is None else queues.get(queue_id, -1)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the queue's next message."""
        queue_offset = self.known(topic, queue_id)
        return queue_offset if queue_offset >= 0 else self._stored_end(topic, queue_id)

    def advance(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Set the queue offset of the queue's next message after an append."""
        queues = self._by_topic.get(topic)
        if queues is None:
            queues = self._by_topic[topic] = {}
        queues[queue_id] = queue_offset

    def forget(self) -> None:
        """Take every queue's next offset from its units again."""
        self._by_topic.clear()

    def of_topic(self, topic: str) -> Mapping[int, int]:
        """Return the offsets of the topic's queues that messages were appended to, by queue."""
        return self._by_topic.get(topic, {})
