"""The command ``flintmq dlq``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ....protocol.display import JSON, escape
from ....protocol.errors import FlintError
from ....protocol.storage.delivery import PROPERTY_ORIGIN_MESSAGE_ID, dead_letter_topic
from ...errors import CorruptMessage
from ...operator.dead_letters import (
    BATCH_COUNT,
    DeadQueue,
    Resending,
    Stretch,
    Target,
    check_group,
    dead_queues,
    groups_with_dead_letters,
    original_topic,
    own_properties,
)
from ...operator.display import plural, show_moment, show_second, shown_name
from ..command import CliGroup, confirm, note, pass_settings
from ..failures import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, describe
from ..messages import message_row, shown_body
from ..output import TableColumn, name_column, number
from ..params import COUNT, DEAD_LETTER_GROUP, OFFSETS, TOPIC, NumberType
from ..settings import BrokerChoice

if TYPE_CHECKING:
    from ...core.consume.batch import StoredMessage
    from ...sync.admin import Admin
    from ...sync.consumer import Consumer

PREVIEW_CHARS = 40


def _preview(text: str) -> str:
    return text if len(text) <= PREVIEW_CHARS else f"{text[:PREVIEW_CHARS]}…"


LIST_COLUMNS = (
    name_column("group", "GROUP"),
    number("waiting", "WAITING"),
    number("messages", "KEPT"),
    TableColumn("oldest_at", "OLDEST", show_second, spare=True),
    TableColumn("newest_at", "NEWEST", show_second),
    TableColumn("newest_reason", "NEWEST REASON", _preview, fold=True),
)
SHOW_COLUMNS = (
    TableColumn("stored_at", "FAILED", show_moment),
    number("queue_offset", "OFFSET"),
    TableColumn("message_id", "MESSAGE ID"),
    TableColumn("original_topic", "TOPIC", shown_name),
    TableColumn("keys", "KEYS", " ".join),
    number("reconsume_times", "TRIES"),
    TableColumn("body", "BODY", _preview, of=shown_body),
    TableColumn("retry_reason", "REASON"),
    TableColumn("retry_member", "MEMBER"),
)
RESEND_COLUMNS = (name_column("group", "GROUP"), name_column("topic", "TOPIC"), number("messages", "MESSAGES"))


_offsets_option = click.option(
    "--queue-offset",
    "offsets",
    type=OFFSETS,
    metavar="RANGE",
    help="Only these queue offsets: 17, 17:20 (17 to 19) or 17:.",
)


@click.group(cls=CliGroup)
def dlq() -> None:
    """Dead letters: messages that a group failed to handle on every attempt."""


@dlq.command("list")
@pass_settings
def list_groups(settings: BrokerChoice) -> None:
    """List the groups that have dead letters: how many are still to be dealt with, and how many are kept."""
    with settings.admin() as admin, settings.consumer() as consumer:
        rows = [_list_row(consumer, group) for group in groups_with_dead_letters(admin)]
    rows = [row for row in rows if row["messages"]]
    settings.output.rows(LIST_COLUMNS, rows, empty="there are no dead letters")


def _list_row(consumer: Consumer, group: str) -> dict[str, Any]:
    oldest: list[StoredMessage] = []
    newest: list[StoredMessage] = []
    queues = dead_queues(consumer, group)
    for queue in queues:
        if queue.waiting:
            oldest += _one(consumer, queue, queue.next_offset)
            newest += _one(consumer, queue, queue.end - 1)
    return {
        "group": group,
        "waiting": sum(queue.waiting for queue in queues),
        "messages": sum(queue.end - queue.min_offset for queue in queues),
        "oldest_at": min((message.stored_at for message in oldest), default=None),
        "newest_at": max((message.stored_at for message in newest), default=None),
        "newest_reason": max(newest, key=lambda message: message.stored_at).retry_reason if newest else None,
    }


def _one(consumer: Consumer, queue: DeadQueue, offset: int) -> list[StoredMessage]:
    """Return the dead letter at an offset; empty if it is lost or damaged."""
    found = queue.read(consumer, offset, offset + 1, pass_over=lambda error: None)
    return [message for stretch in found for message in stretch.messages]


# ---- the dead letters of one group


def _queues(settings: BrokerChoice, admin: Admin, consumer: Consumer, group: str) -> list[DeadQueue]:
    """Return the queues with the group's dead letters. Tells the user if there are none. Raises ``GroupNotExist``."""
    check_group(admin, group)
    found = dead_queues(consumer, group)
    if not sum(each.end - each.min_offset for each in found):
        note(settings, f"group {escape(shown_name(group))} has no dead letters")
    return found


