"""Drives an ``Outbox`` over one connection, within the event loop.

Messages added in one iteration of the loop are sent together at its end. Responses are settled where they are read;
what their receivers send in turn also goes out together. Only making a connection needs a task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from math import inf

from ...protocol.errors import FlintError, RemoteProtocolError
from ..core.produce.accumulator import Bulk, Single, first_deadline
from ..core.produce.producer_core import ProducerCore
from ..core.rpc.connection_errors import SilenceLimit, share_seconds
from ..core.rpc.operation import is_retriable
from ..core.rpc.session import Answer
from ..core.rpc.timeouts import CONNECT_SECONDS_MAX
from ..errors import ClientClosed
from .connection import Connection
from .rpc import Dialer
from .runtime import ClientRuntime, Timer

_WRITTEN_BYTES_MAX = 1 << 20
"""The driver returns to the loop after this many bytes in one go, so that responses are read."""


class DeliveryDriver:
    """Sends and settles the messages in the delivery of ``sending``.

    ``settle``: called with all messages that are settled by a response, or by the lack of one; ``progressed``: called
    when a message was settled, so that there may be room, or nothing left to deliver.
    """

    def __init__(
        self,
        sending: ProducerCore,
        dialer: Dialer,
        life: ClientRuntime,
        settle: Callable[[list[Single]], None],
        progressed: Callable[[], None],
    ) -> None:
        self._sending = sending
        self._delivery = sending.delivery
        self._dialer = dialer
        self._life = life
        self.timer = Timer(life, self._judge)
        self._settle = settle
        self._progressed = progressed
        self._connection: Connection | None = None
        self._connecting = False
        self._will_send = False
        """True if ``_send`` is scheduled."""
        self._unanswered_since = inf
        self._silence: SilenceLimit | None = None
        """Set when the broker has not responded for a while."""
        self._look_at = inf
        self._resume_at = inf
        """End of the pause that the broker asked for, if messages wait for it."""
        self._bulks: dict[Bulk, asyncio.Future[None]] = {}
        self._delivery.on_retry = lambda error: dialer.log.retried("PRODUCE", error)
        life.add(self)

    # ---- for callers

    def added(self) -> None:
        """Schedule sending, together with everything else that is added in this iteration of the loop."""
        if not self._will_send:
            self._will_send = True
            self._life.loop.call_soon(self._life.guarded, "sending", self._send)
            if self.timer.due == inf:
                self.timer.wake(self._next_due(time.monotonic()))

    async def wait_for_bulk(self, bulk: Bulk) -> None:
        """Return when ``bulk`` is done. If the wait is cancelled, the unsent rest of it is never sent."""
        future = self._bulks[bulk] = self._life.loop.create_future()
        try:
            await future
        except asyncio.CancelledError:
            self.abandon(bulk)
            raise
        finally:
            del self._bulks[bulk]

    def abandon(self, waited_for: Single | Bulk) -> None:
        """Drop what has not been sent yet: the caller no longer waits for it."""
        if not waited_for.done:
            self._delivery.abandon(waited_for, FlintError("its caller was cancelled"))
            self._announce()

    def stop(self) -> None:
        """Close the connection; unsettled messages fail with ``ClientClosed``."""
        self.fail(ClientClosed("the producer was closed before the broker acknowledged"))

    def fail(self, error: FlintError) -> None:
        """Fail everything with ``error`` and close the connection."""
        self.timer.stop()
        self._delivery.fail_all(error)
        self._announce()
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    # ---- sending and settling

    def _send(self) -> None:
        self._will_send = False
        connection, delivery = self._connection, self._delivery
        if connection is None:
            self._connect()
            return
        now = time.monotonic()
        written = 0
        while delivery.offered and not connection.congested:
            request = delivery.next_request(now, connection.new_request_id())
            if request is None:
                break
            head, body = request
            connection.write(head, body)
            written += len(body)
            if written >= _WRITTEN_BYTES_MAX:
                self.added()
                break
        if delivery.in_flight and self._unanswered_since == inf:
            self._waits_since(now)
        pause = delivery.hold_seconds(now) if delivery.offered else 0.0  # nonzero if the broker asked for a pause
        self._resume_at = now + pause if pause else inf
        if delivery.offered:
            self.timer.wake(now + delivery.seconds_to_wait(now))
        if delivery.settled or delivery.idle:  # a message was too long for a frame, or all offered ones were cancelled
            self._announce()

    def received(self, answers: list[Answer]) -> None:
        """Settle the messages that these responses acknowledge or refuse."""
        delivery = self._delivery
        now = time.monotonic()
        for answer in answers:
            delivery.answered(answer, now)
        self._waits_since(now if delivery.in_flight else inf)
        self._announce()
        if delivery.offered:
            self.added()

    def writable(self) -> None:
        if self._delivery.offered:
            self.added()

    def lost(self, error: FlintError) -> None:
        """Connect again if messages are not settled yet; what was in flight is resent."""
        connection, self._connection = self._connection, None
        if connection is None or self._delivery.idle:  # a close while idle does not count against the address
            return
        self._dialer.mark_failed(connection.address, error)
        self._dialer.log.lost(error)
        self._failed(error)
        self._connect()

    def _failed(self, error: FlintError) -> None:
        """Handle a lost connection or a failed attempt: what was in flight is resent on the next connection."""
        if is_retriable(error) or isinstance(error, RemoteProtocolError):
            now = time.monotonic()
            self._delivery.connection_lost(error, now)
            self._delivery.expire(now)
        else:
            self._delivery.fail_all(error)
        self._announce()

    def _announce(self) -> None:
        settled = self._delivery.settled
        if settled:
            self._delivery.settled = []
            self._settle(settled)
        for bulk, future in self._bulks.items():
            if bulk.done and not future.done():
                future.set_result(None)
        self._progressed()

    # ---- connecting

    def _connect(self) -> None:
        if not self._connecting and self._connection is None and not self._life.ended:
            self._connecting = True
            self._life.start("connecting", self._make_connection())

    async def _make_connection(self) -> None:
        delivery = self._delivery
        try:
            while self._connection is None and not delivery.idle:
                now = time.monotonic()
                pause = delivery.hold_seconds(now)
                if pause > 0:
                    await self._life.pause(pause)
                    continue
                seconds = max(0.001, min(CONNECT_SECONDS_MAX, delivery.seconds_to_wait(now)))
                try:
                    self._connected(await self._dialer.dial(seconds))
                except FlintError as error:
                    self._failed(error)
        finally:
            self._connecting = False

    def _connected(self, connection: Connection) -> None:
        self._connection = connection
        self._waits_since(inf)
        connection.receiver = self
        self._sending.connected(connection.local_address)
        self._delivery.connected(connection.limits)
        self._send()

    # ---- deadlines

    def _next_due(self, now: float) -> float:
        """Return when the next message is due, a pause is over, or the broker has been silent for too long."""
        delivery = self._delivery
        if delivery.idle:
            return inf
        due = min(now + delivery.seconds_to_wait(now), self._resume_at)
        return min(due, self._look_at) if delivery.in_flight else due

    def _waits_since(self, since: float) -> None:
        """Note since when the broker owes a response, or (infinite) that it owes none."""
        self._unanswered_since, self._silence = since, None
        self._look_at = inf
        if since != inf and self._connection is not None:
            # Most responses come within this time. Only after it does the exact limit matter.
            seconds = self._delivery.seconds_to_wait(since)
            self._look_at = since + share_seconds(seconds, self._connection.limits.role)
            self.timer.wake(self._look_at)

    def _check_silence(self, connection: Connection, now: float) -> None:
        since = self._unanswered_since
        if self._silence is None:
            seconds = first_deadline(self._delivery.in_flight.values()) - since
            self._silence = SilenceLimit(seconds, since, connection.limits.role)
        try:
            self._look_at = now + self._silence.check(connection, now)
        except FlintError as error:
            connection.abort()
            self.lost(error)

    def _judge(self) -> None:
        """Handle silence and expired messages, and send after a pause."""
        now = time.monotonic()
        delivery, connection = self._delivery, self._connection
        if delivery.expire_due(now):
            delivery.expire(now)
            self._announce()
        if delivery.in_flight and connection is not None and now >= self._look_at:
            self._check_silence(connection, now)
        if now >= self._resume_at:
            self._resume_at = inf
        if delivery.offered:
            self.added()
        self.timer.wake(self._next_due(now))
