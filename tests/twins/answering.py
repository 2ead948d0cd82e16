"""A broker for ``Outbox`` that takes its frames and responds when the test says so, by the test's clock."""

from __future__ import annotations

import struct
from math import inf
from typing import Any

import msgpack
import pytest

from flintmq.client import ConnectionFailed, DeliveryFailed, Message
from flintmq.client.core.compression import Compressor
from flintmq.client.core.produce.accumulator import BatchGroup, Bulk, ProduceFrame, Single
from flintmq.client.core.produce.delivery import Outbox
from flintmq.client.core.produce.packer import RowSource
from flintmq.client.core.produce.receipts import settle
from flintmq.client.core.rpc.session import Answer
from flintmq.protocol.commands import PRODUCE, HelloAnswer, ProduceRequest
from flintmq.protocol.errors import BrokerError
from flintmq.protocol.fields import decode_fields
from flintmq.protocol.frames import REQUEST, FrameParser

PREFIX = "7F00000155A7382098"
NO_COMPRESSION = Compressor(None)


class AnsweringBroker:
    """Responds to the frames of ``delivery`` with ``store`` and ``refuse``; ``now`` is its clock."""

    def __init__(self, *, in_flight_bytes_max: int = 1 << 25, produce_frame_bytes_max: int = 1 << 20) -> None:
        self.delivery = Outbox(10.0, in_flight_bytes_max, PREFIX, 1000)
        self.limits = HelloAnswer(1, "fake", "0", "async", 1 << 24, produce_frame_bytes_max, 1 << 19)
        self.delivery.connected(self.limits)
        self.now = 1000.0
        self.in_flight: dict[int, ProduceFrame] = {}
        self.sent: list[ProduceFrame] = []
        self.fields: dict[ProduceFrame, dict[str, Any]] = {}
        self.stored: dict[tuple[str, int], list[bytes]] = {}
        self._next_id = 1
        self._physical_offset = 0

    def take(self) -> list[ProduceFrame]:
        """Take every frame that the delivery sends now."""
        frames = []
        while (request := self.delivery.next_request(self.now, self._next_id)) is not None:
            head, body = request
            frame = self.delivery.in_flight[self._next_id]
            self.fields[frame] = self._read(head, body)
            self.in_flight[self._next_id] = frame
            self._next_id += 1
            frames.append(frame)
        self.sent += frames
        return frames

    def _read(self, head: bytes, body: bytes | memoryview) -> dict[str, Any]:
        """Return the fields of a request, read as the broker reads them."""
        parser = FrameParser()
        blob = head + bytes(body)
        assert len(blob) <= self.limits.produce_frame_bytes_max
        while blob:
            room = parser.writable()
            part = blob[: len(room)]
            room[: len(part)] = part
            parser.received(len(part))
            blob = blob[len(part) :]
            frame = parser.next_frame()
        assert frame is not None
        assert (frame.kind, frame.code, frame.request_id) == (REQUEST, PRODUCE.code, self._next_id)
        assert bytes(frame.body) == bytes(body)
        decode_fields(ProduceRequest, frame.fields)
        return frame.fields

    def store(self, frame: ProduceFrame) -> None:
        """Respond to a frame with success."""
        queue = max(frame.lane.queue, 0)
        log = self.stored.setdefault((frame.lane.topic, queue), [])
        bodies = bodies_of(frame)
        fields = {"queue": queue, "queue_offset": len(log), "store_ms": 5}
        offsets = range(self._physical_offset, self._physical_offset + 100 * len(bodies), 100)
        self._physical_offset += 100 * len(bodies)
        log += bodies
        self._answer(frame, 0, fields, struct.pack(f">{len(bodies)}q", *offsets))

    def refuse(self, frame: ProduceFrame, error: BrokerError) -> None:
        self._answer(frame, error.code, error.fields(), b"")

    def _answer(self, frame: ProduceFrame, code: int, fields: dict[str, Any], body: bytes) -> None:
        (request_id,) = [number for number, one in self.in_flight.items() if one is frame]
        del self.in_flight[request_id]
        self.delivery.answered(Answer(request_id, code, fields, body), self.now)

    def lose_connection(self) -> None:
        self.in_flight.clear()
        self.delivery.connection_lost(ConnectionFailed("gone"), self.now)

    def reconnect(self) -> None:
        self.delivery.connected(self.limits)

    def single(
        self, body: bytes = b"x", topic: str = "t", queue: int = -1, seconds: float = 10.0, **more: Any
    ) -> Single:
        return self.delivery.add_single(
            topic, queue, (body, {}), more.get("flush", ""), self.now + seconds, more.get("future")
        )

    def bulk(self, bodies: list[bytes], queue: int = -1, seconds: float = inf, topic: str = "t") -> Bulk:
        bulk = Bulk(len(bodies), self.now, self.now + seconds)
        source = RowSource([Message(topic, body) for body in bodies], NO_COMPRESSION)
        self.delivery.add_bulk(bulk, topic, queue, BatchGroup(bulk, source, range(len(bodies)), "", ""))
        return bulk


def bodies_of(frame: ProduceFrame) -> list[bytes]:
    """Return the bodies in a frame, unpacked by msgpack itself."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(frame.body)
    items: list[Any] = list(unpacker)
    if frame.content.layout == 1:
        items = [[body] for body in items[0]]
    return [row[0] for row in items]


def failures(bulk: Bulk) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as raised:
        settle(bulk.parts, DeliveryFailed)
    return raised.value
