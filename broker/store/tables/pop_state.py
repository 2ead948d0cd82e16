"""``flintmq/pop.json``: messages that groups settled one by one beyond their committed offsets.

The file only prevents repetitions: without it, the broker delivers these messages once more after a start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files.file_system import replace_file
from ..files.json_table import JOURNAL_SUFFIX, ConfigFile, decode_line, encode_line
from .offset_tables import TOPIC_GROUP_SEPARATOR

if TYPE_CHECKING:
    from ..files.file_system import Files

RANGES_MAX = 50_000
"""Maximum number of ranges in the file, so that writing it takes tens of milliseconds at most."""


@dataclass(frozen=True, slots=True)
class SettledAhead:
    """The messages of one queue that a group settled. ``ranges``: half-open ranges of queue offsets, at or after
    ``committed``."""

    group: str
    topic: str
    queue: int
    committed: int
    ranges: tuple[tuple[int, int], ...]


class PopState:
    """The file. ``offer`` belongs to the event loop, ``persist`` to the thread of checkpoints."""

    def __init__(self, files: Files, path: Path) -> None:
        self._file = ConfigFile(files, path, "messages that were settled out of order are then delivered once more")
        self._lock = threading.Lock()
        self._offered: tuple[SettledAhead, ...] | None = None
        self._ready: tuple[SettledAhead, ...] | None = None
        """Rows that were offered before the last round of the checkpoint."""
        self.saved: tuple[SettledAhead, ...] = ()
        """Rows on disk."""

    def load(self) -> None:
        """Read the file. Raises ``CorruptFile``."""
        self.saved = self._file.load(self._read)

    @staticmethod
    def _read(table: dict[str, Any]) -> tuple[SettledAhead, ...]:
        rows = []
        for name, queues in table.get("settled", {}).items():
            topic, _, group = str(name).partition(TOPIC_GROUP_SEPARATOR)
            for queue, row in queues.items():
                ranges = tuple((int(first), int(end)) for first, end in row["ranges"])
                rows.append(SettledAhead(group, topic, int(queue), int(row["committed"]), ranges))
        return tuple(rows)

    def clip(self, committed_of: Callable[[str, str, int], int | None], end_of: Callable[[str, int], int]) -> None:
        """Leave out what no longer fits: call it after the recovery of the log and of the committed offsets. Blocks.

        New messages get the queue offsets of those that a crash took, so nothing beyond a queue's end may count as
        settled; the file must say so before the first new message is stored.
        """
        rows = []
        for row in self.saved:
            committed = committed_of(row.group, row.topic, row.queue)
            if committed is None or committed < row.committed:
                continue  # the group was reset since
            end_offset = end_of(row.topic, row.queue)
            ranges = tuple(
                (max(first, committed), min(end, end_offset))
                for first, end in row.ranges
                if min(end, end_offset) > max(first, committed)
            )
            if ranges:
                rows.append(SettledAhead(row.group, row.topic, row.queue, committed, ranges))
        if tuple(rows) != self.saved:
            self._write(tuple(rows), backed_up=True)

    def offer(self, rows: Iterable[SettledAhead]) -> None:
        """Offer what is settled now for the round of the checkpoint after the next."""
        kept = []
        ranges = 0
        for row in rows:
            ranges += len(row.ranges)
            if ranges > RANGES_MAX:
                break
            kept.append(row)
        with self._lock:
            self._offered = tuple(kept)

    def persist(self, *, last: bool = False) -> None:
        """Write what was offered before the last call, so that the committed offsets on disk are not older. Blocks.

        ``last``: write what was offered last. The caller writes the committed offsets afterwards.
        """
        with self._lock:
            rows = self._offered if last else self._ready
            self._ready = self._offered
        if rows is not None and rows != self.saved:
            self._write(rows)

    def _write(self, rows: tuple[SettledAhead, ...], *, backed_up: bool = False) -> None:
        table: dict[str, dict[str, Any]] = {}
        for row in rows:
            queues = table.setdefault(f"{row.topic}{TOPIC_GROUP_SEPARATOR}{row.group}", {})
            queues[str(row.queue)] = {"committed": row.committed, "ranges": [list(each) for each in row.ranges]}
        self._file.save({"settled": table}, backed_up=backed_up)
        self.saved = rows


# ---- ``flintmq/pop.json.journal``: the messages that consumers have popped, and each change to them.
#
# Every change is written before a client hears of it, but not synced: the journal survives the end of the
# process, and a power cut may take its last lines. Each line is a JSON array with its CRC32. A reader stops
# at the first line that is cut off or damaged: what is in the lines before it was true once, and that is
# enough to lose nothing.

log = logging.getLogger(__name__)

PopEntry = list[Any]
"""One change: its kind, group, topic, queue, and what the kind has."""


def encode_entries(entries: Iterable[PopEntry]) -> bytes:
    """Return the lines of the file for these changes."""
    return b"".join(map(encode_line, entries))


class PopJournal:
    """The file. Belongs to the event loop: its writes go to the page cache."""

    def __init__(self, files: Files, table: Path) -> None:
        self._files = files
        self.path = table.with_name(table.name + JOURNAL_SUFFIX)
        self.bytes = 0
        """Length of the file."""
        self.base_bytes = 0
        """Number of bytes that ``begin`` wrote."""
        self.changes = 0
        """Number of calls of ``begin`` and ``append``."""
        self.everything: Callable[[], Iterable[PopEntry]] = list
        """Function that returns the entries for a journal that begins now. Set by its writer; for the event loop."""
        self._fd: int | None = None

    def read(self) -> list[PopEntry]:
        """Return the changes in the file, oldest first; none if there is no file."""
        try:
            lines = self.path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        entries: list[PopEntry] = []
        for number, line in enumerate(lines, 1):
            entry = decode_line(line)
            if not isinstance(entry, list) or len(entry) < 4:
                if number < len(lines):
                    log.warning("%s: line %d of %d is damaged; what follows is left out", self.path, number, len(lines))
                break
            entries.append(entry)
        return entries

    def replace(self, lines: bytes) -> None:
        """Replace the file, durably, by the one of another store. Blocks. Raises ``ValueError`` for a damaged line, and
        ``OSError``."""
        for number, line in enumerate(lines.splitlines(keepends=True), 1):
            if not isinstance(decode_line(line), list):
                raise ValueError(f"line {number} is damaged")
        replace_file(self._files, self.path, lines)

    def begin(self) -> None:
        """Replace the file by what is in flight, durably; then ``append`` continues it. Blocks. Raises ``OSError``."""
        self.close()
        self.changes += 1
        blob = encode_entries(self.everything())
        replace_file(self._files, self.path, blob)
        self._fd = self._files.open(self.path)
        self.bytes = self.base_bytes = len(blob)

    def begin_again(self) -> None:
        """Replace the file by a shorter one that says the same; not synced. Raises ``OSError``."""
        self.close()
        blob = encode_entries(self.everything())
        new = self.path.with_name(self.path.name + ".tmp")
        new.unlink(missing_ok=True)
        fd = self._files.open(new, create=True)
        try:
            self._files.write(fd, blob, 0)
            self._files.rename(new, self.path)
        except OSError:
            self._files.close(fd)
            raise
        self._fd = fd
        self.bytes = self.base_bytes = len(blob)

    def append(self, entries: Iterable[PopEntry]) -> None:
        """Append changes. After a failure, which is logged, there is no journal until it begins again: what was in
        flight by then is delivered again after a crash. A journal with a gap could skip messages, if an operator moved
        a group's offsets back in the gap."""
        self.changes += 1
        if self._fd is None:
            return
        blob = encode_entries(entries)
        try:
            self._files.write(self._fd, blob, self.bytes)
        except OSError as error:
            log.error("%s cannot be written, so a crash would repeat what is in flight: %s", self.path, error)
            self.close()
            self._remove()
        else:
            self.bytes += len(blob)

    def _remove(self) -> None:
        try:
            self._files.unlink(self.path)
        except OSError as error:
            log.error("%s cannot be removed: do so before the next start, or it may undo resets: %s", self.path, error)

    @property
    def is_open(self) -> bool:
        """Return whether changes are written."""
        return self._fd is not None

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self._files.close(fd)
