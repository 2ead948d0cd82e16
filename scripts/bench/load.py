"""Messages for the measurements, each with a random body, one key and a unique key."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgpack

from flintmq.protocol.commands import LAYOUT_COLUMNS, LAYOUT_ROWS, PRODUCE
from flintmq.protocol.frames import REQUEST, ProduceHead, encode_frame
from flintmq.protocol.storage.record import PROPERTY_KEYS, unique_counter_start, unique_key, unique_prefix

from .raw import RawClient

TOPIC = "bench"
QUEUES = 4
BODY_BYTES = 100
FRAME_BODY_BYTES = 192 * 1024
"""Maximum size of a frame, the same as the SDK's."""

_FILLED_AT_ONCE = 100_000
_LOOPBACK = bytes((127, 0, 0, 1))


@dataclass(frozen=True, slots=True)
class Columns:
    bodies: list[bytes]
    keys: list[str]

    def __len__(self) -> int:
        return len(self.bodies)

    def chunks(self, count: int) -> Iterator[Columns]:
        """Yield the same messages, ``count`` at a time."""
        for start in range(0, len(self.bodies), count):
            yield Columns(self.bodies[start : start + count], self.keys[start : start + count])


def columns(count: int, body_bytes: int = BODY_BYTES, first: int = 0) -> Columns:
    """Return ``count`` messages, numbered from ``first``, each with a different body and key."""
    content = random.Random(first).randbytes(count * body_bytes)
    bodies = [content[start : start + body_bytes] for start in range(0, len(content), body_bytes)]
    return Columns(bodies, [f"order-{number:08}" for number in range(first, first + count)])


class FramePacker:
    """A packer of PRODUCE frames that acts as one producer: unique keys consist of its prefix and a counter.

    Its frames go to ``topics``, and to the queues of each, in turn. ``as_sdk``: with the fields in the SDK's order.
    """

    def __init__(
        self, seed: str, topics: Sequence[str] = (TOPIC,), queues: int = QUEUES, *, as_sdk: bool = False
    ) -> None:
        self._as_sdk = as_sdk
        self._topics = topics
        self._queues = queues
        self._prefix = unique_prefix(_LOOPBACK, 1, seed.encode())
        self._first = self._counter = unique_counter_start(time.time())
        self._number = 0

    def unique_key(self, number: int) -> str:
        """Return the unique key of the packed message ``number``, counted from 0."""
        return unique_key(self._prefix, self._first + number)

    def columns(self, load: Columns) -> bytes:
        """Return one frame with all of ``load`` as ``send_bulk`` packs it; topics and queues are used in turn."""
        body = msgpack.packb(load.bodies) + msgpack.packb(load.keys)
        return self._frame(LAYOUT_COLUMNS, len(load), body)

    def rows(self, load: Columns) -> bytes:
        """Return one frame with all of ``load`` as ``send_many`` packs it; topics and queues are used in turn."""
        rows = [(body, {PROPERTY_KEYS: key}) for body, key in zip(load.bodies, load.keys, strict=True)]
        return self._frame(LAYOUT_ROWS, len(load), b"".join(map(msgpack.packb, rows)))

    def _frame(self, layout: int, count: int, body: bytes) -> bytes:
        self._number += 1
        if self._as_sdk:
            topic, queue = self._topics[self._number % len(self._topics)], self._number % self._queues
            head = ProduceHead(topic, queue, layout, "", "", self._prefix)
            first, self._counter = self._counter, self._counter + count
            return head.encode(self._number, count, first, time.time_ns() // 1_000_000, len(body)) + body
        fields = {
            "topic": self._topics[self._number % len(self._topics)],
            "queue": self._number % self._queues,
            "count": count,
            "layout": layout,
            "unique_prefix": self._prefix,
            "unique_first": self._counter,
            "born_ms": time.time_ns() // 1_000_000,
        }
        self._counter += count
        return encode_frame(REQUEST, PRODUCE.code, self._number, fields, body)


def single_frames(seed: str, count: int, topics: Sequence[str] = (), *, as_sdk: bool = False) -> list[bytes]:
    """Return ``count`` frames of one producer with one message each, to queue 0 of each topic in turn; without topics,
    to all queues of ``TOPIC``. ``as_sdk``: with the fields in the SDK's order."""
    packer = FramePacker(seed, topics, 1, as_sdk=as_sdk) if topics else FramePacker(seed, as_sdk=as_sdk)
    return [packer.rows(message) for message in columns(count).chunks(1)]


def topic_name(number: int) -> str:
    return f"{TOPIC}-{number:05}"


def fill_topics(address: str, count: int, first: int = 0) -> None:
    """Create ``count`` topics, numbered from ``first``, with one message in each queue."""
    body = msgpack.packb([bytes(BODY_BYTES), {PROPERTY_KEYS: "order"}])
    with RawClient(address) as client:
        for number in range(first, first + count):
            client.create_topic(topic_name(number), QUEUES)
            for queue in range(QUEUES):
                client.call(PRODUCE, {"topic": topic_name(number), "queue": queue, "count": 1}, body)


def messages_a_frame(body_bytes: int) -> int:
    """Return roughly how many messages of that size the SDK puts into one frame."""
    return FRAME_BODY_BYTES // (body_bytes + 48)


def blocks(count: int, body_bytes: int = BODY_BYTES) -> Iterator[Columns]:
    """Yield ``count`` messages for ``fill``, in blocks that fit into memory."""
    for first in range(0, count, _FILLED_AT_ONCE):
        yield columns(min(_FILLED_AT_ONCE, count - first), body_bytes, first)


def fill(address: str, count: int, body_bytes: int = BODY_BYTES) -> FramePacker:
    """Send the messages of ``blocks(count, body_bytes)`` with acknowledgement; return the packer, for unique keys."""
    packer = FramePacker(f"fill {count}")
    with RawClient(address) as client:
        for load in blocks(count, body_bytes):
            client.stream([packer.columns(chunk) for chunk in load.chunks(messages_a_frame(body_bytes))])
    return packer
