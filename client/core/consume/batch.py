"""The results of pulls and queries: stored records, decoded on access."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate, chain, repeat
from types import MappingProxyType
from typing import Any, overload

from ....protocol.commands import FILTER_CHARS_MAX, RECORD_SIZE_STRUCT
from ....protocol.errors import RemoteProtocolError
from ....protocol.storage.delivery import (
    PROPERTY_REAL_QUEUE,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RECORD_CRC,
    PROPERTY_RETRY_MEMBER,
    PROPERTY_RETRY_REASON,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SECONDS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    RETRY_PROPERTIES,
    TRANSACTION_PROPERTIES,
)
from ....protocol.storage.layout import (
    ANY_HOST_V6,
    MAGIC_V1,
    PROPERTIES_BYTES_MAX,
    RECORD,
    RECORD_BYTES_MIN,
    RECORD_HEAD_BYTES,
    SysFlag,
    record_head,
)
from ....protocol.storage.record import (
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    CorruptRecord,
    Record,
    decode_host,
    decode_properties,
    decode_record,
    offset_id,
    split_keys,
)
from ....protocol.times import from_millis
from ...errors import CompressionUnavailable, CorruptMessage, InvalidArgument, InvalidArgumentType
from ..compression import BODY_BYTES_MAX, DecompressionFailed, decompress, decompress_start
from ..texts import check_unicode

# ---- A message as the broker stores it, decoded on access.

_OWN_PROPERTIES = (
    frozenset(
        {
            PROPERTY_KEYS,
            PROPERTY_TAGS,
            PROPERTY_UNIQ_KEY,
            PROPERTY_SHARDING_KEY,
            PROPERTY_REAL_TOPIC,
            PROPERTY_REAL_QUEUE,
            PROPERTY_DELAY,
            PROPERTY_TIMER_DELIVER_MS,
            PROPERTY_TIMER_DELAY_MS,
            PROPERTY_TIMER_DELAY_SECONDS,
            PROPERTY_TIMER_OUT_MS,
        }
    )
    | TRANSACTION_PROPERTIES
    | RETRY_PROPERTIES
)

# Fast path for the usual fields, in one step: body_crc, sys_flag, body_length. It works only if both hosts are IPv4;
# PLAIN_MASK tells whether a body needs more than a slice.
_AT = RECORD.at
assert (_AT["body_crc"], _AT["sys_flag"], _AT["body_length"]) == (8, 36, 84)
BODY_HEAD = struct.Struct(">8xI24xI44xi")
_unpack_body_head = BODY_HEAD.unpack_from
_crc32 = zlib.crc32
BODY_AT = RECORD_HEAD_BYTES
PLAIN_MASK = SysFlag.COMPRESSED | ANY_HOST_V6
CRC_MASK = 0x7FFFFFFF
"""RocketMQ stores a CRC32 without its highest bit."""
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_SIZE_AND_MAGIC = struct.Struct(">ii")
_QUEUE_ID_AT = _AT["queue_id"]
_FLAG_AT = _AT["flag"]
_QUEUE_OFFSET_AT = _AT["queue_offset"]
_PHYSICAL_OFFSET_AT = _AT["physical_offset"]
_SYS_FLAG_AT = _AT["sys_flag"]
_BORN_TIMESTAMP_AT = _AT["born_timestamp"]
_BORN_HOST_AT = _AT["born_host"]
assert BODY_HEAD.size == BODY_AT


KEPT_BODY_BYTES_MAX = 1024 * 1024
"""Maximum size of a decompressed body that is kept for the next access."""


_last: tuple[bytes, int, bytes] = b"", 0, b""
"""The body that this process decompressed last, after its stored form and the flags that name its compression: programs
often use the body of a message several times in a row. Threads replace it whole, so it needs no lock."""


class StoredMessage:
    """One stored message. Its parts are decoded and checked on access.

    Every attribute may raise ``CorruptMessage`` if the record is damaged; ``body`` raises it if its checksum is wrong.
    """

    __slots__ = ("_at", "_body", "_properties", "_records", "_size", "_topic")

    def __init__(self, size: int, at: int, records: bytes, topic: str, body: bytes | None = None) -> None:
        """``body``: if it has been read and checked already."""
        self._records = records
        self._at = at
        self._size = size
        self._topic = topic
        self._body = body
        self._properties: dict[str, str] | None = None

    @property
    def body(self) -> bytes:
        """The body, decompressed if necessary, with its checksum verified. Each access decompresses it again, except
        that the process keeps the last one of up to 1 MiB."""
        body = self._body
        if body is not None:
            return body
        start = self._at + BODY_AT
        crc, sys_flag, length = _unpack_body_head(self._records, self._at)
        if not sys_flag & PLAIN_MASK:
            body = self._records[start : start + length]
            if _crc32(body) & CRC_MASK == crc and len(body) == length:
                self._body = body
                return body
        return self._read_body(sys_flag)

    def _read_body(self, sys_flag: int) -> bytes:
        """Return the body if it needs more than a slice; raises if it is damaged."""
        record = self._decode()
        if not sys_flag & SysFlag.COMPRESSED:
            self._body = record.body
            return record.body
        # Never kept by the message: a list of messages would keep a thousand times the bytes that it was made of.
        global _last
        compressed, flags, body = _last
        if flags == sys_flag and compressed == record.body:
            return body
        body = self._decompressed(decompress, record.body, BODY_BYTES_MAX)
        if len(body) <= KEPT_BODY_BYTES_MAX:
            _last = record.body, sys_flag, body
        return body

    def body_start(self, bytes_max: int) -> tuple[bytes, bool]:
        """Return at most ``bytes_max`` bytes of the body, and whether they are all of it. No more is decompressed, and
        nothing is kept. Raises as ``body``, but not for damage behind these bytes of a compressed body."""
        body = self._decode().body
        if self.sys_flag & SysFlag.COMPRESSED:
            body = self._decompressed(decompress_start, body, bytes_max)
        return body[:bytes_max], len(body) <= bytes_max

    def _decompressed(self, decompress: Callable[[bytes, int, int], bytes], body: bytes, bytes_max: int) -> bytes:
        try:
            return decompress(body, self.sys_flag, bytes_max)
        except DecompressionFailed as error:
            raise self._corrupt(str(error)) from error
        except CompressionUnavailable as error:
            raise CompressionUnavailable(
                f"message at offset {self.queue_offset} of queue {self.queue} of topic {self.topic!r} cannot be read: "
                f"{error}"
            ) from None

    @property
    def topic(self) -> str:
        """The topic that the message was sent to."""
        if not self._topic:
            self._topic = self._decode(check_crc=False).topic.decode("utf-8", "replace")
        return self._topic

    def detached(self) -> StoredMessage:
        """Return the same message with bytes of its own, so that it does not keep those of its whole batch."""
        return StoredMessage(self._size, 0, bytes(self.record), self._topic)

    @property
    def size(self) -> int:
        """Bytes of its record."""
        return self._size

    def shown_in(self, topic: str) -> None:
        """Present the message as one of this topic: a redelivered message is stored in another than it was sent to."""
        self._topic = topic

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties as stored, by RocketMQ's names: the keys as ``KEYS``, the tag as ``TAGS``, ``UNIQ_KEY``, …
        The broker's checksum of the whole record is left out."""
        return MappingProxyType(self._property_map())

    @property
    def user_properties(self) -> Mapping[str, str]:
        """The properties that were passed to ``Message``: without keys, tag, unique key and sharding key, and without
        those that brokers and clients add on the way."""
        pairs = self._property_map().items()
        return MappingProxyType({name: value for name, value in pairs if name not in _OWN_PROPERTIES})

    def may_have_property(self, marker: bytes) -> bool:
        """Return whether the message may have a property, without decoding any. False is certain; True is not, because
        other bytes may look like it. ``marker``: the property's name and ``NAME_VALUE_SEPARATOR``."""
        end = self._at + self._size
        begin = self._at if self._size <= PROPERTIES_BYTES_MAX else end - PROPERTIES_BYTES_MAX
        return self._records.find(marker, begin, end) >= 0

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys by which the message can be found, in addition to its id."""
        return split_keys(self._property_map().get(PROPERTY_KEYS))

    @property
    def tags(self) -> str | None:
        """The tag, or None."""
        return self._property_map().get(PROPERTY_TAGS)

    @property
    def sharding_key(self) -> str | None:
        """The key that selected the queue, or None."""
        return self._property_map().get(PROPERTY_SHARDING_KEY)

    @property
    def message_id(self) -> str:
        """The unique key, or the offset id if the message has none."""
        return self._property_map().get(PROPERTY_UNIQ_KEY) or self.offset_id

    @property
    def offset_id(self) -> str:
        """The location as an id: the broker's advertised address and the physical offset, in hex."""
        return offset_id(self._store_host(), self.physical_offset)

    @property
    def queue(self) -> int:
        """The queue in which the message is stored."""
        return self._integer(_I32, _QUEUE_ID_AT)

    @property
    def queue_offset(self) -> int:
        """The queue offset."""
        return self._integer(_I64, _QUEUE_OFFSET_AT)

    @property
    def physical_offset(self) -> int:
        """The physical offset: position in the CommitLog, in bytes."""
        return self._integer(_I64, _PHYSICAL_OFFSET_AT)

    @property
    def flag(self) -> int:
        """The flag that the application may set in RocketMQ."""
        return self._integer(_I32, _FLAG_AT)

    @property
    def sys_flag(self) -> int:
        """Compression, transaction state and address family, as in ``flintmq.protocol.storage.layout.SysFlag``."""
        return self._integer(_I32, _SYS_FLAG_AT)

    @property
    def reconsume_times(self) -> int:
        """Number of times that a consumer has sent the message back."""
        return self._integer(_I32, self._field_at("reconsume_times"))

    @property
    def retry_reason(self) -> str | None:
        """The consumer's reason for the latest failed attempt; None if it gave none, or no attempt failed."""
        return self._property_map().get(PROPERTY_RETRY_REASON)

    @property
    def retry_member(self) -> str | None:
        """The group member with which the latest attempt failed, or None."""
        return self._property_map().get(PROPERTY_RETRY_MEMBER)

    @property
    def born_at(self) -> datetime:
        """Time at which the producer created the message."""
        return from_millis(self._integer(_I64, _BORN_TIMESTAMP_AT))

    @property
    def stored_at(self) -> datetime:
        """Time at which the broker stored the message."""
        return from_millis(self.stored_ms)

    @property
    def stored_ms(self) -> int:
        """Time at which the broker stored the message, ms since 1970 UTC."""
        return self._integer(_I64, self._field_at("store_timestamp"))

    @property
    def born_host(self) -> tuple[str, int]:
        """The producer's address and port."""
        return decode_host(self._bytes(_BORN_HOST_AT, self._field_at("store_timestamp")))

    @property
    def stored_host(self) -> tuple[str, int]:
        """The address and port that the broker advertised."""
        return decode_host(self._store_host())

    @property
    def record(self) -> memoryview:
        """The record's bytes as in the CommitLog."""
        return memoryview(self._records)[self._at : self._at + self._size]

    def __repr__(self) -> str:
        try:
            stored_in = self._decode(check_crc=False).topic.decode("utf-8", "replace")
        except CorruptMessage:
            stored_in = self._topic
        again = "" if stored_in == self.topic else f"redelivered, stored in {stored_in!r} "
        return f"<StoredMessage {self.topic!r} {again}queue {self.queue} offset {self.queue_offset}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredMessage, (self._size, 0, bytes(self.record), self._topic)

    # ---- parts

    def _integer(self, kind: struct.Struct, at: int) -> int:
        value: int = kind.unpack_from(self._records, self._at + at)[0]
        return value

    def _bytes(self, start: int, end: int) -> bytes:
        return self._records[self._at + start : self._at + end]

    def _field_at(self, name: str) -> int:
        """Return where a field of the head begins within the record: after its hosts, whose widths its flags say."""
        sys_flag = self._integer(_I32, _SYS_FLAG_AT)
        layout = record_head(sys_flag)
        if layout.size > self._size:
            raise self._corrupt(f"its {self._size} bytes are too few for the addresses that its flags announce")
        return layout.at[name]

    def _store_host(self) -> bytes:
        return self._bytes(self._field_at("store_host"), self._field_at("reconsume_times"))

    def _property_map(self) -> dict[str, str]:
        properties = self._properties
        if properties is None:
            properties = self._properties = decode_properties(self._property_bytes())
            properties.pop(PROPERTY_RECORD_CRC, None)  # it belongs to the record, not to the message
        return properties

    def _property_bytes(self) -> bytes:
        records, at, end = self._records, self._at, self._at + self._size
        _, sys_flag, length = BODY_HEAD.unpack_from(records, at)
        # The usual record: its properties are found without decoding the rest. Anything unusual is decoded and checked.
        if not sys_flag & PLAIN_MASK and _SIZE_AND_MAGIC.unpack_from(records, at) == (self._size, MAGIC_V1):
            topic_at = at + BODY_AT + length
            if length >= 0 and topic_at < end:
                properties_at = topic_at + records[topic_at] + 3
                if properties_at <= end and properties_at + _I16.unpack_from(records, properties_at - 2)[0] == end:
                    return records[properties_at:end]
        return self._decode(check_crc=False).properties

    def _decode(self, *, check_crc: bool = True) -> Record:
        try:
            return decode_record(self.record, check_crc=check_crc)
        except CorruptRecord as error:
            raise self._corrupt(str(error)) from None

    def _corrupt(self, reason: str) -> CorruptMessage:
        return CorruptMessage(
            reason,
            topic=self._topic,
            queue=self._integer(_I32, _QUEUE_ID_AT),
            queue_offset=self._integer(_I64, _QUEUE_OFFSET_AT),
            physical_offset=self._integer(_I64, _PHYSICAL_OFFSET_AT),
        )


