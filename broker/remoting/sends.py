"""The fields of a send, and the properties of its message: what is stored, and what decides where it goes."""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple

from ...protocol.errors import DelayIllegal
from ...protocol.remoting import codes
from ...protocol.remoting.command import REGION
from ...protocol.storage.delivery import (
    PROPERTY_HALF,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SECONDS,
    PROPERTY_TIMER_DELIVER_MS,
)
from ...protocol.storage.record import (
    FORBIDDEN_PROPERTIES,
    FORBIDDEN_PROPERTY_PREFIX,
    PROPERTY_DELAY,
    PROPERTY_POP_CHECK_POINT,
    UNIQUE_PREFIX_DIGITS,
    unique_key,
)
from .json_fields import ExtFields

DEFAULT_TOPIC = "TBW102"
"""Topic whose route means that producers may create topics."""
DEFAULT_TOPIC_QUEUES = 8
KEPT_SYS_FLAG = 0x703
"""Bits of a send's ``sysFlag`` that are stored: compression and its kind."""
VERSION_MAX_RECONSUME_TIMES = 121
"""``MQVersion`` of 3.4.9, from which on a client says how often its group retries."""
PROPERTY_REGION = "MSG_REGION"
PROPERTY_TRACE = "TRACE_ON"
PROPERTY_CLUSTER = "CLUSTER"

_FIELDS = (
    "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties "
    "reconsumeTimes maxReconsumeTimes batch"
).split()
_SHORT_FIELDS = "a b c d e f g h i j l m".split()
_BROKER_PROPERTIES = frozenset((*FORBIDDEN_PROPERTIES, PROPERTY_POP_CHECK_POINT))
_STAMPS = (PROPERTY_REGION, PROPERTY_TRACE, PROPERTY_CLUSTER)
_UNIQUE_KEY = re.compile(r"[0-9A-F]{32}\Z")
_TIMES = (PROPERTY_TIMER_DELAY_SECONDS, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELIVER_MS)
DECIDING_PROPERTIES = frozenset({PROPERTY_DELAY, *_TIMES, PROPERTY_HALF})
"""Properties whose values decide where a message goes, or whether it is accepted at all."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}\Z")
_I32 = {"low": -(2**31), "high": 2**31 - 1}


class SendFields(NamedTuple):
    """The fields of a send, whichever of its codes it has. ``max_reconsume_times``: -1 if the client does not say."""

    group: str
    topic: str
    default_topic: str
    default_queues: int
    queue: int
    sys_flag: int
    born_ms: int
    flag: int
    properties: str
    reconsume_times: int
    max_reconsume_times: int
    batch: bool


def decode_send(code: int, version: int, ext: ExtFields) -> SendFields:
    """Return the fields of a send. ``version``: of the client. Raises ``InvalidParameter``."""
    names = _FIELDS if code in (codes.SEND_MESSAGE, codes.SEND_REPLY_MESSAGE) else _SHORT_FIELDS
    group, topic, default_topic, default_queues, queue, sys_flag, born, flag, properties, times, times_max, batch = (
        names
    )
    reconsume_times_max = ext.integer(times_max, -1, **_I32)
    return SendFields(
        ext.text(group),
        ext.text(topic),
        ext.text(default_topic, ""),
        ext.integer(default_queues, 4, **_I32),
        # For RocketMQ each negative number means any queue.
        max(ext.integer(queue, **_I32), -1),
        ext.integer(sys_flag, 0, **_I32) & KEPT_SYS_FLAG,
        max(ext.integer(born, 0, low=-(2**63)), 0),
        ext.integer(flag, 0, **_I32),
        ext.text(properties, ""),
        ext.integer(times, 0, **_I32),
        reconsume_times_max if version >= VERSION_MAX_RECONSUME_TIMES else -1,
        code == codes.SEND_BATCH_MESSAGE or ext.flag(batch),
    )


def split_properties(text: str) -> dict[str, str]:
    """Return the pairs of a properties text without those that lack a name or a value, or that only a broker may set:
    honest clients send both kinds."""
    pairs = {}
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value and name not in _BROKER_PROPERTIES and not name.startswith(FORBIDDEN_PROPERTY_PREFIX):
            pairs[name] = value
    return pairs


class Stamps:
    """The properties that the broker adds to each message, as RocketMQ's brokers do. ``always``: encoded."""

    def __init__(self, cluster: str) -> None:
        self.always = (
            f"{PROPERTY_REGION}\x01{REGION}\x02{PROPERTY_TRACE}\x01true\x02{PROPERTY_CLUSTER}\x01{cluster}\x02"
        )

    def of(self, properties: dict[str, str]) -> str:
        """Return the encoded stamps of a message; remove from its properties what an earlier broker stamped."""
        for name in _STAMPS:
            properties.pop(name, None)
        return self.always


