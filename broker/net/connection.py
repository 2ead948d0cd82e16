"""One client's connection: bytes in, frames to handlers, responses out.

A connection is *stopped* for one or more reasons (``STOP_…``). While any reason remains, the broker handles none of
its frames and reads nothing from its socket; bytes that have already arrived stay in the parser.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import cast

from ...protocol.auth.scram import MECHANISM, ServerExchange
from ...protocol.errors import (
    AuthenticationRequired,
    BrokerError,
    FrameIllegal,
    HelloRequired,
    InvalidParameter,
    RemoteProtocolError,
    UnknownCommand,
)
from ...protocol.frames import REQUEST, RESPONSE, Frame
from ...protocol.storage.record import encode_host
from ..budgets.receive_buffers import SharingParser
from ..handlers.audit import audit_refused
from ..handlers.context import Broker
from ..handlers.registry import HANDLERS, HANDLERS_BEFORE_AUTH, HANDLERS_BEFORE_HELLO, HANDLERS_OF_USERS, ONE_WAY_CODES
from ..security.authenticator import FRAME_BYTES_MAX as UNKNOWN_FRAME_BYTES_MAX
from ..security.users import User
from .deferred_requests import DeferredRequests
from .response_queue import encode_error

log = logging.getLogger(__name__)

STOP_SUSPENDED = 1
"""A PRODUCE waits for its topic, and later frames must not overtake it."""
STOP_WRITE = 2
"""The client does not read its responses."""
STOP_IN_FLIGHT = 4
"""Too many bytes of this connection, or far too many of all connections, wait for a flush."""
STOP_MEMORY = 8
"""Part of a frame has arrived, and the receive buffers of all connections leave no memory for the rest."""
STOP_TURN = 16
"""The connection has used up its turn; other connections are served first."""
STOP_ENDING = 32
"""The connection is being closed; no more frames are accepted."""

TURN_S = 0.001
"""Maximum duration of one connection's turn."""
TURN_BYTES = 256 * 1024
"""Maximum number of bytes handled in a turn: without it one fast sender could hold the loop, and a frame of a megabyte
takes milliseconds."""
LINGER_S = 2.0
"""Time for which further input is discarded after a refusal. Closing at once would reset the connection, and the client
might never read the reason."""

NOT_AUTHENTICATED = (
    f"this broker requires authentication, and the connection has not authenticated: send AUTH with {MECHANISM} after "
    "HELLO; give the client a user and a password"
)

_DISCARDED = memoryview(bytearray(64 * 1024))