# ---- Filters of readers: by tag (the broker compares hashes, the client the tags themselves), and by an
# expression that only the broker evaluates.

TAG_SEPARATOR = "||"
EXPRESSION_CHARS_MAX = 4096
"""Maximum length of the tags that a broker accepts."""


class TagFilter:
    """The tags that a reader wants. ``expression``: sent to the broker; ``wanted``: compared exactly by the client."""

    __slots__ = ("expression", "wanted")

    def __init__(self, expression: str, wanted: frozenset[str]) -> None:
        self.expression = expression
        self.wanted = wanted

    def accepts(self, tags: str | None) -> bool:
        """Return whether a message with this tag is wanted."""
        return not self.wanted or tags in self.wanted


EVERYTHING = TagFilter("", frozenset())


def parse_tags(tags: str | Iterable[str] | None) -> TagFilter:
    """Return the filter for ``"a || b"``, for several tags, or for None or ``"*"`` (all messages)."""
    if tags is None:
        return EVERYTHING
    parts = tags.split(TAG_SEPARATOR) if isinstance(tags, str) else list(tags)
    for part in parts:
        if not isinstance(part, str):
            raise InvalidArgumentType(f"tags must be a str or several, not {type(part).__name__}")
        check_unicode("the tag", part)
    wanted = frozenset(part.strip() for part in parts if part.strip())
    if "*" in wanted:
        return EVERYTHING
    if not wanted:
        if isinstance(tags, str) and not tags.strip():
            return EVERYTHING
        raise InvalidArgument(f"tags={tags!r} names no tag; use a tag, 'a || b', or None for all messages")
    if not isinstance(tags, str) and any(TAG_SEPARATOR in tag for tag in wanted):
        raise InvalidArgument(f"tags={tags!r}: a tag cannot contain {TAG_SEPARATOR!r}")
    expression = f" {TAG_SEPARATOR} ".join(sorted(wanted))
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise InvalidArgument(f"tags of {len(expression)} characters in total; at most {EXPRESSION_CHARS_MAX}")
    return TagFilter(expression, wanted)


