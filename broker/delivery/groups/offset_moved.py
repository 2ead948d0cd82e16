"""OFFSET_MOVED_EVENT: RocketMQ's record of messages that a group missed because retention deleted them."""

from __future__ import annotations

import json
import time

from ....protocol.storage.delivery import OFFSET_MOVED_TOPIC
from ....protocol.storage.record import PROPERTY_KEYS, PROPERTY_TAGS, Record, encode_properties
from ...store import TopicConfig

TOPIC = TopicConfig(OFFSET_MOVED_TOPIC, read_queues=1, write_queues=1)


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
