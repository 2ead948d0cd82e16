"""The command ``flintmq pull``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import click

from ....protocol.times import duration_millis
from ...operator.positions import POSITION_FORMS, EveryQueue, Typed, start_of
from ..command import command
from ..params import COUNT, POSITION, QUEUE, SPAN, TOPIC
from ..settings import BrokerChoice
from ..topic_reader import MessageFilter, MessageStyle, filter_options, format_options, show_messages

if TYPE_CHECKING:
    from ...core.consume.stored import StoredMessage
    from ...sync.consumer import Consumer

PULL_COUNT = 1000
HOLD_SECONDS_MAX = 60.0


@command("pull")
@click.argument("topic", type=TOPIC)
@click.option("--queue", type=QUEUE, help="Queue to read.  [default: all, in turn]")
@click.option(
    "--offset",
    "--from",
    "from_",
    type=POSITION,
    default="earliest",
    show_default=True,
    metavar="POSITION",
    help=f"Where to start: {POSITION_FORMS}.",
)
@click.option("-n", "--count", type=COUNT, default=10, show_default=True, help="Maximum number of messages.")
@filter_options
@click.option(
    "--wait", type=SPAN, default=0.0, metavar="SPAN", help="How long to wait for messages at the end of the queue."
)
@format_options
def pull(
    settings: BrokerChoice,
    topic: str,
    queue: int | None,
    from_: Typed,
    count: int,
    wanted: MessageFilter,
    wait: float,
    style: MessageStyle,
) -> int:
    """Show stored messages, by default the first ten. Commits no offsets."""
    if wait and queue is None:
        raise click.UsageError(
            "--wait needs --queue; to wait for messages of all queues, use flintmq tail", click.get_current_context()
        )
    with settings.consumer() as consumer:
        if queue is None:
            stats = consumer.topic_stats(topic)
            begin = start_of(from_, topic, stats)
            messages = consumer.iter(topic, from_=begin, until="latest", tags=wanted.tag, filter=wanted.condition)
        else:
            offset = _offset(consumer, topic, queue, from_)
            since = from_ if isinstance(from_, datetime) else None
            messages = _queue_messages(consumer, topic, queue, offset, count, wanted, wait, since)
        printer = style.printer(settings, follow=bool(wait))
        nothing = wanted.nothing_found(topic)
        return show_messages(settings, messages, printer, count=count, condition=wanted.condition, nothing=nothing)


def _offset(consumer: Consumer, topic: str, queue: int, position: Typed) -> int:
    """Return the offset of ``position`` in one queue."""
    if isinstance(position, EveryQueue):
        return position.offset
    if isinstance(position, dict):
        if queue not in position:
            raise click.BadParameter(
                f"it names other queues than {queue}; pass only the offset", param_hint="'--offset'"
            )
        return position[queue]
    if position == "earliest":
        return consumer.min_offset(topic, queue)
    if position == "latest":
        return consumer.max_offset(topic, queue)
    if isinstance(position, int):
        return max(consumer.min_offset(topic, queue), consumer.max_offset(topic, queue) + position)
    return consumer.offset_at(topic, queue, _moment(position))


def _moment(position: Typed) -> datetime:
    assert not isinstance(position, str | int | dict | EveryQueue), "the caller has handled the other positions"
    return position


def _queue_messages(
    consumer: Consumer,
    topic: str,
    queue: int,
    offset: int,
    count: int,
    wanted: MessageFilter,
    wait: float,
    since: datetime | None,
) -> Iterator[StoredMessage]:
    """Yield the messages of one queue from ``offset`` to its end, then those that arrive within ``wait`` seconds.

    ``since``: leave out those that were stored before; the time may come while the command waits.
    """
    deadline = time.monotonic() + wait
    while True:
        left = min(max(0.0, deadline - time.monotonic()), HOLD_SECONDS_MAX)
        batch = consumer.pull(
            topic,
            queue,
            offset,
            min(count, PULL_COUNT),
            wait_ms=duration_millis(left),
            tags=wanted.tag,
            filter=wanted.condition,
        )
        messages = [message for message in batch.messages if since is None or message.stored_at >= since]
        yield from messages
        count -= len(messages)
        at_end = batch.next_offset >= batch.max_offset and time.monotonic() >= deadline
        if count <= 0 or at_end:
            return
        offset = batch.next_offset
