"""One client's connection: bytes in, frames to handlers, responses out.

A connection is *stopped* for one or more reasons (``STOP_…``). While any reason remains, the broker handles none of
its frames and reads nothing from its socket; bytes that have already arrived stay in the parser.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import ClassVar, cast

from ...protocol.commands import REPORT_POSITION
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
from ...protocol.remoting.codes import SYSTEM_ERROR
from ...protocol.remoting.command import encode_head, opaque_of
from ..addresses import unmapped
from ..budgets import SharingParser
from ..handlers.registry import (
    HANDLERS,
    HANDLERS_BEFORE_AUTH,
    HANDLERS_BEFORE_HELLO,
    HANDLERS_OF_MEMBERS,
    HANDLERS_OF_MEMBERS_USERS,
    HANDLERS_OF_USERS,
    ONE_WAY_CODES,
    Served,
)
from ..handlers.repeated_headers import RepeatedHeaders
from ..requests.broker import Broker
from ..requests.connected_client import ConnectedClient, ResponseQueue, encode_error
from ..requests.request import DeferredRequests, KeptHeaders, Request
from ..requests.short_sends import ENTER_AFTER
from ..requests.short_way import ShortWay
from ..security.users import FRAME_BYTES_MAX as UNKNOWN_FRAME_BYTES_MAX
from ..security.users import User, not_authenticated

# ---- The answer to a RocketMQ client that connects to FlintMQ's own port, in its protocol.

OF_ROCKETMQ = (
    "this port speaks FlintMQ's protocol, and the request is one of RocketMQ's: give RocketMQ's clients the address of "
    "remoting.listen"
)


def encode_for_rocketmq(error: BrokerError, opaque: int) -> bytes:
    """Return an encoded error response that RocketMQ's clients understand. ``opaque``: number of their request."""
    return encode_head(RESPONSE, SYSTEM_ERROR, opaque, None, 0, remark=error.message)


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

WRITE_BUFFER_BYTES_MAX = 4 * 1024 * 1024
"""Responses that one client has not read; above it, the connection is not served until the client reads."""
TURN_S = 0.001
"""Maximum duration of one connection's turn."""
TURN_BYTES = 256 * 1024
"""Maximum number of bytes handled in a turn: without it one fast sender could hold the loop, and a frame of a megabyte
takes milliseconds."""
LINGER_S = 2.0
"""Time for which further input is discarded after a refusal. Closing at once would reset the connection, and the client
might never read the reason."""

_DISCARDED = memoryview(bytearray(64 * 1024))


