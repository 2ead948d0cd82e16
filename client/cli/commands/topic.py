"""``flintmq topic``."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from ....protocol.errors import TopicExistsAlready, TopicNotExist
from ....protocol.escaping import escape
from ...errors import InvalidArgument
from ..command import Group, confirm, note, pass_settings
from ..output import TABLE, Column, number
from ..params import PERMISSION, RETENTION, RETENTION_BYTES, TOPIC, show_permission
from ..settings import Settings
from ..topics import is_own
from ..units import plural, show_bytes, show_second

if TYPE_CHECKING:
    from ...core.topics import QueueStats, TopicInfo
    from ...sync.admin import Admin

DEFAULT_QUEUES = 4
QUEUES = click.IntRange(1, 65_536)

TOPIC_COLUMNS = (
    Column("topic", "TOPIC", fold=True),
    number("read_queues", "READ QUEUES"),
    number("write_queues", "WRITE QUEUES"),
    Column("permission", "ALLOWS"),
    Column("retention_hours", "KEEPS", lambda hours: show_hours(hours)),
    Column("retention_bytes", "AT MOST", lambda size: show_bytes(size) if size else ""),
    Column("system", "SYSTEM", lambda system: "yes" if system else ""),
)
SHOWN_COLUMNS = (
    TOPIC_COLUMNS[0],
    Column("shown_queues", "QUEUES"),
    *TOPIC_COLUMNS[3:],
)
"""In a table: the queues in one column."""
RETENTION_NAMES = ("retention_hours", "retention_bytes")
MESSAGE_COLUMNS = (number("messages", "MESSAGES"), Column("last_stored_at", "LAST STORED", show_second, spare=True))
QUEUE_COLUMNS = (
    Column("topic", "TOPIC", fold=True),
    Column("queue", "QUEUE"),
    number("min_offset", "FIRST OFFSET"),
    number("max_offset", "NEXT OFFSET"),
    number("messages", "MESSAGES"),
    Column("last_stored_at", "LAST STORED", show_second, spare=True),
)


RETENTION_OPTIONS = (
    click.option(
        "--retention-bytes", type=RETENTION_BYTES, metavar="SIZE",
        help="Most bytes that the topic keeps, the newest: 10GB; none: no limit.",
    ),
    click.option(
        "--retention", type=RETENTION, metavar="TIME",
        help="How long the topic keeps its messages: 24h, 7d, forever; default: as long as the broker keeps its log.",
    ),
)  # fmt: skip


def show_hours(hours: int) -> str:
    """``24 h``, ``7 d``, ``for ever``, or nothing for as long as the log is kept."""
    if hours <= 0:
        return "for ever" if hours else ""
    return f"{hours // 24} d" if hours % 24 == 0 and hours > 48 else f"{hours} h"


def _retention_options(function: Any) -> Any:
    """Add ``--retention`` and ``--retention-bytes``."""
    for option in RETENTION_OPTIONS:
        function = option(function)
    return function


@click.group(cls=Group)
def topic() -> None:
    """List, create, change, delete topics, and what they hold."""


def _row(info: TopicInfo) -> dict[str, Any]:
    return {
        "topic": info.topic,
        "read_queues": info.read_queues,
        "write_queues": info.write_queues,
        "shown_queues": show_queues(info),
        "permission": show_permission(info.perm),
        "retention_hours": info.retention_hours,
        "retention_bytes": info.retention_bytes,
        "system": is_own(info),
    }


def show_queues(info: TopicInfo) -> str:
    """``4``, or ``4, 2 to write`` where not all that can be read can be written."""
    to_write = "" if info.write_queues == info.read_queues else f", {info.write_queues:,} to write"
    return f"{info.read_queues:,}{to_write}"


def _columns(settings: Settings, rows: list[dict[str, Any]], *, system: bool = False) -> tuple[Column, ...]:
    """The columns; in a table without those for a retention that no topic has."""
    columns: tuple[Column, ...] = TOPIC_COLUMNS
    if settings.output.mode == TABLE:
        empty = [name for name in RETENTION_NAMES if not any(row[name] for row in rows)]
        columns = tuple(column for column in SHOWN_COLUMNS if column.name not in empty)
    return columns if system else columns[:-1]


def _found(admin: Admin, name: str) -> TopicInfo:
    """The topic's settings. Raises ``TopicNotExist``."""
    topics = admin.topics(system=True)
    if name not in topics:
        raise TopicNotExist(f"topic {name} does not exist")
    return topics[name]


# ---- seeing


@topic.command("list")
@pass_settings
@click.argument("pattern", type=TOPIC, default="*")
@click.option("-m", "--messages", is_flag=True, help="Count each topic's messages, too: one request a topic.")
@click.option("--system", is_flag=True, help="Those of the broker and of groups, too.")
def list_topics(settings: Settings, pattern: str, messages: bool, system: bool) -> None:
    """List the topics, or those that PATTERN matches: 'orders*'.

    The topics that the broker made for itself, or for a group (%RETRY%…, %DLQ%…), are listed with --system, or if
    PATTERN begins with %.
    """
    with settings.admin() as admin:
        rows = [
            _row(info)
            for name, info in admin.topics(system=system).items()
            if fnmatchcase(name, pattern) and (system or pattern.startswith("%") or not is_own(info))
        ]
        for row in rows if messages else ():
            row |= _held(admin.topic_stats(row["topic"]))
    what = f"no topic matches {pattern}" if pattern != "*" else "there are no topics; flintmq topic create makes one"
    columns = _columns(settings, rows, system=system)
    settings.output.rows(columns + (MESSAGE_COLUMNS if messages else ()), rows, empty=what)


