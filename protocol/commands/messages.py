"""Requests and responses that carry messages: PRODUCE, PULL, QUERY_BY_KEY, VIEW_MESSAGE_BY_ID and
BROWSE_MESSAGES.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import datetime

from ..auth import rules
from ..auth.permissions import CONSUME, PUBLISH, QUERY
from ..fields import I32_MAX, I64_MAX, boolean, integer, text
from ..rows import ValueKind, array_row, column, shown
from ..storage.layout import GROUP_BYTES_MAX, TOPIC_BYTES_MAX
from ..times import from_millis
from .common import (
    FILTER_CHARS_MAX,
    KEY_CHARS_MAX,
    MEMBER_CHARS_MAX,
    PREPARED_NAME_CHARS_MAX,
    QUERY_COUNT_MAX,
    QUEUES_MAX,
    Audit,
    Command,
    RowsCommand,
    ServedBy,
)

LAYOUT_ROWS = 0
"""``count`` arrays ``[body: bin, properties: map str -> str, sys_flag = 0, flag = 0]`` of 2 to 4 items."""
LAYOUT_COLUMNS = 1
"""One array of ``count`` bodies (bin), then one of ``count`` KEYS values (str or nil)."""
BROWSE_COUNT_MAX = 200
"""Maximum number of messages in one BROWSE_MESSAGES response."""
BROWSE_BODY_BYTES_MAX = 64 * 1024
"""Maximum bytes of each body in one BROWSE_MESSAGES response."""
BROWSE_SCAN_MAX = 20_000
"""Maximum number of messages that one BROWSE_MESSAGES request looks at."""
RECORD_SIZE_STRUCT = struct.Struct(">I")
"""Size of one record, in the list of sizes that begins the body of a response with records."""
PHYSICAL_OFFSET_STRUCT = struct.Struct(">q")
"""Physical offset in the body of a PRODUCE response."""


@dataclass(slots=True)
class ProduceRequest:
    """Append messages to one queue of one topic. Body: the messages, in the layout that ``layout`` names."""

    topic: str = text("topic to append to", TOPIC_BYTES_MAX, 1)
    count: int = integer("number of messages in the body", 1, I32_MAX)
    queue: int = integer("queue of the topic; -1: the broker chooses", -1, QUEUES_MAX - 1, -1)
    layout: int = integer("0 rows, 1 columns", 0, 1, LAYOUT_ROWS)
    flush: str = text("`sync`, `async` or empty (the broker's policy); the stricter of the two applies", 8, default="")
    common: str = text("properties of every message: name \\x01 value \\x02 …", 32767, default="")
    sys_flag: int = integer("sys_flag of every message (columns)", 0, I32_MAX, 0)
    unique_prefix: str = text("20 hex digits; the broker sets UNIQ_KEY = prefix + counter", 20, default="")
    unique_first: int = integer("counter of the first message, 48 bits", 0, 2**48 - 1, 0)
    born_ms: int = integer("creation time of the messages, ms since 1970 UTC; 0: time of arrival", 0, I64_MAX, 0)
    prepare: str = text(
        "attempt that prepares them: no consumer sees them until COMMIT_PREPARED names it; empty: none",
        PREPARED_NAME_CHARS_MAX,
        default="",
    )


@dataclass(slots=True)
class ProduceAnswer:
    """All messages are stored. Body: count × i64, their physical offsets."""

    queue: int = integer("queue that they were appended to", 0, QUEUES_MAX - 1)
    queue_offset: int = integer("queue offset of the first message; the others follow without a gap")
    store_ms: int = integer("store time, ms since 1970 UTC")


@dataclass(slots=True)
class PullRequest:
    """Read stored records of one queue, starting at an offset."""

    topic: str = text("topic to read", 32767, 1)
    queue: int = integer("queue of the topic", 0, QUEUES_MAX - 1)
    offset: int = integer("queue offset of the first record wanted")
    max_count: int = integer("maximum number of records in the response", 1, I32_MAX, 32)
    max_bytes: int = integer("maximum bytes of records; the broker always sends at least one", 1, I32_MAX, 1 << 20)
    wait_ms: int = integer("how long the broker may hold the pull while it finds nothing", 0, 600_000, 0)
    tags: str = text("`a || b`: only records with the hash of one of these tags; empty or `*`: all", 4096, default="")
    filter: str = text(
        "SQL92 condition: only records whose properties match, in addition to `tags`; empty: all",
        FILTER_CHARS_MAX,
        default="",
    )
    group: str = text("consumer group that reads; empty: none", GROUP_BYTES_MAX, default="")
    member: str = text("member that reads and holds the queue; empty: none", MEMBER_CHARS_MAX, default="")
    epoch: int = integer("epoch of the member's assignment", 0, I64_MAX, 0)


@dataclass(slots=True)
class RecordsAnswer:
    """Stored records, byte for byte as in the CommitLog. Body: count × u32 sizes, then the records."""

    count: int = integer("number of records in the body")
    next_offset: int = integer("offset of the next pull")
    min_offset: int = integer("first readable offset of the queue")
    max_offset: int = integer("offset that the queue's next message will get")
    lost: int = integer("number of messages from `offset` to `next_offset` that were lost to damage", default=0)
    lost_from: int = integer("offset of the first lost message", default=0)


@dataclass(slots=True)
class QueryByKeyRequest:
    """Find messages by a key (one of KEYS, or the unique key), newest first."""

    topic: str = text("topic to search", 32767, 1)
    key: str = text("the key", KEY_CHARS_MAX, 1)
    begin_ms: int = integer("earliest store time, ms since 1970 UTC", 0, I64_MAX, 0)
    end_ms: int = integer("latest store time, ms since 1970 UTC", 0, I64_MAX, I64_MAX)
    max_count: int = integer("maximum number of records in the response", 1, QUERY_COUNT_MAX, 32)
    cursor: str = text("from the previous response, to continue after it; empty: from the newest", 256, default="")


@dataclass(slots=True)
class QueryByKeyAnswer:
    """Found records. Body: count × u32 sizes, then the records."""

    count: int = integer("number of records in the body")
    cursor: str = text("cursor of the next page, or empty", 256, default="")
    index_behind_bytes: int = integer("CommitLog bytes that the index does not cover yet", default=0)
    damaged: int = integer("records that the index has for the key but that are damaged in the log", default=0)


@dataclass(slots=True)
class ViewMessageByIdRequest:
    """Find one message by its offset id or its unique key."""

    id: str = text("offset id (32 or 56 hex digits) or unique key (any text chosen by a producer)", KEY_CHARS_MAX, 1)
    topic: str = text("topic of a unique key; empty: search every user topic", 32767, default="")


@dataclass(slots=True)
class ViewMessageAnswer:
    """The message. Body: one u32 size, then the record."""

    count: int = integer("always 1")


@dataclass(slots=True)
class BrowseMessagesRequest:
    """Show a page of a topic: the messages of all queues in the order in which they were stored, with the beginnings of
    their bodies. At most one of `physical`, `since_ms` and `queue_offset` says where the page begins; without one it
    begins at the newest message, or at the oldest if `backward` is false."""

    topic: str = text("topic to show", 32767, 1)
    queue: int = integer("the only queue to show; -1: all", -1, QUEUES_MAX - 1, -1)
    backward: bool = boolean("newest first, from before the position; else oldest first, from the position on", True)
    physical: int = integer("position as a physical offset, such as `next_physical` of a response; -1", -1, I64_MAX, -1)
    since_ms: int = integer("position as a store time, ms since 1970 UTC; -1", -1, I64_MAX, -1)
    queue_offset: int = integer("position as an offset of `queue`; -1", -1, I64_MAX, -1)
    count: int = integer("maximum number of messages in the response", 1, BROWSE_COUNT_MAX, 50)
    body_bytes: int = integer("maximum bytes of each body, as stored, in the response", 0, BROWSE_BODY_BYTES_MAX, 256)
    tags: str = text("`a || b`: only messages with the hash of one of these tags; empty or `*`: all", 4096, default="")
    filter: str = text(
        "SQL92 condition: only messages whose properties match, in addition to `tags`; empty: all",
        FILTER_CHARS_MAX,
        default="",
    )
    scan_max: int = integer(
        "maximum number of messages to look at if `tags` or `filter` is given", 1, BROWSE_SCAN_MAX, 10_000
    )


@dataclass(slots=True)
class BrowseMessagesAnswer:
    """Body: one msgpack array of `[queue, queue_offset, physical_offset, record_bytes, flag, sys_flag, born_ms,
    stored_ms, born_host, reconsume_times, body_bytes, body, properties, offset_id]`. `body_bytes` is the size of the
    stored body, `body` its beginning and `properties` all properties (both binary, as stored)."""

    count: int = integer("number of messages in the body; the broker sends fewer than asked for rather than over 1 MiB")
    next_physical: int = integer("`physical` of the next page in this direction, or -1", -1, I64_MAX)
    examined: int = integer("number of messages looked at")
    reached_ms: int = integer("store time of the last one, ms since 1970 UTC, or -1", -1, I64_MAX)
    reached_physical: int = integer("physical offset of the last one, or -1", -1, I64_MAX)
    lost: int = integer("number of messages on the way that are damaged or in quarantine")
    messages: int = integer("number of messages in the queues")
    max_offsets: int = integer("sum of the queues' max offsets, which grows by one with each message")


PRODUCE = Command(10, ProduceRequest, "append messages", rules.topic(PUBLISH), answer=ProduceAnswer, one_way=True)
PULL = Command(
    11,
    PullRequest,
    "read a queue from an offset on, waiting for messages if asked to",
    rules.of_group_in_topic(CONSUME, CONSUME),
    ServedBy.READERS,
    answer=RecordsAnswer,
)
QUERY_BY_KEY = Command(
    12,
    QueryByKeyRequest,
    "find messages by a key, newest first",
    rules.topic(QUERY),
    ServedBy.READERS,
    answer=QueryByKeyAnswer,
)
VIEW_MESSAGE_BY_ID = Command(
    33,
    ViewMessageByIdRequest,
    "find one message by either form of id",
    rules.topic(QUERY),
    ServedBy.READERS,
    answer=ViewMessageAnswer,
)
BROWSE_MESSAGES = Command(
    1016,
    BrowseMessagesRequest,
    "a page of a topic across its queues, bodies cut",
    rules.topic(QUERY),
    ServedBy.READERS,
    answer=BrowseMessagesAnswer,
)


# ---- Offsets of queues and of groups.

CONSUMER_OFFSET_STRUCT = struct.Struct(">iq")
"""Queue and its next offset, in the body of the consumer-offset commands."""


@dataclass(slots=True)
class QueueRequest:
    """Query one queue."""

    topic: str = text("topic", 32767, 1)
    queue: int = integer("queue of the topic", 0, QUEUES_MAX - 1)


@dataclass(slots=True)
class SearchOffsetByTimestampRequest:
    """Find the first offset whose store time is at or after a time."""

    topic: str = text("topic", 32767, 1)
    queue: int = integer("queue of the topic", 0, QUEUES_MAX - 1)
    timestamp_ms: int = integer("ms since 1970 UTC")


@dataclass(slots=True)
class OffsetAnswer:
    """A queue offset."""

    offset: int = integer("queue offset")


@dataclass(slots=True)
class TimeOffsetAnswer:
    """The queue offset at a store time."""

    offset: int = integer("queue offset; the queue's max offset if nothing was stored at the time or later")
    left_ms: int = integer(
        "ms after which the time has come by the broker's clock; 0: it has, and the offset stays", 0, default=0
    )


@dataclass(slots=True)
class StoreTimeAnswer:
    """The store time of a queue's first message."""

    timestamp_ms: int = integer("ms since 1970 UTC; -1: the queue is empty", -1)


