"""The bodies of PRODUCE frames: messages packed as rows or as columns, and divided into frames.

Rows carry properties for each message; columns carry only bodies and keys, and take a tenth of the time to pack.
``flintmq.protocol.commands`` describes the layouts.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

import msgpack

from ....protocol.commands import LAYOUT_COLUMNS, LAYOUT_ROWS, QUEUES_MAX, TopicInfo
from ....protocol.frames import ANY_QUEUE
from ....protocol.storage.layout import PROPERTIES_BYTES_MAX
from ....protocol.storage.record import (
    KEY_SEPARATOR,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    encode_properties,
)
from ...delay import delay_properties
from ...errors import InvalidArgument, InvalidArgumentType, InvalidMessage, InvalidMessageType
from ...message import Message, Row, bodies_of, check_properties, check_tag, check_text, copy_body, join_keys, rows_of
from ..compression import Compressor

FRAME_BYTES_TARGET = 192 * 1024
"""Target size of a frame of many messages: large enough that the cost of the frame per message vanishes, small enough
for the broker's caches and for other clients that wait for their turn."""
FRAME_COUNT_MAX = 4096
"""Maximum number of messages in a frame."""
_LOOK_AT_FIRST = 512
ROW_OVERHEAD_BYTES = 48
"""Approximate bytes of a message in a frame besides its body; the packed size decides."""
HEAD_BYTES_RESERVED = 1024
"""Room in a frame for its lengths and header, besides the properties that its messages have in common."""


class Rows:
    """Messages packed one by one."""

    __slots__ = ("rows",)
    layout = LAYOUT_ROWS

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def pack(self, packer: Any) -> bytes | memoryview:
        """Return the frame's body. ``packer``: a ``msgpack.Packer`` that no other thread is using."""
        return _pack_rows(self.rows, packer)

    def cut(self, at: int) -> tuple[Rows, Rows]:
        """Return the messages before message ``at``, and the others."""
        return Rows(self.rows[:at]), Rows(self.rows[at:])


class MessageRows:
    """Messages packed one by one. Their rows are made only for packing and freed before the response arrives:
    thousands of rows would keep the garbage collector busy."""

    __slots__ = ("messages",)
    layout = LAYOUT_ROWS

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages

    def __len__(self) -> int:
        return len(self.messages)

    def pack(self, packer: Any) -> bytes | memoryview:
        """Return the frame's body. ``packer``: a ``msgpack.Packer`` that no other thread is using."""
        return _pack_rows(rows_of(self.messages), packer)

    def cut(self, at: int) -> tuple[MessageRows, MessageRows]:
        """Return the messages before message ``at``, and the others."""
        return MessageRows(self.messages[:at]), MessageRows(self.messages[at:])


class Columns:
    """Bodies, with a KEYS value or None for each."""

    __slots__ = ("bodies", "keys")
    layout = LAYOUT_COLUMNS

    def __init__(self, bodies: Sequence[bytes], keys: Sequence[str | None] | None) -> None:
        self.bodies = bodies
        self.keys = keys

    def __len__(self) -> int:
        return len(self.bodies)

    def pack(self, packer: Any) -> bytes | memoryview:
        """Return the frame's body. ``packer``: a ``msgpack.Packer`` that no other thread is using."""
        bodies: bytes = packer.pack(self.bodies)
        keys: bytes = packer.pack(self.keys if self.keys is not None else [None] * len(self.bodies))
        return bodies + keys

    def cut(self, at: int) -> tuple[Columns, Columns]:
        """Return the messages before message ``at``, and the others."""
        keys = self.keys
        return (
            Columns(self.bodies[:at], keys[:at] if keys is not None else None),
            Columns(self.bodies[at:], keys[at:] if keys is not None else None),
        )


Content: TypeAlias = Rows | MessageRows | Columns


def _pack_rows(rows: Sequence[Row], packer: Any) -> bytes | memoryview:
    if len(rows) == 1:
        return packer.pack(rows[0])  # type: ignore[no-any-return] # msgpack is untyped
    # Packing all rows as one array is faster than packing each; PRODUCE wants them without the array's head.
    return memoryview(packer.pack(rows))[_array_head_bytes(len(rows)) :]


def _array_head_bytes(count: int) -> int:
    """Return the number of bytes that msgpack writes before an array of ``count`` items."""
    if count < 16:
        return 1
    return 3 if count < 65_536 else 5


