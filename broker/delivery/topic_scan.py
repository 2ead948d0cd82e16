"""Reading of a system topic from an offset on, as a start does with half messages and with notes. Blocks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...protocol.storage.layout import UNIT

if TYPE_CHECKING:
    from ...protocol.storage.record import Record
    from ..store import MessageStore

log = logging.getLogger(__name__)

UNITS_A_READ = 1024


def records_from(store: MessageStore, topic: str, first: int, end: int | None = None) -> Iterator[Record]:
    """Yield the records of queue 0 of a topic with offsets in ``[first, end)``; ``end`` None: all from ``first`` on.

    Records that are lost to damage are skipped, and logged together after the last one.
    """
    queue = store.queues.get(topic, 0)
    if queue is None:
        return
    lost = 0
    last = queue.max_offset if end is None else min(end, queue.max_offset)
    # Retention may have deleted records since the caller's offset was saved.
    at, name = max(first, store.queue_reads.first_offset(queue)), topic.encode()
    while at < last:
        count = min(UNITS_A_READ, last - at)
        for physical_offset, size, _ in UNIT.unpack_all(queue.read_units(at, count, hot=False)):
            record = store.log_reads.record_at(physical_offset, size)
            # A damaged unit can lead to a sound record of another topic.
            if record is None or record.topic != name:
                lost += 1
            else:
                yield record
        at += count
    if lost:
        log.error("%d records of %s are lost to damage of the log: continuing without them", lost, topic)
