"""Values of properties: found in a record's bytes, and read as what they are compared with."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from ...protocol.record import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

Source: TypeAlias = Any
"""Where the values of one message come from: its properties with 0x02 in front, or what ``take_apart`` made of them."""

NUMBER_BYTES_MAX = 64
"""A property that is longer is no number."""
_DIGITS_MAX = 18
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+(\.[0-9]*)?|(\.[0-9]+))([eE][+-]?[0-9]+)?")


def number_of(value: bytes) -> int | float | None:
    """The number that a property reads as, None where it is none: an optional sign, digits, a fraction, an exponent."""
    if len(value) <= _DIGITS_MAX and value.isdigit():
        return int(value)
    found = _NUMBER.fullmatch(value) if len(value) <= NUMBER_BYTES_MAX else None
    if found is None:
        return None
    return int(value) if found.lastindex is None else float(value)


def truth_of(value: bytes) -> bool:
    """As in Java: ``true`` in any case is TRUE, everything else FALSE."""
    return value.lower() == b"true"


class Lookup:
    """How the properties of a message are found, for a filter that asks so many times.

    Values are those of ``decode_properties``: of two with the same name the last one counts, one without a value is no
    property. ``apart``: whether all properties are taken apart first; up to ``ASKED_FEW`` it is faster to search for
    each name.
    """

    ASKED_FEW = 8

    def __init__(self, asked: int) -> None:
        self.apart = asked > self.ASKED_FEW

    def getter(self, name: str) -> Callable[[Source], bytes | None]:
        """A function that gives the value of the property, None where the message has none."""
        encoded = name.encode()
        return _looking_up(encoded) if self.apart else _searching(encoded)


def take_apart(properties: bytes) -> dict[bytes, bytes]:
    """All properties by name."""
    found = {}
    for pair in properties.split(PROPERTY_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if value:
            found[name] = value
    return found


def _looking_up(name: bytes) -> Callable[[Source], bytes | None]:
    def get(found: dict[bytes, bytes]) -> bytes | None:
        return found.get(name)

    return get


def _searching(name: bytes) -> Callable[[Source], bytes | None]:
    # 0x02 stands in front of every name and nowhere else.
    head = PROPERTY_SEPARATOR + name + NAME_VALUE_SEPARATOR

    def get(source: bytes) -> bytes | None:
        rest = source
        while True:
            rest, found, behind = rest.rpartition(head)
            if not found:
                return None
            if value := behind.partition(PROPERTY_SEPARATOR)[0]:
                return value

    return get
