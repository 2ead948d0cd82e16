"""Replica sets: REPLICATE and REPORT_POSITION of followers, and the administration of a set."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ...protocol import commands
from ...protocol.commands import (
    ChangeMembersRequest,
    EmptyAnswer,
    ReplicaStatusAnswer,
    ReplicateRequest,
    ReportPositionRequest,
    SwitchPrimaryRequest,
)
from ...protocol.errors import ConfigurationError, InvalidParameter, ReplicationRefused
from ...protocol.fields import decode_fields
from ...protocol.rows import pack_rows
from ..addresses import parse_address
from ..background.loop_work import called_back
from ..replication.core.messages import Hello, PositionReport
from ..replication.member.links import decode_epochs

if TYPE_CHECKING:
    from ...protocol.commands import Command
    from ..replication.member.replica_member import ReplicaMember
    from ..requests.request import Request
    from ..store import MessageStore


class FollowerConnection:
    """A follower's connection, as the member sees it."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def welcome(self, answer: Any, body: bytes) -> None:
        """Respond to REPLICATE."""
        self._request.respond(answer, body)

    def refuse(self, error: ReplicationRefused) -> None:
        """Respond to REPLICATE with an error."""
        self._request.fail(error)

    def tell(self, command: Command, request: Any, body: bytes | bytearray = b"") -> None:
        """Send a one-way frame."""
        self._request.peer.tell(command, request, body)

    def unsent_bytes(self) -> int:
        """Return how much of what it was told it has not taken."""
        return self._request.peer.unsent_bytes()

    def close(self) -> None:
        """Close the connection."""
        self._request.source.finish()


def _required(member: ReplicaMember | None) -> ReplicaMember:
    if member is None:
        raise ReplicationRefused("this broker is not a member of a replica set: replication.set is empty")
    return member


def replicate(request: Request, member: ReplicaMember | None, store: MessageStore) -> None:
    """Let a follower follow this member, if it is the primary."""
    params = decode_fields(ReplicateRequest, request.frame.fields)
    mine = _required(member)
    own_bytes = store.settings.commitlog_file_bytes
    if params.file_bytes != own_bytes:
        raise ReplicationRefused(
            f"store.commitlog_file_bytes of {params.member} is {params.file_bytes:,}, but {own_bytes:,} here: all "
            "members must have the same. Change the setting of a member whose store is empty"
        )
    epochs = decode_epochs(request.frame.body)
    hello = Hello(params.cluster_id, params.epoch, params.member, params.end, epochs)
    number = mine.accept(FollowerConnection(request), hello)
    request.peer.follower = number
    request.source.follow()
    request.peer.when_lost(lambda: mine.follower_lost(number))


def report_position(request: Request, member: ReplicaMember | None) -> None:
    """Take a follower's position."""
    params = decode_fields(ReportPositionRequest, request.frame.fields)
    if not request.peer.follower:
        raise InvalidParameter("REPORT_POSITION must follow a REPLICATE on the same connection")
    report = PositionReport(params.epoch, params.written, params.flushed, params.complete, params.stops)
    _required(member).reported(request.peer.follower, report, params.tables)


def get_replica_status(request: Request, member: ReplicaMember | None) -> None:
    """Return the set as this member sees it."""
    if member is None:
        request.respond(ReplicaStatusAnswer(), pack_rows([]))
        return
    status = member.status()
    answer = ReplicaStatusAnswer(
        set=member.identity.replica_set,
        member=member.identity.member,
        role=status.role,
        epoch=status.epoch,
        primary=status.primary,
        min_in_sync=status.min_in_sync,
        end=status.end,
        confirmed=status.confirmed,
        reason=status.reason,
    )
    request.respond(answer, pack_rows(status.rows))


def switch_primary(request: Request, member: ReplicaMember | None) -> None:
    """Begin to hand the leadership over."""
    params = decode_fields(SwitchPrimaryRequest, request.frame.fields)
    reason = _required(member).switch(params.member, params.within_ms / 1000)
    if reason is not None:
        raise ReplicationRefused(reason)
    request.respond(EmptyAnswer())
    request.audit(commands.SWITCH_PRIMARY, f"primary {params.member}")


async def change_members(request: Request, member: ReplicaMember | None) -> None:
    """Add a member, or remove one."""
    params = decode_fields(ChangeMembersRequest, request.frame.fields)
    if params.address:
        try:
            parse_address(params.address)
        except (ConfigurationError, ValueError) as error:
            raise InvalidParameter(f"address of member {params.member}: {error}") from error

    mine = _required(member)
    request.deferred.check_may_wait()
    members = mine.change_members(params.member, params.address)
    await called_back(partial(mine.when_changed, members))
    request.respond(EmptyAnswer())
    request.audit(commands.CHANGE_MEMBERS, f"member {params.member}", None, params.address or None)
