"""Groups that missed messages because retention deleted them: they continue at the first that exists, and RocketMQ's
record OFFSET_MOVED_EVENT says so."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING

from ....protocol.errors import BrokerError
from ....protocol.storage.delivery import OFFSET_MOVED_TOPIC
from ....protocol.storage.record import PROPERTY_KEYS, PROPERTY_TAGS, Record, encode_properties
from ...store import TopicConfig

if TYPE_CHECKING:
    from ...store import MessageStore
    from ..writer import RecordWriter
    from .coordinator import GroupCoordinator

log = logging.getLogger(__name__)

TOPIC = TopicConfig(OFFSET_MOVED_TOPIC, read_queues=1, write_queues=1)


class OffsetMover:
    """Moves groups whose next messages have expired."""

    def __init__(self, store: MessageStore, groups: GroupCoordinator, writer: RecordWriter, broker_name: str) -> None:
        self._store = store
        self._groups = groups
        self._writer = writer
        self._broker_name = broker_name

    def move(self, group: str, member: str, topic: str, queue_id: int, asked: int, moved_to: int) -> None:
        """Move a group that asked for expired messages to the first that exist, and store an event about it."""
        groups, offsets = self._groups, self._store.consumer_offsets
        name = groups.progress_name(group, member)
        committed = offsets.committed_of(name, topic, queue_id)
        if committed is not None and committed >= moved_to:
            return  # already moved; members may ask several times with the old offset
        if committed is None and not self._store.groups.has(group):
            return  # a reader that uses the name without being a group: it has no members and no progress
        log.warning(
            "group %s: messages %d to %d of topic %s, queue %d were removed before it had consumed them",
            group,
            asked,
            moved_to - 1,
            topic,
            queue_id,
        )
        groups.offsets_moved += 1
        # An offset that is there is overwritten; a new one counts towards limits.committed_offsets_max.
        has_room = committed is not None or len(offsets) < groups.offsets_max
        if has_room and (name == group or committed is not None):  # most broadcasting members commit nothing
            offsets.commit(name, topic, queue_id, moved_to)
        record = offset_moved_record(
            self._broker_name, group, topic, queue_id, asked, moved_to, self._store.commitlog.store_host
        )

        def made(error: BrokerError | None) -> None:
            # The event is information only: the group has been moved, whether or not it can be stored.
            try:
                if error is not None:
                    raise error
                self._writer.append_records([record])
            except BrokerError as failure:
                log.error("cannot store the event that group %s was moved: %s", group, failure)

        self._writer.with_topics([TOPIC], made)


def offset_moved_record(
    broker_name: str, group: str, topic: str, queue_id: int, asked: int, moved_to: int, born_host: bytes
) -> Record:
    """Return the event's record: the group asked for offset ``asked`` of a queue that now begins at ``moved_to``."""
    event = {
        "consumerGroup": group,
        "messageQueue": {"brokerName": broker_name, "queueId": queue_id, "topic": topic},
        "offsetNew": moved_to,
        "offsetRequest": asked,
    }
    return Record(
        topic=OFFSET_MOVED_TOPIC.encode(),
        body=json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode(),
        properties=encode_properties({PROPERTY_KEYS: group, PROPERTY_TAGS: group}),
        born_timestamp=time.time_ns() // 1_000_000,
        born_host=born_host,
    )
