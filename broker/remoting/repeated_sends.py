"""The short way of sends whose headers differ from an earlier one's only in what differs from message to message.

The counterpart of ``handlers.repeated_headers`` for RocketMQ's clients, with the same rule: whatever may have changed
since the earlier header was accepted is compared, and a frame that is not as simple takes the general way, as if it
had not been looked at.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...protocol.commands import ProduceRequest, PullRequest
from ...protocol.frames import REQUEST
from ...protocol.remoting.command import JSON_HEADER, LENGTHS, encode_send_answer, plain_properties, send_pattern
from ...protocol.storage.delivery import RETRY_TOPIC_PREFIX
from ...protocol.storage.record import PROPERTY_UNIQ_KEY, offset_ids
from ..requests.broker import Broker
from ..requests.request import FrameSource, Request
from ..store import LAYOUT_BODY, TopicConfig
from .request import RemotingRequest
from .sends import DECIDING_PROPERTIES, sequence_of, split_properties

HEADERS_PER_CONNECTION_MAX = 8
"""Maximum number of headers that one connection keeps."""
TRIES_MAX = 256
"""Maximum number of headers that a connection tries to keep: not every client's can be."""
HEADERS_MAX = 4_096
"""Maximum number of kept headers of all connections, FlintMQ's own included; each takes about 8 KiB."""
HEADER_BYTES_MAX = 2_048
"""Longest header that is kept."""
COMMON_BYTES_MAX = 1_024
"""Longest properties of a message that takes the short way."""


if TYPE_CHECKING:
    from ...protocol.frames import Frame
    from ..requests.short_pops import PackedFields, Settling, Wish
    from ..requests.short_way import ShortWay


class _Header:
    """A header that was accepted before: the pattern of those like it, and everything that depends on it alone."""

    __slots__ = ("batch", "config", "pattern", "stamps", "topic", "traffic")

    def __init__(self, broker: Broker, topic: str, config: TopicConfig, pattern: re.Pattern[bytes], stamps: bytes):
        self.topic = topic
        self.config = config
        self.pattern = pattern
        self.stamps = stamps
        self.traffic = broker.counters.produced.of(topic)
        self.batch = broker.store.commitlog.repeated_batch(COMMON_BYTES_MAX)


