"""Reads of a topic as rows: pipelined pulls, queue by queue, or the records that the index has for a key; and
``Consumer.arrow``, the stream of Arrow record batches."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from ...protocol.commands import QueueStats
from ...protocol.errors import (
    ConnectionFailed,
    FlintError,
    MessageDamaged,
    OffsetOutOfRange,
    RequestTimeout,
    TopicNotExist,
)
from ...protocol.fields import I64_MAX
from ...protocol.storage.reader.parts import Part
from ..arrow.bounds import Bounds
from ..arrow.decoder import Decoder
from ..arrow.errors import DataLoss
from ..arrow.options import ArrowOptions, ReadRules, read_rules
from ..arrow.records import RecordBlock
from ..arrow.stream import ArrowStream, IndexPage, Losses, PulledRows, index_page, pull, with_tag
from ..core.consume import requests
from ..core.consume.batch import TagFilter
from ..core.consume.positions import ENDS, LATEST, Position, check_position, resolve_span
from ..core.rpc.operation import Operation, Plan, is_retriable
from ..core.rpc.session import Answer
from ..core.rpc.timeouts import check_timeout
from ..core.times import to_millis
from ..core.topics import topic_stats
from ..errors import InvalidArgument
from .connection import Connection
from .rpc import Caller

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_INDEX_SECONDS = 2.0
_INDEX_POLL_SECONDS = 0.01
_HINT = 'on_loss="report" continues after them'

T = TypeVar("T")


class Asker(Generic[T]):
    """Sends a broker one request after another, each before the caller works on the previous response.

    ``ask`` only sends. ``answer`` waits; if the connection is lost or the broker is busy, it asks again until
    ``timeout`` seconds are over. The caller must close it.
    """

    def __init__(self, caller: Caller, timeout: float) -> None:
        self._caller = caller
        self._timeout = timeout
        self._connection: Connection | None = None
        self._asked: Operation[T] | None = None
        self._request_id = 0

    @property
    def is_asked(self) -> bool:
        return self._asked is not None

    def ask(self, operation: Operation[T]) -> None:
        """Send a request; the previous one must have been answered."""
        assert self._asked is None
        self._asked = operation
        try:
            if self._connection is None:
                self._connection = self._caller.pool.acquire(self._timeout)
                self._connection.in_use.acquire()
            self._request_id = self._connection.request(operation.command, operation.fields, operation.body)
        except ConnectionFailed as error:
            self._give_up(error)

    def answer(self) -> T:
        """Return the response to the request. Raises the broker's error, ``ConnectionFailed`` or ``RequestTimeout``."""
        operation = self._asked
        assert operation is not None
        deadline = time.monotonic() + self._timeout
        try:
            if self._connection is not None:
                return operation.result(self._received(self._connection, operation))
        except FlintError as error:
            if not is_retriable(error) or isinstance(error, RequestTimeout):
                raise
        finally:
            self._asked = None
        return self._caller.call(operation, deadline)

    def _received(self, connection: Connection, operation: Operation[T]) -> Answer:
        try:
            return connection.answer_to(self._request_id, operation, self._timeout)
        except FlintError as error:
            self._give_up(error)
            raise

    def _give_up(self, error: FlintError) -> None:
        """Discard the connection, which is no longer usable."""
        if self._connection is not None:
            self._connection.in_use.release()
            self._caller.pool.discard(self._connection, error)
            self._connection = None

    def close(self) -> None:
        """Return the connection to the pool, or close it if a response is outstanding."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.in_use.release()
            if self._asked is None:
                self._caller.pool.release(connection)
            else:
                self._caller.pool.discard(connection)


# ---- Pulls: the next one is in flight while the caller handles the rows of one.


@dataclass(slots=True)
class QueuePart:
    """Offsets ``[position, end)`` of a queue that are still to be read.

    ``may_move``: if the start has expired, the read may begin at the first offset that exists.
    """

    queue: int
    position: int
    end: int
    may_move: bool = False


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets ``[start, end)`` of a queue whose messages cannot be read; ``is_damage``: for damage of the log."""

    queue: int
    start: int
    end: int
    why: str
    is_damage: bool