class ClientConnection(asyncio.BufferedProtocol):
    """An accepted connection: its bytes, its frames, and why it is stopped. Who sent the frames, what waits and what
    goes out is in its ``peer``, ``deferred`` and ``responses``. ``on_lost`` is called once, after it is closed.

    A subclass that speaks another protocol replaces ``CLIENT``, ``PARSER``, ``REPEATED``, ``encode_error`` and
    ``handle``.
    """

    CLIENT: ClassVar[type[ConnectedClient]] = ConnectedClient
    PARSER: ClassVar[type[SharingParser]] = SharingParser
    REPEATED: ClassVar[type[KeptHeaders]] = RepeatedHeaders

    __slots__ = tuple(
        (
            "arrived authenticate_by broker bytes_in close_by deferred ending enter_after frame_bytes frames_in "
            "half_since handlers idle_since lingering memory number on_lost opened_ms parser peer reading reads "
            "reads_seen repeated responses short_way stops transport write_level write_since"
        ).split()
    )

    def __init__(self, broker: Broker, address: tuple[str, int], on_lost: Callable[[ClientConnection], None]) -> None:
        self.broker = broker
        self.on_lost = on_lost
        self.transport = cast(asyncio.Transport, None)  # set before the first byte can arrive
        self.responses = ResponseQueue(broker, self._after_flush, self._stop_in_flight, self.encode_error)
        self.deferred = DeferredRequests(broker, self.responses, self.check_end)
        self.peer = self.CLIENT((unmapped(address[0]), address[1]), broker.access, self.responses)
        self.authenticate_by = 0.0
        """Deadline for authentication by the loop's clock; 0 if none is needed, or if it is done."""
        self.memory = broker.receive_memory
        self.parser = self.PARSER(broker.limits.frame_bytes_max, self.memory)
        if broker.authenticator is not None:  # an unauthenticated client gets little memory and little time
            self.parser.frame_bytes_max = UNKNOWN_FRAME_BYTES_MAX
            self.authenticate_by = broker.loop.time() + broker.settings.security.auth_timeout_ms / 1000
        self.handlers = HANDLERS_BEFORE_HELLO
        self.repeated = self.REPEATED(broker)
        self.frame_bytes = 0
        """Size of the frame that is being handled, including its length field."""
        self.stops = 0
        self.short_way: tuple[ShortWay, int] | None = None
        """The short way that it entered last, and its place there."""
        self.enter_after = ENTER_AFTER
        """Number of reads that a kernel must have served in sequence before it reads this connection itself."""
        self.reading = True
        self.ending = False
        self.lingering = False
        self.arrived = 0
        self.number = broker.counters.connections_accepted
        """Number of the connection since the start of the broker."""
        self.opened_ms = int(time.time() * 1000)
        self.frames_in = self.bytes_in = 0
        self.reads = self.reads_seen = self.write_level = 0
        self.half_since = self.write_since = self.close_by = 0.0
        self.idle_since = broker.loop.time()

    # ---- what the transport calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = self.responses.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes; never empty."""
        return _DISCARDED if self.lingering else self.parser.writable()

    def buffer_updated(self, nbytes: int) -> None:
        if self.lingering:
            return
        self.reads += 1
        self.bytes_in += nbytes
        self.parser.received(nbytes)
        if not self.stops:
            self._run()
            if self.repeated.served > self.enter_after and not self.responses.unflushed:
                self._enter_short_way()

    # ---- the short ways: see ``requests.short_sends`` and ``requests.short_pops`` ----

    def _enter_short_way(self) -> None:
        """Let a kernel read this connection, if nothing is against it."""
        self.repeated.served = 0
        if self.stops or self.ending or not self.reading or not self.parser.is_settled() or self.broker.tls is not None:
            return
        way, place = self.repeated.short_way()
        if way.enter(place, self):
            self.short_way = way, place
            self.responses.leave_short_way = self._leave_short_way
            self.reading = False
            self.transport.pause_reading()

    def _leave_short_way(self) -> None:
        assert self.short_way is not None, "it has entered"
        way, place = self.short_way
        way.leave(place, self)
        self.left_short_way(b"")

    def settle(self, since: float) -> None:
        """Take over what the kernel has counted; leave the short way if answers have waited since before ``since``."""
        if self.short_way is not None and self.responses.leave_short_way is not None:
            way, place = self.short_way
            way.settle(place, self)
            if way.waits_since(place) < since:
                self._leave_short_way()

    def left_short_way(self, data: bytes) -> None:
        """Read again, after these bytes, which arrived before."""
        while data and not self.peer.lost and not self.lingering:
            room = self.parser.writable()
            size = min(len(data), len(room))
            room[:size], data = data[:size], data[size:]
            self.buffer_updated(size)
        if not self.stops and not self.reading and not self.peer.lost:
            self._read_on()

    def eof_received(self) -> bool:
        """Answer the client's outstanding requests, then close; the client sends nothing more."""
        if self.lingering:
            return False
        self._end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that this connection held or waited for."""
        # First, because the callbacks below must see that nothing can be sent any more.
        self.peer.lost = self.responses.closed = True
        self.stops |= STOP_ENDING
        if self.responses.leave_short_way is not None:
            self.responses.leave_short_way()
        self.deferred.connection_lost()
        self.broker.in_flight.bytes -= self.arrived
        self.arrived = 0
        self.responses.discard()
        self.parser.let_go()
        self.parser.release()
        self.memory.forget(self)
        self.repeated.clear()
        self.broker.dispatch.sharing.forget(self)
        if exc is not None:
            log.debug("connection from %s:%d broke: %s", *self.peer.address, exc)
        self.peer.disconnected()
        self.on_lost(self)

    def pause_writing(self) -> None:
        """Stop handling frames because the client reads its responses too slowly."""
        self.responses.paused = True
        if self.peer.follower:
            return  # its reports get no responses, and without them it would seem silent
        self.write_since = self.broker.loop.time()
        self.write_level = self.transport.get_write_buffer_size()
        self.stop(STOP_WRITE)

    def resume_writing(self) -> None:
        """Continue after the client has read its responses."""
        self.responses.paused = False
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        self.unstop(STOP_WRITE)
        self.deferred.run_waiting()

    # ---- handling frames ----

    def encode_error(self, error: BrokerError, request_id: int) -> bytes:
        """Return the encoded error response to a request; 0 if it answers none."""
        return encode_error(error, request_id)

    def _run(self) -> None:
        """Handle complete frames until none is left or the connection is stopped."""
        parser, responses, repeated = self.parser, self.responses, self.repeated
        frames = handled_bytes = 0
        incomplete = False
        responses.running = True
        responses.turn_began = began = time.monotonic()
        if not self.peer.follower:  # or its reports would make a single producer one of several
            self.broker.dispatch.sharing.turn(self, began)
        try:
            while not self.stops and (begin := parser.start) != parser.end:
                if repeated.headers and (served := repeated.handle(self, began)):
                    frames += served
                else:
                    frame = parser.next_frame()
                    if frame is None:
                        incomplete = True
                        break
                    self.frame_bytes = parser.start - begin
                    frame.began = began
                    self.handle(frame)
                    if self.stops & STOP_SUSPENDED:
                        self.parser.keep(frame)  # it is handled again later, so its body must not be overwritten
                    frames += 1
                handled_bytes += parser.start - begin
                if parser.start == parser.end:
                    break  # without a look at the clock: most turns have a single frame
                if handled_bytes > TURN_BYTES or time.monotonic() > began + TURN_S:
                    self.stop(STOP_TURN)
                    self.broker.dispatch.next_turn(lambda: self.unstop(STOP_TURN))
        except RemoteProtocolError as error:
            self.refuse_bytes(error)
        self.frames_in += frames
        if self.broker.dispatch.awaited:
            self.broker.dispatch.serve_waiting()
        self._after_run(frames, incomplete)

    def _after_run(self, frames: int, incomplete: bool) -> None:
        self.responses.end_turn()
        if self.peer.lost:
            return
        parser = self.parser
        if frames and self.memory.first is parser:
            self.memory.done(parser)
        # The shared buffer belongs to the next connection after this turn, so pending bytes must leave it now.
        if not parser.is_settled() and not parser.settle():
            self.stop(STOP_MEMORY)
            self.memory.wait(self)
        arrived = parser.end - parser.start
        if arrived != self.arrived:
            self.broker.in_flight.bytes += arrived - self.arrived
            self.arrived = arrived
        if not incomplete:
            self.half_since = 0.0
            return
        if frames or not self.half_since:  # the timeout of a partial frame starts when the frame becomes the first
            self.half_since = self.broker.loop.time()

    def has_memory(self) -> None:
        self.unstop(STOP_MEMORY)

    def handle(self, frame: Frame) -> None:
        """Call the handler of a frame's command, and respond with the error that it raises."""
        request = Request(self, frame)
        try:
            served = self.handlers.get(frame.code)
            if served is None or frame.kind != REQUEST:
                served = self._unusual_handler(frame, served)
                if served is None:
                    return
            handler, services = served
            waits = handler(request, *services(request))
            if waits is not None:
                request.begin(waits)
        except BrokerError as error:
            if self.peer.follower:
                request.refuse(error)  # it is read although it may not read: it must get no responses
            else:
                request.fail(error)
        except Exception as error:  # noqa: BLE001 - one request must not take its connection, or the broker, down
            request.fail_unexpectedly(error)

    def _unusual_handler(self, frame: Frame, served: Served | None) -> Served | None:
        """Return the handler of a frame that is not a request or has no handler now; None if nothing is left to do."""
        if self.handlers is HANDLERS_BEFORE_HELLO:
            self.turn_away(HelloRequired("the first request of a connection must be HELLO"), frame.request_id)
            return None
        if self.handlers is HANDLERS_BEFORE_AUTH:
            self.turn_away(not_authenticated(), frame.request_id)
            return None
        if frame.kind == RESPONSE:
            if not self.peer.response_arrived(frame):
                log.debug("unexpected response to request %d", frame.request_id)
            return None
        if self.peer.follower and frame.code != REPORT_POSITION.code:
            raise InvalidParameter("this connection follows, and only reports positions; open another one")
        if served is None:
            raise UnknownCommand(f"command {frame.code} is not known to this broker")
        if frame.code not in ONE_WAY_CODES:
            raise InvalidParameter(f"command {frame.code} cannot be sent one-way, because it returns a result")
        return served

    def follow(self) -> None:
        self.handlers = {REPORT_POSITION.code: self.handlers[REPORT_POSITION.code]}

    def greet(self, client: str) -> None:
        self.peer.client = client
        if self.broker.authenticator is None:
            self.handlers = HANDLERS if self.broker.member is None else HANDLERS_OF_MEMBERS
        elif self.peer.user is None:
            self.handlers = HANDLERS_BEFORE_AUTH

    def admit(self, user: User) -> None:
        """Accept all commands from now on, as ``user``."""
        self.peer.user = user
        self.authenticate_by = 0.0
        self.parser.frame_bytes_max = self.broker.limits.frame_bytes_max
        self.handlers = HANDLERS_OF_USERS if self.broker.member is None else HANDLERS_OF_MEMBERS_USERS
        log.debug("connection from %s:%d is user %s", *self.peer.address, user.name)

    def users_changed(self) -> None:
        """Close the connection if its user was removed or has another password; called after users were reloaded."""
        before, authenticator = self.peer.user, self.broker.authenticator
        if before is None or authenticator is None:
            return
        user = authenticator.users.get(before.name)
        if user is not None and user.verifier == before.verifier:
            self.peer.user = user
            return
        change = "was removed" if user is None else "got another password"
        self.turn_away(AuthenticationRequired(f"user {before.name!r} {change} after this connection authenticated"), 0)

    def suspend(self) -> None:
        self.stop(STOP_SUSPENDED)

    def proceed(self, frame: Frame, call: Callable[[], None]) -> None:
        self.stops &= ~STOP_SUSPENDED
        if self.peer.lost:
            return
        self.responses.running = True
        self.responses.turn_began = frame.began
        call()
        if self.stops & STOP_SUSPENDED:
            self.parser.keep(frame)
        else:
            self.parser.let_go()
        self._after_run(1, incomplete=False)
        self.check_end()
        if not self.stops:
            self.broker.loop.call_soon(self._continue)

    def _stop_in_flight(self) -> None:
        self.stop(STOP_IN_FLIGHT)

    def _after_flush(self) -> None:
        """Continue reading once half of the allowed bytes are flushed."""
        if self.repeated.served > self.enter_after and not self.responses.unflushed:
            self._enter_short_way()
        if self.stops & STOP_IN_FLIGHT:
            low = self.broker.limits.connection_in_flight_bytes_max // 2
            if self.responses.unflushed_bytes <= low:
                self.unstop(STOP_IN_FLIGHT)
        if self.ending:
            self.check_end()

    # ---- stopping and continuing ----

    def stop(self, reason: int) -> None:
        """Handle and read nothing more until ``reason`` is removed."""
        self.stops |= reason
        if self.responses.leave_short_way is not None:
            self.responses.leave_short_way()
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
        if self.stops or self.peer.lost:
            return
        self._run()
        if not self.stops and not self.reading:
            self._read_on()

    def _read_on(self) -> None:
        self.reading = True
        if not self.transport.is_closing():
            self.transport.resume_reading()

    # ---- the end ----

    def refuse_bytes(self, error: RemoteProtocolError) -> None:
        """Close the connection because the bytes at the parser's start are not a frame, with an answer that its client
        understands: RocketMQ's, if they look like it and the client has not said HELLO."""
        opaque = None
        if self.handlers is HANDLERS_BEFORE_HELLO:
            opaque = opaque_of(self.parser.buffer, self.parser.start, self.parser.end)
        if opaque is None:
            self.turn_away(FrameIllegal(str(error)), 0)
        else:
            self.turn_away(FrameIllegal(OF_ROCKETMQ), opaque, encode_for_rocketmq)

    def turn_away(
        self, error: BrokerError, request_id: int, encode: Callable[[BrokerError, int], bytes] | None = None
    ) -> None:
        """Send the client an error that says why it cannot be served, then close the connection.

        ``encode``: encodes the error for a client of another protocol.
        """
        if self.ending:
            return
        self.responses.count_error(error)
        log.info("connection from %s:%d refused: %s", *self.peer.address, error.message)
        self.responses.send_in_order((encode or self.encode_error)(error, request_id))
        self.lingering = True
        self._end()

    def _end(self) -> None:
        """Accept nothing more; close once all accepted requests are answered."""
        if self.ending:
            return
        self.ending = True
        self.stop(STOP_ENDING)
        self.parser.start = self.parser.end
        if not self.responses.running:
            self.parser.settle()
        self.deferred.cancel_held()
        self.check_end()

    def finish(self) -> None:
        self._end()

    def abort(self) -> None:
        self.responses.closed = True
        if self.responses.leave_short_way is not None:
            self.responses.leave_short_way()
        self.transport.abort()

    def is_idle(self) -> bool:
        """Return whether all accepted requests are answered, except held pulls."""
        return not self.responses.unflushed and self.deferred.is_idle()

    def check_end(self) -> None:
        """Close a connection that is ending if all of its requests are answered."""
        if not self.ending or self.responses.closed or self.stops & STOP_SUSPENDED or not self.is_idle():
            return
        if self.responses.out:
            self.responses.write_out()
        self.responses.closed = True
        self.close_by = self.broker.loop.time() + LINGER_S
        # TLS cannot close one direction alone: its transport itself discards what comes until the client closes.
        if self.lingering and not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()
            self._read_on()
        else:
            self.lingering = False
            self.close_by += self.broker.limits.slow_reader_timeout_ms / 1000
            self.transport.close()
