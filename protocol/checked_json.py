"""A JSON table that says when it was changed by anything but who wrote it.

JSON has no checksum: with one bit changed, a number is another number. So each table gets one as its last key, which
programs that do not know it pass over. One without that key counts as it is: an older release wrote it, another
program, or somebody by hand.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

PIECES_DEPTH = 2
"""Each row of each table in a file is a piece of its own."""

CHECKSUM_KEY = "flintmqCrc32"
"""The CRC32 of all the rest, as ``json.dumps`` writes it without further arguments; eight hexadecimal digits."""


class ChecksumMismatch(ValueError):
    """A table is not what its checksum was made of."""


def encode_checked(table: dict[str, Any]) -> str:
    """The text of a table, with its checksum."""
    text = json.dumps(table, indent=1, ensure_ascii=False).removesuffix("}").rstrip("\n")
    return f'{text}{"," if table else ""}\n "{CHECKSUM_KEY}": "{_checksum(table)}"\n}}'


def take_checksum(table: dict[str, Any]) -> None:
    """Take the checksum out of a table, if it has one. Raises ``ChecksumMismatch`` where it is another's."""
    if CHECKSUM_KEY in table:
        said = table.pop(CHECKSUM_KEY)
        if said != (is_now := _checksum(table)):
            raise ChecksumMismatch(
                f"it was changed since it was written: {CHECKSUM_KEY} says {said!r}, the content gives {is_now!r}. "
                f"Where somebody changed it on purpose, take {CHECKSUM_KEY} out"
            )


def _checksum(table: dict[str, Any]) -> str:
    checksum = 0
    for piece in _pieces(table, PIECES_DEPTH):
        checksum = zlib.crc32(piece.encode(), checksum)
    return f"{checksum:08x}"


def _pieces(value: Any, depth: int) -> Iterator[str]:
    """Yield what ``json.dumps(value)`` returns, a part of a dict at a time: one call for a large table would keep all
    other threads waiting."""
    if depth == 0 or type(value) is not dict or not all(type(key) is str for key in value):
        yield json.dumps(value)
        return
    before = "{"
    for key, part in value.items():
        yield f"{before}{json.dumps(key)}: "
        yield from _pieces(part, depth - 1)
        before = ", "
    yield "}" if value else "{}"
