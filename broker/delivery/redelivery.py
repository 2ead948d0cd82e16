"""Redelivery of messages that a consumer could not handle, gave back, or did not settle in time.

As RocketMQ's ``AbstractSendMessageProcessor.consumerSendMsgBack`` and ``PopReviveService.reviveRetry``: a message is
redelivered as a new record, which goes to the group's retry topic, directly or through the delay levels; after its last
attempt it goes to ``%DLQ%group`` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ...protocol.errors import MessageNotFound
from ...protocol.storage.delivery import (
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
    pop_retry_topic,
    popped_from,
    retry_note,
    retry_topic,
)
from ...protocol.storage.layout import PRODUCED_PROPERTIES_BYTES_MAX, SysFlag
from ...protocol.storage.record import PROPERTY_DELAY, encode_properties, offset_id
from ..store import TopicConfig

if TYPE_CHECKING:
    from ...protocol.storage.record import Record
    from .client_handle import Requester
    from .groups.coordinator import GroupCoordinator
    from .writer import RecordWriter


class Tally(Protocol):
    """Counts what happens to a group's messages."""

    def count_sent_back(self, group: str, retried: int, dead: int) -> None:
        """Count messages that are delivered again, and new dead letters."""

    def count_expired(self, group: str, count: int) -> None:
        """Count messages whose time was over."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How a message is redelivered that a consumer could not handle, gave back, or did not settle in time.

    ``delay_level``: 1 to 18, 0 for RocketMQ's rule (3, and one more with each attempt), -1 for a dead letter at once;
    ``times_max``: number of redeliveries before a message becomes a dead letter, negative for the group's own;
    ``member``: the member of the group that could not handle it, "" if it is none; ``at_once``: without a delay, for a
    message that was popped; ``is_attempt``: whether its last delivery counts as an attempt.
    """

    delay_level: int = 0
    times_max: int = -1
    member: str = ""
    at_once: bool = False
    is_attempt: bool = True


EXPIRED = RetryPolicy(at_once=True)
"""For a message that its consumer did not settle in time."""
NOT_COUNTED = RetryPolicy(at_once=True, is_attempt=False)
"""For a message that its consumer gives back without having tried it."""


class PoppedFrom(NamedTuple):
    """The topic that a message was popped from, which may be a retry topic, and the time of that (ms)."""

    topic: str
    pop_ms: int

    def retry_topic(self, group: str) -> str:
        """Return where a message goes for another delivery. Nothing new goes to a topic of an old name."""
        topic = popped_from(group, self.topic)
        return topic if topic.startswith(RETRY_TOPIC_PREFIX) else pop_retry_topic(group, topic)


class Redelivered(NamedTuple):
    """The new record of a message. ``dead``: it becomes a dead letter."""

    record: Record
    dead: bool


