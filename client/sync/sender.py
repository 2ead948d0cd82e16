"""The producer's work: takes messages, has them delivered, and waits until they are."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from functools import partial
from types import TracebackType
from typing import Self

from ...protocol.errors import FlintError, RequestTimeout
from .. import unsent
from ..application_code import ends_program
from ..core import hooks
from ..core.client_guard import Guard
from ..core.produce.accumulator import NEVER, Bulk, Single
from ..core.produce.packer import Flush, check_queue
from ..core.produce.producer_core import ASK, Groups, ProducerCore, raise_unseen
from ..core.produce.receipts import Receipt
from ..core.rpc.access import AccessOptions, access_for
from ..core.rpc.address import parse_addresses
from ..core.rpc.operation import Plan
from ..core.rpc.timeouts import check_timeout
from ..endpoint import ConnectionLog
from ..message import Message
from .connection import Connection
from .driver import DeliveryDriver, Role, SingleSender, Until
from .rpc import Caller, Dialer

log = logging.getLogger(__name__)

_FAILURES_KEPT = 10_000
"""Maximum number of failed futures kept for ``flush`` and ``close`` to report."""


class SendFuture(Future[Receipt]):
    """The future that ``send_async`` returns: its result is the receipt, or the error with which the message failed."""

    looked_at = False
    """True if the application asked for the outcome. ``flush`` and ``close`` raise the errors that it did not see."""
    observed: hooks.SendingOne

    def cancel(self) -> bool:
        """Return False: a message that was handed over cannot be taken back."""
        return False

    def add_done_callback(self, fn: Callable[[Future[Receipt]], object]) -> None:
        """Call ``fn`` with the future when the message is settled, in whichever thread does it. What it raises is
        logged: it must not reach another caller of the producer."""
        super().add_done_callback(partial(_call_back, fn))

    def result(self, timeout: float | None = None) -> Receipt:
        """Return the receipt, or raise the error with which the message failed."""
        self.looked_at = True
        try:
            return super().result(timeout)
        except TimeoutError:
            self.looked_at = self.done()
            raise
        finally:
            del self  # else the raised error would be a local of a frame in its own traceback, a reference cycle

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error with which the message failed, or None."""
        self.looked_at = True
        try:
            return super().exception(timeout)
        except TimeoutError:
            self.looked_at = self.done()
            raise


