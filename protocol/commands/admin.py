"""Topics, settings and statistics of the broker."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..auth import rules
from ..auth.permissions import ADMIN, PUBLISH, QUERY, Grant, Permissions
from ..fields import I32_MAX, I64_MAX, boolean, integer, text
from ..rows import ValueKind, array_row, column, row, shown
from ..storage.layout import TOPIC_BYTES_MAX
from ..times import from_millis
from .common import QUEUES_MAX, Audit, Command, EmptyRequest, RowCommand, RowsCommand, ServedBy

QUEUE_STATS_STRUCT = struct.Struct(">iqqq")
"""Queue, its min offset, its max offset and the store time of its last message (ms, -1: the queue is empty)."""
TOPICS_STATS_MAX = 1000
"""Maximum number of topics in one GET_TOPICS_STATS response."""
QUARANTINE_MAX = 1000
"""Maximum number of entries in one GET_QUARANTINE response."""
QUARANTINE_LOST_MAX = 20
"""Maximum number of ranges of lost messages in one entry: a full page stays below the default frame limit."""
EMPTY_QUEUE_MS = -1
"""Store time of the last message of an empty queue or topic."""
SettingValue = int | str | bool
SETTINGS_MAX = 100
"""Maximum number of settings that one UPDATE_BROKER_CONFIG changes."""


@dataclass(slots=True)
class UpdateAndCreateTopicRequest:
    """Create a topic, or change an existing one. Queues can be added but not removed."""

    topic: str = text("topic", TOPIC_BYTES_MAX, 1)
    read_queues: int = integer("number of readable queues", 1, QUEUES_MAX, 4)
    write_queues: int = integer("number of writable queues", 1, QUEUES_MAX, 4)
    perm: int = integer("4 read + 2 write", 0, 7, 6)
    order: bool = boolean("stored for RocketMQ's tools; no effect", False)
    retention_hours: int = integer(
        "how long to keep messages; 0: as long as the log, -1: for ever, -2: unchanged", -2, 876_000, -2
    )
    retention_bytes: int = integer(
        "keep at most this many bytes of the newest records; 0: no limit, -1: unchanged", -1, I64_MAX, -1
    )


@dataclass(slots=True)
class TopicRequest:
    """Query or delete one topic."""

    topic: str = text("topic", 32767, 1)


@row
class TopicInfo:
    """A topic's configuration."""

    topic: str = column("name of the topic", "topic", ValueKind.NAME, fold=True)
    read_queues: int = column("number of readable queues", "read queues", ValueKind.COUNT)
    write_queues: int = column("number of writable queues", "write queues", ValueKind.COUNT)
    perm: int = column("4 readable + 2 writable", default=6)
    order: bool = column("stored for RocketMQ's tools; no effect", default=False)
    system: bool = column("whether the topic belongs to the broker itself", default=False)
    retention_hours: int = column(
        "how long its messages are kept; 0: as long as the broker keeps its log, -1: forever", default=0
    )
    retention_bytes: int = column("maximum bytes of its records, the newest are kept; 0: no limit", default=0)

    @property
    def name(self) -> str:
        """The same as ``topic``."""
        return self.topic

    @property
    def queues(self) -> int:
        """Queues that can be read."""
        return self.read_queues


@dataclass(slots=True)
class TopicStatsAnswer:
    """Body: count × (i32 queue, i64 min offset, i64 max offset, i64 store time of the last message, ms or -1)."""

    count: int = integer("number of queues in the body")


@array_row
class QueueStats:
    """The contents of one queue: offsets in ``[min_offset, max_offset)``."""

    queue: int = column("queue of the topic", "queue", ValueKind.TEXT)
    min_offset: int = column("offset of its first message", "first offset", ValueKind.COUNT)
    max_offset: int = column("offset of its next message", "next offset", ValueKind.COUNT)
    last_stored_ms: int = column("store time of its last message in ms since 1970 UTC, -1 if the queue is empty")

    @property
    @shown("messages", ValueKind.COUNT)
    def count(self) -> int:
        """Number of messages in the queue."""
        return self.max_offset - self.min_offset

    @property
    @shown("last stored", ValueKind.SECOND, spare=True)
    def last_stored_at(self) -> datetime | None:
        """Store time of its last message, None if the queue is empty."""
        return from_millis(self.last_stored_ms) if self.last_stored_ms != EMPTY_QUEUE_MS else None


