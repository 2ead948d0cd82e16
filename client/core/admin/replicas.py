"""The replica set that the broker is a member of."""

from __future__ import annotations

from dataclasses import dataclass

from ....protocol import commands
from ....protocol.commands import ReplicaStatusAnswer
from ....protocol.fields import decode_fields
from ....protocol.times import duration_millis
from ..rpc.operation import Operation, nothing, operation, unpack_rows
from ..rpc.session import Answer
from ..rpc.timeouts import check_timeout

SWITCH_S = 10.0


@dataclass(frozen=True, slots=True)
class SetMember:
    """One member of a replica set. ``flushed``: physical offset below which its log is on disk; ``behind_ms``: time
    since it had the whole log. Only a primary knows both; otherwise they are -1."""

    member: str
    address: str
    in_sync: bool
    connected: bool
    flushed: int
    behind_ms: int


@dataclass(frozen=True, slots=True)
class ReplicaSetStatus:
    """A replica set, as the ``member`` that answered sees it; ``replica_set`` is empty if the broker is on its own.

    ``role``: ``primary``, ``elected`` (it does not serve yet), ``follower`` or ``stopped``; ``epoch``: number of the
    leadership; ``primary``: id of the primary, or an empty string; ``min_in_sync``: members that must have a
    message on disk before it is acknowledged; ``end`` and ``confirmed``: physical offsets at which the member's log
    ends, and below which it is confirmed; ``reason``: why the member takes no part, or why the primary refuses it.
    """

    replica_set: str
    member: str
    role: str
    epoch: int
    primary: str
    min_in_sync: int
    end: int
    confirmed: int
    reason: str
    members: list[SetMember]


def replica_status(*, timeout: float | None = None) -> Operation[ReplicaSetStatus]:
    """Return the broker's replica set. Needs ``query`` on the broker."""

    def decode(answer: Answer) -> ReplicaSetStatus:
        found = decode_fields(ReplicaStatusAnswer, answer.fields)
        return ReplicaSetStatus(
            replica_set=found.set,
            member=found.member,
            role=found.role,
            epoch=found.epoch,
            primary=found.primary,
            min_in_sync=found.min_in_sync,
            end=found.end,
            confirmed=found.confirmed,
            reason=found.reason,
            members=[SetMember(*row) for row in unpack_rows(answer, "members")],
        )

    return operation(commands.GET_REPLICA_STATUS, decode, timeout=timeout)


def switch_primary(member: str, *, within: float = SWITCH_S, timeout: float | None = None) -> Operation[None]:
    """Hand the leadership to a member in sync, which must have the whole log ``within`` seconds; else nothing changes.

    Returns when this has begun. Raises ``ReplicationRefused`` if that member cannot lead. Needs ``admin`` on the
    broker.
    """
    return operation(
        commands.SWITCH_PRIMARY,
        nothing,
        timeout=timeout,
        member=member,
        within_ms=duration_millis(check_timeout("within", within)),
    )


def add_member(member: str, address: str, *, timeout: float | None = None) -> Operation[None]:
    """Add a member that listens at ``address``, HOST:PORT; it copies the log when it is started with an empty store.

    Returns when the registry has it. Raises ``ReplicationRefused``, for instance while another change is being made.
    Needs ``admin`` on the broker.
    """
    return operation(commands.CHANGE_MEMBERS, nothing, timeout=timeout, member=member, address=address)


def remove_member(member: str, *, timeout: float | None = None) -> Operation[None]:
    """Remove a member, which is not the primary, from the set.

    Returns when the registry has it. Raises ``ReplicationRefused``, for instance if too few members in sync would be
    left. Needs ``admin`` on the broker.
    """
    return operation(commands.CHANGE_MEMBERS, nothing, timeout=timeout, member=member)
