"""The commands of ``flintmq-broker`` beside ``serve`` and ``warm``; those of a migration are in their own module.

Only what ``--help`` needs is imported here; each command imports its work when it runs, with the kernels.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...protocol.display import JSON, MODES, PLAIN, TABLE, escape, show_bytes, to_json
from ...protocol.times import first_millis, last_millis
from .output import iso_time, progress_bar, tool_command

if TYPE_CHECKING:
    from ..config import Settings
    from ..store import MessageStore


# ---- The commands ``follow-rocketmq`` and ``promote`` of ``flintmq-broker``: a live migration from Apache
# RocketMQ.


_CONFIG = click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help="A TOML file with settings.")
_SET = click.option(
    "--set",
    "assignments",
    metavar="SECTION.NAME=VALUE",
    multiple=True,
    help="Any setting of broker.toml, as for `serve`.",
)
_STORE_FOLDER = click.option(
    "--store", metavar="DIR", type=click.Path(file_okay=False), help="The store's folder.  [default: ./flintmq-store]"
)


@click.command("follow-rocketmq")
@click.argument("master", metavar="MASTERHOST:PORT")
@_STORE_FOLDER
@_CONFIG
@_SET
@tool_command
def follow_rocketmq(master: str, store: str | None, config: Path | None, assignments: tuple[str, ...]) -> int:
    """Copy log and tables of a running RocketMQ master, and follow it until SIGTERM or Ctrl-C.

    The store becomes a slave of RocketMQ 5.3's classic HA, byte for byte; no clients are served. `promote` ends it.
    """
    import asyncio

    from ...protocol.errors import ConfigurationError
    from ..addresses import parse_address
    from ..migration.follower import opened_follower

    try:
        host, port = parse_address(master)
    except ValueError as error:
        raise ConfigurationError(
            f"{master!r} is not the address of a RocketMQ master, HOST:PORT with its listenPort: {error}"
        ) from None
    opened = _store(store, config, assignments)
    with progress_bar() as progress, opened_follower(opened, progress):
        asyncio.run(_follow(opened, host, port))
    click.echo(f"stopped    {escape(str(opened.path))} ends at {opened.write_offset:,}")
    return 0


async def _follow(store: MessageStore, host: str, port: int) -> None:
    import asyncio
    import signal

    from ..migration.follower import MasterFollower

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await MasterFollower(store, host, port, lambda line: click.echo(escape(line))).run(stop)


@click.command()
@_STORE_FOLDER
@_CONFIG
@_SET
@click.option("--force", is_flag=True, help="Do not ask the master, whether or not it has more messages.")
@tool_command
def promote(store: str | None, config: Path | None, assignments: tuple[str, ...], force: bool) -> int:
    """End `follow-rocketmq`: make the store FlintMQ's own, so that `serve` may start on it.

    Takes the tables of the master once more if it still runs, and refuses if it has, or still takes, other messages.
    """
    import asyncio

    from ..migration.follower import opened_follower, take_last_tables
    from ..migration.ha_connection import FollowsNothing

    opened = _store(store, config, assignments)
    address = opened.followed_master.address()
    if not address:
        raise FollowsNothing(f"{opened.path} follows no RocketMQ master: there is nothing to promote")
    with progress_bar() as progress, opened_follower(opened, progress):
        reached = not force and asyncio.run(take_last_tables(opened))
        # Last: until then `serve` refuses the store, and this command can be run again.
        opened.followed_master.remove()
    where = escape(str(opened.path))
    if not reached:
        asked = "was not asked" if force else "cannot be reached"
        click.echo(f"note       {address} {asked}: the offsets are those that were taken last")
    click.echo(
        f"promoted   {where}: the log ends at {opened.write_offset:,}; {len(opened.topics):,} topics and "
        f"{len(opened.groups):,} groups"
    )
    click.echo(f"next       stop {address} for good, then flintmq-broker serve --store {where}, with the same settings")
    return 0


def _load(config: Path | None, assignments: tuple[str, ...], flags: Mapping[str, Any] | None = None) -> Settings:
    from ..config import load_settings

    return load_settings(config=config, environment=os.environ, assignments=assignments, flags=flags or {})


def _store(path: str | None, config: Path | None, assignments: tuple[str, ...]) -> MessageStore:
    from dataclasses import replace

    from ..store import MessageStore

    settings = _load(config, assignments, {} if path is None else {"store.path": path})
    # A master's records have no checksum over the whole record, unless it was told to add them.
    return MessageStore(
        Path(settings.store.path).expanduser(), replace(settings.store_settings(), record_checksum=False)
    )


# ---- The commands ``flintmq-broker conf`` and ``example``, for the files of the package ``flintmq.conf``.

EXAMPLES = {
    "alerts": "alerts.yml",
    "compose": "compose.yaml",
    "grafana": "grafana-dashboard.json",
    "prometheus": "prometheus.yml",
    "settings": "broker.toml",
    "systemd": "flintmq-broker.service",
}
"""The file of each example."""


def read(name: str) -> bytes:
    """Return the content of a file of ``flintmq.conf``."""
    return (resources.files("flintmq.conf") / name).read_bytes()


@click.command()
@click.argument("dest", type=click.Path(path_type=Path))
@tool_command
def conf(dest: Path) -> int:
    """Write the files for operators into the folder DEST.

    These are broker.toml with every setting and its default, a systemd unit, a scrape configuration and alert
    rules for Prometheus, a dashboard for Grafana, and a compose file. An existing file is not overwritten.
    """
    from ...protocol.errors import ConfigurationError

    files = {dest / name: read(name) for name in EXAMPLES.values()}
    for path in files:
        if os.path.lexists(path):  # also a link that leads nowhere
            raise ConfigurationError(f"{path} already exists: choose another folder, or move the file away")
    dest.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        with path.open("xb") as file:
            file.write(content)
        click.echo(escape(str(path)))
    return 0


@click.command()
@click.argument("name", metavar="NAME", type=click.Choice(list(EXAMPLES)))
@tool_command
def example(name: str) -> int:
    """Print the example NAME: alerts, compose, grafana, prometheus, settings or systemd.

    `conf` writes all of them into a folder.
    """
    click.echo(read(EXAMPLES[name]), nl=False)
    return 0


EXIT_FINDINGS = 1
"""The store or the backup is damaged; the output names each finding."""

_STORE = click.argument("store", type=click.Path(path_type=Path))
_SHOW = click.option(
    "--show",
    type=click.IntRange(0),
    default=10,
    metavar="N",
    help="Maximum number of findings of each kind.  [default: 10]",
)
_PLAIN_OR_JSON = click.option(
    "-o",
    "--output",
    "mode",
    type=click.Choice([PLAIN, JSON]),
    default=PLAIN,
    help="Text, or JSON lines.  [default: plain]",
)
_INDEX_SLOTS = click.option(
    "--index-slots", type=click.IntRange(1), metavar="N", help="Slots of the index files, if the store does not say."
)
_RUNNING = click.option(
    "--running", is_flag=True, help="Read beside a running broker, up to its flushed offset; nothing is locked."
)


class Moment(click.ParamType):  # type: ignore[type-arg] # generic since click 8.4
    """Parameter type of a time, as ms since 1970 UTC. ``rounded``: the millisecond that stands for a finer time."""

    name = "time"

    def __init__(self, rounded: Callable[[datetime], int]) -> None:
        self._rounded = rounded

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse ISO 8601 (local time if it names no zone), or ms since 1970."""
        if isinstance(value, int):
            return value
        text = str(value).removeprefix("@")
        if text.isascii() and text.isdigit() and len(text) == 13:
            return int(text)
        try:
            return self._rounded(datetime.fromisoformat(text).astimezone())
        except (ValueError, OverflowError, OSError):
            self.fail(
                f"{value!r} is not a time: use 2026-11-21T10:00 (local; or with Z or +01:00), or ms since 1970",
                param,
                ctx,
            )