@dataclass(slots=True)
class QueryConsumerOffsetRequest:
    """Query a group's committed offsets."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    topic: str = text("topic", 32767, 1)
    queue: int = integer("queue of the topic; -1: all", -1, QUEUES_MAX - 1, -1)


@dataclass(slots=True)
class ConsumerOffsetsAnswer:
    """Body: count × (i32 queue, i64 next offset), only for queues with a committed offset."""

    count: int = integer("number of entries in the body")


@dataclass(slots=True)
class UpdateConsumerOffsetRequest:
    """Commit a group's offsets. Body: count × (i32 queue, i64 next offset)."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    topic: str = text("topic", 32767, 1)
    count: int = integer("number of entries in the body", 1, QUEUES_MAX)
    member: str = text("member that commits; empty: none", MEMBER_CHARS_MAX, default="")
    epoch: int = integer("epoch of the member's assignment", 0, I64_MAX, 0)


@dataclass(slots=True)
class ConsumeStatsRequest:
    """Query the progress of consumer groups."""

    group: str = text("consumer group; empty: all", GROUP_BYTES_MAX, default="")
    topic: str = text("topic; empty: all", 32767, default="")
    uncommitted: bool = boolean("also queues without a committed offset of the group", False)
    times: bool = boolean("with `uncommitted`: also the store time of the next message to read", False)


