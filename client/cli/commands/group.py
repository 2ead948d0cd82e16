"""The commands ``flintmq group`` and ``flintmq offset``: consumer groups and their progress."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from ....protocol.commands import ConsumeStats, GroupInfo, GroupMember, GroupQueue, GroupStatus
from ....protocol.display import JSON, PLAIN, escape
from ....protocol.errors import ConfigurationError, TopicNotExist
from ....protocol.storage.delivery import OFFSET_MOVED_TOPIC, RETRY_TOPIC_PREFIX
from ...operator.condition import Lag, lag_by_group, lag_in, lag_of
from ...operator.display import matches, plural, show_moment, show_seconds, shown_name
from ...operator.positions import OFFSET_FORMS, TIME_FORMS, Typed, check_committable, check_queues, offsets_to_commit
from ..command import CliGroup, confirm, note, pass_settings
from ..failures import EXIT_ERROR, EXIT_OK
from ..output import TableColumn, columns_of, name_column, number, values_of
from ..params import GROUP, GROUP_PATTERN, POSITION, QUEUE, TIME, TOPIC
from ..settings import BrokerChoice

if TYPE_CHECKING:
    from ....protocol.commands import QueueStats
    from ...core.consume.batch import StoredMessage
    from ...sync.consumer import Consumer

TOPICS_SHOWN = 3
WIDE = 100
"""Width below which a terminal shows neither the first offset nor the lag, which is READY plus IN FLIGHT."""


def _first_names(names: list[str]) -> str:
    """Return the first names, and the number of the others: ``a, b, c +2``."""
    more = len(names) - TOPICS_SHOWN
    return ", ".join(map(shown_name, names[:TOPICS_SHOWN])) + (f" +{more}" if more > 0 else "")


def _age(stored_at: datetime | None) -> str:
    """Return how long ago the next message to read was stored."""
    return "" if stored_at is None else show_seconds(max(0.0, (datetime.now(UTC) - stored_at).total_seconds()))


def _if_known(name: str) -> Callable[[ConsumeStats | GroupQueue], Any]:
    """Return the function of a figure of a queue, which is None if it is unknown where the group starts."""
    return lambda queue: getattr(queue, name) if queue.known else None


def _committed(queue: ConsumeStats | GroupQueue) -> int | None:
    return queue.committed if queue.committed >= 0 else None


GROUP_COLUMNS = (
    TableColumn("group", "group", shown_name, style="bold"),
    TableColumn("kind", "kind"),
    TableColumn("mode", "mode"),
    TableColumn("state", "state"),
    TableColumn("epoch", "epoch"),
    TableColumn("shown_lag", "lag"),
    TableColumn("next_stored_at", "behind", _age),
)
MEMBER_DATA = ("member", "client", "address", "epoch", "since_seconds", "heartbeat_seconds", "orderly", "queues")
"""The values of a member in JSON, besides its subscriptions."""
MOVED_COLUMNS = (
    TableColumn("time", "TIME", show_moment),
    name_column("group", "GROUP"),
    name_column("topic", "TOPIC"),
    number("queue", "QUEUE"),
    number("asked", "ASKED FOR"),
    number("moved_to", "MOVED TO"),
    number("missed", "MISSED"),
)


@click.group(cls=CliGroup)
def group() -> None:
    """List, inspect, reset and delete consumer groups."""


@group.command("list")
@pass_settings
@click.argument("pattern", type=GROUP_PATTERN, default="*")
def list_groups(settings: BrokerChoice, pattern: str) -> None:
    """List the consumer groups, or those that match PATTERN, such as 'billing*'.

    BEHIND is the age of the oldest message that the group has still to read.
    """
    with settings.admin() as admin:
        lags = lag_by_group(admin.consume_stats(uncommitted=True, times=True))
        rows = [info for info in admin.groups() if matches(info.group, pattern)]
    columns = (
        *columns_of(GroupInfo, "group kind mode state members", {"kind": lambda info: info.kind or None}),
        number("lag", "LAG", of=lambda info: lag_of(info, lags).known),
        TableColumn("next_stored_at", "BEHIND", _age, of=lambda info: lag_of(info, lags).oldest_at),
        TableColumn("topics", "TOPICS", _first_names, fold=True),
    )
    what = (
        f"no group matches {pattern}" if pattern != "*" else "there are no groups; the first member creates its group"
    )
    settings.output.rows(columns, rows, empty=what)


# ---- one group


@group.command("status")
@pass_settings
@click.argument("group", type=GROUP)
def status(settings: BrokerChoice, group: str) -> None:
    """Show the members of a group, their queues, and the progress in each queue.

    READY messages have not been delivered yet, IN FLIGHT messages are with a member or leased to a consumer of a work
    group, and DELAYED messages failed and wait for another attempt. BEHIND is the age of the next message to read.
    -o json prints one object, -o plain one line per queue.
    """
    with settings.admin() as admin:
        found = admin.group(group)
    output = settings.output
    if output.mode == JSON:
        output.json(_whole(found))
    elif output.mode == PLAIN:
        output.rows((TableColumn("group", "", of=lambda _: found.group), *_queue_columns(found)), found.queues)
    else:
        _show_group(settings, found)


def _whole(found: GroupStatus) -> dict[str, Any]:
    """Return everything about a group under its JSON names."""
    lag = sum(map(lag_in, found.queues), Lag(partial=found.partial))
    known = [queue for queue in found.queues if queue.known]
    columns = _queue_columns(found)
    return {
        "group": found.group,
        "kind": found.kind or None,
        "mode": found.mode,
        "state": found.state,
        "epoch": found.epoch,
        "lag": lag.known,
        "ready": sum(queue.ready for queue in known),
        "in_flight": sum(queue.in_flight for queue in known),
        "delayed": found.delayed,
        "next_stored_at": lag.oldest_at,
        "waiting": list(found.waiting),
        "members": [
            {name: getattr(member, name) for name in MEMBER_DATA}
            | {
                "subscriptions": [
                    dict(zip(("topic", "tags", "filter"), each, strict=True)) for each in member.subscriptions
                ]
            }
            for member in found.members
        ],
        "queues": [values_of(columns, queue) for queue in found.queues],
    }


def _queue_columns(found: GroupStatus) -> tuple[TableColumn, ...]:
    """Return the columns of a group's queues. ``delayed`` counts for the whole group: its retry topic shows it."""
    known = {name: _if_known(name) for name in ("ready", "in_flight", "lag")}

    def delayed(queue: GroupQueue) -> int | None:
        return found.delayed if queue.topic.startswith(RETRY_TOPIC_PREFIX) else None

    return (
        *columns_of(GroupQueue, "topic queue"),
        TableColumn("member", "MEMBER", of=lambda queue: queue.member or None),
        *columns_of(GroupQueue, "committed min_offset max_offset ready in_flight", {"committed": _committed} | known),
        number("delayed", "DELAYED", of=delayed),
        *columns_of(GroupQueue, "lag", known),
        TableColumn("next_stored_at", "BEHIND", _age, spare=True, of=_if_known("next_stored_at")),
    )