def check_filter(condition: str | None) -> str:
    """Return a filter as sent to the broker, which checks its syntax; empty for None."""
    if condition is None:
        return ""
    if not isinstance(condition, str):
        raise InvalidArgumentType(f"filter must be a str, a condition on properties, not {type(condition).__name__}")
    if len(condition) > FILTER_CHARS_MAX:
        raise InvalidArgument(f"filter has {len(condition):,} characters; at most {FILTER_CHARS_MAX:,} are allowed")
    return check_unicode("filter", condition)


_STRUCTS_MAX = 4096
"""Maximum number of body lengths whose functions are kept."""
_STREAM_SEGMENT = 128
"""Number of messages that an iteration creates at a time, so that they are handled while the CPU's caches have them."""
_STREAM_RECORD_BYTES_MAX = 4096
"""Maximum size of records whose bodies an iteration reads ahead: the application may not want large ones."""
_SEGMENT = 256
"""Number of records to process together: if all have the same size, their bodies are extracted in one step."""


class _BodyStructs(dict[int, Callable[[Any, int], tuple[int, int, int, bytes]]]):
    """By body length: a function that unpacks body_crc, sys_flag, body_length and the body of a record in one step."""

    def __missing__(self, length: int) -> Callable[[Any, int], tuple[int, int, int, bytes]]:
        if len(self) >= _STRUCTS_MAX:
            self.clear()
        unpack: Callable[[Any, int], Any]
        unpack = self[length] = struct.Struct(f">8xI24xI44xi{length}s").unpack_from
        return unpack


