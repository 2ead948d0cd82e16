"""``flintmq/prepared.json``: a snapshot of staged transactions, and the offset from which a start replays their
notes. The file keeps the wire's word for them."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files.json_table import ConfigFile

if TYPE_CHECKING:
    from ..files.file_system import Files


@dataclass(frozen=True, slots=True)
class StagedSnapshot:
    """State after the notes below ``next_note``. ``next_message``: the first staged message that may still be needed;
    both are queue offsets. ``sequences``: sequence of the last committed transaction by scope, least recent first."""

    next_note: int = 0
    next_message: int = 0
    sequences: dict[str, int] = field(default_factory=dict)


class StagedState:
    """The file. A snapshot is written once the log that it covers is on disk. Thread-safe."""

    def __init__(self, files: Files, path: Path) -> None:
        self._file = ConfigFile(files, path)
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, StagedSnapshot]] = deque()
        self.path = path
        self.saved = StagedSnapshot()
        """Snapshot on disk."""

    def load(self) -> None:
        """Read the file. Raises ``CorruptFile``."""
        self.saved = self._file.load(self._read)

    @staticmethod
    def _read(table: dict[str, Any]) -> StagedSnapshot:
        sequences = {str(scope): int(sequence) for scope, sequence in table.get("committed", [])}
        return StagedSnapshot(int(table.get("nextNote", 0)), int(table.get("nextMessage", 0)), sequences)

    def offer(self, end_offset: int, snapshot: StagedSnapshot) -> None:
        """Offer a snapshot for writing: the state when the log ended at ``end_offset``."""
        with self._lock:
            self._waiting.append((end_offset, snapshot))

    def persist(self, flushed_offset: int) -> None:
        """Write the newest snapshot whose part of the log is on disk below ``flushed_offset``. Blocks."""
        newest = None
        with self._lock:
            while self._waiting and self._waiting[0][0] <= flushed_offset:
                newest = self._waiting.popleft()
        if newest is None or newest[1] == self.saved:
            return
        snapshot = newest[1]
        try:
            self._file.save(
                {
                    "nextNote": snapshot.next_note,
                    "nextMessage": snapshot.next_message,
                    "committed": list(snapshot.sequences.items()),
                }
            )
        except BaseException:
            with self._lock:
                self._waiting.appendleft(newest)
            raise
        self.saved = snapshot
