"""Drives an ``Outbox`` over one connection from the threads that wait for it.

At most one thread at a time does the I/O: the first that has to wait. It sends everything that any thread has added and
settles the broker's responses for all of them, until its own messages are settled; then it hands over to another thread
that still waits. For ``send_async``, whose callers do not wait, a background thread takes over if no other thread
drives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol, TypeAlias

from ...protocol.commands import LAYOUT_ROWS
from ...protocol.errors import ConnectionFailed, FlintError, RemoteProtocolError
from ...protocol.frames import ANY_QUEUE, ProduceHead
from ...protocol.storage.record import unique_key
from ..core.produce.accumulator import HEADS_KEPT, SentSingle, Single, first_deadline
from ..core.produce.delivery import Outbox
from ..core.produce.packer import new_packer
from ..core.produce.producer_core import ProducerCore
from ..core.produce.receipts import Receipt
from ..core.rpc.connection_errors import SilenceLimit, share_seconds
from ..core.rpc.operation import is_retriable
from ..core.rpc.session import Answer
from ..core.rpc.timeouts import CONNECT_SECONDS_MAX
from ..core.times import now_millis
from ..errors import ClientClosed
from ..message import Message
from .connection import AnswerOfOne, Connection
from .rpc import Dialer

_PUSHED_BYTES_MAX = 1 << 20
"""The driver looks at the responses after sending this many bytes in one go."""


class Waited(Protocol):
    """Something that a thread waits for."""

    @property
    def done(self) -> bool: ...


class Until:
    """A ``Waited`` that is done when a function says so."""

    __slots__ = ("_is_done",)

    def __init__(self, is_done: Callable[[], bool]) -> None:
        self._is_done = is_done

    @property
    def done(self) -> bool:
        return self._is_done()


class _Follower:
    """A thread that waits while another one drives; ``woken`` is locked until its wait is over or it must drive."""

    __slots__ = ("waited", "woken")

    def __init__(self, waited: Waited) -> None:
        self.waited = waited
        self.woken = threading.Lock()
        self.woken.acquire()


Role: TypeAlias = bool | _Follower
"""The role of a waiting thread. True: drive, and hand over at the end; False: this thread already drives, continue; a
``_Follower``: wait."""


class DeliveryDriver:
    """Sends and settles the messages in ``delivery``. ``mutex`` guards it: hold it to add to it or to inspect it.

    ``connected``: called with each new connection, under the mutex. ``settle``: called without the mutex for each
    settled message that has a future.
    """

    def __init__(
        self,
        delivery: Outbox,
        dialer: Dialer,
        connected: Callable[[Connection], None],
        settle: Callable[[Single], None],
    ) -> None:
        self.mutex = threading.Lock()
        self._delivery = delivery
        self._dialer = dialer
        self._connected = connected
        self._settle = settle
        self._connection: Connection | None = None
        self._silence: SilenceLimit | None = None
        """Set when the broker has not responded for a while."""
        self._look_seconds = 0.0
        self._driver: int | None = None
        """Ident of the thread that drives, or is about to."""
        self._driving = False
        self._followers: dict[_Follower, None] = {}
        self._settling: list[int] = []
        """Idents of the threads that are completing futures, whose callbacks may call back."""
        self._stopping = False
        self._interrupted = threading.Event()
        self._background: threading.Thread | None = None
        self._work = threading.Condition(self.mutex)
        delivery.on_retry = lambda error: dialer.log.retried("PRODUCE", error)

    # ---- for callers

    def enter(self, waited: Waited) -> Role:
        """Return the calling thread's role while it waits, to be passed to ``wait``. The mutex must be held."""
        driver = self._driver
        if driver is None:
            self._driver = threading.get_ident()
            return True
        if driver == threading.get_ident():
            return False  # called from a future's callback, which runs between two steps of this thread
        follower = _Follower(waited)
        self._followers[follower] = None
        return follower

    def claim(self) -> Connection | None:
        """Make the calling thread the driver if nothing is under way; return the connection, or None.

        The caller must then call ``release`` or ``wait``.
        """
        if not self.mutex.acquire(blocking=False):
            return None
        try:
            connection = self._connection
            if (
                self._driver is not None
                or connection is None
                or self._stopping
                or not self._delivery.is_quiet
                or connection.congested
                or not connection.is_plain
            ):
                return None
            self._driver = threading.get_ident()
            return connection
        finally:
            self.mutex.release()

    def release(self) -> None:
        """End the role that ``claim`` gave."""
        self._hand_over()

    def interrupted(self) -> None:
        """End the role that ``claim`` gave, after an interrupt in the middle of a frame: give the connection up."""
        self._failed(_interrupted())
        self._hand_over()

    def adopt(self, sent: SentSingle, request_id: int, arrived: Sequence[Answer] | FlintError) -> Single:
        """Deliver a message that the calling thread sent after ``claim``; the caller must then ``wait`` for it.

        ``arrived``: the responses that arrived instead of its acknowledgement, or the error of the connection.
        """
        now = time.monotonic()
        with self.mutex:
            single = self._delivery.adopt(sent, request_id)
            if not arrived and self._connection is not None:
                began = sent.deadline - self._delivery.delivery_seconds
                self._silence, self._look_seconds = self._new_limit(self._connection, began), 0.0
        if isinstance(arrived, FlintError):
            self._failed(arrived)
        else:
            self._guarded(self._take, arrived, now)
        return single

    def wait(self, waited: Waited, deadline: float = inf, role: Role | None = None) -> None:
        """Drive, or wait for the thread that does, until ``waited`` is done or ``deadline`` (monotonic) is over.

        ``role``: the result of ``enter``, if it was already called.
        """
        while True:
            if role is None:
                with self.mutex:
                    role = self.enter(waited)
            if role is True:
                self._drive(waited, deadline)
            elif role is False:
                self._drive_on(waited, deadline)
            else:
                self._follow(role, deadline)
            if waited.done:
                return
            if deadline != inf and time.monotonic() >= deadline:
                self._expire()
                return
            # Woken, but not done: the driver has handed over, so ask for a role again.
            role = None

    @property
    def is_calling_back(self) -> bool:
        """True if the calling thread is in a future's callback: other futures may be this thread's to complete."""
        return threading.get_ident() in self._settling

    def nudge(self) -> None:
        """Send what can be sent now, and make sure a thread continues, after adding messages without a waiter."""
        with self.mutex:
            if self._background is None:
                self._background = threading.Thread(target=self._run_background, name="flintmq-producer", daemon=True)
                self._background.start()
            if self._driver is not None:
                return
            if self._connection is None or self._delivery.in_flight:
                self._work.notify()
                return
            self._driver = threading.get_ident()
        try:
            self._guarded(self._send_some, time.monotonic())
        finally:
            self._hand_over()
            if self._delivery.settled:
                self._announce()

    def stop(self) -> None:
        """Close the connection and end the thread; unsettled messages fail with ``ClientClosed``."""
        with self.mutex:
            self._stopping = True
            self._delivery.fail_all(ClientClosed("the producer was closed before the broker acknowledged"))
            connection, background = self._connection, self._background
            self._work.notify_all()
        self._interrupted.set()
        if connection is not None:
            connection.interrupt()
        self._announce()
        if background is not None and background is not threading.current_thread():
            background.join()
        with self.mutex:
            if self._driver is None:
                self._close_connection()

    def abandon(self) -> None:
        """Hand over if the calling thread was interrupted after it became the driver and before it began to drive."""
        if self._driver == threading.get_ident() and not self._driving:
            self._hand_over()

    def forget(self) -> None:
        """Close the descriptors in a forked child, and nothing else: threads of the parent may have held the locks."""
        if self._connection is not None:
            self._connection.close()

    # ---- driving

    def _drive(self, waited: Waited, deadline: float) -> None:
        try:
            self._driving = True
            self._drive_on(waited, deadline)
        finally:
            self._driving = False
            self._hand_over()

    def _drive_on(self, waited: Waited, deadline: float) -> None:
        while not waited.done and not self._stopping:
            now = time.monotonic()
            if now >= deadline:
                return
            self._guarded(self._connect if self._connection is None else self._step, now, deadline)
            if self._followers or self._delivery.settled:
                self._announce()

    def _guarded(self, step: Callable[..., object], *arguments: object) -> None:
        """Do one step. If the connection fails in it, close it; what was in flight is resent on the next one."""
        try:
            step(*arguments)
        except FlintError as error:
            self._failed(error)
        except BaseException:
            # The interrupt may have come in the middle of a frame, so the connection is out of step: give it up.
            self._failed(_interrupted())
            raise

    def _step(self, now: float, deadline: float) -> None:
        """Send what may be sent, wait for an event, and take the responses that have arrived."""
        connection, delivery = self._connection, self._delivery
        assert connection is not None
        more = delivery.offered and self._send_some(now)
        seconds = 0.0 if more else min(delivery.seconds_to_wait(now), deadline - now)
        answers: Sequence[Answer] = ()
        if delivery.in_flight or connection.congested:
            # Most responses come within the first of these waits. Only after it does the exact limit matter.
            waiting = self._silence is not None
            look_seconds = self._look_seconds if waiting else share_seconds(seconds, connection.limits.role)
            answers = connection.receive(min(seconds, look_seconds))
            if answers:
                self._silence = None
            elif seconds > 0:
                self._silence = self._silence or self._new_limit(connection, now)
                self._look_seconds = self._silence.check(connection, time.monotonic())
        elif not delivery.idle:  # the broker asked for a pause
            self._interrupted.wait(None if seconds == inf else seconds)
        self._take(answers, time.monotonic())

    def _new_limit(self, connection: Connection, since: float) -> SilenceLimit:
        return SilenceLimit(first_deadline(self._delivery.in_flight.values()) - since, since, connection.limits.role)

    def _take(self, answers: Sequence[Answer], now: float) -> None:
        delivery = self._delivery
        with self.mutex:
            for answer in answers:
                delivery.answered(answer, now)
            if delivery.expire_due(now):
                delivery.expire(now)

    def _send_some(self, now: float) -> bool:
        """Send the frames that may be sent; returns whether there may be more right away."""
        connection, delivery = self._connection, self._delivery
        assert connection is not None
        pushed = 0
        while delivery.offered and not connection.congested:
            with self.mutex:
                request = delivery.next_request(now, connection.new_request_id())
            if request is None:
                return False
            head, body = request
            connection.push(head, body)
            pushed += len(body)
            if pushed >= _PUSHED_BYTES_MAX:
                return True
            now = time.monotonic()
        return False

    def _connect(self, now: float, deadline: float) -> None:
        """Make the connection, or wait until the next attempt is allowed."""
        pause = self._delivery.hold_seconds(now)
        seconds = min(self._delivery.seconds_to_wait(now), deadline - now)
        if pause > 0:
            self._interrupted.wait(min(pause, seconds))
            self._expire()
            return
        connection = self._dialer.dial(min(CONNECT_SECONDS_MAX, max(seconds, 0.001)))
        with self.mutex:
            # ``stop`` may have run meanwhile, and it could not close a connection that it did not know.
            if not self._stopping:
                self._connection = connection
                self._silence = None
                self._connected(connection)
                self._delivery.connected(connection.limits)
                return
        connection.close()

    def _failed(self, error: FlintError) -> None:
        if self._connection is not None and not self._stopping:
            self._dialer.log.lost(error)
        with self.mutex:
            self._close_connection(error)
            if is_retriable(error) or isinstance(error, RemoteProtocolError):
                now = time.monotonic()
                self._delivery.connection_lost(error, now)
                self._delivery.expire(now)
            else:
                self._delivery.fail_all(error)

    def _expire(self) -> None:
        with self.mutex:
            now = time.monotonic()
            if self._delivery.expire_due(now):
                self._delivery.expire(now)
        if self._followers or self._delivery.settled:
            self._announce()

    def _close_connection(self, error: FlintError | None = None) -> None:
        if self._connection is not None:
            if error is not None:
                self._dialer.mark_failed(self._connection.address, error)
            self._connection.close()
            self._connection = None

    # ---- following and handing over

    def _follow(self, follower: _Follower, deadline: float) -> None:
        seconds = -1 if deadline == inf else max(0.0, deadline - time.monotonic())
        woken = False
        try:
            woken = follower.woken.acquire(timeout=seconds)
        finally:
            if not woken:
                self._leave(follower)

    def _leave(self, follower: _Follower) -> None:
        """Stop waiting. If this follower was chosen as the next driver, choose another one."""
        with self.mutex:
            if follower in self._followers:
                del self._followers[follower]
            elif self._driver is None:
                self._wake(next_driver=True)
        self._expire()

    def _hand_over(self) -> None:
        with self.mutex:
            self._driver = None
            if self._stopping:
                self._close_connection()
            if self._followers or self._background is not None:
                self._wake(next_driver=True)

    def _announce(self) -> None:
        """Wake the threads whose wait is over, and complete futures."""
        with self.mutex:
            self._wake(next_driver=False)
            settled, self._delivery.settled = self._delivery.settled, []
        if settled:
            me = threading.get_ident()
            self._settling.append(me)
            ending: BaseException | None = None
            for single in settled:
                try:
                    self._settle(single)
                except BaseException as error:  # noqa: BLE001 - of a callback: the others are completed first
                    ending = error
            self._settling.remove(me)
            if ending is not None:
                raise ending

    def _wake(self, *, next_driver: bool) -> None:
        """Wake the followers whose wait is over and, with ``next_driver``, one more, which takes over."""
        for follower in list(self._followers):
            done = follower.waited.done
            if done or next_driver:
                next_driver = next_driver and done
                del self._followers[follower]
                follower.woken.release()
        if next_driver and self._background is not None and not self._delivery.idle:
            self._work.notify()

    def _run_background(self) -> None:
        idle = Until(lambda: self._delivery.idle)
        try:
            while True:
                with self.mutex:
                    while not self._stopping and (self._driver is not None or self._delivery.idle):
                        self._work.wait()
                    if self._stopping:
                        return
                    self._driver = threading.get_ident()
                self._drive(idle, inf)
        except BaseException as error:
            with self.mutex:
                self._background = None
                self._delivery.fail_all(FlintError(f"the producer's thread failed: {error!r}"))
            self._announce()
            raise


