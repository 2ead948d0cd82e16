"""The push consumer whose listeners run in threads."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, Unpack, overload

from ...protocol.errors import FlintError
from ..connection_log import ConnectionLog
from ..core.access import AccessOptions, access_for
from ..core.address import parse_addresses
from ..core.batch import Batch
from ..core.guard import Guard
from ..core.stored import StoredMessage
from ..core.timeouts import TIMEOUT_SECONDS, check_timeout
from ..errors import InvalidArgument, ListenerTimeout
from ..sync.pool import Dialer
from .engine import Engine
from .health import Health
from .listeners import check_plain_listener, check_returned
from .options import CLUSTERING, LAST, Addresses, Mode, PushOptions, Start, Subscriptions, check_options
from .signals import StopSignals
from .workers import Workers

MessageListener = Callable[[StoredMessage], None]
BatchListener = Callable[[Batch], None]

log = logging.getLogger(__name__)

_WAIT_SECONDS_MAX = 1.0
"""Windows handles a signal only between two waits."""
_LOOK_SECONDS = 0.05
"""How often a consumer that has not joined yet looks for a signal."""


class PushConsumer:
    """A member of a consumer group; its listener is called with each message, or with each batch, as they come.

    Every message goes to one member of the group; what a listener raises has it tried again later, first after 10 s and
    then after longer and longer, by whichever member is there, and after 16 times it becomes a dead letter. A message
    may come more than once: after a failure, or when a member was killed before it had committed.

    ``group``, ``topics`` and ``listener`` have to be given. ``topics``: one, several, or a mapping from topic to tags
    or ``Subscription``. ``listener``: a plain function, called with a ``StoredMessage``; with ``batch=n`` with a
    ``Batch`` of up to n messages of one queue. In ``workers`` threads, several messages at a time; with
    ``orderly=True`` those of a queue one after the other, so that messages with the same sharding key are handled in
    their order: one that fails is tried again in its place, after ``suspend`` seconds.

    ``start``: where to begin what the group has not read before: ``"last"`` (with what comes from now on), ``"first"``,
    or an aware datetime (store time). ``mode``: ``"broadcasting"`` gives every message to every member; then nothing is
    tried again, and progress is kept only for a member with a name. ``member``: a name that no other member has; None:
    one is made. ``prefetch_messages``, ``prefetch_bytes``: how much is pulled before it is handled, at most.

    ``auto_commit``: what is done is committed every ``commit_interval`` seconds; else when ``commit`` is called.
    ``session_timeout``: after so many seconds without a word from it the broker gives its queues to others.
    ``listener_timeout``: after so many seconds a listener is taken for stuck, and its messages are tried again.
    ``retry_times_max``: how often a message is tried again, None: as it is set for the group (16); ``delay_level``:
    after which delay (1 to 18: 1 s to 2 h), 0: 10 s at first, then longer and longer. ``retry_reason``: whether the
    broker keeps with a message what its listener raised (it may hold personal data).

    ``run()`` starts it and ends it in order when the process gets SIGTERM or SIGINT. By hand: ``start()`` joins the
    group; ``wait()`` returns when the consumer was closed and raises when it cannot go on. As a context manager it is
    started and closed.
    """

    # fmt: off
    @overload
    def __init__(
        self, addresses: Addresses, group: str, topics: Subscriptions, listener: MessageListener, *,
        batch: None = None, **options: Unpack[PushOptions],
    ) -> None: ...
    @overload
    def __init__(
        self, addresses: Addresses = ..., *, group: str, topics: Subscriptions, listener: MessageListener,
        batch: None = None, **options: Unpack[PushOptions],
    ) -> None: ...
    @overload
    def __init__(
        self, addresses: Addresses, group: str, topics: Subscriptions, listener: BatchListener, *,
        batch: int, **options: Unpack[PushOptions],
    ) -> None: ...
    @overload
    def __init__(
        self, addresses: Addresses = ..., *, group: str, topics: Subscriptions, listener: BatchListener,
        batch: int, **options: Unpack[PushOptions],
    ) -> None: ...
    # fmt: on
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
            group=group, topics=topics, member=member, mode=mode, start=start, orderly=orderly, batch=batch,
            workers=workers, prefetch_messages=prefetch_messages, prefetch_bytes=prefetch_bytes,
            auto_commit=auto_commit, commit_interval=commit_interval, session_timeout=session_timeout,
            listener_timeout=listener_timeout, retry_times_max=retry_times_max, delay_level=delay_level,
            suspend=suspend, retry_reason=retry_reason,
        )  # fmt: skip
        self._timeout = check_timeout("timeout", timeout)
        self._guard = Guard(type(self).__name__)
        self._workers = Workers(options, self._call)
        self._ended = threading.Event()
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Of ``run``: one that a handler of signals may put into."""
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

    # ---- its life

    def start(self) -> Self:
        """Join the group; returns when the broker has let it in. Raises where it does not, or cannot be reached."""
        self._launch()
        self._check_joined(self._engine.joined.wait(self._timeout))
        return self

    def run(self, timeout: float = 30.0) -> None:
        """Start, and return when the process got SIGTERM or SIGINT (Ctrl-C) and all is in order: the listeners have
        finished what they had, that is committed, and the group was left. Also returns when the consumer was closed.

        ``timeout``: as of ``close()``, whose errors it raises, besides those of ``start()`` and ``wait()``. A second
        signal interrupts at once. Only the main thread of a program gets signals; in another one ``close()`` ends it.
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
                    log.info("group %s: %s: ending in order", self.group, signals.received.name)
                self.close(seconds)
            except BaseException:
                self._engine.abandon()
                raise
        self._engine.check()

    def _launch(self) -> None:
        self._guard.check()
        if self._started:
            raise InvalidArgument("this consumer was started before; make a new one to start again")
        self._started = True
        self._workers.start()
        self._engine.start()

    def _check_joined(self, joined: bool) -> None:
        """Raise what keeps the consumer out of its group."""
        if not joined:
            trouble = self._engine.health().trouble
            self._guard.closed = True
            self._engine.abandon()  # it may hang in a connection; what matters is why it could not join
            self._ended.wait(self._timeout)
            self._workers.stop()
            raise trouble or ListenerTimeout(f"group {self.group} could not be joined within {self._timeout:g} s")
        if self._engine.failure is not None:
            failure = self._engine.failure
            self._workers.stop()
            self._guard.closed = True
            raise failure

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the consumer was closed, at most ``timeout`` seconds; whether it was.

        Raises ``ClientFailed``, with the reason as its cause, where it cannot go on.
        """
        ended = self._ended.wait(timeout)
        self._engine.check()
        return ended

    def close(self, timeout: float = 30.0) -> None:
        """Begin nothing more, let the listeners finish what they have, commit, and leave the group. Idempotent.

        Called by a listener it returns at once, and the consumer ends when all of them have come back. Raises
        ``ListenerTimeout`` where a listener does not come back within ``timeout`` seconds; then the consumer has left
        all the same, and what was not done is tried again elsewhere. Raises ``ClientFailed`` where it failed before.
        """
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
                f"{health.running} listeners of group {self.group} had not come back after {timeout:g} s; what they "
                "have is tried again by others"
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

    # ---- what else can be asked of it

    def health(self) -> Health:
        """How it is."""
        return self._engine.health()

    def pause(self, *topics: str) -> None:
        """Pull nothing more of these topics, or of none at all; what was pulled before is still handled."""
        self._check()
        self._engine.set_paused(self._engine.paused | (frozenset(topics) or frozenset(self._options.subscriptions)))

    def resume(self, *topics: str) -> None:
        """Go on with these topics, or with all."""
        self._check()
        self._engine.set_paused(self._engine.paused - frozenset(topics) if topics else frozenset())

    def commit(self, timeout: float | None = None) -> None:
        """Tell the broker how far the listeners are done, and wait until it knows. Raises what kept it from that."""
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
        """On the engine's thread."""
        self._workers.stop()
        self._ended.set()
        self._wakeups.put(None)