@dataclass(frozen=True, slots=True)
class RowPulls:
    """Pulls of a topic. ``rows_max``: maximum number of rows of a response; ``timeout``: seconds for which the broker
    may be away; ``on_gap`` is called with messages that cannot be read, and raises, or reading continues after them."""

    caller: Caller
    topic: str
    tags: TagFilter
    condition: str
    rows_max: int
    timeout: float
    on_gap: Callable[[Gap], None]

    def of(self, *parts: QueuePart) -> Iterator[tuple[PulledRows, int]]:
        """Yield the broker's responses that have rows, with the end of the part that each belongs to."""
        asker: Asker[PulledRows] = Asker(self.caller, self.timeout)
        left = deque(part for part in parts if part.position < part.end)
        with closing(asker):
            while left:
                part = left[0]
                if not asker.is_asked:
                    asker.ask(self._pull(part))
                pulled = self._answer(asker, part)
                if part.position >= part.end:
                    left.popleft()
                if left:
                    asker.ask(self._pull(left[0]))
                if pulled is not None and len(pulled.starts):
                    yield pulled, part.end

    def _pull(self, part: QueuePart) -> Operation[PulledRows]:
        count = min(part.end - part.position, self.rows_max)
        return pull(self.topic, part.queue, part.position, count, self.tags, self.condition)

    def _answer(self, asker: Asker[PulledRows], part: QueuePart) -> PulledRows | None:
        """Return the response, or None for a refusal, after moving the part's position past it."""
        try:
            pulled = asker.answer()
        except OffsetOutOfRange as error:
            self._move(part, error.min_offset, error.max_offset)
            return None
        except TopicNotExist:
            part.may_move = False
            self._move(part, part.end, part.end)
            return None
        except MessageDamaged as error:
            self.on_gap(Gap(part.queue, error.queue_offset, error.queue_offset + 1, str(error), True))
            part.position = error.queue_offset + 1
            return None
        if pulled.lost and pulled.lost_from < part.end:
            lost_end = pulled.lost_from + pulled.lost
            self.on_gap(Gap(part.queue, pulled.lost_from, lost_end, "its log was damaged there", True))
        if pulled.next_offset > part.position:
            part.position = pulled.next_offset
            part.may_move = False
        else:  # the queue ends here, before the planned end
            self._move(part, pulled.min_offset, pulled.max_offset)
        return pulled

    def _move(self, part: QueuePart, first: int, last: int) -> None:
        """Continue at the next offset of the queue, which has ``[first, last)``, after the position was found gone."""
        position = min(part.end, first) if first > part.position else part.end
        if not (part.may_move and first > part.position):
            why = f"the queue holds [{first}, {last})" if last > first else "the queue is gone or empty"
            self.on_gap(Gap(part.queue, part.position, position, why, False))
        part.position = position
        part.may_move = False


# ---- the index


def key_pages(caller: Caller, topic: str, key: str, begin_ms: int, end_ms: int, timeout: float) -> Iterator[IndexPage]:
    """Yield the records of a topic that have a key and were stored in ``[begin_ms, end_ms]``, newest first.

    Waits a moment if the index is behind the log: it follows it after a moment.
    """
    cursor: str | None = None
    while begin_ms <= end_ms:
        patience = time.monotonic() + _INDEX_SECONDS
        while True:
            page = caller.call(index_page(topic, key, begin_ms, end_ms, cursor), caller.deadline(timeout))
            if not page.index_behind_bytes:
                break
            if time.monotonic() > patience:
                logger.warning("the index of the broker is %d bytes behind its log", page.index_behind_bytes)
                break
            time.sleep(_INDEX_POLL_SECONDS)
        yield page
        if not page.cursor:
            return
        cursor = page.cursor


# ---- the stream


@dataclass(frozen=True)
class TopicRead:
    """A part of a topic: the messages from ``from_`` to ``until``, within ``bounds``, under the rules."""

    topic: str
    from_: Position
    until: Position
    rules: ReadRules
    bounds: Bounds = field(default_factory=Bounds)


def topic_stream(
    caller: Caller, topic: str, from_: Position, until: Position, options: ArrowOptions, bounds: Bounds | None = None
) -> ArrowStream:
    """Return the stream of ``Consumer.arrow``, after checking its arguments, those that need the broker too."""
    from ..arrow.json_bodies import decoder_of

    read = TopicRead(topic, from_, until, read_rules(options), bounds or Bounds())
    _check_positions(read)
    timeout = caller.timeout if read.rules.timeout is None else check_timeout("timeout", read.rules.timeout)
    if options.get("infer") is None:
        decoder = decoder_of(options.get("columns"), options.get("json_schema"))
        caller.run(_asked_in_vain(topic, read.rules.condition), caller.deadline(timeout))
    else:
        decoder = decoder_of(options.get("columns"), inferred(caller, topic, from_, until, options))
    return ArrowStream(decoder.schema, lambda losses: _Reading(caller, read, timeout, decoder, losses).batches())


def inferred(caller: Caller, topic: str, from_: Position, until: Position, options: ArrowOptions) -> pa.Schema:
    """Return the schema of the first bodies that the options select, as many as ``infer`` says."""
    from ..arrow.json_bodies import INFER_MAX, infer_schema

    count = options.get("infer")
    if type(count) is not int or not 1 <= count <= INFER_MAX:
        raise InvalidArgument(f"infer is {count!r}; it must be a whole number of messages from 1 to {INFER_MAX:,}")
    if options.get("json_schema") is not None:
        raise InvalidArgument("json_schema and infer exclude each other: leave one out")
    plain: ArrowOptions = {**options, "columns": ("body",), "infer": None}
    return infer_schema(topic_stream(caller, topic, from_, until, plain), count)


