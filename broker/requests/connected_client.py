"""The client at the other end of a connection: its identity and permissions, and the broker's requests to it."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from ...protocol.auth.permissions import GROUP, PUBLISH, TOPIC
from ...protocol.errors import InvalidParameter
from ...protocol.fields import encode_fields
from ...protocol.frames import ONE_WAY, REQUEST, REQUEST_ID_MAX, RESPONSE, encode_head
from ...protocol.storage.record import encode_host
from ..budgets import SMALL_BYTES

if TYPE_CHECKING:
    from ...protocol.auth.scram import ServerExchange
    from ...protocol.commands import Command
    from ...protocol.errors import BrokerError
    from ...protocol.frames import Frame
    from ..background.flush import FlushService
    from ..budgets import InFlightBudget, SendBudget
    from ..config import LimitsSection
    from ..delivery.client_handle import Answered
    from ..security.users import AccessTable, User, UserRights
    from ..store import MessageStore
    from .counters import Counters

TELL_MAX = 100
"""Maximum number of callbacks for the loss of one connection. Most are group members, which take memory."""
KEPT_BYTES_MAX = 4 * 1024 * 1024
"""Maximum memory of the subscriptions of all group members of one connection."""
ASKED_MAX = 1_024
"""Maximum number of unanswered requests to one client; a further request drops the oldest."""


class ConnectedClient:
    """One client while it is connected; it implements ``ClientHandle``."""

    __slots__ = tuple(
        (
            "_access_table _asked _kept_bytes _last_request_id _responses _user _when_lost access address born_host "
            "client exchange follower lost reads_any"
        ).split()
    )

    def __init__(self, address: tuple[str, int], access: AccessTable, responses: ResponseQueue) -> None:
        self.address = address
        self.born_host = encode_host(*address)
        """Address and port of the client, encoded as in a record."""
        self.client = ""
        """The name that it introduced itself with."""
        self.exchange: ServerExchange | None = None
        """The authentication in progress."""
        self._user: User | None = None
        self._access_table = access
        self.access: UserRights | None = None
        """Permissions of ``user``; None if there is no user, and then the client has full access."""
        self._responses = responses
        self.lost = False
        """True once the connection is closed; results that arrive later are dropped."""
        self.follower = 0
        """Number of this connection among those of the primary's followers; 0: it follows nothing."""
        self.reads_any = False
        """True if a follower of a replica set may answer this client's reads."""
        self._asked: dict[int, Answered] = {}
        self._last_request_id = 0
        self._when_lost: dict[object, Callable[[], None]] = {}
        self._kept_bytes = 0

    @property
    def user(self) -> User | None:
        """The authenticated user; None before authentication, or if the broker requires none."""
        return self._user

    @user.setter
    def user(self, user: User | None) -> None:
        self._user = user
        self.access = self._access_table.of(user.name, user.permissions) if user is not None else None

    @property
    def user_name(self) -> str:
        """Name of the user; empty if there is none."""
        return self._user.name if self._user is not None else ""

    def may_publish(self, topic: str, group: str = "") -> bool:
        """Return whether the client may publish to ``topic``, as a producer of ``group`` if one is given."""
        access = self.access
        return access is None or (
            access.allows(PUBLISH, TOPIC, topic) and (not group or access.allows(PUBLISH, GROUP, group))
        )

    def may_be_sent(self) -> bool:
        """Return whether the client reads what it is sent; for one that does not, more would only fill memory."""
        return not self.lost and self._responses.takes_more()

    def tell(self, command: Command, request: Any, body: bytes | bytearray = b"") -> None:
        """Send a one-way frame to the client."""
        if not self.lost:
            self._responses.send(encode_head(ONE_WAY, command.code, 0, encode_fields(request), len(body)), body)

    def unsent_bytes(self) -> int:
        """Return the number of bytes for the client that wait here because it does not take them."""
        return self._responses.out_bytes + self._responses.unsent_bytes()

    def ask(self, command: Command, request: Any, body: bytes, answered: Answered) -> None:
        """Send a request; call ``answered`` with the response, or with None if none can arrive any more."""
        if self.lost:
            answered(None)
            return
        # From 1 on, because 0 is the id of one-way frames.
        self._last_request_id = request_id = self._last_request_id % REQUEST_ID_MAX + 1
        if len(self._asked) >= ASKED_MAX:
            self._asked.pop(next(iter(self._asked)))(None)
        self._asked[request_id] = answered
        self._responses.send(encode_head(REQUEST, command.code, request_id, encode_fields(request), len(body)), body)

    def response_arrived(self, frame: Frame) -> bool:
        """Pass a response to the caller that waits for it; return False if no caller does."""
        answered = self._asked.pop(frame.request_id, None)
        if answered is None:
            return False
        answered(frame)
        return True

    def when_lost(self, call: Callable[[], None], kept_bytes: int = 0) -> Callable[[], None]:
        """Call ``call`` once the connection is closed; return a function that cancels this.

        ``kept_bytes``: memory of what is kept for the client until then. Raises ``InvalidParameter`` if the connection
        has too many callbacks, or if too much is kept for it.
        """
        token = object()
        if self.lost:
            call()
        elif len(self._when_lost) >= TELL_MAX:
            raise InvalidParameter(
                f"one connection can carry at most {TELL_MAX} group members, consumers and producers together; open "
                "another connection for more"
            )
        elif kept_bytes and self._kept_bytes + kept_bytes > KEPT_BYTES_MAX:
            raise InvalidParameter(
                f"the subscriptions of the group members on one connection can take at most {KEPT_BYTES_MAX:,} bytes "
                f"together; they take {self._kept_bytes:,}, and this member's {kept_bytes:,}. Subscribe to less, or "
                "open another connection for more members"
            )
        else:
            self._when_lost[token] = call
            self._kept_bytes += kept_bytes

        def cancel() -> None:
            if self._when_lost.pop(token, None) is not None:
                self._kept_bytes -= kept_bytes

        return cancel

    def disconnected(self) -> None:
        """Call all callbacks that wait for a response or for the loss of the connection."""
        # One by one, because a callback may cancel others.
        while self._asked:
            self._asked.pop(next(iter(self._asked)))(None)
        while self._when_lost:
            self._when_lost.pop(next(iter(self._when_lost)))()


