"""The answers of one connection: collected, kept in order where they must be, and handed to the transport."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from typing import Any, cast

from ...protocol.commands import COMMANDS, PRODUCE
from ...protocol.errors import SUCCESS, BrokerError, BrokerFailure
from ...protocol.fields import encode_fields
from ...protocol.frames import REQUEST, RESPONSE, Frame, encode_head
from .handlers.context import Broker
from .sending import SMALL_BYTES

log = logging.getLogger(__name__)

WRITE_EARLY_BYTES = 256 * 1024
"""Answers of one turn that are larger than this together do not wait for its end."""
WAITING_ANSWER_BYTES = 400
"""What an answer that waits for a flush takes beside its bytes."""


class Answering:
    """What a connection has to answer.

    ``unflushed``: PRODUCE answers in the order of their requests, from the first one that waits for a flush on:
    ``(end_offset, answer, request_id, counted_bytes, began)``; an ``end_offset`` of 0 waits only for those before it,
    and is counted already.
    """

    __slots__ = (
        "broker", "flush_offset", "frame_bytes", "out", "out_bytes", "running", "transport", "turn_began",
        "unflushed", "unflushed_bytes", "write_closed", "written",
    )  # fmt: skip

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.transport = cast(asyncio.Transport, None)  # set before the first byte can arrive
        self.out: list[bytes | bytearray] = []
        self.out_bytes = 0
        self.frame_bytes = 0
        """Size of the frame that is being handled."""
        self.running = False
        """Frames are being handled: answers are collected until that is over."""
        self.turn_began = 0.0
        """When the frames that are being handled were taken up, by ``time.monotonic``."""
        self.written = 0
        """See ``Peer.written``."""
        self.write_closed = False
        """Nothing can be sent any more."""
        self.unflushed: deque[tuple[int, bytes, int, int, float]] = deque()
        self.unflushed_bytes = 0
        self.flush_offset = 0
        """Where the last of this turn's messages that must be flushed ends; 0: there is none."""

    def send(self, head: bytes, body: bytes | bytearray = b"") -> None:
        """Send one encoded answer, at the end of the turn at the latest."""
        self.out.append(head)
        if body:
            self.out.append(body)
            self.out_bytes += len(body)
        if not self.running or self.out_bytes > WRITE_EARLY_BYTES:
            self.write_out()

    def write_out(self) -> None:
        """Hand all answers to the transport."""
        out = self.out
        self.out = []
        self.out_bytes = 0
        if self.write_closed or self.transport.is_closing():
            return
        if len(out) == 1:
            self.transport.write(out[0])
        else:
            self.transport.writelines(out)
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes > SMALL_BYTES:
            self._note_unsent(unsent_bytes)

    def _note_unsent(self, unsent_bytes: int) -> None:
        memory = self.broker.send_memory
        memory.note(self, unsent_bytes)
        if memory.is_short() and not self.transport.is_closing():
            # It is a slow reader by now, and handled as one until it has taken its answers: see ``resume_writing``.
            self.transport.set_write_buffer_limits(high=SMALL_BYTES)

    def unsent_bytes(self) -> int:
        """See ``Sender``."""
        return 0 if self.write_closed else self.transport.get_write_buffer_size()

    def answer(self, frame: Frame, answer: Any, body: bytes | bytearray = b"") -> None:
        """See ``Peer.answer``."""
        if frame.kind != REQUEST:
            self.done(frame)
            return
        if len(body) > self.broker.limits.frame_bytes_max - 4096:
            limit = self.broker.limits.frame_bytes_max
            self.fail(frame, BrokerFailure(f"an answer of {len(body)} bytes; limits.frame_bytes_max is {limit}"))
            return
        self.send_answer(
            frame, encode_head(RESPONSE, SUCCESS, frame.request_id, encode_fields(answer), len(body)), body
        )

    def send_answer(self, frame: Frame, head: bytes, body: bytes | bytearray) -> None:
        """See ``Peer.send_answer``."""
        self.send(head, body)
        self.done(frame)

    def done(self, frame: Frame) -> None:
        """A request is answered, or was one-way and is done: count how long it took."""
        latencies = self.broker.counters.latencies.get(frame.code)
        if latencies is not None:
            latencies.observe(time.monotonic() - frame.began)

    def count_error(self, error: BrokerError) -> None:
        """An answer is an error."""
        errors = self.broker.counters.errors
        errors[error.code] = errors.get(error.code, 0) + 1

    def fail(self, frame: Frame, error: BrokerError) -> None:
        """See ``Peer.fail``."""
        self.count_error(error)
        if log.isEnabledFor(logging.DEBUG):
            command = COMMANDS.get(frame.code)
            log.debug("%s refused: %s: %s", command.name if command else frame.code, error.name, error.message[:200])
        self.done(frame)
        if frame.kind != REQUEST:
            self.broker.counters.one_way_errors += 1
            return
        answer = encode_error(error, frame.request_id)
        if frame.code == PRODUCE.code:
            self.send_in_order(answer)
        else:
            self.send(answer)

    def send_in_order(self, answer: bytes) -> None:
        """See ``Peer.send_in_order``."""
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
        self.broker.in_flight_bytes += counted

    def send_when_flushed(self, frame: Frame, answer: bytes, end_offset: int) -> None:
        """See ``Peer.send_when_flushed``; a one-way frame only counts as in flight."""
        if frame.kind != REQUEST:
            answer = b""
        self._add_unflushed(end_offset, answer, frame.request_id, self.frame_bytes, self.turn_began)
        self.flush_offset = end_offset

    def wait_for_flush(self) -> None:
        """At the end of a turn that appended: have ``flushed`` called for all of its messages at once."""
        end_offset, self.flush_offset = self.flush_offset, 0
        self.broker.flush.wait_for(end_offset, self.flushed)

    def flushed(self, error: BrokerError | None, since: float = math.inf) -> None:
        """The log is flushed up to what a turn waited for: send the answers that this frees.

        Or it is not: then those get ``error`` that wait since before ``since``, monotonic seconds.
        """
        flushed_offset = self.broker.store.flushed_offset
        unflushed = self.unflushed
        done_bytes = 0
        now = time.monotonic()
        turn_began, count = 0.0, 0
        observe = self.broker.counters.produce_latencies.observe
        while unflushed and (unflushed[0][0] <= flushed_offset or (error is not None and unflushed[0][4] < since)):
            end_offset, answer, request_id, counted_bytes, began = unflushed.popleft()
            done_bytes += counted_bytes
            if end_offset:
                if began != turn_began and count:  # those of one turn took equally long
                    observe(now - turn_began, count)
                    count = 0
                turn_began = began
                count += 1
            if not answer:
                continue
            if error is not None and end_offset > flushed_offset:
                answer = encode_error(error, request_id)
                self.count_error(error)
            self.out.append(answer)
        if count:
            observe(now - turn_began, count)
        self.unflushed_bytes -= done_bytes
        self.broker.in_flight_bytes -= done_bytes
        if self.out and not self.running:
            self.write_out()


def encode_error(error: BrokerError, request_id: int) -> bytes:
    """The frame that answers a request with an error."""
    return encode_head(RESPONSE, error.code, request_id, error.fields(), 0)