@click.command()
@_STORE
@_PLAIN_OR_JSON
@_SHOW
@_INDEX_SLOTS
@tool_command
def verify(store: Path, mode: str, show: int, index_slots: int | None) -> int:
    """Check every record, queue, index entry and table of a stopped STORE, or every byte of a backup. Changes nothing.

    Exit code 0: sound; 1: something is wrong; 2: it cannot be verified (a broker has the store open, …).
    """
    from ...protocol.store_files import backup_kind

    if backup_kind(store):
        return _verify_backup(store, mode, show)
    from .verify import as_json, as_text
    from .verify import verify as run

    with progress_bar() as progress:
        verified = run(store, functools.partial(progress, "verifying"), index_slots=index_slots)
    for line in as_json(verified, store) if mode == JSON else as_text(verified, store, show):
        click.echo(line)
    return EXIT_FINDINGS if verified.findings.total else 0


def _verify_backup(folder: Path, mode: str, show: int) -> int:
    from .backup import backup_as_json, backup_as_text, verify_backup

    with progress_bar() as progress:
        verified = verify_backup(folder, functools.partial(progress, "verifying"))
    for line in backup_as_json(verified, folder) if mode == JSON else backup_as_text(verified, folder, show):
        click.echo(line)
    return EXIT_FINDINGS if verified.findings.total else 0


