"""The calls of listeners: what is passed to them, the outcome of each call, and the threads for plain functions."""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from ...core import hooks
from ...core.consume.batch import StoredMessage
from ...errors import ClientFailed, InvalidArgument, InvalidArgumentType
from .. import shared_threads
from ..callables import is_coroutine_function, is_generator_function, name_of
from .assignments import WorkItem
from .group_client import Engine
from .options import Options
from .outcome import Failed, failed_with

Handed = Any
"""A message or a batch, as a listener gets it."""


def handle(engine: Engine, options: Options, work: WorkItem) -> Generator[Handed, Failed, None]:
    """Yield what a listener is to be called with, receive which of its messages failed, and tell the engine."""
    if options.whole_batches:
        record(engine, options, work, (yield work.whole))
        return
    failed: Failed = []
    for number, message in enumerate(work.messages):
        outcome = yield message
        if work.given_up:
            return
        if outcome and options.orderly and outcome[0].delay_level >= 0:
            engine.keep_back(work, number, failed, outcome[0].reason)
            return
        failed += outcome
        work.begun_at = time.monotonic()  # the timeout applies to each message
    engine.finish_work(work, failed, len(work.messages) - len(failed))


def record(engine: Engine, options: Options, work: WorkItem, failed: Failed) -> None:
    """Tell the engine which messages of a work failed, all of which were handled together."""
    if failed and options.orderly and all(failure.delay_level >= 0 for failure in failed):
        engine.keep_back(work, 0, [], failed[0].reason)
    else:
        engine.finish_work(work, failed, len(work.messages) - len(failed))


class Workers:
    """Calls the listener of one consumer, ``side``, in threads of the process, at most ``workers`` at a time. ``call``:
    called with a message or a batch; its exceptions decide the outcome."""

    def __init__(self, options: Options, side: hooks.Side, call: Callable[[Any], None]) -> None:
        self.engine: Engine
        """Set by the creator of both."""
        self._options = options
        self._side = side
        self._call = call
        self._pool = shared_threads.pool
        self._lock = threading.Lock()
        self._ready: deque[WorkItem] = deque()
        self._threads: set[threading.Thread] = set()
        """Those that handle works now."""
        self._running = 0
        """Number of threads, without those whose place another one has taken."""
        self._coming = 0
        """Number of those that have not begun yet."""

    def begin(self, works: list[WorkItem]) -> None:
        """Have works handled. Does not block."""
        with self._lock:
            self._ready.extend(works)
        self._add_threads()

    def recall(self) -> None:
        """Give back works of revoked queues that no thread has begun, because the queues' next member waits for them.

        The others keep their order.
        """
        with self._lock:
            back = [work for work in self._ready if work.claim.stopped]
            self._ready = deque(work for work in self._ready if not work.claim.stopped)
        for work in back:
            self.engine.give_back(work)

    def replace(self, work: WorkItem) -> None:
        """Let another thread take the place of one that does not return: Python cannot end a stuck thread."""
        with self._lock:
            self._running -= 1
        self._add_threads()

    def called_by_one(self) -> bool:
        """Return whether the calling thread is one of the workers."""
        return threading.current_thread() in self._threads

    def _add_threads(self) -> None:
        with self._lock:
            missing = min(len(self._ready) - self._coming, self._options.workers - self._running)
            if missing <= 0:
                return
            self._coming += missing
            self._running += missing
        for started in range(missing):
            try:
                self._pool.run(self._run, f"flintmq-listener-{self._options.group}")
            except RuntimeError:  # the system has no more threads
                with self._lock:
                    self._coming -= missing - started
                    self._running -= missing - started
                    if self._running:
                        return  # those that there are do the work
                raise

    # ---- in a thread

    def _run(self) -> None:
        thread = threading.current_thread()
        with self._lock:
            self._coming -= 1
            self._threads.add(thread)
        while (work := self._take()) is not None:
            try:
                self._handle(work)
            except BaseException as error:  # noqa: BLE001 - it must end the consumer, not go unnoticed
                self.engine.die(
                    ClientFailed(f"a listener ended its thread with {type(error).__name__}: {error}", error)
                )
                break
            if work.given_up:
                break  # another thread has taken this one's place
        with self._lock:
            self._threads.discard(thread)

    def _take(self) -> WorkItem | None:
        """Return the next work, or note that this thread ends."""
        while True:
            with self._lock:
                if not self._ready:
                    self._running -= 1
                    return None
                work = self._ready.popleft()
            if not work.claim.stopped:
                work.taken_at = work.begun_at = time.monotonic()
                return work
            self.engine.give_back(work)

    def _handle(self, work: WorkItem) -> None:
        calls = handle(self.engine, self._options, work)
        with contextlib.suppress(StopIteration):
            handed = next(calls)
            while True:
                handed = calls.send(self._failed(handed, work))

    def _failed(self, handed: Handed, work: WorkItem) -> Failed:
        """Call the listener; returns the messages to redeliver, with their delay levels."""
        messages = (handed,) if isinstance(handed, StoredMessage) else work.messages
        try:
            with hooks.active.process(self._side, messages, several=self._options.whole_batches, pushed=True):
                self._call(handed)
        except BaseException as error:  # noqa: BLE001 - after any error of a listener the messages are redelivered
            return failed_with(error, self._options, messages, work)
        return []


# ---- Checks of listeners and their return values.

_ASYNC_ADVICE = (
    "use flintmq.client.aio.PushConsumer, which awaits it, or pass a plain function (def), which is called in a thread"
)


def check_listener(listener: Any) -> Callable[[Any], Any]:
    """Return the listener of a consumer that can call any kind of function; raise if it is missing or unusable."""
    if listener is None:
        raise InvalidArgument("listener is missing; pass a function that takes a message, or a batch with batch=")
    if not callable(listener):
        raise InvalidArgumentType(f"listener must be callable, not {type(listener).__name__}")
    if is_generator_function(listener):
        raise InvalidArgument(
            f"listener {name_of(listener)} is a generator function: calling it would run none of its code; pass a "
            "function without yield"
        )
    found: Callable[[Any], Any] = listener
    return found


def check_plain_listener(listener: Any) -> Callable[[Any], Any]:
    """Return the listener of a consumer that calls it in threads; raise ``InvalidArgument`` if it is to be awaited."""
    found = check_listener(listener)
    if is_coroutine_function(found):
        raise InvalidArgument(
            f"listener {name_of(listener)} is a coroutine function (async def), but this consumer would never await "
            f"its result: {_ASYNC_ADVICE}"
        )
    return found


def check_returned(returned: Any) -> None:
    """Raise if a listener returned an awaitable or a generator: this consumer does not run it, so nothing was
    handled."""
    if returned is None or not (
        inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned)
    ):
        return
    if inspect.iscoroutine(returned) or inspect.isgenerator(returned):
        returned.close()
    raise InvalidArgumentType(
        f"the listener returned {_article(type(returned).__name__)}, which this consumer does not run, so nothing was "
        f"handled: {_ASYNC_ADVICE}"
    )


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
