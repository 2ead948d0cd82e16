"""What a pull and a query return: stored records, decoded where they are looked at."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, repeat
from typing import Any, overload

from ...protocol.commands import RECORD_SIZE_STRUCT
from ...protocol.errors import RemoteProtocolError
from ...protocol.layout import RECORD_BYTES_MIN
from .stored import BODY_AT, CRC_MASK, PLAIN_MASK, StoredMessage
from .tags import EVERYTHING, TagFilter

_STRUCTS_MAX = 4096
_SEGMENT = 256
"""Records that are looked at together: if they are all of one size, their bodies are taken out all at once."""


class _BodyStructs(dict[int, Callable[[Any, int], tuple[int, int, int, bytes]]]):
    """By body length: the function that takes body_crc, sys_flag, body_length and the body out of a record at once."""

    def __missing__(self, length: int) -> Callable[[Any, int], tuple[int, int, int, bytes]]:
        if len(self) >= _STRUCTS_MAX:
            self.clear()
        unpack: Callable[[Any, int], Any]
        unpack = self[length] = struct.Struct(f">8xI24xI44xi{length}s").unpack_from
        return unpack


_body_structs = _BodyStructs()


class Records:
    """Records of an answer: ``count`` sizes, then the records as they lie in the CommitLog.

    Raises ``RemoteProtocolError`` where the sizes do not fit what is there.
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
        """The records, one behind the other."""
        return memoryview(self._body)[self._records_at :]

    def messages(self, topic: str) -> list[StoredMessage]:
        """A message for each record, not decoded yet."""
        sizes = self.sizes
        starts = accumulate(sizes, initial=self._records_at)
        # sizes ends first, so that the last start (the end of all) makes no message.
        return list(map(StoredMessage, sizes, starts, repeat(self._body), repeat(topic)))

    def bodies(self, topic: str) -> list[bytes]:
        """All bodies, decompressed and checked, in one pass."""
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
        """The bodies of records that all have the same size and shape and are sound; None where they may not."""
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
        """The bodies of any records; raises ``CorruptMessage`` for the first that is damaged."""
        content, crc32, structs = self._body, zlib.crc32, _body_structs
        bodies: list[bytes] = []
        append = bodies.append
        # What of a record is not its body: guessed from the one before it, because it seldom changes.
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

    ``next_offset``: where the next pull goes on; ``min_offset``, ``max_offset``: what the queue held at the time;
    ``lost``: messages in front of ``next_offset`` that damage of the broker's log took.
    ``messages`` are decoded lazily; ``bodies()`` is the fast way to all bodies.
    """

    __slots__ = (
        "_messages", "_records", "_tags", "go_on", "lost", "max_offset", "min_offset", "next_offset", "queue", "topic",
    )  # fmt: skip

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
                # The broker compared hashes; two tags can have the same.
                messages = [message for message in messages if self._tags.accepts(message.tags)]
            self._messages = messages
        return messages

    def bodies(self) -> list[bytes]:
        """The bodies of all messages, decompressed, each with its checksum verified.

        Raises ``CorruptMessage`` for the first that is damaged; ``messages`` gives access to the others.
        """
        if self._tags.wanted:
            return [message.body for message in self.messages]
        return self._records.bodies(self.topic)

    def part(self, messages: Sequence[StoredMessage]) -> Batch:
        """Return a batch of these of its messages alone."""
        raws = [bytes(message.record) for message in messages]
        body = b"".join([RECORD_SIZE_STRUCT.pack(len(raw)) for raw in raws] + raws)
        part = Batch(
            self.topic, self.queue, body, len(raws), next_offset=self.next_offset, min_offset=self.min_offset,
            max_offset=self.max_offset, go_on=self.go_on,
        )  # fmt: skip
        part._messages = list(messages)
        return part

    @property
    def raw(self) -> memoryview:
        """The stored records as they lie in the CommitLog, one behind the other; before any tag is compared."""
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

    ``cursor``: to be given to the next query for the following page, None at the end; ``index_behind_bytes``: how much
    of the CommitLog the index did not cover yet when it was asked; ``damaged``: records that the index has for the key,
    and that damage of the broker's log made unreadable.
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
    """The body's length that a record claims, kept within the record."""
    length: int = struct.unpack_from(">i", records, at + BODY_AT - 4)[0]
    return min(max(length, 0), size - BODY_AT)
