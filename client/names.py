"""Encoding of names that RocketMQ's rule forbids for topics and groups, such as ``orders.v1`` and ``celery@host``.

The rule allows ``a-z A-Z 0-9 _ - | %``. Every other character, and ``%`` itself, becomes ``%`` and two upper-case
hexadecimal digits for each byte of its UTF-8: ``orders%2Ev1``. An encoded name cannot begin with the broker's own
``%RETRY%`` or ``%DLQ%``, because neither ``RE`` nor ``DL`` is hexadecimal.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias
from urllib.parse import unquote_to_bytes

from ..protocol.storage.layout import GROUP_BYTES_MAX, TOPIC_BYTES_MAX
from .errors import InvalidArgument, InvalidArgumentType

NameKind: TypeAlias = Literal["topic", "group"]

_LENGTHS: dict[NameKind, int] = {"topic": TOPIC_BYTES_MAX, "group": GROUP_BYTES_MAX}
_FORBIDDEN = re.compile(r"[^|a-zA-Z0-9_-]")
_SHOWN_CHARS = 40


def encode_name(name: str, kind: NameKind = "topic") -> str:
    """Return a valid name of a topic or (``kind="group"``) group that stands for any ``name``; ``decode_name`` inverts
    it.

    A valid name without ``%`` stays as it is. Do not encode a name twice. Raises ``InvalidArgument`` if the name is
    empty, is not Unicode text, or is too long once encoded: 127 characters for a topic, 120 for a group.
    """
    if type(name) is not str:
        raise InvalidArgumentType(f"the {kind} name must be a str, not {type(name).__name__}")
    if kind not in _LENGTHS:
        raise InvalidArgument(f"kind is {kind!r}; it must be 'topic' or 'group'")
    longest = _LENGTHS[kind]
    if not name:
        raise InvalidArgument(f"the {kind} name is empty; give it a name of 1 to {longest} characters")
    try:
        encoded = _FORBIDDEN.sub(_encoded, name)
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{kind} {_shortened(name)} cannot be encoded: its character {error.object!r} is half of a surrogate pair; "
            "pass a name that is Unicode text"
        ) from None
    if len(encoded) > longest:
        raise InvalidArgument(
            f"{kind} {_shortened(name)} has {len(encoded):,} characters once encoded; at most {longest} are allowed, "
            "and a character other than a-z A-Z 0-9 _ - | takes 3 to 12 of them: use a shorter name"
        )
    return encoded


def decode_name(name: str) -> str:
    """Return the name that ``encode_name`` made ``name`` of; ``name`` itself if it is not the result of one."""
    if "%" not in name:
        return name
    try:
        decoded = unquote_to_bytes(name).decode()
        return decoded if _FORBIDDEN.sub(_encoded, decoded) == name else name
    except UnicodeError:
        return name


def _encoded(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode())


def _shortened(name: str) -> str:
    return repr(name) if len(name) <= _SHOWN_CHARS else f"{name[:_SHOWN_CHARS]!r}…"
