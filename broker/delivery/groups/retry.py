"""Messages that a consumer could not handle: the broker delivers them again later, or makes them dead letters.

As RocketMQ's ``AbstractSendMessageProcessor.consumerSendMsgBack``: a retried message is a new record that goes through
the delay levels to ``%RETRY%group``, a dead one goes to ``%DLQ%group``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ....protocol.storage.delivery import (
    DEAD_LETTER_LEVEL,
    DEAD_LETTER_TOPIC_PREFIX,
    DELAY_LEVEL_MAX,
    PROPERTY_FIRST_POP_TIME,
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
from ....protocol.storage.layout import PRODUCED_PROPERTIES_BYTES_MAX, SysFlag
from ....protocol.storage.record import PROPERTY_DELAY, encode_properties, offset_id
from ...store import TopicConfig

if TYPE_CHECKING:
    from ....protocol.storage.record import Record


@dataclass(frozen=True, slots=True)
class SentBack:
    """The new record of a message that was sent back. ``dead``: it becomes a dead letter."""

    record: Record
    dead: bool


def send_back(
    record: Record, group: str, delay_level: int, retry_times_max: int, reason: str = "", member: str = "", to: str = ""
) -> SentBack:
    """Return the record to append for ``record``, which a consumer of the group could not handle.

    The message's original topic and id come from the record's properties if a broker wrote it as a retry or as a dead
    letter. For any other record they are its own topic and offset, whatever properties its producer set.

    ``delay_level``: 1 to 18, 0 for RocketMQ's rule (3, and one more with each attempt), -1 for a dead letter at once.
    ``reason`` and ``member``: why, and at which member; they replace those of the previous attempt, even if empty.
    ``to``: the retry topic, for a message that was popped; empty: the group's.
    """
    properties = record.property_map()
    # The checksum is that of the old record, and the note on the failure that of the previous attempt.
    for name in (PROPERTY_RECORD_CRC, PROPERTY_RETRY_REASON, PROPERTY_RETRY_MEMBER):
        properties.pop(name, None)
    topic = record.topic.decode("utf-8", "replace")
    if not topic.startswith((RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX)):
        # The producer chose these: they must not decide where an operator resends the message to.
        # With ``to``, the caller has set the time of the first pop itself.
        for name in (PROPERTY_RETRY_TOPIC, PROPERTY_ORIGIN_MESSAGE_ID, *(() if to else (PROPERTY_FIRST_POP_TIME,))):
            properties.pop(name, None)

    # Set at the first attempt only: a record that comes from a retry topic keeps its original topic and id.
    properties.setdefault(PROPERTY_RETRY_TOPIC, topic)
    properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, offset_id(record.store_host, record.physical_offset))
    dead = delay_level == DEAD_LETTER_LEVEL or record.reconsume_times >= retry_times_max
    if dead:
        topic, queue_id = dead_letter_topic(group), 0
        # As in RocketMQ, a dead letter has level 0 instead of none.
        properties[PROPERTY_DELAY] = "0"
    else:
        level = min(delay_level or RETRY_LEVEL_FIRST + record.reconsume_times, DELAY_LEVEL_MAX)
        topic, queue_id = SCHEDULE_TOPIC, level - 1
        properties[PROPERTY_DELAY] = str(level)
        properties[PROPERTY_REAL_TOPIC] = to or retry_topic(group)
        properties[PROPERTY_REAL_QUEUE] = "0"

    # Last, and cut to the bytes that are left: a long reason must not cost another property its place.
    encoded = encode_properties(properties)
    for name, value in ((PROPERTY_RETRY_MEMBER, member), (PROPERTY_RETRY_REASON, reason)):
        encoded += _property_that_fits(name, retry_note(value), PRODUCED_PROPERTIES_BYTES_MAX - len(encoded))
    new_record = replace(
        record,
        topic=topic.encode(),
        queue_id=queue_id,
        properties=encoded,
        # With the flag of a commit, the copy would pass for the transaction's own message.
        sys_flag=record.sys_flag & ~SysFlag.TRANSACTION_MASK,
        reconsume_times=record.reconsume_times + 1,
        prepared_transaction_offset=0,
    )
    return SentBack(new_record, dead)


def _property_that_fits(name: str, value: str, room: int) -> bytes:
    """Return the property in at most ``room`` bytes, its value truncated; empty if no part of the value fits."""
    # The bytes may be cut within a character, which is then left out.
    fits = value.encode()[: max(0, room - len(encode_properties({name: ""})))].decode("utf-8", "ignore")
    return encode_properties({name: fits}) if fits else b""


def topics_for(group: str) -> list[TopicConfig]:
    """Return the topics that messages sent back by the group go through, with the settings for creating them."""
    return [
        TopicConfig(SCHEDULE_TOPIC, read_queues=DELAY_LEVEL_MAX, write_queues=DELAY_LEVEL_MAX),
        TopicConfig(retry_topic(group), read_queues=1, write_queues=1),
        TopicConfig(dead_letter_topic(group), read_queues=1, write_queues=1),
    ]
