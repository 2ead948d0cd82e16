"""Dead letters of a group: reading those that wait, and sending them again.

A group's dead letters are in ``%DLQ%group``. The group's committed offset in that topic records progress: the dead
letters before it have been sent again or purged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...protocol.errors import FlintError, GroupNotExist, MessageDamaged, MessageNotFound, TopicNotExist
from ...protocol.storage.delivery import (
    DEAD_LETTER_TOPIC_PREFIX,
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_HALF,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SECONDS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION_ID,
    dead_letter_topic,
    pop_retry_topic,
    retry_topic,
)
from ...protocol.storage.record import FORBIDDEN_PROPERTIES, FORBIDDEN_PROPERTY_PREFIX, PROPERTY_DELAY
from ..core.produce.receipts import DeliveryFailed
from ..errors import CorruptMessage, InvalidMessage
from ..message import Message, with_properties

if TYPE_CHECKING:
    from ...protocol.commands import ConsumeStats, TopicTotals
    from ..core.consume.batch import StoredMessage
    from ..sync.admin import Admin
    from ..sync.consumer import Consumer
    from ..sync.producer import Producer

BATCH_COUNT = 500
"""Number of dead letters that are sent between two commits of the progress; after an interruption, at most this many
are sent a second time."""
PROPERTY_DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
"""Property of a message that was sent again: its original id, which stays the same each time."""
_BOOKKEEPING = frozenset(
    {
        PROPERTY_DELAY,
        PROPERTY_FIRST_POP_TIME,
        PROPERTY_TIMER_DELIVER_MS,
        PROPERTY_TIMER_DELAY_MS,
        PROPERTY_TIMER_DELAY_SECONDS,
        PROPERTY_HALF,
        PROPERTY_PRODUCER_GROUP,
        PROPERTY_TRANSACTION_ID,
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        *FORBIDDEN_PROPERTIES,
    }
)
"""Properties about delivery, left out when a message is sent again: the copy is an ordinary message, not delayed and
not part of a transaction."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Dead letters of a queue with offsets from ``first`` to before ``end``. Lost ones are missing in ``messages``."""

    first: int
    messages: list[StoredMessage]
    end: int


@dataclass(slots=True)
class DeadQueue:
    """One queue of a group's dead letters. ``next_offset``: the first that waits; ``end``: one after the last."""

    group: str
    queue: int
    min_offset: int
    next_offset: int
    end: int

    @property
    def waiting(self) -> int:
        """Number of dead letters that are still to be dealt with."""
        return self.end - self.next_offset

    def check_has(self, first: int, end: int) -> None:
        """Raise ``MessageNotFound`` if the queue keeps none of these offsets."""
        if first >= self.end or end <= self.min_offset:
            raise MessageNotFound(
                f"no dead letter of group {self.group} has an offset from {first} to {end - 1}; the queue keeps "
                f"{self.min_offset} to {self.end - 1}"
            )

    def read(
        self, consumer: Consumer, first: int, end: int, pass_over: Callable[[MessageDamaged], None] | None = None
    ) -> Iterator[Stretch]:
        """Yield the dead letters from ``first`` to before ``end``, including those with damaged bodies.

        ``pass_over`` is called with the error of a record that the broker cannot read; without it, the error is raised.
        """
        topic = dead_letter_topic(self.group)
        first, end = max(first, self.min_offset), min(end, self.end)
        while first < end:
            try:
                batch = consumer.pull(topic, self.queue, first, min(BATCH_COUNT, end - first))
            except MessageDamaged as error:
                if pass_over is None:
                    error.add_note(f"next: flintmq dlq purge {self.group} --before {error.queue_offset + 1} skips it")
                    raise
                pass_over(error)
                first = error.queue_offset + 1
                continue
            yield Stretch(first, list(batch.messages), batch.next_offset)
            first = batch.next_offset


