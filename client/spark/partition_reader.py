"""The work of Spark's tasks: read a range of one queue, or the index's results, as Arrow record batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...protocol import commands
from ...protocol.errors import MessageDamaged, OffsetOutOfRange, RemoteProtocolError, TopicNotExist
from ...protocol.fields import I64_MAX, decode_fields
from ..core.consume import requests
from ..core.consume.batch import Batch
from ..core.consume.tags import TagFilter
from ..core.rpc.operation import Operation
from ..core.rpc.session import Answer
from .arrow_decoder import Decoder
from .brokers import Asker, BrokerAddress, call
from .errors import DataLoss
from .offsets import Queue, damage_loss, data_loss
from .options import ReadOptions
from .records import RecordBlock
from .scan import Ints, Part

logger = logging.getLogger(__name__)

PULL_COUNT = 65_536
PULL_BYTES = 4 << 20
_PAGE = 64
_SIZE_BYTES = 4
_INDEX_SECONDS = 2.0
_INDEX_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class PulledRows:
    """The response to a pull: stored records with their positions in ``body``, and the offset to continue from."""

    body: bytes
    starts: Ints
    sizes: Ints
    next_offset: int
    min_offset: int
    max_offset: int
    lost: int
    lost_from: int


def _pulled(answer: Answer) -> PulledRows:
    head = decode_fields(commands.RecordsAnswer, answer.fields)
    starts, sizes = _records(answer.body, head.count)
    offsets = head.next_offset, head.min_offset, head.max_offset
    return PulledRows(answer.body, starts, sizes, *offsets, head.lost, head.lost_from)


def _records(body: bytes, count: int) -> tuple[Ints, Ints]:
    """Return the starts and sizes of the records in a response's body."""
    records_at = _SIZE_BYTES * count
    if records_at > len(body):
        raise RemoteProtocolError(f"{count} records announced in a body of {len(body)} bytes")
    sizes = np.frombuffer(body, ">u4", count).astype(np.int64)
    ends = records_at + np.cumsum(sizes)
    if (int(ends[-1]) if count else records_at) != len(body):
        raise RemoteProtocolError(f"the sizes of {count} records do not fit a body of {len(body)} bytes")
    return ends - sizes, sizes


def pull(queue: Queue, offset: int, count: int, tags: TagFilter) -> Operation[PulledRows]:
    """Read up to ``count`` records from ``offset`` on."""
    asked: Operation[Batch] = requests.pull(queue.topic, queue.queue, offset, count, PULL_BYTES, 0, tags)
    return replace(asked, decode=_pulled)  # type: ignore[arg-type,return-value]  # another result


def read_range(
    queue: Queue, broker: BrokerAddress, start: int, end: int, options: ReadOptions, decoder: Decoder
) -> Iterator[pa.RecordBatch]:
    """Yield the messages ``[start, end)`` of a queue.

    Raises ``DataLoss`` if some of them are gone or lost to damage, and ``CorruptMessage`` for one whose bytes are
    damaged, unless the options accept that.
    """
    asker: Asker[PulledRows] = Asker(broker, options.timeout)
    with closing(asker):
        for pulled in _pulls(asker, queue, start, end, options):
            block = _with_tag(_sound(pulled, queue, options), options.tag_filter)
            # A pull with tags looks at more messages than it returns, and so may go past the end.
            block = block.select(block.parts[Part.QUEUE_OFFSET] < end)
            if len(block):
                yield decoder.batch(block, queue.topic)


def _pulls(asker: Asker[PulledRows], queue: Queue, start: int, end: int, options: ReadOptions) -> Iterator[PulledRows]:
    """Yield the broker's responses for ``[start, end)``; the next pull is in flight while the caller handles one."""
    tags = options.tag_filter
    offset = start
    while offset < end:
        if not asker.is_asked:
            asker.ask(pull(queue, offset, min(end - offset, PULL_COUNT), tags))
        try:
            pulled = asker.answer()
        except OffsetOutOfRange as error:
            offset = _after_loss(queue, offset, end, error.min_offset, error.max_offset, options)
            continue
        except TopicNotExist:
            offset = _after_loss(queue, offset, end, end, end, options)
            continue
        except MessageDamaged as error:
            offset = _after_damage(queue, error.queue_offset, 1, options, str(error)) + 1
            continue
        if pulled.lost and pulled.lost_from < end:
            _after_damage(queue, pulled.lost_from, pulled.lost, options, "its log was damaged there")
        if pulled.next_offset <= offset:  # the queue ends here, before the planned end
            offset = _after_loss(queue, offset, end, pulled.min_offset, pulled.max_offset, options)
            continue
        offset = pulled.next_offset
        if offset < end:
            asker.ask(pull(queue, offset, min(end - offset, PULL_COUNT), tags))
        if len(pulled.starts):
            yield pulled


