"""One delivery: a message that an application received, and settles when and where it likes."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from ....protocol.errors import FlintError
from ...core.client_guard import Guard
from ...core.consume.batch import StoredMessage
from ...core.hooks import Observation
from ...core.rpc.timeouts import check_timeout
from ...errors import DeliveryLost, InvalidArgumentType
from .assignments import WorkItem
from .group_client import Engine
from .options import Options
from .outcome import Failure, GiveUp, Tried, TryLater, failed_with


class Delivery:
    """A message that a ``GroupConsumer`` handed out, until it is settled: by ``ack``, ``retry`` or ``dead``.

    Deliveries are settled in any order, from any thread (those of an asyncio consumer too); no call blocks. The first
    outcome counts: later calls change nothing. All raise ``DeliveryLost`` if the message is no longer this member's, so
    that it is handled again whatever the caller did: its queue was given to another member because the broker had not
    heard from this one for ``session_timeout``, ``listener_timeout`` has passed, its lease is over (``mode="work"``),
    or the consumer has ended. They raise ``ForkedClient`` in a forked child.
    """

    __slots__ = ("_settled", "_source", "_work", "handling", "message")

    message: StoredMessage
    """The message. It does not keep the bytes of other messages."""

    def __init__(self, source: DeliverySource, work: Any) -> None:
        self.message = work.messages[0]
        self._source = source
        self._work = work
        self._settled = False
        self.handling: Observation | None = None
        """Set by hooks: it ends when the delivery is settled or lost."""

    def ack(self) -> None:
        """Settle the message as handled. Its progress is committed with the next commit."""
        self._settle(None)

    def retry(self, delay_level: int = 0, reason: str | None = None) -> None:
        """Have the message redelivered later, to any member.

        ``delay_level``: 1 to 18 (1 s to 2 h), 0: the group's delay, which increases with every attempt. ``reason`` is
        stored with the message (``StoredMessage.retry_reason``); by default it is the exception that is being handled,
        if any.
        """
        self._settle(TryLater(delay_level, reason=_checked(reason)))

    def dead(self, reason: str | None = None) -> None:
        """Make the message a dead letter, without redelivery. ``reason``: as for ``retry``."""
        self._settle(GiveUp(reason=_checked(reason)))

    def _settle(self, told: TryLater | None) -> None:
        handling = self.handling
        if handling is None:
            self._source.settle(self, told)
            return
        try:
            self._source.settle(self, told)
        except BaseException as error:
            handling.end(error)
            raise
        handling.end(told)

    def renew(self, seconds: float) -> None:
        """Let the lease end this many seconds from now, and stop renewing it automatically.

        Does nothing if the consumer is not in the mode ``work``: then the message stays here as long as the member
        does.
        """
        self._source.renew(self, check_timeout("seconds", seconds))

    @property
    def settled(self) -> bool:
        """True after ``ack``, ``retry`` or ``dead`` has succeeded."""
        return self._settled

    @property
    def lost(self) -> bool:
        """True if the message is no longer this member's, and is handled again. In the mode ``work`` this may turn out
        after the delivery was settled: the outcome reached the broker too late."""
        return self._source.is_lost(self)

    def __repr__(self) -> str:
        state = "lost" if self.lost else "settled" if self._settled else "open"
        return f"<Delivery {state} {self.message!r}>"


class DeliverySource(ABC):
    """The messages of one member that wait to be received, and its open deliveries. Thread-safe.

    ``changed``: called, by any thread, after a change that a receiver, or the end of the consumer, may wait for.
    """

    def __init__(self, options: Options, guard: Guard, changed: Callable[[], None]) -> None:
        self.condition = threading.Condition(threading.Lock())
        """Notified with every change."""
        self.ended = False
        """True if nothing more is handed out."""
        self._options = options
        self._guard = guard
        self._changed = changed

    @property
    @abstractmethod
    def ready(self) -> int:
        """Number of deliveries that receivers can take; read it under ``condition``."""

    @property
    def available(self) -> bool:
        """True if a receiver need not wait; read it under ``condition``."""
        return self.ended or self.ready > 0

    @property
    @abstractmethod
    def open_count(self) -> int:
        """Number of open deliveries."""

    @abstractmethod
    def expect(self, count: int) -> None:
        """Note that receivers wait for this many more messages, or (if negative) for fewer."""

    @abstractmethod
    def take(self, max_count: int) -> list[Delivery]:
        """Open up to ``max_count`` deliveries; returns none if none is available."""

    @abstractmethod
    def settle(self, delivery: Delivery, told: TryLater | None) -> None:
        """Settle a delivery: as handled, or with what a listener would have raised."""

    @abstractmethod
    def renew(self, delivery: Delivery, seconds: float) -> None:
        """Let the lease of a delivery end this many seconds from now."""

    @abstractmethod
    def is_lost(self, delivery: Delivery) -> bool:
        """Return whether the message of a delivery is no longer this member's."""

    @abstractmethod
    def end(self, *, abandon: bool) -> None:
        """Hand out nothing more, and give back the waiting messages. ``abandon``: forget the open deliveries."""

    def _failure(self, told: TryLater, message: StoredMessage, work: Tried) -> Failure:
        """Log with what the application has settled a message, and return it."""
        told.__context__ = sys.exception()
        (failure,) = failed_with(told, self._options, (message,), work)
        return failure if told.reason or told.__context__ is not None else failure._replace(reason="")

    def _cannot_settle(self, message: StoredMessage, why: str, failure: FlintError | None) -> DeliveryLost:
        """Return the error for a message that is no longer this member's; ``failure``: that of its engine."""
        lost = DeliveryLost(
            f"the message at offset {message.queue_offset} of queue {message.queue} of topic {message.topic} cannot be "
            f"settled, because {why}: it is handled again, by this or another "
            f"{'consumer' if self._options.leases else 'member'} of group {self._options.group}"
        )
        lost.__cause__ = failure
        return lost


