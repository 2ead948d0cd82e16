"""The command ``flintmq topic``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click

from ....protocol.commands import QueueStats, ReadingGroup, TopicInfo, TopicTotals, TopicView
from ....protocol.display import JSON, TABLE, escape, show_bytes
from ....protocol.errors import TopicExistsAlready, TopicNotExist
from ...errors import InvalidArgument
from ...operator.display import is_own, matches, plural, show_flag, show_rate, show_second, shown_name
from ...operator.rates import all_topics_stats
from ..command import CliGroup, confirm, note, options, pass_settings
from ..output import TableColumn, columns_of, name_column, values_of
from ..params import PERMISSION, RETENTION, RETENTION_BYTES, TOPIC, TOPIC_PATTERN, NumberType, RealType, show_permission
from ..settings import BrokerChoice

if TYPE_CHECKING:
    from ...sync.admin import Admin

DEFAULT_QUEUES = 4
QUEUES = NumberType(1, 65_536)


def show_hours(hours: int) -> str:
    """Return ``24 h``, ``7 d`` or ``forever``, or an empty string for the retention of the log."""
    if hours <= 0:
        return "forever" if hours else ""
    return f"{hours // 24} d" if hours % 24 == 0 and hours > 48 else f"{hours} h"


def show_queues(info: TopicInfo | TopicView) -> str:
    """Return ``4``, or ``4, 2 to write`` if the topic has fewer write queues than read queues."""
    to_write = "" if info.write_queues == info.read_queues else f", {info.write_queues:,} to write"
    return f"{info.read_queues:,}{to_write}"


def _permission(info: TopicInfo | TopicView) -> str:
    return show_permission(info.perm)


TOPIC_COLUMNS = (
    *columns_of(TopicInfo, "topic read_queues write_queues"),
    TableColumn("permission", "PERMISSION", of=_permission),
    TableColumn("retention_hours", "RETENTION", show_hours),
    TableColumn("retention_bytes", "MAXIMUM SIZE", lambda size: show_bytes(size) if size else ""),
    TableColumn("system", "SYSTEM", show_flag, of=lambda info: is_own(info.topic)),
)
SHOWN_COLUMNS = (TOPIC_COLUMNS[0], TableColumn("shown_queues", "QUEUES", of=show_queues), *TOPIC_COLUMNS[3:])
"""Columns of a table, which shows the queues in one column."""
VIEW_COLUMNS = (
    TableColumn("topic", "topic", shown_name, style="bold"),
    TableColumn("shown_queues", "queues", of=lambda row: show_queues(row["view"])),
    TableColumn("permission", "permission"),
    TableColumn("retention_hours", "retention", lambda hours: show_hours(hours) or "as long as the log"),
    TableColumn("retention_bytes", "maximum size", lambda size: show_bytes(size) if size else "no limit"),
    TableColumn("messages", "messages", "{:,}".format),
    TableColumn("last_stored_at", "last stored", show_second),
    TableColumn("log_bytes", "log", show_bytes),
    TableColumn("in_per_second", "in", show_rate),
    TableColumn("out_per_second", "out", show_rate),
)
READER_COLUMNS = columns_of(ReadingGroup, "group members lag", {"lag": lambda row: row.lag if row.known else None})
RETENTION_NAMES = ("retention_hours", "retention_bytes")
MESSAGE_COLUMNS = columns_of(TopicTotals, "messages last_stored_at")
QUEUE_COLUMNS = (
    name_column("topic", "TOPIC"),
    *columns_of(QueueStats, "queue min_offset max_offset"),
    *MESSAGE_COLUMNS,
)

_retention_options = options(
    click.option(
        "--retention",
        "retention_hours",
        type=RETENTION,
        metavar="TIME",
        help="How long the topic keeps its messages: 24h, 7d, forever, or default (as long as the broker's log).",
    ),
    click.option(
        "--retention-bytes",
        type=RETENTION_BYTES,
        metavar="SIZE",
        help="Maximum size of the messages that the topic keeps: 10GB, or none (no limit).",
    ),
)


class TopicProperties(TypedDict):
    """Options of ``topic create`` that go to the broker as they are."""

    read_queues: int | None
    write_queues: int | None
    perm: int
    retention_hours: int | None
    retention_bytes: int | None


@click.group(cls=CliGroup)
def topic() -> None:
    """List, inspect, create, change and delete topics."""


def _columns(settings: BrokerChoice, topics: list[TopicInfo], *, system: bool = False) -> tuple[TableColumn, ...]:
    """Return the columns; a table leaves out the retention columns if no topic has a retention of its own."""
    columns: tuple[TableColumn, ...] = TOPIC_COLUMNS
    if settings.output.mode == TABLE:
        empty = [name for name in RETENTION_NAMES if not any(getattr(each, name) for each in topics)]
        columns = tuple(column for column in SHOWN_COLUMNS if column.name not in empty)
    return columns if system else columns[:-1]


def _found(admin: Admin, name: str) -> TopicInfo:
    """Return the topic's settings. Raises ``TopicNotExist``."""
    topics = admin.topics(system=True)
    if name not in topics:
        raise TopicNotExist(f"topic {name} does not exist")
    return topics[name]


