"""The results of pulls and queries: stored records, decoded on access."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from typing import Any, overload

from ....protocol.commands import RECORD_SIZE_STRUCT
from ....protocol.errors import RemoteProtocolError
from ....protocol.storage.layout import RECORD_BYTES_MIN
from .stored import BODY_AT, CRC_MASK, PLAIN_MASK, StoredMessage
from .tags import EVERYTHING, TagFilter

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
