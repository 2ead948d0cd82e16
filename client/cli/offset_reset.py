"""Reset of a group's committed offsets, shared by ``offset reset`` and ``group reset``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ..operator.positions import OFFSET_FORMS, Typed, check_queues, offsets_to_commit
from .command import note
from .output import name_column, number
from .params import GROUP, POSITION, QUEUE, TOPIC
from .settings import BrokerChoice

if TYPE_CHECKING:
    from ...protocol.commands import QueueStats
    from ..sync.consumer import Consumer

RESET_FORMS = f"earliest, latest, {OFFSET_FORMS}"
RESET_COLUMNS = (
    name_column("group", "GROUP"),
    name_column("topic", "TOPIC"),
    number("queue", "QUEUE"),
    number("before", "BEFORE"),
    number("after", "AFTER"),
)


def reset_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments and options of ``reset_group``."""
    for decorate in (
        click.option("-n", "--dry-run", is_flag=True, help="Show what would be committed, but commit nothing."),
        click.option("--force", is_flag=True, help="Reset even while the group has members: they restart from there."),
        click.option("--queue", "queues", type=QUEUE, multiple=True, help="Only this queue; repeatable."),
        click.option("--to", type=POSITION, required=True, metavar="POSITION", help=f"{RESET_FORMS}."),
        click.argument("topic", type=TOPIC),
        click.argument("group", type=GROUP),
    ):
        function = decorate(function)
    return function


def reset_group(
    settings: BrokerChoice, group: str, topic: str, to: Typed, queues: tuple[int, ...], force: bool, dry_run: bool
) -> None:
    """Commit the position ``to`` for the group in the topic, and show the offsets before and after."""
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
