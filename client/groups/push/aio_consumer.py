"""The push consumer that runs its listener as tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import time
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import islice
from types import TracebackType
from typing import Any, Self

from ....protocol.errors import FlintError
from ...aio.rpc import Dialer
from ...aio.runtime import ClientRuntime
from ...application_code import ends_program
from ...core import hooks
from ...core.consume.batch import Batch, StoredMessage
from ...core.rpc.timeouts import check_timeout, wait_seconds
from ...errors import ClientClosed, ClientFailed, InvalidArgument, ListenerTimeout
from ..callables import is_coroutine_function
from .assignments import WorkItem
from .delivery import Delivery
from .group_client import Engine, MemberEngine
from .listeners import Workers, check_listener, check_returned, handle, record
from .outcome import Failed, failed_with
from .shell import ConsumerShell, MemberShell, ReceiverShell, StopSignals

# ---- A member of a group that tasks of an event loop use.


class TaskMember(MemberShell):
    """The start, the waits and the commits of a member; subclasses hand its messages to the application."""

    def _new_engine(self, dialer: Dialer) -> MemberEngine:
        self._life = ClientRuntime(type(self).__name__)
        self._end: asyncio.Future[None] | None = None
        return self._engine_for(dialer)

    @abstractmethod
    def _engine_for(self, dialer: Dialer) -> MemberEngine:
        """Create the engine, whose ``ended`` is ``_post_end``."""

    def _end_handling(self) -> None:
        """Expect no more messages; called on the I/O thread."""

    @abstractmethod
    async def close(self, timeout: float = 30.0) -> None:
        """Let the application finish, commit, and leave the group."""

    async def start(self) -> Self:
        """Join the group; returns when the broker has accepted the member. Raises its refusal, or that it is
        unreachable. If it is cancelled, it first closes the consumer, which may have joined."""
        loop = self._life.enter()
        if self._started:
            raise InvalidArgument("this consumer was already started; create a new one to start again")
        self._started = True
        self._end = loop.create_future()
        self._engine.start()
        try:
            joined = await loop.run_in_executor(None, self._engine.joined.wait, self._timeout)
        except asyncio.CancelledError:
            with contextlib.suppress(FlintError):
                await self.close()
            raise
        if not joined:
            reason = self._not_joined()
            self._life.closing()
            self._engine.abandon()
            raise reason
        if self._engine.failure is not None:
            self._life.closing()
            raise self._engine.failure
        return self

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds until the consumer is closed; returns whether it is.

        Raises ``ClientFailed``, with the reason as its cause, if the consumer cannot continue. Cancelling the wait does
        not affect the consumer.
        """
        assert self._end is not None, "start() comes first"
        await asyncio.wait([self._end], timeout=None if timeout is None else wait_seconds(timeout))
        self._engine.check()
        return self._end.done()

    async def commit(self, timeout: float | None = None) -> None:
        """Commit the progress so far and wait for the broker's confirmation. Raises the error if that fails."""
        self._check()
        loop = self._life.loop
        told: asyncio.Future[FlintError | None] = loop.create_future()

        def settle(error: FlintError | None) -> None:
            if not told.done():
                told.set_result(error)

        self._engine.commit(lambda error: self._post(settle, error))
        seconds = self._timeout if timeout is None else check_timeout("timeout", timeout)
        try:
            async with asyncio.timeout(seconds):
                error = await told
        except TimeoutError:
            raise self._not_confirmed() from None
        if error is not None:
            raise error

    def _check(self) -> None:
        self._life.enter()
        self._engine.check()

    # ---- from the I/O thread to the loop

    def _post(self, call: Callable[..., object], *arguments: Any) -> None:
        try:
            self._life.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop was closed, so nothing can be handled
            self._engine.abandon()

    def _post_end(self, error: FlintError | None) -> None:
        self._end_handling()
        self._post(self._ended)

    def _ended(self) -> None:
        assert self._end is not None
        if not self._end.done():
            self._end.set_result(None)


MessageListener = Callable[[StoredMessage], Awaitable[object] | None]
BatchListener = Callable[[Batch], Awaitable[object] | None]

log = logging.getLogger(__name__)


class PushConsumer(ConsumerShell[MessageListener, BatchListener], TaskMember):
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
            return Engine(self._options, dialer, self._post_works, self._post_recall, self._post_stuck, self._post_end)
        # Threads for a listener that is a plain function.
        workers = Workers(self._options, self._side, self._call)
        workers.engine = Engine(self._options, dialer, workers.begin, workers.recall, workers.replace, self._post_end)
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
        if self._life.closed or not self._started:
            self._life.closing()
            return
        self._life.check_loop()
        self._life.closing()
        assert self._end is not None
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
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


