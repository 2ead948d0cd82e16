"""The work of Spark's tasks: read a range of one queue, or the index's results, as Arrow record batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa

from ...protocol.fields import I64_MAX
from ...protocol.storage.reader.parts import Part
from ..arrow.decoder import Decoder
from ..arrow.records import RecordBlock
from ..arrow.stream import PULL_COUNT, PulledRows, with_tag
from ..sync.arrow import Gap, QueuePart, RowPulls, key_pages
from .brokers import BrokerAddress, caller_of
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
    caller = caller_of(broker, options.timeout)

    def lost(gap: Gap) -> None:
        if gap.is_damage:
            loss = damage_loss(queue, gap.start, gap.end - gap.start, gap.why)
        else:
            loss = data_loss(queue, gap.start, gap.end, gap.why)
        if options.fail_on_data_loss:
            raise loss
        logger.warning("continuing after them: %s", loss)

    pulls = RowPulls(caller, queue.topic, options.tag_filter, "", PULL_COUNT, options.timeout, lost)
    for pulled, _ in pulls.of(QueuePart(queue.queue, start, end)):
        block = with_tag(_sound(pulled, queue, options), options.tag_filter)
        # A pull with tags looks at more messages than it returns, and so may go past the end.
        block = block.select(block.parts[Part.QUEUE_OFFSET] < end)
        if len(block):
            yield decoder.batch(block, queue.topic)


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