def _show_group(settings: BrokerChoice, found: GroupStatus) -> None:
    """Print a group, its members and its queues as tables, in which a number stands for each member."""
    output, is_work = settings.output, found.kind == "work"
    whole = _whole(found)
    lag = f"{whole['ready']:,} ready, {whole['in_flight']:,} in flight, {found.delayed:,} delayed"
    if why := sum(map(lag_in, found.queues), Lag(partial=found.partial)).why_unknown:
        lag += f"; the rest is unknown: {why}"
    meaningless = ("mode", "epoch") if is_work else ()
    columns = [column for column in GROUP_COLUMNS if column.name not in meaningless]
    output.record(columns, whole | {"shown_lag": lag})
    output.write("\n")
    numbers = {member.member: place for place, member in enumerate(found.members, 1)}
    member_columns = (
        number("number", "#", of=lambda member: numbers[member.member]),
        *columns_of(
            GroupMember,
            "member address since_seconds heartbeat_seconds queues",
            heartbeat_seconds=lambda seconds: f"{show_seconds(seconds)} ago",
        ),
        TableColumn("subscriptions", "SUBSCRIPTIONS", fold=True, of=_shown_subscriptions),
    )
    work = "a work group has no members: its consumers lease messages"
    output.rows(member_columns, found.members, empty=work if is_work else "the group has no members")
    if found.waiting:
        who = plural(len(found.waiting), "RocketMQ client")
        note(
            settings, f"{who} of the group wait until these members are gone: {', '.join(found.waiting[:TOPICS_SHOWN])}"
        )
    output.write("\n")
    place = TableColumn(
        "member", "MEMBER", of=lambda queue: f"#{numbers[queue.member]}" if queue.member in numbers else None
    )
    queue_columns = [place if column.name == "member" else column for column in _queue_columns(found)]
    if output.width < WIDE:
        queue_columns = [column for column in queue_columns if column.name not in ("min_offset", "lag")]
    empty = "you may see none of its topics" if found.partial else "none of its topics exists"
    output.rows(queue_columns, found.queues, empty=empty)


