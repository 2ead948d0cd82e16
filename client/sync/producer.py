"""The producer: sends messages to topics."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from ...protocol.errors import FlintError, RequestTimeout
from .. import unsent
from ..application_code import ends_program
from ..core import hooks
from ..core.client_guard import Guard
from ..core.compression import COMPRESS_OVER_BYTES, Compression
from ..core.produce.accumulator import NEVER, Bulk, Single
from ..core.produce.delivery import IN_FLIGHT_BYTES_MAX
from ..core.produce.packer import BulkProperties, Flush, check_bodies, check_message, check_messages, check_queue
from ..core.produce.producer_core import ASK, BulkTerms, Groups, ProducerCore, raise_unseen
from ..core.produce.receipts import Receipt
from ..core.rpc.access import AccessOptions, access_for
from ..core.rpc.address import parse_addresses
from ..core.rpc.operation import Plan
from ..core.rpc.timeouts import DELIVERY_SECONDS, check_timeout
from ..endpoint import ConnectionLog, client_name
from ..message import Body, Message
from .connection import Connection
from .driver import DeliveryDriver, Role, SingleSender, Until
from .pool import Caller, Dialer

if TYPE_CHECKING:
    from .arrow import ArrowData

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


class Producer:
    """Sends messages to a broker, or to the primary of a replica set. Thread-safe.

    ``delivery_timeout``: seconds within which a message must be acknowledged, retries included; ``compress_over``:
    bodies longer than this many bytes are compressed (None: none); ``compression``: "zlib" (the default, which every
    installation can read), "lz4" or "zstd", which raise ``CompressionUnavailable`` without their library;
    ``in_flight_bytes_max``: unacknowledged bytes above which calls block; ``flush``: "sync" or "async"; it can be
    stricter than the broker's setting, not weaker.
    ``user``, ``password``, ``tls`` …: credentials and encryption, if the broker requires them; see ``AccessOptions``.

    Connects on first use, and again whenever the connection is lost. If an acknowledgement is lost, the producer
    resends the message with the same ``message_id``, by which the broker detects whether it is already stored.
    """

    remains_told = True
    """True if the remaining messages have been reported; initially there are none."""

    def __init__(
        self,
        addresses: str | Iterable[str] | None = None,
        *,
        delivery_timeout: float = DELIVERY_SECONDS,
        compress_over: int | None = COMPRESS_OVER_BYTES,
        compression: Compression | None = None,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
        flush: Flush | None = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        self._sending = ProducerCore(
            access.get("client_name") or client_name(),
            delivery_timeout=delivery_timeout,
            compress_over=compress_over,
            compression=compression,
            in_flight_bytes_max=in_flight_bytes_max,
            flush=flush,
        )
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

    @property
    def record_bytes_max(self) -> int:
        """Size of the largest record of a message that the broker accepts; the default one before the first answer."""
        return self._sending.record_bytes_max

    def send(
        self, message: Message, *, queue: int | None = None, flush: Flush | None = None, timeout: float | None = None
    ) -> Receipt:
        """Send one message and return its receipt once it is acknowledged.

        ``queue``: the destination queue, if it matters; ``flush``: a stricter mode for this message; ``timeout``:
        seconds, instead of ``delivery_timeout``. Raises the broker's refusal, or ``ConnectionFailed`` or
        ``RequestTimeout`` when the time is over.
        """
        check_message(message)
        # No ``with``: it takes two more calls, and after a wait each of them has cold caches.
        message, observed = hooks.active.send(self._side, message, self._sending.record_bytes_max)
        try:
            receipt = self._send(message, queue, flush, timeout)
        except BaseException as error:
            observed.end(error)
            raise
        observed.end(None, receipt)
        return receipt

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

    def send_async(
        self, message: Message, *, queue: int | None = None, flush: Flush | None = None, timeout: float | None = None
    ) -> SendFuture:
        """Hand over one message and return at once; blocks only while too many bytes are unacknowledged.

        The future completes without further calls, possibly in another thread.
        """
        check_message(message)
        message, observed = hooks.active.send(self._side, message, self._sending.record_bytes_max)
        future = SendFuture()
        future.observed = observed
        try:
            self._add(message, queue, flush, timeout, future)
            self._driver.nudge()
        except BaseException as error:
            self._driver.abandon()
            observed.end(error)
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
        """Complete the future of a settled message."""
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

    def send_many(
        self,
        messages: Iterable[Message],
        *,
        queue: int | None = None,
        flush: Flush | None = None,
        prepare: str | None = None,
        timeout: float | None = None,
    ) -> Sequence[Receipt]:
        """Send any number of messages and return their receipts, in order, once all are acknowledged.

        The messages are packed into as few frames as possible, several of which are in flight; those of a pinned queue
        are sent in order, one frame at a time. ``timeout``: seconds for the whole call; by default each frame has
        ``delivery_timeout``. ``prepare``: name of the attempt that the messages are prepared for; no consumer receives
        them until ``Admin.commit_prepared`` names it, and the receipts' offsets are those of the stored, uncommitted
        messages.
        Raises ``DeliveryFailed``, which has the error of each failed message and the receipts of the others.
        """
        terms = BulkTerms(queue, flush, prepare, timeout)
        several = check_messages(messages)
        with hooks.active.send_many(self._side, several, self._sending.record_bytes_max) as observed:
            return self._deliver(self._sending.many(observed.messages, terms, time.monotonic()), timeout)

    def send_bulk(
        self,
        topic: str,
        bodies: Iterable[Body],
        *,
        keys: Iterable[str | Sequence[str] | None] | None = None,
        queue: int | None = None,
        flush: Flush | None = None,
        prepare: str | None = None,
        timeout: float | None = None,
        **shared: Unpack[BulkProperties],
    ) -> Sequence[Receipt]:
        """Send many bodies to one topic; the fastest way to send. ``keys``: one entry for each body (a key, several, or
        None); ``tags``, ``properties``, ``sharding_key`` and the delay are those of ``Message`` and apply to all
        bodies (``BulkProperties``). Otherwise like ``send_many``."""
        terms = BulkTerms(queue, flush, prepare, timeout)
        several = check_bodies(bodies)
        with hooks.active.send_bulk(self._side, topic, several, shared, self._sending.record_bytes_max) as observed:
            plan = self._sending.columns(topic, several, keys, observed.shared, terms, time.monotonic())
            return self._deliver(plan, timeout)

    def send_arrow(
        self,
        topic: str,
        data: ArrowData,
        body: str = "body",
        keys: str | None = None,
        tags: str | None = None,
        properties: Sequence[str] = (),
        *,
        sharding_key: str | None = None,
        queue: str | None = None,
    ) -> int:
        """Send each row of a data frame or stream to one topic; needs ``flintmq[arrow]``. Returns the number of rows,
        once all are acknowledged.

        ``data``: anything with the Arrow C stream interface; it is read in pieces. The other arguments name columns:
        ``body`` has bytes or text, ``keys`` a text or a list of texts, ``tags`` and ``sharding_key`` texts, ``queue``
        numbers; each of ``properties`` becomes the property of this name, as text (none for null or empty text).
        Raises ``InvalidMessage`` with the first row that cannot be sent, before its piece is sent, and ``RowsNotSent``
        with the rows that the broker did not acknowledge.
        """
        from .arrow import send_rows

        named = {"body": body, "keys": keys, "tags": tags, "sharding_key": sharding_key, "queue": queue}
        return send_rows(self, topic, data, named, properties)

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

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything handed to ``send_async`` so far is acknowledged.

        Raises ``DeliveryFailed`` if a message failed and the application has not looked at its future, and
        ``RequestTimeout`` if that takes longer than ``timeout`` seconds (by default each message has its own limit).
        """
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

    def close(self) -> None:
        """Accept no more messages, wait for those that were handed over, then disconnect. Idempotent.

        Raises ``DeliveryFailed`` if a message failed and the application has not looked at its future. The loss of a
        connection without unacknowledged messages is not an error.
        """
        self._close(None)

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

    def __del__(self) -> None:
        if not self.remains_told:
            unsent.abandoned(self, "its last reference is gone")

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