def _ranges(queues: list[DeadQueue], offsets: tuple[int, int | None] | None) -> Iterator[tuple[DeadQueue, int, int]]:
    """Yield (queue, first, end) for the given offsets, or for all waiting dead letters."""
    for queue in queues:
        if offsets is None:
            yield queue, queue.next_offset, queue.end
        elif queue.end > queue.min_offset:
            first, end = offsets[0], queue.end if offsets[1] is None else offsets[1]
            queue.check_has(first, max(end, first + 1))
            yield queue, first, end


@dlq.command("show")
@pass_settings
@click.argument("group", type=DEAD_LETTER_GROUP)
@click.option("-n", "--count", type=COUNT, default=10, show_default=True, help="Maximum number to show.")
@click.option("--all", "everything", is_flag=True, help="Include those that are dealt with and still kept.")
@_offsets_option
def show(
    settings: BrokerChoice, group: str, count: int, everything: bool, offsets: tuple[int, int | None] | None
) -> int:
    """Show the dead letters of a group that are still to be dealt with, oldest first."""
    if everything and offsets is None:
        offsets = (0, None)
    damaged: list[FlintError] = []
    with settings.admin() as admin, settings.consumer() as consumer:
        queues = _queues(settings, admin, consumer, group)
        rows = _rows(consumer, group, queues, offsets, count, damaged)
        if settings.output.mode == JSON:
            for row in rows:
                settings.output.json(row)
        else:
            settings.output.rows(SHOW_COLUMNS, rows, empty="no dead letters wait" if queues else "")
    for error in damaged:
        click.echo(f"flintmq: {describe(error)[0]}", err=True)
    return EXIT_ERROR if damaged else EXIT_OK


def _rows(
    consumer: Consumer,
    group: str,
    queues: list[DeadQueue],
    offsets: tuple[int, int | None] | None,
    count: int,
    damaged: list[FlintError],
) -> Iterator[dict[str, Any]]:
    for queue, first, end in _ranges(queues, offsets):
        for stretch in queue.read(consumer, first, end, damaged.append):
            for message in stretch.messages:
                if not count:
                    return
                count -= 1
                try:
                    yield _row(group, message)
                except CorruptMessage as error:
                    damaged.append(error)


def _row(group: str, message: StoredMessage) -> dict[str, Any]:
    return message_row(message) | {
        "group": group,
        "original_topic": original_topic(message),
        "origin_message_id": message.properties.get(PROPERTY_ORIGIN_MESSAGE_ID),
        "reconsume_times": message.reconsume_times,
        "retry_reason": message.retry_reason,
        "retry_member": message.retry_member,
        "properties": own_properties(message),
    }


# ---- sending again, purging