@row
class ReadingGroup:
    """A group that reads a topic, and the messages that it has still to read."""

    group: str = column("name of the group", "group", ValueKind.NAME, fold=True)
    members: int = column("number of its live members; a work group has none", "members", ValueKind.COUNT)
    lag: int = column("number of messages still to read; an upper bound if not `known`", "lag", ValueKind.COUNT)
    known: bool = column("False if it is not known where the group begins with a queue")


@row
class TopicView:
    """One topic: its configuration, its contents, its traffic since the broker started, and who reads it."""

    topic: str = column("name of the topic")
    read_queues: int = column("number of readable queues")
    write_queues: int = column("number of writable queues")
    perm: int = column("4 readable + 2 writable")
    retention_hours: int = column("how long its messages are kept; 0: as long as the broker keeps its log, -1: forever")
    retention_bytes: int = column("maximum bytes of its records, the newest are kept; 0: no limit")
    log_bytes: int = column("size of the CommitLog from its oldest message on, with the messages of all topics")
    produced_messages: int = column("number of messages received since the broker started")
    pulled_messages: int = column("number of messages sent to clients since the broker started")
    queues: Sequence[QueueStats] = column("its queues", of=QueueStats)
    groups: Sequence[ReadingGroup] = column("groups that read it and that the user may query", of=ReadingGroup)

    @property
    def messages(self) -> int:
        """Number of messages in its queues."""
        return sum(queue.count for queue in self.queues)

    @property
    def last_stored_at(self) -> datetime | None:
        """Store time of its newest message, None if it is empty."""
        return max((queue.last_stored_at for queue in self.queues if queue.last_stored_at), default=None)


@dataclass(slots=True)
class GetTopicsStatsRequest:
    """Get the figures of many topics, in ascending order of their names."""

    after: str = text("name after which to begin, such as the last one of the previous response", 32767, default="")
    max_count: int = integer(
        "maximum number of rows in the response; fewer: there are no more", 1, TOPICS_STATS_MAX, TOPICS_STATS_MAX
    )


@array_row
class TopicTotals:
    """The figures of one topic over all of its queues.

    The last four count what PRODUCE requests and PULL responses have carried since the broker started.
    """

    topic: str = column("name of the topic", "topic", ValueKind.NAME, fold=True)
    queues: int = column("number of queues; 0: the topic is being deleted")
    messages: int = column("number of messages that it holds", "messages", ValueKind.COUNT)
    max_offsets: int = column("sum of the queues' max offsets, which grows by one with each message")
    last_stored_ms: int = column("store time of its newest message in ms since 1970 UTC, -1 if it is empty")
    produced_messages: int = column("number of messages received")
    produced_bytes: int = column("bytes of their bodies")
    pulled_messages: int = column("number of messages sent to clients")
    pulled_bytes: int = column("bytes of their bodies")

    @property
    @shown("last stored", ValueKind.SECOND, spare=True)
    def last_stored_at(self) -> datetime | None:
        """Store time of its newest message, None if the topic is empty."""
        return from_millis(self.last_stored_ms) if self.last_stored_ms != EMPTY_QUEUE_MS else None


@dataclass(slots=True)
class UpdateBrokerConfigRequest:
    """Change settings of a running broker, either all of them or none. Body: one msgpack map of setting names to
    values; a value may also be a string as on the command line."""

    count: int = integer("number of settings in the body", 1, SETTINGS_MAX)


@array_row
class ChangedSetting:
    """A setting that was changed; it returns to its configured value when the broker restarts."""

    name: str = column("SECTION.NAME", "setting")
    before: SettingValue = column("the value before", "before", fold=True)
    after: SettingValue = column("the value from now on", "now", fold=True)


@row
class Setting:
    """One setting of the broker."""

    name: str = column("SECTION.NAME", "setting")
    value: SettingValue = column("the current value", "value", fold=True)
    at_start: SettingValue = column("the value at the broker's start", "at start", fold=True)
    hot: bool = column("whether it can be changed while the broker runs", "can be set", ValueKind.FLAG)
    rule: str = column("its valid values", "must be")


