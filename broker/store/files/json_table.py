"""A JSON table on disk in RocketMQ's shape, with FlintMQ's checksum and its previous version as ``.bak``.

RocketMQ writes tables with fastjson, which does not quote integer keys. FlintMQ reads both forms and writes standard
JSON. RocketMQ ignores the checksum when it reads and omits it when it writes, so a table has one only if FlintMQ was
the last to write it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ....protocol.checked_json import CHECKSUM_KEY, encode_checked, take_checksum
from ....protocol.fields import I64_MAX
from ....protocol.text_files import decode_text
from ..errors import CorruptFile
from .file_system import make_durable_folder, replace_file

if TYPE_CHECKING:
    from .file_system import Files

SHAPE_ERRORS = (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
"""Exceptions that reading a table of an unexpected shape raises."""

VALUES_MAX = 8_000_000
"""Maximum number of values in a table: a million topics have fewer."""

# The first alternative consumes strings whole, so that a key-like text inside of one stays as it is.
_BARE_KEY = re.compile(r'"(?:\\.|[^"\\])*"|([{,]\s*)(-?\d+)(?=\s*:)')

T = TypeVar("T")

log = logging.getLogger(__name__)


def integer_of(value: Any, low: int, high: int, what: str) -> int:
    """Return a number of a table, or the number that a text of it is. Raises ``ValueError`` if it is out of range."""
    number = int(value)
    if not low <= number <= high:
        raise ValueError(f"{what} must be from {low:,} to {high:,}, not {str(value)[:40]}")
    return number


def _parse_int(digits: str) -> int:
    # A larger number can be neither stored nor sent.
    return integer_of(digits, -I64_MAX - 1, I64_MAX, "a number")


def parse_table(text: str) -> dict[str, Any]:
    """Parse a table from text, with or without quotes around integer keys; returns it without its checksum.

    Raises ``ValueError`` if the text is not a JSON object, does not match its checksum, or is too large.
    """
    # Before memory is spent on them: each value takes up to 100 bytes, from as few as three.
    if (count := sum(map(text.count, ",[{"))) > VALUES_MAX:
        raise ValueError(f"a table of {count:,} values; the maximum is {VALUES_MAX:,}")

    value = _parse_json(text)
    take_checksum(value)
    return value


def _parse_json(text: str) -> dict[str, Any]:
    def quote(match: re.Match[str]) -> str:
        return f'{match[1]}"{match[2]}"' if match[2] else match[0]

    try:
        value = json.loads(text, parse_int=_parse_int)
    except ValueError:  # perhaps because of keys without quotes, which are rare
        value = json.loads(_BARE_KEY.sub(quote, text), parse_int=_parse_int)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


class ConfigFile:
    """One table on disk, with its previous version as ``.bak``.

    ``when_empty``: what is lost by starting with an empty table, for the error message if neither can be read.
    """

    def __init__(self, files: Files, path: Path, when_empty: str = "") -> None:
        self._files = files
        self.path = path
        self._bak = path.with_name(path.name + ".bak")
        self._when_empty = when_empty
        self._broken = False
        """True if the file itself could not be read: ``save`` must not make it the ``.bak``."""
        self.is_own = False
        """True if the table that ``load`` returned has a checksum: FlintMQ was the last to write it."""

    @property
    def is_there(self) -> bool:
        """Return whether the file or its ``.bak`` exists, readable or not."""
        return self.path.exists() or self._bak.exists()

    def load(self, read: Callable[[dict[str, Any]], T]) -> T:
        """Return the result of ``read`` for the file, else for its ``.bak``, or for an empty table if neither exists.

        Logs an error for a file that exists but cannot be read. Raises ``CorruptFile`` if files exist and none can be
        read. ``read`` raises one of ``SHAPE_ERRORS`` to reject a table.
        """
        problems = []
        for path in (self.path, self._bak):
            try:
                found = read(self._parse(path))
            except FileNotFoundError:
                continue
            except SHAPE_ERRORS as error:
                problems.append(f"{path} cannot be read: {type(error).__name__}: {error}")
                self._broken = self._broken or path == self.path
                continue
            if problems:
                log.error("%s. Using %s instead: changes made since it was written are lost", problems[0], path)
            return found
        if problems:
            cost = f" ({self._when_empty})" if self._when_empty else ""
            raise CorruptFile(
                f"{'; '.join(problems)}. Restore {self.path} or its .bak from a backup, or move both away to begin "
                f"with an empty table{cost}"
            )
        return read({})

    def _parse(self, path: Path) -> dict[str, Any]:
        if not path.is_file():  # checked before opening: opening a named pipe blocks until another process writes to it
            if os.path.lexists(path):
                raise ValueError("it is not a file")
            raise FileNotFoundError(path)
        text = decode_text(path.read_bytes())
        if not text.strip():
            raise ValueError("it is empty")
        table = _parse_json(text)
        self.is_own = CHECKSUM_KEY in table
        take_checksum(table)
        return table

    def save(self, table: dict[str, Any], *, backed_up: bool = False) -> None:
        """Replace the table; its previous version becomes the ``.bak``. Durable when it returns.

        ``backed_up``: afterwards make the ``.bak`` a copy of the new table, for tables whose previous version would be
        wrong to restore.
        """
        make_durable_folder(self._files, self.path.parent)
        if not self._broken and self.path.exists():
            # Copied, not renamed: the table itself exists at every moment.
            replace_file(self._files, self._bak, self.path.read_bytes())
        blob = encode_checked(table).encode()
        replace_file(self._files, self.path, blob)
        self._broken = False
        if backed_up:
            replace_file(self._files, self._bak, blob)


def next_data_version(before: Any) -> dict[str, int]:
    """Return the ``dataVersion`` that follows ``before``."""
    counter = before.get("counter") if isinstance(before, dict) else None
    return {
        "counter": counter + 1 if isinstance(counter, int) else 1,
        "stateVersion": 0,
        "timestamp": int(time.time() * 1000),
    }


# ---- The journal of a JSON table: a file beside it with the changes that it lacks, so that a change costs few
# bytes.
#
# Each change is one line: its CRC32 in eight hexadecimal digits, a space, and JSON. The first line contains
# the ``dataVersion`` of the table to which the changes apply. A reader skips lines that are cut off or
# damaged; the others remain valid.

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
        with self._files.opened(self.path) as fd:
            self._files.write(fd, blob, self.bytes)
            self._files.sync_data(fd)
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


# ---- A table of rows by name: a JSON file in RocketMQ's shape, and the journal of the changes since it was
# written.

JOURNAL_BYTES_MIN = 64 * 1024
"""A journal that is longer than this and than half of the table is merged into the table."""


class JournalledTable(ABC):
    """One thread changes the table and calls ``_note`` for each change to save; ``save`` and ``persist`` may run on
    others.

    ``backed_up``: the ``.bak`` is written again with the table, so that the next journal is valid for it too: if the
    table is damaged, no change is lost.
    """

    def __init__(self, files: Files, path: Path, when_empty: str, *, backed_up: bool = False) -> None:
        self._file = ConfigFile(files, path, when_empty)
        self._journal = TableJournal(files, path)
        self._backed_up = backed_up
        self._lock = threading.Lock()
        """Held while table or journal are written."""
        self._noting = threading.Lock()
        """Held to read or change ``version`` and ``_unsaved``."""
        self._rest: dict[str, Any] = {}
        self._unsaved: dict[str, int] = {}
        """Names of rows with unsaved changes, and the version of each one's last change."""
        self._whole_next = False
        """The next ``save`` must write the whole table, because no journal can continue from what is on disk."""
        self.version = 0
        """Number of noted changes in memory."""

    @abstractmethod
    def _row(self, name: str) -> Row:
        """Return a row as JSON; None if there is none. Any thread."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return all rows as in the file. Any thread."""

    @property
    def unsaved(self) -> bool:
        """Return whether a noted change is not on disk yet."""
        return bool(self._unsaved)

    @property
    def journal_path(self) -> Path:
        return self._journal.path

    @property
    def problem(self) -> str:
        """Description of the unreadable part of the journal, or empty."""
        return self._journal.problem

    def _note(self, name: str) -> None:
        with self._noting:
            self.version += 1
            self._unsaved[name] = self.version

    def save(self) -> None:
        """Write the noted changes to the journal, or the whole table if the journal has become long.

        Durable when it returns. Blocks; the time depends on the number of rows only when the whole table is written.
        """
        with self._lock, self._saving() as names:
            rows = {name: self._row(name) for name in names}
            # A journal is only valid beside the version of the table that it continues.
            if self._whole_next or self._rest.get("dataVersion") is None or not self._file.path.exists():
                self._write_whole()
            elif not rows:
                return  # ``persist`` has written the changes meanwhile
            elif not self._journal.bytes:
                self._journal.begin(self._rest.get("dataVersion"), rows)
            elif self._journal.bytes > max(JOURNAL_BYTES_MIN, self._file.path.stat().st_size // 2):
                self._write_whole()
            else:
                self._journal.append(rows)

    def persist(self) -> None:
        """Write the whole table; durable when it returns. Blocks."""
        with self._lock, self._saving():
            self._write_whole()

    @contextlib.contextmanager
    def _saving(self) -> Iterator[list[str]]:
        """Yield the names of the changed rows; on exit mark them as saved, except those that changed meanwhile."""
        with self._noting:
            taken = dict(self._unsaved)
        try:
            yield list(taken)
        except BaseException:
            self._whole_next = True  # part of it may be on disk
            raise
        with self._noting:
            self._unsaved = {name: version for name, version in self._unsaved.items() if taken.get(name) != version}

    def _write_whole(self) -> None:
        self._rest["dataVersion"] = next_data_version(self._rest.get("dataVersion"))
        self._file.save({**self._rest, **self.to_json()}, backed_up=self._backed_up)
        self._journal.remove()
        self._whole_next = False
