"""The producer's work: takes messages, has them delivered, and waits until they are."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from math import inf
from types import TracebackType
from typing import Any

from ...protocol.errors import FlintError, RequestTimeout
from .. import unsent
from ..core import hooks
from ..core.produce.accumulator import Bulk, Single
from ..core.produce.packer import Flush
from ..core.produce.producer_core import ASK, Groups, Prepared, ProducerCore, raise_unseen
from ..core.produce.receipts import Receipt
from ..core.rpc.access import AccessOptions
from ..core.rpc.operation import Plan, detached
from ..core.rpc.timeouts import check_timeout
from ..message import Message
from .client import Base
from .driver import DeliveryDriver
from .rpc import Caller
from .runtime import ClientRuntime, Timer

# ---- Messages that cannot be added to the delivery yet, because there is no room or a queue must be looked up
# first.
#
# They wait in order, and later messages wait after them, so that a message never overtakes an earlier one.


class Held:
    """One message that waits to be added. ``future``: its sender's; ``single``: set when it is added; ``passed``: set
    if a task waits for that."""

    __slots__ = ("future", "message", "passed", "prepared", "single")

    def __init__(self, message: Message, prepared: Prepared, future: asyncio.Future[object]) -> None:
        self.message = message
        self.prepared = prepared
        self.future = future
        self.single: Single | None = None
        self.passed: asyncio.Event | None = None

    @property
    def deadline(self) -> float:
        """Deadline by which the message must be settled."""
        return self.prepared[3]


class Admission:
    """Adds the waiting messages one after the other, as soon as possible. ``add``: adds a message to the delivery;
    ``drained``: called when no message waits any longer."""

    def __init__(
        self,
        sending: ProducerCore,
        caller: Caller,
        life: ClientRuntime,
        add: Callable[[Message, Prepared, asyncio.Future[object]], Single],
        drained: Callable[[], None],
    ) -> None:
        self.held: deque[Held] = deque()
        self._sending = sending
        self._caller = caller
        self._life = life
        self._timer = Timer(life, self._judge)
        self._add = add
        self._drained = drained
        self._room: asyncio.Future[None] | None = None
        self._running = False
        life.add(self)

    def hold(self, message: Message, prepared: Prepared, future: asyncio.Future[object]) -> Held:
        held = Held(message, prepared, future)
        self.held.append(held)
        self._timer.wake(held.deadline)
        if not self._running:
            self._running = True
            self._life.start("admission", self._admit())
        return held

    def progressed(self) -> None:
        """Try again to add messages: there may be room."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    async def passed(self) -> None:
        """Return when all messages that wait now have been added."""
        if self.held:
            last = self.held[-1]
            last.passed = last.passed or asyncio.Event()
            await last.passed.wait()

    async def _admit(self) -> None:
        held, delivery = self.held, self._sending.delivery
        try:
            while held:
                first = held[0]
                queue, row, flush, deadline = first.prepared
                if first.future.done():
                    pass
                elif queue == ASK:
                    plan = self._sending.sharded_queue(first.message, time.monotonic())
                    try:
                        first.prepared = (await self._caller.run(plan, deadline), row, flush, deadline)
                        continue
                    except FlintError as error:
                        self._refuse(first, error)
                elif delivery.has_room(len(row[0])):
                    first.single = self._add(first.message, first.prepared, first.future)
                else:
                    self._room = self._life.loop.create_future()
                    await self._room
                    continue
                held.popleft()
                if first.passed is not None:
                    first.passed.set()
        finally:
            self._running = False
        self._drained()

    def _refuse(self, held: Held, error: FlintError) -> None:
        if not held.future.done():
            held.future.set_exception(detached(error))
            if isinstance(held.future, SendFuture):
                held.future.observed.end(error)

    # ---- deadlines and the end

    def _judge(self) -> None:
        """Fail the messages whose deadline is over."""
        now = time.monotonic()
        for held in self.held:
            if held.deadline <= now and not held.future.done():
                self._refuse(held, self._sending.no_room())
        self._timer.wake(min((held.deadline for held in self.held if not held.future.done()), default=inf))
        # Failed messages at the front leave the line now.
        self.progressed()

    def fail(self, error: FlintError) -> None:
        self._timer.stop()
        for held in self.held:
            self._refuse(held, error)
            if held.passed is not None:
                held.passed.set()
        self.held.clear()