# ---- listing


@topic.command("list")
@pass_settings
@click.argument("pattern", type=TOPIC_PATTERN, default="*")
@click.option("-m", "--messages", is_flag=True, help="Count the messages of each topic.")
@click.option("--system", is_flag=True, help="Include the topics of the broker and of groups.")
def list_topics(settings: BrokerChoice, pattern: str, messages: bool, system: bool) -> None:
    """List the topics, or those that match PATTERN, such as 'orders*'.

    Topics that the broker created for itself or for a group (%RETRY%…, %DLQ%…) are listed only with --system, or if
    PATTERN begins with %.
    """
    with settings.admin() as admin:
        topics = [
            info
            for name, info in admin.topics(system=system).items()
            if matches(name, pattern) and (system or pattern.startswith("%") or not is_own(name))
        ]
        stats = all_topics_stats(admin) if messages and topics else {}
    columns = _columns(settings, topics, system=system)
    if messages:
        columns += tuple(replace(column, of=_total(stats, column.name)) for column in MESSAGE_COLUMNS)
    what = f"no topic matches {pattern}" if pattern != "*" else "there are no topics; flintmq topic create creates one"
    settings.output.rows(columns, topics, empty=what)


def _total(stats: dict[str, TopicTotals], name: str) -> Callable[[TopicInfo], Any]:
    """Return the function of a topic's figure; the figure is None if the topic was created a moment ago."""
    return lambda info: getattr(stats.get(info.topic), name, None)


def _held(stats: list[QueueStats]) -> dict[str, Any]:
    return {
        "messages": sum(queue.count for queue in stats),
        "last_stored_at": max((queue.last_stored_at for queue in stats if queue.last_stored_at), default=None),
    }


@topic.command("status")
@pass_settings
@click.argument("name", metavar="TOPIC", type=TOPIC)
def status(settings: BrokerChoice, name: str) -> None:
    """Show the offsets and the number of messages of each queue of a topic."""
    with settings.admin() as admin:
        stats = admin.topic_stats(name)
    rows: list[dict[str, Any]] = [
        {
            "topic": name,
            "messages": each.count,
            **{of: getattr(each, of) for of in ("queue", "min_offset", "max_offset", "last_stored_at")},
        }
        for each in stats
    ]
    if settings.output.mode == TABLE and len(rows) > 1:
        rows.append({"topic": name, "queue": "all"} | _held(stats))
    settings.output.rows(QUEUE_COLUMNS, rows)


@topic.command("show")
@pass_settings
@click.argument("name", metavar="TOPIC", type=TOPIC)
@click.option(
    "--seconds", type=RealType(0.1, 60), default=1.0, show_default=True, help="Time over which the rates are measured."
)
def show(settings: BrokerChoice, name: str, seconds: float) -> None:
    """Show one topic: its queues and retention, its messages, their rate, and the groups that read it.

    LOG is what the broker's log holds from the topic's oldest message on, with the messages of all topics.
    """
    with settings.admin() as admin:
        before, began = admin.topic(name), time.monotonic()
        time.sleep(seconds)
        found, elapsed = admin.topic(name), time.monotonic() - began
    row = {
        **values_of(TOPIC_COLUMNS, found),
        **{each: getattr(found, each) for each in ("messages", "last_stored_at", "log_bytes")},
        "in_per_second": round(max(found.produced_messages - before.produced_messages, 0) / elapsed, 3),
        "out_per_second": round(max(found.pulled_messages - before.pulled_messages, 0) / elapsed, 3),
    }
    output = settings.output
    if output.mode == TABLE:
        output.record(VIEW_COLUMNS, row | {"view": found})
        output.write("\n")
        output.rows(READER_COLUMNS, found.groups, empty="no group reads it")
    else:
        readers = [values_of(READER_COLUMNS, each) for each in found.groups]
        output.record((), row | {"groups": readers if output.mode == JSON else [each["group"] for each in readers]})