# ---- Responses of one connection: collected during a turn, kept in order if they must be, and given to the
# transport.

Bytes: TypeAlias = bytes | bytearray | memoryview
WRITE_EARLY_BYTES = 256 * 1024
"""Responses of one turn are written before its end once their bodies exceed this size together."""
JOINED_BYTES_MAX = 8 * 1024
"""Maximum size of the responses of one turn that are written as one buffer."""
WAITING_ANSWER_BYTES = 400
"""Memory overhead of a response that waits for a flush, in addition to its bytes."""


class ShortSocket(Protocol):
    """A connection's socket by which a kernel answers its held pulls."""

    @property
    def waiting(self) -> Sized:
        """The pulls that the kernel answers."""

    def stop(self) -> None:
        """Let the loop answer them: something else is written."""

    def close(self) -> None:
        """Close the descriptor: the connection is closed."""


class SendSide(Protocol):
    """What all connections of a broker share to send."""

    store: MessageStore
    flush: FlushService
    limits: LimitsSection
    counters: Counters
    send_memory: SendBudget
    in_flight: InFlightBudget


class ResponseQueue:
    """The outbound responses of a connection.

    ``on_sent``: called when responses that waited for a flush were sent; ``on_full``: called when too many bytes of
    this connection, or far too many of all connections, wait for a flush; ``encode_error``: encodes the error response
    to the request with an id.

    ``unflushed`` holds PRODUCE responses in the order of their requests, starting with the first one that waits for a
    flush: ``(end_offset, answer, request_id, counted_bytes, began)``. An entry with ``end_offset`` 0 waits only for
    the entries before it; its latency has already been counted.
    """

    __slots__ = tuple(
        (
            "_broker _encode_error _on_full _on_sent bytes_out closed flush_offset leave_short_way out out_bytes "
            "paused pull_socket running transport turn_began unflushed unflushed_bytes written"
        ).split()
    )

    def __init__(
        self,
        broker: SendSide,
        on_sent: Callable[[], None],
        on_full: Callable[[], None],
        encode_error: Callable[[BrokerError, int], bytes],
    ) -> None:
        self._broker = broker
        self._encode_error = encode_error
        self._on_sent = on_sent
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
        self.leave_short_way: Callable[[], None] | None = None
        """Called before anything is written while a kernel sends the answers of this connection (``short_sends``)."""
        self.pull_socket: ShortSocket | None = None
        """The descriptor by which a kernel answers held pulls of this connection (``short_pulls``)."""
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
        if self.leave_short_way is not None:
            self.leave_short_way()
        if self.pull_socket is not None:
            self.pull_socket.stop()
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
            self.add_unflushed(0, answer, 0, 0, 0.0)
        elif self.running:
            self.out.append(answer)
        else:
            self.send(answer)

    def add_unflushed(self, end_offset: int, answer: bytes, request_id: int, frame_bytes: int, began: float) -> None:
        """Let an encoded PRODUCE response wait behind those that wait already; see ``unflushed``. The caller sees to it
        that ``flushed`` is called."""
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
        self.add_unflushed(end_offset, answer, request_id, frame_bytes, self.turn_began)
        self.flush_offset = end_offset

    def end_turn(self) -> None:
        """Wait for the flush of all messages of this turn at once, and write what is due already."""
        self.running = False
        if self.flush_offset:
            end_offset, self.flush_offset = self.flush_offset, 0
            self._broker.flush.wait_for(end_offset, self.flushed)
        if self.out:
            self.write_out()
        if self.written:
            self._broker.counters.produce_latencies.observe(time.monotonic() - self.turn_began, self.written)
            self.written = 0

    def flushed(self, error: BrokerError | None, since: float = math.inf) -> None:
        """Send the responses whose messages are flushed.

        If ``error`` is given, responses that have waited since before ``since`` (monotonic seconds) are replaced by it.
        """
        if self.closed:
            return
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
        self._on_sent()

    def discard(self) -> None:
        """Drop all responses of a closed connection and what was counted for them."""
        self._broker.in_flight.bytes -= self.unflushed_bytes
        self.unflushed_bytes = 0
        self.unflushed.clear()
        self.out.clear()
        if self.pull_socket is not None:
            self.pull_socket.close()
        self._broker.send_memory.note(self, 0)
        # They lead to the connection, which leads here: such a cycle would wait for the collector.
        self._on_sent = self._on_full = nothing
        self._encode_error = encode_error


def nothing() -> None:
    """Do nothing: in place of what a closed connection was told."""


def encode_error(error: BrokerError, request_id: int) -> bytes:
    """Return the encoded error response to a request."""
    return encode_head(RESPONSE, error.code, request_id, error.fields(), 0)
