"""The commands ``flintmq pull``, ``flintmq tail`` and ``flintmq query``."""

from __future__ import annotations

import contextlib
import logging
import string
import time
from collections.abc import Callable, Generator, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ....protocol.display import PLAIN, escape
from ....protocol.errors import MessageNotFound
from ....protocol.storage.record import ID_DIGITS
from ....protocol.times import duration_millis
from ... import endpoint
from ...operator.display import plural, show_moment, shown_name
from ...operator.positions import POSITION_FORMS, TIME_FORMS, EveryQueue, Typed, end_of, is_before_now, start_of
from ..command import CliCommand, CliGroup, command, note, pass_settings
from ..failures import EXIT_ERROR, EXIT_NOT_FOUND, EXIT_OK
from ..messages import (
    DEFAULT_STYLE,
    MessageFilter,
    MessageStyle,
    filter_options,
    format_options,
    show_messages,
    show_record,
)
from ..output import TableColumn, number
from ..params import COUNT, POSITION, QUEUE, SPAN, TIME, TOPIC
from ..settings import BrokerChoice

if TYPE_CHECKING:
    from ...core.consume.batch import StoredMessage
    from ...sync.consumer import Consumer


def _from_option(*names: str, default: str) -> Callable[[Any], Any]:
    return click.option(
        *names,
        "from_",
        type=POSITION,
        default=default,
        show_default=True,
        metavar="POSITION",
        help=f"Where to start: {POSITION_FORMS}.",
    )


# ---- The command ``flintmq pull``.

PULL_COUNT = 1000
HOLD_SECONDS_MAX = 60.0


@command("pull")
@click.argument("topic", type=TOPIC)
@click.option("--queue", type=QUEUE, help="Queue to read.  [default: all, in turn]")
@_from_option("--offset", "--from", default="earliest")
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
            messages: Iterator[StoredMessage] = consumer.iter(
                topic, from_=begin, until="latest", tags=wanted.tag, filter=wanted.condition
            )
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
    assert isinstance(position, datetime), "the other kinds of positions were handled"
    return consumer.offset_at(topic, queue, position)


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


# ---- The command ``flintmq tail``.

SORTED_MAX = 10_000
"""Maximum number of stored messages that are shown in the order of the log; more are shown queue by queue."""


_TOLD = frozenset({endpoint.LOST, endpoint.WAITING, endpoint.BACK})


class _Notes(logging.Handler):
    """A log handler that prints the connection log's records about outages."""

    def __init__(self, settings: BrokerChoice) -> None:
        super().__init__(logging.INFO)
        self._settings = settings

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        if getattr(record, "event", None) in _TOLD:
            self._settings.output.flush()
            note(self._settings, escape(str(getattr(record, "said", record.getMessage()))))


@contextlib.contextmanager
def outages_told(settings: BrokerChoice) -> Iterator[None]:
    """Tell the user, within the context, when the connection is lost, when the client waits, and when it is back."""
    log, notes = endpoint.log, _Notes(settings)
    level = log.level
    log.addHandler(notes)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(notes)
        log.setLevel(level)


@command("tail")
@click.argument("topic", type=TOPIC)
@_from_option("--from", default="-10")
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


# ---- The command ``flintmq query``.

PAGE_COUNT = 64
TIME_COUNT = 10


@click.group(cls=CliGroup)
def query() -> None:
    """Find messages by key, id or time."""


@query.command("key")
@pass_settings
@click.argument("topic", type=TOPIC)
@click.argument("key")
@click.option("-n", "--count", type=COUNT, help="Maximum number of messages.  [default: all]")
@click.option("--since", type=TIME, metavar="TIME", help=f"Only messages stored at this time or later: {TIME_FORMS}.")
@click.option("--until", type=TIME, metavar="TIME", help="Only messages stored at this time or earlier.")
@format_options
def by_key(
    settings: BrokerChoice,
    topic: str,
    key: str,
    count: int | None,
    since: datetime | None,
    until: datetime | None,
    style: MessageStyle,
) -> int:
    """Show the messages of TOPIC that have KEY, newest first. The id of a message is also a key."""
    if since is not None and until is not None and since > until:
        raise click.UsageError("--since is after --until", click.get_current_context())
    found = damaged = index_behind_bytes = 0
    page_count = min(count or PAGE_COUNT, PAGE_COUNT)

    def messages() -> Iterator[StoredMessage]:
        """Yield the messages, newest first; each page is requested when the one before has been read."""
        nonlocal found, damaged, index_behind_bytes
        cursor = None
        while True:
            page = consumer.query(topic, key, since, until, max_count=page_count, cursor=cursor)
            found, damaged, index_behind_bytes = found + len(page), damaged + page.damaged, page.index_behind_bytes
            yield from page
            cursor = page.cursor
            if cursor is None:
                return

    with settings.consumer() as consumer:
        code = show_messages(settings, messages(), style.printer(settings), count=count)
    if damaged:
        records = plural(damaged, "record")
        click.echo(
            f"flintmq: MESSAGE_DAMAGED: {records} of topic {escape(shown_name(topic))} with the key {escape(key)} "
            "cannot be read because the log is damaged; flintmq-broker verify says how to repair it",
            err=True,
        )
        return EXIT_ERROR
    if not found:
        note(settings, f"topic {shown_name(topic)} has no message with the key {key}{_when(since, until)}")
        return EXIT_NOT_FOUND
    if index_behind_bytes:
        note(settings, f"the index is {index_behind_bytes:,} bytes behind: the newest messages may be missing")
    return code