# ---- changing


@topic.command("create")
@pass_settings
@click.argument("name", metavar="TOPIC", type=TOPIC)
@click.option("--queues", type=QUEUES, default=DEFAULT_QUEUES, show_default=True, help="Number of queues.")
@click.option("--read-queues", type=QUEUES, help="Number of read queues, if more than --queues.")
@click.option("--write-queues", type=QUEUES, help="Number of write queues, if fewer than --queues.")
@click.option(
    "--perm", type=PERMISSION, default="rw", show_default=True, help="Permission: rw, r (read), w (write) or none."
)
@_retention_options
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic exists.")
def create(
    settings: BrokerChoice, name: str, queues: int, if_not_exists: bool, **properties: Unpack[TopicProperties]
) -> None:
    """Create a topic.

    A name that RocketMQ forbids, such as orders.v1, is encoded; programs get the real name by encode_name.
    """
    with settings.admin() as admin:
        there = admin.topics(system=True).get(name)
        if there is not None:
            if not if_not_exists:
                raise TopicExistsAlready(
                    f"topic {name} already exists, with {plural(there.queues, 'queue')}; "
                    f"flintmq topic update {name} changes it"
                )
            note(settings, f"topic {escape(shown_name(name))} already exists")
            return
        admin.create_topic(name, queues, **properties)
        made = [_found(admin, name)]
        settings.output.rows(_columns(settings, made), made)
        if shown_name(name) != name:
            note(settings, f"the topic's real name is {name}, for clients that do not call encode_name")


@topic.command("update")
@pass_settings
@click.argument("name", metavar="TOPIC", type=TOPIC)
@click.option("--queues", type=QUEUES, help="Number of queues; it can only grow.")
@click.option("--read-queues", type=QUEUES, help="Number of read queues.")
@click.option("--write-queues", type=QUEUES, help="Number of write queues.")
@click.option("--perm", type=PERMISSION, help="Permission: rw, r (read), w (write) or none.")
@_retention_options
def update(
    settings: BrokerChoice,
    name: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: int | None,
    retention_hours: int | None,
    retention_bytes: int | None,
) -> None:
    """Add queues to a topic, or change its permission or retention.

    All topics share one log. A topic that keeps less than the log hides its older messages; their disk space is freed
    when their log file is deleted. A topic that keeps more than the log keeps those files, with the messages of all
    topics in them.
    """
    if queues is read_queues is write_queues is perm is retention_hours is retention_bytes is None:
        raise click.UsageError(
            "nothing to change; pass --queues, --read-queues, --write-queues, --perm, --retention or --retention-bytes",
            click.get_current_context(),
        )
    with settings.admin() as admin:
        there = _found(admin, name)
        to_read = read_queues or queues or there.read_queues
        to_write = write_queues or queues or there.write_queues
        if to_read < there.read_queues or to_write < there.write_queues:
            raise InvalidArgument(
                f"topic {name} has {plural(there.read_queues, 'read queue')} and {there.write_queues:,} write queues; "
                f"they cannot be reduced to {to_read:,} and {to_write:,} because queues hold messages"
            )
        admin.create_topic(
            name,
            read_queues=to_read,
            write_queues=to_write,
            perm=there.perm if perm is None else perm,
            order=there.order,
            retention_hours=retention_hours,
            retention_bytes=retention_bytes,
        )
        made = [_found(admin, name)]
        settings.output.rows(_columns(settings, made), made)


@topic.command("delete")
@pass_settings
@click.argument("names", metavar="TOPIC...", type=TOPIC, nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete(settings: BrokerChoice, names: tuple[str, ...], yes: bool) -> None:
    """Delete topics with all their messages."""
    with settings.admin() as admin:
        for name in names:
            held = _held(admin.topic_stats(name))["messages"]
            if not yes:
                confirm(f"delete topic {escape(shown_name(name))} with {plural(held, 'message')}?")
            admin.delete_topic(name)
            note(settings, f"deleted topic {escape(shown_name(name))} with {plural(held, 'message')}")