@click.command()
@_STORE
@_INDEX_SLOTS
@tool_command
def rebuild(store: Path, index_slots: int | None) -> int:
    """Rebuild ConsumeQueues and index of a stopped STORE from its log.

    The old files are moved to flintmq/aside first and removed at the end. Damage of the log is contained as
    at a start. If the command is interrupted, the next start of a broker, or of this command, continues.
    """
    from ..store.recovery.holes import lost_text
    from .repair import rebuild as run

    try:
        with progress_bar() as progress:
            rebuilt = run(store, progress, index_slots=index_slots)
    except KeyboardInterrupt:
        click.echo("flintmq-broker: not complete; the next start of a broker, or of this command, continues", err=True)
        raise
    for hole in rebuilt.quarantined:
        click.echo(
            f"contained {hole.bytes:,} damaged bytes at physical offset {hole.physical_offset:,}: "
            f"{lost_text(hole.lost)}"
        )
    if rebuilt.cut_bytes:
        click.echo(f"cut      {rebuilt.cut_bytes:,} bytes of a torn write after the end of the log")
    rate = rebuilt.messages / max(rebuilt.seconds, 1e-3)
    click.echo(
        f"rebuilt  {rebuilt.queues:,} queues and {rebuilt.index_files:,} index files from {rebuilt.messages:,} records "
        f"in {rebuilt.seconds:.2f} s, {rate:,.0f} a second; the old files are removed"
    )
    return 0


@click.command()
@_STORE
@click.option("--apply", is_flag=True, help="Apply the repair. Without it, only print what would be done.")
@_SHOW
@click.option(
    "--accept-missing",
    "names",
    multiple=True,
    metavar="FILE",
    help="Give up the messages of this file of the log (its name, 20 digits), which is lost for good.",
)
@_INDEX_SLOTS
@tool_command
def repair(store: Path, apply: bool, show: int, names: tuple[str, ...], index_slots: int | None) -> int:
    """Repair a stopped STORE: contain damage in its log, and rebuild queues and index if they are wrong.

    Damaged messages are lost; their bytes are kept in flintmq/quarantine. If a backup has the file, restore
    it instead. Exit code 0: the store is sound, or repaired; 1: something is still wrong; 2: refused.
    """
    from .repair import done_lines, examine, give_up, giving_up_lines, plan_lines
    from .repair import repair as run

    # Before the files are created: afterwards none is missing.
    for line in giving_up_lines(store, names, index_slots=index_slots):
        click.echo(line)
    with progress_bar() as progress:
        if apply and names:
            give_up(store, names, index_slots=index_slots)
        found = examine(store, progress, index_slots=index_slots)
        repaired = run(store, found, progress, index_slots=index_slots) if apply and found.findings.total else None
    for note in found.findings.notes:
        click.echo(f"note      {escape(note)}")
    if repaired is not None:
        for line in done_lines(store, repaired, show):
            click.echo(line)
        return EXIT_FINDINGS if repaired.after.findings.total else 0
    for line in plan_lines(store, found, show):
        click.echo(line)
    if not found.findings.total:
        click.echo("sound     nothing is wrong")
        return 0
    click.echo("dry run   nothing was changed; --apply does it")
    return EXIT_FINDINGS


@click.command()
@_STORE
@click.option("--topic", metavar="NAME", help="Only records of this topic.")
@click.option("--queue", type=click.IntRange(0), metavar="N", help="Only records of the queues with this number.")
@click.option("--key", metavar="KEY", help="Only records with this key or id; found through the index if it is sound.")
@click.option(
    "--since", type=Moment(first_millis), metavar="TIME", default=0, help="Only records stored at this time or later."
)
@click.option(
    "--until",
    type=Moment(last_millis),
    metavar="TIME",
    default=1 << 62,
    help="Only records stored at this time or earlier.",
)
@click.option(
    "--from-offset",
    type=click.IntRange(0),
    metavar="N",
    default=0,
    help="Only records at or after this physical offset.",
)
@click.option(
    "--to-offset",
    type=click.IntRange(0),
    metavar="N",
    default=1 << 62,
    help="Only records before this physical offset.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Maximum number of records.")
