"""Escaping of untrusted text for a terminal, so that it cannot send control sequences."""

from __future__ import annotations

import re

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
