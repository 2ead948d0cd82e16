"""The work of Spark's tasks: read a range of one queue, or the index's results, as Arrow record batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from ...protocol.errors import MessageDamaged, OffsetOutOfRange, TopicNotExist
from ...protocol.fields import I64_MAX
from ..arrow.decoder import Decoder
from ..arrow.pulled import PULL_COUNT, PulledRows, pull, with_tag
from ..arrow.records import RecordBlock
from ..arrow.scan import Part
from ..sync.arrow_reads import key_pages
from ..sync.asker import Asker
from .brokers import BrokerAddress, asker_of, caller_of
from .errors import DataLoss
from .offsets import Queue, damage_loss, data_loss
from .options import ReadOptions

logger = logging.getLogger(__name__)


def read_range(
    queue: Queue, broker: BrokerAddress, start: int, end: int, options: ReadOptions, decoder: Decoder
) -> Iterator[pa.RecordBatch]:
    """Yield the messages ``[start, end)`` of a queue.

    Raises ``DataLoss`` if some of them are gone or lost to damage, and ``CorruptMessage`` for one whose bytes are
    damaged, unless the options accept that.
    """
    asker: Asker[PulledRows] = asker_of(broker, options.timeout)
    with closing(asker):
        for pulled in _pulls(asker, queue, start, end, options):
            block = with_tag(_sound(pulled, queue, options), options.tag_filter)
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
            asker.ask(pull(queue.topic, queue.queue, offset, min(end - offset, PULL_COUNT), tags))
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
            asker.ask(pull(queue.topic, queue.queue, offset, min(end - offset, PULL_COUNT), tags))
        if len(pulled.starts):
            yield pulled


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


def read_key(topic: str, broker: BrokerAddress, options: ReadOptions, decoder: Decoder) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a topic that have the key, newest first, from the index alone."""
    assert options.key is not None
    begin_ms = options.starting_ms or 0
    end_ms = I64_MAX if options.ending_ms is None else options.ending_ms - 1  # the command's end is inclusive
    caller = caller_of(broker, options.timeout)
    for page in key_pages(caller, topic, options.key, begin_ms, end_ms, options.timeout):
        if page.damaged:
            loss = DataLoss(
                f"{page.damaged} records that the index of topic {topic!r} of the broker {broker.name} has for the key "
                f'{options.key!r} are damaged. option("failOnDataLoss", "false") leaves them out'
            )
            if options.fail_on_data_loss:
                raise loss
            logger.warning("leaving them out: %s", loss)
        if len(page.starts):
            block = with_tag(RecordBlock(page.body, page.starts, page.sizes, topic=topic), options.tag_filter)
            if len(block):
                yield decoder.batch(block, topic)