class RepeatedSends:
    """The kept headers of one connection; the one that was used last is the first."""

    __slots__ = ("_broker", "_tries_left", "headers", "place", "served")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tries_left = TRIES_MAX
        self.place = -1
        self.served = 0
        self.headers: list[_Header] = []
        """Kept headers; if there is none, ``handle`` need not be called."""

    def keep(self, request: Request, params: ProduceRequest, config: TopicConfig) -> None:
        """Keep the header of a send whose message has just been appended to its own topic.

        Does nothing if the next header could mean something else, or if too many are kept. A signed request is checked
        as a whole, so none is kept.
        """
        assert isinstance(request, RemotingRequest), "requests of this connection"
        counters, received = self._broker.counters, request.received
        if not self._tries_left or request.peer.user is not None or counters.kept_headers >= HEADERS_MAX:
            return
        self._tries_left -= 1
        # The frame ends with its body, and its header follows the two lengths.
        header_at = received.body_end - request.source.frame_bytes + LENGTHS.size
        if len(self.headers) >= HEADERS_PER_CONNECTION_MAX or not 0 < received.body_at - header_at <= HEADER_BYTES_MAX:
            return
        if params.layout != LAYOUT_BODY or received.kind != REQUEST or params.topic.startswith(RETRY_TOPIC_PREFIX):
            return
        if received.header_type != JSON_HEADER:
            return
        header = bytes(received.buffer[header_at : received.body_at])
        pattern = send_pattern(header, received.code, PROPERTY_UNIQ_KEY)
        found = pattern.fullmatch(header) if pattern is not None else None
        if pattern is None or found is None:
            return
        stamps = request.gateway.stamps.always.encode()
        common = stamps + plain_properties(found["properties"])
        numbers = (int(found["queue"]), int(found["born"]), int(found["opaque"]))
        # The next value may mean what this one does not, such as a delay after none.
        if not DECIDING_PROPERTIES.isdisjoint(split_properties(params.common)):
            return
        # Properties that are stored as they came mean nothing to the broker.
        if common != params.common.encode() or numbers != (params.queue, params.born_ms, received.request_id):
            return
        self.headers.append(_Header(self._broker, params.topic, config, pattern, stamps))
        counters.kept_headers += 1

    def keep_pull(self, request: Request, params: PullRequest) -> None:
        """Do nothing: the pulls of RocketMQ's clients are decoded each time."""

    def pop_fields(self, frame: Frame, count_name: str) -> None:
        """Return None, as for pulls."""

    def keep_pops(self, fields: PackedFields, purpose: Wish | Settling) -> None:
        raise AssertionError("no fields are kept")

    def short_way(self) -> tuple[ShortWay, int]:
        raise AssertionError("no frame is served by a kernel")

    def handle(self, connection: FrameSource, began: float) -> bool:
        """Append and acknowledge the frame at the start of the connection's parser; return False if it did nothing."""
        parser = connection.parser
        buffer, start = parser.buffer, parser.start
        if parser.end - start < LENGTHS.size:
            return False
        frame_length, header_bytes = LENGTHS.unpack_from(buffer, start)  # the type of a JSON header is 0
        header_at = start + LENGTHS.size
        body_at, body_end = header_at + header_bytes, start + 4 + frame_length
        if header_bytes > HEADER_BYTES_MAX or not body_at <= body_end <= parser.end:
            return False
        found = self._find(buffer, header_at, body_at)
        if found is None:
            return False
        header = self.headers[0]
        broker, name = self._broker, header.topic
        if broker.store.topics.get(name) is not header.config:  # each change of a topic makes a new object
            del self.headers[0]
            broker.counters.kept_headers -= 1
            return False

        # Whatever the general way would refuse, hold back or answer without storing is left to it, like a message whose
        # key may be stored already: that may be one sent again.
        queue, key = int(found["queue"]), found["key"].decode()
        prefix, first = sequence_of(key) or ("", 0)
        common = header.stamps + plain_properties(found["properties"])
        frame_bytes = body_end - start
        if (
            queue >= header.config.write_queues
            or len(common) > COMMON_BYTES_MAX
            or frame_bytes > broker.produce_frame_bytes_max
            or broker.in_flight.bytes > broker.in_flight.bytes_max
            or name in broker.topic_changes.pending
            or (prefix and broker.sequences.may_have(prefix, name, first))
        ):
            return False
        frame = (buffer, body_at, body_end, 1, first, int(found["born"]))
        appended = broker.store.append_repeated(name, queue, header.batch, frame, common)
        if appended is None:
            return False
        # The frame is taken only here: up to this line the general way would find it untouched.
        parser.start = body_end
        broker.dispatch.appended_to(name, queue, appended)
        queue_offset = appended.queue_offset
        if prefix:
            broker.sequences.stored(prefix, name, first, 1, name, queue, queue_offset, began)

        # The rest counts and answers as the general way does.
        traffic = header.traffic
        traffic.frames += 1
        traffic.messages += 1
        traffic.bytes += body_end - body_at
        opaque = int(found["opaque"])
        offset_id = offset_ids(broker.store.commitlog.store_host, appended.physical_offsets)
        answer = encode_send_answer(opaque, offset_id, queue, queue_offset, f'"{key}"')
        responses = connection.responses
        if broker.sync:
            responses.send_when_flushed(opaque, frame_bytes, answer, appended.end_offset)
        else:
            responses.written += 1
            responses.send_in_order(answer)
        return True

    def _find(self, buffer: bytearray, at: int, end: int) -> re.Match[bytes] | None:
        """Return the match of the header ``buffer[at:end]``, whose pattern is then the first; None if none matches."""
        headers = self.headers
        for number, header in enumerate(headers):
            found = header.pattern.fullmatch(buffer, at, end)
            if found is not None:
                if number:
                    headers.insert(0, headers.pop(number))
                return found
        return None

    def clear(self) -> None:
        """Forget all headers; the connection is closed."""
        self._broker.counters.kept_headers -= len(self.headers)
        self.headers.clear()
