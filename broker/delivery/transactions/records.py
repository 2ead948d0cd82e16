"""The records of transactions: half messages, and the records derived from them.

As RocketMQ's ``TransactionalMessageBridge`` and ``EndTransactionProcessor``. A derived record keeps the properties of
its half message, so only its topic and sys_flag tell what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgpack

from ....protocol.commands import LAYOUT_ROWS
from ....protocol.errors import InvalidParameter, MessageIllegal, QueueNotExist, TopicNotExist
from ....protocol.storage.delivery import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    PROPERTY_CHECK_TIMES,
    PROPERTY_HALF,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RECORD_CRC,
    PROPERTY_TRANSACTION_ID,
    TRANSACTION_ID_BYTES_MAX,
    TRANSACTION_PARKED_TOPIC,
)
from ....protocol.storage.layout import SysFlag
from ....protocol.storage.record import (
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    Record,
    encode_properties,
    offset_id,
    unique_key,
)
from ...store import TopicConfig

if TYPE_CHECKING:
    from ....protocol.commands import ProduceRequest
    from ...store import MessageStore
    from ..routing import HalfRequest

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
    return record.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT


def checked_again(record: Record, check_times: int) -> Record:
    """Return the half message with a new number of checks, to be appended again."""
    properties = _with(_with(record.properties, PROPERTY_RECORD_CRC), PROPERTY_CHECK_TIMES, str(check_times))
    return replace(record, properties=properties)


def parked(record: Record) -> Record:
    """Return the parked message of a transaction whose end no producer could tell."""
    properties = _with(record.properties, PROPERTY_RECORD_CRC)
    return replace(record, topic=TRANSACTION_PARKED_TOPIC.encode(), queue_id=0, properties=properties)


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


# ---- PRODUCE frames with half messages: the request in their ``common``, and their rows with the transaction
# ids added.
#
# The produce kernel applies the rules for messages to the resulting rows; this module does not check them.


@dataclass(frozen=True, slots=True)
class HalfFrame:
    """Rows to append to the half topic, their common properties, and the transaction id of each."""

    body: bytearray
    common: bytes
    transaction_ids: list[str]


def half_frame(request: ProduceRequest, half: HalfRequest, queue: int, body: memoryview) -> HalfFrame:
    """Return the frame's messages as rows for the half topic. ``queue``: their queue of ``request.topic``.

    Raises ``InvalidParameter`` for columns, and ``MessageIllegal`` for rows that cannot be decoded or lack a unique
    key.
    """
    if request.layout != LAYOUT_ROWS:
        raise InvalidParameter(f"half messages must be sent as rows (layout 0), got layout {request.layout}")

    # Every row is packed again, with its transaction's id among the properties.
    packer = msgpack.Packer(autoreset=False, unicode_errors="surrogatepass")
    ids = []
    for index, row in enumerate(_rows(body, request.count)):
        pairs = row[1]
        own = [value for name, value in pairs if name == PROPERTY_UNIQ_KEY]
        if not own and not request.unique_prefix:
            raise MessageIllegal(
                f"message {index}: a half message needs a unique key, which names its transaction: send "
                f"unique_prefix, or the property {PROPERTY_UNIQ_KEY}; nothing of the frame was written",
                message_index=index,
            )
        transaction_id = own[-1] if own else unique_key(request.unique_prefix, request.unique_first + index)
        if own:
            _check_id(index, transaction_id)
        ids.append(transaction_id)
        packer.pack_array_header(len(row))
        packer.pack(row[0])
        packer.pack_map_pairs([*pairs, (PROPERTY_TRANSACTION_ID, transaction_id)])
        for flag in row[2:]:
            packer.pack(flag)

    # The properties that all messages of the frame share; two of them say where a commit sends the messages.
    properties = {
        PROPERTY_HALF: "true",
        PROPERTY_PRODUCER_GROUP: half.group,
        PROPERTY_REAL_TOPIC: request.topic,
        PROPERTY_REAL_QUEUE: str(queue),
    }
    return HalfFrame(bytearray(packer.bytes()), half.common + encode_properties(properties), ids)


def _rows(body: memoryview, count: int) -> list[list[Any]]:
    """Decode the rows of a frame, with properties as pairs. Raises ``MessageIllegal`` for malformed rows."""
    # At least 1, because msgpack takes 0 for 4 GiB.
    unpacker = msgpack.Unpacker(object_pairs_hook=tuple, strict_map_key=False, max_buffer_size=len(body) or 1)
    unpacker.feed(body)
    rows: list[list[Any]] = []
    try:
        for index in range(count):
            row = unpacker.unpack()
            if type(row) is not list or not 2 <= len(row) <= 4 or type(row[1]) is not tuple:
                raise _no_message(index, "it is not an array of 2 to 4 items [body, properties, sys_flag, flag]")
            if type(row[0]) is not bytes or any(type(name) is not str for name, _ in row[1]):
                raise _no_message(index, "its body is not a msgpack bin, or a property's name is not a msgpack str")
            rows.append(row)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise _no_message(len(rows), f"it cannot be read ({str(error)[:100] or type(error).__name__})") from None
    if unpacker.tell() != len(body):
        raise MessageIllegal(
            "unexpected bytes after the last message: count or layout is wrong; nothing of the frame was written"
        )
    return rows


def _check_id(index: int, transaction_id: Any) -> None:
    """Raise if a unique key is too long to be kept in memory."""
    # The kernel refuses a key that is not text.
    if type(transaction_id) is not str:
        return
    size = len(transaction_id.encode("utf-8", "surrogatepass"))
    if size > TRANSACTION_ID_BYTES_MAX:
        raise MessageIllegal(
            f"message {index}: its unique key takes {size:,} bytes; that of a half message takes at most "
            f"{TRANSACTION_ID_BYTES_MAX}, because it is kept while the transaction is open; nothing of the frame was "
            "written",
            message_index=index,
            unique_key_bytes_max=TRANSACTION_ID_BYTES_MAX,
        )


def _no_message(index: int, why: str) -> MessageIllegal:
    return MessageIllegal(f"message {index}: {why}; nothing of the frame was written", message_index=index)
