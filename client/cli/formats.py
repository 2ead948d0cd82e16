"""The option ``--format``, which prints a message by a template: like kcat's, with FlintMQ's letters."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from typing import TypeAlias

from ...protocol.display import escape, escape_bytes, escape_json, iso
from ..core.consume.batch import StoredMessage
from .failures import nearest

Part: TypeAlias = Callable[[StoredMessage, bool], bytes]
"""Function that returns a part of a message; the flag asks for raw bytes."""


def _text(value: str, raw: bool) -> bytes:
    return (value if raw else escape(value)).encode("utf-8", "surrogateescape" if raw else "backslashreplace")


def _json(properties: dict[str, str]) -> bytes:
    return escape_json(json.dumps(properties, ensure_ascii=False)).encode("utf-8", "backslashreplace")


DIRECTIVES: dict[str, tuple[str, Part]] = {
    "T": ("topic", lambda message, raw: _text(message.topic, raw)),
    "q": ("queue", lambda message, raw: b"%d" % message.queue),
    "o": ("queue offset", lambda message, raw: b"%d" % message.queue_offset),
    "O": ("physical offset in the CommitLog", lambda message, raw: b"%d" % message.physical_offset),
    "i": ("message id", lambda message, raw: _text(message.message_id, raw)),
    "k": ("keys, separated by a space", lambda message, raw: _text(" ".join(message.keys), raw)),
    "t": ("tag", lambda message, raw: _text(message.tags or "", raw)),
    "h": ("sharding key", lambda message, raw: _text(message.sharding_key or "", raw)),
    "v": ("body", lambda message, raw: message.body if raw else escape_bytes(message.body).encode()),
    "z": ("size of the body in bytes", lambda message, raw: b"%d" % len(message.body)),
    "p": ("properties that the sender gave, as JSON", lambda message, raw: _json(dict(message.user_properties))),
    "P": ("all properties as stored, as JSON", lambda message, raw: _json(dict(message.properties))),
    "s": ("store time, ISO 8601 in UTC", lambda message, raw: iso(message.stored_at).encode()),
    "S": ("store time, ms since 1970", lambda message, raw: b"%d" % message.stored_ms),
    "b": ("time of creation, ISO 8601 in UTC", lambda message, raw: iso(message.born_at).encode()),
}
"""Description and function of each directive, by letter. ``%%`` is a percent sign."""

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(.)|\\x([0-9A-Fa-f]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)


class Format:
    r"""A parsed ``--format``: text, ``%`` directives, and ``\n``, ``\t``, ``\r``, ``\0``, ``\\``, ``\xNN``.

    Raises ``ValueError`` that names an unknown directive or escape.
    """

    def __init__(self, text: str) -> None:
        self._parts: list[Part] = []
        self._literal = b""
        for found in _TOKEN.finditer(text):
            self._take(found)
        self._end_literal()

    def _take(self, found: re.Match[str]) -> None:
        directive, hexadecimal, escaped, literal, alone = found.groups()
        if directive == "%":
            self._literal += b"%"
        elif directive is not None:
            if directive not in DIRECTIVES:
                known = " ".join(f"%{letter}" for letter in DIRECTIVES)
                raise ValueError(
                    f"%{directive} is not a directive{nearest(directive, [])}; the directives are {known} and %%"
                )
            self._end_literal()
            self._parts.append(DIRECTIVES[directive][1])
        elif hexadecimal is not None:
            self._literal += codecs.decode(hexadecimal, "hex")
        elif escaped is not None:
            if escaped not in _ESCAPES:
                raise ValueError(f"\\{escaped} is not an escape; the escapes are \\n \\t \\r \\0 \\\\ and \\xNN")
            self._literal += _ESCAPES[escaped]
        elif literal is not None:
            self._literal += literal.encode("utf-8", "surrogateescape")
        else:
            raise ValueError(f"it ends with {alone!r}; write {alone * 2} for the character itself")

    def _end_literal(self) -> None:
        if self._literal:
            literal, self._literal = self._literal, b""
            self._parts.append(lambda message, raw: literal)

    def render(self, message: StoredMessage, *, raw: bool = False) -> bytes:
        """Return the formatted message; ``raw``: without escaping control characters. Raises ``CorruptMessage``."""
        return b"".join([part(message, raw) for part in self._parts])
