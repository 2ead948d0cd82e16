"""The push consumer that calls its listener in threads."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from ....protocol.errors import FlintError
from ...aio.rpc import Dialer
from ...core import hooks
from ...core.client_guard import Guard
from ...core.consume.batch import Batch, StoredMessage
from ...core.rpc.timeouts import check_timeout, wait_seconds
from ...errors import ClientClosed, InvalidArgument, ListenerTimeout
from .delivery import Delivery
from .group_client import Engine, MemberEngine
from .listeners import Workers, check_plain_listener, check_returned
from .shell import ConsumerShell, MemberShell, ReceiverShell, StopSignals

# ---- A member of a group that threads of the application use.


class ThreadMember(MemberShell):
    """The start, the waits and the commits of a member; subclasses hand its messages to the application."""

    def _new_engine(self, dialer: Dialer) -> MemberEngine:
        self._guard = Guard(type(self).__name__)
        return self._engine_for(dialer)

    @abstractmethod
    def _engine_for(self, dialer: Dialer) -> MemberEngine:
        """Create the engine, whose ``ended`` is ``_engine_ended``."""

    @abstractmethod
    def _end_handling(self) -> None:
        """Expect no more messages. Called by any thread, and more than once."""

    @abstractmethod
    def close(self, timeout: float = 30.0) -> None:
        """Let the application finish, commit, and leave the group."""

    def start(self) -> Self:
        """Join the group; returns when the broker has accepted the member. Raises its refusal, or that it is
        unreachable."""
        self._launch()
        try:
            joined = self._engine.joined.wait(self._timeout)
        except BaseException:  # an interrupt: the consumer may have joined, and the caller has nothing to close
            with contextlib.suppress(FlintError):
                self.close()
            raise
        self._check_joined(joined)
        return self

    def _launch(self) -> None:
        self._guard.check()
        if self._started:
            raise InvalidArgument("this consumer was already started; create a new one to start again")
        self._started = True
        self._engine.start()

    def _check_joined(self, joined: bool) -> None:
        """Raise the error that kept the consumer from joining its group, if any."""
        if not joined:
            reason = self._not_joined()
            self._guard.closed = True
            self._engine.abandon()  # it may hang in a connection attempt; report why it could not join
            self._engine.ended.wait(self._timeout)
            self._end_handling()
            raise reason
        if self._engine.failure is not None:
            failure = self._engine.failure
            self._end_handling()
            self._guard.closed = True
            raise failure

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds until the consumer is closed; returns whether it is.

        Raises ``ClientFailed``, with the reason as its cause, if the consumer cannot continue.
        """
        ended = self._engine.ended.wait(None if timeout is None else wait_seconds(timeout))
        self._engine.check()
        return ended

    def commit(self, timeout: float | None = None) -> None:
        """Commit the progress so far and wait for the broker's confirmation. Raises the error if that fails."""
        self._check()
        told = threading.Event()
        failures: list[FlintError] = []

        def tell(error: FlintError | None) -> None:
            if error is not None:
                failures.append(error)
            told.set()

        self._engine.commit(tell)
        if not told.wait(self._timeout if timeout is None else check_timeout("timeout", timeout)):
            raise self._not_confirmed()
        if failures:
            raise failures[0]

    def _check(self) -> None:
        self._guard.check()
        self._engine.check()

    def _engine_ended(self, error: FlintError | None) -> None:
        """End all waits; called on the I/O thread."""
        self._end_handling()


MessageListener = Callable[[StoredMessage], None]
BatchListener = Callable[[Batch], None]

log = logging.getLogger(__name__)

_WAIT_SECONDS_MAX = 1.0
"""Maximum wait: Windows handles a signal only between two waits."""
_LOOK_SECONDS = 0.05
"""Interval at which a consumer that has not joined yet checks for a signal."""


