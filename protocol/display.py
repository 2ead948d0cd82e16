"""Values as text: for people (``show_bytes``) and for programs (``to_json``, ``to_plain``, ``iso``).

The command lines of the client and of the broker's tools share them, so that both print a value the same way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

# ---- Escaping of untrusted text for a terminal, so that it cannot send control sequences.

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, marks that reverse the direction of text, other line ends, and lone surrogates."""
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def escape(text: str) -> str:
    r"""Return ``text`` on one line, with control characters escaped as ``\n``, ``\t``, ``\x1b``, ``\u202e``, ….

    A backslash is not escaped, so that JSON in a body remains JSON.
    """
    return text if text.isprintable() else _UNSAFE.sub(_escaped, text)


def escape_bytes(data: bytes) -> str:
    r"""Return ``data`` as text: bytes that are not UTF-8 become ``\xNN``, control characters are escaped."""
    return escape(data.decode("utf-8", "backslashreplace"))


def escape_json(text: str) -> str:
    r"""Return JSON text without control characters: those that JSON allows unescaped become ``\uNNNN``."""
    return text if text.isprintable() else _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


TABLE = "table"
JSON = "json"
PLAIN = "plain"
MODES = (TABLE, JSON, PLAIN)
"""Values of ``--output``."""

_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def show_bytes(count: float | None) -> str:
    """Return ``1234567`` as ``1.23 MB``, in powers of 1000; ``–`` for None."""
    if count is None:
        return "–"
    value, unit = float(count), 0
    while abs(value) >= 999.5 and unit < len(_BYTE_UNITS) - 1:
        value /= 1000
        unit += 1
    if unit == 0:
        return f"{count:,.0f} B"
    return f"{value:.{three_digits(value)}f} {_BYTE_UNITS[unit]}"


def three_digits(value: float) -> int:
    """Return the number of decimals that makes three digits in all."""
    return 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0


def iso(moment: datetime | None) -> str:
    """Return a time in UTC with milliseconds: ``2026-11-21T10:00:00.123Z``; empty for None."""
    if moment is None:
        return ""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="milliseconds")[: -len("+00:00")] + "Z"


def to_json(row: Mapping[str, Any]) -> str:
    """Return one line of JSON, with control characters escaped."""
    return escape_json(_encode(row))


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    raise TypeError(f"{type(value).__name__} in output")


_encode = json.JSONEncoder(ensure_ascii=False, default=_json_value).encode


def to_plain(value: Any) -> str:
    """Return one value of a plain line, without tabs and line ends; None is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Mapping):
        return to_json(value)
    if isinstance(value, list | tuple):
        return escape(" ".join(map(str, value)))
    return escape(str(value))
