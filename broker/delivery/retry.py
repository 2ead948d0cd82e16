"""Messages that a consumer could not handle: tried again later, or put aside as dead letters.

As RocketMQ's ``AbstractSendMessageProcessor.consumerSendMsgBack``: a retried message is a new record that goes through
the delay levels to ``%RETRY%group``, a dead one goes to ``%DLQ%group``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...protocol.delivery import (
    DEAD_LETTER_LEVEL,
    DEAD_LETTER_TOPIC_PREFIX,
    DELAY_LEVEL_MAX,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_QUEUE,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RECORD_CRC,
    PROPERTY_RETRY_MEMBER,
    PROPERTY_RETRY_REASON,
    PROPERTY_RETRY_TOPIC,
    RETRY_LEVEL_FIRST,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    dead_letter_topic,
    retry_note,
    retry_topic,
)
from ...protocol.ids import offset_id
from ...protocol.layout import PRODUCED_PROPERTIES_BYTES_MAX, SysFlag
from ...protocol.record import PROPERTY_DELAY, Record, encode_properties
from ..store import TopicConfig


@dataclass(frozen=True, slots=True)
class SentBack:
    """The record that comes of a message that was sent back. ``dead``: it is not tried again."""

    record: Record
    dead: bool


def send_back(
    record: Record, group: str, delay_level: int, retry_times_max: int, reason: str = "", member: str = ""
) -> SentBack:
    """What to append for ``record``, which a consumer of the group could not handle.

    Which topic it was first sent to, and under which id, says the record if a broker wrote it for a retry or as a dead
    letter; of any other the record's own topic and place count, whatever its producer set.

    ``delay_level``: 1 to 18, 0 for RocketMQ's (3 and one more with each try), -1 for a dead letter at once. ``reason``
    and ``member``: why, and with which member; they replace those of the try before, also where they are empty.
    """
    properties = record.property_map()
    for name in (PROPERTY_RECORD_CRC, PROPERTY_RETRY_REASON, PROPERTY_RETRY_MEMBER):
        properties.pop(name, None)
    topic = record.topic.decode("utf-8", "replace")
    if not topic.startswith((RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX)):
        # Its producer chose them: they must not decide where an operator sends it again.
        for name in (PROPERTY_RETRY_TOPIC, PROPERTY_ORIGIN_MESSAGE_ID):
            properties.pop(name, None)
    properties.setdefault(PROPERTY_RETRY_TOPIC, topic)
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
    encoded = encode_properties(properties)
    for name, value in ((PROPERTY_RETRY_MEMBER, member), (PROPERTY_RETRY_REASON, reason)):
        encoded += _property_that_fits(name, retry_note(value), PRODUCED_PROPERTIES_BYTES_MAX - len(encoded))
    again = replace(
        record,
        topic=topic.encode(),
        queue_id=queue_id,
        properties=encoded,
        sys_flag=record.sys_flag & ~SysFlag.TRANSACTION_MASK,
        reconsume_times=record.reconsume_times + 1,
        prepared_transaction_offset=0,
    )
    return SentBack(again, dead)


def _property_that_fits(name: str, value: str, room: int) -> bytes:
    """Return the property in at most ``room`` bytes, its value cut; nothing where not even a part of it fits."""
    fits = value.encode()[: max(0, room - len(encode_properties({name: ""})))].decode("utf-8", "ignore")
    return encode_properties({name: fits}) if fits else b""


def topics_for(group: str) -> list[TopicConfig]:
    """The topics that messages sent back by the group go through, as they are made where they are not there."""
    return [
        TopicConfig(SCHEDULE_TOPIC, read_queues=DELAY_LEVEL_MAX, write_queues=DELAY_LEVEL_MAX),
        TopicConfig(retry_topic(group), read_queues=1, write_queues=1),
        TopicConfig(dead_letter_topic(group), read_queues=1, write_queues=1),
    ]