class PushConsumer(ConsumerShell[MessageListener, BatchListener], ThreadMember):
    """A member of a consumer group; it calls its listener with each message, or with each batch, as they arrive.

    Each message goes to one member of the group. If the listener raises an exception, the message is redelivered later
    to any member: first after 10 s, then after increasing delays; after 16 redeliveries it becomes a dead letter. A
    message may be delivered more than once: after a failure, or if a member is killed before it commits.

    ``group``, ``topics`` and ``listener`` are required. ``topics``: one, several, or a mapping from topic to tags or
    ``Subscription``. ``listener``: a plain function, called with a ``StoredMessage``; with ``batch=n`` with a ``Batch``
    of up to n messages of one queue. It runs in ``workers`` (16) threads, several messages at a time. With
    ``orderly=True`` the messages of a queue are handled one after the other, so those with the same sharding key are
    handled in order; a failed one is retried in its place, after ``suspend`` (1.0) seconds.

    ``start``: where to begin in topics that the group has not read before: ``"last"`` (messages from now on),
    ``"first"``, or an aware datetime (store time). ``mode``: ``"broadcasting"`` gives every message to every member; in
    this mode there are no redeliveries, and only a member with a name keeps its progress. ``member``: a unique name in
    the group; None: the consumer generates one. ``prefetch_messages`` (16,384), ``prefetch_bytes`` (64 MiB): maximum to
    pull ahead of the listener.

    ``auto_commit``: commit progress every ``commit_interval`` (1.0) seconds; otherwise call ``commit``.
    ``session_timeout`` (10.0): seconds of silence after which the broker gives this member's queues to others.
    ``listener_timeout`` (900.0): seconds after which a listener counts as stuck and its messages are redelivered.
    ``retry_times_max``: number of redeliveries, None: the group's setting (16); ``delay_level``: delay of every
    redelivery (1 to 18: 1 s to 2 h), 0: 10 s at first, then increasing. ``retry_reason``: whether the broker stores the
    listener's exception with a message (it may contain personal data).

    ``run()`` starts the consumer and closes it gracefully when the process gets SIGTERM or SIGINT. Alternatively,
    ``start()`` joins the group, and ``wait()`` returns when the consumer is closed and raises if it cannot continue. As
    a context manager it starts and closes itself.
    """

    WORKERS = 16

    _check_listener = staticmethod(check_plain_listener)

    def _engine_for(self, dialer: Dialer) -> Engine:
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Wakes ``run``; a SimpleQueue, because a signal handler may put into it."""
        workers = self._workers = Workers(self._options, self._side, self._call)
        workers.engine = Engine(
            self._options, dialer, workers.begin, workers.recall, workers.replace, self._engine_ended
        )
        return workers.engine

    def _end_handling(self) -> None:
        self._wakeups.put(None)

    # ---- its lifetime

    def run(self, timeout: float = 30.0) -> None:
        """Start, and return after the process got SIGTERM or SIGINT (Ctrl-C) and the consumer has shut down
        gracefully: the listeners have finished, their progress is committed, and the member has left the group. Also
        returns after ``close()``.

        ``timeout``: as in ``close()``. Raises the errors of ``start()``, ``wait()`` and ``close()``. A second signal
        interrupts at once. Only the main thread of a program receives signals; in another thread use ``close()``.
        """
        seconds = check_timeout("timeout", timeout)
        with StopSignals(lambda: self._wakeups.put(None)) as signals:
            self._launch()
            try:
                deadline = time.monotonic() + self._timeout
                while not (joined := self._engine.joined.wait(_LOOK_SECONDS)) and signals.received is None:
                    if time.monotonic() >= deadline:
                        break
                if signals.received is None:
                    self._check_joined(joined)
                while not self._engine.ended.is_set() and signals.received is None:
                    with contextlib.suppress(queue.Empty):
                        self._wakeups.get(timeout=_WAIT_SECONDS_MAX)
                if signals.received is not None:
                    log.info("group %s: %s: shutting down", self.group, signals.received.name)
                self.close(seconds)
            except BaseException:
                self._engine.abandon()
                raise
        self._engine.check()

    def close(self, timeout: float = 30.0) -> None:
        """Begin no more messages, let the listeners finish, commit, and leave the group. Idempotent.

        If a listener calls it, it returns at once, and the consumer ends when all listeners have returned. Raises
        ``ListenerTimeout`` if a listener does not return within ``timeout`` seconds; the consumer leaves
        nevertheless, and the broker redelivers the unfinished messages to other members. Raises ``ClientFailed`` if
        it failed before."""
        if self._guard.closed or not self._started:
            self._guard.closed = True
            return
        self._guard.check()
        self._guard.closed = True
        deadline = time.monotonic() + check_timeout("timeout", timeout)
        self._engine.leave()
        if self._workers.called_by_one():
            return
        ended = self._engine.ended.wait(max(0.0, deadline - time.monotonic()))
        late: ListenerTimeout | None = None
        if not ended:
            late = self._not_returned(timeout)
            self._engine.abandon()
            self._engine.ended.wait(self._timeout)
        self._engine.check()
        if late is not None:
            raise late

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, handed: Any) -> None:
        check_returned(self._listener(handed))


# ---- The group consumer for threads: the application receives messages, and settles each of them.


class GroupConsumer(ReceiverShell, ThreadMember):
    """A member of a consumer group whose application receives messages, and settles each of them when and where it
    likes.

    ``receive`` returns ``Delivery`` objects; settle each by ``ack()``, ``retry()`` or ``dead()``, in any order and from
    any thread. As long as a delivery is open, no other member gets its message; if this member is killed, another one
    does. A message may be delivered more than once: after ``retry``, and after a member was killed.

    ``group`` and ``topics`` are required. ``topics``: one, several, or a mapping from topic to tags or
    ``Subscription``. ``max_open`` (1000): maximum number of open deliveries; ``receive`` waits while there are as many.
    ``max_uncommitted`` (10,000): maximum number of messages of a queue from its oldest open one on. The queue continues
    behind a message that stays open until it has so many, and then waits for it. If the member is killed, messages that
    were settled behind an open one are delivered again, so this is also the maximum of these for each queue.

    ``prefetch_messages`` (1000), ``prefetch_bytes`` (64 MiB): maximum to pull ahead of ``receive``.
    ``listener_timeout`` (infinite): seconds after which an open delivery is taken back and redelivered later; to settle
    it then raises ``DeliveryLost``. ``start``, ``member``, ``auto_commit``, ``commit_interval``, ``session_timeout``,
    ``retry_times_max``, ``delay_level`` and ``retry_reason`` are those of ``PushConsumer``. There is no orderly mode.

    With ``mode="work"`` any number of consumers share the queues, and the order is given up: each message is leased to
    one of them for ``lease`` (30) seconds, and delivered again if it is not settled by then. ``auto_renew`` (True):
    open deliveries are renewed, for at most ``listener_timeout`` (3600 s). ``prefetch_messages`` is then 0; the options
    about members and commits do not apply.

    ``start()`` joins the group; as a context manager the consumer starts and closes itself. Iterating receives
    deliveries, one at a time, until the consumer is closed. Threads may share it.
    """

    def _engine_for(self, dialer: Dialer) -> MemberEngine:
        return self._engine_of(dialer, self._guard, lambda: None, self._engine_ended)

    def _end_handling(self) -> None:
        self._deliveries.end(abandon=True)

    # ---- deliveries

    def receive(self, max_count: int = 1, timeout: float | None = None) -> list[Delivery]:
        """Wait for a message, and return it with others that are there already: at most ``max_count`` deliveries.

        Returns an empty list after ``timeout`` seconds; 0: does not wait. Raises ``ClientClosed`` if the consumer is
        closed, also while this waits, and ``ClientFailed`` if it cannot continue.
        """
        deadline = time.monotonic() + self._check_receive(max_count, timeout)
        with hooks.active.receiving(self._side) as receiving:
            return receiving.deliveries(self._deliveries.take(max_count) or self._receive_later(max_count, deadline))

    def _receive_later(self, max_count: int, deadline: float) -> list[Delivery]:
        deliveries = self._deliveries
        deliveries.expect(max_count)
        try:
            while True:
                with deliveries.condition:
                    while not deliveries.available and (left := deadline - time.monotonic()) > 0:
                        deliveries.condition.wait(min(left, _WAIT_SECONDS_MAX))
                if deliveries.ended:
                    self._check()
                    raise ClientClosed("this GroupConsumer was closed; create a new one")
                if (found := deliveries.take(max_count)) or time.monotonic() >= deadline:
                    return found
        finally:
            deliveries.expect(-max_count)

    def __iter__(self) -> Iterator[Delivery]:
        while not self._guard.closed:
            try:
                found = self.receive()
            except ClientClosed:
                return
            yield from found

    # ---- its end

    def close(self, timeout: float = 30.0) -> None:
        """Hand out no more messages, let the open deliveries be settled, commit, and leave the group. Idempotent.

        Other threads may settle meanwhile. Raises ``ListenerTimeout`` if some deliveries are still open after
        ``timeout`` seconds (0: does not wait for them); the consumer leaves nevertheless, and their messages are
        redelivered to other members. Raises ``ClientFailed`` if the consumer failed before. In a forked child it does
        nothing.
        """
        seconds = wait_seconds(timeout)
        if self._guard.forked or self._guard.closed or not self._started:
            self._guard.closed = True
            return
        self._guard.closed = True
        deliveries = self._deliveries
        self._engine.leave()
        deliveries.end(abandon=False)
        deadline = time.monotonic() + seconds
        try:
            with deliveries.condition:
                while deliveries.open_count and (left := deadline - time.monotonic()) > 0:
                    deliveries.condition.wait(min(left, _WAIT_SECONDS_MAX))
        finally:
            open_count = deliveries.open_count
            if open_count:
                deliveries.end(abandon=True)
                self._engine.abandon()
        confirmed = self._engine.ended.wait(self._timeout)
        self._engine.abandon()
        self._engine.check()
        if open_count:
            raise self._not_settled(open_count, seconds)
        if not confirmed:
            raise self._not_confirmed()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if raised is None:
            self.close()
        else:  # the block's exception counts, and does not wait for deliveries that it may have left open
            with contextlib.suppress(ListenerTimeout):
                self.close(0)
