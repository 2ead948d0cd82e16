"""Consumer groups and producer groups: heartbeats, messages sent back, members, resets."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ..auth import rules
from ..auth.permissions import ADMIN, CONSUME, QUERY
from ..errors import InvalidParameter
from ..fields import I32_MAX, I64_MAX, boolean, integer, text
from ..rows import ValueKind, array_row, column, row, shown
from ..storage.delivery import RETRY_REASON_CHARS_MAX, RETRY_TIMES_MAX, RETRY_TOPIC_PREFIX
from ..storage.layout import GROUP_BYTES_MAX
from ..times import from_millis
from .common import (
    FILTER_CHARS_MAX,
    MEMBER_CHARS_MAX,
    QUEUES_MAX,
    Audit,
    Command,
    EmptyRequest,
    RowCommand,
    RowsCommand,
)
from .messages import ConsumerOffsetsAnswer

SEND_BACK_MAX = 1_024
"""Maximum number of messages in one CONSUMER_SEND_MSG_BACK."""
REASONS_CHARS_MAX = 32_768
REASON_SEPARATOR = "\x02"


@dataclass(slots=True)
class HeartBeatRequest:
    """Join a group, stay in it, and fetch the assignment. Body: one msgpack array `[subscriptions, owned]`.
    `subscriptions` is an array of `[topic, tags, filter]`; `owned` is an array of `[topic, queue]`: the queues that the
    member still holds because it may have unfinished messages of them. A producer group sends no body."""

    group: str = text("consumer group, or producer group", GROUP_BYTES_MAX, 1)
    member: str = text("the member's name, unique in the group", MEMBER_CHARS_MAX, 1)
    kind: str = text("`consumer` or `producer`", 8, default="consumer")
    epoch: int = integer("epoch of the member's assignment; 0: the member joins", 0, I64_MAX, 0)
    mode: str = text("`clustering` or `broadcasting`", 12, default="clustering")
    start: str = text("start of queues without a committed offset: `first`, `last` or `time`", 8, default="last")
    start_ms: int = integer("with `time`: earliest store time, ms since 1970 UTC", 0, I64_MAX, 0)
    session_timeout_ms: int = integer("the broker removes a member that is silent for longer", 1_000, 300_000, 10_000)
    orderly: bool = boolean("whether the member consumes each queue one message at a time (only for display)", False)


@dataclass(slots=True)
class HeartBeatAnswer:
    """The member's assignment. Body: one msgpack array of `[topic, queue, next_offset, granted]`. The member must give
    up every queue that it holds and that is not in the array."""

    epoch: int = integer("epoch of this assignment, to be sent with every pull and commit")
    count: int = integer("number of queues in the body", default=0)
    interval_ms: int = integer("time between heartbeats", default=3_000)
    retry_times_max: int = integer("how often the group retries a message", default=RETRY_TIMES_MAX)
    run: int = integer(
        "identifies this run of the broker; a broker that restarted may have lost the latest commits", default=0
    )
    missing: str = text(
        "subscribed topics that do not exist or cannot be read; the first 100, separated by spaces", 32767, default=""
    )


@dataclass(slots=True)
class UnregisterClientRequest:
    """Leave a group at once; the broker assigns the member's queues to others."""

    group: str = text("consumer group, or producer group", GROUP_BYTES_MAX, 1)
    member: str = text("the member's name", MEMBER_CHARS_MAX, 1)
    kind: str = text("`consumer` or `producer`", 8, default="consumer")
    epoch: int = integer("epoch of the member's assignment; 0: any", 0, I64_MAX, 0)


