"""Dead letters: which of a group's are not dealt with, and what is sent again of one.

A group's dead letters lie in ``%DLQ%group``. What the group has committed there says which are dealt with: those in
front of it were sent again or purged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...protocol.delivery import (
    DEAD_LETTER_TOPIC_PREFIX,
    PROPERTY_HALF,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SECONDS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION_ID,
    dead_letter_topic,
    retry_topic,
)
from ...protocol.errors import FlintError, GroupNotExist, MessageDamaged, MessageNotFound, TopicNotExist
from ...protocol.record import (
    FORBIDDEN_PROPERTIES,
    FORBIDDEN_PROPERTY_PREFIX,
    PROPERTY_DELAY,
)
from ..errors import CorruptMessage, DeliveryFailed, InvalidMessage
from ..message import Message

if TYPE_CHECKING:
    from ..core.stored import StoredMessage
    from ..sync.admin import Admin
    from ..sync.consumer import Consumer
    from ..sync.producer import Producer

BATCH_COUNT = 500
"""Dead letters that are sent again before that is noted: an interruption may send so many a second time."""
PROPERTY_DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
"""On a message that was sent again: the id that it had before, the same each time."""
_BOOKKEEPING = frozenset({
    PROPERTY_DELAY, PROPERTY_TIMER_DELIVER_MS, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELAY_SECONDS,
    PROPERTY_HALF, PROPERTY_PRODUCER_GROUP, PROPERTY_TRANSACTION_ID,
    "RECONSUME_TIME", "MAX_RECONSUME_TIMES",
    *FORBIDDEN_PROPERTIES,
})  # fmt: skip
"""What says how a message was to be delivered, and what happened to it on its way: it is sent again as a plain one."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Dead letters of a queue, from ``first`` up to ``end``. Damage may have taken some, or all; they are gone."""

    first: int
    messages: list[StoredMessage]
    end: int


@dataclass(slots=True)
class DeadQueue:
    """One queue of a group's dead letters. ``next_offset``: the first that is not dealt with; ``end``: behind the
    last."""

    group: str
    queue: int
    min_offset: int
    next_offset: int
    end: int

    @property
    def waiting(self) -> int:
        """How many are not dealt with."""
        return self.end - self.next_offset

    def check_has(self, first: int, end: int) -> None:
        """Raise ``MessageNotFound`` where none of these offsets is kept."""
        if first >= self.end or end <= self.min_offset:
            raise MessageNotFound(
                f"no dead letter of group {self.group} has an offset from {first} to {end - 1}: kept are those from "
                f"{self.min_offset} to {self.end - 1}"
            )

    def read(
        self, consumer: Consumer, first: int, end: int, pass_over: Callable[[MessageDamaged], None] | None = None
    ) -> Iterator[Stretch]:
        """The dead letters from ``first`` up to ``end``; those with damaged bodies are among them.

        ``pass_over``: told of one whose record the broker cannot read; without, that is raised.
        """
        topic = dead_letter_topic(self.group)
        first, end = max(first, self.min_offset), min(end, self.end)
        while first < end:
            try:
                batch = consumer.pull(topic, self.queue, first, min(BATCH_COUNT, end - first))
            except MessageDamaged as error:
                if pass_over is None:
                    error.add_note(
                        f"next: flintmq dlq purge {self.group} --before {error.queue_offset + 1} passes over it"
                    )
                    raise
                pass_over(error)
                first = error.queue_offset + 1
                continue
            yield Stretch(first, list(batch.messages), batch.next_offset)
            first = batch.next_offset


def dead_queues(consumer: Consumer, group: str) -> list[DeadQueue]:
    """Where the group's dead letters lie; nothing where it never had any. Raises ``GroupNotExist``."""
    topic = dead_letter_topic(group)
    try:
        stats = consumer.topic_stats(topic)
    except TopicNotExist:
        return []
    done = consumer.committed(group, topic)
    return [
        DeadQueue(
            group,
            row.queue,
            row.min_offset,
            min(max(done.get(row.queue, 0), row.min_offset), row.max_offset),
            row.max_offset,
        )
        for row in stats
    ]


def check_group(admin: Admin, group: str) -> None:
    """Raise ``GroupNotExist`` where there is neither such a group nor a dead letter of one."""
    if dead_letter_topic(group) in admin.topics() or group in {info.group for info in admin.groups()}:
        return
    raise GroupNotExist(f"there is no group {group}: nobody has consumed or committed under that name")


def groups_with_dead_letters(admin: Admin) -> list[str]:
    """The groups that have a topic of dead letters."""
    prefix = DEAD_LETTER_TOPIC_PREFIX
    return sorted(topic.removeprefix(prefix) for topic in admin.topics() if topic.startswith(prefix))


# ---- sending again


