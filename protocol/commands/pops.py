"""Work queues: messages that consumers pop and settle one by one, each with a lease."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ..fields import I32_MAX, I64_MAX, integer, text
from ..storage.layout import GROUP_BYTES_MAX
from .common import FILTER_CHARS_MAX, QUEUES_MAX
from .table import Command

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


POP_MESSAGE = Command("POP_MESSAGE", 200050, PopMessageRequest, PopMessageAnswer)
ACK_MESSAGE = Command("ACK_MESSAGE", 200051, AckMessageRequest, ReceiptsAnswer)
CHANGE_MESSAGE_INVISIBLETIME = Command(
    "CHANGE_MESSAGE_INVISIBLETIME", 200053, ChangeInvisibleTimeRequest, ReceiptsAnswer
)