@array_row
class ConsumeStats:
    """A group's progress in one queue, which has the offsets in ``[min_offset, max_offset)``.

    A group that has not committed an offset reads the queue from its first message, unless ``known`` is False.
    """

    group: str = column("name of the group", "group", ValueKind.NAME, fold=True)
    topic: str = column("name of the topic", "topic", ValueKind.NAME, fold=True)
    queue: int = column("queue of the topic", "queue", ValueKind.COUNT)
    committed: int = column(
        "offset of the next message to read; -1: the group has committed none", "committed", ValueKind.COUNT
    )
    min_offset: int = column("offset of the first message of the queue", "first offset", ValueKind.COUNT, spare=True)
    max_offset: int = column("offset of the next message of the queue", "next offset", ValueKind.COUNT)
    known: bool = column(
        "only with `uncommitted`; False: the group has not started with the topic, and its first member will set the "
        "start rule",
        default=True,
    )
    next_stored_ms: int = column(
        "only with `times`: store time of the next message to read, ms since 1970 UTC, or -1: everything is read",
        default=-1,
    )

    @property
    def next_stored_at(self) -> datetime | None:
        """Store time of the next message to read; None if everything is read, or it was not asked for."""
        return from_millis(self.next_stored_ms) if self.next_stored_ms >= 0 else None

    @property
    @shown("lag", ValueKind.COUNT)
    def lag(self) -> int:
        """Number of messages still to read; an upper bound if not ``known``."""
        return max(0, self.max_offset - max(self.committed, self.min_offset))


