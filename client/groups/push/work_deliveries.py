"""The leases of a consumer of a work queue: those that wait for a receiver, the open ones, and outcomes to be sent."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import NamedTuple

from ....protocol.errors import FlintError
from ...core.client_guard import Guard
from ...core.consume.batch import StoredMessage
from ...errors import DeliveryLost, InvalidArgument
from .delivery import Delivery, DeliverySource
from .options import LEASE_SECONDS_MAX, Options
from .outcome import Counts, Failure, TryLater
from .progress import Told

# ---- The lease of one message, as the consumer of a work queue keeps it.


class Lease:
    """A message that the broker has leased to this consumer. Times are seconds of the engine's clock.

    ``ends_at``: the lease is over then at the latest; ``renew_at``: when to renew it by itself; ``renew_until``: end of
    that. ``resent``: its outcome was sent before, and the response was lost.
    """

    __slots__ = (
        "begun_at",
        "ends_at",
        "lost",
        "message",
        "offset",
        "pop_ms",
        "queue",
        "renew_at",
        "renew_until",
        "resent",
        "retry",
        "topic",
    )

    tries = 0
    """Attempts in its place, of which a work queue has none."""

    def __init__(self, message: StoredMessage, topic: str, pop_ms: int, *, retry: bool) -> None:
        self.message = message
        self.topic = topic
        self.retry = retry
        self.queue = message.queue
        self.offset = message.queue_offset
        self.pop_ms = pop_ms
        self.ends_at = inf
        self.renew_at = inf
        self.renew_until = inf
        self.begun_at = inf
        self.resent = False
        self.lost = ""
        """Why it cannot be settled any more; empty: it can."""

    @property
    def messages(self) -> tuple[StoredMessage]:
        """Its message, like those of a ``WorkItem``."""
        return (self.message,)


log = logging.getLogger(__name__)

GATHER_SECONDS = 0.005
"""Time for which outcomes are gathered, to be sent together."""
RENEWALS_A_LEASE = 3
"""A lease is renewed when this part of it is over."""


class Returned(NamedTuple):
    """An outcome other than an acknowledgement."""

    lease: Lease
    delay_level: int
    reason: str


class WorkDeliveries(DeliverySource):
    """The leases of one consumer. ``condition`` guards all of them, for the engine too."""

    def __init__(self, options: Options, guard: Guard, changed: Callable[[], None]) -> None:
        super().__init__(options, guard, changed)
        self.counts = Counts()
        self.failure: FlintError | None = None
        """The error with which the engine ended."""
        self.wake: Callable[[], None] = lambda: None
        """Wakes the engine; set by it."""
        self.flush_at = inf
        """When the outcomes are to be sent."""
        self.waiting: deque[Lease] = deque()
        self.open: dict[Lease, Delivery] = {}
        self.acks: dict[str, list[Lease]] = {}
        """By topic: messages that were handled."""
        self.backs: deque[Returned] = deque()
        self.renewals: dict[Lease, float] = {}
        """Leases to be renewed now, and for how many seconds."""
        self.unwanted: dict[Lease, None] = {}
        """Leases to be given back, because no receiver took them in time."""
        self.unconfirmed: dict[Lease, None] = {}
        """Leases whose outcome the broker has not confirmed."""
        self._told: list[tuple[set[Lease], list[DeliveryLost], Told]] = []
        """Callers that wait until leases are confirmed."""
        self._expected = 0
        self._polled = 0
        """Messages that receivers have looked for since the last requests, although they may wait no more: one that
        does not wait gets them at its next look."""
        self._lease_seconds = options.lease

    # ---- for receivers

    @property
    def ready(self) -> int:
        return len(self.waiting)

    @property
    def open_count(self) -> int:
        return len(self.open)

    def expect(self, count: int) -> None:
        """Note that receivers wait for this many more messages, which are requested at once, or (if negative) fewer."""
        with self.condition:
            self._expected += count
            self._polled = max(self._polled, count)
            wake = self._expected > len(self.waiting)
        if count > 0 and wake:
            self.wake()

    def take(self, max_count: int) -> list[Delivery]:
        deliveries: list[Delivery] = []
        now = time.monotonic()
        with self.condition:
            while self.waiting and len(deliveries) < max_count and not self.ended:
                lease = self.waiting.popleft()
                if now >= lease.ends_at:
                    continue  # the process slept: the message is another consumer's by now
                lease.begun_at = now
                lease.renew_until = now + self._options.listener_timeout
                delivery = self.open[lease] = Delivery(self, lease)
                deliveries.append(delivery)
        return deliveries

    def settle(self, delivery: Delivery, told: TryLater | None) -> None:
        self._guard.check_fork()  # first, because the parent's threads may have held the lock
        lease: Lease = delivery._work
        failure: Failure | None = None
        if told is not None:
            with self.condition:
                is_open = not delivery._settled and not self._why_lost(lease)
            if is_open:
                failure = self._failure(told, delivery.message, lease)
        with self.condition:
            if delivery._settled:
                return
            if why := self._why_lost(lease):
                raise self._lost(lease, why)
            delivery._settled = True  # before it leaves the open ones: see is_lost
            del self.open[lease]
            self.unconfirmed[lease] = None
            if failure is None:
                self.counts.consumed += 1
                self.acks.setdefault(lease.topic, []).append(lease)
            else:
                self.counts.failed += 1
                level = failure.delay_level or self._options.delay_level
                self.backs.append(Returned(lease, level, failure.reason))
            self._gather()
            tell = self.ended and not self.open
            if tell:
                self.condition.notify_all()
        if tell:
            self._changed()

    def _gather(self) -> None:
        """Have the outcomes sent soon."""
        if self.flush_at == inf:
            self.flush_at = time.monotonic() + GATHER_SECONDS
            self.wake()

    def renew(self, delivery: Delivery, seconds: float) -> None:
        if not seconds <= LEASE_SECONDS_MAX:
            raise InvalidArgument(f"seconds is {seconds}; a lease lasts at most {LEASE_SECONDS_MAX:,.0f} s")
        self._guard.check_fork()
        lease: Lease = delivery._work
        with self.condition:
            if delivery._settled:
                return
            if why := self._why_lost(lease):
                raise self._lost(lease, why)
            lease.renew_at = inf
            self.renewals[lease] = seconds
        self.wake()

    def is_lost(self, delivery: Delivery) -> bool:
        """Return whether the message of a delivery is no longer this consumer's."""
        lease: Lease = delivery._work
        return bool(lease.lost) or not (lease in self.open or delivery._settled)

    def _why_lost(self, lease: Lease) -> str:
        if lease.lost:
            return lease.lost
        if self.failure is not None:
            return f"its consumer ended: {self.failure}"
        if lease not in self.open:
            return "its consumer was closed before"
        if time.monotonic() >= lease.ends_at:
            self._lose(lease, "its lease was over")
        return lease.lost

    def _lost(self, lease: Lease, why: str) -> DeliveryLost:
        return self._cannot_settle(lease.message, why, self.failure)

    def end(self, *, abandon: bool) -> None:
        """Hand out nothing more, and give back the waiting messages. ``abandon``: the open ones, too."""
        with self.condition:
            self.ended = True
            self.unwanted.update(dict.fromkeys(self.waiting))
            self.waiting.clear()
            lost = list(self.open.values()) if abandon else []
            if abandon:
                self.unwanted.update(dict.fromkeys(self.open))
                self.renewals.clear()
                self.open.clear()
            self.condition.notify_all()
        for delivery in lost:
            if delivery.handling is not None:
                delivery.handling.end(self._lost(delivery._work, "its consumer was closed before"))
        self.wake()
        self._changed()

    # ---- for the engine, on the I/O thread

    def wanted(self) -> int:
        """Return how many more messages receivers wait for, as far as there may be more."""
        options = self._options
        with self.condition:
            waiting = len(self.waiting)
            room = options.max_open - len(self.open) - waiting - len(self.unconfirmed)
            looked_for = max(self._expected, self._polled)
            return 0 if self.ended else min(looked_for + options.prefetch_messages - waiting, room)

    def requested(self) -> None:
        """Note that what receivers have looked for was requested."""
        with self.condition:
            self._polled = 0

    def add(self, leases: Iterable[Lease]) -> None:
        """Offer messages that have just arrived to receivers."""
        now = time.monotonic()
        count = 0
        with self.condition:
            for lease in leases:
                lease.ends_at = now + self._lease_seconds
                tags, _ = self._options.subscriptions[lease.topic]
                if tags.wanted and not lease.retry and not tags.accepts(lease.message.tags):
                    self.unconfirmed[lease] = None  # the broker compares only hashes, and two tags can have the same
                    self.acks.setdefault(lease.topic, []).append(lease)
                    self._gather()
                elif self.ended:
                    self.unwanted[lease] = None
                else:
                    if self._options.auto_renew:
                        lease.renew_at = now + self._lease_seconds / RENEWALS_A_LEASE
                    self.waiting.append(lease)
                    count += 1
            self.condition.notify(count)
        if count:
            self._changed()

    def look_after(self, now: float) -> None:
        """Notice what time has done: leases to renew or to give back, and leases that are over."""
        half = self._lease_seconds / 2
        with self.condition:
            while self.waiting and self.waiting[0].ends_at - now < half:
                self.unwanted[self.waiting.popleft()] = None
            over = [lease for lease in self.open if now >= lease.ends_at]
            for lease in over:
                self._lose(lease, "its lease was over")
            for lease in self.open:
                if lease.renew_at <= now < lease.renew_until:
                    lease.renew_at = inf  # until the response
                    self.renewals[lease] = self._lease_seconds
            if over:
                self.condition.notify_all()
        if over:
            self._changed()

    def _lose(self, lease: Lease, why: str) -> None:
        lease.lost = why
        delivery = self.open.pop(lease, None)
        self.renewals.pop(lease, None)
        self.counts.stuck += 1
        lost = self._lost(lease, why)
        log.warning("%s", lost)
        if delivery is not None and delivery.handling is not None:
            delivery.handling.end(lost)

    def renewed(self, leases: Sequence[Lease], valid: bytes, sent_at: float, seconds: float) -> None:
        """Take the response to renewals. ``valid``: a byte for each."""
        now = time.monotonic()
        with self.condition:
            for lease, is_valid in zip(leases, valid, strict=True):
                if is_valid:
                    lease.ends_at = now + seconds
                    if self._options.auto_renew and seconds == self._lease_seconds:
                        lease.renew_at = sent_at + seconds / RENEWALS_A_LEASE
                elif lease in self.open:
                    self._lose(lease, "its lease was over")
            self.condition.notify_all()
        if 0 in valid:
            self._changed()

    def confirmed(self, leases: Sequence[Lease], valid: bytes) -> None:
        """Take the response to outcomes. ``valid``: a byte for each."""
        now = time.monotonic()
        with self.condition:
            for lease, is_valid in zip(leases, valid, strict=True):
                # The broker may have taken an outcome whose response was lost: then the receipt is void.
                if not is_valid and not (lease.resent and now < lease.ends_at):
                    self._lose(lease, "its lease was over before its outcome arrived")
                self.unconfirmed.pop(lease, None)
            self._tell(leases)

    def refused(self, leases: Sequence[Lease], error: FlintError) -> None:
        """Give up outcomes that the broker does not take."""
        with self.condition:
            for lease in leases:
                self._lose(lease, f"the broker refused its outcome: {error}")
                self.unconfirmed.pop(lease, None)
            self._tell(leases)

    def _tell(self, leases: Sequence[Lease]) -> None:
        for left, lost, _ in self._told:
            lost += [self._lost(lease, lease.lost) for lease in leases if lease in left and lease.lost]
            left.difference_update(leases)
        done, self._told = [each for each in self._told if not each[0]], [each for each in self._told if each[0]]
        for _, lost, told in done:
            told(lost[0] if lost else None)

    def when_confirmed(self, told: Told) -> None:
        """Call ``told`` when the broker has confirmed all outcomes until now, with ``DeliveryLost`` for the first that
        came too late."""
        with self.condition:
            if self.unconfirmed:
                self._told.append((set(self.unconfirmed), [], told))
                self.flush_at = 0.0
                told = _ignore
        told(None)
        self.wake()

    def fail(self, error: FlintError | None, closed: FlintError) -> None:
        """Hand out nothing more because the engine has ended; callers that wait get ``error``, or ``closed``."""
        with self.condition:
            self.failure = error
            told, self._told = self._told, []
        for _, _, tell in told:
            tell(error or closed)


def _ignore(error: FlintError | None) -> None:
    """Do nothing."""
