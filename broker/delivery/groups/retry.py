"""Messages that a consumer could not handle: the broker delivers them again later, or makes them dead letters.

As RocketMQ's ``AbstractSendMessageProcessor.consumerSendMsgBack``: a retried message is a new record that goes through
the delay levels to ``%RETRY%group``, a dead one goes to ``%DLQ%group``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from ....protocol.errors import MessageNotFound
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
    from ..client_handle import Requester
    from ..writer import RecordWriter
    from .coordinator import GroupCoordinator


class Tally(Protocol):
    """Counts what happens to a group's messages."""

    def count_sent_back(self, group: str, retried: int, dead: int) -> None:
        """Count messages that are delivered again, and new dead letters."""

    def count_expired(self, group: str, count: int) -> None:
        """Count messages whose time was over."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How messages are stored again that a consumer could not handle, or gives back.

    ``delay_level``: 1 to 18, 0 for RocketMQ's rule (3, and one more with each attempt), -1 for a dead letter at once;
    ``times_max``: number of redeliveries before a message becomes a dead letter, negative for the group's own;
    ``member``: the member of the group that could not handle them, "" if it is none; ``is_attempt``: if the delivery
    was none, the message is delivered again at once, and the other fields do not matter.
    """

    delay_level: int = 0
    times_max: int = -1
    member: str = ""
    is_attempt: bool = True


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

    ``delay_level``: as in ``RetryPolicy``. ``reason`` and ``member``: why, and at which member; they replace those of
    the previous attempt, even if empty.
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
    return SentBack(copied(record, topic, queue_id, encoded), dead)


def copied(record: Record, topic: str, queue_id: int, properties: bytes, attempts: int = 1) -> Record:
    """Return the record of another delivery of a message. ``attempts``: 0 if the last delivery was none."""
    return replace(
        record,
        topic=topic.encode(),
        queue_id=queue_id,
        properties=properties,
        # With the flag of a commit, the copy would pass for the transaction's own message.
        sys_flag=record.sys_flag & ~SysFlag.TRANSACTION_MASK,
        reconsume_times=record.reconsume_times + attempts,
        prepared_transaction_offset=0,
    )


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


@dataclass(frozen=True, slots=True)
class SendBack:
    """Messages that a consumer of a group could not handle. ``reasons``: one for each of ``physical_offsets``;
    ``epoch``: that of the policy's member."""

    group: str
    physical_offsets: Sequence[int]
    policy: RetryPolicy
    reasons: Sequence[str]
    epoch: int = 0


class RetryService:
    """Stores messages again that consumers could not handle, and that they name by their physical offsets.

    ``tally`` counts them.
    """

    def __init__(self, groups: GroupCoordinator, writer: RecordWriter, tally: Tally) -> None:
        self._store = writer.store
        self._groups = groups
        self._writer = writer
        self._tally = tally

    async def store_again(
        self, caller: Requester, messages: SendBack, may_consume: Callable[[str], bool] | None
    ) -> tuple[int, int]:
        """Store messages again, all or none; once that is acknowledged, return how many are delivered again, and how
        many are dead letters now. ``may_consume``: predicate for the topics of the messages; None: all."""
        store, groups, group, policy = self._store, self._groups, messages.group, messages.policy
        offsets = messages.physical_offsets
        records = await caller.read(lambda hot: [self._record(offset, may_consume, hot) for offset in offsets])
        # Only now, because the records tell which queues the member must hold.
        if policy.member:
            for record in records:
                topic = record.topic.decode()
                groups.check_holder(group, policy.member, messages.epoch, topic, record.queue_id)
        groups.check_may_send_back(group)
        await self._writer.topics_exist(topics_for(group))
        times_max = store.groups.retry_times_max(group, policy.times_max)
        sent_back = [
            send_back(record, group, policy.delay_level, times_max, reason, policy.member)
            for record, reason in zip(records, messages.reasons, strict=True)
        ]
        end_offset = self._writer.append_records([each.record for each in sent_back])
        dead = sum(each.dead for each in sent_back)
        self._tally.count_sent_back(group, len(sent_back) - dead, dead)
        await self._writer.acknowledged(end_offset)
        return len(sent_back) - dead, dead

    def _record(self, physical_offset: int, may_consume: Callable[[str], bool] | None, hot: bool) -> Record:
        """Return the record at a physical offset. Callable from any thread.

        A record that the user may not consume raises the same error as a missing one, so that the error does not reveal
        which records exist.
        """
        record = None
        # With sync flush, a record beyond this may still be lost in a crash.
        if physical_offset < self._store.dispatchable_offset:
            record = self._store.queries.consumable_record(physical_offset, hot=hot)
        if record is None or not (may_consume is None or may_consume(record.topic.decode())):
            raise MessageNotFound(
                f"there is no message at physical offset {physical_offset}: it has expired, its topic was deleted, or "
                "it never existed; nothing was sent back"
            )
        return record
