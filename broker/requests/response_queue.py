"""Responses of one connection: collected during a turn, kept in order if they must be, and given to the transport."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, cast

from ...protocol.frames import RESPONSE, encode_head
from ..budgets.send_budget import SMALL_BYTES

if TYPE_CHECKING:
    from ...protocol.errors import BrokerError
    from ...protocol.frames import Frame
    from .broker import Broker

Bytes: TypeAlias = bytes | bytearray | memoryview
WRITE_EARLY_BYTES = 256 * 1024
"""Responses of one turn are written before its end once their bodies exceed this size together."""
JOINED_BYTES_MAX = 8 * 1024
"""Maximum size of the responses of one turn that are written as one buffer."""
WAITING_ANSWER_BYTES = 400
"""Memory overhead of a response that waits for a flush, in addition to its bytes."""


class ResponseQueue:
    """The outbound responses of a connection.

    ``on_flushed``: called when the flush that responses wait for is done, or has failed; ``on_full``: called when too
    many bytes of this connection, or far too many of all connections, wait for a flush; ``encode_error``: encodes the
    error response to the request with an id.

    ``unflushed`` holds PRODUCE responses in the order of their requests, starting with the first one that waits for a
    flush: ``(end_offset, answer, request_id, counted_bytes, began)``. An entry with ``end_offset`` 0 waits only for
    the entries before it; its latency has already been counted.
    """

    __slots__ = tuple(
        (
            "_broker _encode_error _on_flushed _on_full bytes_out closed flush_offset out out_bytes paused running "
            "transport turn_began unflushed unflushed_bytes written"
        ).split()
    )

    def __init__(
        self,
        broker: Broker,
        on_flushed: Callable[[BrokerError | None], None],
        on_full: Callable[[], None],
        encode_error: Callable[[BrokerError, int], bytes],
    ) -> None:
        self._broker = broker
        self._encode_error = encode_error
        self._on_flushed = on_flushed
        self._on_full = on_full
        self.transport = cast(asyncio.Transport, None)  # set before the first byte can arrive
        self.out: list[Bytes] = []
        self.out_bytes = 0
        self.bytes_out = 0
        """Number of bytes given to the transport since the connection was opened."""
        self.running = False
        """True while frames are being handled; their responses are collected until that is done."""
        self.turn_began = 0.0
        """Time at which the current turn began, by ``time.monotonic``."""
        self.written = 0
        """Number of PRODUCE frames of this turn that were complete once written, without waiting for a flush."""
        self.closed = False
        """True once nothing more can be sent."""
        self.paused = False
        """True while the client does not read its responses: nothing more should be produced for it."""
        self.unflushed: deque[tuple[int, bytes, int, int, float]] = deque()
        self.unflushed_bytes = 0
        self.flush_offset = 0
        """End offset of this turn's last message that must be flushed, or 0."""

    def send(self, head: bytes, body: Bytes = b"") -> None:
        """Send one encoded response, at the end of the turn at the latest."""
        self.out.append(head)
        if body:
            self.out.append(body)
            self.out_bytes += len(body)
        if not self.running or self.out_bytes > WRITE_EARLY_BYTES:
            self.write_out()

    def write_out(self) -> None:
        """Give all collected responses to the transport."""
        out = self.out
        self.out = []
        self.out_bytes = 0
        if self.closed or self.transport.is_closing():
            return
        if len(out) == 1:
            self.bytes_out += len(out[0])
            self.transport.write(out[0])
        else:
            size = sum(map(len, out))
            self.bytes_out += size
            if size <= JOINED_BYTES_MAX:  # a copy is cheaper than a system call with several buffers
                self.transport.write(b"".join(out))
            else:
                self.transport.writelines(out)
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes > SMALL_BYTES:
            self._note_unsent(unsent_bytes)

    def _note_unsent(self, unsent_bytes: int) -> None:
        memory = self._broker.send_memory
        memory.note(self, unsent_bytes)
        if memory.is_short() and not self.transport.is_closing():
            # Memory is short, so treat this client as a slow reader until it has drained its responses:
            # ``resume_writing`` restores the normal limit.
            self.transport.set_write_buffer_limits(high=SMALL_BYTES)

    def unsent_bytes(self) -> int:
        """Return the number of bytes that were written and that the client has not read."""
        return 0 if self.closed else self.transport.get_write_buffer_size()

    def takes_more(self) -> bool:
        """Return whether the client reads what it is sent, so that the broker may send it more of its own accord."""
        return not (self.closed or self.paused) and self._broker.send_memory.may_read(self)

    def completed(self, frame: Frame) -> None:
        """Record the latency of a request that was answered, or of a one-way request that is complete."""
        latencies = self._broker.counters.latencies.get(frame.code)
        if latencies is not None:
            latencies.observe(time.monotonic() - frame.began)

    def count_error(self, error: BrokerError) -> None:
        """Count an error response."""
        errors = self._broker.counters.errors
        errors[error.code] = errors.get(error.code, 0) + 1

    def send_in_order(self, answer: bytes) -> None:
        """Send an encoded PRODUCE response after those that still wait for a flush."""
        if self.unflushed:
            self._add_unflushed(0, answer, 0, 0, 0.0)
        elif self.running:
            self.out.append(answer)
        else:
            self.send(answer)

    def _add_unflushed(self, end_offset: int, answer: bytes, request_id: int, frame_bytes: int, began: float) -> None:
        counted = frame_bytes + len(answer) + WAITING_ANSWER_BYTES
        self.unflushed.append((end_offset, answer, request_id, counted, began))
        self.unflushed_bytes += counted
        broker = self._broker
        broker.in_flight.bytes += counted
        # The second condition stops a client that keeps sending after SYSTEM_BUSY: refusals wait in their order too.
        if (
            self.unflushed_bytes > broker.limits.connection_in_flight_bytes_max
            or broker.in_flight.bytes > broker.in_flight.bytes_end
        ):
            self._on_full()

    def send_when_flushed(self, request_id: int, frame_bytes: int, answer: bytes, end_offset: int) -> None:
        """Send an encoded PRODUCE response, in order, once the log is flushed up to ``end_offset``.

        ``answer``: empty if the frame gets none.
        """
        self._add_unflushed(end_offset, answer, request_id, frame_bytes, self.turn_began)
        self.flush_offset = end_offset

    def end_turn(self) -> None:
        """Register ``on_flushed`` for all messages of this turn at once, and write what is due already."""
        self.running = False
        if self.flush_offset:
            end_offset, self.flush_offset = self.flush_offset, 0
            self._broker.flush.wait_for(end_offset, self._on_flushed)
        if self.out:
            self.write_out()
        if self.written:
            self._broker.counters.produce_latencies.observe(time.monotonic() - self.turn_began, self.written)
            self.written = 0

    def flushed(self, error: BrokerError | None, since: float = math.inf) -> None:
        """Send the responses whose messages are flushed.

        If ``error`` is given, responses that have waited since before ``since`` (monotonic seconds) are replaced by it.
        """
        flushed_offset = self._broker.store.acknowledged_offset
        unflushed = self.unflushed
        done_bytes = 0
        now = time.monotonic()
        turn_began, count = 0.0, 0
        observe = self._broker.counters.produce_latencies.observe
        while unflushed and (unflushed[0][0] <= flushed_offset or (error is not None and unflushed[0][4] < since)):
            end_offset, answer, request_id, counted_bytes, began = unflushed.popleft()
            done_bytes += counted_bytes
            if end_offset:
                if began != turn_began and count:  # all messages of one turn have the same latency
                    observe(now - turn_began, count)
                    count = 0
                turn_began = began
                count += 1
            if not answer:
                continue
            # A response whose messages are on disk after all stays as it is.
            if error is not None and end_offset > flushed_offset:
                answer = self._encode_error(error, request_id)
                self.count_error(error)
            self.out.append(answer)
        if count:
            observe(now - turn_began, count)
        self.unflushed_bytes -= done_bytes
        self._broker.in_flight.bytes -= done_bytes
        if self.out and not self.running:
            self.write_out()

    def discard(self) -> None:
        """Drop all responses of a closed connection and what was counted for them."""
        self._broker.in_flight.bytes -= self.unflushed_bytes
        self.unflushed_bytes = 0
        self.unflushed.clear()
        self.out.clear()
        self._broker.send_memory.note(self, 0)


def encode_error(error: BrokerError, request_id: int) -> bytes:
    """Return the encoded error response to a request."""
    return encode_head(RESPONSE, error.code, request_id, error.fields(), 0)
