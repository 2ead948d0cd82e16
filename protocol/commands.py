"""Every command: its code, its typed request and its typed answer, in one table.

Codes are RocketMQ's ``RequestCode`` numbers where RocketMQ has the command; FlintMQ's own start at 1000. What travels
in the body beside the fields is said in each class; ``protocol/README.md`` is checked against this table.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from .delivery import RETRY_TIMES_MAX
from .fields import I32_MAX, I64_MAX, boolean, integer, text
from .layout import GROUP_BYTES_MAX, TOPIC_BYTES_MAX

PROTOCOL_VERSION = 1
DEFAULT_PORT = 10911

KEY_CHARS_MAX = 32767
MEMBER_CHARS_MAX = 128
SEND_BACK_MAX = 1_024
"""Most messages that are sent back in one request."""
QUEUES_MAX = 65_536
FILTER_CHARS_MAX = 4096
PREPARED_NAME_CHARS_MAX = 200
PREPARED_ATTEMPTS_MAX = 10_000
"""Most attempts that one COMMIT_PREPARED names."""
SETTINGS_MAX = 100
"""Most settings that one UPDATE_BROKER_CONFIG changes."""
TRANSACTIONS_MAX = 1_000
"""Most transactions in one answer."""

LAYOUT_ROWS = 0
"""``count`` arrays ``[body: bin, properties: map str -> str, sys_flag = 0, flag = 0]`` of 2 to 4 items."""
LAYOUT_COLUMNS = 1
"""One array of ``count`` bodies (bin), then one of ``count`` KEYS values (str or nil)."""

RECORD_SIZE_STRUCT = struct.Struct(">I")
"""A record's size at the front of an answer with records."""
PHYSICAL_OFFSET_STRUCT = struct.Struct(">q")
"""A physical offset in the body of a produce answer."""
CONSUMER_OFFSET_STRUCT = struct.Struct(">iq")
"""A queue and its next offset in the body of the consumer-offset commands."""
QUEUE_STATS_STRUCT = struct.Struct(">iqqq")
"""A queue, its min offset, its max offset and the store time (ms, -1: empty) of its last message."""


@dataclass(slots=True)
class HelloRequest:
    """The first request of every connection."""

    protocol: int = integer("version of this protocol that the client speaks", 1, I32_MAX)
    client: str = text("who is calling, for logs and lists", 256, default="")


@dataclass(slots=True)
class HelloAnswer:
    """Who the broker is and what it accepts."""

    protocol: int = integer("version that both speak from here on")
    broker: str = text("the broker's name", 256)
    version: str = text("the broker's release", 64)
    flush: str = text("`sync` or `async`: the least that an acknowledgement means", 8)
    frame_bytes_max: int = integer("largest frame in either direction")
    produce_frame_bytes_max: int = integer("largest PRODUCE frame")
    message_bytes_max: int = integer("largest stored record of a produced message")
    auto_create_queues: int = integer(
        "queues that a topic gets at its first message; 0: none is made", 0, QUEUES_MAX, 4
    )
    auth_required: bool = boolean("whether AUTH must follow before anything else", False)
    auth: str = text(
        "mechanisms that AUTH may use, with blanks between them; empty: AUTH is not served", 256, default=""
    )


@dataclass(slots=True)
class AuthRequest:
    """Say who is calling, and prove it: the first, then the second message of the client. What fails closes the
    connection."""

    message: str = text("the client's message, as the mechanism has it", 1024, 1)
    mechanism: str = text("with the first message: `SCRAM-SHA-256`", 64, default="")


@dataclass(slots=True)
class AuthAnswer:
    """The broker's answer to it; that to the second message proves who the broker is."""

    message: str = text("the broker's message, as the mechanism has it", 1024)
    done: bool = boolean("whether the connection is the user's from here on", False)


