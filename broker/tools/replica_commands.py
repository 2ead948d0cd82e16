"""``flintmq-broker replica``: the commands that need the store of a stopped member."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...protocol.escaping import escape
from .tool_command import tool_command

if TYPE_CHECKING:
    from ..config import Settings


def _with_settings(work: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help="The member's TOML file."),
        click.option("--set", "assignments", metavar="SECTION.NAME=VALUE", multiple=True, help="Any of its settings."),
    )
    for option in reversed(options):
        work = option(work)
    return work


def _settings(config: Path | None, assignments: tuple[str, ...]) -> Settings:
    from ...protocol.errors import ConfigurationError
    from ..config_sources import load_settings

    settings = load_settings(config=config, environment=os.environ, assignments=assignments, flags={})
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
@_with_settings
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
@_with_settings
@tool_command
def force(yes: bool, config: Path | None, assignments: tuple[str, ...]) -> int:
    """Let this member lead although it may lack acknowledged messages: the last resort.

    Use it only if no member in sync can come back. Messages that only those members have are lost.
    """
    from .replica_init import force_leader, read_set

    settings = _settings(config, assignments)
    member = settings.replication.member
    found = asyncio.run(read_set(settings)).state.config
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
