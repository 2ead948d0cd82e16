"""LogRestart: a new, empty log in place of one that shares nothing with another broker's log, or is too old."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from ....protocol.store_files import file_name
from ..errors import CorruptFile
from ..files.abort_file import AbortFile
from ..files.file_system import create_whole, make_durable_folder, remove_content, replace_file
from ..files.json_table import SHAPE_ERRORS
from ..tables.checkpoint import StoreCheckpoint
from ..tables.replica_state import ReplicaRecord

if TYPE_CHECKING:
    from ..files.file_system import Files
    from ..tables.replica_state import ReplicaState

DERIVED = ("commitlog", "consumequeue", "index", "config/delayOffset.json", "config/delayOffset.json.bak")
"""Parts of a store that belong to its log."""
OWN = (
    *("prepared.json", "prepared.json.bak", "pop.json", "pop.json.bak", "state.json", "state.json.bak"),
    *("aside", "new", "timers", "quarantine"),
)
"""The same in FlintMQ's own folder."""

log = logging.getLogger(__name__)


class LogRestart:
    """A request to remove the log of one store, with everything that was derived from it, and to begin an empty one.

    As with ``LogCut``, ``request`` only notes it, in ``flintmq/restart.json``, and the next start does it before
    recovery. Each step may be done again: a start that is killed repeats them.
    """

    def __init__(self, files: Files, store: Path, own_folder: Path, file_bytes: int, replica: ReplicaState) -> None:
        self._files = files
        self._store = store
        self._own = own_folder
        self._file_bytes = file_bytes
        self._replica = replica
        self._path = own_folder / "restart.json"

    def request(self, begin: int, record: ReplicaRecord) -> None:
        """Ask the next start for an empty log that begins at ``begin``, where a file begins, and that belongs to a set
        as ``record`` says; durable when it returns. Raises ``ValueError`` for another offset."""
        if begin < 0 or begin % self._file_bytes:
            raise ValueError(f"a log cannot begin at {begin:,}: its files have {self._file_bytes:,} bytes")
        replace_file(self._files, self._path, json.dumps({"begin": begin, "replica": record.to_json()}).encode())

    def finish(self) -> None:
        """Do what was requested, if anything was. The store is locked, and nothing of it is open. Blocks."""
        if not self._path.exists():
            return
        begin, record = self._requested()
        # From here on this start, or a repetition after an interruption, is one after a crash.
        AbortFile(self._files, self._store).create()
        log.warning("the log is removed; an empty one begins at %d, to be copied from the primary", begin)
        for path in (*(self._store / name for name in DERIVED), *(self._own / name for name in OWN)):
            if path.is_dir():
                remove_content(self._files, path)
            elif path.exists():
                self._files.unlink(path)
        folder = self._store / "commitlog"
        make_durable_folder(self._files, folder)
        make_durable_folder(self._files, self._own / "new")
        fd = create_whole(self._files, folder / file_name(begin), self._file_bytes, self._own / "new")
        self._files.close(fd)
        checkpoint = StoreCheckpoint(self._files, self._store / "checkpoint")
        checkpoint.begin_at(begin)
        self._replica.save(record)
        self._files.sync_folder(self._store)
        self._files.unlink(self._path)
        self._files.sync_folder(self._own)

    def _requested(self) -> tuple[int, ReplicaRecord]:
        try:
            row = json.loads(self._path.read_bytes())
            begin = row["begin"]
            if type(begin) is not int or begin < 0 or begin % self._file_bytes:
                raise ValueError(f"the log cannot begin at {begin!r}")
            return begin, ReplicaRecord.from_json(row["replica"])
        except SHAPE_ERRORS as error:
            raise CorruptFile(
                f"{self._path} says where a new log begins, and cannot be used: {error}. Remove it: the broker then "
                "asks its primary again. Nothing was changed"
            ) from error