@dataclass(slots=True)
class ProduceRequest:
    """Append messages to one queue of one topic. Body: the messages, in the layout that ``layout`` names."""

    topic: str = text("topic to append to", TOPIC_BYTES_MAX, 1)
    count: int = integer("number of messages in the body", 1, I32_MAX)
    queue: int = integer("queue of the topic; -1: the broker chooses", -1, QUEUES_MAX - 1, -1)
    layout: int = integer("0 rows, 1 columns", 0, 1, LAYOUT_ROWS)
    flush: str = text("`sync`, `async` or empty: the broker's; the stricter of the two holds", 8, default="")
    common: str = text("properties of every message: name \\x01 value \\x02 …", 32767, default="")
    sys_flag: int = integer("sys_flag of every message (columns)", 0, I32_MAX, 0)
    unique_prefix: str = text("20 hex digits; the broker writes UNIQ_KEY = prefix + counter", 20, default="")
    unique_first: int = integer("counter of the first message, 48 bits", 0, 2**48 - 1, 0)
    born_ms: int = integer("when the messages were made, ms since 1970 UTC; 0: on arrival", 0, I64_MAX, 0)
    prepare: str = text(
        "the attempt that prepares them: they are nowhere until COMMIT_PREPARED names it; empty: none",
        PREPARED_NAME_CHARS_MAX,
        default="",
    )


@dataclass(slots=True)
class ProduceAnswer:
    """All messages are stored. Body: count × i64, their physical offsets."""

    queue: int = integer("the queue they went to", 0, QUEUES_MAX - 1)
    queue_offset: int = integer("queue offset of the first; the others follow without a gap")
    store_ms: int = integer("store time, ms since 1970 UTC")


@dataclass(slots=True)
class PullRequest:
    """Read stored records of one queue from an offset on."""

    topic: str = text("topic to read", 32767, 1)
    queue: int = integer("queue of the topic", 0, QUEUES_MAX - 1)
    offset: int = integer("queue offset of the first record wanted")
    max_count: int = integer("most records in the answer", 1, I32_MAX, 32)
    max_bytes: int = integer("most bytes of records, except that one is always sent", 1, I32_MAX, 1 << 20)
    wait_ms: int = integer("how long the broker may hold the answer while there is nothing", 0, 600_000, 0)
    tags: str = text("`a || b`: only records whose tag's hash is one of these; empty or `*`: all", 4096, default="")
    filter: str = text(
        "a condition: only records whose properties meet it, with `tags` both; empty: all", FILTER_CHARS_MAX, default=""
    )
    group: str = text("consumer group that reads; empty: none", GROUP_BYTES_MAX, default="")
    member: str = text("the group's member that reads and holds the queue; empty: none", MEMBER_CHARS_MAX, default="")
    epoch: int = integer("of the member's assignment", 0, I64_MAX, 0)


@dataclass(slots=True)
class RecordsAnswer:
    """Stored records as they lie in the CommitLog. Body: count × u32 sizes, then the records."""

    count: int = integer("records in the body")
    next_offset: int = integer("offset to pull from next")
    min_offset: int = integer("the queue's first readable offset")
    max_offset: int = integer("the offset that the queue's next message will have")


@dataclass(slots=True)
class QueryByKeyRequest:
    """Find messages by a key (one of KEYS, or the unique key), newest first."""

    topic: str = text("topic to search", 32767, 1)
    key: str = text("the key", KEY_CHARS_MAX, 1)
    begin_ms: int = integer("least store time, ms since 1970 UTC", 0, I64_MAX, 0)
    end_ms: int = integer("greatest store time, ms since 1970 UTC", 0, I64_MAX, I64_MAX)
    max_count: int = integer("most records in the answer", 1, 64, 32)
    cursor: str = text("from the answer before, to go on behind it; empty: from the newest", 256, default="")


@dataclass(slots=True)
class QueryByKeyAnswer:
    """Found records. Body: count × u32 sizes, then the records."""

    count: int = integer("records in the body")
    cursor: str = text("where the next page begins; empty: there is none", 256, default="")
    index_behind_bytes: int = integer("CommitLog bytes that the index does not cover yet", default=0)


@dataclass(slots=True)
class ViewMessageByIdRequest:
    """Find one message by either form of id."""

    id: str = text("an offset id or a unique key, 32 or 56 hex digits or what a producer chose", KEY_CHARS_MAX, 1)
    topic: str = text("topic of a unique key; empty: every user topic is searched", 32767, default="")