def new_packer() -> Any:
    """Return a packer for ``Content.pack``; it is not thread-safe."""
    return msgpack.Packer(autoreset=True)


def count_that_fits(bodies: Sequence[bytes], bytes_target: int) -> int:
    """Return how many of ``bodies`` make a frame of about ``bytes_target`` bytes; at least 1."""
    totals = list(accumulate(map(len, bodies)))
    fitting = bisect_right(range(len(totals)), bytes_target, key=lambda at: totals[at] + ROW_OVERHEAD_BYTES * (at + 1))
    return max(1, fitting)


class _Source:
    """The messages of one call, handed out one frame at a time; bodies are compressed at that moment.

    Each step examines about as many messages as the last frame took.
    """

    __slots__ = ("_at", "_compressor", "_count", "_look_at")

    def __init__(self, count: int, compressor: Compressor) -> None:
        self._count = count
        self._compressor = compressor
        self._at = 0
        self._look_at = _LOOK_AT_FIRST

    @property
    def left(self) -> int:
        """Number of messages not handed out yet."""
        return self._count - self._at

    def _advance(self, count: int, looked_at: int) -> None:
        self._at += count
        self._look_at = min(FRAME_COUNT_MAX, 4 * looked_at if count == looked_at else count + count // 8 + 8)

    def _must_compress(self, bodies: Sequence[bytes]) -> bool:
        over_bytes = self._compressor.over_bytes
        return over_bytes is not None and max(map(len, bodies)) > over_bytes


class RowSource(_Source):
    """The source of a ``send_many``."""

    __slots__ = ("_messages",)

    def __init__(self, messages: list[Message], compressor: Compressor) -> None:
        super().__init__(len(messages), compressor)
        self._messages = messages

    def take(self, bytes_target: int, count_max: int = FRAME_COUNT_MAX) -> Content:
        """Return the next messages for a frame of about that size, at most ``count_max``; some must be left."""
        messages = self._messages[self._at : self._at + min(self._look_at, count_max)]
        bodies = bodies_of(messages)
        content: Content
        if self._must_compress(bodies):
            content = Rows(compress_rows(rows_of(messages), bytes_target, self._compressor))
        else:
            content = MessageRows(messages[: count_that_fits(bodies, bytes_target)])
        self._advance(len(content), len(messages))
        return content


class ColumnSource(_Source):
    """The source of a ``send_bulk``. ``keys``: a KEYS value or None for each body, or None."""

    __slots__ = ("_bodies", "_keys")

    def __init__(self, bodies: list[bytes], keys: list[str | None] | None, compressor: Compressor) -> None:
        super().__init__(len(bodies), compressor)
        self._bodies = bodies
        self._keys = keys

    def take(self, bytes_target: int, count_max: int = FRAME_COUNT_MAX) -> Content:
        """Return the next messages for a frame of about that size, at most ``count_max``; as rows if one of them is
        compressed."""
        start, end = self._at, self._at + min(self._look_at, count_max)
        bodies = self._bodies[start:end]
        keys = self._keys[start:end] if self._keys is not None else None
        content: Content
        if self._must_compress(bodies):
            wires = [{PROPERTY_KEYS: key} if key else {} for key in keys or [None] * len(bodies)]
            content = Rows(compress_rows(list(zip(bodies, wires, strict=True)), bytes_target, self._compressor))
        else:
            count = count_that_fits(bodies, bytes_target)
            content = Columns(bodies[:count], keys[:count] if keys is not None else None)
        self._advance(len(content), len(bodies))
        return content


def compress_rows(rows: Sequence[Row], bytes_target: int, compressor: Compressor) -> list[Row]:
    """Compress long bodies and return as many rows as make a frame of about ``bytes_target`` bytes."""
    packed: list[Row] = []
    total = 0
    for body, properties in rows:
        body, sys_flag = compressor.compress(body)
        total += len(body) + ROW_OVERHEAD_BYTES
        if packed and total > bytes_target:
            break
        packed.append((body, properties, sys_flag) if sys_flag else (body, properties))
    return packed


# ---- Selection of a message's queue.
#
# A message with a sharding key goes to queue CRC-32(UTF-8 of the key) mod the topic's write queues: stable as
# long as the number of queues is, and the same in every language. For all other messages the broker chooses,
# round-robin.

TOPICS_FRESH_SECONDS = 30.0
"""How long a topic's number of queues is considered valid."""


def queue_of(sharding_key: str, write_queues: int) -> int:
    """Return the queue of all messages with this sharding key while the topic has ``write_queues`` queues."""
    return zlib.crc32(sharding_key.encode()) % write_queues


class QueueCounts:
    """Number of write queues of each topic, as last reported by the broker.

    The driver asks the broker if ``of`` returns None; a topic that does not exist yet counts with the number of queues
    that the broker gives to a topic created by its first message.
    """

    __slots__ = ("_counts", "_fresh_until")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._fresh_until = 0.0

    def of(self, topic: str, now: float) -> int | None:
        """Return the topic's write queues, or None if the broker must be asked. ``now``: monotonic seconds."""
        return self._counts.get(topic) if now < self._fresh_until else None

    def last_known(self, topic: str) -> int | None:
        """Return the last known number of the topic's write queues, or None."""
        return self._counts.get(topic)

    def learned(self, topics: Iterable[TopicInfo], now: float) -> None:
        """Record the topics that the broker reported."""
        self._counts = {topic.topic: topic.write_queues for topic in topics}
        self._fresh_until = now + TOPICS_FRESH_SECONDS

    def will_be_created(self, topic: str, write_queues: int) -> int:
        """Record a missing topic, which its first message creates with ``write_queues`` queues (at least 1)."""
        return self._counts.setdefault(topic, max(1, write_queues))

    def forget(self) -> None:
        """Expire the counts, because the broker refused a queue."""
        self._fresh_until = 0.0


# ---- Conversion of a caller's messages to what ``Outbox`` takes: checked, grouped by topic and queue, in
# order.

Flush: TypeAlias = Literal["sync", "async"]
FLUSH_MODES = ("", "sync", "async")

_topic_of = attrgetter("_topic")
_sharding_key_of = attrgetter("_sharding_key")
_common_of = attrgetter("_delay")


class Way(NamedTuple):
    """Messages of one call for the same queue of the same topic, with the same delay (``common``); ``indexes``: their
    indexes in the call."""

    topic: str
    queue: int
    messages: list[Message]
    indexes: Sequence[int]
    common: str = ""


def check_queue(queue: Any) -> int:
    """Return ``queue=`` as a number: -1 for None, which leaves the choice to the sharding key or the broker."""
    if queue is None:
        return ANY_QUEUE
    if type(queue) is not int:
        raise InvalidArgumentType(f"queue must be an int, not {type(queue).__name__}")
    if not 0 <= queue < QUEUES_MAX:
        raise InvalidArgument(f"queue is {queue}; it must be 0 to {QUEUES_MAX - 1}")
    return queue


def check_flush(flush: Any) -> str:
    """Return ``flush=`` in PRODUCE's form: empty for None, the broker's own mode."""
    mode = "" if flush is None else flush
    if mode not in FLUSH_MODES:
        raise InvalidArgument(f"flush is {flush!r}; it must be 'sync', 'async' or None (the broker's mode)")
    return str(mode)


def check_message(message: Any) -> None:
    """Raise unless the argument of a ``send`` is a ``Message``."""
    if type(message) is not Message and not isinstance(message, Message):
        raise InvalidMessageType(f"the message must be a flintmq.client.Message, not {type(message).__name__}")


def check_messages(messages: Iterable[Message]) -> list[Message]:
    """Return the messages of a ``send_many`` as a list, after checking that each is a ``Message``."""
    if isinstance(messages, Message):
        raise InvalidMessageType("send_many takes several messages; use send for one")
    checked = list(messages)
    for kind in set(map(type, checked)):
        if not issubclass(kind, Message):
            index = next(place for place, message in enumerate(checked) if type(message) is kind)
            raise InvalidMessageType(f"messages[{index}] must be a flintmq.client.Message, not {kind.__name__}")
    return checked


def sharded_topics(messages: Sequence[Message]) -> set[str]:
    """Return the topics whose number of queues must be known before the messages can be grouped."""
    if not any(map(_sharding_key_of, messages)):
        return set()
    return {message.topic for message in messages if message.sharding_key}


def group_messages(messages: list[Message], queue: int, write_queues: Mapping[str, int]) -> list[Way]:
    """Group messages by destination. ``queue``: the destination of all, or -1; ``write_queues``: number of queues of
    each of the ``sharded_topics``."""
    topics = set(map(_topic_of, messages))
    delays = set(map(_common_of, messages))
    if len(topics) == len(delays) == 1 and (queue != ANY_QUEUE or not any(map(_sharding_key_of, messages))):
        return [Way(topics.pop(), queue, messages, range(len(messages)), delays.pop())]
    ways: dict[tuple[str, int, str], tuple[list[Message], list[int]]] = {}
    for index, message in enumerate(messages):
        sharding_key = message.sharding_key
        to = queue_of(sharding_key, write_queues[message.topic]) if sharding_key and queue == ANY_QUEUE else queue
        key = (message.topic, to, message.common)
        way = ways.get(key)
        if way is None:
            way = ways[key] = ([], [])
        way[0].append(message)
        way[1].append(index)
    return [Way(topic, to, mine, indexes, common) for (topic, to, common), (mine, indexes) in ways.items()]


def check_bodies(bodies: Iterable[Any]) -> list[bytes]:
    """Return the bodies of a ``send_bulk``: bytes, or copies of bytearrays and memoryviews."""
    if isinstance(bodies, bytes | bytearray | memoryview | str):
        raise InvalidMessageType(f"bodies must be several bodies, not one {type(bodies).__name__}: give a list")
    checked = bodies if type(bodies) is list else list(bodies)
    if set(map(type, checked)) <= {bytes}:
        return checked
    for index, body in enumerate(checked):
        if not isinstance(body, bytes | bytearray | memoryview):
            hint = "; encode it first" if isinstance(body, str) else ""
            raise InvalidMessageType(f"bodies[{index}] must be bytes, not {type(body).__name__}{hint}")
    return list(map(copy_body, checked))


def check_bulk_keys(keys: Iterable[Any] | None, count: int) -> list[str | None] | None:
    """Return the keys of a ``send_bulk`` as KEYS values, one entry for each body: a key, several, or None."""
    if keys is None:
        return None
    if isinstance(keys, str):
        raise InvalidMessageType("keys must be a list with an entry for each body, not one str")
    entries: list[Any] = keys if type(keys) is list else list(keys)
    if len(entries) != count:
        raise InvalidArgument(f"{len(entries)} keys for {count} bodies; pass one entry (or None) for each body")
    if set(map(type, entries)) == {str}:
        joined = "".join(entries)
        if joined.isprintable() and KEY_SEPARATOR not in joined and all(entries):
            return entries
    checked: list[str | None] = []
    for index, entry in enumerate(entries):
        if entry is None:
            checked.append(None)
            continue
        if not isinstance(entry, str | list | tuple):
            raise InvalidMessageType(f"keys[{index}] must be a str, several, or None, not {type(entry).__name__}")
        try:
            checked.append(join_keys(entry) or None)
        except InvalidMessage as error:
            raise type(error)(f"keys[{index}]: {error}") from None
    return checked


class BulkProperties(TypedDict, total=False):
    """Keyword arguments of ``send_bulk`` that apply to all of its bodies; each means what it means in ``Message``."""

    tags: str | None
    properties: Mapping[str, str] | None
    sharding_key: str | None
    delay_level: int | None
    deliver_at: datetime | None
    delay: timedelta | None


def common_properties(shared: BulkProperties) -> str:
    """Return the properties that all messages of a ``send_bulk`` share, in PRODUCE's form."""
    for name in shared.keys() - BulkProperties.__annotations__.keys():
        raise InvalidArgumentType(f"send_bulk() has no argument {name!r}")
    properties, tags, sharding_key = shared.get("properties"), shared.get("tags"), shared.get("sharding_key")
    common = check_properties(properties) if properties else {}
    if tags is not None:
        common[PROPERTY_TAGS] = check_tag(tags)
    if sharding_key is not None:
        common[PROPERTY_SHARDING_KEY] = check_text("the sharding key", sharding_key)
    encoded = encode_properties(common)
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise InvalidMessage(f"the properties have {len(encoded)} bytes; a record holds at most {PROPERTIES_BYTES_MAX}")
    delayed = delay_properties(shared.get("delay_level"), shared.get("deliver_at"), shared.get("delay"))
    return encoded.decode() + delayed