QUERY_CONSUMER_OFFSET = Command(
    14,
    QueryConsumerOffsetRequest,
    "read what a group has committed",
    rules.of_group_in_topic(QUERY, QUERY),
    answer=ConsumerOffsetsAnswer,
)
UPDATE_CONSUMER_OFFSET = Command(
    15,
    UpdateConsumerOffsetRequest,
    "commit a group's progress",
    rules.of_group_in_topic(CONSUME, CONSUME),
    audit=Audit.BY_HAND,
    one_way=True,
)
SEARCH_OFFSET_BY_TIMESTAMP = Command(
    29,
    SearchOffsetByTimestampRequest,
    "find an offset by store time",
    rules.topic(QUERY),
    ServedBy.READERS,
    answer=TimeOffsetAnswer,
)
GET_MAX_OFFSET = Command(
    30, QueueRequest, "where a queue's next message will be", rules.topic(QUERY), ServedBy.READERS, answer=OffsetAnswer
)
GET_MIN_OFFSET = Command(
    31, QueueRequest, "where a queue begins", rules.topic(QUERY), ServedBy.READERS, answer=OffsetAnswer
)
GET_EARLIEST_MSG_STORETIME = Command(
    32,
    QueueRequest,
    "when a queue's first message was stored",
    rules.topic(QUERY),
    ServedBy.READERS,
    answer=StoreTimeAnswer,
)
GET_CONSUME_STATS = RowsCommand(
    208,
    ConsumeStatsRequest,
    "how far consumer groups are, and what the queues hold",
    rules.of_group_in_topic(QUERY, QUERY),
    rows=ConsumeStats,
)