@dataclass(slots=True)
class ViewMessageAnswer:
    """The message. Body: one u32 size, then the record."""

    count: int = integer("1")


@dataclass(slots=True)
class QueueRequest:
    """A question about one queue."""

    topic: str = text("topic", 32767, 1)
    queue: int = integer("queue of the topic", 0, QUEUES_MAX - 1)


@dataclass(slots=True)
class SearchOffsetByTimestampRequest:
    """The first offset whose store time is not before a moment."""

    topic: str = text("topic", 32767, 1)
    queue: int = integer("queue of the topic", 0, QUEUES_MAX - 1)
    timestamp_ms: int = integer("ms since 1970 UTC")


@dataclass(slots=True)
class OffsetAnswer:
    """A queue offset."""

    offset: int = integer("queue offset")


@dataclass(slots=True)
class StoreTimeAnswer:
    """Store time of a queue's first message."""

    timestamp_ms: int = integer("ms since 1970 UTC; -1: the queue is empty", -1)


@dataclass(slots=True)
class QueryConsumerOffsetRequest:
    """What a group has committed."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    topic: str = text("topic", 32767, 1)
    queue: int = integer("queue of the topic; -1: all", -1, QUEUES_MAX - 1, -1)


@dataclass(slots=True)
class ConsumerOffsetsAnswer:
    """Body: count × (i32 queue, i64 next offset), only queues that have one."""

    count: int = integer("entries in the body")


@dataclass(slots=True)
class UpdateConsumerOffsetRequest:
    """Commit a group's progress. Body: count × (i32 queue, i64 next offset)."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    topic: str = text("topic", 32767, 1)
    count: int = integer("entries in the body", 1, QUEUES_MAX)
    member: str = text("the group's member that commits; empty: none", MEMBER_CHARS_MAX, default="")
    epoch: int = integer("of the member's assignment", 0, I64_MAX, 0)


@dataclass(slots=True)
class HeartBeatRequest:
    """Join a group, stay in it, and learn what to consume. Body: one msgpack array `[subscriptions, owned]`:
    `subscriptions` an array of `[topic, tags, filter]`, `owned` one of `[topic, queue]`, the queues that the member
    still holds: messages of them may be with it. Of a producer group: no body."""

    group: str = text("consumer group, or producer group", GROUP_BYTES_MAX, 1)
    member: str = text("the member's name, unique in the group", MEMBER_CHARS_MAX, 1)
    kind: str = text("`consumer` or `producer`", 8, default="consumer")
    epoch: int = integer("of the assignment that the member has; 0: it joins", 0, I64_MAX, 0)
    mode: str = text("`clustering` or `broadcasting`", 12, default="clustering")
    start: str = text("where queues begin of which nothing is committed: `first`, `last` or `time`", 8, default="last")
    start_ms: int = integer("with `time`: the least store time, ms since 1970 UTC", 0, I64_MAX, 0)
    session_timeout_ms: int = integer("after this long without a heartbeat the member is gone", 1_000, 300_000, 10_000)
    orderly: bool = boolean("whether it consumes each queue one message at a time, for who looks", False)


@dataclass(slots=True)
class HeartBeatAnswer:
    """What the member may consume. Body: one msgpack array of `[topic, queue, next_offset, granted]`. A queue that it
    holds and that is not in there is to be given up."""

    epoch: int = integer("of this assignment; goes with every pull and commit")
    count: int = integer("queues in the body", default=0)
    interval_ms: int = integer("how often to send a heartbeat", default=3_000)
    retry_times_max: int = integer("how often the group tries a message again", default=RETRY_TIMES_MAX)
    run: int = integer(
        "which start of the broker this is: another one may have forgotten the latest commits", default=0
    )


@dataclass(slots=True)
class UnregisterClientRequest:
    """Leave a group at once: what the member held is given to others."""

    group: str = text("consumer group, or producer group", GROUP_BYTES_MAX, 1)
    member: str = text("the member's name", MEMBER_CHARS_MAX, 1)
    kind: str = text("`consumer` or `producer`", 8, default="consumer")
    epoch: int = integer("of the member's assignment; 0: whichever it is", 0, I64_MAX, 0)