@dlq.command("resend")
@pass_settings
@click.argument("group", type=DEAD_LETTER_GROUP)
@click.option("--id", "ids", metavar="ID", multiple=True, help="Only the message with this id; repeatable.")
@_offsets_option
@click.option(
    "--to-topic", type=TOPIC, default="", help="Send all to this topic.  [default: each to its original topic]"
)
@click.option("--to-group", is_flag=True, help="Send to this group only; no other group gets them again.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be sent, but send nothing.")
def resend(
    settings: BrokerChoice,
    group: str,
    ids: tuple[str, ...],
    offsets: tuple[int, int | None] | None,
    to_topic: str,
    to_group: bool,
    dry_run: bool,
) -> int:
    """Send the dead letters of a group again, each to its original topic.

    Body, keys, tag, sharding key and properties stay the same. Each message gets a new id; the property
    DLQ_ORIGIN_MESSAGE_ID holds the old one. Every group that reads the topic gets the message, unless --to-group is
    given.

    After every 500 acknowledged messages the command records its progress, and the next resend continues from there.
    If the command is interrupted in between, or the broker is killed within seconds, the next resend sends those
    messages again (at least once). A message chosen by --id or --queue-offset is recorded only if none waits before it.
    """
    if bool(ids) + (offsets is not None) > 1 or (to_topic and to_group):
        raise click.UsageError(
            "use either --id or --queue-offset, and either --to-topic or --to-group", click.get_current_context()
        )
    target = Target(to_topic, group if to_group else "")
    code, trouble = EXIT_OK, None
    with settings.admin() as admin, settings.consumer() as consumer, settings.producer() as producer:
        queues = _queues(settings, admin, consumer, group)
        read = [topic for info in admin.groups() if info.group == group and not info.partial for topic in info.topics]
        resending = Resending(consumer, producer, admin.topics(), target, dry_run=dry_run, read_topics=read)
        try:
            for queue, stretch in _stretches(consumer, group, queues, ids, offsets):
                resending.send(queue, stretch)
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        except FlintError as error:
            trouble = error
    _tell(settings, group, resending, queues, dry_run, interrupted=code == EXIT_INTERRUPTED)
    if trouble is not None:
        raise trouble
    return code


def _stretches(
    consumer: Consumer,
    group: str,
    queues: list[DeadQueue],
    ids: tuple[str, ...],
    offsets: tuple[int, int | None] | None,
) -> Iterator[tuple[DeadQueue, Stretch]]:
    """Yield the chosen dead letters, in runs of consecutive offsets."""
    found = [consumer.message(message_id, dead_letter_topic(group)) for message_id in ids if queues]
    for message in sorted(found, key=lambda message: (message.queue, message.queue_offset)):
        queue = next(queue for queue in queues if queue.queue == message.queue)
        yield queue, Stretch(message.queue_offset, [message], message.queue_offset + 1)
    if ids:
        return
    # A list, so that each range is checked before the first message is sent.
    for queue, first, end in list(_ranges(queues, offsets)):
        for stretch in queue.read(consumer, first, end):
            yield queue, stretch


def _tell(
    settings: BrokerChoice,
    group: str,
    resending: Resending,
    queues: list[DeadQueue],
    dry_run: bool,
    *,
    interrupted: bool,
) -> None:
    rows = [{"group": group, "topic": topic, "messages": count} for topic, count in sorted(resending.sent.items())]
    settings.output.rows(RESEND_COLUMNS, rows)
    settings.output.flush()
    if dry_run:
        note(settings, "nothing was sent (--dry-run)")
        return
    if interrupted:
        note(
            settings, f"interrupted; up to {BATCH_COUNT} more may have been sent, and the next resend sends them again"
        )
    if queues:
        sent, left = sum(resending.sent.values()), sum(queue.waiting for queue in queues)
        note(settings, f"sent {plural(sent, 'message')} again; {left:,} still waiting")


@dlq.command("purge")
@pass_settings
@click.argument("group", type=DEAD_LETTER_GROUP)
@click.option("--before", type=NumberType(0), metavar="OFFSET", help="Only those before this queue offset.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def purge(settings: BrokerChoice, group: str, before: int | None, yes: bool) -> None:
    """Mark the present dead letters of a group as dealt with: resend no longer sends them.

    flintmq dlq show GROUP --all still shows them until retention deletes them.
    """
    with settings.admin() as admin, settings.consumer() as consumer:
        queues = _queues(settings, admin, consumer, group)
        for queue in queues:
            queue.end = queue.end if before is None else max(min(before, queue.end), queue.next_offset)
        waiting = plural(sum(queue.waiting for queue in queues), "dead letter")
        if not yes and any(queue.waiting for queue in queues):
            confirm(f"purge {waiting} of group {escape(shown_name(group))}?", "purges", "purged")
        for queue in queues:
            if queue.waiting:
                consumer.commit(group, dead_letter_topic(group), {queue.queue: queue.end})
        note(settings, f"purged {waiting} of group {escape(shown_name(group))}")
