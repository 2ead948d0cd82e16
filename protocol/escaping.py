"""Text for a screen: nothing that was sent by others may drive a terminal."""

from __future__ import annotations

import re

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, what reverses the direction of text, other line ends, and halves of surrogate pairs."""
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def escape(text: str) -> str:
    r"""``text`` on one line and without control characters: ``\n``, ``\t``, ``\x1b``, ``\u202e``, … stand for them.

    A backslash stays as it is, so that JSON in a body can still be read as JSON.
    """
    return text if text.isprintable() else _UNSAFE.sub(_escaped, text)


def escape_bytes(data: bytes) -> str:
    r"""``data`` as text: what is not UTF-8 becomes ``\xNN``, control characters are escaped."""
    return escape(data.decode("utf-8", "backslashreplace"))


def escape_json(text: str) -> str:
    r"""JSON text whose strings hold no control character: those that JSON itself lets pass become ``\uNNNN``."""
    return text if text.isprintable() else _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