def _checked(reason: str | None) -> str:
    if not isinstance(reason, str | None):
        raise InvalidArgumentType(f"reason must be a str or None, not {type(reason).__name__}")
    return reason or ""


# ---- The deliveries of a member to which the broker assigns queues.


class Deliveries(DeliverySource):
    """The works that wait to be received, and those whose deliveries are open.

    The engine holds its lock when it calls ``give_up``, so nothing here calls the engine while it holds ``condition``.
    """

    def __init__(self, options: Options, guard: Guard, changed: Callable[[], None]) -> None:
        super().__init__(options, guard, changed)
        self.engine: Engine
        """Set by the creator of both."""
        self._waiting: deque[WorkItem] = deque()
        self._open: dict[WorkItem, Delivery] = {}

    # ---- for receivers

    @property
    def ready(self) -> int:
        return min(len(self._waiting), self._options.max_open - len(self._open))

    @property
    def open_count(self) -> int:
        return len(self._open)

    def expect(self, count: int) -> None:
        """Do nothing: the engine pulls ahead of receivers."""

    def renew(self, delivery: Delivery, seconds: float) -> None:
        """Do nothing, but raise if the message is no longer this member's."""
        self._guard.check_fork()
        with self.condition:
            is_open = self._open.get(delivery._work) is delivery
        if not (is_open or delivery._settled):
            raise self._lost(delivery.message, delivery._work)

    def is_lost(self, delivery: Delivery) -> bool:
        """Return whether the message of a delivery is no longer this member's, and handled again."""
        work: WorkItem = delivery._work
        if delivery._settled:
            return work.claim.lost and work.next_offset > work.claim.committed
        return work.claim.lost or work.given_up or work not in self._open

    def take(self, max_count: int) -> list[Delivery]:
        with self.condition:
            count = min(max_count, len(self._waiting), self._options.max_open - len(self._open))
            works = [self._waiting.popleft() for _ in range(count)]
            deliveries = [Delivery(self, work) for work in works]
            self._open.update(zip(works, deliveries, strict=True))
        if not works:
            return []
        begun = self.engine.hand_out(works)
        if len(begun) == len(works):
            return deliveries
        with self.condition:
            for work in set(works).difference(begun):
                self._open.pop(work, None)
            self.condition.notify_all()
        self._changed()
        kept = set(begun)
        return [delivery for work, delivery in zip(works, deliveries, strict=True) if work in kept]

    def settle(self, delivery: Delivery, told: TryLater | None) -> None:
        self._guard.check_fork()  # first, because the parent's threads may have held the lock
        work: WorkItem = delivery._work
        message = delivery.message
        with self.condition:
            if delivery._settled:
                return
            is_open = self._open.get(work) is delivery
            if is_open:
                tell = self.ended or len(self._open) >= self._options.max_open
                delivery._settled = True  # before it leaves the open ones: see is_lost
                del self._open[work]
                self.condition.notify()
        if is_open:
            failed = [] if told is None else [self._failure(told, message, work)]
            if tell:
                self._changed()
            if self.engine.settle(work, failed):
                return
            delivery._settled = False
        raise self._lost(message, work)

    def _lost(self, message: StoredMessage, work: WorkItem) -> DeliveryLost:
        failure = self.engine.failure
        if failure is not None:
            why = f"its consumer ended: {failure}"
        elif self.ended:
            why = "its consumer was closed before"
        elif work.claim.lost:
            why = "its queue was taken from this member"
        else:
            why = f"it was open for more than {self._options.listener_timeout:g} s (listener_timeout)"
        return self._cannot_settle(message, why, failure)

    # ---- for the engine, on the I/O thread

    def add(self, works: list[WorkItem]) -> None:
        """Offer works to receivers."""
        with self.condition:
            ended = self.ended
            if not ended:
                self._waiting.extend(works)
                self.condition.notify(len(works))
        if ended:
            self._give_back(works)
        else:
            self._changed()

    def recall(self) -> None:
        """Give back the messages of revoked and lost queues that no receiver has got, and forget the open
        deliveries of lost queues."""
        with self.condition:
            back = [work for work in self._waiting if work.claim.stopped]
            self._waiting = deque(work for work in self._waiting if not work.claim.stopped)
            lost = [self._open.pop(work) for work in list(self._open) if work.claim.lost]
            self.condition.notify_all()
        self._end_handling(lost)
        self._give_back(back)
        self._changed()

    def give_up(self, work: WorkItem) -> None:
        """Forget a delivery that was open for too long."""
        with self.condition:
            delivery = self._open.pop(work, None)
            self.condition.notify_all()
        if delivery is not None:
            self._end_handling([delivery])
        self._changed()

    def end(self, *, abandon: bool) -> None:
        with self.condition:
            self.ended = True
            back, self._waiting = list(self._waiting), deque()
            lost = list(self._open.values()) if abandon else []
            if abandon:
                self._open.clear()
            self.condition.notify_all()
        self._end_handling(lost)
        self._give_back(back)
        self._changed()

    def _end_handling(self, lost: list[Delivery]) -> None:
        for delivery in lost:
            if delivery.handling is not None:
                delivery.handling.end(self._lost(delivery.message, delivery._work))

    def _give_back(self, works: list[WorkItem]) -> None:
        for work in works:
            self.engine.give_back(work)
