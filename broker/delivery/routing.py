"""Routing of a frame's messages: to their own topic, or to a system topic in which half and delayed ones wait.

A frame asks for either in its common properties, as RocketMQ's producers do: ``DELAY`` (a level), ``TIMER_DELIVER_MS``
(ms since 1970), ``TIMER_DELAY_MS`` or ``TIMER_DELAY_SEC``; ``TRAN_MSG`` = ``true`` for half messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from ...protocol.errors import DelayIllegal, InvalidParameter
from ...protocol.names import check_name
from ...protocol.storage.delivery import (
    DELAY_LEVEL_MAX,
    PROPERTY_HALF,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SECONDS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_RECALLED,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    recalled_key,
)
from ...protocol.storage.record import PROPERTY_DELAY, PROPERTY_TAGS, PROPERTY_UNIQ_KEY, encode_properties
from ..memo import remembered
from ..store import TopicConfig, common_properties

PAST_MS_MAX = 60_000
"""Greatest age of a delivery time that means immediate delivery: clocks differ, and a producer may have retried. An
older delivery time is a mistake."""
DAY_MS = 86_400_000
SECOND_MS = 1_000
DIGITS_MAX = 15
RECALL_TAG = "_RECALL_TAG_"
"""Tag of the records that recall a timed message."""

SCHEDULE_CONFIG = TopicConfig(SCHEDULE_TOPIC, read_queues=DELAY_LEVEL_MAX, write_queues=DELAY_LEVEL_MAX)
TIMER_CONFIG = TopicConfig(TIMER_TOPIC, read_queues=1, write_queues=1)

_TIMES = (PROPERTY_TIMER_DELIVER_MS, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELAY_SECONDS)


class Delay(NamedTuple):
    """The delay that a frame asks for: name and value of its property, and the frame's other properties."""

    name: str
    value: int
    others: str


class Route(NamedTuple):
    """The topic and queue that a frame's records go to instead of their own, and their common properties there."""

    config: TopicConfig
    queue: int
    common: bytes


@dataclass(frozen=True, slots=True)
class HalfRequest:
    """The request of a frame with half messages: the producer group, and the other common properties, encoded."""

    group: str
    common: bytes


@remembered(1024)
def half_request(common: str) -> HalfRequest | None:
    """Return the request in a frame's common properties; None if they do not ask for half messages.

    Raises ``MessageIllegal`` or ``InvalidParameter`` if the request is not valid.
    """
    # A search for the name spares all other frames the parsing.
    if PROPERTY_HALF not in common:
        return None
    pairs = [pair.partition("\x01")[::2] for pair in common.split("\x02") if pair]
    asked = [value for name, value in pairs if name == PROPERTY_HALF]
    if not asked:
        return None
    if asked != ["true"]:
        raise InvalidParameter(f"{PROPERTY_HALF} must be `true` or be absent, got {asked[-1][:40]!r}")
    groups = [value for name, value in pairs if name == PROPERTY_PRODUCER_GROUP]
    if len(groups) != 1:
        raise InvalidParameter(
            f"a half message needs one producer group in the common property {PROPERTY_PRODUCER_GROUP}: the broker "
            "asks the group's producers if the transaction is not ended in time"
        )
    for name, _ in pairs:
        if name == PROPERTY_DELAY or name in _TIMES:
            raise InvalidParameter(f"a half message cannot be delayed: omit {name} or {PROPERTY_HALF}")
        if name == PROPERTY_UNIQ_KEY:
            raise InvalidParameter(f"{name} must not be a common property; each half message needs its own")
    rest = [(name, value) for name, value in pairs if name not in (PROPERTY_HALF, PROPERTY_PRODUCER_GROUP)]
    own = common_properties("".join(f"{name}\x01{value}\x02" for name, value in rest))
    return HalfRequest(check_name("group", groups[0]), own)


