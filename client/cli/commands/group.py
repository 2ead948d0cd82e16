"""The command ``flintmq group``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ....protocol.commands import GroupInfo, GroupMember, GroupQueue
from ....protocol.display import JSON, PLAIN, escape, to_json
from ....protocol.errors import TopicNotExist
from ....protocol.storage.delivery import OFFSET_MOVED_TOPIC, RETRY_TOPIC_PREFIX
from ...operator.condition import Lag, lag_by_group, lag_in, lag_of
from ...operator.display import plural, show_moment, show_seconds, shown_name
from ...operator.positions import TIME_FORMS
from ..command import CliGroup, confirm, note, pass_settings
from ..failures import EXIT_ERROR, EXIT_OK
from ..offset_reset import reset_group, reset_options
from ..output import TableColumn, columns_of, name_column, number
from ..params import GROUP, GROUP_PATTERN, TIME
from ..settings import BrokerChoice
from ..topic_reader import matches

if TYPE_CHECKING:
    from datetime import datetime

    from ....protocol.commands import GroupStatus
    from ...core.consume.batch import StoredMessage

TOPICS_SHOWN = 3
WIDE = 100
"""Width below which a terminal shows neither the first offset nor the lag, which is READY plus IN FLIGHT."""


def _first_names(names: list[str]) -> str:
    """Return the first names, and the number of the others: ``a, b, c +2``."""
    more = len(names) - TOPICS_SHOWN
    return ", ".join(map(shown_name, names[:TOPICS_SHOWN])) + (f" +{more}" if more > 0 else "")


def _age(stored_at: datetime | None) -> str:
    """Return how long ago the next message to read was stored."""
    from datetime import UTC, datetime

    return "" if stored_at is None else show_seconds(max(0.0, (datetime.now(UTC) - stored_at).total_seconds()))


LIST_COLUMNS = (
    *columns_of(GroupInfo, "group kind mode state members"),
    number("lag", "LAG"),
    TableColumn("next_stored_at", "BEHIND", _age),
    TableColumn("topics", "TOPICS", _first_names, fold=True),
)
GROUP_COLUMNS = (
    TableColumn("group", "group", shown_name, style="bold"),
    TableColumn("kind", "kind"),
    TableColumn("mode", "mode"),
    TableColumn("state", "state"),
    TableColumn("epoch", "epoch"),
    TableColumn("lag", "lag"),
    TableColumn("next_stored_at", "behind", _age),
)
MEMBER_COLUMNS = (
    number("number", "#"),
    *columns_of(
        GroupMember,
        "member address since_seconds heartbeat_seconds queues",
        heartbeat_seconds=lambda seconds: f"{show_seconds(seconds)} ago",
    ),
    TableColumn("shown_subscriptions", "SUBSCRIPTIONS", fold=True),
)
QUEUE_COLUMNS = (
    *columns_of(GroupQueue, "topic queue"),
    TableColumn("number", "MEMBER"),
    *columns_of(GroupQueue, "committed min_offset max_offset ready in_flight"),
    number("delayed", "DELAYED"),
    *columns_of(GroupQueue, "lag"),
    TableColumn("next_stored_at", "BEHIND", _age, spare=True),
)
PLAIN_COLUMNS = tuple(
    TableColumn(name, name)
    for name in (
        "group topic queue member committed min_offset max_offset ready in_flight delayed lag next_stored_at"
    ).split()
)
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
        rows = [_list_row(info, lag_of(info, lags)) for info in admin.groups() if matches(info.group, pattern)]
    what = (
        f"no group matches {pattern}" if pattern != "*" else "there are no groups; the first member creates its group"
    )
    settings.output.rows(LIST_COLUMNS, rows, empty=what)


def _list_row(info: GroupInfo, lag: Lag) -> dict[str, Any]:
    return {
        **{name: getattr(info, name) or None for name in ("group", "kind", "mode", "state")},
        "members": info.members,
        "lag": lag.known,
        "next_stored_at": lag.oldest_at,
        "topics": list(info.topics),
    }


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
    numbers = {member.member: place for place, member in enumerate(found.members, 1)}
    members = [_member_row(member, numbers) for member in found.members]
    queues = [_queue_row(found, queue, numbers) for queue in found.queues]
    output = settings.output
    if output.mode == JSON:
        output.write(to_json(_whole(found, members, queues)) + "\n")
    elif output.mode == PLAIN:
        output.rows(PLAIN_COLUMNS, queues)
    else:
        whole = _whole(found, members, queues)
        lag = f"{whole['ready']:,} ready, {whole['in_flight']:,} in flight, {found.delayed:,} delayed"
        if why := sum(map(lag_in, found.queues), Lag(partial=found.partial)).why_unknown:
            lag += f"; the rest is unknown: {why}"
        meaningless = ("mode", "epoch") if found.kind == "work" else ()
        columns = [column for column in GROUP_COLUMNS if column.name not in meaningless]
        output.record(columns, whole | {"lag": lag})
        output.write("\n")
        work = "a work group has no members: its consumers lease messages"
        output.rows(MEMBER_COLUMNS, members, empty=work if found.kind == "work" else "the group has no members")
        if found.waiting:
            who = plural(len(found.waiting), "RocketMQ client")
            note(
                settings,
                f"{who} of the group wait until these members are gone: {', '.join(found.waiting[:TOPICS_SHOWN])}",
            )
        output.write("\n")
        wide = output.width >= WIDE
        columns = [column for column in QUEUE_COLUMNS if wide or column.name not in ("min_offset", "lag")]
        empty = "you may see none of its topics" if found.partial else "none of its topics exists"
        output.rows(columns, queues, empty=empty)


def _member_row(member: GroupMember, numbers: dict[str, int]) -> dict[str, Any]:
    subscriptions = [
        {"topic": topic, "tags": tags, "filter": condition} for topic, tags, condition in member.subscriptions
    ]
    wanted = [row for row in subscriptions if not row["topic"].startswith(RETRY_TOPIC_PREFIX)]
    return {
        "number": numbers[member.member],
        **{
            name: getattr(member, name)
            for name in "member client address epoch since_seconds heartbeat_seconds orderly queues".split()
        },
        "subscriptions": subscriptions,
        "shown_subscriptions": ", ".join(
            " ".join(filter(None, (row | {"topic": shown_name(row["topic"])}).values())) for row in wanted
        )
        + (" (orderly)" if member.orderly else ""),
    }


def _queue_row(found: GroupStatus, queue: GroupQueue, numbers: dict[str, int]) -> dict[str, Any]:
    """Return the row of a queue. Ready, in flight and lag are None if it is unknown where the group starts."""
    known = queue.known
    return {
        "group": found.group,
        "topic": queue.topic,
        "queue": queue.queue,
        "member": queue.member or None,
        "number": f"#{numbers[queue.member]}" if queue.member in numbers else None,
        "committed": queue.committed if queue.committed >= 0 else None,
        "min_offset": queue.min_offset,
        "max_offset": queue.max_offset,
        "ready": queue.ready if known else None,
        "in_flight": queue.in_flight if known else None,
        "delayed": found.delayed if queue.topic.startswith(RETRY_TOPIC_PREFIX) else None,
        "lag": queue.lag if known else None,
        "next_stored_at": queue.next_stored_at if known else None,
    }


def _whole(found: GroupStatus, members: list[dict[str, Any]], queues: list[dict[str, Any]]) -> dict[str, Any]:
    def total(name: str) -> int:
        return sum(row[name] or 0 for row in queues)

    lag = sum(map(lag_in, found.queues), Lag(partial=found.partial))
    return {
        "group": found.group,
        "kind": found.kind or None,
        "mode": found.mode,
        "state": found.state,
        "epoch": found.epoch,
        "lag": lag.known,
        "ready": total("ready"),
        "in_flight": total("in_flight"),
        "delayed": found.delayed,
        "next_stored_at": lag.oldest_at,
        "waiting": list(found.waiting),
        "members": [_without(row, "number", "shown_subscriptions") for row in members],
        "queues": [_without(row, "number", "group") for row in queues],
    }


def _without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


# ---- changing


@group.command("reset")
@pass_settings
@reset_options
def reset(settings: BrokerChoice, **options: Any) -> None:
    """Commit a position for a group, so that it continues from there; the same as flintmq offset reset.

    The broker refuses while members of the group consume the topic, unless --force is given.
    """
    reset_group(settings, **options)


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
