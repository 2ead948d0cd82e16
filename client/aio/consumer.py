"""The consumer: reads, iterates over and searches stored messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from datetime import datetime
from typing import Unpack

from ...protocol.commands import QUERY_COUNT_MAX
from ...protocol.errors import FlintError
from ..core import hooks
from ..core import topics as topic_operations
from ..core.consume import pages, requests
from ..core.consume.batch import Batch, StoredMessage, TagFilter, check_filter, parse_tags
from ..core.consume.positions import EARLIEST, Position, check_position, resolve_span
from ..core.consume.queue_reader import TopicIterator, TopicReader
from ..core.consume.requests import pull_found
from ..core.rpc.access import AccessOptions, ReadFrom, check_read_from
from ..core.rpc.session import Answer
from ..core.rpc.timeouts import TIMEOUT_SECONDS, check_timeout
from ..endpoint import client_name
from .client import Client, async_method
from .connection import Connection, Waits, Watch
from .rpc import Dialer, RpcClient
from .runtime import ClientRuntime

# ---- Iteration over a topic: pipelined pulls of all its queues on a separate connection.

GO_ROUND = 2048
"""Number of messages after which the iteration yields to the event loop even if more are available: other tasks must
run, and arrived bytes must be read before the application has used up the batch."""


class Iteration:
    """One iteration. The loop decodes what arrives and sends the next pulls while the application handles messages."""

    def __init__(
        self, caller: RpcClient, dialer: Dialer, life: ClientRuntime, watch: Watch, waits: Waits, side: hooks.Side
    ) -> None:
        self._caller = caller
        self._dialer = dialer
        self._life = life
        self._watch = watch
        self._waits = waits
        self._side = side
        self._iterating: TopicIterator
        self._connection: Connection | None = None
        self._error: FlintError | None = None
        """Reason why the connection is no longer usable."""
        self._arrival: asyncio.Future[None] | None = None
        """Awaited while there is no message."""

    async def messages(
        self, topic: str, from_: Position, until: Position | None, tags: TagFilter, condition: str, seconds: float
    ) -> AsyncGenerator[StoredMessage, None]:
        """Yield the messages, for ``Consumer.iter``. ``seconds``: for which the broker may be away."""
        span = await self._caller.run(resolve_span(topic, from_, until), self._caller.deadline(seconds))
        reading = TopicReader(topic, span, tags, condition)
        self._iterating = TopicIterator(reading, span, seconds, self._watch.now())
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
            pause = self._iterating.pause_after(error, self._watch.now())
            self._dialer.log.retried("PULL", error)
            await self._waits.pause(pause)

    async def _wait(self) -> None:
        """Send the pulls that are due; return when something has arrived or is due."""
        self._life.enter()
        iterating = self._iterating
        if self._error is not None:
            raise self._error
        if self._connection is None:
            seconds = iterating.seconds_to_connect(self._watch.now())
            self._connection = await self._dialer.dial(seconds)
            self._connection.receiver = self
            iterating.connected(self._watch.now())
        if (plan := iterating.end_due(self._watch.now())) is not None:
            iterating.end_found(*await self._caller.run(plan, self._caller.deadline(None)), self._watch.now())
            if iterating.reading.finished:
                return
        self._ask()
        if iterating.reading.has_messages or not iterating.waits_for_answers:
            return
        self._arrival = self._life.loop.create_future()
        now = self._watch.now()
        try:
            await self._waits.wait(self._arrival, now + iterating.seconds_to_wait(now), lambda: None)
        finally:
            self._arrival = None
        if self._error is None and self._connection is not None:
            iterating.check_silence(self._connection, self._watch.now())

    def _ask(self) -> None:
        connection = self._connection
        if connection is None or self._error is not None:
            return
        for queue, operation in self._iterating.requests(self._watch.now()):
            self._iterating.asked(connection.request(operation), queue, operation)

    # ---- what the connection calls

    def received(self, answers: list[Answer]) -> None:
        """Decode the responses and send the next pulls."""
        now = self._watch.now()
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


class Consumer(Client):
    """Reads from a broker, or from the primary of a replica set. Calls may run concurrently: they share a connection,
    and a waiting pull does not delay the others.

    ``timeout``: seconds within which the broker must answer a call, unless the call sets its own. Within that time the
    consumer retries after a lost connection or if the broker is busy.

    ``read_from``: ``"any"`` lets the first address that answers serve reads, even if it is a follower of a replica set
    in sync; it shows what is confirmed, up to some seconds late. The default is ``"primary"``.
    """

    def __init__(
        self,
        addresses: str | Iterable[str] | None = None,
        *,
        read_from: ReadFrom = "primary",
        timeout: float = TIMEOUT_SECONDS,
        **access: Unpack[AccessOptions],
    ) -> None:
        super().__init__(addresses, timeout=timeout, **access)
        if check_read_from(read_from):
            self._dialer = self._dialer.of_any_member()
            self._caller = self._caller.of(self._dialer)
        self._side = hooks.Side(access.get("client_name") or client_name(), self._dialer.addresses)

    async def pull(
        self,
        topic: str,
        queue: int = 0,
        offset: int = 0,
        max_count: int = 1000,
        max_bytes: int = 1 << 20,
        wait_ms: int = 0,
        tags: str | Iterable[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the name that users look for
        *,
        timeout: float | None = None,
    ) -> Batch:
        """Return up to ``max_count`` messages and ``max_bytes`` bytes (but at least one message) of a queue, beginning
        at ``offset``.

        At the end of the queue the batch is empty, after waiting up to ``wait_ms`` for a message. ``tags``: only
        messages with this tag (``"a || b"``: with one of these). ``filter``: only messages whose properties meet this
        condition, such as ``"a > 5 AND region IN ('eu', 'us')"``. Raises ``OffsetOutOfRange``, with ``min_offset`` and
        ``max_offset``, if the queue does not contain ``offset``, and ``FilterIllegal``, with ``column``, if the filter
        is not valid.
        """
        deadline = self._caller.deadline(timeout)
        plan = pull_found(topic, queue, offset, max_count, max_bytes, wait_ms, tags, filter, deadline, self._watch.now)
        with hooks.active.receiving(self._side, topic) as receiving:
            return receiving.batch(await self._caller.run(plan, deadline))

    def iter(
        self,
        topic: str,
        from_: Position = EARLIEST,
        until: Position | None = None,
        tags: str | Iterable[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the name that users look for
        *,
        timeout: float | None = None,
    ) -> AsyncGenerator[StoredMessage, None]:
        """Iterate over the messages of all queues of a topic: within a queue in order, the queues taking turns.

        ``from_`` and ``until``: ``"earliest"``, ``"latest"`` (the end when the first message is requested), an aware
        datetime (store time), a negative number (-10: where the last ten messages of the topic begin), or offsets by
        queue (a mapping or a sequence; a queue left out is read from its beginning, and up to its end at that time).
        Without ``until`` the iterator waits for new messages and never ends. ``timeout``: seconds for which the broker
        may be away.

        The iterator reads ahead while the application handles messages. An iteration that is left early ends with
        ``aclose()`` (or ``contextlib.aclosing``), when it is garbage-collected, or with the consumer.
        """
        self._life.enter()
        check_position("from_", from_)
        if until is not None:
            check_position("until", until)
        seconds = self._caller.timeout if timeout is None else check_timeout("timeout", timeout)
        iteration = Iteration(self._caller, self._dialer, self._life, self._watch, self._waits, self._side)
        return iteration.messages(topic, from_, until, parse_tags(tags), check_filter(filter), seconds)

    browse = async_method(pages.browse)
    query = async_method(requests.query)

    async def query_iter(
        self,
        topic: str,
        key: str,
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        timeout: float | None = None,
    ) -> AsyncGenerator[StoredMessage, None]:
        """Yield all messages with this key or id, newest first, requesting each page of ``query`` when it is needed.
        ``timeout``: seconds for each page."""
        cursor: str | None = None
        while True:
            found = await self.query(topic, key, since, until, QUERY_COUNT_MAX, cursor, timeout=timeout)
            for message in found:
                yield message
            cursor = found.cursor
            if cursor is None:
                return

    message = async_method(requests.message)

    # ---- offsets

    min_offset = async_method(requests.min_offset)
    max_offset = async_method(requests.max_offset)
    offset_at = async_method(requests.offset_at)
    topic_stats = async_method(topic_operations.topic_stats)
    committed = async_method(requests.committed, of_primary=True)
    commit = async_method(requests.commit, of_primary=True)