def _shown_subscriptions(member: GroupMember) -> str:
    wanted = [
        " ".join(filter(None, (shown_name(topic), tags, condition)))
        for topic, tags, condition in member.subscriptions
        if not topic.startswith(RETRY_TOPIC_PREFIX)
    ]
    return ", ".join(wanted) + (" (orderly)" if member.orderly else "")


# ---- A reset, which is a command of both groups of commands.

RESET_FORMS = f"earliest, latest, {OFFSET_FORMS}"
RESET_COLUMNS = (
    name_column("group", "GROUP"),
    name_column("topic", "TOPIC"),
    number("queue", "QUEUE"),
    number("before", "BEFORE"),
    number("after", "AFTER"),
)


@group.command("reset")
@pass_settings
@click.argument("group", type=GROUP)
@click.argument("topic", type=TOPIC)
@click.option("--to", type=POSITION, required=True, metavar="POSITION", help=f"{RESET_FORMS}.")
@click.option("--queue", "queues", type=QUEUE, multiple=True, help="Only this queue; repeatable.")
@click.option("--force", is_flag=True, help="Reset even while the group has members: they restart from there.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be committed, but commit nothing.")
def reset(
    settings: BrokerChoice, group: str, topic: str, to: Typed, queues: tuple[int, ...], force: bool, dry_run: bool
) -> None:
    """Commit a position for a group, so that it continues from there: flintmq group reset and flintmq offset reset.

    The broker refuses while members of the group consume the topic, unless --force is given.
    """
    with settings.consumer() as consumer:
        stats = consumer.topic_stats(topic)
        check_queues(dict.fromkeys(queues, 0), topic, stats)
        after = _offsets(consumer, topic, to, stats)
        after = {queue: at for queue, at in after.items() if queue in (queues or after)}
        before = consumer.committed(group, topic)
    if not dry_run:
        with settings.admin() as admin:
            admin.reset_offsets(group, topic, after, force=force)
    settings.output.rows(
        RESET_COLUMNS,
        [
            {"group": group, "topic": topic, "queue": queue, "before": before.get(queue), "after": at}
            for queue, at in sorted(after.items())
        ],
    )
    if dry_run:
        note(settings, "nothing was committed (--dry-run)")


def _offsets(consumer: Consumer, topic: str, to: Typed, stats: list[QueueStats]) -> dict[int, int]:
    """Return the offsets by queue that ``to`` stands for; if ``to`` names queues, only those."""
    if isinstance(to, int):
        raise click.BadParameter(
            f"{to} counts messages of the topic, not of a queue; use {RESET_FORMS}", param_hint="'--to'"
        )
    if not isinstance(to, datetime):
        return offsets_to_commit(to, topic, stats)
    return {queue.queue: consumer.offset_at(topic, queue.queue, to) for queue in stats}


# ---- Deleting.


