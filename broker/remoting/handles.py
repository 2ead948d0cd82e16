"""Handles that the gateway gives to RocketMQ's clients: of timed messages, to recall them, and of popped messages, to
settle them."""

from __future__ import annotations

import base64
import re
from typing import NamedTuple

from ...protocol.errors import BrokerError, InvalidParameter
from ...protocol.fields import I64_MAX
from ...protocol.remoting import codes
from ...protocol.storage.delivery import POP_RETRY_SEPARATOR, RETRY_TOPIC_PREFIX, old_pop_retry_topic, pop_retry_topic
from ..delivery.pop.table import QueueKey
from ..handlers.pop import PoppedQueue

# ---- Handles by which producers recall timed messages before their delivery.

_VERSION = "v1"
_SECOND_MS = 1_000
_TIME = re.compile(r"[0-9]{1,15}\Z")
_UNIQUE_KEY = re.compile(r"[^\x00-\x20\x7f]{1,255}\Z")
_BASE64 = re.compile(r"[A-Za-z0-9_-]{1,4096}={0,2}\Z")


class RecallRefused(BrokerError):
    """A message cannot be recalled: its handle is not valid here, or no longer."""

    code, name, retriable = codes.ILLEGAL_OPERATION, "ILLEGAL_OPERATION", False


class RecallHandle(NamedTuple):
    """The parts of a handle. ``deliver_ms``: time of delivery, ms since 1970, in the second of the message's own."""

    topic: str
    broker: str
    deliver_ms: int
    unique_key: str


def recall_handle(topic: str, broker: str, deliver_ms: int, unique_key: str) -> str:
    """Return the handle of a timed message, as RocketMQ's ``RecallMessageHandle``.

    It names the millisecond after ``TIMER_OUT_MS``: the last full second before the delivery time, ms since 1970.
    """
    out_ms = (deliver_ms - 1) // _SECOND_MS * _SECOND_MS
    text = f"{_VERSION} {topic} {broker} {out_ms + 1} {unique_key}"
    return base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode()


def split_recall_handle(text: str) -> RecallHandle:
    """Return the parts of a handle. Raises ``RecallRefused``."""
    try:
        # ``urlsafe_b64decode`` passes over characters that are not base64.
        if not _BASE64.match(text):
            raise ValueError
        unpadded = text.rstrip("=")
        parts = base64.urlsafe_b64decode(unpadded + "=" * (-len(unpadded) % 4)).decode().split(" ")
    except ValueError:
        parts = []
    # RocketMQ ignores what follows the fifth part.
    if len(parts) < 5 or parts[0] != _VERSION or not _UNIQUE_KEY.match(parts[4]):
        raise RecallRefused(
            "recall handle is invalid; pass the recallHandle of the answer to the send of the timed message, unchanged"
        )
    # RocketMQ reads a time that is not a number as one that has passed.
    return RecallHandle(parts[1], parts[2], int(parts[3]) if _TIME.match(parts[3]) else -1, parts[4])


# ---- Receipt handles of popped messages, as RocketMQ's ``ExtraInfoUtil`` builds and reads them.
#
# A handle is ``start popTime invisibleTime reviveQueue retry broker queue offset``, separated by spaces.
# Clients build it from the fields of the answer to a pop, and for a message of a retry topic the broker puts
# it into a property.

ORDERED_REVIVE_QUEUE = 999
"""``reviveQid`` that says that a message was popped in order."""
REVIVE_QUEUE = 0
"""``reviveQid`` of all others: FlintMQ has no revive topic, so its queue has no meaning."""
PROPERTY_POP_CK = "POP_CK"
OF_TOPIC = "0"
OF_OLD_RETRY_TOPIC = "1"
OF_RETRY_TOPIC = "2"
_HANDLE_PARTS = 8


class PopReceipt(NamedTuple):
    """The parts of a handle that the broker reads."""

    pop_ms: int
    revive_queue: int
    mark: str


def parse_receipt(text: str) -> PopReceipt:
    """Return the parts of a handle. Raises ``InvalidParameter``."""
    parts = text.split(" ")
    if len(parts) < _HANDLE_PARTS:
        raise InvalidParameter(
            f"extraInfo has {len(parts)} parts, and a receipt handle has {_HANDLE_PARTS}; send the one of the message"
        )
    return PopReceipt(_number("popTime", parts[1]), _number("reviveQid", parts[3]), parts[4])


def _number(name: str, text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else -1
    if not 0 <= number <= I64_MAX:
        raise InvalidParameter(f"{name} in extraInfo must be an integer from 0 to {I64_MAX}, got {text[:40]!r}")
    return number


def retry_mark(topic: str) -> str:
    """Return what a handle says about the kind of a topic."""
    if not topic.startswith(RETRY_TOPIC_PREFIX):
        return OF_TOPIC
    return OF_RETRY_TOPIC if POP_RETRY_SEPARATOR in topic else OF_OLD_RETRY_TOPIC


def queue_of(group: str, topic: str, mark: str, queue: int) -> QueueKey:
    """Return the queue that a batch of acknowledgements names. Raises ``InvalidParameter``."""
    if mark == OF_RETRY_TOPIC:
        topic = pop_retry_topic(group, topic)
    elif mark == OF_OLD_RETRY_TOPIC:
        topic = old_pop_retry_topic(group, topic)
    elif mark != OF_TOPIC:
        raise InvalidParameter(
            f"an acknowledgement of a topic of kind {mark[:20]!r}; 0 (topic), 1 and 2 (retry) are known"
        )
    return QueueKey(group, topic, queue)


def handle_of(
    popped: PoppedQueue, offset: int, *, pop_ms: int, invisible_ms: int, revive_queue: int, broker: str
) -> str:
    """Return the handle of one message."""
    return (
        f"{popped.start} {pop_ms} {invisible_ms} {revive_queue} {retry_mark(popped.topic)} {broker} {popped.queue} "
        f"{offset}"
    )


def start_offset_info(queues: list[PoppedQueue]) -> str:
    """Return where the read of each queue began."""
    return ";".join(f"{retry_mark(each.topic)} {each.queue} {each.start}" for each in queues)


def message_offset_info(queues: list[PoppedQueue]) -> str:
    """Return the offsets of the messages of each queue."""
    return ";".join(f"{retry_mark(each.topic)} {each.queue} {','.join(map(str, each.offsets))}" for each in queues)


def order_count_info(queues: list[PoppedQueue]) -> str:
    """Return how often the messages of ordered queues had been delivered before: a count for each redelivered message,
    and for each queue its lowest count, which old clients read."""
    parts = []
    for each in queues:
        mark = retry_mark(each.topic)
        parts += [f"{mark} qo{each.queue}%{offset} {count}" for offset, count in each.counts.items() if count]
        parts.append(f"{mark} {each.queue} {min(each.counts.values(), default=0)}")
    return ";".join(parts)