class ClientConnection(DeferredRequests, asyncio.BufferedProtocol):
    """An accepted connection. ``on_lost`` is called once, after it is closed."""

    __slots__ = tuple(
        (
            "arrived authenticate_by born_host close_by ending exchange half_since handlers idle_since "
            "lingering memory on_lost parser reading reads reads_seen stops write_level write_since"
        ).split()
    )

    def __init__(self, broker: Broker, address: tuple[str, int], on_lost: Callable[[ClientConnection], None]) -> None:
        super().__init__(broker, address)
        self.born_host = encode_host(unmapped(address[0]), address[1])
        self.on_lost = on_lost
        self.exchange: ServerExchange | None = None
        self.authenticate_by = 0.0
        """Deadline for authentication by the loop's clock; 0 if none is needed, or if it is done."""
        self.memory = broker.receive_memory
        self.parser = SharingParser(broker.limits.frame_bytes_max, self.memory)
        if broker.authenticator is not None:  # an unauthenticated client gets little memory and little time
            self.parser.frame_bytes_max = UNKNOWN_FRAME_BYTES_MAX
            self.authenticate_by = broker.loop.time() + broker.settings.security.auth_timeout_ms / 1000
        self.handlers = HANDLERS_BEFORE_HELLO
        self.stops = 0
        self.reading = True
        self.ending = False
        self.lingering = False
        self.arrived = 0
        self.reads = 0
        self.reads_seen = 0
        self.half_since = 0.0
        self.idle_since = broker.loop.time()
        self.write_since = 0.0
        self.write_level = 0
        self.close_by = 0.0

    # ---- what the transport calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the transport of the connected socket."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=self.broker.limits.write_buffer_bytes_max)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes; never empty."""
        return _DISCARDED if self.lingering else self.parser.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the ``nbytes`` that arrived."""
        if self.lingering:
            return
        self.reads += 1
        self.parser.received(nbytes)
        if not self.stops:
            self._run()

    def eof_received(self) -> bool:
        """Answer the client's outstanding requests, then close; the client sends nothing more."""
        if self.lingering:
            return False
        self._end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that this connection held or waited for."""
        self.lost = self.write_closed = True
        self.stops |= STOP_ENDING
        for pull in self.held_pulls:
            pull.cancel()
        self.held_pulls.clear()
        self.deferred.clear()
        self.broker.in_flight_bytes -= self.arrived + self.unflushed_bytes
        self.arrived = self.unflushed_bytes = 0
        self.unflushed.clear()
        self.out.clear()
        self.parser.let_go()
        self.parser.release()
        self.memory.forget(self)
        self.broker.sharing.forget(self)
        self.broker.send_memory.note(self, 0)
        if exc is not None:
            log.debug("connection from %s:%d broke: %s", *self.address, exc)
        self.tell_lost()
        self.on_lost(self)

    def pause_writing(self) -> None:
        """Stop handling frames because the client reads its responses too slowly."""
        self.write_paused = True
        self.write_since = self.broker.loop.time()
        self.write_level = self.transport.get_write_buffer_size()
        self.stop(STOP_WRITE)

    def resume_writing(self) -> None:
        """Continue after the client has read its responses."""
        self.write_paused = False
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits(high=self.broker.limits.write_buffer_bytes_max)
        self.unstop(STOP_WRITE)
        self.run_deferred()

    # ---- handling frames ----

    def _run(self) -> None:
        """Handle complete frames until none is left or the connection is stopped."""
        parser = self.parser
        frames = handled_bytes = 0
        incomplete = False
        self.running = True
        self.turn_began = time.monotonic()
        self.broker.sharing.turn(self, self.turn_began)
        try:
            while not self.stops and (begin := parser.start) != parser.end:
                frame = parser.next_frame()
                if frame is None:
                    incomplete = True
                    break
                frames += 1
                self.frame_bytes = parser.start - begin
                frame.began = self.turn_began
                self.handle(frame)
                if self.stops & STOP_SUSPENDED:
                    self.parser.keep(frame)  # it is handled again later, so its body must not be overwritten
                handled_bytes += self.frame_bytes
                if handled_bytes > TURN_BYTES or time.monotonic() > self.turn_began + TURN_S:
                    self.stop(STOP_TURN)
                    self.broker.next_turn(lambda: self.unstop(STOP_TURN))
        except RemoteProtocolError as error:
            self.turn_away(FrameIllegal(str(error)), 0)
        self.running = False
        self._after_run(frames, incomplete)

    def _after_run(self, frames: int, incomplete: bool) -> None:
        if self.flush_offset:
            self.wait_for_flush()
        if self.out:
            self.write_out()
        broker = self.broker
        if self.written:
            broker.counters.produce_latencies.observe(time.monotonic() - self.turn_began, self.written)
            self.written = 0
        if self.lost:
            return
        if frames:
            self.memory.done(self.parser)
        # The shared buffer belongs to the next connection after this turn, so pending bytes must leave it now.
        if not self.parser.settle():
            self.stop(STOP_MEMORY)
            self.memory.wait(self)
        arrived = self.parser.end - self.parser.start
        if arrived != self.arrived:
            broker.in_flight_bytes += arrived - self.arrived
            self.arrived = arrived
        if not incomplete:
            self.half_since = 0.0
            return
        if frames or not self.half_since:  # the timeout of a partial frame starts when the frame becomes the first
            self.half_since = broker.loop.time()

    def has_memory(self) -> None:
        """Continue reading: the parser has memory again."""
        self.unstop(STOP_MEMORY)

    def handle(self, frame: Frame) -> None:
        """Call the handler of a frame's command, and answer with the error that it raises."""
        try:
            handler = self.handlers.get(frame.code)
            if handler is None or frame.kind != REQUEST:
                if self.handlers is HANDLERS_BEFORE_HELLO:
                    self.turn_away(HelloRequired("the first request of a connection must be HELLO"), frame.request_id)
                    return
                if self.handlers is HANDLERS_BEFORE_AUTH:
                    self.turn_away(AuthenticationRequired(NOT_AUTHENTICATED), frame.request_id)
                    return
                if frame.kind == RESPONSE:
                    if not self.asked_answered(frame):
                        log.debug("unexpected response to request %d", frame.request_id)
                    return
                if handler is None:
                    raise UnknownCommand(f"command {frame.code} is not known to this broker")
                if frame.code not in ONE_WAY_CODES:
                    raise InvalidParameter(f"command {frame.code} cannot be sent one-way, because it returns a result")
            handler(self, frame)
        except BrokerError as error:
            self.fail(frame, error)
        except Exception as error:  # noqa: BLE001 - one request must not take its connection, or the broker, down
            self.unexpected(frame, error)

    def fail(self, frame: Frame, error: BrokerError) -> None:
        """Respond to ``frame`` with an error, and audit it if its command is audited."""
        audit_refused(self, frame, error)
        super().fail(frame, error)

    def greet(self, client: str) -> None:
        """Accept the commands that are allowed after HELLO."""
        self.client = client
        if self.broker.authenticator is None:
            self.handlers = HANDLERS
        elif self.user is None:
            self.handlers = HANDLERS_BEFORE_AUTH

    def admit(self, user: User) -> None:
        """Accept all commands from now on, as ``user``."""
        self.user = user
        self.authenticate_by = 0.0
        self.parser.frame_bytes_max = self.broker.limits.frame_bytes_max
        self.handlers = HANDLERS_OF_USERS
        log.debug("connection from %s:%d is user %s", *self.address, user.name)

    def users_changed(self) -> None:
        """Close the connection if its user was removed or has another password; called after users were reloaded."""
        before, authenticator = self.user, self.broker.authenticator
        if before is None or authenticator is None:
            return
        user = authenticator.users.get(before.name)
        if user is not None and user.verifier == before.verifier:
            self.user = user
            return
        change = "was removed" if user is None else "got another password"
        self.turn_away(AuthenticationRequired(f"user {before.name!r} {change} after this connection authenticated"), 0)

    def refuse(self, frame: Frame, error: BrokerError) -> None:
        """Respond to ``frame`` with an error and close the connection."""
        self.turn_away(error, frame.request_id)

    def suspend(self) -> None:
        """Handle no more frames until ``resume`` or ``proceed``."""
        self.stop(STOP_SUSPENDED)

    def resume(self, frame: Frame, error: BrokerError | None) -> None:
        """Handle ``frame`` again after ``suspend``, or answer it with ``error``."""
        self.proceed(frame, partial(self.handle, frame) if error is None else partial(self.fail, frame, error))

    def proceed(self, frame: Frame, call: Callable[[], None]) -> None:
        """Continue after ``suspend`` with ``call``; an error that it raises answers ``frame``."""
        self.stops &= ~STOP_SUSPENDED
        if self.lost:
            return
        self.running = True
        self.turn_began = frame.began
        try:
            call()
        except BrokerError as error:
            self.fail(frame, error)
        except Exception as error:  # noqa: BLE001 - one request must not take its connection, or the broker, down
            self.unexpected(frame, error)
        self.running = False
        if self.stops & STOP_SUSPENDED:
            self.parser.keep(frame)
        else:
            self.parser.let_go()
        self._after_run(1, incomplete=False)
        self.check_end()
        if not self.stops:
            self.broker.loop.call_soon(self._continue)

    def send_when_flushed(self, frame: Frame, answer: bytes, end_offset: int) -> None:
        """Send an encoded PRODUCE response once it is flushed; stop reading if too much is in flight."""
        super().send_when_flushed(frame, answer, end_offset)
        self._check_in_flight()

    def send_in_order(self, answer: bytes) -> None:
        """Send an encoded PRODUCE response in order; stop reading if too much is in flight."""
        super().send_in_order(answer)
        if self.unflushed:
            self._check_in_flight()

    def _check_in_flight(self) -> None:
        """Stop reading from a connection that has too many unflushed bytes, or that keeps sending after SYSTEM_BUSY."""
        broker = self.broker
        if (
            self.unflushed_bytes > broker.limits.connection_in_flight_bytes_max
            or broker.in_flight_bytes > broker.in_flight_bytes_end
        ):
            self.stop(STOP_IN_FLIGHT)

    def flushed(self, error: BrokerError | None, since: float = math.inf) -> None:
        """Send the responses that became due, and continue reading once half of the allowed bytes are flushed."""
        if self.lost:
            return
        super().flushed(error, since)
        low = self.broker.limits.connection_in_flight_bytes_max // 2
        if self.stops & STOP_IN_FLIGHT and self.unflushed_bytes <= low:
            self.unstop(STOP_IN_FLIGHT)
        self.check_end()

    # ---- stopping and continuing ----

    def stop(self, reason: int) -> None:
        """Handle and read nothing more until ``reason`` is removed."""
        self.stops |= reason
        if self.reading:
            self.reading = False
            if not self.transport.is_closing():
                self.transport.pause_reading()

    def unstop(self, reason: int) -> None:
        """Remove ``reason``; if it was the last one, continue in the next turn of the loop."""
        self.stops &= ~reason
        if not self.stops:
            self.broker.loop.call_soon(self._continue)

    def _continue(self) -> None:
        if self.stops or self.lost:
            return
        self._run()
        if not self.stops and not self.reading:
            self._read_on()

    def _read_on(self) -> None:
        self.reading = True
        if not self.transport.is_closing():
            self.transport.resume_reading()

    # ---- the end ----

    def turn_away(self, error: BrokerError, request_id: int) -> None:
        """Send the client an error that says why it cannot be served, then close the connection."""
        if self.ending:
            return
        self.count_error(error)
        log.info("connection from %s:%d refused: %s", *self.address, error.message)
        self.send_in_order(encode_error(error, request_id))
        self.lingering = True
        self._end()

    def _end(self) -> None:
        """Accept nothing more; close once all accepted requests are answered."""
        if self.ending:
            return
        self.ending = True
        self.stop(STOP_ENDING)
        self.parser.start = self.parser.end
        if not self.running:
            self.parser.settle()
        for pull in self.held_pulls:
            pull.cancel()
        self.held_pulls.clear()
        self.check_end()

    def finish(self) -> None:
        """Answer all accepted requests, then close; called when the broker stops."""
        self._end()

    def abort(self) -> None:
        """Close the connection immediately."""
        self.write_closed = True
        self.transport.abort()

    def check_end(self) -> None:
        """Close a connection that is ending if all of its requests are answered."""
        if not self.ending or self.write_closed or self.stops & STOP_SUSPENDED or not self.is_idle():
            return
        if self.out:
            self.write_out()
        self.write_closed = True
        self.close_by = self.broker.loop.time() + LINGER_S
        if self.lingering and not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()
            self._read_on()
        else:
            self.lingering = False
            self.close_by += self.broker.limits.slow_reader_timeout_ms / 1000
            self.transport.close()


def unmapped(host: str) -> str:
    """Return the IPv4 address inside an IPv4-mapped IPv6 address (``::ffff:…``), else ``host``; without a zone."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
