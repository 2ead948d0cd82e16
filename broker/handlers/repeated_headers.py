"""The short way of PRODUCE and PULL frames whose headers differ from an earlier one's only in their numbers.

Most producers send frame after frame to the same topic, and most consumers pull from a queue again and again. After the
general handler has accepted a PRODUCE, its decoded header and the kernel's arguments are kept, and the next frame with
the same bytes in its header needs no msgpack, no request object and no fields. A PULL that is kept saves decoding.
Whatever may have changed since (topic, permissions, limits, the state of the store) is compared; if anything is not as
it was, or not as simple, the frame takes the general way, as if it had not been looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.commands import PULL, PullRequest
from ...protocol.fields import I64_MAX, encode_fields
from ...protocol.frames import (
    BEFORE_BORN,
    BEFORE_FIRST,
    HEAD_END,
    LENGTHS_BYTES,
    PRODUCE_BEGIN,
    PULL_BEGIN,
    PULL_END,
    REQUEST,
    REQUEST_ID_MAX,
    REQUEST_START,
    Frame,
    ProduceHead,
    PullHead,
    encode_produce_answer,
)
from ..config import PRODUCE_MESSAGES_MAX
from ..requests.request import Request
from .pull import pull_again

if TYPE_CHECKING:
    from ...protocol.commands import ProduceRequest
    from ..requests.broker import Broker
    from ..requests.request import FrameSource
    from ..store import TopicConfig

HEADERS_PER_CONNECTION_MAX = 16
"""Maximum number of headers that one connection keeps."""
TRIES_MAX = 1_024
"""Maximum number of headers that a connection tries to keep: not every client packs them as ``ProduceHead`` and
``PullHead`` do."""
HEADERS_MAX = 16_384
"""Maximum number of kept headers of all connections; each takes about 1.5 KiB."""
FIXED_BYTES_MAX = 512
"""Longest constant part of a header that is kept: common properties can be long."""
_UNIQUE_FIRST_MAX = 2**48 - 1
_HEADS_BYTES_MIN = REQUEST_START.size + PULL_END.size
_NO_BODY = bytearray()


class _PullHeader:
    """The header of a PULL that was accepted before: its fields, with the offset of that time."""

    __slots__ = ("config", "params")

    def __init__(self, params: PullRequest, config: TopicConfig) -> None:
        self.params = params
        self.config = config

    def params_at(self, offset: int) -> PullRequest:
        same = self.params
        return PullRequest(
            same.topic,
            same.queue,
            offset,
            same.max_count,
            same.max_bytes,
            same.wait_ms,
            group=same.group,
            member=same.member,
            epoch=same.epoch,
        )


class _ProduceHeader:
    """A header that was accepted before: its fields, and everything that depends on them alone."""

    __slots__ = ("batch", "config", "prefix", "queue", "sync", "topic", "traffic")

    def __init__(self, broker: Broker, params: ProduceRequest, config: TopicConfig) -> None:
        self.topic = params.topic
        self.config = config
        self.queue = params.queue
        self.prefix = params.unique_prefix
        self.sync = broker.sync or params.flush == "sync"
        self.traffic = broker.counters.produced.of(params.topic)
        self.batch = broker.store.commitlog.repeated_batch()


class RepeatedHeaders:
    """The kept headers of one connection, by the constant part of their bytes."""

    __slots__ = ("_broker", "_tries_left", "headers")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tries_left = TRIES_MAX
        self.headers: dict[bytes, _ProduceHeader | _PullHeader] = {}
        """Kept headers by their constant part; if it is empty, ``handle`` need not be called."""

    def keep(self, request: Request, params: ProduceRequest, config: TopicConfig) -> None:
        """Keep the header of a frame whose messages have just been appended to their own topic.

        Does nothing if the header is not packed as ``ProduceHead`` packs it, or if too many are kept.
        """
        if not self._may_keep():
            return
        frame = request.frame
        head = ProduceHead(params.topic, params.queue, params.layout, params.flush, params.common, params.unique_prefix)
        body_bytes = frame.body_end - frame.body_at
        packed = head.encode(frame.request_id, params.count, params.unique_first, params.born_ms, body_bytes)
        if self._is_new(head.fixed) and _begins_with(frame, packed):
            self._keep(head.fixed, _ProduceHeader(self._broker, params, config))

    def keep_pull(self, request: Request, params: PullRequest) -> None:
        """Keep the header of a pull without tags or a filter that was accepted, on a broker in no replica set.

        Does nothing if the header is not packed as ``PullHead`` packs it, if too many are kept, or if the answer may
        depend on more than is compared: the user's permissions.
        """
        if request.peer.access is not None or not self._may_keep():
            return
        frame = request.frame
        fields = encode_fields(params)
        offset = fields.pop("offset")
        head = PullHead(fields)
        config = self._broker.store.topics.get(params.topic)
        assert config is not None, "the pull was accepted"
        if self._is_new(head.fixed) and _begins_with(frame, head.encode(frame.request_id, offset)):
            header = _PullHeader(params, config)
            header.params = header.params_at(0)  # the handler changes the original
            self._keep(head.fixed, header)

    def _may_keep(self) -> bool:
        """Return whether the connection may try to keep another header."""
        if not self._tries_left or self._broker.counters.kept_headers >= HEADERS_MAX:
            return False
        self._tries_left -= 1
        return len(self.headers) < HEADERS_PER_CONNECTION_MAX

    def _is_new(self, fixed: bytes) -> bool:
        return len(fixed) <= FIXED_BYTES_MAX and fixed not in self.headers

    def _keep(self, fixed: bytes, header: _ProduceHeader | _PullHeader) -> None:
        self.headers[fixed] = header
        self._broker.counters.kept_headers += 1

    def handle(self, connection: FrameSource, began: float) -> bool:
        """Handle the frame at the start of the connection's parser; return False if it did nothing."""
        parser = connection.parser
        buffer, start = parser.buffer, parser.start
        if parser.end - start < _HEADS_BYTES_MIN:
            return False
        frame_length, header_length, begin, request_id = REQUEST_START.unpack_from(buffer, start)
        body_at = start + LENGTHS_BYTES + header_length
        body_end = start + 4 + frame_length
        # Incomplete, or its lengths contradict each other: the general way waits for the rest, or refuses it.
        if not body_at <= body_end <= parser.end or request_id > REQUEST_ID_MAX:
            return False
        if begin == PRODUCE_BEGIN:
            return self._produce(connection, began, request_id, body_at, body_end)
        if begin == PULL_BEGIN and body_at == body_end:
            return self._pull(connection, began, request_id, body_end)
        return False

    def _pull(self, connection: FrameSource, began: float, request_id: int, frame_end: int) -> bool:
        parser = connection.parser
        buffer, fixed_at, offset_at = parser.buffer, parser.start + REQUEST_START.size, frame_end - PULL_END.size
        if not fixed_at < offset_at <= fixed_at + FIXED_BYTES_MAX:
            return False
        fixed = bytes(buffer[fixed_at:offset_at])
        header = self.headers.get(fixed)
        # Both commands share the dict, so the same bytes may belong to a header of the other one.
        if type(header) is not _PullHeader:
            return False
        if self._broker.store.topics.by_name.get(header.params.topic) is not header.config:
            self._forget(fixed)
            return False
        (offset,) = PULL_END.unpack_from(buffer, offset_at)
        if offset > I64_MAX or connection.peer.access is not None:
            return False
        parser.start = frame_end
        frame = Frame(REQUEST, PULL.code, request_id, {}, _NO_BODY, 0, 0)
        frame.began = began
        pull_again(Request(connection, frame), self._broker, header.params_at(offset))
        return True

    def _produce(self, connection: FrameSource, began: float, request_id: int, body_at: int, body_end: int) -> bool:
        parser = connection.parser
        buffer, start = parser.buffer, parser.start
        numbers_at, fixed_at = body_at - HEAD_END.size, start + REQUEST_START.size
        if not fixed_at < numbers_at <= fixed_at + FIXED_BYTES_MAX:
            return False
        fixed = bytes(buffer[fixed_at:numbers_at])
        header = self.headers.get(fixed)
        if type(header) is not _ProduceHeader:
            return False
        count, before_first, first, before_born, born_ms = HEAD_END.unpack_from(buffer, numbers_at)
        broker, peer = self._broker, connection.peer
        name, config, prefix = header.topic, header.config, header.prefix
        # Each change of a topic makes a new object.
        if broker.store.topics.by_name.get(name) is not config:
            self._forget(fixed)
            return False
        # All that the general way checks and that the constant bytes of the header do not settle.
        frame_bytes = body_end - start
        if (
            before_first != BEFORE_FIRST
            or before_born != BEFORE_BORN
            or not 0 < count <= PRODUCE_MESSAGES_MAX
            or first > _UNIQUE_FIRST_MAX
            or born_ms > I64_MAX
            or frame_bytes > broker.produce_frame_bytes_max
            or broker.in_flight.bytes > broker.in_flight.bytes_max
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
        # From here on the frame is taken; every return before has left it to the general way.
        parser.start = body_end
        broker.dispatch.appended_to(name, queue, appended)
        if broker.dispatch.awaited and not header.sync and body_end == parser.end:
            broker.dispatch.serve_waiting()  # before the rest, which the consumer need not wait for
        queue_offset = appended.queue_offset
        if prefix:
            broker.sequences.stored(prefix, name, first, count, name, queue, queue_offset, began)
        # As ``acknowledge`` does it on the general way.
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

    def _forget(self, fixed: bytes) -> None:
        del self.headers[fixed]
        self._broker.counters.kept_headers -= 1

    def clear(self) -> None:
        """Forget all headers; the connection is closed."""
        self._broker.counters.kept_headers -= len(self.headers)
        self.headers.clear()


def _begins_with(frame: Frame, head: bytes) -> bool:
    head_at = frame.body_at - len(head)
    return head_at >= 0 and frame.buffer[head_at : frame.body_at] == head