# ---- The group consumer for asyncio: the application receives messages, and settles each of them.


class GroupConsumer(ReceiverShell, TaskMember):
    """A member of a consumer group whose application receives messages, and settles each of them when and where it
    likes.

    It works like ``flintmq.client.GroupConsumer``; ``receive`` and ``close`` are coroutines. The methods of a
    ``Delivery`` are plain functions, which do not block and may be called in the loop and in other threads. A thread
    talks to the broker, so a loop that is blocked for a while neither leaves the group nor loses a delivery.
    """

    def _engine_for(self, dialer: Dialer) -> MemberEngine:
        self._waiters: dict[asyncio.Future[None], None] = {}
        """Receivers that wait, in their order."""
        return self._engine_of(dialer, self._life.guard, self._post_changed, self._post_end)

    def _end_handling(self) -> None:
        self._deliveries.end(abandon=True)

    def _post_changed(self) -> None:
        self._post(self._wake)

    def _wake(self) -> None:
        """Wake as many receivers as there are deliveries; at the end all that wait."""
        with self._deliveries.condition:
            count = len(self._waiters) if self._deliveries.ended else self._deliveries.ready
        for waiter in list(islice(self._waiters, count)):
            del self._waiters[waiter]
            if not waiter.done():
                waiter.set_result(None)

    # ---- deliveries

    async def receive(self, max_count: int = 1, timeout: float | None = None) -> list[Delivery]:
        """Wait for a message, and return it with others that are there already: at most ``max_count`` deliveries.

        Returns an empty list after ``timeout`` seconds; 0: does not wait. Raises ``ClientClosed`` if the consumer is
        closed, also while this waits, and ``ClientFailed`` if it cannot continue. If it is cancelled, no message is
        lost.
        """
        deadline = self._life.enter().time() + self._check_receive(max_count, timeout)
        with hooks.active.receiving(self._side) as receiving:
            found = self._deliveries.take(max_count) or await self._receive_later(max_count, deadline)
            return receiving.deliveries(found)

    async def _receive_later(self, max_count: int, deadline: float) -> list[Delivery]:
        loop, deliveries = self._life.loop, self._deliveries
        deliveries.expect(max_count)
        try:
            while True:
                if deliveries.ended:
                    self._check()
                    raise ClientClosed("this GroupConsumer was closed; create a new one")
                found = deliveries.take(max_count)
                left = deadline - loop.time()
                if found or left <= 0:
                    return found
                await self._wait_for_change(left)
        finally:
            deliveries.expect(-max_count)

    async def _wait_for_change(self, seconds: float) -> None:
        """Wait for the next change, at most this many seconds."""
        waiter: asyncio.Future[None] = self._life.loop.create_future()
        self._waiters[waiter] = None
        try:
            if seconds == math.inf:
                await waiter
            else:
                await asyncio.wait([waiter], timeout=seconds)
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # another one gets what this one was woken for
                self._wake()
            raise
        finally:
            self._waiters.pop(waiter, None)

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        while not self._life.closed:
            try:
                found = await self.receive()
            except ClientClosed:
                return
            for delivery in found:
                yield delivery

    # ---- its end

    async def close(self, timeout: float = 30.0) -> None:
        """Hand out no more messages, let the open deliveries be settled, commit, and leave the group. Idempotent.

        Other tasks may settle meanwhile. Raises ``ListenerTimeout`` if some deliveries are still open after ``timeout``
        seconds (0: does not wait for them); the consumer leaves nevertheless, and their messages are redelivered to
        other members. Raises ``ClientFailed`` if the consumer failed before. In a forked child it does nothing.
        """
        seconds = wait_seconds(timeout)
        if self._life.forked or self._life.closed or not self._started:
            self._life.closing()
            return
        self._life.check_loop()
        self._life.closing()
        assert self._end is not None
        deliveries, loop = self._deliveries, self._life.loop
        self._engine.leave()
        deliveries.end(abandon=False)
        deadline = loop.time() + seconds
        try:
            while deliveries.open_count and (left := deadline - loop.time()) > 0:
                await self._wait_for_change(left)
        finally:
            open_count = deliveries.open_count
            if open_count:
                deliveries.end(abandon=True)
                self._engine.abandon()
        done, _ = await asyncio.wait([self._end], timeout=self._timeout)
        self._engine.abandon()
        self._engine.check()
        if open_count:
            raise self._not_settled(open_count, seconds)
        if not done:
            raise self._not_confirmed()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if raised is None:
            await self.close()
        else:  # the block's exception counts, and does not wait for deliveries that it may have left open
            with contextlib.suppress(ListenerTimeout):
                await self.close(0)