class Sender(unsent.TrackedProducer):
    """A producer without the methods that tell what it does."""

    def __init__(self, addresses: str | Iterable[str] | None, sending: ProducerCore, access: AccessOptions) -> None:
        self._sending = sending
        self._guard = Guard("Producer")
        dialer = Dialer(parse_addresses(addresses), access_for(self, access), ConnectionLog("Producer"))
        self._side = hooks.Side(self._sending.client_name, dialer.addresses)
        self._caller = Caller(dialer, self._guard, self._sending.delivery_seconds)
        self._delivery = self._sending.delivery
        self._driver = DeliveryDriver(self._delivery, dialer, self._connected, self._settle)
        self._mutex = self._driver.mutex
        self._single_sender = SingleSender(self._sending, self._driver)
        self._unsettled: dict[Single, None] = {}
        self._failed: deque[SendFuture] = deque(maxlen=_FAILURES_KEPT)
        self.remains_told = False
        unsent.watch(self)

    def _connected(self, connection: Connection) -> None:
        self._sending.connected(connection.local_address)

    # ---- one message

    def _send(self, message: Message, queue: int | None, flush: Flush | None, timeout: float | None) -> Receipt:
        single: Single | None = None
        # The role that ``claim`` gave, if the driver adopts what the single sender has sent.
        role: Role | None = True
        try:
            if flush is None and timeout is None and type(message) is Message:
                self._guard.check()
                sent = self._single_sender.send(message, check_queue(queue))
                if isinstance(sent, Receipt):
                    return sent
                single = sent
            if single is None:
                single, role = self._add(message, queue, flush, timeout, None)
            self._driver.wait(single, single.deadline, role)
        except BaseException:
            self._abandon(single)
            raise
        if single.error is None:
            return single.receipt()
        self._sending.learn(single.error)
        try:
            raise single.error
        finally:
            del single  # else the error would be a local of a frame in its own traceback, a reference cycle

    def _send_async(
        self,
        message: Message,
        queue: int | None,
        flush: Flush | None,
        timeout: float | None,
        observed: hooks.SendingOne,
    ) -> SendFuture:
        future = SendFuture()
        future.observed = observed
        try:
            self._add(message, queue, flush, timeout, future)
            self._driver.nudge()
        except BaseException:
            self._driver.abandon()
            raise
        return future

    def _add(
        self, message: Message, queue: int | None, flush: Flush | None, timeout: float | None, future: SendFuture | None
    ) -> tuple[Single, Role | None]:
        self._guard.check()
        now = time.monotonic()
        to, row, mode, deadline = self._sending.prepare(message, queue, flush, timeout, now)
        if to == ASK:
            to = self._caller.run(self._sending.sharded_queue(message, now), deadline)
        while True:
            with self._mutex:
                # Checked again under the mutex: nothing may be added after ``stop`` has failed everything.
                if self._guard.closed:
                    self._guard.check()
                if self._delivery.has_room(len(row[0])):
                    single = self._delivery.add_single(message.topic, to, row, mode, deadline, future, message.common)
                    if future is None:
                        return single, self._driver.enter(single)
                    self._unsettled[single] = None
                    return single, None
            self._wait_for_room(len(row[0]), deadline)

    def _wait_for_room(self, body_bytes: int, deadline: float) -> None:
        room = Until(lambda: self._delivery.has_room(body_bytes))
        self._driver.wait(room, deadline)
        if not room.done and time.monotonic() >= deadline:
            raise self._sending.no_room()

    def _settle(self, single: Single) -> None:
        future: SendFuture = single.future
        del self._unsettled[single]
        if single.error is None:
            receipt = single.receipt()
            future.observed.end(None, receipt)
            future.set_result(receipt)
        else:
            self._sending.learn(single.error)
            self._failed.append(future)
            future.observed.end(single.error)
            future.set_exception(single.error)

    # ---- several messages

    def _deliver(self, plan: Plan[tuple[Bulk, Groups]], timeout: float | None) -> Sequence[Receipt]:
        self._guard.check()
        bulk, groups = self._caller.run(plan, self._caller.deadline(timeout))
        if not bulk.done:
            with self._mutex:
                if self._guard.closed:
                    self._guard.check()
                for topic, queue, group in groups:
                    self._delivery.add_bulk(bulk, topic, queue, group)
            try:
                self._driver.wait(bulk, bulk.deadline)
            except BaseException:
                self._abandon(bulk)
                raise
        return self._sending.receipts(bulk)

    def _abandon(self, waited_for: Single | Bulk | None) -> None:
        """Give up a wait whose thread was interrupted, possibly between any two steps."""
        self._driver.abandon()
        if waited_for is not None:
            with self._mutex:
                self._delivery.abandon(waited_for, FlintError("its caller was interrupted"))

    # ---- end

    def _flush(self, timeout: float | None) -> None:
        self._guard.check()
        deadline = NEVER if timeout is None else time.monotonic() + check_timeout("timeout", timeout)
        outstanding = list(self._unsettled)
        for single in outstanding:
            if not single.done:
                self._driver.wait(single, min(deadline, single.deadline))
            if not single.done and time.monotonic() >= deadline:
                left = sum(not other.done for other in outstanding)
                raise RequestTimeout(
                    f"{left} of {len(outstanding)} messages are not acknowledged yet; the producer keeps trying them"
                )
        # A callback would wait for futures that its own thread has to complete.
        if not self._driver.is_calling_back:
            wait_for_futures([single.future for single in outstanding])
        self._raise_failures()

    def _raise_failures(self) -> None:
        failed = [self._failed.popleft() for _ in range(len(self._failed))]
        raise_unseen(Future.exception(future) for future in failed if not future.looked_at)

    def _close(self, raised: BaseException | None) -> None:
        if self._guard.closed:
            return
        self._guard.closed = True
        if self._guard.forked:
            self._caller.pool.close()
            self._driver.forget()
            return
        try:
            if raised is None or isinstance(raised, Exception):  # after Ctrl-C do not wait
                self._driver.wait(Until(lambda: self._delivery.idle))
        except BaseException as interruption:
            raised = interruption
            raise
        finally:
            self._driver.stop()
            self._caller.pool.close()
            unsent.closed(self, raised)
        if raised is None:
            self._raise_failures()

    def undelivered(self) -> tuple[int, int]:
        """Return how many messages of ``send_async`` are not acknowledged yet, and how many failed without the
        application reading the outcome from their futures."""
        if self._guard.forked:
            return 0, 0  # the messages belong to the parent process
        return len(self._unsettled), sum(not future.looked_at for future in list(self._failed))

    def __enter__(self) -> Self:
        self._guard.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(raised)


def _call_back(called: Callable[[Future[Receipt]], object], future: Future[Receipt]) -> None:
    try:
        called(future)
    except BaseException as error:
        if isinstance(error, Exception) or ends_program(error):
            raise  # an ``Exception`` is logged by the future
        log.exception("a callback of a message that was sent failed")
