"""A table of rows by name: a JSON file in RocketMQ's shape, and the journal of the changes since it was written."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .json_table import ConfigFile, next_data_version
from .table_journal import TableJournal

if TYPE_CHECKING:
    from .file_system import Files
    from .table_journal import Row

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
        """Path of the journal."""
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
