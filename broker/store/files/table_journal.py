"""The journal of a JSON table: a file beside it with the changes that it lacks, so that a change costs few bytes.

Each change is one line: its CRC32 in eight hexadecimal digits, a space, and JSON. The first line contains the
``dataVersion`` of the table to which the changes apply. A reader skips lines that are cut off or damaged; the others
remain valid.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .file_system import replace_file

if TYPE_CHECKING:
    from .file_system import Files

log = logging.getLogger(__name__)

Row = dict[str, Any] | None
"""A row of the table; None if it was removed."""
JOURNAL_SUFFIX = ".journal"
_CRC_CHARS = 8


class TableJournal:
    """The journal of the table at ``table``. Not thread-safe."""

    def __init__(self, files: Files, table: Path) -> None:
        self._files = files
        self.path = table.with_name(table.name + JOURNAL_SUFFIX)
        self.bytes = 0
        """Length of the file, or 0 without a file."""
        self.problem = ""
        """Description of the lines that could not be read; empty if all could."""

    def read(self) -> tuple[Any, dict[str, Row]] | None:
        """Return the ``dataVersion`` of its table and the last row of each name; None if there is no journal."""
        try:
            lines = self.path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return None
        base, rows, damaged = None, {}, 0
        for number, line in enumerate(lines):
            found = decode_line(line)
            if not isinstance(found, dict):
                # A crash may have cut off the last line: that change was never acknowledged, so it is not damage.
                damaged += number + 1 < len(lines) or line.endswith(b"\n")
            elif "base" in found:
                base = found["base"]
            elif isinstance(name := found.get("name"), str) and isinstance(row := found.get("row"), dict | None):
                rows[name] = row
        if damaged:
            self.problem = f"{damaged} of {len(lines)} changes cannot be read"
            log.error("%s: %s; the others are applied", self.path, self.problem)
        return base, rows

    def begin(self, base: Any, rows: Mapping[str, Row]) -> None:
        """Replace the journal with these changes of the table whose ``dataVersion`` is ``base``. Durable; blocks."""
        blob = b"".join([encode_line({"base": base}), *_lines(rows)])
        replace_file(self._files, self.path, blob)
        self.bytes = len(blob)

    def append(self, rows: Mapping[str, Row]) -> None:
        """Append changes. Durable when it returns; if it raises, call ``begin`` or ``remove`` next. Blocks."""
        blob = b"".join(_lines(rows))
        fd = self._files.open(self.path)
        try:
            self._files.write(fd, blob, self.bytes)
            self._files.sync_data(fd)
        finally:
            self._files.close(fd)
        self.bytes += len(blob)

    def remove(self) -> None:
        """Remove the journal after all its changes were written to the table. Blocks."""
        self.bytes = 0
        if self.path.exists():
            self._files.unlink(self.path)
            self._files.sync_folder(self.path.parent)


def _lines(rows: Mapping[str, Row]) -> Iterable[bytes]:
    return (encode_line({"name": name, "row": row}) for name, row in rows.items())


def encode_line(content: object) -> bytes:
    """Return a line of a journal."""
    text = json.dumps(content).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def decode_line(line: bytes) -> Any:
    """Return the content of a line; None if it is not whole."""
    crc, text = line[:_CRC_CHARS], line[_CRC_CHARS + 1 : -1]
    if not line.endswith(b"\n") or crc != b"%08x" % zlib.crc32(text):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None