def _check_positions(read: TopicRead) -> None:
    for what, position in (("from_", read.from_), ("until", read.until)):
        check_position(what, position)
        if read.rules.key is not None and not isinstance(position, str | datetime):
            raise InvalidArgument(
                f"with a key, {what} must be a datetime, 'earliest' or 'latest', not {position!r:.60}"
            )


def _asked_in_vain(topic: str, condition: str) -> Plan[None]:
    """Ask for nothing, so that a missing topic or an invalid filter is refused before the stream is used."""
    stats: list[QueueStats] = (yield [topic_stats(topic)])[0]
    if condition and stats:
        last = stats[0]
        yield [requests.pull(topic, last.queue, last.max_offset, 1, 1, 0, condition=condition)]


class _Reading:
    def __init__(self, caller: Caller, read: TopicRead, timeout: float, decoder: Decoder, losses: Losses) -> None:
        self._caller = caller
        self._read = read
        self._rules = read.rules
        self._timeout = timeout
        self._decoder = decoder
        self._losses = losses

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._read.bounds.wants_topic(self._read.topic):
            yield from self._of_queues() if self._rules.key is None else self._of_key(self._rules.key)

    # ---- queues

    def _of_queues(self) -> Iterator[pa.RecordBatch]:
        rules = self._rules
        pulls = RowPulls(
            self._caller, self._read.topic, rules.tags, rules.condition, rules.batch_rows, self._timeout, self._add_gap
        )
        for pulled, end in pulls.of(*self._parts()):
            block = self._sound(pulled.body, pulled)
            # A pull with tags or a filter looks at more messages than it returns, and so may go past the end.
            yield from self._decoded(block.select(block.parts[Part.QUEUE_OFFSET] < end))

    def _parts(self) -> Iterator[QueuePart]:
        read, deadline = self._read, self._caller.deadline(self._timeout)
        span = self._caller.run(resolve_span(read.topic, read.from_, read.until), deadline)
        if span.from_ms is not None:
            return  # in the future: nothing is stored from then on
        stored = {row.queue: row.max_offset for row in self._caller.call(topic_stats(read.topic), deadline)}
        ends = stored if span.ends is None else span.ends  # without ends, `until` is in the future
        bounds = replace(read.bounds)
        bounds.limit_times(None, span.until_ms)
        for queue, start in span.starts.items():
            end = min(ends.get(queue, start), stored.get(queue, start))
            part = bounds.narrowed(queue, start, end, partial(self._offset_at, queue))
            if part is not None:
                yield QueuePart(queue, *part, may_move=not span.explicit)

    def _offset_at(self, queue: int, at_ms: int) -> int:
        operation = requests.offset_at_ms(self._read.topic, queue, at_ms)
        return self._caller.call(operation, self._caller.deadline(self._timeout))

    # ---- a key

    def _of_key(self, key: str) -> Iterator[pa.RecordBatch]:
        read = self._read
        begin_ms, end_ms = _times(read.from_, read.until)
        for page in key_pages(self._caller, read.topic, key, begin_ms, end_ms, self._timeout):
            if page.damaged:
                self._add_loss(
                    DataLoss(f"{page.damaged} messages of topic {read.topic!r} with key {key!r} are damaged. {_HINT}")
                )
            if len(page.starts):
                block = self._sound(page.body, page)
                yield from self._decoded(
                    block.select(read.bounds.rows(block.parts[Part.QUEUE], block.parts[Part.QUEUE_OFFSET]))
                )

    # ---- records

    def _sound(self, body: bytes, found: PulledRows | IndexPage) -> RecordBlock:
        if self._rules.on_loss == "raise":
            block = RecordBlock(body, found.starts, found.sizes, topic=self._read.topic)
        else:
            block, damage = RecordBlock.without_damaged(body, found.starts, found.sizes, topic=self._read.topic)
            for error in damage:
                self._add_loss(error)
        return with_tag(block, self._rules.tags)

    def _decoded(self, block: RecordBlock) -> Iterator[pa.RecordBatch]:
        return self._decoder.batches(block, self._read.topic, self._add_loss)

    def _add_gap(self, gap: Gap) -> None:
        what = f"the message {gap.start}" if gap.end == gap.start + 1 else f"the messages [{gap.start}, {gap.end})"
        where = f"queue {gap.queue} of topic {self._read.topic!r}"
        why = gap.why if gap.is_damage else f"{gap.why}: retention took them, or the topic was created again"
        self._add_loss(DataLoss(f"{what} of {where} cannot be read any more ({why}). {_HINT}"))

    def _add_loss(self, error: FlintError) -> None:
        if self._rules.on_loss == "raise":
            raise error
        logger.warning("left out: %s", error)
        self._losses.add(error)


def _times(from_: Position, until: Position) -> tuple[int, int]:
    """Return the first and last store time, in ms, of a read by key; the command's end is inclusive."""
    end_ms = to_millis("until", until) - 1 if isinstance(until, datetime) else I64_MAX
    if isinstance(from_, datetime):
        return to_millis("from_", from_), end_ms
    return (0, end_ms) if ENDS[str(from_)] != LATEST else (I64_MAX, end_ms)