@_RUNNING
@_INDEX_SLOTS
@tool_command
def dump(store: Path, limit: int | None, running: bool, index_slots: int | None, **wanted: Any) -> int:
    """Print the records of STORE's log as JSON lines, in log order. Changes nothing.

    Damaged records are left out and listed on standard error; the exit code is then 1.
    """
    from itertools import islice

    from .dump import Wanted, record_row, records
    from .findings import Findings
    from .offline import open_for_reading
    from .verify import findings_text

    findings = Findings(shown_max=1000)
    since_ms, until_ms = wanted.pop("since"), wanted.pop("until")
    with open_for_reading(store, findings, running=running, index_slots=index_slots) as (opened, end):
        for record in islice(records(opened, end, Wanted(since_ms=since_ms, until_ms=until_ms, **wanted)), limit):
            sys.stdout.write(to_json(record_row(record)) + "\n")  # click would flush each line
    for line in (*(f"note: {note}" for note in findings.notes), *findings_text(findings, store, 10)):
        click.echo(line, err=True)
    return EXIT_FINDINGS if findings.total else 0


@click.command()
@_STORE
@click.option(
    "-o",
    "--output",
    "mode",
    type=click.Choice(MODES),
    help="Output format.  [default: table on a terminal, else plain]",
)
@_RUNNING
@_INDEX_SLOTS
@tool_command
def stat(store: Path, mode: str | None, running: bool, index_slots: int | None) -> int:
    """Show what STORE contains: messages by queue, files, use of the index, the checkpoint. Changes nothing."""
    from .findings import Findings
    from .offline import open_for_reading
    from .stat import as_json, as_plain, print_tables, store_stat
    from .verify import findings_text

    findings = Findings()
    with open_for_reading(store, findings, running=running, index_slots=index_slots) as (opened, end):
        found = store_stat(opened, end)
    mode = mode or (TABLE if sys.stdout.isatty() else PLAIN)
    if mode == TABLE:
        print_tables(found)
    else:
        for line in as_json(found) if mode == JSON else as_plain(found):
            click.echo(line)
    for line in findings_text(findings, store, 10):
        click.echo(line, err=True)
    return 0


@click.command("plan-clean")
@_STORE
@_CONFIG
@_SET
@_PLAIN_OR_JSON
@tool_command
def plan_clean(store: Path, config: Path | None, assignments: tuple[str, ...], mode: str) -> int:
    """Show which CommitLog files of STORE retention would delete now, and why the others stay. Changes nothing.

    The settings are those of a broker started with the same options and environment; a broker may be running.
    """
    import time

    from . import plan_clean as planning

    settings = _load(config, assignments)
    now = time.time()
    plan = planning.plan_clean(store, settings.retention, now=now)
    for line in planning.as_json(plan) if mode == JSON else planning.as_text(plan, now):
        click.echo(line)
    return 0


@click.command()
@_STORE
@click.argument("dest", type=click.Path(path_type=Path))
@tool_command
def backup(store: Path, dest: Path) -> int:
    """Copy STORE into the folder DEST, even while a broker serves it.

    The copy has everything that was acknowledged as on disk before it began. Run it again to add new data, or
    to continue an interrupted run. `restore` makes a store of it; `backup.json` lists its content.
    """
    from .backup import backup as run

    try:
        with progress_bar() as progress:
            made = run(store, dest, progress)
    except KeyboardInterrupt:
        click.echo("flintmq-broker: not complete; the next run continues; an earlier backup stays valid", err=True)
        raise
    log_bytes = made.manifest.log_end - made.manifest.log_begin
    click.echo(
        f"backed up  {log_bytes:,} bytes of log up to physical offset {made.manifest.log_end:,} and "
        f"{len(made.manifest.tables)} tables into {escape(str(dest))}"
    )
    rate = made.copied_bytes / max(made.seconds, 1e-3)
    click.echo(
        f"copied     {show_bytes(made.copied_bytes)} in {made.seconds:.1f} s, {show_bytes(rate)} a second; "
        f"{show_bytes(made.kept_bytes)} were there already"
    )
    return 0


@click.command()
@click.argument("source", metavar="BACKUP|URL")
@_STORE
@click.option(
    "--until", type=Moment(first_millis), metavar="TIME", help="Only what was stored before this time; for an archive."
)
@tool_command
def restore(source: str, store: Path, until: int | None) -> int:
    """Restore a backup, or an archive, into the folder STORE, which must be empty.

    BACKUP is the folder of a backup; URL an archive's: s3://BUCKET/PREFIX, gs://…, az://… or its folder. Every byte is
    checked during the copy. The first start of a broker on it rebuilds queues and index from the log.
    """
    from ...protocol.storage.archive.objects import is_archive
    from .backup import restore as run

    if is_archive(source):
        return _restore_archive(source, store, until)
    if until is not None:
        raise click.UsageError(f"--until needs an archive, and {source} is none", click.get_current_context())
    with progress_bar() as progress:
        restored = run(Path(source), store, progress)
    manifest = restored.manifest
    click.echo(
        f"restored   {manifest.log_end - manifest.log_begin:,} bytes of log up to physical offset "
        f"{manifest.log_end:,} and {len(manifest.tables)} tables, as of {escape(manifest.made_at)}, in "
        f"{restored.seconds:.1f} s"
    )
    click.echo(f"next       flintmq-broker serve --store {escape(str(store))}")
    return 0


