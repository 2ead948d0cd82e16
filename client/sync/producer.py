"""The producer: sends messages to topics."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self, Unpack

from ...protocol.errors import FlintError, RequestTimeout
from .. import unsent
from ..connection_log import ConnectionLog
from ..core.access import AccessOptions, access_for
from ..core.address import parse_addresses
from ..core.compression import COMPRESS_OVER_BYTES, Compression
from ..core.delivery import IN_FLIGHT_BYTES_MAX
from ..core.guard import Guard
from ..core.lanes import NEVER, Bulk, Single
from ..core.operations import Plan
from ..core.outgoing import Flush, common_properties
from ..core.receipts import Receipt
from ..core.sending import ASK, Groups, Sending, raise_unseen
from ..core.timeouts import DELIVERY_SECONDS, check_timeout
from ..delay import delay_properties
from ..endpoint import client_name
from ..message import Body, Message
from .connection import Connection
from .driver import DeliveryDriver, Role, Until
from .pool import Caller, Dialer

_FAILURES_KEPT = 10_000


class SendFuture(Future[Receipt]):
    """What ``send_async`` returns: its result is the receipt, or the error that the message failed with."""

    looked_at = False
    """Whether somebody asked for the outcome: if not, ``flush`` and ``close`` raise an error that nobody saw."""

    def cancel(self) -> bool:
        """False: what was handed over cannot be taken back."""
        return False

    def result(self, timeout: float | None = None) -> Receipt:
        """The receipt; raises what the message failed with."""
        self.looked_at = True
        try:
            return super().result(timeout)
        except TimeoutError:
            self.looked_at = self.done()
            raise
        finally:
            del self  # or what is raised would be in a frame of its own traceback

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the message failed with, or None."""
        self.looked_at = True
        try:
            return super().exception(timeout)
        except TimeoutError:
            self.looked_at = self.done()
            raise