@dataclass(slots=True)
class IdsChangedRequest:
    """From the broker to a member, one-way: the assignment changed, send a heartbeat."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    epoch: int = integer("of the new assignment")


@dataclass(slots=True)
class SendMessageBackRequest:
    """Messages that a consumer could not handle: they come back later, or become dead letters. Body: count × i64, their
    physical offsets."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    count: int = integer("messages in the body", 1, SEND_BACK_MAX)
    delay_level: int = integer("1 to 18; 0: 3 and one more each time; -1: dead letters at once", -1, 1_000, 0)
    retry_times_max: int = integer("after so many tries they are dead letters; -1: the group's", -1, I32_MAX, -1)
    member: str = text("the group's member that sends them back; empty: none", MEMBER_CHARS_MAX, default="")
    epoch: int = integer("of the member's assignment", 0, I64_MAX, 0)


@dataclass(slots=True)
class SendMessageBackAnswer:
    """They are stored again."""

    retried: int = integer("how many come back")
    dead: int = integer("how many became dead letters")


@dataclass(slots=True)
class ResetOffsetRequest:
    """Move a group's progress, back or forth. Body: with `to` `offset`, count × (i32 queue, i64 next offset)."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    topic: str = text("topic", 32767, 1)
    to: str = text("`first`, `last`, `time` or `offset`", 8, 1)
    queue: int = integer("queue of the topic; -1: all", -1, QUEUES_MAX - 1, -1)
    timestamp_ms: int = integer("with `time`: to the first message stored at or behind it", 0, I64_MAX, 0)
    count: int = integer("entries in the body", 0, QUEUES_MAX, 0)
    force: bool = boolean("also where the group has live members, which then go on from there", False)


@dataclass(slots=True)
class GroupRequest:
    """A question about, or the deletion of, one group."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)


@dataclass(slots=True)
class DeleteGroupRequest:
    """Forget a group: its progress, and its retry topic. Its dead letters stay."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)


@dataclass(slots=True)
class GroupsAnswer:
    """Body: one msgpack array of maps `{group, mode, state, members, epoch, topics, retry_times_max}`."""

    count: int = integer("groups in the body")


@dataclass(slots=True)
class GroupMembersAnswer:
    """Body: one msgpack map `{group, mode, state, epoch, members, queues, delayed}`: `members` an array of maps
    `{member, client, address, epoch, since_ms, heartbeat_ms, orderly, queues, subscriptions}`, `queues` one of `[topic,
    queue, member, committed, pulled, min_offset, max_offset]`, `delayed` how many messages wait to come to
    `%RETRY%group`."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)


@dataclass(slots=True)
class ConsumeStatsRequest:
    """How far consumer groups are."""

    group: str = text("consumer group; empty: all", GROUP_BYTES_MAX, default="")
    topic: str = text("topic; empty: all", 32767, default="")


@dataclass(slots=True)
class ConsumeStatsAnswer:
    """Body: one msgpack array of arrays ``[group, topic, queue, committed, min_offset, max_offset]``."""

    count: int = integer("rows in the body")


@dataclass(slots=True)
class EndTransactionRequest:
    """Commit or roll back the transaction of a half message. Answered when that is stored."""

    group: str = text("producer group that the transaction is of", GROUP_BYTES_MAX, 1)
    transaction_id: str = text("the half message's unique key", KEY_CHARS_MAX, 1)
    commit: bool = boolean("true: commit, false: roll back")
    half_queue_offset: int = integer("of the half message, from the PRODUCE answer; -1: not known", -1, I64_MAX, -1)
    half_physical_offset: int = integer("the same; -1: not known", -1, I64_MAX, -1)
    parked: bool = boolean("also where it was parked: commit delivers its message after all", False)


@dataclass(slots=True)
class CheckTransactionStateRequest:
    """From the broker to a producer of the group: how did this transaction end? Body: the half message as a stored
    record, with the topic and queue that it was sent to."""

    group: str = text("producer group that the transaction is of", GROUP_BYTES_MAX, 1)
    transaction_id: str = text("the half message's unique key", KEY_CHARS_MAX, 1)
    topic: str = text("topic that the message was sent to", 32767, 1)
    check_times: int = integer("how often producers were asked, this time included")