@dataclass(slots=True)
class IdsChangedRequest:
    """One-way, from the broker to a member: the assignment changed, so send a heartbeat."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    epoch: int = integer("epoch of the new assignment")


@dataclass(slots=True)
class SendMessageBackRequest:
    """Return messages that a consumer could not handle. The broker delivers them again later, or makes them dead
    letters. Body: count × i64, their physical offsets; with `topic`: count × receipt, as in ACK_MESSAGE."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    count: int = integer("number of messages in the body", 1, SEND_BACK_MAX)
    delay_level: int = integer("1 to 18; 0: 3, then one more each time; -1: dead letter at once", -1, 1_000, 0)
    retry_times_max: int = integer("retries before they become dead letters; -1: the group's limit", -1, I32_MAX, -1)
    member: str = text("member that sends them back; empty: none", MEMBER_CHARS_MAX, default="")
    epoch: int = integer("epoch of the member's assignment", 0, I64_MAX, 0)
    reason: str = text("why they failed, stored as `RETRY_REASON`", RETRY_REASON_CHARS_MAX, default="")
    reasons: str = text("instead of `reason`: one for each message, separated by 0x02", REASONS_CHARS_MAX, default="")
    topic: str = text("topic that the messages were popped from; empty: they were pulled", 32767, default="")

    def reason_of_each(self) -> list[str]:
        """Return one reason per message. Raises ``InvalidParameter``."""
        if not self.reasons:
            return [self.reason] * self.count
        reasons = self.reasons.split(REASON_SEPARATOR)
        if self.reason:
            raise InvalidParameter("both reason and reasons are set; use reason if it is the same for all messages")
        if len(reasons) != self.count:
            raise InvalidParameter(f"reasons has {len(reasons)} entries for {self.count} messages; send one for each")
        longest = max(map(len, reasons))
        if longest > RETRY_REASON_CHARS_MAX:
            raise InvalidParameter(
                f"reasons has an entry of {longest} characters; a reason has at most {RETRY_REASON_CHARS_MAX}"
            )
        return reasons


@dataclass(slots=True)
class SendMessageBackAnswer:
    """The messages are stored for another attempt, or as dead letters. Body if they were popped: count × u8, as in the
    response to ACK_MESSAGE."""

    retried: int = integer("number of messages to be delivered again")
    dead: int = integer("number of new dead letters")


@dataclass(slots=True)
class ResetOffsetRequest:
    """Move a group's committed offsets back or forward. Body if `to` is `offset`: count × (i32 queue, i64 next
    offset)."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    topic: str = text("topic", 32767, 1)
    to: str = text("`first`, `last`, `time` or `offset`", 8, 1)
    queue: int = integer("queue of the topic; -1: all", -1, QUEUES_MAX - 1, -1)
    timestamp_ms: int = integer("with `time`: to the first message stored at that time or later", 0, I64_MAX, 0)
    count: int = integer("number of entries in the body", 0, QUEUES_MAX, 0)
    force: bool = boolean("even if the group has live members, which then continue from there", False)


@dataclass(slots=True)
class GroupRequest:
    """Query one group."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)


@dataclass(slots=True)
class DeleteGroupRequest:
    """Delete a group: its committed offsets and its retry topics. Its dead letters stay."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)


def _without_retries(topics: list[str]) -> list[str]:
    return [topic for topic in topics if not topic.startswith(RETRY_TOPIC_PREFIX)]


@row
class GroupInfo:
    """One group."""

    group: str = column("name of the group", "group", ValueKind.NAME, fold=True)
    mode: str = column("`clustering` or `broadcasting`", "mode", spare=True)
    state: str = column("`empty` (it has no members), `rebalancing` or `stable`", "state")
    members: int = column("number of live members", "members", ValueKind.COUNT)
    epoch: int = column("number of the latest rebalance", "epoch")
    topics: Sequence[str] = column(
        "topics that the group reads; the response also has retry topics of a work group", decode=_without_retries
    )
    retry_times_max: int = column("number of redeliveries before a message becomes a dead letter")
    partial: bool = column("whether the group has topics whose progress the user may not see", default=False)
    kind: str = column(
        "`native`, `remoting` if RocketMQ's clients share its queues, `work` if its consumers lease messages; empty "
        "without consumers",
        "kind",
        default="",
        spare=True,
    )


@row
class GroupMember:
    """One member."""

    member: str = column("its name, unique in the group", "member")
    client: str = column("name with which its client introduced itself")
    address: str = column("HOST:PORT of its client", "address", spare=True)
    epoch: int = column("epoch of its assignment")
    since_ms: int = column("time since it joined")
    heartbeat_ms: int = column("time since its last heartbeat")
    orderly: bool = column("whether it consumes each queue one message at a time")
    queues: int = column("number of queues assigned to it", "queues", ValueKind.COUNT)
    subscriptions: Sequence[Sequence[str]] = column("`[topic, tags, filter]` each")

    @property
    @shown("since", ValueKind.SECONDS)
    def since_seconds(self) -> float:
        """Seconds since it joined."""
        return self.since_ms / 1000

    @property
    @shown("heard", ValueKind.SECONDS)
    def heartbeat_seconds(self) -> float:
        """Seconds since its last heartbeat."""
        return self.heartbeat_ms / 1000


@array_row
class GroupQueue:
    """A group's progress in one queue."""

    topic: str = column("name of the topic", "topic", ValueKind.NAME, fold=True)
    queue: int = column("queue of the topic", "queue", ValueKind.NUMBER)
    member: str = column("member that the queue is assigned to, or the RocketMQ client that read it last; or empty")
    committed: int = column("the committed offset, -1: none", "committed", ValueKind.COUNT)
    pulled: int = column("the offset after the last message that a member received, -1: none")
    min_offset: int = column("offset of the first message of the queue", "first", ValueKind.COUNT)
    max_offset: int = column("offset of the next message of the queue", "next", ValueKind.COUNT)
    known: bool = column(
        "False if no offset is committed and the group's first member will set the start rule", default=True
    )
    next_stored_ms: int = column(
        "store time of the next message to read, ms since 1970 UTC, or -1; its age is the lag in time", default=-1
    )
    leased: int = column("number of messages that consumers of a work group have popped and not settled", default=0)

    @property
    def next_stored_at(self) -> datetime | None:
        """Store time of the next message to read; its age is the lag in time. None if everything is read."""
        return from_millis(self.next_stored_ms) if self.next_stored_ms >= 0 else None

    @property
    @shown("lag", ValueKind.COUNT)
    def lag(self) -> int:
        """Number of stored messages that are not consumed yet; an upper bound if not ``known``."""
        return max(self.max_offset - max(self.committed, self.min_offset), 0)

    @property
    def deleted_unread(self) -> int:
        """Number of messages that retention deleted before the group read them; 0 if nothing is committed."""
        return max(self.min_offset - self.committed, 0) if self.committed >= 0 else 0

    @property
    @shown("in flight", ValueKind.COUNT)
    def in_flight(self) -> int:
        """Number of those messages that a member has received, or that are leased."""
        if self.leased:
            return min(self.leased, self.lag)
        return min(max(self.pulled - max(self.committed, self.min_offset), 0), self.lag) if self.member else 0

    @property
    @shown("ready", ValueKind.COUNT)
    def ready(self) -> int:
        """Number of those messages that no member has received."""
        return self.lag - self.in_flight


