"""The push consumer whose listeners run in threads."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack

from ...protocol.errors import FlintError
from ..core.access import AccessOptions, access_of
from ..core.address import parse_addresses
from ..core.guard import Guard
from ..core.stored import StoredMessage
from ..core.timeouts import TIMEOUT_SECONDS, check_timeout
from ..errors import ClientFailed, InvalidArgument, InvalidArgumentType, ListenerTimeout
from ..sync.pool import Dialer
from .claims import Work
from .engine import Engine
from .health import Health
from .options import CLUSTERING, LAST, Subscriptions, check_options
from .outcome import Failed, failed_with


class PushConsumer:
    """A member of a consumer group; its listener is called with each message, or with each batch, as they come.

    Every message goes to one member of the group; what a listener raises has it tried again later, first after 10 s and
    then after longer and longer, by whichever member is there, and after 16 times it becomes a dead letter. A message
    may come more than once: after a failure, or when a member was killed before it had committed.

    ``topics``: one, several, or a mapping from topic to tags or ``Subscription``. ``listener``: called with a
    ``StoredMessage``; with ``batch=n`` with a ``Batch`` of up to n messages of one queue. In ``workers`` threads,
    several messages at a time; with ``orderly=True`` those of a queue one behind the other, so that messages with the
    same sharding key are handled in their order: one that fails is tried again in its place, after ``suspend`` seconds.

    ``start``: where to begin what the group has not read before: ``"last"`` (with what comes from now on), ``"first"``,
    or an aware datetime (store time). ``mode``: ``"broadcasting"`` gives every message to every member; then nothing is
    tried again, and progress is kept only for a member with a name. ``member``: a name that no other member has; None:
    one is made. ``prefetch_messages``, ``prefetch_bytes``: how much is pulled before it is handled, at most.

    ``auto_commit``: what is done is committed every ``commit_interval`` seconds; else when ``commit`` is called.
    ``session_timeout``: after so many seconds without a word from it the broker gives its queues to others.
    ``listener_timeout``: after so many seconds a listener is taken for stuck, and its messages are tried again.
    ``retry_times_max``: how often a message is tried again, None: as it is set for the group (16); ``delay_level``:
    after which delay (1 to 18: 1 s to 2 h), 0: 10 s at first, then longer and longer.

    ``start()`` joins the group; ``wait()`` returns when the consumer was closed and raises when it cannot go on. As a
    context manager it is started and closed.
    """

    def __init__(
        self,
        addresses: str | Iterable[str] = "127.0.0.1:10911",
        group: str = "",
        topics: Subscriptions = (),
        listener: Callable[[Any], object] | None = None,
        *,
        batch: int | None = None,
        orderly: bool = False,
        workers: int = 16,
        start: str | datetime = LAST,
        mode: str = CLUSTERING,
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
        timeout: float = TIMEOUT_SECONDS,
        **access: Unpack[AccessOptions],
    ) -> None:
        if listener is None:
            raise InvalidArgument("listener is missing; give a function that takes a message, or a batch with batch=")
        if not callable(listener):
            raise InvalidArgumentType(f"listener must be callable, not {type(listener).__name__}")
        self._options = options = check_options(
            group=group, topics=topics, member=member, mode=mode, start=start, orderly=orderly, batch=batch,
            workers=workers, prefetch_messages=prefetch_messages, prefetch_bytes=prefetch_bytes,
            auto_commit=auto_commit, commit_interval=commit_interval, session_timeout=session_timeout,
            listener_timeout=listener_timeout, retry_times_max=retry_times_max, delay_level=delay_level,
            suspend=suspend,
        )  # fmt: skip
        self._timeout = check_timeout("timeout", timeout)
        self._listener = listener
        self._guard = Guard(type(self).__name__)
        self._ready: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._workers: list[threading.Thread] = []
        self._ended = threading.Event()
        self._started = False
        dialer = Dialer(parse_addresses(addresses), access_of(**access))
        self._engine = Engine(options, dialer, self._begin, self._replace, self._engine_ended)

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
        self._guard.check()
        if self._started:
            raise InvalidArgument("this consumer was started before; make a new one to start again")
        self._started = True
        for number in range(self._options.workers):
            self._add_worker(number)
        self._engine.start()
        if not self._engine.joined.wait(self._timeout):
            trouble = self._engine.health().trouble
            self._guard.closed = True
            self._engine.abandon()  # it may hang in a connection; what matters is why it could not join
            self._ended.wait(self._timeout)
            self._stop_workers()
            raise trouble or ListenerTimeout(f"group {self.group} could not be joined within {self._timeout:g} s")
        if self._engine.failure is not None:
            failure = self._engine.failure
            self._stop_workers()
            self._guard.closed = True
            raise failure
        return self

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
        if threading.current_thread() in self._workers:
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
        self._stop_workers()
        self._engine.check()
        if late is not None:
            raise late

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _stop_workers(self) -> None:
        for _ in self._workers:
            self._ready.put(None)

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

    # ---- on the engine's thread

    def _begin(self, works: list[Work]) -> None:
        for work in works:
            self._ready.put(work)

    def _replace(self, work: Work) -> None:
        """A worker does not come back: another one takes its place, so that the others' messages go on."""
        self._add_worker(len(self._workers))

    def _engine_ended(self, error: FlintError | None) -> None:
        self._stop_workers()
        self._ended.set()

    # ---- workers

    def _add_worker(self, number: int) -> None:
        thread = threading.Thread(target=self._work, name=f"flintmq-listener-{self.group}-{number}", daemon=True)
        self._workers.append(thread)
        thread.start()

    def _work(self) -> None:
        handle = self._handle_batch if self._options.whole_batches else self._handle_each
        while (work := self._ready.get()) is not None:
            if work.claim.stopped:
                self._engine.give_back(work)
                continue
            work.taken_at = work.begun_at = time.monotonic()
            try:
                handle(work)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it must not stay in this thread
                self._engine.die(
                    ClientFailed(f"a listener ended its thread with {type(error).__name__}: {error}", error)
                )
                return
            if work.given_up:
                return  # another one took this worker's place

    def _handle_batch(self, work: Work) -> None:
        batch = work.messages if len(work.messages) != len(work.batch) else work.batch
        failed = self._failed(batch, work.messages)
        if failed and self._options.orderly and all(level >= 0 for _, level in failed):
            self._engine.keep_back(work, 0, [])
        else:
            self._engine.finished(work, failed, len(work.messages) - len(failed))

    def _handle_each(self, work: Work) -> None:
        failed: Failed = []
        orderly = self._options.orderly
        for number, message in enumerate(work.messages):
            if work.given_up:
                return
            outcome = self._failed(message, (message,))
            if outcome and orderly and outcome[0][1] >= 0:
                self._engine.keep_back(work, number, failed)
                return
            failed += outcome
            if len(work.messages) > 1:
                work.begun_at = time.monotonic()  # each message has its own time
        self._engine.finished(work, failed, len(work.messages) - len(failed))

    def _failed(self, handed: Any, messages: Iterable[StoredMessage]) -> Failed:
        """Call the listener; the messages to be tried again, and their delay levels."""
        try:
            self._listener(handed)
        except Exception as error:  # noqa: BLE001 - whatever a listener raises, the messages are tried again
            return failed_with(error, self.group, handed, messages)
        return []