def own_properties(message: StoredMessage) -> dict[str, str]:
    """The properties that its sender gave, without what brokers and clients noted on its way."""
    return {
        name: value
        for name, value in message.user_properties.items()
        if name not in _BOOKKEEPING and not name.startswith(FORBIDDEN_PROPERTY_PREFIX)
    }


def original_topic(message: StoredMessage) -> str | None:
    """The topic that a dead letter was first sent to; None where it does not say."""
    return message.properties.get(PROPERTY_RETRY_TOPIC)


@dataclass(frozen=True, slots=True)
class Target:
    """Where dead letters go: each to its own topic, all to ``topic``, or ``to_group``: to that group alone."""

    topic: str = ""
    to_group: str = ""

    def message(self, dead: StoredMessage) -> Message:
        """What is sent again of a dead letter. Raises what makes that impossible."""
        properties = own_properties(dead)
        properties.setdefault(PROPERTY_DLQ_ORIGIN_MESSAGE_ID, dead.message_id)
        topic = self.topic or original_topic(dead)
        if topic is None:
            raise InvalidMessage("it does not say which topic it was sent to")
        if self.to_group:
            properties[PROPERTY_RETRY_TOPIC] = topic
            topic = retry_topic(self.to_group)
        return Message(
            topic, dead.body, keys=dead.keys, tags=dead.tags, properties=properties, sharding_key=dead.sharding_key
        )


class DeadLetterStays(FlintError):
    """A dead letter that cannot be sent again, and why; nothing behind it was sent either."""

    def __init__(self, dead: StoredMessage, reason: FlintError) -> None:
        super().__init__(
            f"the dead letter at offset {dead.queue_offset} of {dead.topic} cannot be sent again: {reason}; those "
            "behind it wait, too"
        )
        group = dead.topic.removeprefix(DEAD_LETTER_TOPIC_PREFIX)
        self.add_note(
            f"next: --to-topic TOPIC sends it elsewhere; flintmq dlq purge {group} --before {dead.queue_offset + 1} "
            "passes over it"
        )


class Resending:
    """Sends dead letters of a group again. ``sent``: how many by topic; ``stopped``: what it could not get past.

    ``read_topics``: those that the group has read, empty where nobody knows. A dead letter that says that it was sent
    to another one stays: with a broker of an earlier release its producer may have set that.
    """

    def __init__(
        self, consumer: Consumer, producer: Producer, topics: Iterable[str], target: Target,
        *, dry_run: bool, read_topics: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self.sent: dict[str, int] = {}
        self._consumer = consumer
        self._producer = producer
        self._topics = frozenset(topics)
        self._read_topics = frozenset(read_topics)
        self._target = target
        self._dry_run = dry_run
        self._may_note: set[int] = set()

    def prepare(self, batch: list[StoredMessage]) -> tuple[list[Message], FlintError | None]:
        """What to send of the dead letters, up to the first that cannot be sent, and why not that one."""
        messages: list[Message] = []
        for dead in batch:
            try:
                message = self._target.message(dead)
                self._check_was_read(dead)
                if message.topic not in self._topics:
                    raise InvalidMessage(f"its topic {message.topic} does not exist (any more)")
            except (CorruptMessage, InvalidMessage) as error:
                return messages, DeadLetterStays(dead, error)
            messages.append(message)
        return messages, None

    def _check_was_read(self, dead: StoredMessage) -> None:
        topic = original_topic(dead)
        if self._read_topics and not self._target.topic and topic not in self._read_topics:
            group = dead.topic.removeprefix(DEAD_LETTER_TOPIC_PREFIX)
            raise InvalidMessage(
                f"it says that it was sent to topic {topic}, which group {group} has never read; if that is where it "
                f"belongs, send it with --to-topic {topic}"
            )

    def send(self, queue: DeadQueue, stretch: Stretch) -> None:
        """Send neighbouring dead letters, and note that where nothing in front of them waits.

        Raises why one could not be sent; what is in front of it is sent and noted.
        """
        batch = stretch.messages
        notes = not self._dry_run and stretch.first <= queue.next_offset
        if notes and queue.queue not in self._may_note:
            self.note(queue, queue.next_offset)  # whether it may: before anything is sent
            self._may_note.add(queue.queue)
        messages, trouble = self.prepare(batch)
        acknowledged = len(messages)
        try:
            if not self._dry_run:
                self._producer.send_many(messages)
        except DeliveryFailed as error:
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
        """The dead letters in front of ``next_offset`` are dealt with. Raises ``GroupRunning`` where a member of the
        group consumes its dead letters itself."""
        queue.next_offset = max(next_offset, queue.next_offset)
        self._consumer.commit(queue.group, dead_letter_topic(queue.group), {queue.queue: queue.next_offset})