@dataclass(slots=True)
class GetDelayStatsRequest:
    """Count the messages that wait for a later delivery."""

    max_hours: int = integer("maximum number of hours in the response; the last sums up the rest", 1, 10_000, 24)


@dataclass(slots=True)
class DelayStatsAnswer:
    """Body: one msgpack map `{levels, hours}`. `levels` is an array of `[level, messages, next_due_ms]`, for each level
    that ever had a message. `hours` is an array of `[begins_ms, messages, next_due_ms]` that counts timed messages by
    the hour in which they are due; the last row covers all later hours. A time of 0: nothing is due."""

    levels: int = integer("number of messages that wait in delay levels")
    timed: int = integer("number of timed messages that wait")
    parked: int = integer("number of undeliverable messages in rmq_sys_flintmq_parked")
    behind: int = integer("timed messages not counted yet: just stored, or older than the last start", default=0)


@dataclass(slots=True)
class GetQuarantineRequest:
    """List the quarantine: the damaged ranges (holes) that the broker found in its CommitLog, by physical offset; those
    with the same one by the time at which they were found."""

    after: int = integer("physical offset of the entry after which to begin; −1: with the first one", -1, I64_MAX, -1)
    after_found_ms: int = integer(
        "`found_ms` of that entry, which matters if others have the same physical offset", 0, I64_MAX, I64_MAX
    )
    max_count: int = integer(
        "maximum number of rows in the response; fewer: there are no more", 1, QUARANTINE_MAX, QUARANTINE_MAX
    )


@array_row
class LostOffsets:
    """Consecutive lost messages of a queue."""

    topic: str = column("name of the topic")
    queue: int = column("queue of the topic")
    queue_offset: int = column("queue offset of the first of them")
    messages: int = column("their number")


@array_row
class QuarantineEntry:
    """A damaged range of the broker's log.

    Its messages were stored at about ``stored_ms``. Damage that hits a range again makes another entry, which lists the
    messages again.
    """

    physical_offset: int = column("physical offset of its first byte", "offset", ValueKind.COUNT)
    bytes: int = column("its length", "size", ValueKind.BYTES)
    reason: str = column("what was wrong at its beginning", "damage", fold=True)
    found_ms: int = column("when the broker found it, ms since 1970 UTC")
    stored_ms: int = column(
        "store time of the record before it, or of the one after it if none precedes it, ms since 1970 UTC; 0: unknown"
    )
    file: str = column(
        "name of the file with the damaged bytes, in `flintmq/quarantine/` of the store", "kept in", spare=True
    )
    lost_messages: int = column(
        "number of messages that are known to have been in it; 0: none is known", "lost", ValueKind.COUNT
    )
    lost_left_out: int = column("number of ranges that `lost` leaves out")
    lost: list[LostOffsets] = column(
        f"at most {QUARANTINE_LOST_MAX} ranges of lost messages", "queue offsets", fold=True, of=LostOffsets
    )

    @property
    @shown("found", ValueKind.SECOND)
    def found_at(self) -> datetime:
        """Time at which the broker found the damage."""
        return from_millis(self.found_ms)

    @property
    @shown("stored about", ValueKind.SECOND, spare=True)
    def stored_at(self) -> datetime | None:
        """Time at about which its messages were stored, None if that is unknown."""
        return from_millis(self.stored_ms) if self.stored_ms else None


@dataclass(slots=True)
class RuntimeInfoAnswer:
    """No fields. Body: one msgpack map, str to int, float, str or bool; ``RUNTIME_INFO`` lists the keys."""


