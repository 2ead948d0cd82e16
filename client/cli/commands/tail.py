"""The command ``flintmq tail``."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING

import click

from ...operator.positions import POSITION_FORMS, Typed, end_of, start_of
from ..command import command
from ..outages import outages_told
from ..params import COUNT, POSITION, TOPIC
from ..settings import BrokerChoice
from ..topic_reader import MessageFilter, MessageStyle, filter_options, format_options, show_messages

if TYPE_CHECKING:
    from ...core.consume.stored import StoredMessage
    from ...sync.consumer import Consumer

SORTED_MAX = 10_000
"""Maximum number of stored messages that are shown in the order of the log; more are shown queue by queue."""


@command("tail")
@click.argument("topic", type=TOPIC)
@click.option(
    "--from",
    "from_",
    type=POSITION,
    default="-10",
    show_default=True,
    metavar="POSITION",
    help=f"Where to start: {POSITION_FORMS}.",
)
@click.option("--until", type=POSITION, metavar="POSITION", help="Where to end (exclusive).  [default: never]")
@click.option("-n", "--count", type=COUNT, help="End after this many messages.")
@filter_options
@format_options
def tail(
    settings: BrokerChoice,
    topic: str,
    from_: Typed,
    until: Typed | None,
    count: int | None,
    wanted: MessageFilter,
    style: MessageStyle,
) -> int:
    """Show a topic's messages as they arrive, starting with the last ten. Ctrl-C ends.

    In a pipe, only the bodies are printed, one per line, with control characters escaped.
    """
    printer = style.printer(settings, follow=until is None)
    with settings.consumer() as consumer:
        messages = _messages(consumer, topic, from_, until, wanted)
        with contextlib.closing(messages), outages_told(settings):  # close its connection before the consumer
            nothing = wanted.nothing_found(topic)
            return show_messages(settings, messages, printer, count=count, condition=wanted.condition, nothing=nothing)


def _messages(
    consumer: Consumer, topic: str, from_: Typed, until: Typed | None, wanted: MessageFilter
) -> Generator[StoredMessage, None, None]:
    """Yield the messages between the positions.

    Without ``until``, the messages stored before the start come first, in the order of the log.
    """
    stats = consumer.topic_stats(topic)
    begin, end = start_of(from_, topic, stats), end_of(until, topic, stats)
    if until is None and isinstance(begin, int) and -begin <= SORTED_MAX:
        ends = {queue.queue: queue.max_offset for queue in stats}
        there = list(consumer.iter(topic, from_=begin, until=ends, tags=wanted.tag, filter=wanted.condition))
        yield from sorted(there, key=lambda message: message.physical_offset)
        begin = ends
    yield from consumer.iter(topic, from_=begin, until=end, tags=wanted.tag, filter=wanted.condition)
