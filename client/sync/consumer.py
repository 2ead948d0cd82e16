"""The consumer: reads, iterates over and searches stored messages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Unpack

from ...protocol.commands import QUERY_COUNT_MAX
from ...protocol.errors import ConnectionFailed, FlintError
from ..core import hooks
from ..core import topics as topic_operations
from ..core.consume import pages, requests
from ..core.consume.batch import Batch, StoredMessage, TagFilter, check_filter, parse_tags
from ..core.consume.positions import EARLIEST, LATEST, Position, resolve_span
from ..core.consume.queue_reader import TopicIterator, TopicReader
from ..core.consume.requests import pull_found
from ..core.rpc.access import AccessOptions, ReadFrom, check_read_from
from ..core.rpc.timeouts import TIMEOUT_SECONDS
from ..endpoint import client_name
from .client import Client, blocking_method
from .connection import Connection
from .pool import Caller

if TYPE_CHECKING:
    from ..arrow.options import ArrowOptions
    from ..arrow.stream import ArrowStream


# ---- Iteration over a topic: pipelined pulls of all its queues on a separate connection.


def iterate(
    caller: Caller,
    side: hooks.Side,
    topic: str,
    ends: tuple[Position, Position | None],
    tags: TagFilter,
    condition: str,
    timeout: float | None,
) -> Iterator[StoredMessage]:
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
            self._caller.check()
            self._disconnect(error)
            pause = self._iterating.pause_after(error, time.monotonic())
            self._caller.log.retried("PULL", error)
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


class Consumer(Client):
    """Reads from a broker, or from the primary of a replica set. Thread-safe: each call has a connection to itself.

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
            self._caller = self._caller.of_any_member()
        self._side = hooks.Side(access.get("client_name") or client_name(), self._caller.addresses)

    def pull(
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
        plan = pull_found(topic, queue, offset, max_count, max_bytes, wait_ms, tags, filter, deadline, time.monotonic)
        with hooks.active.receiving(self._side, topic) as receiving:
            return receiving.batch(self._caller.run(plan, deadline))

    def iter(
        self,
        topic: str,
        from_: Position = EARLIEST,
        until: Position | None = None,
        tags: str | Iterable[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the name that users look for
        *,
        timeout: float | None = None,
    ) -> Iterator[StoredMessage]:
        """Iterate over the messages of all queues of a topic: within a queue in order, the queues taking turns.

        ``from_`` and ``until``: ``"earliest"``, ``"latest"`` (the current end), an aware datetime (store time), a
        negative number (-10: where the last ten messages of the topic begin), or offsets by queue (a mapping or a
        sequence; a queue left out is read from its beginning, and up to its current end). Without ``until`` the
        iterator waits for new messages and never ends. ``timeout``: seconds for which the broker may be away.
        """
        return iterate(self._caller, self._side, topic, (from_, until), parse_tags(tags), check_filter(filter), timeout)

    def arrow(
        self, topic: str, from_: Position = EARLIEST, until: Position = LATEST, **options: Unpack[ArrowOptions]
    ) -> ArrowStream:
        """Return the messages of a topic as Arrow record batches, for Polars, DuckDB, pandas and whatever else takes
        the Arrow C stream interface; needs ``flintmq[arrow]``.

        Queue after queue is read, from ``from_`` (as for ``iter``) to ``until``, and never beyond what is stored when a
        read begins. The stream can be used again, and each use reads again. For the options, such as ``columns`` and
        ``filter``, see ``ArrowOptions``. Raises ``InvalidArgument``, ``TopicNotExist`` and ``FilterIllegal`` at once;
        a read raises ``DataLoss`` and ``CorruptMessage``, unless ``on_loss`` is ``"report"``.
        """
        from .arrow import topic_stream

        return topic_stream(self._caller, topic, from_, until, options)

    browse = blocking_method(pages.browse)
    query = blocking_method(requests.query)

    def query_iter(
        self,
        topic: str,
        key: str,
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        timeout: float | None = None,
    ) -> Iterator[StoredMessage]:
        """Yield all messages with this key or id, newest first, requesting each page of ``query`` when it is needed.
        ``timeout``: seconds for each page."""
        cursor: str | None = None
        while True:
            found = self.query(topic, key, since, until, QUERY_COUNT_MAX, cursor, timeout=timeout)
            yield from found
            cursor = found.cursor
            if cursor is None:
                return

    message = blocking_method(requests.message)

    # ---- offsets

    min_offset = blocking_method(requests.min_offset)
    max_offset = blocking_method(requests.max_offset)
    offset_at = blocking_method(requests.offset_at)
    topic_stats = blocking_method(topic_operations.topic_stats)
    committed = blocking_method(requests.committed, of_primary=True)
    commit = blocking_method(requests.commit, of_primary=True)