def _with_tag(block: RecordBlock, tags: TagFilter) -> RecordBlock:
    """Return the records that really have one of the tags: the broker compares only hashes."""
    if not tags.wanted:
        return block
    wanted = pa.array([tag.encode() for tag in tags.wanted], pa.binary())
    found = pc.is_in(block.property_values(Part.TAGS_AT, Part.TAGS_END), wanted)
    return block.select(found.to_numpy(zero_copy_only=False))


def _after_loss(queue: Queue, offset: int, end: int, first: int, last: int, options: ReadOptions) -> int:
    """Return the offset to continue from after ``offset`` was found to be gone; the queue holds ``[first, last)``."""
    next_offset = min(end, first) if first > offset else end
    why = f"the queue holds [{first}, {last})" if last > first else "the queue is gone or empty"
    if options.fail_on_data_loss:
        raise data_loss(queue, offset, next_offset, why)
    logger.warning("continuing at %d: %s", next_offset, data_loss(queue, offset, next_offset, why))
    return next_offset


def _after_damage(queue: Queue, queue_offset: int, count: int, options: ReadOptions, why: str) -> int:
    """Return ``queue_offset`` after logging that ``count`` messages from it on are lost to damage of the broker's log.

    Raises ``DataLoss`` unless the options accept that.
    """
    loss = damage_loss(queue, queue_offset, count, why)
    if options.fail_on_data_loss:
        raise loss
    logger.warning("continuing after them: %s", loss)
    return queue_offset


def _sound(pulled: PulledRows, queue: Queue, options: ReadOptions) -> RecordBlock:
    """Return the records of a response. Raises ``CorruptMessage`` for a damaged one, unless the options accept that."""
    if options.fail_on_data_loss:
        return RecordBlock(pulled.body, pulled.starts, pulled.sizes, topic=queue.topic)
    block, damage = RecordBlock.without_damaged(pulled.body, pulled.starts, pulled.sizes, topic=queue.topic)
    if damage:
        logger.warning("skipping %d damaged messages, the first: %s", len(damage), damage[0])
    return block


# ---- by key ----


@dataclass(frozen=True, slots=True)
class _Page:
    """Records that the index found, newest first."""

    body: bytes
    starts: Ints
    sizes: Ints
    cursor: str
    index_behind_bytes: int
    damaged: int


def _page(answer: Answer) -> _Page:
    head = decode_fields(commands.QueryByKeyAnswer, answer.fields)
    starts, sizes = _records(answer.body, head.count)
    return _Page(answer.body, starts, sizes, head.cursor, head.index_behind_bytes, head.damaged)


def read_key(topic: str, broker: BrokerAddress, options: ReadOptions, decoder: Decoder) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a topic that have the key, newest first, from the index alone."""
    assert options.key is not None
    begin_ms = options.starting_ms or 0
    end_ms = I64_MAX if options.ending_ms is None else options.ending_ms - 1  # the command's end is inclusive
    cursor: str | None = None
    while end_ms >= begin_ms:
        asked = requests.query_between(topic, options.key, begin_ms, end_ms, _PAGE, cursor)
        page = _indexed(broker, replace(asked, decode=_page), options.timeout)  # type: ignore[arg-type]  # another result
        if page.damaged:
            loss = DataLoss(
                f"{page.damaged} records that the index of topic {topic!r} of the broker {broker.name} has for the key "
                f'{options.key!r} are damaged. option("failOnDataLoss", "false") leaves them out'
            )
            if options.fail_on_data_loss:
                raise loss
            logger.warning("leaving them out: %s", loss)
        if len(page.starts):
            block = _with_tag(RecordBlock(page.body, page.starts, page.sizes, topic=topic), options.tag_filter)
            if len(block):
                yield decoder.batch(block, topic)
        if not page.cursor:
            return
        cursor = page.cursor


def _indexed(broker: BrokerAddress, operation: Operation[Any], timeout: float) -> _Page:
    """Return a page after the index has caught up: it follows the log a moment later."""
    patience = time.monotonic() + _INDEX_SECONDS
    while True:
        page: _Page = call(broker, operation, timeout)
        if not page.index_behind_bytes:
            return page
        if time.monotonic() > patience:
            logger.warning("the index of the broker %s is %d bytes behind", broker.address, page.index_behind_bytes)
            return page
        time.sleep(_INDEX_POLL_SECONDS)
