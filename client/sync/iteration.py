"""Iterating over a topic: the pulls of all its queues, pipelined on a connection of their own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator
from typing import Any

from ...protocol.errors import FlintError, RequestTimeout
from ..core import operations
from ..core.operations import Operation
from ..core.positions import Position, ends_at, resolve_span
from ..core.reading import HOLD_MS, TopicReading
from ..core.retry import backoff_seconds, is_retriable
from ..core.stored import StoredMessage
from ..core.tags import TagFilter
from ..core.times import now_millis
from .connection import Connection
from .pool import Caller

QUEUES_ASKED_SECONDS = 5.0
"""How often a topic that is followed is looked at for new queues."""
_STATS = -1
"""Stands for the question about queues among the pulls, which stand by their queue."""


def iterate(
    caller: Caller, topic: str, from_: Position, until: Position | None, tags: TagFilter, timeout: float | None
) -> Iterator[StoredMessage]:
    """The messages of a topic; see ``Consumer.iter``."""
    deadline = caller.deadline(timeout)
    span = caller.run(resolve_span(topic, from_, until), deadline)
    reading = TopicReading(topic, span, tags)
    return _Iteration(caller, reading, span.until_ms, caller.timeout if timeout is None else timeout).messages()


class _Iteration:
    """Drives one ``TopicReading``. ``timeout``: how long the broker may be away before the iteration fails."""

    def __init__(self, caller: Caller, reading: TopicReading, until_ms: int | None, timeout: float) -> None:
        self._caller = caller
        self._reading = reading
        self._until_ms = until_ms
        self._timeout = timeout
        self._connection: Connection | None = None
        self._asked: dict[int, tuple[int, Operation[Any]]] = {}
        self._queues_due = time.monotonic() + QUEUES_ASKED_SECONDS
        self._heard_at = time.monotonic()
        self._failures = 0

    def messages(self) -> Generator[StoredMessage, None, None]:
        reading = self._reading
        try:
            while not reading.finished:
                if not reading.has_messages:
                    self._guarded(wait=True)
                elif reading.someone_waits or not self._asked:
                    self._guarded(wait=False)
                yield from reading.turn()
        finally:
            self._disconnect()

    def _guarded(self, *, wait: bool) -> None:
        """One step of reading; what can be tried again is, until the broker was away for too long."""
        try:
            self._step(wait=wait)
        except FlintError as error:
            self._caller.check()
            self._disconnect()
            if not is_retriable(error):
                raise
            self._failures += 1
            pause = backoff_seconds(self._failures, error)
            if time.monotonic() + pause > self._heard_at + self._timeout:
                raise
            time.sleep(pause)

    def _step(self, *, wait: bool) -> None:
        if self._connection is None:
            self._connection = self._caller.pool.acquire(max(0.001, self._heard_at + self._timeout - time.monotonic()))
            self._heard_at = time.monotonic()
        with self._connection.in_use:
            self._read(wait=wait)

    def _read(self, *, wait: bool) -> None:
        """Ask what should be asked, and take what has come."""
        if self._until_ms is not None and now_millis() >= self._until_ms:
            ends = self._caller.run(ends_at(self._reading.topic, self._until_ms), self._caller.deadline(None))
            self._reading.end_at(ends)
            self._until_ms = None
            if self._reading.finished:
                return
        for queue, operation in self._reading.pulls():
            self._ask(queue, operation)
        if self._reading.follows and time.monotonic() >= self._queues_due:
            self._queues_due = time.monotonic() + QUEUES_ASKED_SECONDS
            self._ask(_STATS, operations.topic_stats(self._reading.topic))
        self._receive(wait=wait)

    def _ask(self, queue: int, operation: Operation[Any]) -> None:
        assert self._connection is not None
        request_id = self._connection.request(operation.command, operation.fields, operation.body)
        self._asked[request_id] = (queue, operation)

    def _receive(self, *, wait: bool) -> None:
        assert self._connection is not None
        if not self._asked and not self._reading.follows:
            return
        answers = self._connection.receive(self._seconds_to_wait() if wait else 0.0)
        now = time.monotonic()
        if answers:
            self._heard_at = now
            self._failures = 0
        elif wait and now > self._heard_at + HOLD_MS / 1000 + self._timeout:
            raise RequestTimeout(
                f"the broker at {self._connection.address} did not answer for {now - self._heard_at:.0f} s"
            )
        for answer in answers:
            queue, operation = self._asked.pop(answer.request_id)
            try:
                result = operation.result(answer)
            except FlintError as error:
                if queue != _STATS and self._reading.failed(queue, error):
                    continue
                raise
            if queue == _STATS:
                self._reading.found_queues(result)
            else:
                self._reading.answered(queue, result)

    def _seconds_to_wait(self) -> float:
        seconds = self._heard_at + HOLD_MS / 1000 + self._timeout - time.monotonic() + 0.001
        if self._reading.follows:
            seconds = min(seconds, self._queues_due - time.monotonic())
        if self._until_ms is not None:
            seconds = min(seconds, (self._until_ms - now_millis()) / 1000 + 0.001)
        return max(0.0, seconds)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # Nothing outstanding: others can use it. Otherwise held pulls go with it.
            if self._asked or connection.congested:
                self._caller.pool.discard(connection)
            else:
                with contextlib.suppress(FlintError):
                    self._caller.pool.release(connection)
        self._asked.clear()
        self._reading.lost()
