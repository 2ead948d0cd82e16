"""Tables beside the log: topics, groups, progress, delays, as they were at a position of the log.

``tables/START/NAME`` holds one table; it refers to nothing in the log at or above START. A store is restored up to END
with, of each NAME, the newest whose START is at most END. The names and contents are those that a primary sends to its
followers: ``broker.replication.member.tables`` specifies them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .checked import Bytes, known_format, pack_checked, unpack_checked

FORMAT = 1
TABLES = "tables"
_MAGIC = b"FLINTTAB"
_NAME = re.compile(rf"{TABLES}/(\d{{20}})/(.+)\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class ArchivedTable:
    """A table. ``start``: position of the log; ``at_ms``: when it was read, ms since 1970 UTC."""

    name: str
    start: int
    at_ms: int
    content: bytes


def table_object(start: int, name: str) -> str:
    """Return the name of the object with a table."""
    return f"{TABLES}/{start:020d}/{name}"


def parse_table_object(name: str) -> tuple[int, str] | None:
    """Return the position and the table's name that an object's name says; None if it is none."""
    match = _NAME.match(name)
    return (int(match[1]), match[2]) if match else None


def encode_table(table: ArchivedTable) -> bytes:
    """Return the bytes of the object: a map of ``checked``, with the magic ``FLINTTAB``."""
    values = {"format": FORMAT, "name": table.name, "start": table.start, "at_ms": table.at_ms}
    return pack_checked(_MAGIC, {**values, "content": table.content})


def decode_table(blob: Bytes, name: str) -> ArchivedTable:
    """Return a table. ``name``: that of the object. Raises ``CorruptObject`` or ``UnknownFormat``."""
    values = unpack_checked(blob, _MAGIC, name)
    with known_format(name):
        if values["format"] != FORMAT:
            raise ValueError(values["format"])
        return ArchivedTable(values["name"], values["start"], values["at_ms"], values["content"])
