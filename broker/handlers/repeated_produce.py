"""The short way of PRODUCE frames whose headers differ from an earlier one's only in their numbers.

Most producers send frame after frame to the same topic. After the general handler has accepted one, its decoded header
and the kernel's arguments are kept, and the next frame with the same bytes in its header needs no msgpack, no request
object and no fields. Whatever may have changed since (topic, permissions, limits, the state of the store) is compared;
if anything is not as it was, or not as simple, the frame takes the general way, as if it had not been looked at.
"""

from __future__ import annotations

from ...protocol.commands import ProduceRequest
from ...protocol.frames import REQUEST_ID_MAX
from ...protocol.produce_frame import (
    BEFORE_BORN,
    BEFORE_FIRST,
    BEGIN,
    HEAD_END,
    HEAD_START,
    ProduceHead,
    encode_produce_answer,
)
from ..config import PRODUCE_MESSAGES_MAX
from ..requests.broker import Broker
from ..requests.request import FrameSource, Request
from ..store import TopicConfig

HEADERS_PER_CONNECTION_MAX = 16
"""Maximum number of headers that one connection keeps."""
TRIES_MAX = 1_024
"""Maximum number of headers that a connection tries to keep: not every client packs them as ``ProduceHead`` does."""
HEADERS_MAX = 16_384
"""Maximum number of kept headers of all connections; each takes about 1.5 KiB."""
FIXED_BYTES_MAX = 512
"""Longest constant part of a header that is kept: common properties can be long."""
_UNIQUE_FIRST_MAX = 2**48 - 1
_BORN_MS_MAX = 2**63 - 1
_HEADS_BYTES_MIN = HEAD_START.size + HEAD_END.size
_LENGTHS_BYTES = 8


class _Header:
    """A header that was accepted before: its fields, and everything that depends on them alone."""

    __slots__ = ("batch", "config", "prefix", "queue", "sync", "topic", "traffic")

    def __init__(self, request: Request, params: ProduceRequest, config: TopicConfig) -> None:
        broker = request.broker
        self.topic = params.topic
        self.config = config
        self.queue = params.queue
        self.prefix = params.unique_prefix
        self.sync = broker.sync or params.flush == "sync"
        self.traffic = broker.counters.produced.of(params.topic)
        self.batch = broker.store.commitlog.repeated_batch()


class RepeatedProduces:
    """The kept headers of one connection, by the constant part of their bytes."""

    __slots__ = ("_tries_left", "headers")

    def __init__(self) -> None:
        self._tries_left = TRIES_MAX
        self.headers: dict[bytes, _Header] = {}
        """Kept headers by their constant part; if it is empty, ``handle`` need not be called."""

    def keep(self, request: Request, params: ProduceRequest, config: TopicConfig) -> None:
        """Keep the header of a frame whose messages have just been appended to their own topic.

        Does nothing if the header is not packed as ``ProduceHead`` packs it, or if too many are kept.
        """
        frame, broker = request.frame, request.broker
        if not self._tries_left or broker.kept_headers >= HEADERS_MAX:
            return
        self._tries_left -= 1
        head = ProduceHead(params.topic, params.queue, params.layout, params.flush, params.common, params.unique_prefix)
        head_at = frame.body_at - head.size
        if head_at < 0 or len(head.fixed) > FIXED_BYTES_MAX or head.fixed in self.headers:
            return
        if len(self.headers) >= HEADERS_PER_CONNECTION_MAX:
            return
        body_bytes = frame.body_end - frame.body_at
        packed = head.encode(frame.request_id, params.count, params.unique_first, params.born_ms, body_bytes)
        if frame.buffer[head_at : frame.body_at] == packed:
            self.headers[head.fixed] = _Header(request, params, config)
            broker.kept_headers += 1

    def handle(self, connection: FrameSource, began: float) -> bool:
        """Append and acknowledge the frame at the start of the connection's parser; return False if it did nothing."""
        parser = connection.parser
        buffer, start = parser.buffer, parser.start
        if parser.end - start < _HEADS_BYTES_MIN:
            return False
        frame_length, header_length, begin, request_id = HEAD_START.unpack_from(buffer, start)
        body_at = start + _LENGTHS_BYTES + header_length
        body_end = start + 4 + frame_length
        numbers_at = body_at - HEAD_END.size
        fixed_at = start + HEAD_START.size
        if begin != BEGIN or not fixed_at < numbers_at <= fixed_at + FIXED_BYTES_MAX:
            return False
        if not body_at <= body_end <= parser.end:
            return False
        fixed = bytes(buffer[fixed_at:numbers_at])
        header = self.headers.get(fixed)
        if header is None:
            return False
        count, before_first, first, before_born, born_ms = HEAD_END.unpack_from(buffer, numbers_at)
        broker, peer = connection.broker, connection.peer
        name, config, prefix = header.topic, header.config, header.prefix
        # Each change of a topic makes a new object.
        if broker.store.topics.get(name) is not config:
            self._forget(broker, fixed)
            return False
        frame_bytes = body_end - start
        if (
            before_first != BEFORE_FIRST
            or before_born != BEFORE_BORN
            or not 0 < count <= PRODUCE_MESSAGES_MAX
            or first > _UNIQUE_FIRST_MAX
            or born_ms > _BORN_MS_MAX
            or request_id > REQUEST_ID_MAX
            or frame_bytes > broker.produce_bytes_max
            or broker.in_flight_bytes > broker.in_flight_bytes_max
            or name in broker.topic_changes.pending
            or (peer.access is not None and name not in peer.access.publishes)
            or (prefix and broker.sequences.may_have(prefix, name, first))
        ):
            return False
        queue = header.queue
        if queue < 0:
            queue = broker.next_queue.get(name, 0) % config.write_queues
        appended = broker.store.append_repeated(
            name, queue, header.batch, (buffer, body_at, body_end, count, first, born_ms)
        )
        if appended is None:
            return False
        # Only after the append: if it gives up, the general way chooses the queue.
        if header.queue < 0:
            broker.next_queue[name] = queue + 1
        parser.start = body_end
        broker.dispatch.appended_to(name, queue)
        queue_offset = appended.queue_offset
        if prefix:
            broker.sequences.stored(prefix, name, first, count, name, queue, queue_offset, began)
        traffic = header.traffic
        traffic.frames += 1
        traffic.messages += count
        traffic.bytes += body_end - body_at
        answer = encode_produce_answer(request_id, queue, queue_offset, appended.store_ms, appended.physical_offsets)
        responses = connection.responses
        if header.sync:
            responses.send_when_flushed(request_id, frame_bytes, answer, appended.end_offset)
        else:
            responses.written += 1
            responses.send_in_order(answer)
        return True

    def _forget(self, broker: Broker, fixed: bytes) -> None:
        del self.headers[fixed]
        broker.kept_headers -= 1

    def clear(self, broker: Broker) -> None:
        """Forget all headers; the connection is closed."""
        broker.kept_headers -= len(self.headers)
        self.headers.clear()