@dataclass(slots=True)
class CheckTransactionStateAnswer:
    """How it ended, as far as the producer knows: the broker does the rest."""

    outcome: str = text("`commit`, `rollback`, or `unknown`: ask again later", 8, 1)


@dataclass(slots=True)
class GetTransactionsRequest:
    """Transactions that are open, or those that were parked because nobody could tell their end; the oldest first."""

    parked: bool = boolean("those that were parked", False)
    from_offset: int = integer("0, or `next_offset` of the answer before", default=0)
    max_count: int = integer("most of them in the answer", 1, TRANSACTIONS_MAX, 100)


@dataclass(slots=True)
class GetDelayStatsRequest:
    """What waits to be delivered later."""

    max_hours: int = integer("most hours of timed messages in the answer; the rest is summed up", 1, 10_000, 24)


@dataclass(slots=True)
class DelayStatsAnswer:
    """Body: one msgpack map `{levels, hours}`: `levels` an array of `[level, messages, next_due_ms]`, of those levels
    that have had a message; `hours` one of `[begins_ms, messages, next_due_ms]`, of timed messages, by the hour that
    they are due in, the last one for all that follow. A time of 0: nothing is due."""

    levels: int = integer("messages that wait in delay levels")
    timed: int = integer("messages that wait for their time")
    parked: int = integer("messages in rmq_sys_flintmq_parked: what could not be delivered")
    behind: int = integer("timed messages that are not counted yet: they came just now, or before a start", default=0)


@dataclass(slots=True)
class TransactionsAnswer:
    """Body: one msgpack array of maps `{id, topic, queue, group, born_ms, stored_ms, checks, half_queue_offset,
    half_physical_offset, delivered}`; of what was parked the offsets are those of its message in
    TRANS_CHECK_MAX_TIME_TOPIC, and `delivered` says whether it was committed after all."""

    count: int = integer("maps in the body")
    next_offset: int = integer("from_offset of the next page; -1: there is none", -1)
    open: int = integer("open transactions in all", default=0)
    parked: int = integer("parked messages in all", default=0)


@dataclass(slots=True)
class CommitPreparedRequest:
    """Commit what attempts prepared: all of it, or nothing. Answered when all of it is stored in the topics that it was
    sent to. Body: one msgpack array of `[attempt, messages]`, `messages` being how many the attempt prepared."""

    series: str = text("whose transaction it is, such as the id of a query", PREPARED_NAME_CHARS_MAX, 1)
    number: int = integer("of the transaction in its series; one that is not above the last committed one is committed")
    count: int = integer("attempts in the body", 0, PREPARED_ATTEMPTS_MAX)
    drop: str = text(
        "attempts that begin so and are not committed by this are dropped; empty: none",
        PREPARED_NAME_CHARS_MAX,
        default="",
    )
    flush: str = text("`sync`, `async` or empty: the broker's; the stricter of the two holds", 8, default="")


@dataclass(slots=True)
class CommitPreparedAnswer:
    """The transaction is committed."""

    already: bool = boolean("it was committed before, by another request: this one did nothing", False)
    messages: int = integer("messages that this request committed", default=0)


@dataclass(slots=True)
class AbortPreparedRequest:
    """Drop what attempts prepared. Answered when that is stored."""

    drop: str = text("attempts that begin so are dropped", PREPARED_NAME_CHARS_MAX, 1)


@dataclass(slots=True)
class AbortPreparedAnswer:
    """They are dropped."""

    count: int = integer("how many attempts there were", default=0)


@dataclass(slots=True)
class GetPreparedRequest:
    """What is prepared, and what is committed and being copied."""

    prefix: str = text("only attempts that begin so; empty: all", PREPARED_NAME_CHARS_MAX, default="")
    max_count: int = integer("most attempts in the answer", 1, TRANSACTIONS_MAX, 100)


