"""Iteration over a topic: pipelined pulls of all its queues on a separate connection."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator

from ...protocol.errors import ConnectionFailed, FlintError
from ..core import hooks
from ..core.consume.batch import StoredMessage, TagFilter
from ..core.consume.positions import Position, resolve_span
from ..core.consume.queue_reader import TopicIterator, TopicReader
from .connection import Connection
from .rpc import Caller


def iterate(
    caller: Caller,
    side: hooks.Side,
    topic: str,
    ends: tuple[Position, Position | None],
    tags: TagFilter,
    condition: str,
    timeout: float | None,
) -> Generator[StoredMessage, None, None]:
    """Return an iterator over the messages of a topic, for ``Consumer.iter``. ``ends``: its ``from_`` and ``until``."""
    deadline = caller.deadline(timeout)
    span = caller.run(resolve_span(topic, *ends), deadline)
    away_seconds = caller.timeout if timeout is None else timeout
    reading = TopicReader(topic, span, tags, condition)
    iterating = TopicIterator(reading, span, away_seconds, time.monotonic())
    return _Iteration(caller, side, iterating).messages()


class _Iteration:
    """Drives one ``TopicIterator``."""

    def __init__(self, caller: Caller, side: hooks.Side, iterating: TopicIterator) -> None:
        self._caller = caller
        self._side = side
        self._iterating = iterating
        self._connection: Connection | None = None

    def messages(self) -> Generator[StoredMessage, None, None]:
        reading = self._iterating.reading
        began_ns = time.time_ns()
        try:
            while not reading.finished:
                if not reading.has_messages:
                    self._guarded(wait=True)
                # Take what has arrived without waiting: a queue without messages may have some by now.
                elif reading.someone_waits or not self._iterating.outstanding:
                    self._guarded(wait=False)
                if messages := reading.turn():
                    yield from hooks.active.handed_out(self._side, reading.topic, messages, began_ns)
                    began_ns = time.time_ns()
        finally:
            self._disconnect()

    def _guarded(self, *, wait: bool) -> None:
        """Do one step of reading; retry after an error if that can help, until the broker was away for too long."""
        try:
            self._step(wait=wait)
        except FlintError as error:
            self._caller.life.check()
            self._disconnect(error)
            pause = self._iterating.pause_after(error, time.monotonic())
            self._caller.dialer.log.retried("PULL", error)
            time.sleep(pause)

    def _step(self, *, wait: bool) -> None:
        if self._connection is None:
            seconds = self._iterating.seconds_to_connect(time.monotonic())
            self._connection = self._caller.pool.acquire(seconds)
            self._iterating.connected(time.monotonic())
        with self._connection.in_use:
            self._read(self._connection, wait=wait)

    def _read(self, connection: Connection, *, wait: bool) -> None:
        """Send the pulls that are due, and take the responses that have arrived."""
        iterating = self._iterating
        if (plan := iterating.end_due(time.monotonic())) is not None:
            iterating.end_found(*self._caller.run(plan, self._caller.deadline(None)), time.monotonic())
            if iterating.reading.finished:
                return
        for queue, operation in iterating.requests(time.monotonic()):
            request_id = connection.request(operation.command, operation.fields, operation.body)
            iterating.asked(request_id, queue, operation)
        if not iterating.waits_for_answers:
            return
        answers = connection.receive(iterating.seconds_to_wait(time.monotonic()) if wait else 0.0)
        now = time.monotonic()
        if wait and not answers:
            iterating.check_silence(connection, now)
        for answer in answers:
            iterating.answered(answer, now)

    def _disconnect(self, error: FlintError | None = None) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # A connection with outstanding pulls is closed, which also drops the pulls that the broker holds.
            if isinstance(error, ConnectionFailed):
                self._caller.pool.discard(connection, error)
            elif self._iterating.outstanding or connection.congested:
                self._caller.pool.discard(connection)
            else:
                with contextlib.suppress(FlintError):
                    self._caller.pool.release(connection)
        self._iterating.disconnected()
