"""Values of properties: their look-up in a record's bytes, and their conversion for comparisons."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from ...protocol.storage.record import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

Source: TypeAlias = Any
"""Source of one message's values: its encoded properties after a 0x02, or the result of ``take_apart``."""

NUMBER_BYTES_MAX = 64
"""Maximum length of a property that counts as a number."""
_DIGITS_MAX = 18
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+(\.[0-9]*)?|(\.[0-9]+))([eE][+-]?[0-9]+)?")


def number_of(value: bytes) -> int | float | None:
    """Return a property as a number (optional sign, digits, fraction, exponent); None if it is not a number."""
    # The usual case, without the regular expression; 18 digits are below the largest integer.
    if len(value) <= _DIGITS_MAX and value.isdigit():
        return int(value)
    found = _NUMBER.fullmatch(value) if len(value) <= NUMBER_BYTES_MAX else None
    if found is None:
        return None
    return int(value) if found.lastindex is None else float(value)


def truth_of(value: bytes) -> bool:
    """Return a property as a boolean. As in Java, ``true`` in any case is TRUE and everything else FALSE."""
    return value.lower() == b"true"


class Lookup:
    """Look-up of a message's properties for a filter that does up to ``asked`` look-ups.

    Values are as in ``decode_properties``: the last one of a name counts, and a name without a value is not a property.
    ``apart``: all properties are decoded first; up to ``ASKED_FEW`` look-ups it is faster to search for each name.
    """

    ASKED_FEW = 8

    def __init__(self, asked: int) -> None:
        self.apart = asked > self.ASKED_FEW

    def getter(self, name: str) -> Callable[[Source], bytes | None]:
        """Return a function that returns the property's value, or None if the message does not have it."""
        encoded = name.encode()
        return _looking_up(encoded) if self.apart else _searching(encoded)


def take_apart(properties: bytes) -> dict[bytes, bytes]:
    """Decode all properties; return them by name."""
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
    # 0x02 is before every name and nowhere else, so a match is always a whole name.
    head = PROPERTY_SEPARATOR + name + NAME_VALUE_SEPARATOR

    def get(source: bytes) -> bytes | None:
        # From the end, because the last value of a name counts.
        rest = source
        while True:
            rest, found, after = rest.rpartition(head)
            if not found:
                return None
            # A name without a value is not a property, so an earlier one of the same name counts.
            if value := after.partition(PROPERTY_SEPARATOR)[0]:
                return value

    return get
