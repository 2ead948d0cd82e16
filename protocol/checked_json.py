"""JSON tables with a checksum, which detects every change made after they were written.

JSON has no checksum: one flipped bit turns a number into another number. So each table gets one as its last key, which
other programs ignore. A table without that key is accepted: an older release, another program or a person wrote it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

PIECES_DEPTH = 2
"""Depth of the pieces that are encoded at a time: some rows of a table in a file are one piece."""
ROWS_A_PIECE = 64

CHECKSUM_KEY = "flintmqCrc32"
"""Key of the CRC-32 of the rest of the table as ``json.dumps`` without arguments writes it; eight hex digits."""


class ChecksumMismatch(ValueError):
    """A table does not match its checksum."""


def encode_checked(table: dict[str, Any]) -> str:
    """Return the text of a table with its checksum."""
    text = json.dumps(table, indent=1, ensure_ascii=False).removesuffix("}").rstrip("\n")
    return f'{text}{"," if table else ""}\n "{CHECKSUM_KEY}": "{_checksum(table)}"\n}}'


def take_checksum(table: dict[str, Any]) -> None:
    """Remove the checksum from a table, if it has one. Raises ``ChecksumMismatch`` if it is wrong."""
    if CHECKSUM_KEY in table:
        said = table.pop(CHECKSUM_KEY)
        if said != (is_now := _checksum(table)):
            raise ChecksumMismatch(
                f"it was changed after it was written: {CHECKSUM_KEY} is {said!r}, but the content has {is_now!r}. "
                f"If you edited it on purpose, remove {CHECKSUM_KEY}"
            )


def _checksum(table: dict[str, Any]) -> str:
    checksum = 0
    for piece in _pieces(table, PIECES_DEPTH):
        checksum = zlib.crc32(piece.encode(), checksum)
    return f"{checksum:08x}"


def _pieces(value: Any, depth: int) -> Iterator[str]:
    """Yield the text of ``json.dumps(value)`` in pieces. One call for a large table would hold the GIL and stall all
    other threads."""
    if depth == 0 or type(value) is not dict or not all(type(key) is str for key in value):
        yield json.dumps(value)
        return
    before = "{"
    if depth == 1:
        rows = iter(value.items())
        while some := dict(islice(rows, ROWS_A_PIECE)):
            yield f"{before}{json.dumps(some)[1:-1]}"
            before = ", "
        yield "}" if value else "{}"
        return
    for key, part in value.items():
        yield f"{before}{json.dumps(key)}: "
        yield from _pieces(part, depth - 1)
        before = ", "
    yield "}" if value else "{}"
