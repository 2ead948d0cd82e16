"""The engine of a consumer of a work queue: it pops messages, renews leases and sends outcomes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar

from ....protocol.commands import POP_COUNT_MAX, RECEIPTS_MAX
from ....protocol.errors import ConnectionFailed, FlintError, TopicNotExist, UnknownCommand
from ....protocol.times import duration_millis
from ...aio.connection import Connection
from ...aio.rpc import Dialer
from ...core.rpc.operation import Request, backoff_seconds, is_retriable
from ...core.rpc.session import Asked
from . import work_requests
from .group_client import MemberEngine, consumer_closed
from .options import Options
from .outcome import Health
from .progress import REASONS_BYTES_MAX, SEND_BACK_MAX, Told
from .work_deliveries import Lease, Returned, WorkDeliveries

T = TypeVar("T")

log = logging.getLogger(__name__)

LOOK_SECONDS_MAX = 1.0
"""Maximum interval between two checks of the leases."""
LOOKS_A_LEASE = 20
"""Number of checks in the time of a lease."""
MISSING_SECONDS = 0.5
"""Pause before asking again for a topic that does not exist."""


@dataclass(slots=True)
class PoppedTopic:
    """A topic that the consumer pops. ``asked``: number of messages that a request under way asks for; ``retry_at``:
    when to ask again after a refusal; ``begun``: the broker has accepted this consumer on this connection."""

    name: str
    start: str
    asked: int = 0
    asks: bool = False
    retry_at: float = 0.0
    begun: bool = False
    refusal: FlintError | None = None


class WorkEngine(MemberEngine):
    """The engine of a consumer of a work queue."""

    def __init__(self, options: Options, dialer: Dialer, deliveries: WorkDeliveries) -> None:
        super().__init__(options, dialer)
        self._deliveries = deliveries
        deliveries.wake = self.wake
        self._topics = [PoppedTopic(topic, options.start) for topic in options.subscriptions]
        self._paused: frozenset[str] = frozenset()
        self._sending = 0
        """Number of requests with outcomes under way."""
        self._leaving = False
        self._over = False
        self._look_at = 0.0
        self._look_seconds = min(options.lease / LOOKS_A_LEASE, LOOK_SECONDS_MAX)

    # ---- its lifetime and control, for other threads

    def leave(self) -> None:
        """Ask for no more messages, wait for the outcomes of the open deliveries, send them, and end."""
        with self._lock:
            self._leaving = True
        self.wake()

    def abandon(self) -> None:
        """Send the outcomes that there are, and end."""
        self._deliveries.end(abandon=True)
        self.leave()

    @property
    def paused(self) -> frozenset[str]:
        """Topics of which no messages are asked for."""
        return self._paused

    def set_paused(self, topics: frozenset[str]) -> None:
        """Stop asking for messages of these topics, and only these."""
        with self._lock:
            self._paused = topics
        self.wake()

    def commit(self, told: Told) -> None:
        """Send all outcomes now; ``told`` is called when the broker has confirmed them."""
        with self._lock:
            if self.failure is not None or self._over:
                told(self.failure or consumer_closed())
                return
            self._deliveries.when_confirmed(told)

    def health(self) -> Health:
        now, deliveries = time.monotonic(), self._deliveries
        with self._lock, deliveries.condition:
            counts = deliveries.counts
            oldest = min((lease.begun_at for lease in deliveries.open), default=inf)
            missing = next((topic.refusal for topic in self._topics if topic.refusal is not None), None)
            return Health(
                alive=self.running and self.failure is None,
                joined=self.joined.done() and not self._leaving and self.failure is None,
                connected=self._connection is not None,
                group=self._options.group,
                member=self._options.member,
                epoch=0,
                queues=(),
                giving_up=0,
                pending_messages=len(deliveries.waiting) + len(deliveries.open) + len(deliveries.unconfirmed),
                pending_bytes=sum(lease.message.size for lease in (*deliveries.waiting, *deliveries.open)),
                running=len(deliveries.open),
                ahead=0,
                longest_seconds=0.0 if oldest == inf else now - oldest,
                heard_seconds=self.heard_seconds(),
                consumed=counts.consumed,
                failed=counts.failed,
                retried=counts.retried,
                dead=counts.dead,
                stuck=counts.stuck,
                skipped=0,
                taken=0,
                error=self.failure,
                trouble=self._backoff.trouble or missing,
                refused={},
                commit_trouble=None,
            )

    # ---- on the I/O thread

    @property
    def _left(self) -> bool:
        return self._over

    def _may_connect(self, now: float) -> bool:
        self._deliveries.look_after(now)
        with self._lock:
            if self._leaving and self._backoff.trouble is not None and not self._deliveries.open:
                self._over = True  # the broker is unreachable: let the leases run out
        return not self._over

    def _connected(self) -> None:
        self._look_at = 0.0

    def _disconnected(self) -> None:
        for topic in self._topics:
            topic.begun = False
            topic.retry_at = 0.0

    def _asked(self, asked: Asked, connection: Connection) -> None:
        raise UnknownCommand(f"a consumer of a work queue does not know command {asked.code}")

    def _send_due(self, connection: Connection, now: float) -> float:
        deliveries = self._deliveries
        if now >= self._look_at:
            self._look_at = now + self._look_seconds
            deliveries.look_after(now)
        due = self._renewals() + self._given_back()
        if now >= deliveries.flush_at:
            due += self._outcomes()
        if not self._leaving:
            due += self._pops(now)
        self._send(connection, due)
        with deliveries.condition:
            at = min(deliveries.flush_at, self._look_at)
            if self._leaving and not (deliveries.open or deliveries.unconfirmed or deliveries.unwanted):
                self._over = not self._sending
        at = min([at, *(topic.retry_at for topic in self._topics if topic.retry_at > now)])
        return max(0.0, min(at - now, LOOK_SECONDS_MAX))

    def _pass_on(self) -> None:
        return

    def _ended(self, error: FlintError | None) -> None:
        self._over = True
        self._deliveries.fail(error, consumer_closed())
        self._note_joined()

    # ---- pops

    def _pops(self, now: float) -> list[Request]:
        """Return the requests for as many messages as receivers wait for."""
        ready = [topic for topic in self._topics if not topic.asks and now >= topic.retry_at]
        due = [self._pop(topic, 0) for topic in ready if not topic.begun]
        wanted = self._deliveries.wanted()
        ready = [topic for topic in ready if topic.begun and topic.name not in self._paused]
        if wanted <= 0 or not ready:
            return due
        # Each topic is asked, because the others may be empty; together they may bring a few messages too many.
        self._deliveries.requested()
        share = (wanted - sum(topic.asked for topic in self._topics)) // len(ready)
        return due + [self._pop(topic, min(max(share, 1), POP_COUNT_MAX)) for topic in ready]

    def _pop(self, topic: PoppedTopic, count: int) -> Request:
        topic.asks, topic.asked = True, count
        operation = work_requests.pop(self._options, topic.name, topic.start, count)
        return operation, lambda leases, error: self._popped(topic, leases, error)

    def _popped(self, topic: PoppedTopic, leases: list[Lease] | None, error: FlintError | None) -> None:
        topic.asks, topic.asked = False, 0
        if error is None:
            assert leases is not None
            self._backoff.record_success()
            topic.begun, topic.refusal = True, None
            self._deliveries.add(leases)
        elif isinstance(error, TopicNotExist):
            # A topic that begins to exist while this consumer waits for it is read from its first message.
            topic.start, topic.refusal, topic.begun = "first", error, False
            topic.retry_at = time.monotonic() + MISSING_SECONDS
        elif isinstance(error, ConnectionFailed):
            return
        elif is_retriable(error):
            topic.refusal = error
            topic.retry_at = time.monotonic() + backoff_seconds(3, error)
        else:
            self.die(error)
            return
        if all(each.begun or each.refusal is not None for each in self._topics):
            self._note_joined()

    # ---- renewals

    def _renewals(self) -> list[Request]:
        with self._deliveries.condition:
            renewals, self._deliveries.renewals = self._deliveries.renewals, {}
        by: dict[tuple[str, float], list[Lease]] = {}
        for lease, seconds in renewals.items():
            by.setdefault((lease.topic, seconds), []).append(lease)
        return [
            self._renew(topic, part, seconds)
            for (topic, seconds), leases in by.items()
            for part in _parts(leases, RECEIPTS_MAX)
        ]

    def _renew(self, topic: str, leases: tuple[Lease, ...], seconds: float) -> Request:
        sent_at = time.monotonic()

        def answered(valid: bytes | None, error: FlintError | None) -> None:
            if valid is not None:
                self._deliveries.renewed(leases, valid, sent_at, seconds)
            elif error is not None and not isinstance(error, ConnectionFailed) and not is_retriable(error):
                log.error("group %s: leases are not renewed: %s", self._options.group, error)
            else:
                with self._deliveries.condition:
                    again = {lease: seconds for lease in leases if lease in self._deliveries.open}
                    self._deliveries.renewals = again | self._deliveries.renewals

        return work_requests.renew(self._options, topic, leases, duration_millis(seconds)), answered

    def _given_back(self) -> list[Request]:
        with self._deliveries.condition:
            unwanted, self._deliveries.unwanted = self._deliveries.unwanted, {}
        return [self._give_back(topic, part) for topic, part in _by_topic(unwanted)]

    def _give_back(self, topic: str, leases: tuple[Lease, ...]) -> Request:
        self._sending += 1

        def answered(valid: bytes | None, error: FlintError | None) -> None:
            self._sending -= 1
            if error is not None:  # the leases run out by themselves
                log.info("group %s: %d messages were not given back: %s", self._options.group, len(leases), error)

        return work_requests.renew(self._options, topic, leases, 0), answered

    # ---- outcomes

    def _outcomes(self) -> list[Request]:
        """Return the requests for all outcomes that were gathered."""
        deliveries = self._deliveries
        with deliveries.condition:
            acks, deliveries.acks = deliveries.acks, {}
            backs = list(deliveries.backs)
            deliveries.backs.clear()
            deliveries.flush_at = inf
        due = [self._ack(topic, part) for topic, leases in acks.items() for part in _parts(leases, RECEIPTS_MAX)]
        by: dict[tuple[str, int], list[Returned]] = {}
        for back in backs:
            by.setdefault((back.lease.topic, back.delay_level), []).append(back)
        # Few enough that their reasons fit.
        count = min(
            SEND_BACK_MAX, max(1, REASONS_BYTES_MAX // max((4 * len(back.reason) + 1 for back in backs), default=1))
        )
        return due + [
            self._send_back(topic, level, part) for (topic, level), group in by.items() for part in _parts(group, count)
        ]

    def _ack(self, topic: str, leases: tuple[Lease, ...]) -> Request:
        self._sending += 1

        def answered(valid: bytes | None, error: FlintError | None) -> None:
            self._sending -= 1
            if valid is not None:
                self._deliveries.confirmed(leases, valid)
            elif self._is_final(leases, error):
                return
            else:
                with self._deliveries.condition:
                    self._deliveries.acks.setdefault(topic, []).extend(leases)

        return work_requests.ack(self._options, topic, leases), answered

    def _send_back(self, topic: str, level: int, backs: tuple[Returned, ...]) -> Request:
        self._sending += 1
        leases = [back.lease for back in backs]

        def answered(result: Any, error: FlintError | None) -> None:
            self._sending -= 1
            if error is None:
                valid, retried, dead = result
                with self._deliveries.condition:
                    self._deliveries.counts.retried += retried
                    self._deliveries.counts.dead += dead
                self._deliveries.confirmed(leases, valid)
            elif not self._is_final(leases, error):
                with self._deliveries.condition:
                    self._deliveries.backs.extend(backs)

        reasons = [back.reason for back in backs]
        return work_requests.send_back(self._options, topic, leases, level, reasons), answered

    def _is_final(self, leases: Iterable[Lease], error: FlintError | None) -> bool:
        """Return whether the broker has refused outcomes for good; otherwise they are to be sent again."""
        assert error is not None
        leases = list(leases)
        at_once = isinstance(error, ConnectionFailed)
        if not at_once and not is_retriable(error):
            log.error("group %s: %d outcomes were refused: %s", self._options.group, len(leases), error)
            self._deliveries.refused(leases, error)
            return True
        now = time.monotonic()
        with self._deliveries.condition:
            for lease in leases:
                lease.resent = lease.resent or at_once
            self._deliveries.flush_at = now if at_once else now + backoff_seconds(3, error)
        return False


def _parts(each: Sequence[T], count: int) -> list[tuple[T, ...]]:
    """Return a sequence in parts of at most ``count``."""
    return [tuple(each[at : at + count]) for at in range(0, len(each), count)]


def _by_topic(leases: Iterable[Lease]) -> list[tuple[str, tuple[Lease, ...]]]:
    """Return leases by topic, in parts that fit one request each."""
    by: dict[str, list[Lease]] = {}
    for lease in leases:
        by.setdefault(lease.topic, []).append(lease)
    return [(topic, part) for topic, each in by.items() for part in _parts(each, RECEIPTS_MAX)]
