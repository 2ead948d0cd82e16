"""Replica sets: the stream from a primary to its followers, and the administration of a set."""

from __future__ import annotations

from dataclasses import dataclass

from ..fields import I64_MAX, boolean, integer, text
from .common import EmptyAnswer, EmptyRequest
from .table import Command

MEMBER_MAX = 64
"""Maximum length of a member's id."""
CLUSTER_ID_MAX = 64
ADDRESS_MAX = 300
EPOCHS_MAX = 100_000
"""Maximum number of epochs in the body of REPLICATE or of its response."""
TABLE_BYTES_MAX = 256 * 1024 * 1024
"""Maximum size of a table in the stream, all its parts together."""


@dataclass(slots=True)
class ReplicateRequest:
    """Follow this broker. Body: one msgpack array of the epochs in the follower's log, `[number, physical offset]`
    each, oldest first. The broker then sends REPLICATE_TABLE and REPLICATE_LOG on the connection."""

    cluster_id: str = text("identity of the set; empty: the store never was in one", CLUSTER_ID_MAX)
    epoch: int = integer("epoch that the follower knows")
    member: str = text("the follower's id", MEMBER_MAX, 1)
    end: int = integer("physical offset at which its log ends")
    file_bytes: int = integer("size of its log's files, which must be the primary's", 0, I64_MAX)


@dataclass(slots=True)
class ReplicateAnswer:
    """Where the follower must cut its log. Body: the primary's epochs, as in the request."""

    epoch: int = integer("the primary's epoch")
    begin: int = integer("physical offset at which the stream begins: the follower's log must end there")
    restart: bool = boolean("whether the follower must begin an empty log there", False)


@dataclass(slots=True)
class ReplicateLogRequest:
    """Part of the log, for a follower. Body: whole records, the bytes from `offset` to `end`; without a body it says
    only how far the log is confirmed."""

    epoch: int = integer("the primary's epoch")
    offset: int = integer("physical offset of the first byte")
    end: int = integer("physical offset after the last byte")
    confirmed: int = integer("physical offset below which all members in sync have the log on disk")


@dataclass(slots=True)
class ReplicateTableRequest:
    """Part of a table that is not in the log, for a follower. Body: the next bytes of the table in JSON."""

    epoch: int = integer("the primary's epoch")
    table: str = text("name of the table", 64, 1)
    version: int = integer("number of this version on the connection; grows from table to table")
    last: bool = boolean("whether the table is complete with this part", True)


@dataclass(slots=True)
class ReportPositionRequest:
    """A follower's position, for its primary."""

    epoch: int = integer("the follower's epoch")
    written: int = integer("physical offset at which its log ends")
    flushed: int = integer("physical offset below which its log is on disk")
    complete: bool = boolean("whether its log lacks nothing that was acknowledged when it was last in sync")
    tables: int = integer("`version` of a REPLICATE_TABLE that is on its disk with all before it", 0, I64_MAX, 0)
    stops: bool = boolean("whether it is about to stop, and should leave the members in sync before", False)


@dataclass(slots=True)
class ReplicaStatusAnswer:
    """The broker's replica set, as this member sees it. Body: one msgpack array with a row for each member, in the
    order of their ids: `[id, address, in_sync, connected, flushed, behind_ms]`. `flushed` is the physical offset below
    which its log is on disk, `behind_ms` the time since it had everything; only a primary knows both, and a follower
    says -1."""

    set: str = text("name of the set; empty: the broker is on its own", 256, default="")
    member: str = text("id of this member", MEMBER_MAX, default="")
    role: str = text("`primary`, `elected`, `follower` or `stopped`; empty: the broker is on its own", 16, default="")
    epoch: int = integer("number of the leadership", 0, I64_MAX, 0)
    primary: str = text("id of the primary, or empty", MEMBER_MAX, default="")
    min_in_sync: int = integer("members that must have a message on disk to acknowledge it", 0, I64_MAX, 0)
    end: int = integer("physical offset at which this member's log ends", 0, I64_MAX, 0)
    confirmed: int = integer("physical offset below which it is confirmed", 0, I64_MAX, 0)
    reason: str = text("why this member takes no part, or why the primary refuses it", 4096, default="")


@dataclass(slots=True)
class SwitchPrimaryRequest:
    """Hand the leadership to another member in sync. The response says that this has begun."""

    member: str = text("id of the member that is to lead", MEMBER_MAX, 1)
    within_ms: int = integer("time within which it must have the whole log, or nothing changes", 1, 600_000, 10_000)


@dataclass(slots=True)
class ChangeMembersRequest:
    """Add a member to the set, or remove one. The response says that the change was proposed to the registry."""

    member: str = text("id of the member", MEMBER_MAX, 1)
    address: str = text("HOST:PORT of a member to add; empty: remove the member", ADDRESS_MAX, default="")


REPLICATE = Command("REPLICATE", 1030, ReplicateRequest, ReplicateAnswer)
REPLICATE_LOG = Command("REPLICATE_LOG", 1031, ReplicateLogRequest, EmptyAnswer, one_way=True, from_broker=True)
REPLICATE_TABLE = Command("REPLICATE_TABLE", 1032, ReplicateTableRequest, EmptyAnswer, one_way=True, from_broker=True)
REPORT_POSITION = Command("REPORT_POSITION", 1033, ReportPositionRequest, EmptyAnswer, one_way=True)
GET_REPLICA_STATUS = Command("GET_REPLICA_STATUS", 1034, EmptyRequest, ReplicaStatusAnswer)
SWITCH_PRIMARY = Command("SWITCH_PRIMARY", 1035, SwitchPrimaryRequest, EmptyAnswer)
CHANGE_MEMBERS = Command("CHANGE_MEMBERS", 1036, ChangeMembersRequest, EmptyAnswer)
