"""Arrow record batches of a topic: reads by pipelined pulls, queue by queue, and sends."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ...protocol.commands import QueueStats
from ...protocol.errors import FlintError
from ...protocol.fields import I64_MAX
from ..arrow.bounds import Bounds
from ..arrow.errors import DataLoss, RowsNotSent, check_arrow
from ..arrow.options import ArrowOptions, ReadRules, read_rules
from ..core.consume import requests
from ..core.consume.positions import ENDS, LATEST, Position, check_position, resolve_span
from ..core.produce.receipts import DeliveryFailed
from ..core.rpc.operation import Plan
from ..core.rpc.timeouts import check_timeout
from ..core.times import to_millis
from ..core.topics import topic_stats
from ..errors import InvalidArgument
from ..message import check_topic
from .pool import Caller

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrow.decoder import Decoder
    from ..arrow.records import RecordBlock
    from ..arrow.rows import RowProducer
    from ..arrow.stream import ArrowStream, IndexPage, Losses, PulledRows
    from .row_pulls import Gap, QueuePart


# ---- Reads a topic as Arrow record batches: pulls queue by queue, the next pull in flight while one is
# decoded.

logger = logging.getLogger(__name__)

_INDEX_SECONDS = 2.0
_INDEX_POLL_SECONDS = 0.01
_HINT = 'on_loss="report" continues after them'


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
    check_arrow("Consumer.arrow")
    from ..arrow.json_bodies import decoder_of
    from ..arrow.stream import ArrowStream

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
    """One read of a ``TopicRead``."""

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
        from ...protocol.storage.reader.parts import Part
        from .row_pulls import RowPulls

        rules = self._rules
        pulls = RowPulls(
            self._caller, self._read.topic, rules.tags, rules.condition, rules.batch_rows, self._timeout, self._add_gap
        )
        for pulled, end in pulls.of(*self._parts()):
            block = self._sound(pulled.body, pulled)
            # A pull with tags or a filter looks at more messages than it returns, and so may go past the end.
            yield from self._decoded(block.select(block.parts[Part.QUEUE_OFFSET] < end))

    def _parts(self) -> Iterator[QueuePart]:
        from .row_pulls import QueuePart

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
        from ...protocol.storage.reader.parts import Part

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
        from ..arrow.records import RecordBlock
        from ..arrow.stream import with_tag

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


def key_pages(caller: Caller, topic: str, key: str, begin_ms: int, end_ms: int, timeout: float) -> Iterator[IndexPage]:
    """Yield the records of a topic that have a key and were stored in ``[begin_ms, end_ms]``, newest first.

    Waits a moment if the index is behind the log: it follows it after a moment.
    """
    from ..arrow.stream import index_page

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


# ---- Sends the rows of Arrow data: piece by piece, each with as few calls of the producer as its order
# allows.


class ArrowData(Protocol):
    """A data frame, table or stream with the Arrow C stream interface."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


def send_rows(
    producer: RowProducer, topic: str, data: ArrowData, named: Mapping[str, str | None], properties: Sequence[str]
) -> int:
    """Do the work of ``Producer.send_arrow``. ``named``: the column of each part of a message, None without one."""
    check_arrow("Producer.send_arrow")
    from ..arrow.rows import TableRows, sends

    check_topic(topic)
    done = 0
    for first, rows in TableRows(data, topic, named, properties):
        failed: dict[int, FlintError] = {}
        for send in sends(rows):
            try:
                send.run(producer, None)
            except DeliveryFailed as failure:
                numbers = send.rows.tolist()
                failed |= {first + numbers[index]: error for index, error in failure.errors.items()}
                break
            finally:
                done += len(send.rows)
        if failed:
            raise RowsNotSent(failed, done - len(failed))
    return done