def join_properties(properties: dict[str, str]) -> str:
    """Return the text of properties."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def sequence_of(unique_key: str) -> tuple[str, int] | None:
    """Return producer and number in a unique key as Java's and Go's clients make it on a host with an IPv4 address.

    None for any other key: those of hosts with IPv6 alone are longer than the store's index of producers takes.
    """
    if not _UNIQUE_KEY.match(unique_key):
        return None
    return unique_key[:UNIQUE_PREFIX_DIGITS], int(unique_key[UNIQUE_PREFIX_DIGITS:], 16)


def settle_delay(properties: dict[str, str], now_ms: int) -> tuple[int, str]:
    """Leave at most one delay among the properties, by RocketMQ's rules; return the delivery time, ms, 0 if none.

    A level excludes a time. A time that has passed means now: returned, too, is the text of the properties that say it,
    which the message keeps. Raises ``DelayIllegal`` if a time is not a number.
    """
    times = {name: properties.pop(name) for name in _TIMES if name in properties}
    level = properties.get(PROPERTY_DELAY, "")
    if not times or (_INTEGER.match(level) and int(level) > 0):
        return 0, ""
    # RocketMQ looks at them in this order, and only at the first that is there.
    name = next(name for name in _TIMES if name in times)
    if not _INTEGER.match(times[name]):
        raise DelayIllegal(f"{name} must be an integer, got {times[name]!r:.40}")
    value = int(times[name])
    if name != PROPERTY_TIMER_DELIVER_MS:
        value = now_ms + value * (1_000 if name == PROPERTY_TIMER_DELAY_SECONDS else 1)
    if value <= now_ms:
        return 0, join_properties(times)
    properties[PROPERTY_TIMER_DELIVER_MS] = str(value)
    return value, ""


def settle_half(properties: dict[str, str], group: str, reconsume_times: int) -> bool:
    """Return whether the message is a half message; leave the marks of one only then.

    ``group``: the producer's. A message that its consumer sends again keeps the mark without being a half message.
    """
    asked = properties.pop(PROPERTY_HALF, "").lower() == "true"
    if not asked or (reconsume_times > 0 and PROPERTY_DELAY in properties):
        return False
    properties[PROPERTY_HALF] = "true"
    properties.setdefault(PROPERTY_PRODUCER_GROUP, group)
    return True


# ---- Keys of messages whose clients give them none.


class UniqueKeys:
    """Numbered keys of one run of the broker. Belongs to the event loop."""

    def __init__(self) -> None:
        # Random, because keys of earlier runs are in the log.
        self.prefix = secrets.token_hex(UNIQUE_PREFIX_DIGITS // 2).upper()
        self._count = 0

    def take(self, count: int) -> int:
        """Return the first of ``count`` numbers that no other message gets."""
        first = self._count
        self._count += count
        return first

    def next_key(self) -> str:
        """Return a key that no other message has."""
        return unique_key(self.prefix, self.take(1))
