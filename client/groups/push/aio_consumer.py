"""The push consumer that runs its listener as tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from ...aio.rpc import Dialer
from ...application_code import ends_program
from ...core import hooks
from ...core.consume.batch import Batch, StoredMessage
from ...core.rpc.timeouts import check_timeout
from ...errors import ClientFailed, ListenerTimeout
from ..callables import is_coroutine_function
from .aio_members import ClientMember
from .assignments import WorkItem
from .group_client import Engine
from .listeners import Workers, check_listener, check_returned, handle, record
from .outcome import Failed, failed_with
from .shell import WAIT_SECONDS_MAX, ConsumerShell, StopSignals

MessageListener = Callable[[StoredMessage], Awaitable[object] | None]
BatchListener = Callable[[Batch], Awaitable[object] | None]

log = logging.getLogger(__name__)


class PushConsumer(ConsumerShell[MessageListener, BatchListener], ClientMember):
    """A member of a consumer group; it awaits its listener, a coroutine function, with each message or batch.

    It works like ``flintmq.client.PushConsumer``, except that listeners run as tasks, at most ``workers`` at a time, in
    the event loop in which ``start()`` was awaited. A thread talks to the broker, so a loop that is blocked for a while
    neither leaves the group nor loses anything. A listener that takes longer than ``listener_timeout`` is cancelled.

    A listener that is a plain function is called in one of ``workers`` threads, as in the other consumer; if it returns
    an awaitable, the loop awaits it.
    """

    WORKERS = 64
    _engine: Engine

    _check_listener = staticmethod(check_listener)

    def _engine_for(self, dialer: Dialer) -> Engine:
        self._ready: deque[WorkItem] = deque()
        self._tasks: dict[asyncio.Task[None], WorkItem] = {}
        self._exit: BaseException | None = None
        """The interrupt or ``SystemExit`` of a listener, with which its task ends."""
        if is_coroutine_function(self._listener):
            return Engine(self._options, dialer, self._post_works, self._post_recall, self._post_stuck)
        # Threads for a listener that is a plain function.
        workers = Workers(self._options, self._side, self._call)
        workers.engine = Engine(self._options, dialer, workers.begin, workers.recall, workers.replace)
        return workers.engine

    # ---- its lifetime

    async def run(self, timeout: float = 30.0) -> None:
        """Start, and return after the process got SIGTERM or SIGINT (Ctrl-C) and the consumer has shut down
        gracefully: the listeners have finished, their progress is committed, and the member has left the group. Also
        returns after ``close()``.

        ``timeout``: as in ``close()``. Raises the errors of ``start()``, ``wait()`` and ``close()``. If it is
        cancelled, it first closes the consumer in the same way. A second signal, or cancellation, interrupts at once.
        Only the main thread of a program receives signals; for a loop in another thread use ``close()``.
        """
        seconds = check_timeout("timeout", timeout)
        loop = self._life.enter()
        stop: asyncio.Future[None] = loop.create_future()

        def stopped() -> None:
            if not stop.done():
                stop.set_result(None)

        with StopSignals(lambda: loop.call_soon_threadsafe(stopped)) as signals:
            starting = loop.create_task(self.start(), name=f"flintmq start of {self.group}")
            try:
                await _first(starting, stop)
                if not starting.done():
                    self._engine.leave()
                await starting
                assert self._end is not None
                await _first(stop, self._end)
            finally:
                starting.cancel()
                if signals.received is not None:
                    log.info("group %s: %s: shutting down", self.group, signals.received.name)
                await self.close(seconds)
        await self.wait()

    async def close(self, timeout: float = 30.0) -> None:
        """Begin no more messages, let the listeners finish, commit, and leave the group. Idempotent.

        Raises ``ListenerTimeout`` if a listener does not return within ``timeout`` seconds: it is cancelled, the
        consumer leaves nevertheless, and the broker redelivers the unfinished messages to other members. Raises
        ``ClientFailed`` if it failed before.
        """
        if self._life.closed or self._end is None:
            self._life.closing()
            return
        self._life.check_loop()
        self._life.closing()
        self._engine.leave()
        late: ListenerTimeout | None = None
        try:
            async with asyncio.timeout(check_timeout("timeout", timeout)):
                await asyncio.shield(self._end)
        except TimeoutError:
            late = self._not_returned(timeout)
        finally:
            self._engine.abandon()
            for task in self._tasks:
                task.cancel()
        async with asyncio.timeout(self._timeout):
            await asyncio.shield(self._end)
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=self._timeout)
        self._engine.check()
        if late is not None:
            raise late

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # ---- from the I/O thread to the loop

    def _post(self, call: Callable[..., object], *arguments: Any) -> None:
        try:
            self._life.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop was closed, so nothing can be handled
            self._engine.abandon()

    def _post_works(self, works: list[WorkItem]) -> None:
        self._post(self._begin, works)

    def _post_recall(self) -> None:
        self._post(self._recalled)

    def _post_stuck(self, work: WorkItem) -> None:
        self._post(self._cancel, work)

    # ---- in a thread of the workers

    def _call(self, handed: Any) -> None:
        """Call a plain function; if it returns an awaitable, await it in the loop."""
        returned = self._listener(handed)
        if inspect.isawaitable(returned):
            awaited = self._await(returned)
            try:
                running = asyncio.run_coroutine_threadsafe(awaited, self._life.loop)
            except RuntimeError:  # the loop was closed
                awaited.close()
                if inspect.iscoroutine(returned):
                    returned.close()
                raise
            returned = running.result()
        check_returned(returned)

    @staticmethod
    async def _await(returned: Awaitable[object]) -> object:
        return await returned

    # ---- in the loop

    def _begin(self, works: list[WorkItem]) -> None:
        self._ready.extend(works)
        while self._ready and len(self._tasks) < self._options.workers:
            work = self._ready.popleft()
            if work.claim.stopped:
                self._engine.give_back(work)
                continue
            work.taken_at = work.begun_at = time.monotonic()
            task = self._life.loop.create_task(self._work(work), name=f"flintmq listener of {self.group}")
            self._tasks[task] = work
            task.add_done_callback(self._task_ended)

    def _recalled(self) -> None:
        """Give back works of revoked queues that no task has begun, because the queues' next member waits for them."""
        waiting, self._ready = self._ready, deque()
        for work in waiting:
            if work.claim.stopped:
                self._engine.give_back(work)
            else:
                self._ready.append(work)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        work = self._tasks.pop(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, GeneratorExit):  # from a future that a listener awaits it ends all coroutines around it
            record(self._engine, self._options, work, failed_with(error, self._options, work.messages, work))
        elif error is not None and not ends_program(error):
            self._engine.die(ClientFailed(f"a listener's task ended with {type(error).__name__}: {error}", error))
        elif task.cancelled() and not work.given_up:
            self._engine.give_back(work)  # cancelled before it began, or with the consumer
        self._begin([])

    def _cancel(self, work: WorkItem) -> None:
        for task, its_work in self._tasks.items():
            if its_work is work:
                task.cancel()

    async def _work(self, work: WorkItem) -> None:
        calls = handle(self._engine, self._options, work)
        with contextlib.suppress(StopIteration):
            handed = next(calls)
            while True:
                handed = calls.send(await self._failed(handed, work))
        if self._exit is not None:
            # The outcome is recorded, so the consumer can still be closed in order.
            error, self._exit = self._exit, None
            raise error

    async def _failed(self, handed: Any, work: WorkItem) -> Failed:
        """Await the listener; returns the messages to redeliver, with their delay levels."""
        messages = (handed,) if isinstance(handed, StoredMessage) else work.messages
        try:
            with hooks.active.process(self._side, messages, several=self._options.whole_batches, pushed=True):
                check_returned(await self._listener(handed))
        except BaseException as error:
            task = asyncio.current_task()
            assert task is not None
            if isinstance(error, asyncio.CancelledError) and task.cancelling():
                if work.given_up or self._life.closed:
                    raise  # this consumer has cancelled the task, not the listener itself
                while task.uncancel():
                    pass
            if ends_program(error):
                self._exit = error
            return failed_with(error, self._options, messages, work)
        return []


async def _first(*futures: asyncio.Future[Any]) -> None:
    """Return when one of the futures is done; cancelling the wait does not affect them."""
    while not any(future.done() for future in futures):
        await asyncio.wait(futures, timeout=WAIT_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)
