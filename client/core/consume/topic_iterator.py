"""One iteration over a topic, without its connection: what to request, how to handle responses, and when to retry.

A driver sends what ``requests`` returns on a connection that belongs to the iteration, reports ``asked`` and
``answered``, takes the messages from ``reading``, and calls ``disconnected`` and ``pause_after`` when the connection is
lost. All times are monotonic seconds that the driver passes in.
"""

from __future__ import annotations

from math import inf
from typing import Any

from ....protocol.errors import FlintError
from .. import topics as topic_operations
from ..rpc.operation import Operation, Plan
from ..rpc.retry import backoff_seconds, is_retriable
from ..rpc.session import Answer
from ..rpc.silence import Probed, SilenceLimit, share_seconds
from .positions import Span, ends_at
from .queue_reader import TopicReader

QUEUES_ASKED_SECONDS = 5.0
"""Interval at which a followed topic is checked for new queues."""
_STATS = -1
"""Key of the request for the list of queues, among the pulls, whose keys are queues."""


class TopicIterator:
    """Sends the requests for one ``reading`` of ``span``. ``timeout``: seconds for which the broker may be away before
    the iteration fails; ``now``: when it begins."""

    def __init__(self, reading: TopicReader, span: Span, timeout: float, now: float) -> None:
        self.reading = reading
        self._until_ms = span.until_ms
        self._until_due = now + span.until_left_ms / 1000
        self._timeout = timeout
        self._asked: dict[int, tuple[int, Operation[Any]]] = {}
        self._queues_due = now + QUEUES_ASKED_SECONDS
        self._heard_at = now
        self._silence = SilenceLimit(timeout, now)
        self._look_at = now
        self._failures = 0

    @property
    def outstanding(self) -> bool:
        """True if responses are outstanding."""
        return bool(self._asked)

    @property
    def waits_for_answers(self) -> bool:
        """True if there is a reason to wait on the connection."""
        return bool(self._asked) or self.reading.follows

    def end_due(self, now: float) -> Plan[tuple[dict[int, int], int]] | None:
        """Return a plan that finds the end offsets, for ``end_found``, when the time should have come at which the
        iteration ends; None before that time, and when the end is known."""
        if self._until_ms is None or now < self._until_due:
            return None
        return ends_at(self.reading.topic, self._until_ms)

    def end_found(self, ends: dict[int, int], left_ms: int, now: float) -> None:
        """Take the result of the plan of ``end_due``: the end, or that the broker's clock has not reached it."""
        if left_ms:
            self._until_due = now + left_ms / 1000
            return
        self._until_ms = None
        self.reading.end_at(ends)

    def requests(self, now: float) -> list[tuple[int, Operation[Any]]]:
        """Return the requests that are due: the driver must send all of them, and report each with ``asked``."""
        if not self._asked:
            self._silence = SilenceLimit(self._timeout, now)
            self._look_at = now + share_seconds(self._timeout)
        requests: list[tuple[int, Operation[Any]]] = list(self.reading.pulls())
        if self.reading.follows and now >= self._queues_due:
            self._queues_due = now + QUEUES_ASKED_SECONDS
            requests.append((_STATS, topic_operations.topic_stats(self.reading.topic)))
        return requests

    def asked(self, request_id: int, queue: int, operation: Operation[Any]) -> None:
        """Record that one of ``requests`` was sent with this id."""
        self._asked[request_id] = (queue, operation)

    def connected(self, now: float) -> None:
        """Record a new connection."""
        self._heard_at = now

    def answered(self, answer: Answer, now: float) -> None:
        """Handle a response. Raises its error if the iteration cannot continue or must retry."""
        self._heard_at = now
        self._failures = 0
        queue, operation = self._asked.pop(answer.request_id)
        try:
            result = operation.result(answer)
        except FlintError as error:
            if queue != _STATS and self.reading.pull_refused(queue, error):
                return
            raise
        if queue == _STATS:
            self.reading.found_queues(result)
        else:
            self.reading.take_batch(queue, result)

    def check_silence(self, connection: Probed, now: float) -> None:
        """Raise ``ConnectionFailed`` if nothing comes from a connection that was read to its end."""
        if self._asked:
            self._heard_at = max(self._heard_at, connection.active_at)
            self._look_at = now + self._silence.check(connection, now)

    def seconds_to_wait(self, now: float) -> float:
        """Return how long nothing needs to be done unless a response arrives."""
        seconds = self._look_at - now + 0.001 if self._asked else inf
        if self.reading.follows:
            seconds = min(seconds, self._queues_due - now)
        if self._until_ms is not None:
            seconds = min(seconds, self._until_due - now + 0.001)
        return max(0.0, seconds)

    def seconds_to_connect(self, now: float) -> float:
        """Return how long connecting may take."""
        return max(0.001, self._heard_at + self._timeout - now)

    def disconnected(self) -> None:
        """Forget the outstanding requests: the connection was lost or given back."""
        self._asked.clear()
        self.reading.forget_pulls()

    def pause_after(self, error: FlintError, now: float) -> float:
        """Return the seconds to wait before retrying after ``error``; raise ``error`` if retrying cannot help."""
        if not is_retriable(error):
            raise error
        self._failures += 1
        pause = backoff_seconds(self._failures, error)
        if now + pause > self._heard_at + self._timeout:
            raise error
        return pause
