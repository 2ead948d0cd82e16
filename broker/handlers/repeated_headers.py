"""The short way of frames whose headers differ from an earlier one's only in their numbers.

Most producers send frame after frame to the same topic, and most consumers pull from a queue again and again. After the
general handler has accepted a PRODUCE, its head is kept, and a kernel serves the next frames with the same bytes in it
(``requests.short_sends``). A PULL that is kept saves decoding. The fields of a POP_MESSAGE or ACK_MESSAGE are kept for
the connection's short way alone (``requests.short_pops``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.commands import PULL, PullRequest
from ...protocol.fields import I64_MAX, encode_fields
from ...protocol.frames import (
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
)
from ..requests.request import Request
from ..requests.short_pops import fields_of
from ..requests.short_sends import ShortHead
from .pull import pull_again

if TYPE_CHECKING:
    from ...protocol.commands import ProduceRequest
    from ..requests.broker import Broker
    from ..requests.request import FrameSource
    from ..requests.short_pops import PackedFields, PopHead, Settling, ShortPops, Wish
    from ..requests.short_sends import ShortSends
    from ..requests.short_way import ShortWay
    from ..store import TopicConfig

HEADERS_PER_CONNECTION_MAX = 16
"""Number of headers that each connection may keep."""
MORE_HEADERS_MAX = 1_024
"""Maximum number of headers that one connection keeps, for many topics, while fewer than half of ``HEADERS_MAX`` are
kept: the other half is for connections with few."""
TRIES_MAX = 1_024
"""Maximum number of times that a connection tries in vain to keep a header: not every client packs them as
``ProduceHead`` and ``PullHead`` do."""
HEADERS_MAX = 8_192
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


class RepeatedHeaders:
    """The kept headers of one connection, by the constant part of their bytes."""

    __slots__ = ("_broker", "_pop_place", "_pops", "_tries_left", "_way", "headers", "place", "served")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tries_left = TRIES_MAX
        self.headers: dict[bytes, ShortHead | _PullHeader] = {}
        """Kept headers by their constant part; if it is empty, ``handle`` need not be called."""
        self.place = -1
        """Place of the connection in ``ShortSends``; -1 if it has none."""
        self.served = 0
        """Number of reads in sequence with nothing but frames that a kernel has served, or would serve."""
        self._pops: dict[tuple[PackedFields, Wish | Settling], PopHead] = {}
        """Kept fields of pops and acknowledgements."""
        self._pop_place = -1
        """Place of the connection in ``ShortPops``; -1 if it has none."""
        self._way: ShortSends | ShortPops | None = None
        """The way that has served, or would serve, the last frames."""

    def keep(self, request: Request, params: ProduceRequest, config: TopicConfig) -> None:
        """Keep the head of a frame whose messages have just been appended to their own topic.

        Does nothing if the head is not packed as ``ProduceHead`` packs it, or if too many are kept.
        """
        short_sends = self._broker.short_sends
        if short_sends is None or not self._tries_left:
            return
        self._tries_left -= 1
        frame = request.frame
        head = ProduceHead(params.topic, params.queue, params.layout, params.flush, params.common, params.unique_prefix)
        body_bytes = frame.body_end - frame.body_at
        packed = head.encode(frame.request_id, params.count, params.unique_first, params.born_ms, body_bytes)
        if frame.kind != REQUEST or not _begins_with(frame, packed):
            return
        kept = self.headers.get(head.fixed)
        if isinstance(kept, ShortHead):
            self._tries_left += 1  # it is kept already
            short_sends.renew(kept, config)
        elif self._has_room(head.fixed):
            if self.place < 0:
                self.place = short_sends.connections.take()
            self._keep(head.fixed, short_sends.keep(self.place, head.fixed, params, config))

    def keep_pull(self, request: Request, params: PullRequest) -> None:
        """Keep the header of a pull without tags or a filter that was accepted, on a broker in no replica set.

        Does nothing if the header is not packed as ``PullHead`` packs it, if too many are kept, or if the answer may
        depend on more than is compared: the user's permissions.
        """
        if request.peer.access is not None or not self._tries_left:
            return
        self._tries_left -= 1
        frame = request.frame
        fields = encode_fields(params)
        offset = fields.pop("offset")
        head = PullHead(fields)
        config = self._broker.store.topics.get(params.topic)
        assert config is not None, "the pull was accepted"
        if self._has_room(head.fixed) and _begins_with(frame, head.encode(frame.request_id, offset)):
            header = _PullHeader(params, config)
            header.params = header.params_at(0)  # the handler changes the original
            self._keep(head.fixed, header)

    def pop_fields(self, frame: Frame, count_name: str) -> PackedFields | None:
        """Return the fields of a POP_MESSAGE or ACK_MESSAGE for ``keep_pops``; None if they cannot be kept."""
        broker = self._broker
        if broker.short_pops is None or broker.member is not None or broker.tls is not None or not self._tries_left:
            return None
        return fields_of(frame, count_name)

    def keep_pops(self, fields: PackedFields, purpose: Wish | Settling) -> None:
        """Keep the fields of a frame that a broker in no replica set has accepted, unless too many are kept."""
        short_pops = self._broker.short_pops
        assert short_pops is not None, "``pop_fields`` returned some"
        kept = self._pops.get((fields, purpose))
        if kept is not None:
            short_pops.renew(kept)
            self.served += 1
            self._way = short_pops
            return
        self._tries_left -= 1
        if self._may_keep():
            if self._pop_place < 0:
                self._pop_place = short_pops.connections.take()
            self._pops[fields, purpose] = short_pops.keep(self._pop_place, fields, purpose)
            self._broker.counters.kept_headers += 1

    def short_way(self) -> tuple[ShortWay, int]:
        assert self._way is not None, "frames were served"
        return self._way, self._pop_place if self._way is self._broker.short_pops else self.place

    def _may_keep(self) -> bool:
        """Return whether one more header may be kept."""
        kept, of_all = len(self.headers) + len(self._pops), self._broker.counters.kept_headers
        if kept < HEADERS_PER_CONNECTION_MAX:
            return of_all < HEADERS_MAX
        return kept < MORE_HEADERS_MAX and of_all < HEADERS_MAX // 2

    def _has_room(self, fixed: bytes) -> bool:
        """Return whether a header with these constant bytes is new, and may be kept."""
        return len(fixed) <= FIXED_BYTES_MAX and fixed not in self.headers and self._may_keep()

    def _keep(self, fixed: bytes, header: ShortHead | _PullHeader) -> None:
        self.headers[fixed] = header
        self._tries_left += 1
        self._broker.counters.kept_headers += 1

    def handle(self, connection: FrameSource, began: float) -> int:
        """Handle frames at the start of the connection's parser; return their number."""
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
            # Looked up here too: for a client with more heads than are kept, most calls of the kernel would be in vain.
            fixed = bytes(buffer[start + REQUEST_START.size : body_at - HEAD_END.size])
            return self._produce(connection) if fixed in self.headers else 0
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

    def _produce(self, connection: FrameSource) -> int:
        parser, short_sends = connection.parser, self._broker.short_sends
        assert short_sends is not None, "heads are kept"
        frames = short_sends.serve(self.place, parser.buffer, parser.start, parser.end, connection.responses)
        if not frames:
            self.served = 0
            return 0
        parser.start += short_sends.taken
        if parser.start == parser.end:
            self.served += 1
            self._way = short_sends
            if self._broker.dispatch.awaited and not short_sends.waits:
                self._broker.dispatch.serve_waiting()  # before the senders' answers
        else:
            self.served = 0
        return frames

    def _forget(self, fixed: bytes) -> None:
        del self.headers[fixed]
        self._broker.counters.kept_headers -= 1

    def clear(self) -> None:
        """Forget all headers; the connection is closed."""
        self._broker.counters.kept_headers -= len(self.headers)
        short_sends = self._broker.short_sends
        if self.place >= 0 and short_sends is not None:
            heads = [header for header in self.headers.values() if isinstance(header, ShortHead)]
            short_sends.forget(self.place, heads)
            self.place = -1
        self.headers.clear()
        if self._pop_place >= 0 and self._broker.short_pops is not None:
            self._broker.counters.kept_headers -= len(self._pops)
            self._broker.short_pops.forget(self._pop_place, list(self._pops.values()))
            self._pop_place = -1
        self._pops.clear()


def _begins_with(frame: Frame, head: bytes) -> bool:
    head_at = frame.body_at - len(head)
    return head_at >= 0 and frame.buffer[head_at : frame.body_at] == head