def _held(stats: list[QueueStats]) -> dict[str, Any]:
    return {
        "messages": sum(queue.count for queue in stats),
        "last_stored_at": max((queue.last_stored_at for queue in stats if queue.last_stored_at), default=None),
    }


@topic.command("status")
@pass_settings
@click.argument("name", metavar="TOPIC", type=TOPIC)
def status(settings: Settings, name: str) -> None:
    """Show what each queue of a topic holds."""
    with settings.admin() as admin:
        stats = admin.topic_stats(name)
    rows: list[dict[str, Any]] = [
        {
            "topic": name,
            "queue": queue.queue,
            "min_offset": queue.min_offset,
            "max_offset": queue.max_offset,
            "messages": queue.count,
            "last_stored_at": queue.last_stored_at,
        }
        for queue in stats
    ]
    if settings.output.mode == TABLE and len(rows) > 1:
        rows.append({"topic": name, "queue": "all"} | _held(stats))
    settings.output.rows(QUEUE_COLUMNS, rows)


# ---- changing


@topic.command("create")
@pass_settings
@click.argument("name", metavar="TOPIC")
@click.option("--queues", type=QUEUES, default=DEFAULT_QUEUES, show_default=True, help="Queues to read and to write.")
@click.option("--read-queues", type=QUEUES, help="Queues to read, where they are more.")
@click.option("--write-queues", type=QUEUES, help="Queues to write, where they are fewer.")
@click.option("--perm", type=PERMISSION, default="rw", show_default=True, help="What it allows: rw, r, w or none.")
@_retention_options
@click.option("--if-not-exists", is_flag=True, help="Leave a topic of this name as it is.")
def create(
    settings: Settings,
    name: str,
    queues: int,
    read_queues: int | None,
    write_queues: int | None,
    perm: int,
    retention: int | None,
    retention_bytes: int | None,
    if_not_exists: bool,
) -> None:
    """Create a topic."""
    with settings.admin() as admin:
        there = admin.topics(system=True).get(name)
        if there is not None:
            if not if_not_exists:
                raise TopicExistsAlready(
                    f"topic {name} is there already, with {plural(there.queues, 'queue')}; "
                    f"flintmq topic update {name} changes it"
                )
            note(settings, f"topic {name} is there already")
            return
        admin.create_topic(
            name, queues, read_queues=read_queues, write_queues=write_queues, perm=perm,
            retention_hours=retention, retention_bytes=retention_bytes,
        )  # fmt: skip
        rows = [_row(_found(admin, name))]
        settings.output.rows(_columns(settings, rows), rows)


@topic.command("update")
@pass_settings
@click.argument("name", metavar="TOPIC", type=TOPIC)
@click.option("--queues", type=QUEUES, help="Queues to read and to write; some can be added, none taken away.")
@click.option("--read-queues", type=QUEUES, help="Queues to read.")
@click.option("--write-queues", type=QUEUES, help="Queues to write.")
@click.option("--perm", type=PERMISSION, help="What it allows: rw, r, w or none.")
@_retention_options
def update(
    settings: Settings,
    name: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: int | None,
    retention: int | None,
    retention_bytes: int | None,
) -> None:
    """Add queues to a topic, or change what it allows or keeps.

    All topics share one log. A topic that keeps less than the log hides its older messages; the disk gets their room
    back when their file of the log goes. A topic that keeps more holds those files back, with what all topics have in
    them.
    """
    if queues is read_queues is write_queues is perm is retention is retention_bytes is None:
        raise click.UsageError(
            "say what to change: --queues, --read-queues, --write-queues, --perm, --retention or --retention-bytes",
            click.get_current_context(),
        )
    with settings.admin() as admin:
        there = _found(admin, name)
        to_read = read_queues or queues or there.read_queues
        to_write = write_queues or queues or there.write_queues
        if to_read < there.read_queues or to_write < there.write_queues:
            raise InvalidArgument(
                f"topic {name} has {plural(there.read_queues, 'queue')} to read and {there.write_queues:,} to write; "
                f"{to_read:,} and {to_write:,} are fewer: queues can be added, not taken away, for they hold messages"
            )
        admin.create_topic(
            name,
            read_queues=to_read,
            write_queues=to_write,
            perm=there.perm if perm is None else perm,
            order=there.order,
            retention_hours=retention,
            retention_bytes=retention_bytes,
        )
        rows = [_row(_found(admin, name))]
        settings.output.rows(_columns(settings, rows), rows)


@topic.command("delete")
@pass_settings
@click.argument("names", metavar="TOPIC...", type=TOPIC, nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete(settings: Settings, names: tuple[str, ...], yes: bool) -> None:
    """Delete topics with all of their messages."""
    with settings.admin() as admin:
        for name in names:
            held = _held(admin.topic_stats(name))["messages"]
            if not yes:
                confirm(f"delete topic {escape(name)} with {plural(held, 'message')}?")
            admin.delete_topic(name)
            note(settings, f"deleted topic {escape(name)}, {plural(held, 'message')}")
