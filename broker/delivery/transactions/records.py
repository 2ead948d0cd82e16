"""The records of transactions: half messages, and the records derived from them.

As RocketMQ's ``TransactionalMessageBridge`` and ``EndTransactionProcessor``. A derived record keeps the properties of
its half message, so only its topic and sys_flag tell what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ....protocol.errors import QueueNotExist, TopicNotExist
from ....protocol.storage.delivery import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    PROPERTY_CHECK_TIMES,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RECORD_CRC,
    TRANSACTION_PARKED_TOPIC,
)
from ....protocol.storage.ids import offset_id
from ....protocol.storage.layout import SysFlag
from ....protocol.storage.record import PROPERTY_TAGS, PROPERTY_UNIQ_KEY, Record, encode_properties
from ...store import TopicConfig

if TYPE_CHECKING:
    from ...store import MessageStore

TOPICS = tuple(
    TopicConfig(name, read_queues=1, write_queues=1) for name in (HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_PARKED_TOPIC)
)
"""The topics that transactions need, with the settings that RocketMQ creates them with."""

_ENDED_TAG = "d"
_NOTE_BYTES_MAX = 4096
"""RocketMQ's ``transactionOpMsgMaxSize``."""


@dataclass(slots=True, eq=False)
class Half:
    """A half message without its body.

    ``topic``, ``queue``: where its message will go; ``queue_offset``, ``physical_offset``: where the half message
    itself is stored; ``born_ms``, ``store_ms``: when its producer created it, and when this record was stored;
    ``check_times``: number of checks with its producers.
    """

    transaction_id: str
    group: str
    topic: str
    queue: int
    queue_offset: int
    physical_offset: int
    born_ms: int
    store_ms: int
    check_times: int = 0

    @classmethod
    def of(cls, record: Record, of_topic: str = HALF_TOPIC) -> Half | None:
        """Return the half message of a record of the half topic, or of the parked topic; None if its target is
        missing."""
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


def check_destination(half: Half, store: MessageStore) -> None:
    """Raise if the message's topic or queue no longer exists."""
    topic = store.topics.get(half.topic)
    if topic is None:
        raise TopicNotExist(
            f"transaction {half.transaction_id} cannot be committed: topic {half.topic} was deleted; create it again "
            "and commit again, or roll back"
        )
    if not topic.has_queue(half.queue):
        raise QueueNotExist(
            f"transaction {half.transaction_id} cannot be committed: topic {half.topic} no longer has a queue "
            f"{half.queue}; add queues and commit again, or roll back",
            queues=topic.queues,
        )


def id_of(record: Record, unique_key: str | None) -> str:
    """Return a transaction's id: its message's unique key, or the half message's offset id if it has none."""
    return unique_key or offset_id(record.store_host, record.physical_offset)


def committed(half: Half, record: Record) -> Record:
    """Return the message that consumers get. ``record``: the half message's record."""
    return replace(
        record,
        topic=half.topic.encode(),
        queue_id=half.queue,
        # The checksum is that of the half message's record.
        properties=_with(record.properties, PROPERTY_RECORD_CRC),
        sys_flag=record.sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT,
        # As in RocketMQ. By this offset a start finds out that a half message without an op record is committed.
        prepared_transaction_offset=half.physical_offset,
    )


def is_committed(record: Record) -> bool:
    """Return whether a record is a transaction's committed message."""
    return record.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT


def checked_again(record: Record, check_times: int) -> Record:
    """Return the half message with a new number of checks, to be appended again."""
    properties = _with(_with(record.properties, PROPERTY_RECORD_CRC), PROPERTY_CHECK_TIMES, str(check_times))
    return replace(record, properties=properties)


def parked(record: Record) -> Record:
    """Return the parked message of a transaction whose end no producer could tell."""
    properties = _with(record.properties, PROPERTY_RECORD_CRC)
    return replace(record, topic=TRANSACTION_PARKED_TOPIC.encode(), queue_id=0, properties=properties)


def shown_as_real(half: Half, record: Record) -> Record:
    """Return the half message as its producer sent it: with its own topic and queue."""
    return replace(record, topic=half.topic.encode(), queue_id=half.queue)


def ended_notes(queue_offsets: Iterable[int], now_ms: int, host: bytes) -> list[Record]:
    """Return records of the op topic that mark half messages, by queue offset, as finished."""
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
    """Yield the queue offsets in a record of the op topic. RocketMQ before 4.9.4 wrote one, without a comma."""
    for entry in note.body.split(b","):
        text = entry.strip().decode("ascii", "replace")
        number = _number(text)
        if number is not None:
            yield number


def _with(properties: bytes, name: str, value: str = "") -> bytes:
    """Return encoded properties with one of them set, after the others, or removed if ``value`` is empty."""
    start = f"{name}\x01".encode()
    kept = [pair for pair in properties.split(b"\x02") if pair and not pair.startswith(start)]
    if value:
        kept.append(start + value.encode())
    return b"".join(pair + b"\x02" for pair in kept)


def _number(text: str) -> int | None:
    # 18 digits fit into 64 bits.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
