"""The commands ``follow-rocketmq`` and ``promote`` of ``flintmq-broker``: a live migration from Apache RocketMQ."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...protocol.escaping import escape
from .output import progress_bar
from .tool_command import tool_command

if TYPE_CHECKING:
    from ..store import MessageStore


def _store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of ``serve`` that say which store it is."""
    for option in (
        click.option(
            "--set",
            "assignments",
            metavar="SECTION.NAME=VALUE",
            multiple=True,
            help="Any setting of broker.toml, as for `serve`.",
        ),
        click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help="A TOML file with settings."),
        click.option(
            "--store",
            metavar="DIR",
            type=click.Path(file_okay=False),
            help="The store's folder.  [default: ./flintmq-store]",
        ),
    ):
        command = option(command)
    return command


@click.command("follow-rocketmq")
@click.argument("master", metavar="MASTERHOST:PORT")
@_store_options
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
@_store_options
@click.option("--force", is_flag=True, help="Do not ask the master, whether or not it has more messages.")
@tool_command
def promote(store: str | None, config: Path | None, assignments: tuple[str, ...], force: bool) -> int:
    """End `follow-rocketmq`: make the store FlintMQ's own, so that `serve` may start on it.

    Takes the tables of the master once more if it still runs, and refuses if it has, or still takes, other messages.
    """
    import asyncio

    from ..migration.errors import FollowsNothing
    from ..migration.follower import opened_follower
    from ..migration.promotion import take_last_tables

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


def _store(path: str | None, config: Path | None, assignments: tuple[str, ...]) -> MessageStore:
    from dataclasses import replace

    from ..config_sources import load_settings
    from ..store import MessageStore

    flags = {} if path is None else {"store.path": path}
    settings = load_settings(config=config, environment=os.environ, assignments=assignments, flags=flags)
    # A master's records have no checksum over the whole record, unless it was told to add them.
    return MessageStore(
        Path(settings.store.path).expanduser(), replace(settings.store_settings(), record_checksum=False)
    )