_body_structs = _BodyStructs()


class Records:
    """The records of a response: ``count`` sizes, then the records as stored in the CommitLog.

    Raises ``RemoteProtocolError`` if the sizes do not match the body.
    """

    __slots__ = ("_body", "_records_at", "sizes")

    def __init__(self, body: bytes, count: int) -> None:
        records_at = RECORD_SIZE_STRUCT.size * count
        if records_at > len(body):
            raise RemoteProtocolError(f"{count} records announced in a body of {len(body)} bytes")
        self.sizes: tuple[int, ...] = struct.unpack_from(f">{count}I", body)
        if sum(self.sizes) != len(body) - records_at or (count and min(self.sizes) < RECORD_BYTES_MIN):
            raise RemoteProtocolError(f"the sizes of {count} records do not fit a body of {len(body)} bytes")
        self._body = body
        self._records_at = records_at

    @property
    def raw(self) -> memoryview:
        """The records, one after the other."""
        return memoryview(self._body)[self._records_at :]

    def messages(self, topic: str) -> list[StoredMessage]:
        """Return a message for each record, not decoded yet."""
        sizes = self.sizes
        starts = accumulate(sizes, initial=self._records_at)
        # sizes ends first, so the last start (the end of all records) makes no message.
        return list(map(StoredMessage, sizes, starts, repeat(self._body), repeat(topic)))

    def stream(self, topic: str) -> Iterator[StoredMessage]:
        """Return an iterator over a message for each record, which creates a few at a time and then reads the bodies of
        the usual ones in one step."""
        return chain.from_iterable(self._segments(topic))

    def _segments(self, topic: str) -> Iterator[list[StoredMessage]]:
        at = self._records_at
        for start in range(0, len(self.sizes), _STREAM_SEGMENT):
            sizes = self.sizes[start : start + _STREAM_SEGMENT]
            end = at + sum(sizes)
            # The usual body is there only if all are: else each message reads its own, or raises.
            bodies = self._uniform_bodies(sizes, at, end) if sizes[0] <= _STREAM_RECORD_BYTES_MAX else None
            starts = accumulate(sizes, initial=at)
            yield list(map(StoredMessage, sizes, starts, repeat(self._body), repeat(topic), bodies or repeat(None)))
            at = end

    def bodies(self, topic: str) -> list[bytes]:
        """Return all bodies, decompressed and checked, in one pass."""
        bodies: list[bytes] = []
        at = self._records_at
        for start in range(0, len(self.sizes), _SEGMENT):
            sizes = self.sizes[start : start + _SEGMENT]
            end = at + sum(sizes)
            found = self._uniform_bodies(sizes, at, end)
            bodies += found if found is not None else self._mixed_bodies(sizes, at, topic)
            at = end
        return bodies

    def _uniform_bodies(self, sizes: tuple[int, ...], at: int, end: int) -> list[bytes] | None:
        """Return the bodies if all records have the same size and shape and are sound; None if they may not be."""
        size = sizes[0]
        if sizes.count(size) != len(sizes):
            return None
        length = _body_length(self._body, at, size)
        records = struct.iter_unpack(f">8xI24xI44xi{length}s{size - BODY_AT - length}x", memoryview(self._body)[at:end])
        crc32 = zlib.crc32
        bodies: list[bytes] = [
            body
            for crc, sys_flag, its_length, body in records
            if crc32(body) & CRC_MASK == crc and its_length == length and not sys_flag & PLAIN_MASK
        ]
        return bodies if len(bodies) == len(sizes) else None

    def _mixed_bodies(self, sizes: tuple[int, ...], at: int, topic: str) -> list[bytes]:
        """Return the bodies of any records; raises ``CorruptMessage`` for the first damaged one."""
        content, crc32, structs = self._body, zlib.crc32, _body_structs
        bodies: list[bytes] = []
        append = bodies.append
        # Bytes of a record besides its body: assume those of the previous record, because they seldom change.
        beside = sizes[0] - _body_length(content, at, sizes[0]) if sizes else 0
        for size in sizes:
            length = size - beside
            if length >= 0:
                crc, sys_flag, real_length, body = structs[length](content, at)
                if real_length == length and crc32(body) & CRC_MASK == crc and not sys_flag & PLAIN_MASK:
                    append(body)
                    at += size
                    continue
            append(StoredMessage(size, at, content, topic).body)
            beside = size - _body_length(content, at, size)
            at += size
        return bodies


