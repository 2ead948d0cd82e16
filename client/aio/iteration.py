"""Iteration over a topic: pipelined pulls of all its queues on a separate connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from ...protocol.errors import FlintError
from ..core import hooks
from ..core.consume.batch import StoredMessage, TagFilter
from ..core.consume.positions import Position, resolve_span
from ..core.consume.queue_reader import TopicIterator, TopicReader
from ..core.rpc.session import Answer
from ..core.rpc.timeouts import check_timeout
from .connection import Connection
from .rpc import Caller

GO_ROUND = 2048
"""Number of messages after which the iteration yields to the event loop even if more are available: other tasks must
run, and arrived bytes must be read before the application has used up the batch."""


def iterate(
    caller: Caller,
    side: hooks.Side,
    topic: str,
    ends: tuple[Position, Position | None],
    tags: TagFilter,
    condition: str,
    timeout: float | None,
) -> AsyncGenerator[StoredMessage, None]:
    """Return an iterator over the messages of a topic, for ``Consumer.iter``. ``ends``: its ``from_`` and ``until``."""
    caller.life.enter()
    seconds = caller.timeout if timeout is None else check_timeout("timeout", timeout)
    return Iteration(caller, side).messages(topic, ends, tags, condition, seconds)


class Iteration:
    """One iteration. The loop decodes what arrives and sends the next pulls while the application handles messages."""

    def __init__(self, caller: Caller, side: hooks.Side) -> None:
        self._caller = caller
        self._dialer = caller.dialer
        self._life = caller.life
        self._side = side
        self._iterating: TopicIterator
        self._connection: Connection | None = None
        self._error: FlintError | None = None
        """Reason why the connection is no longer usable."""
        self._arrival: asyncio.Future[None] | None = None
        """Awaited while there is no message."""

    async def messages(
        self, topic: str, ends: tuple[Position, Position | None], tags: TagFilter, condition: str, seconds: float
    ) -> AsyncGenerator[StoredMessage, None]:
        """Yield the messages, for ``Consumer.iter``. ``seconds``: for which the broker may be away."""
        span = await self._caller.run(resolve_span(topic, *ends), self._caller.deadline(seconds))
        reading = TopicReader(topic, span, tags, condition)
        self._iterating = TopicIterator(reading, span, seconds, time.monotonic())
        passed = 0
        began_ns = time.time_ns()
        try:
            while True:
                if passed >= GO_ROUND:
                    passed = 0
                    self._ask()
                    await asyncio.sleep(0)
                messages = reading.turn()
                if not messages:
                    if reading.finished:
                        return
                    await self._guarded_wait()
                    continue
                passed += len(messages)
                for message in hooks.active.handed_out(self._side, topic, messages, began_ns):
                    yield message
                began_ns = time.time_ns()
        finally:
            self._disconnect()

    async def _guarded_wait(self) -> None:
        """Wait for messages; retry after an error if that can help, until the broker was away for too long."""
        try:
            await self._wait()
        except FlintError as error:
            self._life.check()
            self._disconnect()
            pause = self._iterating.pause_after(error, time.monotonic())
            self._dialer.log.retried("PULL", error)
            await self._life.pause(pause)

    async def _wait(self) -> None:
        """Send the pulls that are due; return when something has arrived or is due."""
        self._life.enter()
        iterating = self._iterating
        if self._error is not None:
            raise self._error
        if self._connection is None:
            seconds = iterating.seconds_to_connect(time.monotonic())
            self._connection = await self._dialer.dial(seconds)
            self._connection.receiver = self
            iterating.connected(time.monotonic())
        if (plan := iterating.end_due(time.monotonic())) is not None:
            iterating.end_found(*await self._caller.run(plan, self._caller.deadline(None)), time.monotonic())
            if iterating.reading.finished:
                return
        self._ask()
        if iterating.reading.has_messages or not iterating.waits_for_answers:
            return
        self._arrival = self._life.loop.create_future()
        now = time.monotonic()
        try:
            await self._life.wait(self._arrival, now + iterating.seconds_to_wait(now), lambda: None)
        finally:
            self._arrival = None
        if self._error is None and self._connection is not None:
            iterating.check_silence(self._connection, time.monotonic())

    def _ask(self) -> None:
        connection = self._connection
        if connection is None or self._error is not None:
            return
        for queue, operation in self._iterating.requests(time.monotonic()):
            self._iterating.asked(connection.request(operation), queue, operation)

    # ---- what the connection calls

    def received(self, answers: list[Answer]) -> None:
        now = time.monotonic()
        try:
            for answer in answers:
                self._iterating.answered(answer, now)
        except FlintError as error:
            self._error = error
        else:
            self._ask()
        self._arrived()

    def lost(self, error: FlintError) -> None:
        """Wake the iteration, which then connects again."""
        self._error = error
        self._arrived()

    def writable(self) -> None:
        """Do nothing: pulls are small, so nothing waits for the connection to become writable."""

    def _arrived(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _disconnect(self) -> None:
        """Close the connection, which also drops held pulls and responses that are no longer wanted."""
        connection, self._connection = self._connection, None
        error, self._error = self._error, None
        if connection is not None:
            if connection.gone and error is not None:
                self._dialer.mark_failed(connection.address, error)
            connection.abort()
        self._iterating.disconnected()