def redelivered(
    record: Record, group: str, policy: RetryPolicy, times_max: int, reason: str = "", popped: PoppedFrom | None = None
) -> Redelivered:
    """Return the record to append for another delivery of ``record`` to the group.

    The message's original topic and id come from the record's properties if a broker wrote it as a retry or as a dead
    letter. For any other record they are its own topic and offset, whatever properties its producer set.

    ``times_max``: the policy's, or the group's own. ``reason``: why the last attempt failed; it and the policy's member
    replace those of the attempt before, even if empty, unless the message is delivered again at once.
    """
    properties = record.property_map()
    # The checksum is that of the old record.
    properties.pop(PROPERTY_RECORD_CRC, None)
    topic = record.topic.decode("utf-8", "replace")
    if not topic.startswith((RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX)):
        # The producer chose these: they must not decide where an operator resends the message to.
        for name in (PROPERTY_RETRY_TOPIC, PROPERTY_ORIGIN_MESSAGE_ID, PROPERTY_FIRST_POP_TIME):
            properties.pop(name, None)

    # Set at the first attempt only: a record that comes from a retry topic keeps its original topic and id.
    properties.setdefault(PROPERTY_RETRY_TOPIC, topic if popped is None else popped_from(group, popped.topic))
    properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, offset_id(record.store_host, record.physical_offset))
    if popped is not None and not popped.topic.startswith(RETRY_TOPIC_PREFIX):
        properties[PROPERTY_FIRST_POP_TIME] = str(popped.pop_ms)

    to, queue_id = retry_topic(group) if popped is None else popped.retry_topic(group), 0
    exhausted = policy.delay_level == DEAD_LETTER_LEVEL or record.reconsume_times >= times_max
    dead = policy.is_attempt and exhausted
    if dead:
        # As in RocketMQ, a dead letter has level 0 instead of none.
        to, properties[PROPERTY_DELAY] = dead_letter_topic(group), "0"
    elif not policy.at_once:
        level = min(policy.delay_level or RETRY_LEVEL_FIRST + record.reconsume_times, DELAY_LEVEL_MAX)
        properties[PROPERTY_DELAY] = str(level)
        properties[PROPERTY_REAL_TOPIC], properties[PROPERTY_REAL_QUEUE] = to, "0"
        to, queue_id = SCHEDULE_TOPIC, level - 1

    notes = {PROPERTY_RETRY_MEMBER: policy.member, PROPERTY_RETRY_REASON: reason} if dead or not policy.at_once else {}
    for name in notes:
        properties.pop(name, None)
    encoded = encode_properties(properties)
    # Last, and cut to the bytes that are left: a long reason must not cost another property its place.
    for name, note in notes.items():
        encoded += _property_that_fits(name, retry_note(note), PRODUCED_PROPERTIES_BYTES_MAX - len(encoded))
    new = replace(
        record,
        topic=to.encode(),
        queue_id=queue_id,
        properties=encoded,
        # With the flag of a commit, the copy would pass for the transaction's own message.
        sys_flag=record.sys_flag & ~SysFlag.TRANSACTION_MASK,
        reconsume_times=record.reconsume_times + int(policy.is_attempt),
        prepared_transaction_offset=0,
    )
    return Redelivered(new, dead)


def _property_that_fits(name: str, value: str, room: int) -> bytes:
    """Return the property in at most ``room`` bytes, its value truncated; empty if no part of the value fits."""
    # The bytes may be cut within a character, which is then left out.
    fits = value.encode()[: max(0, room - len(encode_properties({name: ""})))].decode("utf-8", "ignore")
    return encode_properties({name: fits}) if fits else b""


def topics_for(group: str) -> list[TopicConfig]:
    """Return the topics that redelivered messages of the group go through, with the settings for creating them."""
    return [topic_config(name) for name in (SCHEDULE_TOPIC, retry_topic(group), dead_letter_topic(group))]


def topic_config(name: str) -> TopicConfig:
    """Return the settings for creating a topic that redelivered messages go through."""
    queues = DELAY_LEVEL_MAX if name == SCHEDULE_TOPIC else 1
    return TopicConfig(name, read_queues=queues, write_queues=queues)


@dataclass(frozen=True, slots=True)
class FailedMessages:
    """Messages that a consumer of a group could not handle. ``reasons``: one for each of ``physical_offsets``;
    ``epoch``: that of the policy's member."""

    group: str
    physical_offsets: Sequence[int]
    policy: RetryPolicy
    reasons: Sequence[str]
    epoch: int = 0


class RetryService:
    """Redelivers messages that consumers could not handle, and that they name by their physical offsets.

    ``tally`` counts them.
    """

    def __init__(self, groups: GroupCoordinator, writer: RecordWriter, tally: Tally) -> None:
        self._store = writer.store
        self._groups = groups
        self._writer = writer
        self._tally = tally

    async def redeliver(
        self, caller: Requester, messages: FailedMessages, may_consume: Callable[[str], bool] | None
    ) -> tuple[int, int]:
        """Redeliver messages, all or none; once that is acknowledged, return how many are delivered again, and how many
        are dead letters now. ``may_consume``: predicate for the topics of the messages; None: all."""
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
        again = [
            redelivered(record, group, policy, times_max, reason)
            for record, reason in zip(records, messages.reasons, strict=True)
        ]
        end_offset = self._writer.append_records([each.record for each in again])
        dead = sum(each.dead for each in again)
        self._tally.count_sent_back(group, len(again) - dead, dead)
        await self._writer.acknowledged(end_offset)
        return len(again) - dead, dead

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