@dataclass(slots=True)
class PreparedAnswer:
    """Body: one msgpack map `{attempts, copying}`: `attempts` an array of maps `{attempt, messages, topics,
    active_ms}`, those first to which nothing came for longest, `copying` one of maps `{series, number, messages,
    copied}`."""

    count: int = integer("attempts in the body")
    attempts: int = integer("attempts in all that have prepared something", default=0)


@dataclass(slots=True)
class UpdateAndCreateTopicRequest:
    """Create a topic, or change one that exists; queues can be added, not taken away."""

    topic: str = text("topic", TOPIC_BYTES_MAX, 1)
    read_queues: int = integer("queues that can be read", 1, QUEUES_MAX, 4)
    write_queues: int = integer("queues that can be written", 1, QUEUES_MAX, 4)
    perm: int = integer("4 read + 2 write", 0, 7, 6)
    order: bool = boolean("kept for RocketMQ's tools", False)


@dataclass(slots=True)
class TopicRequest:
    """A question about, or the deletion of, one topic."""

    topic: str = text("topic", 32767, 1)


@dataclass(slots=True)
class EmptyRequest:
    """No fields."""


@dataclass(slots=True)
class EmptyAnswer:
    """No fields."""


@dataclass(slots=True)
class TopicsAnswer:
    """Body: one msgpack array of maps ``{topic, read_queues, write_queues, perm, order, system}``."""

    count: int = integer("topics in the body")


@dataclass(slots=True)
class TopicStatsAnswer:
    """Body: count × (i32 queue, i64 min offset, i64 max offset, i64 store time of the last message, ms or -1)."""

    count: int = integer("queues in the body")


@dataclass(slots=True)
class UpdateBrokerConfigRequest:
    """Change settings while the broker runs: all of them, or none. Body: one msgpack map of the settings' names to
    values, or to what would stand for them on a command line."""

    count: int = integer("settings in the body", 1, SETTINGS_MAX)


@dataclass(slots=True)
class UpdateBrokerConfigAnswer:
    """They are changed, until the broker is started again. Body: one msgpack array of `[name, before, after]`."""

    count: int = integer("settings in the body")


@dataclass(slots=True)
class BrokerConfigAnswer:
    """Body: one msgpack array of maps `{name, value, at_start, hot, rule}`: the value now and that of the start,
    whether it can be changed while the broker runs, and what it may be."""

    count: int = integer("settings in the body")


@dataclass(slots=True)
class RuntimeInfoAnswer:
    """No fields. Body: one msgpack map, str to int, float, str or bool; ``RUNTIME_INFO`` says of what."""


