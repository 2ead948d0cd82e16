"""One iteration over a topic, without its connection: what to ask, what the answers mean, and when to try again.

A driver sends what ``requests`` returns on a connection that the iteration has for itself, reports ``asked`` and
``answered``, takes the messages from ``reading``, and says ``disconnected`` and ``failed`` where the connection went.
All times are monotonic seconds that the driver passes in.
"""

from __future__ import annotations

from typing import Any

from ...protocol.errors import FlintError, RequestTimeout
from . import operations
from .address import Address
from .operations import Operation, Plan
from .positions import ends_at
from .reading import HOLD_MS, TopicReading
from .retry import backoff_seconds, is_retriable
from .session import Answer
from .times import now_millis

QUEUES_ASKED_SECONDS = 5.0
"""How often a topic that is followed is looked at for new queues."""
_STATS = -1
"""Stands for the question about queues among the pulls, which stand by their queue."""


class Iterating:
    """Asks for one ``reading``. ``until_ms``: a moment to come (ms since 1970 UTC) at which it ends, or None;
    ``timeout``: how many seconds the broker may be away before the iteration fails; ``now``: when it begins."""

    def __init__(self, reading: TopicReading, until_ms: int | None, timeout: float, now: float) -> None:
        self.reading = reading
        self._until_ms = until_ms
        self._timeout = timeout
        self._asked: dict[int, tuple[int, Operation[Any]]] = {}
        self._queues_due = now + QUEUES_ASKED_SECONDS
        self._heard_at = now
        self._failures = 0

    @property
    def outstanding(self) -> bool:
        """Whether answers are to come."""
        return bool(self._asked)

    @property
    def waits_for_answers(self) -> bool:
        """Whether there is anything to wait for on the connection."""
        return bool(self._asked) or self.reading.follows

    def end_due(self) -> Plan[dict[int, int]] | None:
        """Where the moment has come at which the iteration ends: what finds the ends, to be given to
        ``reading.end_at``. None before, and after it was asked for."""
        if self._until_ms is None or now_millis() < self._until_ms:
            return None
        until_ms, self._until_ms = self._until_ms, None
        return ends_at(self.reading.topic, until_ms)

    def requests(self, now: float) -> list[tuple[int, Operation[Any]]]:
        """What should be asked now and is not: the driver must send all of it, and report each with ``asked``."""
        requests: list[tuple[int, Operation[Any]]] = list(self.reading.pulls())
        if self.reading.follows and now >= self._queues_due:
            self._queues_due = now + QUEUES_ASKED_SECONDS
            requests.append((_STATS, operations.topic_stats(self.reading.topic)))
        return requests

    def asked(self, request_id: int, queue: int, operation: Operation[Any]) -> None:
        """One of ``requests`` was sent with this id."""
        self._asked[request_id] = (queue, operation)

    def connected(self, now: float) -> None:
        """A connection stands."""
        self._heard_at = now

    def answered(self, answer: Answer, now: float) -> None:
        """An answer came. Raises what it says where the iteration cannot go on, or has to ask again."""
        self._heard_at = now
        self._failures = 0
        queue, operation = self._asked.pop(answer.request_id)
        try:
            result = operation.result(answer)
        except FlintError as error:
            if queue != _STATS and self.reading.failed(queue, error):
                return
            raise
        if queue == _STATS:
            self.reading.found_queues(result)
        else:
            self.reading.answered(queue, result)

    def check_silence(self, address: Address, now: float) -> None:
        """Raise ``RequestTimeout`` where the broker is silent for longer than it may hold a pull."""
        if now > self._heard_at + HOLD_MS / 1000 + self._timeout:
            raise RequestTimeout(f"the broker at {address} did not answer for {now - self._heard_at:.0f} s")

    def seconds_to_wait(self, now: float) -> float:
        """How long there is nothing to do unless an answer comes."""
        seconds = self._heard_at + HOLD_MS / 1000 + self._timeout - now + 0.001
        if self.reading.follows:
            seconds = min(seconds, self._queues_due - now)
        if self._until_ms is not None:
            seconds = min(seconds, (self._until_ms - now_millis()) / 1000 + 0.001)
        return max(0.0, seconds)

    def seconds_to_connect(self, now: float) -> float:
        """How long a connection may take."""
        return max(0.001, self._heard_at + self._timeout - now)

    def disconnected(self) -> None:
        """The connection went, or was given back: nothing is outstanding any more."""
        self._asked.clear()
        self.reading.lost()

    def failed(self, error: FlintError, now: float) -> float:
        """Something went wrong: seconds to wait before it is tried again; raises ``error`` where it is not."""
        if not is_retriable(error):
            raise error
        self._failures += 1
        pause = backoff_seconds(self._failures, error)
        if now + pause > self._heard_at + self._timeout:
            raise error
        return pause
