"""Search after a crash, or after a change of the primary, for waiting messages that were already delivered: only their
copies in the log tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.errors import TopicNotExist
from ....protocol.storage.delivery import PARKED_TOPIC, PROPERTY_REAL_QUEUE, PROPERTY_REAL_TOPIC
from ....protocol.storage.record import PROPERTY_UNIQ_KEY, decode_record
from ...store import KeySearch

if TYPE_CHECKING:
    from ....protocol.storage.record import Record
    from ...store import MessageStore


class CopyFinder:
    """A finder of delivered copies, by the index. Each copy counts for one message only. For one thread at a time."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._taken: set[int] = set()

    def delivered(self, places: Iterable[tuple[int, int]]) -> list[bool]:
        """Return for each message, given by physical offset and size, whether it was delivered. Reads from disk."""
        return [self._is_delivered(place) for place in places]

    def _is_delivered(self, place: tuple[int, int]) -> bool:
        physical_offset, size = place
        waiting = self._store.log_reads.record_at(physical_offset, size) if size > 0 else None
        if waiting is None:
            return False
        for copy in self._candidates(waiting):
            if copy.physical_offset not in self._taken and _is_copy(copy, waiting):
                self._taken.add(copy.physical_offset)
                return True
        return False

    def _candidates(self, waiting: Record) -> Iterator[Record]:
        """Yield the messages with the same unique key, in this one's target topic or parked, the oldest of each
        first."""
        properties = waiting.property_map()
        topic, key = properties.get(PROPERTY_REAL_TOPIC, ""), properties.get(PROPERTY_UNIQ_KEY, "")
        if key:
            yield from self._with_key(topic, key)
            yield from self._with_key(PARKED_TOPIC, key)

    def _with_key(self, topic: str, key: str) -> Iterator[Record]:
        try:
            found = self._store.query(KeySearch(topic, key, unique=True), hot=False)
        except TopicNotExist:
            return
        view = memoryview(found.body)
        # The result begins with the sizes of the records. They are the newest first.
        ends = np.cumsum(np.frombuffer(view[: 4 * found.count], ">u4").astype(np.int64)) + 4 * found.count
        begins = [4 * found.count, *ends.tolist()][: found.count]
        for begin, end in reversed(list(zip(begins, ends.tolist(), strict=True))):
            yield decode_record(bytes(view[begin:end]), check_crc=False)


def _is_copy(copy: Record, waiting: Record) -> bool:
    """Return whether ``copy`` is what delivery makes of ``waiting``.

    A producer that sends the same message twice is told apart unless all of these fields agree.
    """
    properties, wanted = copy.property_map(), waiting.property_map()
    return (
        copy.physical_offset > waiting.physical_offset
        and properties.get(PROPERTY_REAL_TOPIC) == wanted.get(PROPERTY_REAL_TOPIC)
        and (copy.topic == PARKED_TOPIC.encode() or str(copy.queue_id) == wanted.get(PROPERTY_REAL_QUEUE))
        and (copy.reconsume_times, copy.born_timestamp, copy.born_host, copy.flag, copy.body)
        == (waiting.reconsume_times, waiting.born_timestamp, waiting.born_host, waiting.flag, waiting.body)
    )
