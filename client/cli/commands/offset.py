"""The command ``flintmq offset``."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, BinaryIO

import click

from ....protocol.commands import ConsumeStats
from ....protocol.display import escape, to_json
from ....protocol.errors import ConfigurationError
from ...operator.display import plural, shown_name
from ...operator.positions import check_committable, check_queues
from ..command import CliGroup, note, pass_settings
from ..offset_reset import reset_group, reset_options
from ..output import columns_of
from ..params import GROUP, TOPIC
from ..settings import BrokerChoice

STDIN = "<stdin>"
STATS_COLUMNS = columns_of(ConsumeStats, "group topic queue committed min_offset max_offset lag")


@click.group(cls=CliGroup)
def offset() -> None:
    """Show, reset, export and import the offsets that groups have committed."""


@offset.command("show")
@pass_settings
@click.argument("group", type=GROUP, default="")
@click.option("--topic", type=TOPIC, default="", help="Only this topic.")
def show(settings: BrokerChoice, group: str, topic: str) -> None:
    """Show the committed offsets of groups, the offsets that each queue holds, and the lag."""
    with settings.admin() as admin:
        stats = admin.consume_stats(group or None, topic or None, uncommitted=True)
    empty = f"group {shown_name(group)} has committed nothing" if group else "no group has committed anything"
    settings.output.rows(
        STATS_COLUMNS, map(_row, stats), empty=f"{empty}{f' in topic {shown_name(topic)}' if topic else ''}"
    )


def _row(stats: ConsumeStats) -> dict[str, Any]:
    row = {column.name: getattr(stats, column.name) for column in STATS_COLUMNS}
    if stats.committed < 0:
        row["committed"] = None
    return row if stats.known else row | {"lag": None}


# ---- reset


@offset.command("reset")
@pass_settings
@reset_options
def reset(settings: BrokerChoice, **options: Any) -> None:
    """Commit a position for a group, so that it continues from there.

    The broker refuses while members of the group consume the topic, unless --force is given.
    """
    reset_group(settings, **options)


# ---- export and import


@offset.command("export")
@pass_settings
@click.argument("group", type=GROUP, default="")
@click.option("--topic", type=TOPIC, default="", help="Only this topic.")
def export(settings: BrokerChoice, group: str, topic: str) -> None:
    """Print committed offsets as JSON lines, for import: {"group", "topic", "queue", "offset"}."""
    with settings.admin() as admin:
        stats = admin.consume_stats(group or None, topic or None)
    for row in stats:
        line = {"group": row.group, "topic": row.topic, "queue": row.queue, "offset": row.committed}
        settings.output.write(to_json(line) + "\n")
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
