"""One client's connection: bytes in, frames to handlers, answers out.

A connection is *stopped* for one or more reasons (``STOP_…``): then none of its frames is handled and nothing is read
from its socket, until all reasons are gone. What has arrived stays in the parser.
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
from ...protocol.record import encode_host
from ...protocol.scram import MECHANISM, ServerExchange
from ..security.authenticator import FRAME_BYTES_MAX as UNKNOWN_FRAME_BYTES_MAX
from ..security.users import User
from .answering import encode_error
from .dispatch import HANDLERS, HANDLERS_BEFORE_AUTH, HANDLERS_BEFORE_HELLO, HANDLERS_OF_USERS, ONE_WAY_CODES
from .handlers.auditing import audit_refused
from .handlers.context import Broker
from .receiving import SharingParser
from .waiting import Waiting

log = logging.getLogger(__name__)

STOP_SUSPENDED = 1
"""A PRODUCE waits for its topic: what follows must not overtake it."""
STOP_WRITE = 2
"""The client does not take its answers."""
STOP_IN_FLIGHT = 4
"""Too many bytes of this connection wait for a flush, or far too many of all."""
STOP_MEMORY = 8
"""Half a frame, and no memory for the rest: too many bytes of all connections have arrived."""
STOP_TURN = 16
"""It had its turn; others are served before it goes on."""
STOP_ENDING = 32
"""Nothing more is taken from it."""

TURN_S = 0.001
"""A turn of one connection ends after this long."""
TURN_BYTES = 256 * 1024
"""Or after so much: the system reads on for as long as it is let, and a frame of a megabyte takes milliseconds."""
LINGER_S = 2.0
"""After a refusal the rest of what a client sends is thrown away this long: closing at once would reset the connection,
and the client might never see why."""

NOT_AUTHENTICATED = (
    f"this broker serves only users, and the connection has not said who it is: AUTH with {MECHANISM} must follow "
    "HELLO; give the client a user and a password"
)

_DISCARDED = memoryview(bytearray(64 * 1024))


class Connection(Waiting, asyncio.BufferedProtocol):
    """A connection that was accepted. ``on_lost`` is called once, when it is gone."""

    __slots__ = (
        "arrived", "authenticate_by", "born_host", "close_by", "ending", "exchange", "half_since", "handlers",
        "idle_since", "lingering", "memory", "on_lost", "parser", "reading", "reads", "reads_seen", "stops",
        "write_level", "write_since",
    )  # fmt: skip

    def __init__(self, broker: Broker, address: tuple[str, int], on_lost: Callable[[Connection], None]) -> None:
        super().__init__(broker, address)
        self.born_host = encode_host(unmapped(address[0]), address[1])
        self.on_lost = on_lost
        self.exchange: ServerExchange | None = None
        self.authenticate_by = 0.0
        """When it must have said who it is (the loop's clock); 0: it need not, or has."""
        self.memory = broker.receive_memory
        self.parser = SharingParser(broker.limits.frame_bytes_max, self.memory)
        if broker.authenticator is not None:  # a stranger gets little room and little time
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
        """The socket is connected."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=self.broker.limits.write_buffer_bytes_max)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go; never empty."""
        return _DISCARDED if self.lingering else self.parser.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """``nbytes`` arrived."""
        if self.lingering:
            return
        self.reads += 1
        self.parser.received(nbytes)
        if not self.stops:
            self._run()

    def eof_received(self) -> bool:
        """The client sends no more: what it waits for is still answered, then the connection closes."""
        if self.lingering:
            return False
        self._end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: nothing waits for it any more."""
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
        """The client does not take its answers fast enough: handle nothing more of it."""
        self.write_paused = True
        self.write_since = self.broker.loop.time()
        self.write_level = self.transport.get_write_buffer_size()
        self.stop(STOP_WRITE)

    def resume_writing(self) -> None:
        """The client has taken its answers."""
        self.write_paused = False
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits(high=self.broker.limits.write_buffer_bytes_max)
        self.unstop(STOP_WRITE)
        self.run_deferred()

    # ---- handling frames ----

    def _run(self) -> None:
        """Handle whole frames until there is none, or the connection is stopped."""
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
                    self.parser.keep(frame)
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
        if frames or not self.half_since:
            self.half_since = broker.loop.time()

    def has_memory(self) -> None:
        """See ``Receiver``."""
        self.unstop(STOP_MEMORY)

    def handle(self, frame: Frame) -> None:
        """See ``Peer.handle``."""
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
                        log.debug("an answer to request %d, which was not asked", frame.request_id)
                    return
                if handler is None:
                    raise UnknownCommand(f"command {frame.code} is not known to this broker")
                if frame.code not in ONE_WAY_CODES:
                    raise InvalidParameter(f"command {frame.code} cannot be sent one-way: its answer is what it is for")
            handler(self, frame)
        except BrokerError as error:
            self.fail(frame, error)
        except Exception as error:  # noqa: BLE001 - one request must not take its connection, or the broker, down
            self.unexpected(frame, error)

    def fail(self, frame: Frame, error: BrokerError) -> None:
        """See ``Peer.fail``."""
        audit_refused(self, frame, error)
        super().fail(frame, error)

    def greet(self, client: str) -> None:
        """See ``Peer.greet``."""
        self.client = client
        if self.broker.authenticator is None:
            self.handlers = HANDLERS
        elif self.user is None:
            self.handlers = HANDLERS_BEFORE_AUTH

    def admit(self, user: User) -> None:
        """See ``Peer.admit``."""
        self.user = user
        self.authenticate_by = 0.0
        self.parser.frame_bytes_max = self.broker.limits.frame_bytes_max
        self.handlers = HANDLERS_OF_USERS
        log.debug("connection from %s:%d is user %s", *self.address, user.name)

    def users_changed(self) -> None:
        """The users were read again: who is none any more, or has another password, has to authenticate anew."""
        before, authenticator = self.user, self.broker.authenticator
        if before is None or authenticator is None:
            return
        user = authenticator.users.get(before.name)
        if user is not None and user.verifier == before.verifier:
            self.user = user
            return
        what = "was removed" if user is None else "has another password"
        self.turn_away(AuthenticationRequired(f"user {before.name!r} {what} since this connection authenticated"), 0)

    def refuse(self, frame: Frame, error: BrokerError) -> None:
        """See ``Peer.refuse``."""
        self.turn_away(error, frame.request_id)

    def suspend(self) -> None:
        """See ``Peer.suspend``."""
        self.stop(STOP_SUSPENDED)

    def resume(self, frame: Frame, error: BrokerError | None) -> None:
        """See ``Peer.resume``."""
        self.proceed(frame, partial(self.handle, frame) if error is None else partial(self.fail, frame, error))

    def proceed(self, frame: Frame, call: Callable[[], None]) -> None:
        """See ``Peer.proceed``."""
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
        """See ``Peer.send_when_flushed``."""
        super().send_when_flushed(frame, answer, end_offset)
        self._check_in_flight()

    def send_in_order(self, answer: bytes) -> None:
        """See ``Peer.send_in_order``."""
        super().send_in_order(answer)
        if self.unflushed:
            self._check_in_flight()

    def _check_in_flight(self) -> None:
        """Take nothing more of a connection that has enough to wait for, or that goes on although it is refused."""
        broker = self.broker
        if (
            self.unflushed_bytes > broker.limits.connection_in_flight_bytes_max
            or broker.in_flight_bytes > broker.in_flight_bytes_end
        ):
            self.stop(STOP_IN_FLIGHT)

    def flushed(self, error: BrokerError | None, since: float = math.inf) -> None:
        """Some of this connection's messages are flushed, or will not be in time."""
        if self.lost:
            return
        super().flushed(error, since)
        low = self.broker.limits.connection_in_flight_bytes_max // 2
        if self.stops & STOP_IN_FLIGHT and self.unflushed_bytes <= low:
            self.unstop(STOP_IN_FLIGHT)
        self.check_end()

    # ---- stopping and going on ----

    def stop(self, reason: int) -> None:
        """Handle and read nothing more until ``reason`` is gone."""
        self.stops |= reason
        if self.reading:
            self.reading = False
            if not self.transport.is_closing():
                self.transport.pause_reading()

    def unstop(self, reason: int) -> None:
        """``reason`` is gone; go on in the next turn of the loop if it was the last one."""
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
        """What comes from this client cannot be served: say why, then close."""
        if self.ending:
            return
        self.count_error(error)
        log.info("connection from %s:%d refused: %s", *self.address, error.message)
        self.send_in_order(encode_error(error, request_id))
        self.lingering = True
        self._end()

    def _end(self) -> None:
        """Take nothing more; close when all that was taken is answered."""
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
        """The broker stops: answer what was taken, then close."""
        self._end()

    def abort(self) -> None:
        """Close at once."""
        self.write_closed = True
        self.transport.abort()

    def check_end(self) -> None:
        """Close a connection that ends once all that it waited for is answered."""
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
    """The IPv4 address inside an IPv6 one (``::ffff:…``), else ``host`` itself; without a zone."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
