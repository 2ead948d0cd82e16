"""Names of what delivery is made of: the broker's topics and the properties in its records, as RocketMQ has them.

A message on its way (delayed, timed, half, retried) is a record in one of these topics; where it goes to stands in its
properties. A rewritten record keeps them, so what a record *is* follows from its topic and sys_flag alone.
"""

from __future__ import annotations

from .names import SYSTEM_TOPIC_PREFIX

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""Delayed messages: queue = level - 1, the time of delivery in each unit's tags code."""
TIMER_TOPIC = "rmq_sys_wheel_timer"
"""Messages with a time of delivery (TIMER_OUT_MS), in queue 0."""
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Messages of transactions that are not ended, in queue 0."""
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""Which of them are ended: queue offsets in HALF_TOPIC, each followed by a comma."""
TRANSACTION_PARKED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Half messages that nobody could tell the end of."""
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""The group whose offsets say how far HALF_TOPIC and OP_HALF_TOPIC are done."""
PARKED_TOPIC = "rmq_sys_flintmq_parked"
"""FlintMQ's own: delayed and timed messages that could not be delivered, in queue 0."""
PREPARED_TOPIC = "rmq_sys_flintmq_prepared"
"""FlintMQ's own: messages that were prepared for a transaction, in queue 0."""
OP_PREPARED_TOPIC = "rmq_sys_flintmq_prepared_op"
"""FlintMQ's own: what happened to them, in queue 0."""
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
"""What groups missed because retention took it."""
RETRY_TOPIC_PREFIX = "%RETRY%"
DEAD_LETTER_TOPIC_PREFIX = "%DLQ%"
GROUP_TOPIC_PREFIXES = (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX)
"""Topics that begin so were made by the broker for a group."""

UNREADABLE_TOPICS = frozenset({
    SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, PREPARED_TOPIC, OP_PREPARED_TOPIC,
})  # fmt: skip
"""Topics that nobody may pull: what is in them is not delivered yet, or is of no use to anybody."""

PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE = "REAL_QID"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
"""The topic that a retried message was first sent to."""
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
"""The offset id of the message that was first sent back."""
PROPERTY_RETRY_REASON = "RETRY_REASON"
"""FlintMQ's own: why the newest try failed, as its consumer said."""
PROPERTY_RETRY_MEMBER = "RETRY_MEMBER"
"""FlintMQ's own: the group's member with which the newest try failed."""
RETRY_PROPERTIES = frozenset({
    PROPERTY_RETRY_TOPIC, PROPERTY_ORIGIN_MESSAGE_ID, PROPERTY_RETRY_REASON, PROPERTY_RETRY_MEMBER,
})  # fmt: skip
"""What the broker notes on a message that was sent back."""
PROPERTY_TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
PROPERTY_TIMER_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELAY_SECONDS = "TIMER_DELAY_SEC"
PROPERTY_TIMER_OUT_MS = "TIMER_OUT_MS"
"""When a timed message is due, in ms, at a whole second."""
PROPERTY_HALF = "TRAN_MSG"
"""``true`` where a producer wants a half message."""
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_TRANSACTION_ID = "__transactionId__"
TRANSACTION_ID_BYTES_MAX = 255
"""What the unique key of a half message takes at most, in UTF-8: it is kept in memory while its transaction is open.
Of half messages that are in the log already it may be longer."""
PROPERTY_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_RECORD_CRC = "__CRC32#"

TRANSACTION_PROPERTIES = frozenset({
    PROPERTY_HALF, PROPERTY_PRODUCER_GROUP, PROPERTY_TRANSACTION_ID, PROPERTY_CHECK_TIMES,
})  # fmt: skip
"""What a message keeps of its transaction; of no use to who consumes it."""

MEMBER_SEPARATOR = ":"
"""Between a broadcasting group and its member, in the name under which the member's progress is kept. No group's name
has it, so that the progress of a member is never another group's."""

DELAY_LEVEL_MAX = 18
RETRY_LEVEL_FIRST = 3
"""A message that failed for the (n + 1)-th time comes back after delay level 3 + n."""
RETRY_TIMES_MAX = 16
"""How often a message is tried again before it becomes a dead letter, unless the group says otherwise."""
DEAD_LETTER_LEVEL = -1
"""In place of a delay level: no further try."""
RETRY_REASON_CHARS_MAX = 1_024
"""A longer reason is cut by the client, and refused by the broker."""
_NO_CONTROLS = dict.fromkeys((*range(32), *range(127, 160), 0x2028, 0x2029), " ")

assert TIMER_TOPIC.startswith(SYSTEM_TOPIC_PREFIX)
assert PARKED_TOPIC.startswith(SYSTEM_TOPIC_PREFIX)
assert PREPARED_TOPIC.startswith(SYSTEM_TOPIC_PREFIX)
assert OP_PREPARED_TOPIC.startswith(SYSTEM_TOPIC_PREFIX)


def retry_topic(group: str) -> str:
    """Where messages go that a consumer of the group could not handle."""
    return RETRY_TOPIC_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Where messages go that the group's consumers could not handle however often they tried."""
    return DEAD_LETTER_TOPIC_PREFIX + group


def retry_note(text: str) -> str:
    """Return ``text`` as a property of a retried message holds it: one line without control characters, of at most
    ``RETRY_REASON_CHARS_MAX`` characters."""
    line = text.translate(_NO_CONTROLS).strip().encode("utf-8", "replace").decode()
    return line if len(line) <= RETRY_REASON_CHARS_MAX else line[: RETRY_REASON_CHARS_MAX - 1] + "…"
