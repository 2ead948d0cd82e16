"""The command ``flintmq replica``."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ....protocol.commands import SetMember
from ....protocol.display import TABLE
from ....protocol.errors import ConfigurationError, RequestTimeout
from ...operator.display import show_seconds
from ..command import CliGroup, confirm, note, pass_settings
from ..output import TableColumn, columns_of, number
from ..params import RealType
from ..settings import BrokerChoice

if TYPE_CHECKING:
    from ...core.admin import ReplicaSetStatus
    from ...sync.admin import Admin

POLL_S = 0.1
SET_COLUMNS = (
    TableColumn("replica_set", "set", style="bold"),
    TableColumn("primary", "primary", lambda member: member or "none"),
    number("epoch", "epoch", str),
    number("min_in_sync", "needs in sync"),
    number("end", "log ends at"),
    number("confirmed", "confirmed"),
    TableColumn("reason", "problem"),
)
MEMBER_COLUMNS = (
    *columns_of(SetMember, "member address"),
    TableColumn("role", "ROLE"),
    *columns_of(
        SetMember,
        "in_sync connected flushed behind_ms",
        in_sync=lambda is_so: "yes" if is_so else "no",
        connected=lambda is_so: "yes" if is_so else "no",
        flushed=lambda offset: f"{offset:,}" if offset >= 0 else "",
        behind_ms=lambda ms: show_seconds(ms / 1000) if ms >= 0 else "away",
    ),
)


@click.group(cls=CliGroup)
def replica() -> None:
    """Show and change the replica set of the broker.

    \b
        flintmq replica status
        flintmq replica switch b
        flintmq replica add d 10.0.0.4:10911
        flintmq replica remove c

    On a member's own machine, `flintmq-broker replica init` begins a set, and `flintmq-broker replica force` decides
    after a loss.
    """


@replica.command()
@pass_settings
def status(settings: BrokerChoice) -> None:
    """Show the primary, the members, and how far behind each is."""
    with settings.admin() as admin:
        found = _required(admin)
    rows = [
        {**asdict(each), "role": found.role if each.member == found.member else "follower"} for each in found.members
    ]
    if settings.output.mode == TABLE:
        settings.output.record(SET_COLUMNS, asdict(found))
    settings.output.rows(MEMBER_COLUMNS, rows)


def _required(admin: Admin) -> ReplicaSetStatus:
    found = admin.replica_status()
    if not found.replica_set:
        raise ConfigurationError("the broker is on its own: replication.set of its settings is empty")
    return found


@replica.command()
@click.argument("member")
@click.option(
    "--within",
    type=RealType(0.1, 600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Maximum time that MEMBER gets to have the whole log; if it is too slow, nothing changes.",
)
@pass_settings
def switch(settings: BrokerChoice, member: str, within: float) -> None:
    """Hand the leadership to MEMBER, which must be in sync. Clients follow by themselves."""
    with settings.admin() as admin:
        _required(admin)
        admin.switch_primary(member, within=within)
        end = time.monotonic() + within
        while admin.replica_status().primary != member:
            if time.monotonic() > end:
                raise RequestTimeout(f"{member} did not take over within {within:g} s; the primary continues to lead")
            time.sleep(POLL_S)
    note(settings, f"{member} leads")


@replica.command()
@click.argument("member")
@click.argument("address", metavar="HOST:PORT")
@pass_settings
def add(settings: BrokerChoice, member: str, address: str) -> None:
    """Add MEMBER, which listens at HOST:PORT. Start it afterwards, with an empty store: it copies everything."""
    with settings.admin() as admin:
        _required(admin)
        admin.add_member(member, address)
    note(settings, f"{member} is being added: start it, then see `flintmq replica status`")


@replica.command()
@click.argument("member")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_settings
def remove(settings: BrokerChoice, member: str, yes: bool) -> None:
    """Remove MEMBER from the set. It keeps its store, and can no longer lead."""
    if not yes:
        confirm(f"Remove {member} from the replica set?", "removes", "removed")
    with settings.admin() as admin:
        _required(admin)
        admin.remove_member(member)
    note(settings, f"{member} is being removed")