@remembered(1024)
def delay_of(common: str) -> Delay | None:
    """Return the delay that a frame's common properties ask for; None if they ask for none. Raises ``DelayIllegal``."""
    # A search for the names spares nearly all frames, which ask for no delay, the parsing.
    if PROPERTY_DELAY not in common and "TIMER_" not in common:
        return None
    asked: dict[str, str] = {}
    others = []
    for pair in common.split("\x02"):
        name, _, value = pair.partition("\x01")
        if name in _TIMES or (name == PROPERTY_DELAY and _is_level(value)):
            # Java's parseInt, with which RocketMQ reads a level, accepts a plus sign.
            asked[name] = value.removeprefix("+") if name == PROPERTY_DELAY else value
        elif pair:
            others.append(pair + "\x02")
    if not asked:
        return None
    if len(asked) > 1:
        raise DelayIllegal(f"the messages ask for several delays, {' and '.join(sorted(asked))}; set only one of them")
    ((name, value),) = asked.items()
    if not (value.isascii() and value.isdigit() and len(value) <= DIGITS_MAX):
        raise DelayIllegal(f"{name} must be a non-negative integer, got {value!r:.40}")
    return Delay(name, int(value), "".join(others))


def _is_level(value: str) -> bool:
    """Return whether a DELAY value asks for a delay: 0 and below ask for none.

    A value that is not a number is not a delay either; the check of the properties refuses it.
    """
    digits = value.removeprefix("+")
    return digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX and int(digits) > 0


def route(delay: Delay, topic: str, queue: int, now_ms: int, max_days: int) -> Route | None:
    """Return where messages for ``queue`` of ``topic`` wait; None if they are already due. Raises ``DelayIllegal``."""
    bookkeeping = {PROPERTY_REAL_TOPIC: topic, PROPERTY_REAL_QUEUE: str(queue)}
    if delay.name == PROPERTY_DELAY:
        # As in RocketMQ, a level above the last one counts as the last one.
        level = min(delay.value, DELAY_LEVEL_MAX)
        own = {PROPERTY_DELAY: str(level), **bookkeeping}
        return Route(SCHEDULE_CONFIG, level - 1, common_properties(delay.others) + encode_properties(own))
    deliver_ms = deliver_at_ms(delay, now_ms)
    if deliver_ms <= now_ms - PAST_MS_MAX:
        raise DelayIllegal(
            f"the delivery time, {_time(deliver_ms)}, has passed: the broker's clock says {_time(now_ms)}; "
            "pass a time in the future, or none to deliver the messages immediately"
        )
    if deliver_ms > now_ms + max_days * DAY_MS:
        raise DelayIllegal(
            f"the delivery time, {_time(deliver_ms)}, is {(deliver_ms - now_ms) / DAY_MS:,.1f} days from now, more "
            f"than delivery.delay_max_days ({max_days}); pass an earlier time, or raise the limit",
            delay_max_days=max_days,
        )
    if deliver_ms <= now_ms:
        return None
    own = {delay.name: str(delay.value), **bookkeeping, PROPERTY_TIMER_OUT_MS: str(_out_ms(deliver_ms))}
    return Route(TIMER_CONFIG, 0, common_properties(delay.others) + encode_properties(own))


def route_recall(topic: str, unique_key: str, deliver_ms: int) -> Route:
    """Return where the recall of a timed message waits, and its properties, as RocketMQ writes them."""
    own = {
        PROPERTY_TAGS: RECALL_TAG,
        PROPERTY_UNIQ_KEY: unique_key,
        PROPERTY_TIMER_RECALLED: recalled_key(topic, unique_key),
        PROPERTY_TIMER_DELIVER_MS: str(deliver_ms),
        PROPERTY_REAL_TOPIC: topic,
        PROPERTY_REAL_QUEUE: "0",
        PROPERTY_TIMER_OUT_MS: str(_out_ms(deliver_ms)),
    }
    return Route(TIMER_CONFIG, 0, encode_properties(own))


def _out_ms(deliver_ms: int) -> int:
    """Return the last full second before a delivery time.

    RocketMQ delivers when that second is over: never early, up to a second late.
    """
    return (deliver_ms - 1) // SECOND_MS * SECOND_MS


def _time(ms: int) -> str:
    """Format a time in ms since 1970 for a message: ``2026-11-21 10:00:00 UTC``."""
    try:
        return f"{datetime.fromtimestamp(ms // SECOND_MS, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms since 1970"


def deliver_at_ms(delay: Delay, now_ms: int) -> int:
    """Return the delivery time that a timed message asks for, ms since 1970."""
    if delay.name == PROPERTY_TIMER_DELIVER_MS:
        return delay.value
    return now_ms + delay.value * (SECOND_MS if delay.name == PROPERTY_TIMER_DELAY_SECONDS else 1)
