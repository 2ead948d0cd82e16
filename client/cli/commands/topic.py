"""``flintmq topic``."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from ....protocol.errors import TopicExistsAlready, TopicNotExist
from ....protocol.escaping import escape
from ..command import Group, confirm, note, pass_settings
from ..output import TABLE, Column, number
from ..params import PERMISSION, TOPIC, show_permission
from ..settings import Settings
from ..units import plural, show_moment

if TYPE_CHECKING:
    from ...core.topics import QueueStats, TopicInfo
    from ...sync.admin import Admin

DEFAULT_QUEUES = 4
QUEUES = click.IntRange(1, 65_536)

TOPIC_COLUMNS = (
    Column("topic", "TOPIC"),
    number("read_queues", "READ QUEUES"),
    number("write_queues", "WRITE QUEUES"),
    Column("permission", "ALLOWS"),
    Column("system", "SYSTEM", lambda system: "yes" if system else ""),
)
MESSAGE_COLUMNS = (number("messages", "MESSAGES"), Column("last_stored_at", "LAST STORED", show_moment))
QUEUE_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("queue", "QUEUE"),
    number("min_offset", "FIRST OFFSET"),
    number("max_offset", "NEXT OFFSET"),
    number("messages", "MESSAGES"),
    Column("last_stored_at", "LAST STORED", show_moment),
)


@click.group(cls=Group)
def topic() -> None:
    """List, create, change, delete topics, and what they hold."""


def _row(info: TopicInfo) -> dict[str, Any]:
    return {
        "topic": info.topic,
        "read_queues": info.read_queues,
        "write_queues": info.write_queues,
        "permission": show_permission(info.perm),
        "system": info.system,
    }


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
@click.option("--system", is_flag=True, help="The broker's own topics, too.")
def list_topics(settings: Settings, pattern: str, messages: bool, system: bool) -> None:
    """List the topics, or those that PATTERN matches: 'orders*'."""
    columns = TOPIC_COLUMNS if system else TOPIC_COLUMNS[:-1]
    with settings.admin() as admin:
        rows = [_row(info) for name, info in admin.topics(system=system).items() if fnmatchcase(name, pattern)]
        for row in rows if messages else ():
            row |= _held(admin.topic_stats(row["topic"]))
    what = f"no topic matches {pattern}" if pattern != "*" else "there are no topics; flintmq topic create makes one"
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
@click.option("--if-not-exists", is_flag=True, help="Leave a topic of this name as it is.")
def create(
    settings: Settings,
    name: str,
    queues: int,
    read_queues: int | None,
    write_queues: int | None,
    perm: int,
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
        admin.create_topic(name, queues, read_queues=read_queues, write_queues=write_queues, perm=perm)
        settings.output.rows(TOPIC_COLUMNS[:-1], [_row(_found(admin, name))])


@topic.command("update")
@pass_settings
@click.argument("name", metavar="TOPIC", type=TOPIC)
@click.option("--queues", type=QUEUES, help="Queues to read and to write; some can be added, none taken away.")
@click.option("--read-queues", type=QUEUES, help="Queues to read.")
@click.option("--write-queues", type=QUEUES, help="Queues to write.")
@click.option("--perm", type=PERMISSION, help="What it allows: rw, r, w or none.")
def update(
    settings: Settings,
    name: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: int | None,
) -> None:
    """Add queues to a topic, or change what it allows."""
    if queues is read_queues is write_queues is perm is None:
        raise click.UsageError(
            "say what to change: --queues, --read-queues, --write-queues or --perm", click.get_current_context()
        )
    with settings.admin() as admin:
        there = _found(admin, name)
        admin.create_topic(
            name,
            read_queues=read_queues or queues or there.read_queues,
            write_queues=write_queues or queues or there.write_queues,
            perm=there.perm if perm is None else perm,
            order=there.order,
        )
        settings.output.rows(TOPIC_COLUMNS[:-1], [_row(_found(admin, name))])


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
