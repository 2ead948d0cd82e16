"""The push consumer that calls its listener in threads."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from ...aio.rpc import Dialer
from ...core.consume.batch import Batch, StoredMessage
from ...core.rpc.timeouts import check_timeout
from ...errors import ListenerTimeout
from .group_client import Engine
from .listeners import Workers, check_plain_listener, check_returned
from .members import ClientMember
from .shell import WAIT_SECONDS_MAX, ConsumerShell, StopSignals
from .waits import completed

MessageListener = Callable[[StoredMessage], None]
BatchListener = Callable[[Batch], None]

log = logging.getLogger(__name__)


class PushConsumer(ConsumerShell[MessageListener, BatchListener], ClientMember):
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
        engine = workers.engine = Engine(self._options, dialer, workers.begin, workers.recall, workers.replace)
        for future in (engine.joined, engine.ended):
            future.add_done_callback(lambda _: self._wakeups.put(None))
        return engine

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
            joined, ended = self._engine.joined, self._engine.ended
            try:
                deadline = time.monotonic() + self._timeout
                while not joined.done() and signals.received is None and (left := deadline - time.monotonic()) > 0:
                    self._sleep(left)
                if signals.received is None:
                    self._check_joined()
                while not ended.done() and signals.received is None:
                    self._sleep(math.inf)
                if signals.received is not None:
                    log.info("group %s: %s: shutting down", self.group, signals.received.name)
                self.close(seconds)
            except BaseException:
                self._engine.abandon()
                raise
        self._engine.check()

    def _sleep(self, seconds: float) -> None:
        """Sleep until a signal, the join, the end, or at most this many seconds."""
        with contextlib.suppress(queue.Empty):
            self._wakeups.get(timeout=min(seconds, WAIT_SECONDS_MAX))

    def close(self, timeout: float = 30.0) -> None:
        """Begin no more messages, let the listeners finish, commit, and leave the group. Idempotent.

        If a listener calls it, it returns at once, and the consumer ends when all listeners have returned. Raises
        ``ListenerTimeout`` if a listener does not return within ``timeout`` seconds; the consumer leaves
        nevertheless, and the broker redelivers the unfinished messages to other members. Raises ``ClientFailed`` if
        it failed before."""
        if self._life.closed or self._end is None:
            self._life.closing()
            return
        self._life.check_loop()
        self._life.closing()
        deadline = time.monotonic() + check_timeout("timeout", timeout)
        self._engine.leave()
        if self._workers.called_by_one():
            return
        ended = completed(self._end, max(0.0, deadline - time.monotonic()))
        late: ListenerTimeout | None = None
        if not ended:
            late = self._not_returned(timeout)
            self._engine.abandon()
            completed(self._end, self._timeout)
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