@row
class GroupStatus:
    """One group in full."""

    group: str = column("name of the group", "group", ValueKind.NAME)
    mode: str = column("`clustering` or `broadcasting`", "mode")
    state: str = column("`empty`, `rebalancing` or `stable`", "state")
    epoch: int = column("number of the latest rebalance", "epoch")
    members: Sequence[GroupMember] = column("its live members", of=GroupMember, default=())
    queues: Sequence[GroupQueue] = column(
        "its progress in each queue; in a broadcasting group, in each queue and member", of=GroupQueue, default=()
    )
    delayed: int = column("messages that wait for redelivery and are in no queue of the group yet", default=0)
    partial: bool = column("whether the group has topics that the user may not see", default=False)
    kind: str = column("as in the list of groups", "kind", default="")
    waiting: Sequence[str] = column(
        "RocketMQ clients that get nothing as long as the group has native members", default=()
    )


@dataclass(slots=True)
class GroupMembersAnswer:
    """The group is in the body."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)


HEART_BEAT = Command(
    34, HeartBeatRequest, "join a group, stay in it, and learn what to consume", rules.member, answer=HeartBeatAnswer
)
UNREGISTER_CLIENT = Command(35, UnregisterClientRequest, "leave a group at once", rules.member, one_way=True)
CONSUMER_SEND_MSG_BACK = Command(
    36,
    SendMessageBackRequest,
    "have messages tried again later, or put aside",
    rules.of_group_in_topic(CONSUME, CONSUME),
    answer=SendMessageBackAnswer,
)
NOTIFY_CONSUMER_IDS_CHANGED = Command(
    40, IdsChangedRequest, "from the broker: the assignment changed", rules.anybody, one_way=True, from_broker=True
)
GET_ALL_SUBSCRIPTIONGROUP_CONFIG = RowsCommand(
    201, EmptyRequest, "list the consumer groups", rules.anybody, rows=GroupInfo
)
GET_CONSUMER_CONNECTION_LIST = RowCommand(
    203,
    GroupRequest,
    "who is in a group, who has which queue, how far each is",
    rules.group(QUERY),
    answer=GroupMembersAnswer,
    row=GroupStatus,
)
DELETE_SUBSCRIPTIONGROUP = Command(207, DeleteGroupRequest, "delete a group", rules.group(ADMIN), audit=Audit.ALWAYS)
INVOKE_BROKER_TO_RESET_OFFSET = Command(
    222,
    ResetOffsetRequest,
    "move a group's progress",
    rules.of_group_in_topic(ADMIN, QUERY),
    answer=ConsumerOffsetsAnswer,
    audit=Audit.ALWAYS,
)


# ---- Work queues: messages that consumers pop and settle one by one, each with a lease.

POP_COUNT_MAX = 1_024
"""Maximum number of messages of one POP_MESSAGE."""
RECEIPTS_MAX = 4_096
"""Maximum number of receipts in one request."""
LEASE_MS_MAX = 24 * 3600 * 1000
RECEIPT_STRUCT = struct.Struct(">Biqq")
"""One receipt: 1 if the message is in the group's retry topic of the topic (else 0), queue, queue offset, pop time."""