def _when(since: datetime | None, until: datetime | None) -> str:
    after = f" since {show_moment(since)}" if since else ""
    return f"{after} until {show_moment(until)}" if until else after


@query.command("id")
@pass_settings
@click.argument("message_id", metavar="ID")
@click.option("--topic", type=TOPIC, help="Topic to search.  [default: all]")
@format_options
def by_id(settings: BrokerChoice, message_id: str, topic: str | None, style: MessageStyle) -> int:
    """Show one message with all its fields, or only its body in a pipe.

    ID is the unique key or the offset id of the message, as flintmq send prints it.
    """
    with settings.consumer() as consumer:
        try:
            message = consumer.message(message_id, topic)
        except MessageNotFound:
            if len(message_id) in ID_DIGITS and set(message_id) <= set(string.hexdigits):
                raise
            raise MessageNotFound(
                f"{message_id!r} is not a message id; expected 32 or 56 hexadecimal digits, as flintmq send prints "
                "them. To search by key, use flintmq query key TOPIC KEY"
            ) from None
        output = settings.output
        if style == DEFAULT_STYLE and output.mode != PLAIN:
            show_record(output, message)
            return EXIT_OK
        return show_messages(settings, [message], style.printer(settings))


class TimeCommand(CliCommand):
    """A command whose argument may be a time before now, such as ``-1h``, which click would take for an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, after writing such a time as ``@-1h``."""
        return super().parse_args(ctx, [f"@{word}" if is_before_now(word) else word for word in args])


@query.command("time", cls=TimeCommand)
@pass_settings
@click.argument("topic", type=TOPIC)
@click.argument("moment", metavar="TIME", type=TIME)
@click.option("-n", "--count", type=COUNT, default=TIME_COUNT, show_default=True, help="Maximum number of messages.")
@click.option("--offsets", is_flag=True, help="Show the offset of each queue at that time instead of messages.")
@format_options
def by_time(
    settings: BrokerChoice, topic: str, moment: datetime, count: int, offsets: bool, style: MessageStyle
) -> int:
    """Show the first messages stored at TIME or later, oldest first, or the queue offsets at that time."""
    with settings.consumer() as consumer:
        if offsets:
            _show_offsets(settings, consumer, topic, moment)
            return 0
        found = _oldest(consumer, topic, moment, count)
        code = show_messages(settings, found, style.printer(settings))
    if not found:
        note(settings, f"topic {shown_name(topic)} has no message stored at {show_moment(moment)} or later")
        return EXIT_NOT_FOUND
    return code


def _oldest(consumer: Consumer, topic: str, moment: datetime, count: int) -> list[StoredMessage]:
    """Return the first ``count`` messages stored at ``moment`` or later, in the order of the log."""
    found: list[StoredMessage] = []
    for stats in consumer.topic_stats(topic):
        offset = consumer.offset_at(topic, stats.queue, moment)
        end = min(offset + count, stats.max_offset)
        while offset < end:
            batch = consumer.pull(topic, stats.queue, offset, end - offset)
            found += batch.messages
            offset = batch.next_offset
    return sorted(found, key=lambda message: message.physical_offset)[:count]


def _show_offsets(settings: BrokerChoice, consumer: Consumer, topic: str, moment: datetime) -> None:
    rows = [
        {"queue": stats.queue, "queue_offset": offset, "messages": stats.max_offset - offset}
        for stats in consumer.topic_stats(topic)
        for offset in (consumer.offset_at(topic, stats.queue, moment),)
    ]
    columns = (
        TableColumn("topic", "TOPIC", shown_name, fold=True, of=lambda _: topic),
        number("queue", "QUEUE"),
        number("queue_offset", "OFFSET"),
        number("messages", "MESSAGES FROM THERE"),
        TableColumn("time", "TIME", show_moment, of=lambda _: moment),
    )
    settings.output.rows(columns, rows)