RUNTIME_INFO: dict[str, str] = {
    "name": "the broker's name",
    "version": "its release",
    "pid": "its process id",
    "uptime_seconds": "since the start of the process",
    "recovery_seconds": "what opening the store took",
    "rss_bytes": "memory of the process, with what it has of mapped files",
    "mapped_bytes": "of that, mapped files: page cache, which the system takes back when it needs memory",
    "store_path": "the store's folder on the broker's machine",
    "flush": "`sync` or `async`: the least that an acknowledgement means",
    "min_physical_offset": "where the CommitLog begins",
    "write_offset": "where it ends",
    "flushed_offset": "it is on disk below this",
    "reput_offset": "queues and index know every record below this",
    "index_behind_bytes": "CommitLog that they do not know yet",
    "commitlog_files": "how many there are",
    "index_files": "how many there are",
    "quarantined_holes": "damaged stretches of the CommitLog: see `flintmq/quarantine/index.json`",
    "quarantined_bytes": "bytes of the CommitLog in them",
    "lost_messages": "messages that are known to have been in them; nobody is given anything in their place",
    "flush_p50_us": "half of the last minute's flushes took at most this many µs; 0: there was none",
    "flush_p99_us": "99 of 100 of them took at most this many",
    "disk_free_bytes": "what may still be written to the store's file system",
    "disk_total_bytes": "its size, without what is kept for root",
    "disk_room_bytes": "what may be written before messages are refused",
    "disk_runway_seconds": "how long that lasts at the rate of the last minute; −1: nothing is written",
    "write_refusal": "why no messages are taken at the moment; empty: they are",
    "metrics_address": "HOST:PORT of the metrics over HTTP; empty: they are off",
    "topics": "how many there are, the broker's own included",
    "groups": "consumer groups that have live members",
    "group_members": "their members",
    "group_rebalances": "how often the queues of a group were shared out in another way, since the start",
    "retried_messages": "messages that groups sent back since the start, to be tried again",
    "dead_messages": "those that became dead letters",
    "offsets_moved": "how often a group was moved on because retention had taken what it would have read next",
    "connections": "how many are open",
    "connections_accepted": "since the start",
    "connections_refused": "since the start, for a limit of connections",
    "held_pulls": "pulls that wait for messages",
    "in_flight_bytes": "bytes that have arrived and are not done",
    "produces": "PRODUCE frames since the start",
    "produced_messages": "messages in them",
    "produced_bytes": "bytes of their bodies",
    "pulls": "PULL answers since the start",
    "pulled_messages": "records in them",
    "pulled_bytes": "bytes of their bodies",
    "one_way_errors": "one-way frames since the start that could not be served",
}
"""What the map of a GET_BROKER_RUNTIME_INFO answer holds, beside ``errors_NAME``: answers with that result since the
start, for each result that occurred. Names are added, never changed."""


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table: ``one_way`` says whether a frame of kind 2 may carry it, ``from_broker`` that it is the
    broker who asks."""

    name: str
    code: int
    request: type[Any]
    answer: type[Any]
    one_way: bool = False
    from_broker: bool = False


HELLO = Command("HELLO", 1000, HelloRequest, HelloAnswer)
AUTH = Command("AUTH", 1001, AuthRequest, AuthAnswer)
PRODUCE = Command("PRODUCE", 10, ProduceRequest, ProduceAnswer, one_way=True)
PULL = Command("PULL", 11, PullRequest, RecordsAnswer)
QUERY_BY_KEY = Command("QUERY_BY_KEY", 12, QueryByKeyRequest, QueryByKeyAnswer)
QUERY_CONSUMER_OFFSET = Command("QUERY_CONSUMER_OFFSET", 14, QueryConsumerOffsetRequest, ConsumerOffsetsAnswer)
UPDATE_CONSUMER_OFFSET = Command("UPDATE_CONSUMER_OFFSET", 15, UpdateConsumerOffsetRequest, EmptyAnswer, one_way=True)
HEART_BEAT = Command("HEART_BEAT", 34, HeartBeatRequest, HeartBeatAnswer)
UNREGISTER_CLIENT = Command("UNREGISTER_CLIENT", 35, UnregisterClientRequest, EmptyAnswer, one_way=True)
END_TRANSACTION = Command("END_TRANSACTION", 37, EndTransactionRequest, EmptyAnswer)
CHECK_TRANSACTION_STATE = Command(
    "CHECK_TRANSACTION_STATE", 39, CheckTransactionStateRequest, CheckTransactionStateAnswer, from_broker=True
)
GET_TRANSACTIONS = Command("GET_TRANSACTIONS", 1010, GetTransactionsRequest, TransactionsAnswer)
GET_DELAY_STATS = Command("GET_DELAY_STATS", 1011, GetDelayStatsRequest, DelayStatsAnswer)
COMMIT_PREPARED = Command("COMMIT_PREPARED", 1020, CommitPreparedRequest, CommitPreparedAnswer)
ABORT_PREPARED = Command("ABORT_PREPARED", 1021, AbortPreparedRequest, AbortPreparedAnswer)
GET_PREPARED = Command("GET_PREPARED", 1022, GetPreparedRequest, PreparedAnswer)
CONSUMER_SEND_MSG_BACK = Command("CONSUMER_SEND_MSG_BACK", 36, SendMessageBackRequest, SendMessageBackAnswer)
NOTIFY_CONSUMER_IDS_CHANGED = Command(
    "NOTIFY_CONSUMER_IDS_CHANGED", 40, IdsChangedRequest, EmptyAnswer, one_way=True, from_broker=True
)
GET_ALL_SUBSCRIPTIONGROUP_CONFIG = Command("GET_ALL_SUBSCRIPTIONGROUP_CONFIG", 201, EmptyRequest, GroupsAnswer)
GET_CONSUMER_CONNECTION_LIST = Command("GET_CONSUMER_CONNECTION_LIST", 203, GroupRequest, GroupMembersAnswer)
DELETE_SUBSCRIPTIONGROUP = Command("DELETE_SUBSCRIPTIONGROUP", 207, DeleteGroupRequest, EmptyAnswer)
INVOKE_BROKER_TO_RESET_OFFSET = Command("INVOKE_BROKER_TO_RESET_OFFSET", 222, ResetOffsetRequest, ConsumerOffsetsAnswer)
UPDATE_AND_CREATE_TOPIC = Command("UPDATE_AND_CREATE_TOPIC", 17, UpdateAndCreateTopicRequest, EmptyAnswer)
GET_ALL_TOPIC_CONFIG = Command("GET_ALL_TOPIC_CONFIG", 21, EmptyRequest, TopicsAnswer)
UPDATE_BROKER_CONFIG = Command("UPDATE_BROKER_CONFIG", 25, UpdateBrokerConfigRequest, UpdateBrokerConfigAnswer)
GET_BROKER_CONFIG = Command("GET_BROKER_CONFIG", 26, EmptyRequest, BrokerConfigAnswer)
GET_BROKER_RUNTIME_INFO = Command("GET_BROKER_RUNTIME_INFO", 28, EmptyRequest, RuntimeInfoAnswer)
SEARCH_OFFSET_BY_TIMESTAMP = Command("SEARCH_OFFSET_BY_TIMESTAMP", 29, SearchOffsetByTimestampRequest, OffsetAnswer)
GET_MAX_OFFSET = Command("GET_MAX_OFFSET", 30, QueueRequest, OffsetAnswer)
GET_MIN_OFFSET = Command("GET_MIN_OFFSET", 31, QueueRequest, OffsetAnswer)
GET_EARLIEST_MSG_STORETIME = Command("GET_EARLIEST_MSG_STORETIME", 32, QueueRequest, StoreTimeAnswer)
VIEW_MESSAGE_BY_ID = Command("VIEW_MESSAGE_BY_ID", 33, ViewMessageByIdRequest, ViewMessageAnswer)
GET_TOPIC_STATS_INFO = Command("GET_TOPIC_STATS_INFO", 202, TopicRequest, TopicStatsAnswer)
GET_CONSUME_STATS = Command("GET_CONSUME_STATS", 208, ConsumeStatsRequest, ConsumeStatsAnswer)
DELETE_TOPIC_IN_BROKER = Command("DELETE_TOPIC_IN_BROKER", 215, TopicRequest, EmptyAnswer)

COMMANDS: dict[int, Command] = {
    command.code: command
    for command in (
        HELLO,
        AUTH,
        PRODUCE,
        PULL,
        QUERY_BY_KEY,
        QUERY_CONSUMER_OFFSET,
        UPDATE_CONSUMER_OFFSET,
        UPDATE_AND_CREATE_TOPIC,
        GET_ALL_TOPIC_CONFIG,
        UPDATE_BROKER_CONFIG,
        GET_BROKER_CONFIG,
        GET_BROKER_RUNTIME_INFO,
        SEARCH_OFFSET_BY_TIMESTAMP,
        GET_MAX_OFFSET,
        GET_MIN_OFFSET,
        GET_EARLIEST_MSG_STORETIME,
        VIEW_MESSAGE_BY_ID,
        HEART_BEAT,
        UNREGISTER_CLIENT,
        CONSUMER_SEND_MSG_BACK,
        END_TRANSACTION,
        CHECK_TRANSACTION_STATE,
        NOTIFY_CONSUMER_IDS_CHANGED,
        GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        GET_TOPIC_STATS_INFO,
        GET_CONSUMER_CONNECTION_LIST,
        DELETE_SUBSCRIPTIONGROUP,
        GET_CONSUME_STATS,
        DELETE_TOPIC_IN_BROKER,
        INVOKE_BROKER_TO_RESET_OFFSET,
        GET_TRANSACTIONS,
        COMMIT_PREPARED,
        ABORT_PREPARED,
        GET_PREPARED,
        GET_DELAY_STATS,
    )
}