RUNTIME_INFO: dict[str, str] = {
    "name": "the broker's name",
    "version": "the broker's release",
    "pid": "process id",
    "uptime_seconds": "time since the start of the process",
    "recovery_seconds": "time that opening the store took",
    "rss_bytes": "resident memory of the process, mapped files included",
    "mapped_bytes": "part of it that is mapped files: page cache, which the system reclaims when it needs memory",
    "store_path": "the store's folder on the broker's machine",
    "flush": "`sync` or `async`: the weakest guarantee of an acknowledgement",
    "min_physical_offset": "physical offset of the first byte of the CommitLog",
    "write_offset": "physical offset at which the next record begins",
    "flushed_offset": "the CommitLog is on disk up to here",
    "reput_offset": "all records up to here are in queues and index",
    "checkpoint_offset": "queues and index are on disk up to here: a start after a crash dispatches the rest again",
    "flush_behind_ms": "how long the oldest byte above `flushed_offset` has waited; 0: less than a second",
    "reput_behind_ms": "the same above `reput_offset`",
    "checkpoint_behind_ms": "the same above `checkpoint_offset`",
    "index_behind_bytes": "CommitLog bytes that are not yet in queues and index",
    "commitlog_files": "number of CommitLog files",
    "index_files": "number of IndexFiles",
    "quarantined_holes": "number of damaged ranges of the CommitLog; GET_QUARANTINE lists them",
    "quarantined_bytes": "CommitLog bytes in them",
    "lost_messages": "messages known to have been in them; consumers skip these",
    "flush_p50_us": "median duration of the last minute's flushes in µs; 0: there was none",
    "flush_p99_us": "99th percentile of the same",
    "disk_free_bytes": "space left for the broker on the store's file system",
    "disk_total_bytes": "size of the file system, without the part reserved for root",
    "disk_room_bytes": "bytes that can be written before the broker refuses messages",
    "disk_runway_seconds": "how long that lasts at the rate of the last minute; −1: nothing is written",
    "write_refusal": "why the broker refuses messages at the moment; empty: it accepts them",
    "expiry_next_file": "CommitLog file that retention deletes next; empty: there is only the last one, or the primary "
    "decides",
    "expiry_next_ms": "when, if the disk stays as it is, in ms since 1970 UTC; −1: unknown, its messages keep it",
    "expiry_next_reason": "why then, or why it stays, in words; as of the last half a minute, as are the two before it",
    "metrics_address": "HOST:PORT of the metrics over HTTP; empty: they are off",
    "topics": "number of topics, the broker's own included",
    "known_groups": "number of consumer groups, with or without live members",
    "groups": "number of consumer groups with live members",
    "group_members": "number of live members in all groups",
    "group_rebalances": "number of rebalances since the start",
    "retried_messages": "messages that groups sent back for another attempt, since the start",
    "dead_messages": "messages that became dead letters, since the start",
    "offsets_moved": "how often a group's offset was moved because retention had deleted its next messages",
    "connections": "open connections",
    "connections_accepted": "connections accepted since the start",
    "connections_refused": "connections refused since the start because a connection limit was reached",
    "held_pulls": "pulls that wait for messages",
    "in_flight_bytes": "received bytes whose requests are not finished",
    "produces": "PRODUCE frames since the start",
    "produced_messages": "messages in them",
    "produced_bytes": "bytes of their bodies",
    "pulls": "PULL responses since the start",
    "pulled_messages": "records in them",
    "pulled_bytes": "bytes of their bodies",
    "one_way_errors": "one-way frames since the start that the broker could not serve",
    "withheld": "why the user may not see the rest, and how to grant that right; empty: this is everything",
}
"""Keys of the map in a GET_BROKER_RUNTIME_INFO response. The map also has ``errors_NAME`` for each result that
occurred: the number of responses with that result since the start. Names are added, never changed."""


