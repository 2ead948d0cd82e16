"""``flintmq/pop.json``: messages that groups settled one by one beyond their committed offsets.

The file only prevents repetitions: without it, the broker delivers these messages once more after a start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files.json_table import ConfigFile
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
