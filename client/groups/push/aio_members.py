"""The members of groups for asyncio: what all of them share, and the one whose application receives messages."""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from ....protocol.errors import FlintError
from ...aio.rpc import Dialer
from ...core import hooks
from ...core.rpc.timeouts import check_timeout, wait_seconds
from ...errors import ClientClosed, InvalidArgument, ListenerTimeout
from .aio_waits import Awaited, Life, Receivers, awaited, completed
from .delivery import Delivery
from .group_client import MemberEngine
from .shell import MemberShell, ReceiverShell

# sync: groups for asyncio: what
# => groups: what
# sync: .aio_waits
# => .waits
# sync: If it is cancelled, it first closes the consumer, which may have joined.
# =>
# sync: Cancelling the wait does not affect the consumer.
# =>
# sync: If it is cancelled, no message is lost.
# =>
# sync: ``receive`` and ``close`` are coroutines; a loop that is blocked for a while neither leaves the group nor loses
# sync: a delivery.
# =>
# sync: Other tasks
# => Other threads
# sync: Tasks of one event loop may share it.
# => Threads may share it.


class ClientMember(MemberShell):
    """The start, the waits and the commits of a member; subclasses hand its messages to the application."""

    def _new_engine(self, dialer: Dialer) -> MemberEngine:
        self._life = Life(type(self).__name__)
        self._end: Awaited[None] | None = None
        """The end of the engine, once it is started."""
        return self._engine_for(dialer)

    @abstractmethod
    def _engine_for(self, dialer: Dialer) -> MemberEngine:
        """Create the engine."""

    @abstractmethod
    async def close(self, timeout: float = 30.0) -> None:
        """Let the application finish, commit, and leave the group."""

    async def start(self) -> Self:
        """Join the group; returns when the broker has accepted the member. Raises its refusal, or that it is
        unreachable. If it is cancelled, it first closes the consumer, which may have joined."""
        joined = self._launch()
        try:
            await completed(joined, self._timeout)
        except BaseException:  # the consumer may have joined, and the caller has nothing to close
            with contextlib.suppress(FlintError):
                await self.close()
            raise
        await self._check_joined()
        return self

    def _launch(self) -> Awaited[None]:
        """Begin to join; returns when that is done."""
        self._life.enter()
        if self._started:
            raise InvalidArgument("this consumer was already started; create a new one to start again")
        self._started = True
        self._end = awaited(self._engine.ended)
        joined = awaited(self._engine.joined)
        self._engine.start()
        return joined

    async def _check_joined(self) -> None:
        """Raise the error that kept the consumer from joining its group, if any."""
        assert self._end is not None
        if not self._engine.joined.done():
            reason = self._not_joined()
            self._life.closing()
            self._engine.abandon()  # it may hang in a connection attempt; report why it could not join
            await completed(self._end, self._timeout)
            raise reason
        if self._engine.failure is not None:
            self._life.closing()
            raise self._engine.failure

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds until the consumer is closed; returns whether it is.

        Raises ``ClientFailed``, with the reason as its cause, if the consumer cannot continue. Cancelling the wait does
        not affect the consumer.
        """
        if self._end is None:
            raise self._not_started()
        ended = await completed(self._end, None if timeout is None else wait_seconds(timeout))
        self._engine.check()
        return ended

    async def commit(self, timeout: float | None = None) -> None:
        """Commit the progress so far and wait for the broker's confirmation. Raises the error if that fails."""
        self._check()
        told: Future[FlintError | None] = Future()
        told_here = awaited(told)
        self._engine.commit(told.set_result)
        seconds = self._timeout if timeout is None else check_timeout("timeout", timeout)
        if not await completed(told_here, seconds):
            raise self._not_confirmed()
        if (error := told_here.result()) is not None:
            raise error

    def _check(self) -> None:
        self._life.enter()
        self._engine.check()


# ---- The application receives messages, and settles each of them.