GET_DELAY_STATS = Command(
    1011, GetDelayStatsRequest, "what waits to be delivered later", rules.broker(QUERY), answer=DelayStatsAnswer
)
GET_TOPICS_STATS = RowsCommand(
    1012, GetTopicsStatsRequest, "the figures of many topics", rules.anybody, ServedBy.READERS, rows=TopicTotals
)
TOPIC_SHOW = RowCommand(
    1018, TopicRequest, "one topic with its queues and its groups", rules.topic(QUERY), row=TopicView
)
GET_QUARANTINE = RowsCommand(
    1015,
    GetQuarantineRequest,
    "damaged ranges of the log, and the lost messages",
    rules.broker(QUERY),
    ServedBy.ALL,
    rows=QuarantineEntry,
)
UPDATE_AND_CREATE_TOPIC = Command(
    17, UpdateAndCreateTopicRequest, "create a topic or change one", rules.topic(ADMIN), audit=Audit.ALWAYS
)
GET_ALL_TOPIC_CONFIG = RowsCommand(21, EmptyRequest, "list the topics", rules.anybody, ServedBy.READERS, rows=TopicInfo)
UPDATE_BROKER_CONFIG = RowsCommand(
    25,
    UpdateBrokerConfigRequest,
    "change settings while the broker runs",
    rules.broker(ADMIN),
    ServedBy.ALL,
    audit=Audit.ALWAYS,
    rows=ChangedSetting,
)
GET_BROKER_CONFIG = RowsCommand(
    26, EmptyRequest, "list the settings", rules.broker(QUERY), ServedBy.ALL, audit=Audit.ALWAYS, rows=Setting
)
GET_BROKER_RUNTIME_INFO = Command(
    28, EmptyRequest, "how the broker is", rules.anybody, ServedBy.ALL, answer=RuntimeInfoAnswer
)
GET_TOPIC_STATS_INFO = Command(
    202,
    TopicRequest,
    "both ends of all queues of a topic",
    rules.topic(QUERY, PUBLISH, ADMIN),
    ServedBy.READERS,
    answer=TopicStatsAnswer,
)
DELETE_TOPIC_IN_BROKER = Command(215, TopicRequest, "delete a topic", rules.topic(ADMIN), audit=Audit.ALWAYS)


# ---- Replica sets: the stream from a primary to its followers, and the administration of a set.

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


@array_row
class SetMember:
    """One member of a replica set, as another one sees it. Only a primary knows the last two; others say -1."""

    member: str = column("id of the member", "member")
    address: str = column("HOST:PORT at which it listens", "address", fold=True)
    in_sync: bool = column("whether it is in sync", "in sync", ValueKind.FLAG)
    connected: bool = column("whether it follows at the moment", "connected", ValueKind.FLAG, spare=True)
    flushed: int = column("physical offset below which its log is on disk", "on disk", ValueKind.COUNT)
    behind_ms: int = column(
        "time since it had the whole log; negative: it is not connected", "behind", ValueKind.NUMBER
    )


@dataclass(slots=True)
class ReplicaStatusAnswer:
    """The broker's replica set, as this member sees it. The body has the members, in the order of their ids."""

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


REPLICATE = Command(
    1030,
    ReplicateRequest,
    "follow the primary of a replica set",
    rules.broker(ADMIN),
    ServedBy.ALL,
    answer=ReplicateAnswer,
)
REPLICATE_LOG = Command(
    1031, ReplicateLogRequest, "from the primary: a part of its log", rules.anybody, one_way=True, from_broker=True
)
REPLICATE_TABLE = Command(
    1032,
    ReplicateTableRequest,
    "from the primary: a table that is not in the log",
    rules.anybody,
    one_way=True,
    from_broker=True,
)
REPORT_POSITION = Command(
    1033, ReportPositionRequest, "how far a follower is", rules.broker(ADMIN), ServedBy.ALL, one_way=True
)
GET_REPLICA_STATUS = RowsCommand(
    1034,
    EmptyRequest,
    "a replica set, its members, and how far each is",
    rules.broker(QUERY),
    ServedBy.ALL,
    answer=ReplicaStatusAnswer,
    rows=SetMember,
)
SWITCH_PRIMARY = Command(
    1035, SwitchPrimaryRequest, "hand the leadership of a replica set over", rules.broker(ADMIN), audit=Audit.ALWAYS
)
CHANGE_MEMBERS = Command(
    1036, ChangeMembersRequest, "add a member to a replica set, or remove one", rules.broker(ADMIN), audit=Audit.ALWAYS
)


# ---- Users of the broker; only for administrators.

USER_CHARS_MAX = 64
USER_BODY_BYTES_MAX = 1024 * 1024
"""Maximum body size of a request that creates or changes a user."""


@dataclass(slots=True)
class CreateUserRequest:
    """Add a user to the broker's store. Body: one msgpack map `{scram, grants}`: a salted verifier as in `users.json`,
    so that the broker never sees the password, and the user's grants."""

    user: str = text("name of the user", USER_CHARS_MAX, 1)


