"""Delivery times of messages: conversion between the caller's arguments and PRODUCE's properties."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from ..protocol.storage.delivery import DELAY_LEVEL_MAX, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELIVER_MS
from ..protocol.storage.record import PROPERTY_DELAY, decode_properties, encode_properties
from ..protocol.times import from_millis
from .core.times import to_millis
from .errors import InvalidArgument, InvalidArgumentType, InvalidMessage, InvalidMessageType

DELAY_LEVEL_SECONDS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Seconds of RocketMQ's delay levels; the first element is level 1."""
DELAY_MAX = timedelta(days=36_500)
_MILLISECOND = timedelta(milliseconds=1)
_SECOND_MS = 1_000


def delay_properties(delay_level: Any, deliver_at: Any, delay: Any) -> str:
    """Return the common properties of a frame whose messages have this delay; at most one of the three may be given.

    Raises ``InvalidMessage`` if the value is not a delay. Only the broker checks whether a time is past or too far
    ahead, because its clock decides.
    """
    given = {"delay_level": delay_level, "deliver_at": deliver_at, "delay": delay}
    names = [name for name, value in given.items() if value is not None]
    if not names:
        return ""
    if len(names) > 1:
        raise InvalidMessage(f"{' and '.join(names)} cannot be combined: pass only one of them")
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
    # Delivery has a resolution of one second. Round up, so that messages of one second can share a frame.
    return -(-millis // _SECOND_MS) * _SECOND_MS


def _delay_ms(delay: Any) -> int:
    if not isinstance(delay, timedelta):
        raise InvalidMessageType(f"delay must be a timedelta, not {type(delay).__name__}")
    if not timedelta(0) <= delay <= DELAY_MAX:
        raise InvalidMessage(f"delay is {delay}; it must be from 0 to {DELAY_MAX}, and the broker may allow less")
    return -(-delay // _MILLISECOND)


def _level(level: Any) -> int:
    if type(level) is not int:
        raise InvalidMessageType(f"delay_level must be an int, not {type(level).__name__}")
    if not 1 <= level <= DELAY_LEVEL_MAX:
        raise InvalidMessage(
            f"delay_level is {level}; it must be from 1 to {DELAY_LEVEL_MAX} (1 s to 2 h); for any other delay use "
            "delay= or deliver_at="
        )
    return level


def deliver_ms_of(properties: str, stored_ms: int) -> int | None:
    """Return when the broker delivers a message that has these common properties and was stored at ``stored_ms``, both
    in ms since 1970 UTC; None: at once."""
    level, deliver_at, delay = delay_of(properties)
    if level is not None:
        return stored_ms + DELAY_LEVEL_SECONDS[min(level, DELAY_LEVEL_MAX) - 1] * _SECOND_MS
    if deliver_at is not None:
        deliver_ms = to_millis("deliver_at", deliver_at)
    else:
        deliver_ms = stored_ms + (delay // _MILLISECOND if delay is not None else 0)
    return deliver_ms if deliver_ms > stored_ms else None


def delay_of(properties: str) -> tuple[int | None, datetime | None, timedelta | None]:
    """Return the arguments (delay_level, deliver_at, delay) from which ``delay_properties`` made ``properties``."""
    found = decode_properties(properties.encode())
    level, deliver_ms, delay_ms = map(found.get, (PROPERTY_DELAY, PROPERTY_TIMER_DELIVER_MS, PROPERTY_TIMER_DELAY_MS))
    return (
        int(level) if level else None,
        from_millis(int(deliver_ms)) if deliver_ms else None,
        timedelta(milliseconds=int(delay_ms)) if delay_ms else None,
    )