def dead_queues(consumer: Consumer, group: str) -> list[DeadQueue]:
    """Return the queues with the group's dead letters; empty if it never had any. Raises ``GroupNotExist``."""
    topic = dead_letter_topic(group)
    try:
        stats = consumer.topic_stats(topic)
    except TopicNotExist:
        return []
    done = consumer.committed(group, topic)
    return [
        # The committed offset may be below what retention has left, or beyond the end of a restored log.
        DeadQueue(
            group,
            row.queue,
            row.min_offset,
            min(max(done.get(row.queue, 0), row.min_offset), row.max_offset),
            row.max_offset,
        )
        for row in stats
    ]


def waiting_by_group(topics: Iterable[TopicTotals], stats: Iterable[ConsumeStats]) -> dict[str, int]:
    """Return how many dead letters wait, by group, for the groups that keep any. ``stats``: at least the rows of the
    groups in their own dead-letter topics, in which a committed offset means that those before it are settled."""
    settled: dict[str, int] = {}
    for row in stats:
        if row.topic == dead_letter_topic(row.group):
            settled[row.topic] = settled.get(row.topic, 0) + row.max_offset - row.min_offset - row.lag
    return {
        row.topic.removeprefix(DEAD_LETTER_TOPIC_PREFIX): row.messages - settled.get(row.topic, 0)
        for row in topics
        if row.topic.startswith(DEAD_LETTER_TOPIC_PREFIX) and row.messages
    }


def check_group(admin: Admin, group: str) -> None:
    """Raise ``GroupNotExist`` if there is neither a group of this name nor a dead-letter topic for it."""
    if dead_letter_topic(group) in admin.topics() or group in {info.group for info in admin.groups()}:
        return
    raise GroupNotExist(f"there is no group {group}: no consumer has joined or committed under that name")


def groups_with_dead_letters(admin: Admin) -> list[str]:
    prefix = DEAD_LETTER_TOPIC_PREFIX
    return sorted(topic.removeprefix(prefix) for topic in admin.topics() if topic.startswith(prefix))


# ---- sending again


def own_properties(message: StoredMessage) -> dict[str, str]:
    """Return the properties that the sender set, without those that brokers and clients added."""
    return {
        name: value
        for name, value in message.user_properties.items()
        if name not in _BOOKKEEPING and not name.startswith(FORBIDDEN_PROPERTY_PREFIX)
    }


def original_topic(message: StoredMessage) -> str | None:
    """Return the topic that a dead letter was first sent to, or None if the message does not record it."""
    return message.properties.get(PROPERTY_RETRY_TOPIC)


@dataclass(frozen=True, slots=True)
class Target:
    """Destination of dead letters: each to its original topic, all to ``topic``, or only to the group ``to_group``."""

    topic: str = ""
    to_group: str = ""

    def message(self, dead: StoredMessage, record_bytes_max: int) -> Message:
        """Return the message to send for a dead letter, with its original id if a record of at most
        ``record_bytes_max`` bytes has room for it. Raises ``CorruptMessage`` or ``InvalidMessage``."""
        properties = own_properties(dead)
        topic = self.topic or original_topic(dead)
        if topic is None:
            raise InvalidMessage("it does not record its original topic")
        needed: dict[str, str] = {}
        if self.to_group:
            needed[PROPERTY_RETRY_TOPIC] = topic
            # Consumers that pop read the retries of each topic from a topic of its own.
            is_popped = PROPERTY_FIRST_POP_TIME in dead.properties
            topic = pop_retry_topic(self.to_group, topic) if is_popped else retry_topic(self.to_group)
        message = Message.again(dead, topic, properties=properties)
        noted = {PROPERTY_DLQ_ORIGIN_MESSAGE_ID: dead.message_id}
        with_all = with_properties(message, noted | needed, record_bytes_max)
        if (found := with_all or with_properties(message, needed, record_bytes_max)) is None and needed:
            raise InvalidMessage(
                f"its properties leave no room for {PROPERTY_RETRY_TOPIC}, without which the group {self.to_group} "
                "would not know its topic; it can only be sent to a topic"
            )
        return found or message