@dataclass(slots=True)
class PopMessageRequest:
    """Lease messages of a topic to this client. No other client gets a message until its lease is over; then it is
    delivered again, with one more attempt. The messages may come from any queue, in any order. While no message is
    there, the broker holds the request."""

    group: str = text("consumer group; its members, if it has any, must all pop", GROUP_BYTES_MAX, 1)
    topic: str = text("topic", 32767, 1)
    queue: int = integer("queue of the topic; -1: all", -1, QUEUES_MAX - 1, -1)
    max_count: int = integer(
        "maximum number of messages in the response; 0: none; only check rights, and begin with a new topic",
        0,
        POP_COUNT_MAX,
        32,
    )
    max_bytes: int = integer("maximum bytes of records, but at least one; at most 1 MiB", 1, I32_MAX, 1 << 20)
    lease_ms: int = integer("length of the lease of each message", 1, LEASE_MS_MAX, 30_000)
    wait_ms: int = integer("how long the broker may hold the request while it finds nothing", 0, 600_000, 0)
    tags: str = text("`a || b`: only records with the hash of one of these tags; empty or `*`: all", 4096, default="")
    filter: str = text(
        "SQL92 condition: only records whose properties match, in addition to `tags`; empty: all",
        FILTER_CHARS_MAX,
        default="",
    )
    start: str = text("start of a topic that is new to the group: `first`, `last` or `time`", 8, default="last")
    start_ms: int = integer("with `time`: earliest store time, ms since 1970 UTC", 0, I64_MAX, 0)


@dataclass(slots=True)
class PopMessageAnswer:
    """Leased messages, as stored. Body: count × u32 sizes, then the records. The receipt of a message: its queue, its
    queue offset and `pop_ms`; it is valid until the lease is over, even after a renewal and a restart of the broker."""

    count: int = integer("number of records in the body; 0: no message came in time")
    retried: int = integer("how many of them, at the end, are from the group's retry topic of the topic", default=0)
    pop_ms: int = integer("pop time, ms since 1970 UTC", default=0)


@dataclass(slots=True)
class AckMessageRequest:
    """Settle messages as handled. Body: count × receipt `(u8 retry, i32 queue, i64 queue_offset, i64 pop_ms)`; `retry`
    is 1 for a message of the retry topic."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    topic: str = text("topic that the messages were popped from", 32767, 1)
    count: int = integer("number of receipts in the body", 1, RECEIPTS_MAX)


@dataclass(slots=True)
class ChangeInvisibleTimeRequest:
    """Renew leases: they end `lease_ms` from now. Body: count × receipt, as in ACK_MESSAGE."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    topic: str = text("topic that the messages were popped from", 32767, 1)
    count: int = integer("number of receipts in the body", 1, RECEIPTS_MAX)
    lease_ms: int = integer(
        "length from now on; 0: give the messages back, which does not count as an attempt", 0, LEASE_MS_MAX, 30_000
    )


@dataclass(slots=True)
class ReceiptsAnswer:
    """The outcome of each receipt. Body: count × u8: 1 done; 0 the receipt is void, because the lease was over, the
    message was settled before, or an operator moved the group's offsets."""

    done: int = integer("number of valid receipts")


POP_MESSAGE = Command(
    200050,
    PopMessageRequest,
    "lease messages of a work queue, waiting for some if asked to",
    rules.of_group_in_topic(CONSUME, CONSUME),
    answer=PopMessageAnswer,
)
ACK_MESSAGE = Command(
    200051,
    AckMessageRequest,
    "settle leased messages as handled",
    rules.of_group_in_topic(CONSUME, CONSUME),
    answer=ReceiptsAnswer,
)
CHANGE_MESSAGE_INVISIBLETIME = Command(
    200053,
    ChangeInvisibleTimeRequest,
    "renew leases, or give messages back",
    rules.of_group_in_topic(CONSUME, CONSUME),
    answer=ReceiptsAnswer,
)
