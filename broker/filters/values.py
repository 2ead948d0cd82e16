"""Values of properties: found in a record's bytes, and read as what they are compared with."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from ...protocol.record import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

Source: TypeAlias = Any
"""Where the values of one message come from: what ``Lookup.source`` made of its properties."""

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
    property.
    """

    ASKED_FEW = 6
    """Up to here it is faster to search for each name than to take all properties apart."""

    def __init__(self, asked: int) -> None:
        self._few = asked <= self.ASKED_FEW

    def source(self, properties: bytes) -> Source:
        """What the functions of ``getter`` are called with, from a record's properties."""
        if self._few:
            return PROPERTY_SEPARATOR + properties
        found = {}
        for pair in properties.split(PROPERTY_SEPARATOR):
            name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
            if value:
                found[name] = value
        return found

    def getter(self, name: str) -> Callable[[Source], bytes | None]:
        """A function that gives the value of the property, None where the message has none."""
        encoded = name.encode()
        return _searching(encoded) if self._few else _looking_up(encoded)


def _looking_up(name: bytes) -> Callable[[Source], bytes | None]:
    def get(found: dict[bytes, bytes]) -> bytes | None:
        return found.get(name)

    return get


def _searching(name: bytes) -> Callable[[Source], bytes | None]:
    head = PROPERTY_SEPARATOR + name + NAME_VALUE_SEPARATOR
    head_bytes = len(head)

    def get(source: bytes) -> bytes | None:
        # 0x02 stands in front of every name and nowhere else.
        at = source.rfind(head)
        while at >= 0:
            begin = at + head_bytes
            end = source.find(PROPERTY_SEPARATOR, begin)
            value = source[begin:] if end < 0 else source[begin:end]
            if value:
                return value
            at = source.rfind(head, 0, at)
        return None

    return get
