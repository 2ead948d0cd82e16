"""Names of the broker's internal topics and properties for delivery, the same as RocketMQ's.

A message that waits for its delivery (delayed, timed, half, retried) is a record in one of these topics, and its target
is in its properties. A rewritten record keeps them, so only topic and sys_flag tell what kind of record it is.
"""

from __future__ import annotations

from ..names import SYSTEM_TOPIC_PREFIX

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""Delayed messages: queue = level - 1; each unit's tag code is the time of delivery."""
TIMER_TOPIC = "rmq_sys_wheel_timer"
"""Messages with a time of delivery (TIMER_OUT_MS), in queue 0."""
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Half messages of open transactions, in queue 0."""
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""Half messages whose transactions have ended: queue offsets in HALF_TOPIC, each followed by a comma."""
TRANSACTION_PARKED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Half messages whose outcome no producer knew."""
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""Group whose committed offsets record the progress in HALF_TOPIC and OP_HALF_TOPIC."""
PARKED_TOPIC = "rmq_sys_flintmq_parked"
"""FlintMQ's own: delayed and timed messages that could not be delivered, in queue 0."""
PREPARED_TOPIC = "rmq_sys_flintmq_prepared"
"""FlintMQ's own: messages that were prepared for a transaction, in queue 0."""
OP_PREPARED_TOPIC = "rmq_sys_flintmq_prepared_op"
"""FlintMQ's own: notes on what happened to prepared messages, in queue 0."""
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
"""Notes on messages that groups missed because retention deleted them."""
RETRY_TOPIC_PREFIX = "%RETRY%"
DEAD_LETTER_TOPIC_PREFIX = "%DLQ%"
GROUP_TOPIC_PREFIXES = (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX)
"""Prefixes of topics that the broker creates for a group."""

UNREADABLE_TOPICS = frozenset(
    {SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, PREPARED_TOPIC, OP_PREPARED_TOPIC}
)
"""Topics that no client may pull: their messages are not delivered yet, or are of no use to clients."""

PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE = "REAL_QID"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
"""Topic that a retried message was first sent to."""
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
"""Offset id of the message that was first sent back."""
PROPERTY_RETRY_REASON = "RETRY_REASON"
"""FlintMQ's own: the consumer's reason why the latest attempt failed."""
PROPERTY_RETRY_MEMBER = "RETRY_MEMBER"
"""FlintMQ's own: the group member whose latest attempt failed."""
PROPERTY_FIRST_POP_TIME = "1ST_POP_TIME"
"""Time in ms at which a message that was popped and stored again had been popped first."""
RETRY_PROPERTIES = frozenset(
    {PROPERTY_RETRY_TOPIC, PROPERTY_ORIGIN_MESSAGE_ID, PROPERTY_RETRY_REASON, PROPERTY_RETRY_MEMBER}
)
"""Properties that the broker sets on a message that was sent back."""
PROPERTY_TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
PROPERTY_TIMER_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELAY_SECONDS = "TIMER_DELAY_SEC"
PROPERTY_TIMER_OUT_MS = "TIMER_OUT_MS"
"""Time at which a timed message is due, in ms, at a whole second."""
PROPERTY_TIMER_RECALLED = "TIMER_DEL_UNIQKEY"
"""Makes a timed record the recall of another one that is due in the same second: topic, ``+`` and unique key of it."""
PROPERTY_HALF = "TRAN_MSG"
"""``true`` if the producer sends a half message."""
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_TRANSACTION_ID = "__transactionId__"
TRANSACTION_ID_BYTES_MAX = 255
"""Maximum size of the unique key of a half message, in UTF-8: the broker keeps it in memory while the transaction is
open. Half messages that are already in the log may have a longer one."""
PROPERTY_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_RECORD_CRC = "__CRC32#"

TRANSACTION_PROPERTIES = frozenset(
    {PROPERTY_HALF, PROPERTY_PRODUCER_GROUP, PROPERTY_TRANSACTION_ID, PROPERTY_CHECK_TIMES}
)
"""Properties of a message's transaction; of no use to its consumers."""

MEMBER_SEPARATOR = ":"
"""Separates a broadcasting group from its member in the name under which the member's offsets are stored. It is not
allowed in a group's name, so that a member's offsets are never mistaken for another group's."""

DELAY_LEVEL_MAX = 18
RETRY_LEVEL_FIRST = 3
"""First delay level of a retry: a message that failed for the (n + 1)-th time comes back after delay level 3 + n."""
RETRY_TIMES_MAX = 16
"""Number of retries before a message becomes a dead letter, unless the group sets another."""
DEAD_LETTER_LEVEL = -1
"""Stands for a delay level: no further attempt."""
RETRY_REASON_CHARS_MAX = 1_024
"""Maximum length of a reason; the client cuts a longer one, the broker refuses it."""
_NO_CONTROLS = dict.fromkeys((*range(32), *range(127, 160), 0x2028, 0x2029), " ")

assert TIMER_TOPIC.startswith(SYSTEM_TOPIC_PREFIX)
assert PARKED_TOPIC.startswith(SYSTEM_TOPIC_PREFIX)
assert PREPARED_TOPIC.startswith(SYSTEM_TOPIC_PREFIX)
assert OP_PREPARED_TOPIC.startswith(SYSTEM_TOPIC_PREFIX)


def recalled_key(topic: str, unique_key: str) -> str:
    """Return the name of a timed message in its recall."""
    return f"{topic}+{unique_key}"


def retry_topic(group: str) -> str:
    """Return the topic of the messages that a consumer of the group sent back."""
    return RETRY_TOPIC_PREFIX + group


POP_RETRY_SEPARATOR = "+"
"""Separates group and topic in the name of a retry topic. No other name may contain it."""


def pop_retry_topic(group: str, topic: str) -> str:
    """Return the topic of the messages of ``topic`` whose time at a consumer of the group was over (RocketMQ's POP with
    ``enableRetryTopicV2``)."""
    return f"{RETRY_TOPIC_PREFIX}{group}{POP_RETRY_SEPARATOR}{topic}"


def old_pop_retry_topic(group: str, topic: str) -> str:
    """Return the name that such a topic had before, which may be that of another group and topic, too."""
    return f"{RETRY_TOPIC_PREFIX}{group}_{topic}"


def popped_from(group: str, topic: str) -> str:
    """Return the topic whose messages the group pops from ``topic``, a retry topic of either name; ``topic`` itself if
    it is not such a topic of the group."""
    of = pop_retry_topic if POP_RETRY_SEPARATOR in topic else old_pop_retry_topic
    return topic.removeprefix(of(group, "")) or topic


def group_of_retries(topic: str) -> str:
    """Return the group of a retry topic; all that follows the prefix if the name does not tell more."""
    return topic.removeprefix(RETRY_TOPIC_PREFIX).partition(POP_RETRY_SEPARATOR)[0]


def dead_letter_topic(group: str) -> str:
    """Return the topic of the messages that failed the group's last attempt."""
    return DEAD_LETTER_TOPIC_PREFIX + group


def retry_note(text: str) -> str:
    """Return ``text`` in the form of a retried message's property: one line without control characters, of at most
    ``RETRY_REASON_CHARS_MAX`` characters."""
    line = text.translate(_NO_CONTROLS).strip().encode("utf-8", "replace").decode()
    return line if len(line) <= RETRY_REASON_CHARS_MAX else line[: RETRY_REASON_CHARS_MAX - 1] + "…"