class GroupConsumer(ReceiverShell, ClientMember):
    """A member of a consumer group whose application receives messages, and settles each of them when and where it
    likes.

    ``receive`` returns ``Delivery`` objects; settle each by ``ack()``, ``retry()`` or ``dead()``, in any order and from
    any thread. As long as a delivery is open, no other member gets its message; if this member is killed, another one
    does. A message may be delivered more than once: after ``retry``, and after a member was killed.
    ``receive`` and ``close`` are coroutines; a loop that is blocked for a while neither leaves the group nor loses a
    delivery.

    ``group`` and ``topics`` are required. ``topics``: one, several, or a mapping from topic to tags or
    ``Subscription``. ``max_open`` (1000): maximum number of open deliveries; ``receive`` waits while there are as many.
    ``max_uncommitted`` (10,000): maximum number of messages of a queue from its oldest open one on. The queue continues
    behind a message that stays open until it has so many, and then waits for it. If the member is killed, messages that
    were settled behind an open one are delivered again, so this is also the maximum of these for each queue.

    ``prefetch_messages`` (1000), ``prefetch_bytes`` (64 MiB): maximum to pull ahead of ``receive``.
    ``listener_timeout`` (infinite): seconds after which an open delivery is taken back and redelivered later; to settle
    it then raises ``DeliveryLost``. ``start``, ``member``, ``auto_commit``, ``commit_interval``, ``session_timeout``,
    ``retry_times_max``, ``delay_level`` and ``retry_reason`` are those of ``PushConsumer``. There is no orderly mode.

    With ``mode="work"`` any number of consumers share the queues, and the order is given up: each message is leased to
    one of them for ``lease`` (30) seconds, and delivered again if it is not settled by then. ``auto_renew`` (True):
    open deliveries are renewed, for at most ``listener_timeout`` (3600 s). ``prefetch_messages`` is then 0; the options
    about members and commits do not apply.

    ``start()`` joins the group; as a context manager the consumer starts and closes itself. Iterating receives
    deliveries, one at a time, until the consumer is closed. Tasks of one event loop may share it.
    """

    def _engine_for(self, dialer: Dialer) -> MemberEngine:
        self._receivers = Receivers(self._life)
        engine, self._deliveries = self._engine_of(dialer, self._life.guard, self._receivers.changed)
        self._receivers.deliveries = self._deliveries
        return engine

    # ---- deliveries

    async def receive(self, max_count: int = 1, timeout: float | None = None) -> list[Delivery]:
        """Wait for a message, and return it with others that are there already: at most ``max_count`` deliveries.

        Returns an empty list after ``timeout`` seconds; 0: does not wait. Raises ``ClientClosed`` if the consumer is
        closed, also while this waits, and ``ClientFailed`` if it cannot continue. If it is cancelled, no message is
        lost.
        """
        deadline = time.monotonic() + self._check_receive(max_count, timeout)
        with hooks.active.receiving(self._side) as receiving:
            found = self._deliveries.take(max_count) or await self._receive_later(max_count, deadline)
            return receiving.deliveries(found)

    async def _receive_later(self, max_count: int, deadline: float) -> list[Delivery]:
        deliveries = self._deliveries
        deliveries.expect(max_count)
        try:
            while True:
                if deliveries.ended:
                    self._check()
                    raise ClientClosed("this GroupConsumer was closed; create a new one")
                found = deliveries.take(max_count)
                left = deadline - time.monotonic()
                if found or left <= 0:
                    return found
                await self._receivers.wait(lambda: deliveries.available, left)
        finally:
            deliveries.expect(-max_count)

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

        Other tasks may settle meanwhile. Raises ``ListenerTimeout`` if some deliveries are still open after
        ``timeout`` seconds (0: does not wait for them); the consumer leaves nevertheless, and their messages are
        redelivered to other members. Raises ``ClientFailed`` if the consumer failed before. In a forked child it does
        nothing.
        """
        seconds = wait_seconds(timeout)
        if self._life.forked or self._life.closed or self._end is None:
            self._life.closing()
            return
        self._life.check_loop()
        self._life.closing()
        deliveries = self._deliveries
        self._engine.leave()
        deliveries.end(abandon=False)
        deadline = time.monotonic() + seconds
        try:
            while deliveries.open_count and (left := deadline - time.monotonic()) > 0:
                await self._receivers.wait(lambda: not deliveries.open_count, left)
        finally:
            open_count = deliveries.open_count
            if open_count:
                deliveries.end(abandon=True)
                self._engine.abandon()
        confirmed = await completed(self._end, self._timeout)
        self._engine.abandon()
        self._engine.check()
        if open_count:
            raise self._not_settled(open_count, seconds)
        if not confirmed:
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
