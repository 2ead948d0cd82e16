"""The group consumer for threads: the application receives messages, and settles each of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from ...core import hooks
from ...core.rpc.timeouts import wait_seconds
from ...errors import ClientClosed, ListenerTimeout
from ...sync.pool import Dialer
from .delivery import Delivery
from .member_engine import MemberEngine
from .receiver_shell import ReceiverShell
from .thread_member import ThreadMember

_WAIT_SECONDS_MAX = 1.0
"""Maximum wait: Windows handles a signal only between two waits."""


class GroupConsumer(ReceiverShell, ThreadMember):
    """A member of a consumer group whose application receives messages, and settles each of them when and where it
    likes.

    ``receive`` returns ``Delivery`` objects; settle each by ``ack()``, ``retry()`` or ``dead()``, in any order and from
    any thread. As long as a delivery is open, no other member gets its message; if this member is killed, another one
    does. A message may be delivered more than once: after ``retry``, and after a member was killed.

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
    deliveries, one at a time, until the consumer is closed. Threads may share it.
    """

    def _engine_for(self, dialer: Dialer) -> MemberEngine:
        return self._engine_of(dialer, self._guard, lambda: None, self._engine_ended)

    def _begin_handling(self) -> None:
        return

    def _end_handling(self) -> None:
        self._deliveries.end(abandon=True)

    # ---- deliveries

    def receive(self, max_count: int = 1, timeout: float | None = None) -> list[Delivery]:
        """Wait for a message, and return it with others that are there already: at most ``max_count`` deliveries.

        Returns an empty list after ``timeout`` seconds; 0: does not wait. Raises ``ClientClosed`` if the consumer is
        closed, also while this waits, and ``ClientFailed`` if it cannot continue.
        """
        deadline = time.monotonic() + self._check_receive(max_count, timeout)
        if (active := hooks.installed) is None:
            return self._deliveries.take(max_count) or self._receive_later(max_count, deadline)
        with hooks.Receiving(active, self._side) as receiving:
            found = self._deliveries.take(max_count) or self._receive_later(max_count, deadline)
            receiving.messages = [delivery.message for delivery in found]
        return self._begun(active, found)

    def _receive_later(self, max_count: int, deadline: float) -> list[Delivery]:
        deliveries = self._deliveries
        deliveries.expect(max_count)
        try:
            while True:
                with deliveries.condition:
                    while not deliveries.available and (left := deadline - time.monotonic()) > 0:
                        deliveries.condition.wait(min(left, _WAIT_SECONDS_MAX))
                if deliveries.ended:
                    self._check()
                    raise ClientClosed("this GroupConsumer was closed; create a new one")
                if (found := deliveries.take(max_count)) or time.monotonic() >= deadline:
                    return found
        finally:
            deliveries.expect(-max_count)

    def __iter__(self) -> Iterator[Delivery]:
        while not self._guard.closed:
            try:
                found = self.receive()
            except ClientClosed:
                return
            yield from found

    # ---- its end

    def close(self, timeout: float = 30.0) -> None:
        """Hand out no more messages, let the open deliveries be settled, commit, and leave the group. Idempotent.

        Other threads may settle meanwhile. Raises ``ListenerTimeout`` if some deliveries are still open after
        ``timeout`` seconds (0: does not wait for them); the consumer leaves nevertheless, and their messages are
        redelivered to other members. Raises ``ClientFailed`` if the consumer failed before. In a forked child it does
        nothing.
        """
        seconds = wait_seconds(timeout)
        if self._guard.forked or self._guard.closed or not self._started:
            self._guard.closed = True
            return
        self._guard.closed = True
        deliveries = self._deliveries
        self._engine.leave()
        deliveries.end(abandon=False)
        deadline = time.monotonic() + seconds
        try:
            with deliveries.condition:
                while deliveries.open_count and (left := deadline - time.monotonic()) > 0:
                    deliveries.condition.wait(min(left, _WAIT_SECONDS_MAX))
        finally:
            open_count = deliveries.open_count
            if open_count:
                deliveries.end(abandon=True)
                self._engine.abandon()
        confirmed = self._ended.wait(self._timeout)
        self._engine.abandon()
        self._engine.check()
        if open_count:
            raise self._not_settled(open_count, seconds)
        if not confirmed:
            raise self._not_confirmed()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if raised is None:
            self.close()
        else:  # the block's exception counts, and does not wait for deliveries that it may have left open
            with contextlib.suppress(ListenerTimeout):
                self.close(0)