@group.command("delete")
@pass_settings
@click.argument("names", metavar="GROUP...", type=GROUP, nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete(settings: BrokerChoice, names: tuple[str, ...], yes: bool) -> None:
    """Delete groups: their committed offsets and the messages that wait for another attempt. Dead letters stay.

    The broker refuses to delete a group that has members.
    """
    with settings.admin() as admin:
        for name in names:
            found = admin.group(name)
            tries = found.delayed + sum(
                queue.lag for queue in found.queues if queue.topic.startswith(RETRY_TOPIC_PREFIX)
            )
            lost = f", which has {plural(tries, 'message')} waiting for another attempt" if tries else ""
            if not yes and not found.members:  # the broker refuses a group with members anyway
                confirm(f"delete group {escape(shown_name(name))}{lost}?")
            admin.delete_group(name)
            note(settings, f"deleted group {escape(shown_name(name))}{lost}")


# ---- messages that retention deleted too early


@group.command("moved")
@pass_settings
@click.argument("group", type=GROUP, default="")
@click.option("--since", type=TIME, metavar="TIME", help=f"Only events at this time or later: {TIME_FORMS}.")
def moved(settings: BrokerChoice, group: str, since: datetime | None) -> int:
    """Show where groups skipped messages that retention had deleted before they read them, oldest first.

    The events are in the topic OFFSET_MOVED_EVENT, for as long as retention keeps them.
    """
    unreadable: list[int] = []
    with settings.consumer() as consumer:
        try:
            events = consumer.iter(OFFSET_MOVED_TOPIC, from_=since or "earliest", until="latest", tags=group or None)
            rows = list(_events(events, unreadable))
        except TopicNotExist:  # the first event creates the topic
            rows = []
    nothing = f"group {shown_name(group)} has missed no messages" if group else "no group has missed messages"
    settings.output.rows(MOVED_COLUMNS, rows, empty=f"{nothing}{' since then' if since else ''}")
    if unreadable:
        note(settings, f"{plural(len(unreadable), 'message')} of {OFFSET_MOVED_TOPIC} cannot be parsed as events")
    return EXIT_ERROR if unreadable else EXIT_OK


def _events(messages: Iterator[StoredMessage], unreadable: list[int]) -> Iterator[dict[str, Any]]:
    for message in messages:
        try:
            event = json.loads(message.body)
            place = event["messageQueue"]
            asked, moved_to = int(event["offsetRequest"]), int(event["offsetNew"])
            row = {"group": event["consumerGroup"], "topic": place["topic"], "queue": int(place["queueId"])}
        except (ValueError, TypeError, KeyError):
            unreadable.append(message.queue_offset)
            continue
        yield {"time": message.stored_at, **row, "asked": asked, "moved_to": moved_to, "missed": moved_to - asked}


# ---- The command ``flintmq offset``.

STDIN = "<stdin>"
STATS_COLUMNS = columns_of(
    ConsumeStats,
    "group topic queue committed min_offset max_offset lag",
    {"committed": _committed, "lag": _if_known("lag")},
)


@click.group(cls=CliGroup)
def offset() -> None:
    """Show, reset, export and import the offsets that groups have committed."""


offset.add_command(reset)


@offset.command("show")
@pass_settings
@click.argument("group", type=GROUP, default="")
@click.option("--topic", type=TOPIC, default="", help="Only this topic.")
def show(settings: BrokerChoice, group: str, topic: str) -> None:
    """Show the committed offsets of groups, the offsets that each queue holds, and the lag."""
    with settings.admin() as admin:
        stats = admin.consume_stats(group or None, topic or None, uncommitted=True)
    empty = f"group {shown_name(group)} has committed nothing" if group else "no group has committed anything"
    settings.output.rows(STATS_COLUMNS, stats, empty=f"{empty}{f' in topic {shown_name(topic)}' if topic else ''}")


@offset.command("export")
@pass_settings
@click.argument("group", type=GROUP, default="")
@click.option("--topic", type=TOPIC, default="", help="Only this topic.")
def export(settings: BrokerChoice, group: str, topic: str) -> None:
    """Print committed offsets as JSON lines, for import: {"group", "topic", "queue", "offset"}."""
    with settings.admin() as admin:
        stats = admin.consume_stats(group or None, topic or None)
    for row in stats:
        settings.output.json({"group": row.group, "topic": row.topic, "queue": row.queue, "offset": row.committed})
    if not stats:
        note(settings, "no committed offsets found")


@offset.command("import")
@pass_settings
@click.argument("file", type=click.File("rb"), default="-")
@click.option("-n", "--dry-run", is_flag=True, help="Check the lines, but commit nothing.")
def import_(settings: BrokerChoice, file: BinaryIO, dry_run: bool) -> None:
    """Commit the offsets that export printed. Every line is checked before any offset is committed."""
    wanted = _parse(file)
    with settings.consumer() as consumer:
        for (_, topic), offsets in wanted.items():
            stats = consumer.topic_stats(topic)
            check_queues(offsets, topic, stats)
            for queue in stats:
                check_committable(offsets.get(queue.queue, 0), topic, queue)
    if not dry_run:
        with settings.admin() as admin:
            for (group, topic), offsets in wanted.items():
                admin.reset_offsets(group, topic, offsets)
    count = sum(map(len, wanted.values()))
    groups = plural(len({group for group, _ in wanted}), "group")
    done = "could be committed" if dry_run else "committed"
    note(settings, f"{done}: {plural(count, 'offset')} of {groups}")


def _parse(file: BinaryIO) -> dict[tuple[str, str], dict[int, int]]:
    """Return the offsets by group and topic, then by queue. Raises ``ConfigurationError`` naming the invalid line."""
    wanted: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    name = escape(str(getattr(file, "name", STDIN)))
    for line_number, line in enumerate(file, 1):
        if not line.strip():
            continue
        where = f"line {line_number} of {'standard input' if name == STDIN else name}"
        try:
            row = json.loads(line)
            group, topic, queue, at = (row[name] for name in ("group", "topic", "queue", "offset"))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigurationError(
                f"{where} is not an exported offset: {escape(str(error))}; nothing was committed"
            ) from None
        if type(queue) is not int or type(at) is not int or not isinstance(group, str) or not isinstance(topic, str):
            raise ConfigurationError(f"{where}: group and topic must be strings, queue and offset integers")
        wanted[group, topic][queue] = at
    return dict(wanted)