def _restore_archive(url: str, store: Path, until_ms: int | None) -> int:
    """Restore an archive, and say what was restored."""
    from .restore_archive import restore_archive

    with progress_bar() as progress:
        restored = restore_archive(url, store, progress, until_ms)
    click.echo(
        f"restored   {restored.end - restored.begin:,} bytes of log, physical offsets {restored.begin:,} to "
        f"{restored.end:,}, and {restored.tables} tables, as of {iso_time(restored.last_ms)}, in "
        f"{restored.seconds:.1f} s"
    )
    if restored.gap is not None:
        gap = restored.gap
        click.echo(
            f"gap        the log begins behind what the archive lacks: physical offsets {gap.start:,} to {gap.end:,} "
            f"({escape(gap.reason)}); `flintmq archive query` and `read_store` read what is before"
        )
    if not restored.continues:
        click.echo("archive    a broker on this store does not continue the archive: give it another archive.url")
    click.echo(f"next       flintmq-broker serve --store {escape(str(store))}")
    return 0


COMMANDS = (verify, rebuild, repair, dump, stat, plan_clean, backup, restore, conf, example, follow_rocketmq, promote)


# ---- ``flintmq-broker replica``: the commands that need the store of a stopped member.


def _settings(config: Path | None, assignments: tuple[str, ...]) -> Settings:
    from ...protocol.errors import ConfigurationError

    settings = _load(config, assignments)
    if not settings.replication.set:
        raise ConfigurationError("replication.set is empty: pass the configuration of a member, --config FILE")
    return settings


def _addresses(members: tuple[str, ...]) -> dict[str, str]:
    from ...protocol.errors import ConfigurationError
    from ..addresses import parse_address

    found: dict[str, str] = {}
    for each in members:
        member, _, address = each.partition("=")
        if not member or not address or member in found:
            raise ConfigurationError(f"{each!r} is not MEMBER=HOST:PORT with an id of its own")
        parse_address(address)
        found[member] = address
    return found


@click.group()
def replica() -> None:
    """Create a replica set, or decide which member leads after a loss."""


@replica.command()
@click.argument("members", nargs=-1, required=True, metavar="MEMBER=HOST:PORT…")
@click.option(
    "--min-in-sync",
    type=click.IntRange(1),
    metavar="N",
    help="Members that must have a message on disk before it is acknowledged.  [default: the majority]",
)
@_CONFIG
@_SET
@tool_command
def init(members: tuple[str, ...], min_in_sync: int | None, config: Path | None, assignments: tuple[str, ...]) -> int:
    """Begin a replica set with these MEMBERS; the stopped store of the settings is its first one.

    The others begin with empty stores and copy it.
    """
    from .replica_init import begin_set

    settings = _settings(config, assignments)
    begun = begin_set(settings, _addresses(members), min_in_sync)
    click.echo(
        f"replica set {settings.replication.set} has {len(begun.members)} members; a message is acknowledged when "
        f"{begun.min_in_sync} of them have it on disk. Start them: {settings.replication.member} leads first"
    )
    return 0


@replica.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@_CONFIG
@_SET
@tool_command
def force(yes: bool, config: Path | None, assignments: tuple[str, ...]) -> int:
    """Let this member lead although it may lack acknowledged messages: the last resort.

    Use it only if no member in sync can come back. Messages that only those members have are lost.
    """
    from .replica_init import force_leader, read_set

    settings = _settings(config, assignments)
    member = settings.replication.member
    found = read_set(settings).state.config
    assert found is not None
    in_sync = escape(", ".join(sorted(found.in_sync)))
    lost = escape(", ".join(sorted(found.in_sync - {member})))
    click.echo(
        f"The members in sync are {in_sync}. If {member} leads, every acknowledged message that it lacks is lost."
    )
    if lost:
        click.echo(
            f"{lost}: bytes that a member has beyond {member} go to flintmq/diverged/ in its store; a "
            "member that knows that they were acknowledged stops, and follows again only with an empty store."
        )
    if not yes:
        click.confirm(f"Let {member} lead?", abort=True)
    force_leader(settings)
    click.echo(f"{member} is the only member in sync. Start it: it leads, and the others copy it")
    return 0