@dataclass(slots=True)
class UpdateUserRequest:
    """Change a user. Body: one msgpack map with any of `scram` (a new password), `revoke` (an array of grants, or
    nil: all), `grant` (an array of grants), `remove_access_key` (the name of one) and `access_key` (a new one, a map
    `{key, secret, created_ms}` for clients of RocketMQ). The broker changes these in this order."""

    user: str = text("name of the user", USER_CHARS_MAX, 1)


@dataclass(slots=True)
class DeleteUserRequest:
    """Remove a user and all its grants."""

    user: str = text("name of the user", USER_CHARS_MAX, 1)


@dataclass(slots=True)
class ListUsersRequest:
    """List users, their grants and the names of their access keys, sorted by name."""

    user: str = text("name of the user; empty: all", USER_CHARS_MAX, default="")


@row
class AccessKeyInfo:
    """One access key of a user, without its secret."""

    key: str = column("the access key", "access key")
    created_ms: int = column("when it was added, ms since 1970 UTC")

    @property
    @shown("created", ValueKind.SECOND)
    def created_at(self) -> datetime:
        """Time at which it was added."""
        return from_millis(self.created_ms)


def _packed_grants(grants: Sequence[Grant]) -> list[dict[str, Any]]:
    return [grant.as_json() for grant in grants]


def _grants(packed: Any) -> Sequence[Grant]:
    return Permissions.parse(packed, "in the response").grants


@row
class UserInfo:
    """One user, its grants, and its access keys for RocketMQ's clients."""

    user: str = column("name of the user", "user")
    grants: Sequence[Grant] = column("its grants, as in `users.json`", encode=_packed_grants, decode=_grants)
    access_keys: Sequence[AccessKeyInfo] = column("its access keys", of=AccessKeyInfo, default=())


AUTH_CREATE_USER = Command(3001, CreateUserRequest, "adds a user", rules.broker(ADMIN), audit=Audit.ALWAYS)
AUTH_UPDATE_USER = Command(
    3002, UpdateUserRequest, "gives a user another password or other grants", rules.broker(ADMIN), audit=Audit.ALWAYS
)
AUTH_DELETE_USER = Command(3003, DeleteUserRequest, "removes a user", rules.broker(ADMIN), audit=Audit.ALWAYS)
AUTH_LIST_USER = RowsCommand(
    3005,
    ListUsersRequest,
    "who may connect, and what each may do",
    rules.broker(ADMIN),
    ServedBy.ALL,
    audit=Audit.ALWAYS,
    rows=UserInfo,
)


# ---- The first requests of a connection: HELLO and AUTH.

PROTOCOL_VERSION = 1
READ_FROM_ANY = "any"
"""Value of HELLO's ``read_from``."""


@dataclass(slots=True)
class HelloRequest:
    """The first request of every connection."""

    protocol: int = integer("version of this protocol that the client speaks", 1, I32_MAX)
    client: str = text("name of the client, for logs and lists", 256, default="")
    read_from: str = text(
        "`any`: a follower of a replica set may answer reads on this connection; else only the primary does",
        16,
        default="",
    )


@dataclass(slots=True)
class HelloAnswer:
    """The broker's name, release, limits and authentication mechanisms."""

    protocol: int = integer("protocol version of this connection from now on")
    broker: str = text("the broker's name", 256)
    version: str = text("the broker's release", 64)
    flush: str = text("`sync` or `async`: the weakest guarantee of an acknowledgement", 8)
    frame_bytes_max: int = integer("largest frame in either direction")
    produce_frame_bytes_max: int = integer("largest PRODUCE frame")
    message_bytes_max: int = integer("largest stored record of a produced message")
    auto_create_queues: int = integer(
        "number of queues of a topic that its first message creates; 0: topics are not created", 0, QUEUES_MAX, 4
    )
    auth_required: bool = boolean("whether the client must authenticate before any other request", False)
    auth: str = text("mechanisms of AUTH, separated by spaces; empty: the broker does not serve AUTH", 256, default="")
    role: str = text("`primary` or `follower` in a replica set, empty for a broker on its own", 16, default="")
    primary: str = text(
        "HOST:PORT of the set's primary; empty outside of a set, or while no member leads", 300, default=""
    )


