"""Messages that a consumer could not handle: tried again later, or put aside as dead letters.

As RocketMQ's ``AbstractSendMessageProcessor.consumerSendMsgBack``: a retried message is a new record that goes through
the delay levels to ``%RETRY%group``, a dead one goes to ``%DLQ%group``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...protocol.delivery import (
    DEAD_LETTER_LEVEL,
    DELAY_LEVEL_MAX,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_QUEUE,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RECORD_CRC,
    PROPERTY_RETRY_TOPIC,
    RETRY_LEVEL_FIRST,
    SCHEDULE_TOPIC,
    dead_letter_topic,
    retry_topic,
)
from ...protocol.ids import offset_id
from ...protocol.layout import SysFlag
from ...protocol.record import PROPERTY_DELAY, Record, encode_properties
from ..store import TopicConfig


@dataclass(frozen=True, slots=True)
class SentBack:
    """The record that comes of a message that was sent back. ``dead``: it is not tried again."""

    record: Record
    dead: bool


def send_back(record: Record, group: str, delay_level: int, retry_times_max: int) -> SentBack:
    """What to append for ``record``, which a consumer of the group could not handle.

    ``delay_level``: 1 to 18, 0 for RocketMQ's (3 and one more with each try), -1 for a dead letter at once.
    """
    properties = record.property_map()
    properties.pop(PROPERTY_RECORD_CRC, None)
    properties.setdefault(PROPERTY_RETRY_TOPIC, record.topic.decode("utf-8", "replace"))
    properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, offset_id(record.store_host, record.physical_offset))
    dead = delay_level == DEAD_LETTER_LEVEL or record.reconsume_times >= retry_times_max
    if dead:
        topic, queue_id = dead_letter_topic(group), 0
        properties[PROPERTY_DELAY] = "0"
    else:
        level = min(delay_level or RETRY_LEVEL_FIRST + record.reconsume_times, DELAY_LEVEL_MAX)
        topic, queue_id = SCHEDULE_TOPIC, level - 1
        properties[PROPERTY_DELAY] = str(level)
        properties[PROPERTY_REAL_TOPIC] = retry_topic(group)
        properties[PROPERTY_REAL_QUEUE] = "0"
    again = replace(
        record,
        topic=topic.encode(),
        queue_id=queue_id,
        properties=encode_properties(properties),
        sys_flag=record.sys_flag & ~SysFlag.TRANSACTION_MASK,
        reconsume_times=record.reconsume_times + 1,
        prepared_transaction_offset=0,
    )
    return SentBack(again, dead)


def topics_for(group: str) -> list[TopicConfig]:
    """The topics that messages sent back by the group go through, as they are made where they are not there."""
    return [
        TopicConfig(SCHEDULE_TOPIC, read_queues=DELAY_LEVEL_MAX, write_queues=DELAY_LEVEL_MAX),
        TopicConfig(retry_topic(group), read_queues=1, write_queues=1),
        TopicConfig(dead_letter_topic(group), read_queues=1, write_queues=1),
    ]