class Producer:
    """Sends messages to a broker, or to the first of several addresses that answers. Safe from threads.

    ``delivery_timeout``: seconds for which a message is tried; ``compress_over``: bodies longer than this many bytes
    are compressed (None: none), with ``compression`` ("zlib", also for None, which every installation can read, or
    "lz4" or "zstd"); ``in_flight_bytes_max``: bytes that may be unacknowledged before calls block; ``flush``: "sync" or
    "async", where the broker's own setting is the floor.
    ``user``, ``password``, ``tls`` …: how it gets in where a broker asks for that; see ``AccessOptions``.

    Connects when it is first used, and again whenever the connection went. A message whose acknowledgement got lost is
    sent again, with the same ``message_id``, by which the broker knows it if it was stored.
    """

    remains_told = True
    """Whether what it leaves was said; at first there is nothing."""

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
        self._sending = Sending(
            client_name(),
            delivery_timeout=delivery_timeout,
            compress_over=compress_over,
            compression=compression,
            in_flight_bytes_max=in_flight_bytes_max,
            flush=flush,
        )
        self._guard = Guard("Producer")
        dialer = Dialer(parse_addresses(addresses), access_for(self, access), ConnectionLog("Producer"))
        self._caller = Caller(dialer, self._guard, self._sending.delivery_seconds)
        self._delivery = self._sending.delivery
        self._driver = DeliveryDriver(self._delivery, dialer, self._connected, self._settle)
        self._mutex = self._driver.mutex
        self._unsettled: dict[Single, None] = {}
        self._failed: deque[SendFuture] = deque(maxlen=_FAILURES_KEPT)
        self.remains_told = False
        unsent.watch(self)

    def _connected(self, connection: Connection) -> None:
        self._sending.connected(connection.local_address)

    # ---- one message

    def send(
        self, message: Message, *, queue: int | None = None, flush: Flush | None = None, timeout: float | None = None
    ) -> Receipt:
        """Send one message and return its receipt once it is acknowledged.

        ``queue``: where it goes, if it matters; ``flush``: this message's, where it is to be stricter; ``timeout``:
        seconds, instead of ``delivery_timeout``. Raises what the broker refused it with, or ``ConnectionFailed`` or
        ``RequestTimeout`` when the time is over.
        """
        single = None
        try:
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
            del single  # or the error would be in a frame of its own traceback

    def send_async(
        self, message: Message, *, queue: int | None = None, flush: Flush | None = None, timeout: float | None = None
    ) -> SendFuture:
        """Hand over one message and return at once; blocks only while too many bytes are unacknowledged.

        The future is completed without further calls, perhaps by another thread.
        """
        future = SendFuture()
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
        """Complete the future of a message that is done."""
        future: SendFuture = single.future
        del self._unsettled[single]
        if single.error is None:
            future.set_result(single.receipt())
        else:
            self._sending.learn(single.error)
            self._failed.append(future)
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
        """Send any number of messages and return their receipts, in their order, once all are acknowledged.

        The messages go in as few frames as possible, several of them in flight; those of a pinned queue in order, one
        frame after the other. ``timeout``: seconds for the whole call; without it each frame has ``delivery_timeout``.
        ``prepare``: the attempt that they are prepared for; nobody gets them until ``Admin.commit_prepared`` names it,
        and the receipts' offsets are those of where they wait.
        Raises ``DeliveryFailed``, which says which messages failed and why, and has the receipts of the others.
        """
        return self._deliver(self._sending.many(messages, queue, flush, timeout, prepare, time.monotonic()), timeout)

    def send_bulk(
        self,
        topic: str,
        bodies: Iterable[Body],
        *,
        keys: Iterable[str | Sequence[str] | None] | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        sharding_key: str | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
        flush: Flush | None = None,
        prepare: str | None = None,
        timeout: float | None = None,
    ) -> Sequence[Receipt]:
        """Send many bodies to one topic, the fastest way. ``keys``: one entry for each body (a key, several, or None);
        ``tags``, ``properties``, ``sharding_key`` and the delay are the same for all, and as of ``Message``. Otherwise
        as ``send_many``."""
        now = time.monotonic()
        common = common_properties(tags, properties, sharding_key) + delay_properties(delay_level, deliver_at, delay)
        plan = self._sending.columns(topic, bodies, keys, common, queue, sharding_key, flush, timeout, prepare, now)
        return self._deliver(plan, timeout)

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
        """The calling thread was interrupted, perhaps between any two steps."""
        self._driver.abandon()
        if waited_for is not None:
            with self._mutex:
                self._delivery.abandon(waited_for, FlintError("its caller was interrupted"))

    # ---- end

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything handed to ``send_async`` so far is acknowledged.

        Raises ``DeliveryFailed`` where some of it failed and nobody has looked at its future, and ``RequestTimeout``
        where ``timeout`` seconds did not suffice (without one, each message has its own).
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
                    f"{left} of {len(outstanding)} messages are not acknowledged yet; they are still tried"
                )
        if not self._driver.is_calling_back:
            wait_for_futures([single.future for single in outstanding])
        self._raise_failures()

    def _raise_failures(self) -> None:
        failed = [self._failed.popleft() for _ in range(len(self._failed))]
        raise_unseen(Future.exception(future) for future in failed if not future.looked_at)

    def close(self) -> None:
        """Take nothing more, wait for what was handed over, then disconnect. Idempotent.

        Raises ``DeliveryFailed`` where some of that failed and nobody has looked at its future; never because the
        broker went while nothing was unacknowledged.
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
            if raised is None or isinstance(raised, Exception):  # Ctrl-C does not wait
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
        """Return how many messages of ``send_async`` are not acknowledged yet, and how many failed without anybody
        having looked at their futures."""
        if self._guard.forked:
            return 0, 0  # they are the parent's
        return len(self._unsettled), sum(not future.looked_at for future in list(self._failed))

    def __del__(self) -> None:
        if not self.remains_told:
            unsent.abandoned(self, "nobody holds it any more")

    def __enter__(self) -> Self:
        self._guard.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(raised)