def _interrupted() -> ConnectionFailed:
    return ConnectionFailed("the thread that used the connection was interrupted")


# ---- The short way of one ``send`` while nothing else of the producer is under way.
#
# Most calls of ``send`` find an idle connection. Then the calling thread writes the frame and reads its
# response itself, without a lane, a frame object or a follower. Whatever else happens (no response in time,
# an error, a lost connection) is the ordinary delivery's to handle: it adopts the message as one that is in
# flight.

BODY_BYTES_MAX = 4096
"""Longest body that is sent this way: a longer one may not fit into the socket's buffer at once."""


class SingleSender:
    """Sends single messages of one producer; used by the thread that the driver's ``claim`` chose."""

    def __init__(self, core: ProducerCore, driver: DeliveryDriver) -> None:
        self._core = core
        self._driver = driver
        self._frames = core.delivery.frames
        self._body_bytes_max = min(BODY_BYTES_MAX, core.compress_over)
        self._heads: dict[tuple[str, int], ProduceHead] = {}
        self._packer = new_packer()

    def send(self, message: Message, to: int) -> Receipt | Single | None:
        """Send one message with the default options to a queue, or to any, and return its receipt.

        Returns the message if the driver has adopted it, which must then wait for it with the role True; None if
        nothing was done.
        """
        row = message.row()
        if (
            message.common
            or (message.sharding_key is not None and to == ANY_QUEUE)
            or len(row[0]) > self._body_bytes_max
        ):
            return None
        connection = self._driver.claim()
        if connection is None:
            return None
        try:
            topic, frames = message.topic, self._frames
            head = self._heads.get((topic, to)) or self._new_head(topic, to)
            body: bytes = self._packer.pack(row)
            first, born_ms, request_id = frames.take_counters(1), now_millis(), connection.new_request_id()
            began = time.monotonic()
            frame = head.encode(request_id, 1, first, born_ms, len(body)) + body
            arrived: AnswerOfOne | list[Answer] | FlintError
            try:
                wait_seconds = share_seconds(self._core.delivery_seconds, connection.limits.role)
                arrived = connection.exchange_single(frame, wait_seconds)
            except FlintError as error:
                arrived = error
            if isinstance(arrived, tuple) and arrived[0] == request_id:
                _, queue, queue_offset, stored_ms, physical_offset = arrived
                self._driver.release()
                return Receipt(
                    unique_key(frames.unique_prefix, first), topic, queue, queue_offset, physical_offset, stored_ms
                )
        except BaseException:
            self._driver.interrupted()
            raise
        deadline = began + self._core.delivery_seconds
        sent = SentSingle(topic, to, row, head, body, first, born_ms, self._core.flush, deadline)
        if isinstance(arrived, tuple):
            arrived = RemoteProtocolError(f"a response to request {arrived[0]}, which was not sent")
        return self._driver.adopt(sent, request_id, arrived)

    def _new_head(self, topic: str, to: int) -> ProduceHead:
        if len(self._heads) >= HEADS_KEPT:
            self._heads.clear()
        head = ProduceHead(topic, to, LAYOUT_ROWS, self._core.flush, self._frames.common, self._frames.unique_prefix)
        self._heads[topic, to] = head
        return head