_FAILURES_KEPT = 10_000
"""Maximum number of failed futures kept for ``flush`` and ``close`` to report."""


class SendFuture(asyncio.Future[Receipt]):
    """The future that ``send_async`` returns: await it for the receipt, or the error with which the message failed."""

    looked_at = False
    """True if the application asked for the outcome. ``flush`` and ``close`` raise the errors that it did not see."""
    abandon: Callable[[], None] | None = None
    """Called if the future is cancelled."""
    observed: hooks.SendingOne

    def cancel(self, msg: Any | None = None) -> bool:
        """Discard the outcome. A message that was not sent yet is never sent; one that was sent may be stored."""
        cancelled = super().cancel(msg)
        if cancelled and self.abandon is not None:
            self.abandon()
            self.observed.end(asyncio.CancelledError())
        return cancelled

    def result(self) -> Receipt:
        """Return the receipt, or raise the error with which the message failed."""
        self.looked_at = self.done()
        return super().result()

    def exception(self) -> BaseException | None:
        """Return the error with which the message failed, or None."""
        self.looked_at = self.done()
        return super().exception()

    def __await__(self) -> Generator[Any, None, Receipt]:
        self.looked_at = True
        return super().__await__()


class Sender(Base, unsent.TrackedProducer):
    """A producer without the methods that tell what it does."""

    def __init__(self, addresses: str | Iterable[str] | None, sending: ProducerCore, access: AccessOptions) -> None:
        super().__init__(addresses, sending.delivery_seconds, access)
        self._sending = sending
        self._side = hooks.Side(sending.client_name, self._dialer.addresses)
        self._delivery = sending.delivery
        self._driver = DeliveryDriver(sending, self._dialer, self._life, self._settle, self._progressed)
        self._admission = Admission(sending, self._caller, self._life, self._add, self._progressed)
        self._held = self._admission.held
        self._unsettled: dict[SendFuture, None] = {}
        self._failed: deque[SendFuture] = deque(maxlen=_FAILURES_KEPT)
        self._entering = 0
        """Number of bulks that were handed over and are not in the delivery yet."""
        self._done: asyncio.Future[None] | None = None
        """Awaited by ``close`` until there is nothing left to deliver."""
        self._closed: asyncio.Event | None = None
        self.remains_told = False
        unsent.watch(self)

    # ---- one message

    async def _send(self, message: Message, queue: int | None, flush: Flush | None, timeout: float | None) -> Receipt:
        future = self._life.enter().create_future()
        handed_over = self._hand_over(message, queue, flush, timeout, future)
        try:
            receipt: Receipt = await future
        except asyncio.CancelledError:
            self._abandon(handed_over)
            raise
        finally:
            del future, handed_over  # else the raised error would be a local of a frame in its own traceback
        return receipt

    def _send_async(
        self,
        message: Message,
        queue: int | None,
        flush: Flush | None,
        timeout: float | None,
        observed: hooks.SendingOne,
    ) -> SendFuture:
        future = SendFuture(loop=self._life.enter())
        handed_over = self._hand_over(message, queue, flush, timeout, future)
        future.observed = observed
        self._unsettled[future] = None
        future.abandon = lambda: self._abandon(handed_over)
        future.add_done_callback(self._unsettled.pop)
        return future

    def _hand_over(
        self,
        message: Message,
        queue: int | None,
        flush: Flush | None,
        timeout: float | None,
        future: asyncio.Future[Any],
    ) -> Single | Held:
        now = time.monotonic()
        prepared = self._sending.prepare(message, queue, flush, timeout, now)
        to, row, _, deadline = prepared
        if deadline < self._driver.timer.due:
            self._driver.timer.wake(deadline)
        # Messages that wait come first, even if there is room for this one.
        if self._held or to == ASK or not self._delivery.has_room(len(row[0])):
            return self._admission.hold(message, prepared, future)
        return self._add(message, prepared, future)

    def _add(self, message: Message, prepared: Prepared, future: asyncio.Future[Any]) -> Single:
        to, row, mode, deadline = prepared
        single = self._delivery.add_single(message.topic, to, row, mode, deadline, future, message.common)
        self._driver.added()
        return single

    def _abandon(self, handed_over: Single | Held) -> None:
        """Drop the message if it has not been sent yet: its sender no longer waits for it."""
        single = handed_over.single if isinstance(handed_over, Held) else handed_over
        if single is not None:
            self._driver.abandon(single)

    def _settle(self, settled: list[Single]) -> None:
        for single in settled:
            future: asyncio.Future[Receipt] = single.future
            error = single.error
            if error is not None:
                self._sending.learn(error)
            if future.done():  # the sender was cancelled
                continue
            if error is None:
                receipt = single.receipt()
                if type(future) is SendFuture:
                    future.observed.end(None, receipt)
                future.set_result(receipt)
                continue
            future.set_exception(error)
            if isinstance(future, SendFuture):
                future.observed.end(error)
                self._failed.append(future)
                asyncio.Future.exception(future)  # mark it retrieved: close() raises it, so the loop need not warn

    def _progressed(self) -> None:
        if self._held:
            self._admission.progressed()
        elif self._done is not None and not self._done.done() and self._all_delivered:
            self._done.set_result(None)

    @property
    def _all_delivered(self) -> bool:
        return self._delivery.idle and not self._held and not self._entering

    # ---- several messages

    async def _deliver(self, plan: Plan[tuple[Bulk, Groups]], timeout: float | None) -> Sequence[Receipt]:
        bulk = await self._enter_bulk(plan, self._caller.deadline(timeout))
        if not bulk.done:
            await self._driver.wait_for_bulk(bulk)
        return self._sending.receipts(bulk)

    async def _enter_bulk(self, plan: Plan[tuple[Bulk, Groups]], deadline: float) -> Bulk:
        """Add a bulk to the delivery, after the messages that wait to be added."""
        self._entering += 1
        try:
            bulk, groups = await self._caller.run(plan, deadline)
            if self._held:
                await self._admission.passed()
            # The client may have ended while this call waited.
            self._life.check()
            if bulk.done:  # it has no messages
                return bulk
            for topic, queue, group in groups:
                self._delivery.add_bulk(bulk, topic, queue, group)
            self._driver.added()
            if bulk.deadline != inf:
                self._driver.timer.wake(bulk.deadline)
            return bulk
        finally:
            self._entering -= 1
            self._progressed()

    # ---- end

    async def _flush(self, timeout: float | None) -> None:
        loop = self._life.enter()
        deadline = inf if timeout is None else time.monotonic() + check_timeout("timeout", timeout)
        outstanding = [future for future in self._unsettled if not future.done()]
        left = set(outstanding)
        finished: asyncio.Future[None] = loop.create_future()

        def one_done(future: asyncio.Future[Receipt]) -> None:
            left.discard(future)
            if not left and not finished.done():
                finished.set_result(None)

        for future in outstanding:
            future.add_done_callback(one_done)
        try:
            if outstanding:
                await self._life.wait(
                    finished,
                    deadline,
                    lambda: RequestTimeout(
                        f"{len(left)} of {len(outstanding)} messages are not acknowledged yet; they are still tried"
                    ),
                )
        finally:
            for future in left:
                future.remove_done_callback(one_done)
        self._raise_failures()

    def _raise_failures(self) -> None:
        failed = [self._failed.popleft() for _ in range(len(self._failed))]
        raise_unseen(asyncio.Future.exception(future) for future in failed if not future.looked_at)

    async def _close(self, raised: BaseException | None) -> None:
        if self._life.closed:
            if self._closed is not None:
                await self._closed.wait()
            return
        if self._life.forked or not self._life.used:
            self._life.end()
            return
        self._life.check_loop()
        self._life.closing()
        self._closed = asyncio.Event()
        try:
            if raised is None or isinstance(raised, Exception):  # a cancelled task does not wait
                await self._delivered()
        except BaseException as interruption:
            raised = interruption
            raise
        finally:
            self._driver.stop()
            unsent.closed(self, raised)
            try:
                await self._disconnect()
            finally:
                self._closed.set()
        if raised is None:
            self._raise_failures()

    def undelivered(self) -> tuple[int, int]:
        """Return how many messages of ``send_async`` are not acknowledged yet, and how many failed without the
        application reading the outcome from their futures."""
        if self._life.forked:
            return 0, 0  # they are the parent's
        pending = sum(not future.done() for future in self._unsettled)
        return pending, sum(not future.looked_at for future in self._failed)

    async def _delivered(self) -> None:
        """Return when there is nothing left to deliver."""
        if not self._all_delivered:
            self._done = self._life.loop.create_future()
            await self._done

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close(raised)
