"""The push consumer that calls its listener in threads."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, Unpack, overload

from ....protocol.errors import FlintError
from ...connection_log import ConnectionLog
from ...core.client_guard import Guard
from ...core.consume.batch import Batch
from ...core.consume.stored import StoredMessage
from ...core.rpc.access import AccessOptions, access_for
from ...core.rpc.address import parse_addresses
from ...core.rpc.timeouts import TIMEOUT_SECONDS, check_timeout
from ...errors import InvalidArgument, ListenerTimeout
from ...sync.pool import Dialer
from .group_client import Engine
from .health import Health
from .listeners import check_plain_listener, check_returned
from .options import CLUSTERING, LAST, Addresses, Mode, PushOptions, Start, Subscriptions, check_options
from .signals import StopSignals
from .workers import Workers

MessageListener = Callable[[StoredMessage], None]
BatchListener = Callable[[Batch], None]

log = logging.getLogger(__name__)

_WAIT_SECONDS_MAX = 1.0
"""Maximum wait: Windows handles a signal only between two waits."""
_LOOK_SECONDS = 0.05
"""Interval at which a consumer that has not joined yet checks for a signal."""


class PushConsumer:
    """A member of a consumer group; it calls its listener with each message, or with each batch, as they arrive.

    Each message goes to one member of the group. If the listener raises an exception, the message is redelivered later
    to any member: first after 10 s, then after increasing delays; after 16 redeliveries it becomes a dead letter. A
    message may be delivered more than once: after a failure, or if a member is killed before it commits.

    ``group``, ``topics`` and ``listener`` are required. ``topics``: one, several, or a mapping from topic to tags or
    ``Subscription``. ``listener``: a plain function, called with a ``StoredMessage``; with ``batch=n`` with a ``Batch``
    of up to n messages of one queue. It runs in ``workers`` threads, several messages at a time. With ``orderly=True``
    the messages of a queue are handled one after the other, so those with the same sharding key are handled in order; a
    failed one is retried in its place, after ``suspend`` seconds.

    ``start``: where to begin in topics that the group has not read before: ``"last"`` (messages from now on),
    ``"first"``, or an aware datetime (store time). ``mode``: ``"broadcasting"`` gives every message to every member; in
    this mode there are no redeliveries, and only a member with a name keeps its progress. ``member``: a unique name in
    the group; None: the consumer generates one. ``prefetch_messages``, ``prefetch_bytes``: maximum to pull ahead of the
    listener.

    ``auto_commit``: commit progress every ``commit_interval`` seconds; otherwise call ``commit``.
    ``session_timeout``: seconds of silence after which the broker gives this member's queues to others.
    ``listener_timeout``: seconds after which a listener counts as stuck and its messages are redelivered.
    ``retry_times_max``: number of redeliveries, None: the group's setting (16); ``delay_level``: delay of every
    redelivery (1 to 18: 1 s to 2 h), 0: 10 s at first, then increasing. ``retry_reason``: whether the broker stores the
    listener's exception with a message (it may contain personal data).

    ``run()`` starts the consumer and closes it gracefully when the process gets SIGTERM or SIGINT. Alternatively,
    ``start()`` joins the group, and ``wait()`` returns when the consumer is closed and raises if it cannot continue. As
    a context manager it starts and closes itself.
    """

    @overload
    def __init__(
        self,
        addresses: Addresses,
        group: str,
        topics: Subscriptions,
        listener: MessageListener,
        *,
        batch: None = None,
        **options: Unpack[PushOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        addresses: Addresses = ...,
        *,
        group: str,
        topics: Subscriptions,
        listener: MessageListener,
        batch: None = None,
        **options: Unpack[PushOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        addresses: Addresses,
        group: str,
        topics: Subscriptions,
        listener: BatchListener,
        *,
        batch: int,
        **options: Unpack[PushOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        addresses: Addresses = ...,
        *,
        group: str,
        topics: Subscriptions,
        listener: BatchListener,
        batch: int,
        **options: Unpack[PushOptions],
    ) -> None: ...
    def __init__(
        self,
        addresses: Addresses | None = None,
        group: str = "",
        topics: Subscriptions = (),
        listener: Callable[[Any], object] | None = None,
        *,
        batch: int | None = None,
        orderly: bool = False,
        workers: int = 16,
        start: Start = LAST,
        mode: Mode = CLUSTERING,
        member: str | None = None,
        prefetch_messages: int = 16_384,
        prefetch_bytes: int = 64 << 20,
        auto_commit: bool = True,
        commit_interval: float = 1.0,
        session_timeout: float = 10.0,
        listener_timeout: float = 900.0,
        retry_times_max: int | None = None,
        delay_level: int = 0,
        suspend: float = 1.0,
        retry_reason: bool = True,
        timeout: float = TIMEOUT_SECONDS,
        **access: Unpack[AccessOptions],
    ) -> None:
        entry = access_for(self, access)
        self._listener = check_plain_listener(listener)
        self._options = options = check_options(
            group=group,
            topics=topics,
            member=member,
            mode=mode,
            start=start,
            orderly=orderly,
            batch=batch,
            workers=workers,
            prefetch_messages=prefetch_messages,
            prefetch_bytes=prefetch_bytes,
            auto_commit=auto_commit,
            commit_interval=commit_interval,
            session_timeout=session_timeout,
            listener_timeout=listener_timeout,
            retry_times_max=retry_times_max,
            delay_level=delay_level,
            suspend=suspend,
            retry_reason=retry_reason,
        )
        self._timeout = check_timeout("timeout", timeout)
        self._guard = Guard(type(self).__name__)
        self._workers = Workers(options, self._call)
        self._ended = threading.Event()
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Wakes ``run``; a SimpleQueue, because a signal handler may put into it."""
        self._started = False
        connection_log = ConnectionLog(f"group {self.group}", logging.WARNING)
        dialer = Dialer(parse_addresses(addresses), entry, connection_log)
        self._engine = Engine(
            options, dialer, self._workers.begin, self._workers.recall, self._workers.replace, self._engine_ended
        )
        self._workers.engine = self._engine

    @property
    def group(self) -> str:
        """The group's name."""
        return self._options.group

    @property
    def member(self) -> str:
        """This member's name."""
        return self._options.member

    # ---- its lifetime

    def start(self) -> Self:
        """Join the group; returns when the broker has accepted the member. Raises its refusal, or that it is
        unreachable."""
        self._launch()
        self._check_joined(self._engine.joined.wait(self._timeout))
        return self

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
                while not self._ended.is_set() and signals.received is None:
                    with contextlib.suppress(queue.Empty):
                        self._wakeups.get(timeout=_WAIT_SECONDS_MAX)
                if signals.received is not None:
                    log.info("group %s: %s: shutting down", self.group, signals.received.name)
                self.close(seconds)
            except BaseException:
                self._engine.abandon()
                raise
        self._engine.check()

    def _launch(self) -> None:
        self._guard.check()
        if self._started:
            raise InvalidArgument("this consumer was already started; create a new one to start again")
        self._started = True
        self._workers.start()
        self._engine.start()

    def _check_joined(self, joined: bool) -> None:
        """Raise the error that kept the consumer from joining its group, if any."""
        if not joined:
            trouble = self._engine.health().trouble
            self._guard.closed = True
            self._engine.abandon()  # it may hang in a connection attempt; report why it could not join
            self._ended.wait(self._timeout)
            self._workers.stop()
            raise trouble or ListenerTimeout(f"could not join group {self.group} within {self._timeout:g} s")
        if self._engine.failure is not None:
            failure = self._engine.failure
            self._workers.stop()
            self._guard.closed = True
            raise failure

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds until the consumer is closed; returns whether it is.

        Raises ``ClientFailed``, with the reason as its cause, if the consumer cannot continue.
        """
        ended = self._ended.wait(timeout)
        self._engine.check()
        return ended

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
        ended = self._ended.wait(max(0.0, deadline - time.monotonic()))
        late: ListenerTimeout | None = None
        if not ended:
            health = self._engine.health()
            late = ListenerTimeout(
                f"{health.running} listeners of group {self.group} did not return within {timeout:g} s; their messages "
                "are redelivered to other members"
            )
            self._engine.abandon()
            self._ended.wait(self._timeout)
        self._workers.stop()
        self._engine.check()
        if late is not None:
            raise late

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- state and control

    def health(self) -> Health:
        """Return the consumer's current state and counters."""
        return self._engine.health()

    def pause(self, *topics: str) -> None:
        """Stop pulling these topics, or all if none is given; messages already pulled are still handled."""
        self._check()
        self._engine.set_paused(self._engine.paused | (frozenset(topics) or frozenset(self._options.subscriptions)))

    def resume(self, *topics: str) -> None:
        """Continue to pull these topics, or all if none is given."""
        self._check()
        self._engine.set_paused(self._engine.paused - frozenset(topics) if topics else frozenset())

    def commit(self, timeout: float | None = None) -> None:
        """Commit the listeners' progress and wait for the broker's confirmation. Raises the error if that fails."""
        self._check()
        told = threading.Event()
        failures: list[FlintError] = []

        def tell(error: FlintError | None) -> None:
            if error is not None:
                failures.append(error)
            told.set()

        self._engine.commit(tell)
        if not told.wait(self._timeout if timeout is None else check_timeout("timeout", timeout)):
            raise ListenerTimeout(f"the broker did not confirm the progress of group {self.group} in time")
        if failures:
            raise failures[0]

    def _check(self) -> None:
        self._guard.check()
        self._engine.check()

    def _call(self, handed: Any) -> None:
        check_returned(self._listener(handed))

    def _engine_ended(self, error: FlintError | None) -> None:
        """End the workers and all waits; called on the engine's thread."""
        self._workers.stop()
        self._ended.set()
        self._wakeups.put(None)
