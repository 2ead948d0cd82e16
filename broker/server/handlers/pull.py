"""PULL: stored records of one queue, at once or held until there are some."""

from __future__ import annotations

import functools
import time

from ....protocol.commands import PullRequest
from ....protocol.errors import (
    PULL_NOT_FOUND,
    BrokerFailure,
    InvalidParameter,
    NoPermission,
    TopicNotExist,
)
from ....protocol.fields import decode_fields
from ....protocol.frames import RESPONSE, Frame, encode_head
from ....protocol.javahash import tags_code
from ....protocol.layout import RECORD_BYTES_MIN
from ...services.long_polling import HeldPull, Wake
from ...store import Pulled, WouldBlock
from .context import Broker, Peer

HEAD_BYTES_MAX = 1024
"""Room for everything of a pull answer in front of its sizes and records."""
SIZE_BYTES = 4

_NO_BODY = bytearray()


def pull(peer: Peer, frame: Frame) -> None:
    """Answer a pull from memory; else hand it on: to a reader thread, or to those that are held."""
    request = decode_fields(PullRequest, frame.fields)
    check_readable(peer.broker, request.topic)
    tags = parse_tags(request.tags) if request.tags else None
    room = peer.broker.limits.frame_bytes_max - HEAD_BYTES_MAX
    # Every record costs its size in front, too; the shortest records are the worst case.
    request.max_bytes = min(request.max_bytes, room * RECORD_BYTES_MIN // (RECORD_BYTES_MIN + SIZE_BYTES))
    request.max_count = min(request.max_count, room // (RECORD_BYTES_MIN + SIZE_BYTES))
    ahead = request.offset - peer.broker.store.max_offset(request.topic, request.queue)
    if ahead > 0 or (ahead == 0 and not request.wait_ms):
        peer.after_dispatch(frame, lambda: _pull(peer, frame, request, tags))
    else:
        _pull(peer, frame, request, tags)


def _pull(peer: Peer, frame: Frame, request: PullRequest, tags: frozenset[int] | None) -> None:
    try:
        pulled = peer.broker.store.pull(
            request.topic, request.queue, request.offset, request.max_count, request.max_bytes, tags, True
        )
    except WouldBlock:
        _Pull(peer, frame, request, tags).read()
        return
    if pulled.code == PULL_NOT_FOUND and request.wait_ms:
        _Pull(peer, frame, request, tags).pulled(pulled)
    else:
        send_pulled(peer, frame, request.topic, pulled)


def check_readable(broker: Broker, name: str) -> None:
    """Raise where the topic is not there or must not be read."""
    topic = broker.store.topics.get(name)
    if topic is None:
        raise TopicNotExist(f"topic {name} does not exist")
    if not topic.readable:
        raise NoPermission(f"topic {name} cannot be read (perm {topic.perm}); change it with its perm + 4")


@functools.lru_cache(maxsize=1024)
def parse_tags(expression: str) -> frozenset[int] | None:
    """The tag codes of ``a || b``; None where every message is wanted (``*``)."""
    tags = [tag.strip() for tag in expression.split("||")]
    if tags == ["*"]:
        return None
    if not all(tags):
        raise InvalidParameter(f"tags {expression!r} has an empty tag; write it as `a || b`, or * for all")
    return frozenset(tags_code(tag) for tag in tags)


def send_pulled(peer: Peer, frame: Frame, topic: str, pulled: Pulled) -> None:
    """Send the answer of a pull of ``topic``."""
    if len(pulled.body) + HEAD_BYTES_MAX > peer.broker.limits.frame_bytes_max:
        raise BrokerFailure(
            f"the record is too large for an answer: {len(pulled.body)} bytes; raise limits.frame_bytes_max, "
            f"which is {peer.broker.limits.frame_bytes_max}"
        )
    traffic = peer.broker.counters.pulled.of(topic)
    traffic.frames += 1
    traffic.messages += pulled.count
    traffic.bytes += len(pulled.body)
    head = encode_head(
        RESPONSE,
        pulled.code,
        frame.request_id,
        {
            "count": pulled.count,
            "next_offset": pulled.next_offset,
            "min_offset": pulled.min_offset,
            "max_offset": pulled.max_offset,
        },
        len(pulled.body),
    )
    peer.send_answer(frame, head, pulled.body)


class _Pull:
    """A pull that could not be answered at once: its offset moves on while a tag filter finds nothing."""

    __slots__ = ("busy_s", "deadline", "frame", "held", "offset", "peer", "request", "tags")

    def __init__(self, peer: Peer, frame: Frame, request: PullRequest, tags: frozenset[int] | None) -> None:
        frame.buffer = _NO_BODY  # a frame that waits must not keep the receive buffer alive
        self.peer = peer
        self.frame = frame
        self.request = request
        self.tags = tags
        self.offset = request.offset
        self.deadline = peer.broker.loop.time() + request.wait_ms / 1000
        self.held: HeldPull | None = None
        self.busy_s = 0.0
        """How long the broker had worked on it when it was held."""

    def read(self) -> None:
        self.peer.read(self.frame, self._read, self.pulled)

    def _read(self, hot: bool) -> Pulled:
        request = self.request
        if hot:
            check_readable(self.peer.broker, request.topic)  # it may have changed meanwhile
        return self.peer.broker.store.pull(
            request.topic, request.queue, self.offset, request.max_count, request.max_bytes, self.tags, hot
        )

    def pulled(self, pulled: Pulled) -> None:
        """Answer, or hold on where nothing was found and there is time left."""
        broker, request = self.peer.broker, self.request
        if pulled.code != PULL_NOT_FOUND or broker.loop.time() >= self.deadline:
            send_pulled(self.peer, self.frame, request.topic, pulled)
            return
        self.offset = max(self.offset, pulled.next_offset)
        if broker.store.max_offset(request.topic, request.queue) > self.offset:
            # They came while a reader thread looked.
            broker.loop.call_soon(self.read)
            return
        self.peer.check_may_wait()
        self.busy_s = time.monotonic() - self.frame.began
        self.held = broker.holds.hold(request.topic, request.queue, self.offset, self.deadline, self._woken)
        self.peer.held(self.held)

    def _woken(self, wake: Wake) -> None:
        assert self.held is not None
        self.peer.unheld(self.held)
        if wake is not Wake.ARRIVED:
            self.deadline = 0.0
        if self.peer.write_paused:
            self.peer.when_writable(self._go_on)
        else:
            self._go_on()

    def _go_on(self) -> None:
        self.frame.began = time.monotonic() - self.busy_s
        self.read()
