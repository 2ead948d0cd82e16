"""The command ``flintmq query``."""

from __future__ import annotations

import string
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import click

from ....protocol.display import PLAIN
from ....protocol.errors import MessageNotFound
from ....protocol.escaping import escape
from ....protocol.storage.ids import ID_DIGITS
from ...operator.names import shown_name
from ...operator.positions import TIME_FORMS, is_before_now
from ...operator.units import plural, show_moment
from ..command import CliCommand, CliGroup, note, pass_settings
from ..failures import EXIT_ERROR, EXIT_NOT_FOUND, EXIT_OK
from ..message_record import show_record
from ..output import TableColumn, name_column, number
from ..params import COUNT, TIME, TOPIC
from ..settings import BrokerChoice
from ..topic_reader import DEFAULT_STYLE, MessageStyle, format_options, show_messages

if TYPE_CHECKING:
    from ...core.consume.stored import StoredMessage
    from ...sync.consumer import Consumer

PAGE_COUNT = 64
TIME_COUNT = 10

OFFSET_COLUMNS = (
    name_column("topic", "TOPIC"),
    number("queue", "QUEUE"),
    number("queue_offset", "OFFSET"),
    number("messages", "MESSAGES FROM THERE"),
    TableColumn("time", "TIME", show_moment),
)


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
    with settings.consumer() as consumer:
        pages = _Pages(consumer, topic, key, since, until, count)
        code = show_messages(settings, pages.messages(), style.printer(settings), count=count)
    if pages.damaged:
        records = plural(pages.damaged, "record")
        click.echo(
            f"flintmq: MESSAGE_DAMAGED: {records} of topic {escape(shown_name(topic))} with the key {escape(key)} "
            "cannot be read because the log is damaged; flintmq-broker verify says how to repair it",
            err=True,
        )
        return EXIT_ERROR
    if not pages.found:
        note(settings, f"topic {shown_name(topic)} has no message with the key {key}{_when(since, until)}")
        return EXIT_NOT_FOUND
    if pages.index_behind_bytes:
        note(settings, f"the index is {pages.index_behind_bytes:,} bytes behind: the newest messages may be missing")
    return code


def _when(since: datetime | None, until: datetime | None) -> str:
    after = f" since {show_moment(since)}" if since else ""
    return f"{after} until {show_moment(until)}" if until else after


class _Pages:
    """The pages of a query; each is requested when the one before has been read."""

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        key: str,
        since: datetime | None,
        until: datetime | None,
        count: int | None,
    ) -> None:
        self._consumer = consumer
        self._what = (topic, key, since, until)
        self._page = min(count or PAGE_COUNT, PAGE_COUNT)
        self.found = 0
        self.damaged = 0
        self.index_behind_bytes = 0

    def messages(self) -> Iterator[StoredMessage]:
        """Yield the messages, newest first."""
        cursor = None
        while True:
            page = self._consumer.query(*self._what, max_count=self._page, cursor=cursor)
            self.index_behind_bytes = page.index_behind_bytes
            self.found += len(page)
            self.damaged += page.damaged
            yield from page
            cursor = page.cursor
            if cursor is None:
                return


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
    rows = []
    for stats in consumer.topic_stats(topic):
        offset = consumer.offset_at(topic, stats.queue, moment)
        rows.append(
            {
                "topic": topic,
                "queue": stats.queue,
                "queue_offset": offset,
                "messages": stats.max_offset - offset,
                "time": moment,
            }
        )
    settings.output.rows(OFFSET_COLUMNS, rows)
