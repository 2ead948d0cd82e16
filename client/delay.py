"""When a message is to be delivered, as its sender says it and as PRODUCE takes it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from ..protocol.delivery import DELAY_LEVEL_MAX, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELIVER_MS
from ..protocol.record import PROPERTY_DELAY, decode_properties, encode_properties
from .core.times import from_millis, to_millis
from .errors import InvalidArgument, InvalidArgumentType, InvalidMessage, InvalidMessageType

DELAY_LEVEL_SECONDS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""RocketMQ's delay levels, from level 1 on."""
_MILLISECOND = timedelta(milliseconds=1)
_SECOND_MS = 1_000


def delay_properties(delay_level: Any, deliver_at: Any, delay: Any) -> str:
    """The common properties of a frame whose messages have this delay; at most one of the three is given.

    Raises ``InvalidMessage`` where it cannot be one. Whether a time is past or too far is the broker's to say: its
    clock counts.
    """
    given = {"delay_level": delay_level, "deliver_at": deliver_at, "delay": delay}
    names = [name for name, value in given.items() if value is not None]
    if not names:
        return ""
    if len(names) > 1:
        raise InvalidMessage(f"{' and '.join(names)} say different things: give one of them")
    if deliver_at is not None:
        name, value = PROPERTY_TIMER_DELIVER_MS, _deliver_ms(deliver_at)
    elif delay is not None:
        name, value = PROPERTY_TIMER_DELAY_MS, _delay_ms(delay)
    else:
        name, value = PROPERTY_DELAY, _level(delay_level)
    return encode_properties({name: str(value)}).decode()


def _deliver_ms(deliver_at: Any) -> int:
    try:
        millis = to_millis("deliver_at", deliver_at)
    except InvalidArgumentType as error:
        raise InvalidMessageType(str(error)) from None
    except InvalidArgument as error:
        raise InvalidMessage(str(error)) from None
    # Delivery is to the second: up to it, so that messages of one second share a frame.
    return -(-millis // _SECOND_MS) * _SECOND_MS


def _delay_ms(delay: Any) -> int:
    if not isinstance(delay, timedelta):
        raise InvalidMessageType(f"delay must be a timedelta, not {type(delay).__name__}")
    if delay < timedelta(0):
        raise InvalidMessage(f"delay is {delay}; a message cannot be delivered before it is sent")
    return -(-delay // _MILLISECOND)


def _level(level: Any) -> int:
    if type(level) is not int:
        raise InvalidMessageType(f"delay_level must be an int, not {type(level).__name__}")
    if not 1 <= level <= DELAY_LEVEL_MAX:
        raise InvalidMessage(
            f"delay_level is {level}; the levels are 1 to {DELAY_LEVEL_MAX} (1 s to 2 h); any other delay is delay= or "
            "deliver_at="
        )
    return level


def deliver_ms_of(properties: str, stored_ms: int) -> int | None:
    """When the broker delivers a message with these common properties that it stored at ``stored_ms``, both in ms since
    1970 UTC; None: at once."""
    level, deliver_at, delay = delay_of(properties)
    if level is not None:
        return stored_ms + DELAY_LEVEL_SECONDS[min(level, DELAY_LEVEL_MAX) - 1] * _SECOND_MS
    if deliver_at is not None:
        deliver_ms = to_millis("deliver_at", deliver_at)
    else:
        deliver_ms = stored_ms + (delay // _MILLISECOND if delay is not None else 0)
    return deliver_ms if deliver_ms > stored_ms else None


def delay_of(properties: str) -> tuple[int | None, datetime | None, timedelta | None]:
    """(delay_level, deliver_at, delay) of what ``delay_properties`` made."""
    found = decode_properties(properties.encode())
    level, deliver_ms, delay_ms = map(found.get, (PROPERTY_DELAY, PROPERTY_TIMER_DELIVER_MS, PROPERTY_TIMER_DELAY_MS))
    return (
        int(level) if level else None,
        from_millis(int(deliver_ms)) if deliver_ms else None,
        timedelta(milliseconds=int(delay_ms)) if delay_ms else None,
    )
