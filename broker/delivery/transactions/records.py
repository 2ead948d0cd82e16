"""The records of transactions: what is read from a half message, and what is made of it.

As RocketMQ's ``TransactionalMessageBridge`` and ``EndTransactionProcessor``. A record made of another keeps its
properties, so what it *is* follows from its topic and sys_flag.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ....protocol.delivery import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    PROPERTY_CHECK_TIMES,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RECORD_CRC,
    TRANSACTION_PARKED_TOPIC,
)
from ....protocol.errors import QueueNotExist, TopicNotExist
from ....protocol.ids import offset_id
from ....protocol.layout import SysFlag
from ....protocol.record import PROPERTY_TAGS, PROPERTY_UNIQ_KEY, Record, encode_properties
from ...store import TopicConfig

TOPICS = tuple(
    TopicConfig(name, read_queues=1, write_queues=1) for name in (HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_PARKED_TOPIC)
)
"""The topics that transactions need, as RocketMQ makes them."""

_ENDED_TAG = "d"
_NOTE_BYTES_MAX = 4096
"""RocketMQ's ``transactionOpMsgMaxSize``."""


class Half:
    """What there is to know of a half message.

    ``topic``, ``queue``: where its message will go; ``queue_offset``, ``physical_offset``: where the half itself lies;
    ``check_times``: how often its producers were asked; ``born_ms``, ``store_ms``: when its producer made it, and when
    this record was stored.
    """

    __slots__ = (
        "born_ms", "check_times", "group", "physical_offset", "queue", "queue_offset", "store_ms", "topic",
        "transaction_id",
    )  # fmt: skip

    def __init__(
        self,
        transaction_id: str,
        group: str,
        topic: str,
        queue: int,
        *,
        queue_offset: int,
        physical_offset: int,
        born_ms: int,
        store_ms: int,
        check_times: int = 0,
    ) -> None:
        self.transaction_id = transaction_id
        self.group = group
        self.topic = topic
        self.queue = queue
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset
        self.born_ms = born_ms
        self.store_ms = store_ms
        self.check_times = check_times

    @classmethod
    def of(cls, record: Record, of_topic: str = HALF_TOPIC) -> Half | None:
        """What a record of the half topic (or of the one where they are parked) says; None where it does not say where
        it goes."""
        properties = record.property_map()
        topic = properties.get(PROPERTY_REAL_TOPIC, "")
        queue = _number(properties.get(PROPERTY_REAL_QUEUE, ""))
        if record.topic != of_topic.encode() or not topic or queue is None:
            return None
        return cls(
            id_of(record, properties.get(PROPERTY_UNIQ_KEY)),
            properties.get(PROPERTY_PRODUCER_GROUP, ""),
            topic,
            queue,
            queue_offset=record.queue_offset,
            physical_offset=record.physical_offset,
            born_ms=record.born_timestamp,
            store_ms=record.store_timestamp,
            check_times=_number(properties.get(PROPERTY_CHECK_TIMES, "")) or 0,
        )


def check_destination(half: Half, topic: TopicConfig | None) -> None:
    """Raise where the message has nowhere to go any more. ``topic``: the one that it was sent to, if it is there."""
    if topic is None:
        raise TopicNotExist(
            f"transaction {half.transaction_id} cannot be committed: topic {half.topic} was deleted; create it again "
            "and commit again, or roll back"
        )
    if half.queue >= topic.queues:
        raise QueueNotExist(
            f"transaction {half.transaction_id} cannot be committed: topic {half.topic} has no queue {half.queue} any "
            "more; give it one and commit again, or roll back",
            queues=topic.queues,
        )


def id_of(record: Record, unique_key: str | None) -> str:
    """A transaction's id: its message's unique key, or the half's offset id where it has none."""
    return unique_key or offset_id(record.store_host, record.physical_offset)


def committed(half: Half, record: Record) -> Record:
    """The message that consumers get; ``record``: the half's."""
    return replace(
        record,
        topic=half.topic.encode(),
        queue_id=half.queue,
        properties=_with(record.properties, PROPERTY_RECORD_CRC),
        sys_flag=record.sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT,
        prepared_transaction_offset=half.physical_offset,
    )


def is_committed(record: Record) -> bool:
    """Whether a record is a transaction's committed message."""
    return record.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT


def checked_again(record: Record, check_times: int) -> Record:
    """The half message once more: its producers have been asked so often."""
    properties = _with(_with(record.properties, PROPERTY_RECORD_CRC), PROPERTY_CHECK_TIMES, str(check_times))
    return replace(record, properties=properties)


def parked(record: Record) -> Record:
    """The message of a transaction of which nobody could tell how it ended."""
    properties = _with(record.properties, PROPERTY_RECORD_CRC)
    return replace(record, topic=TRANSACTION_PARKED_TOPIC.encode(), queue_id=0, properties=properties)


def shown_as_real(half: Half, record: Record) -> Record:
    """The half message as its producer knows it: of the topic and queue it was sent to."""
    return replace(record, topic=half.topic.encode(), queue_id=half.queue)


def ended_notes(queue_offsets: Iterable[int], now_ms: int, host: bytes) -> list[Record]:
    """Records of the op topic that say which half messages are done, by their queue offsets."""
    bodies = [b""]
    for queue_offset in queue_offsets:
        entry = b"%d," % queue_offset
        if len(bodies[-1]) + len(entry) > _NOTE_BYTES_MAX:
            bodies.append(b"")
        bodies[-1] += entry
    properties = encode_properties({PROPERTY_TAGS: _ENDED_TAG})
    return [
        Record(OP_HALF_TOPIC.encode(), body, properties, born_timestamp=now_ms, born_host=host)
        for body in bodies
        if body
    ]


def ended_offsets(note: Record) -> Iterator[int]:
    """The queue offsets in a record of the op topic. RocketMQ before 4.9.4 wrote one, without a comma."""
    for entry in note.body.split(b","):
        text = entry.strip().decode("ascii", "replace")
        number = _number(text)
        if number is not None:
            yield number


def _with(properties: bytes, name: str, value: str = "") -> bytes:
    """Encoded properties with one of them set, behind the others, or without it."""
    start = f"{name}\x01".encode()
    kept = [pair for pair in properties.split(b"\x02") if pair and not pair.startswith(start)]
    if value:
        kept.append(start + value.encode())
    return b"".join(pair + b"\x02" for pair in kept)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
