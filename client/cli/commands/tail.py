"""``flintmq tail``."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, cast

import click

from ..command import command
from ..messages import MessagePrinter
from ..params import COUNT, POSITION, TOPIC
from ..positions import POSITION_FORMS, Typed, end_of, start_of
from ..reading import format_options, show_messages
from ..settings import Settings

if TYPE_CHECKING:
    from ...core.stored import StoredMessage
    from ..formats import Format


@command("tail")
@click.argument("topic", type=TOPIC)
@click.option(
    "--from",
    "from_",
    type=POSITION,
    default="-10",
    show_default=True,
    metavar="POSITION",
    help=f"Where to begin: {POSITION_FORMS}.",
)
@click.option("--until", type=POSITION, metavar="POSITION", help="Where to end, before it.  [default: never]")
@click.option("-n", "--count", type=COUNT, help="End after so many messages.")
@click.option("-t", "--tag", help="Only messages with this tag, or one of several: 'a || b'.")
@format_options
def tail(
    settings: Settings,
    topic: str,
    from_: Typed,
    until: Typed | None,
    count: int | None,
    tag: str | None,
    template: Format | None,
    raw: bool,
) -> int:
    """Show a topic's messages as they arrive, beginning with the last ten. Ctrl-C ends.

    In a pipe the bodies alone are printed, one a line, with control characters escaped.
    """  # fmt: skip
    with settings.consumer() as consumer:
        begin, end = from_, until
        if not isinstance(from_, str | int) or isinstance(until, dict) or until is not None:
            stats = consumer.topic_stats(topic)
            begin, end = start_of(from_, topic, stats), end_of(until, topic, stats)  # type: ignore[assignment]
        messages = consumer.iter(topic, from_=begin, until=end, tags=tag)  # type: ignore[arg-type]
        printer = MessagePrinter(settings.output, template=template, raw=raw, follow=until is None)
        with _closing(messages):
            return show_messages(settings, messages, printer, count=count)


def _closing(messages: Iterator[StoredMessage]) -> contextlib.closing[Generator[StoredMessage, None, None]]:
    """Ends the reading, and with it its connection, before the consumer is closed."""
    return contextlib.closing(cast("Generator[StoredMessage, None, None]", messages))