class DeadLetterStays(FlintError):
    """Error: a dead letter cannot be sent again, and none after it is sent either. The message is for a page and for a
    terminal; only the note has the options of the command line."""

    def __init__(self, dead: StoredMessage, reason: FlintError) -> None:
        super().__init__(
            f"the dead letter at offset {dead.queue_offset} of {dead.topic} cannot be sent again: {reason}; the "
            "later ones wait, too"
        )
        group = dead.topic.removeprefix(DEAD_LETTER_TOPIC_PREFIX)
        self.add_note(
            f"next: --to-topic TOPIC sends it elsewhere; flintmq dlq purge {group} --before {dead.queue_offset + 1} "
            "skips it"
        )


class Resending:
    """A sender of the dead letters of a group. ``sent``: number of messages sent, by topic.

    ``read_topics``: topics that the group has read; empty if unknown. A dead letter whose recorded topic is another one
    is not sent: a broker of an earlier release let producers set that property.
    """

    def __init__(
        self,
        consumer: Consumer,
        producer: Producer,
        topics: Iterable[str],
        target: Target,
        *,
        dry_run: bool,
        read_topics: Iterable[str] = (),
    ) -> None:
        self.sent: dict[str, int] = {}
        self._consumer = consumer
        self._producer = producer
        self._topics = frozenset(topics)
        self._read_topics = frozenset(read_topics)
        self._target = target
        self._dry_run = dry_run
        self._may_note: set[int] = set()

    def prepare(self, batch: list[StoredMessage]) -> tuple[list[Message], FlintError | None]:
        """Return the messages to send, up to the first dead letter that cannot be sent, and the error for that one."""
        messages: list[Message] = []
        for dead in batch:
            try:
                message = self._target.message(dead, self._producer.record_bytes_max)
                self._check_was_read(dead)
                if message.topic not in self._topics:
                    raise InvalidMessage(f"its topic {message.topic} does not exist or was deleted")
            except (CorruptMessage, InvalidMessage) as error:
                return messages, DeadLetterStays(dead, error)
            messages.append(message)
        return messages, None

    def _check_was_read(self, dead: StoredMessage) -> None:
        topic = original_topic(dead)
        if self._read_topics and not self._target.topic and topic not in self._read_topics:
            group = dead.topic.removeprefix(DEAD_LETTER_TOPIC_PREFIX)
            raise InvalidMessage(f"its recorded topic is {topic}, which group {group} has never read")

    def send(self, queue: DeadQueue, stretch: Stretch) -> None:
        """Send consecutive dead letters, and commit the progress if none before them waits.

        If one cannot be sent, raises the reason after sending and recording those before it.
        """
        batch = stretch.messages
        notes = not self._dry_run and stretch.first <= queue.next_offset
        if notes and queue.queue not in self._may_note:
            self.note(queue, queue.next_offset)  # fails before anything is sent if the user may not commit
            self._may_note.add(queue.queue)
        messages, trouble = self.prepare(batch)
        acknowledged = len(messages)
        try:
            if not self._dry_run:
                self._producer.send_many(messages)
        except DeliveryFailed as error:
            # Progress is one offset, so messages that were stored after the first failure are sent again.
            acknowledged, trouble = min(error.errors), error
        for message in messages[:acknowledged]:
            self.sent[message.topic] = self.sent.get(message.topic, 0) + 1
        if notes and trouble is None:
            self.note(queue, stretch.end)
        elif notes and acknowledged:
            self.note(queue, batch[acknowledged - 1].queue_offset + 1)
        if trouble is not None:
            raise trouble

    def note(self, queue: DeadQueue, next_offset: int) -> None:
        """Record that the dead letters before ``next_offset`` are dealt with. Raises ``GroupRunning`` if a member of
        the group consumes its dead letters itself."""
        queue.next_offset = max(next_offset, queue.next_offset)
        self._consumer.commit(queue.group, dead_letter_topic(queue.group), {queue.queue: queue.next_offset})