class Batch:
    """The messages of one pull.

    ``next_offset``: where to pull next; ``min_offset``, ``max_offset``: the queue's range at the time of the pull;
    ``lost``: number of messages before ``next_offset`` that were lost to damage of the broker's log.
    ``messages`` are decoded lazily; ``bodies()`` is the fastest way to get all bodies.
    """

    __slots__ = tuple("_messages _records _tags go_on lost max_offset min_offset next_offset queue topic".split())

    def __init__(
        self,
        topic: str,
        queue: int,
        body: bytes,
        count: int,
        *,
        next_offset: int,
        min_offset: int,
        max_offset: int,
        lost: int = 0,
        go_on: bool = False,
        tags: TagFilter = EVERYTHING,
    ) -> None:
        self.topic = topic
        self.queue = queue
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.lost = lost
        self.go_on = go_on
        self._records = Records(body, count)
        self._tags = tags
        self._messages: list[StoredMessage] | None = None

    @property
    def messages(self) -> Sequence[StoredMessage]:
        """The messages, in the order of the queue."""
        messages = self._messages
        if messages is None:
            messages = self._records.messages(self.topic)
            if self._tags.wanted:
                # The broker compares only hashes, and two tags can have the same hash.
                messages = [message for message in messages if self._tags.accepts(message.tags)]
            self._messages = messages
        return messages

    def stream(self) -> Iterator[StoredMessage]:
        """Return an iterator over the messages that keeps none of them, and creates them a few at a time."""
        return iter(self.messages) if self._tags.wanted else self._records.stream(self.topic)

    def bodies(self) -> list[bytes]:
        """Return the bodies of all messages, decompressed, each with its checksum verified.

        Raises ``CorruptMessage`` for the first damaged one; ``messages`` gives access to the others.
        """
        if self._tags.wanted:
            return [message.body for message in self.messages]
        return self._records.bodies(self.topic)

    def part(self, messages: Sequence[StoredMessage]) -> Batch:
        """Return a batch with only these of its messages."""
        raws = [bytes(message.record) for message in messages]
        body = b"".join([RECORD_SIZE_STRUCT.pack(len(raw)) for raw in raws] + raws)
        part = Batch(
            self.topic,
            self.queue,
            body,
            len(raws),
            next_offset=self.next_offset,
            min_offset=self.min_offset,
            max_offset=self.max_offset,
            go_on=self.go_on,
        )
        part._messages = list(messages)
        return part

    @property
    def raw(self) -> memoryview:
        """The stored records as in the CommitLog, one after the other; not filtered by tag on the client."""
        return self._records.raw

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of each record in ``raw``."""
        return self._records.sizes

    def __len__(self) -> int:
        return len(self.messages) if self._tags.wanted else len(self._records.sizes)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __iter__(self) -> Iterator[StoredMessage]:
        return iter(self.messages)

    def __repr__(self) -> str:
        return (
            f"<Batch of {len(self)} messages, topic {self.topic!r} queue {self.queue}, next offset {self.next_offset}>"
        )


class Found(Sequence[StoredMessage]):
    """The messages that a query found, newest first.

    ``cursor``: pass it to the next query to get the following page, None at the end; ``index_behind_bytes``: bytes of
    the CommitLog that the index did not cover yet; ``damaged``: number of matching records that the index refers to but
    that are unreadable because the broker's log is damaged.
    """

    __slots__ = ("_messages", "cursor", "damaged", "index_behind_bytes")

    def __init__(
        self, topic: str, body: bytes, count: int, cursor: str | None, index_behind_bytes: int, damaged: int = 0
    ) -> None:
        self.cursor = cursor
        self.index_behind_bytes = index_behind_bytes
        self.damaged = damaged
        self._messages = Records(body, count).messages(topic)

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> StoredMessage: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[StoredMessage]: ...
    def __getitem__(self, index: int | slice) -> StoredMessage | Sequence[StoredMessage]:
        return self._messages[index]

    def __iter__(self) -> Iterator[StoredMessage]:
        return iter(self._messages)

    def __repr__(self) -> str:
        return f"<Found {len(self)} messages{', more to come' if self.cursor else ''}>"


def _body_length(records: bytes, at: int, size: int) -> int:
    """Return the body length that a record claims, limited to the record."""
    length: int = struct.unpack_from(">i", records, at + BODY_AT - 4)[0]
    return min(max(length, 0), size - BODY_AT)