@dataclass(slots=True)
class AuthRequest:
    """Authenticate: one request carries the client's first message, a second one its proof. The broker closes the
    connection if either fails."""

    message: str = text("the client's message, in the mechanism's format", 1024, 1)
    mechanism: str = text("with the first message: `SCRAM-SHA-256`", 64, default="")


@dataclass(slots=True)
class AuthAnswer:
    """The broker's message of the exchange. Its second one proves that the broker has the user's verifier."""

    message: str = text("the broker's message, in the mechanism's format", 1024)
    done: bool = boolean("whether the connection is authenticated now", False)


CONNECTIONS_MAX = 1000
"""Maximum number of connections in one GET_CONNECTIONS response."""


@dataclass(slots=True)
class GetConnectionsRequest:
    """List the open connections, in the order in which they were opened."""

    after: int = integer("id after which to begin, such as the last one of the previous response", 0, I64_MAX, 0)
    max_count: int = integer(
        "maximum number of rows in the response; fewer: there are no more", 1, CONNECTIONS_MAX, CONNECTIONS_MAX
    )


@array_row
class ConnectionInfo:
    """An open connection."""

    id: int = column("its number since the start of the broker", "ID", ValueKind.COUNT)
    host: str = column("the client's address")
    port: int = column("the client's port")
    user: str = column("name of the user; empty if the broker has no users", "user")
    client: str = column("name with which the client introduced itself, or empty", "client", fold=True)
    opened_ms: int = column("when it was opened, ms since 1970 UTC")
    idle_ms: int = column("for how long nothing has arrived and no request has been waiting, to about a second")
    frames_in: int = column("frames received since it was opened", "frames in", ValueKind.COUNT)
    bytes_in: int = column("bytes received, counted without TLS", "in", ValueKind.BYTES)
    bytes_out: int = column("bytes sent, counted without TLS", "out", ValueKind.BYTES)
    held_pulls: int = column("number of pulls that wait for messages", "held pulls", ValueKind.COUNT)
    tls: bool = column("whether it is encrypted", "TLS", ValueKind.FLAG)

    @property
    @shown("address")
    def address(self) -> str:
        """Address and port of the client."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    @shown("since", ValueKind.SECOND, spare=True)
    def opened_at(self) -> datetime:
        """Time at which it was opened."""
        return from_millis(self.opened_ms)

    @property
    @shown("idle", ValueKind.SECONDS)
    def idle_seconds(self) -> float:
        """Seconds for which nothing has arrived and no request has been waiting."""
        return self.idle_ms / 1000


@dataclass(slots=True)
class CloseConnectionRequest:
    """Close a connection. Its client is told why, and may connect again."""

    connection: int = integer("`id` of GET_CONNECTIONS", 0, I64_MAX)
    opened_ms: int = integer(
        "its `opened_ms`, because a broker that restarts begins to count again; -1: not compared", -1, I64_MAX, -1
    )


@dataclass(slots=True)
class RightsAnswer:
    """Body: one msgpack array of the user's grants, as in AUTH_CREATE_USER."""

    user: str = text("name of the user; empty: the broker has no users, and every client may do all", USER_CHARS_MAX)
    count: int = integer("number of grants in the body")


HELLO = Command(1000, HelloRequest, "open a connection", rules.anybody, ServedBy.ALL, answer=HelloAnswer)
AUTH = Command(1001, AuthRequest, "say who is calling, and prove it", rules.anybody, ServedBy.ALL, answer=AuthAnswer)
GET_CONNECTIONS = RowsCommand(
    1013, GetConnectionsRequest, "who is connected", rules.broker(QUERY), ServedBy.ALL, rows=ConnectionInfo
)
GET_RIGHTS = Command(
    1014, EmptyRequest, "the caller's user, and what it may do", rules.anybody, ServedBy.ALL, answer=RightsAnswer
)
CLOSE_CONNECTION = Command(
    1017, CloseConnectionRequest, "close a client's connection", rules.broker(ADMIN), ServedBy.ALL, audit=Audit.ALWAYS
)
