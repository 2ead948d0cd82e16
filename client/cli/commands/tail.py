"""The command ``flintmq tail``."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING

import click

from ..command import command
from ..messages import MessagePrinter
from ..outages import outages_told
from ..params import COUNT, POSITION, TOPIC
from ..positions import POSITION_FORMS, Typed, end_of, start_of
from ..settings import BrokerChoice
from ..topic_reader import FILTER_HELP, format_options, nothing_found, show_messages

if TYPE_CHECKING:
    from ...core.consume.stored import StoredMessage
    from ...sync.consumer import Consumer
    from ..formats import Format

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
@click.option("-t", "--tag", help="Only messages with this tag, or with one of several: 'a || b'.")
@click.option("--filter", "condition", metavar="CONDITION", help=FILTER_HELP)
@format_options
def tail(
    settings: BrokerChoice,
    topic: str,
    from_: Typed,
    until: Typed | None,
    count: int | None,
    tag: str | None,
    condition: str | None,
    template: Format | None,
    raw: bool,
) -> int:
    """Show a topic's messages as they arrive, starting with the last ten. Ctrl-C ends.

    In a pipe, only the bodies are printed, one per line, with control characters escaped.
    """
    printer = MessagePrinter(settings.output, template=template, raw=raw, follow=until is None)
    with settings.consumer() as consumer:
        messages = _messages(consumer, topic, from_, until, tag, condition)
        with contextlib.closing(messages), outages_told(settings):  # close its connection before the consumer
            nothing = nothing_found(topic, tag, condition)
            return show_messages(settings, messages, printer, count=count, condition=condition, nothing=nothing)


def _messages(
    consumer: Consumer, topic: str, from_: Typed, until: Typed | None, tag: str | None, condition: str | None
) -> Generator[StoredMessage, None, None]:
    """Yield the messages between the positions. When it follows the topic, the messages stored before the start come
    first, in the order of the log."""
    stats = consumer.topic_stats(topic)
    begin, end = start_of(from_, topic, stats), end_of(until, topic, stats)
    if until is None and isinstance(begin, int) and -begin <= SORTED_MAX:
        ends = {queue.queue: queue.max_offset for queue in stats}
        there = list(consumer.iter(topic, from_=begin, until=ends, tags=tag, filter=condition))
        yield from sorted(there, key=lambda message: message.physical_offset)
        begin = ends
    yield from consumer.iter(topic, from_=begin, until=end, tags=tag, filter=condition)
