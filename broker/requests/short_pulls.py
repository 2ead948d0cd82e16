"""The short way of held pulls: the kernel of short sends gives them the message that they wait for.

A consumer that has read everything waits with a pull at the end of its queue. If it is the only one there, and takes
any message, then the response to it is known but for the record. ``kernels.short_sends`` sends it on the consumer's
socket as soon as it has written a record of one message, before it answers the sender; the loop learns of it at the end
of the turn. In all other cases the loop answers, as without this.

A pull is on the short way only while nothing else is written on its connection: the transport may have kept a part of
that, which must be sent first. Whatever else could change the response either wakes the pull, or is looked at in each
turn (``log_start``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from ..int_table import IntTable
from ..kernels import short_sends as kernel
from ..store import CorruptLog, WouldBlock
from .short_way import second_descriptor

if TYPE_CHECKING:
    from ...protocol.commands import PullRequest
    from ..background.held_pulls import HeldPull, PullRequestHoldService
    from ..store import MessageStore
    from .connected_client import ResponseQueue


class WaitingPull(Protocol):
    """A pull that is held."""

    params: PullRequest
    offset: int

    def given(self, record: memoryview, min_offset: int, sent: int) -> None:
        """Take note of the response with a record, of which the socket took ``sent`` bytes; send the rest."""


class ShortPull:
    """A held pull on the short way: a row of the kernel's table."""

    __slots__ = ("_pulls", "held", "place", "pull", "socket")

    def __init__(self, pulls: ShortPulls, held: HeldPull, pull: WaitingPull, socket: PullSocket) -> None:
        self._pulls = pulls
        self.held = held
        self.pull = pull
        self.socket = socket
        self.place = pulls.table.take()
        pulls.by_place[self.place] = self
        socket.waiting.add(self)

    def end(self) -> None:
        """Leave the short way: the pull has ended, or the loop answers it."""
        self.held.on_end = None
        self.socket.waiting.discard(self)
        self._pulls.table.give_back(self.place)
        del self._pulls.by_place[self.place]


class PullSocket:
    """A second descriptor of a connection's socket. Its number stays this connection's until ``close``, whatever the
    transport does. ``waiting``: the connection's pulls on the short way."""

    __slots__ = ("_pulls", "_responses", "fd", "waiting")

    def __init__(self, pulls: ShortPulls, responses: ResponseQueue, fd: int) -> None:
        self._pulls = pulls
        self._responses = responses
        self.fd = fd
        self.waiting: set[ShortPull] = set()

    def stop(self) -> None:
        """Let the loop answer all pulls of the connection."""
        while self.waiting:
            short = self.waiting.pop()
            self._pulls.await_messages(short.pull.params.topic, short.pull.params.queue, 1)
            short.end()

    def close(self) -> None:
        """Close the descriptor: the connection is closed, or descriptors are short."""
        self.stop()
        self._responses.pull_socket = None
        del self._pulls.sockets[self._responses]
        os.close(self.fd)


class ShortPulls:
    """The held pulls that the kernel answers. Belongs to the event loop."""

    def __init__(self, store: MessageStore, holds: PullRequestHoldService, descriptors: int) -> None:
        self._store = store
        self._holds = holds
        self._descriptors = descriptors
        self.await_messages = store.append_offsets.await_messages
        self.table = IntTable(kernel.H_WIDTH)
        self.by_place: dict[int, ShortPull] = {}
        self.sockets: dict[ResponseQueue, PullSocket] = {}

    @property
    def log_start(self) -> int:
        """Where the log begins, as a row must have it too; -1 while no pull may be given a message."""
        return -1 if self._store.quarantine else self._store.commitlog.start_offset

    def hold(self, pull: WaitingPull, held: HeldPull, responses: ResponseQueue, request_id: int) -> None:
        """Let a pull that was just held be answered by the kernel, if nothing is against it."""
        params, store = pull.params, self._store
        config = store.topics.get(params.topic)
        if (
            self._holds.taker(params.topic, params.queue, pull.offset) is not held
            or self.log_start < 0
            or config is None
            or config.retention_hours
            or config.retention_bytes
            or responses.out
            or responses.leave_short_way is not None
            or responses.transport.get_write_buffer_size()
        ):
            return
        queue = store.queue_reads.queue(params.topic, params.queue)
        try:
            min_offset = store.queue_reads.first_offset(queue, hot=True) if queue is not None else pull.offset
        except (WouldBlock, CorruptLog):
            return
        socket = self._socket(responses)
        if socket is None:
            return
        short = ShortPull(self, held, pull, socket)
        held.on_end = short.end
        row, values = short.place, self.table.values
        values[row + kernel.H_FD] = socket.fd
        values[row + kernel.H_OFFSET] = pull.offset
        values[row + kernel.H_LOG_START] = self.log_start
        values[row + kernel.H_MIN_OFFSET] = min_offset
        values[row + kernel.H_REQUEST_ID] = request_id
        values[row + kernel.H_RECORD_BYTES_MAX] = min(kernel.NEWEST_BYTES_MAX, params.max_bytes - kernel.SIZE_BYTES)
        values[row + kernel.H_SENT] = -1
        self.await_messages(params.topic, params.queue, 2 + row)

    def _socket(self, responses: ResponseQueue) -> PullSocket | None:
        """Return the connection's second descriptor; None if it can have none."""
        socket = self.sockets.get(responses)
        if socket is None:
            fd = second_descriptor(responses.transport, self._descriptors)
            if fd < 0:
                return None
            socket = self.sockets[responses] = responses.pull_socket = PullSocket(self, responses, fd)
        return socket

    def given(self, place: int, record: memoryview) -> None:
        """End the wait of a pull whose response the kernel has sent, or begun to send."""
        short, values = self.by_place[place], self.table.values
        sent, min_offset = values[place + kernel.H_SENT], values[place + kernel.H_MIN_OFFSET]
        self._holds.forget(short.held)
        short.pull.given(record, min_offset, sent)

    def close_all(self) -> bool:
        """Close all descriptors, because they are short; return whether there was one."""
        sockets = list(self.sockets.values())
        for socket in sockets:
            socket.close()
        return bool(sockets)
