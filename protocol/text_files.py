"""Text of the files that people write."""

from __future__ import annotations

import codecs

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def decode_text(content: bytes) -> str:
    """Return the text of a file in UTF-8, without the byte order mark with which some editors begin it.

    Raises ``ValueError``, which names the first line that is not UTF-8.
    """
    if content.startswith(_UTF_16):
        raise ValueError("it is UTF-16; save it as UTF-8")
    try:
        return content.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is not UTF-8: {error.reason}") from None


def first_line(content: bytes) -> str:
    """Return the first line of a file, such as a password, without its end. Raises as ``decode_text``."""
    return decode_text(content.partition(b"\n")[0].rstrip(b"\r"))
