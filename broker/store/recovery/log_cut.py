"""LogCut: removal of records from the end of a log, for a broker that follows another and has what that one has not."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ....protocol.store_files import file_name
from ..errors import CorruptFile
from ..files.file_system import create_whole, make_durable_folder, remove_content, replace_file, zero
from ..files.json_table import SHAPE_ERRORS
from ..files.store_lock import AbortFile
from ..tables.checkpoint import StoreCheckpoint
from ..tables.store_state import ReplicaRecord, ReplicaState, StoreState

if TYPE_CHECKING:
    from ..files.file_system import Files

DIVERGED_BYTES_MAX = 256 * 1024 * 1024
"""Maximum number of bytes that a cut keeps in ``flintmq/diverged/``."""
DIVERGED_FILES_MAX = 16
"""Maximum number of files there; the oldest go."""

T = TypeVar("T")

log = logging.getLogger(__name__)


def _read_request(path: Path, read: Callable[[dict[str, Any]], T], what: str) -> T:
    """Return the result of ``read`` for the request in a file. Raises ``CorruptFile``. ``what``: the file says."""
    try:
        return read(json.loads(path.read_bytes()))
    except SHAPE_ERRORS as error:
        raise CorruptFile(
            f"{path} says {what}: {error}. Remove it: the broker then asks its primary again. Nothing was changed"
        ) from error


class LogCut:
    """A cut of the log of one store.

    ``request`` only notes it, in ``flintmq/cut.json``; the next start does it before recovery. It makes the log look as
    if the power had failed when it ended there, and recovery then makes everything else agree with it, as after any
    crash. Each step may be done again: a start that is killed repeats the cut.

    Progress of delayed, timed and staged messages needs no change: a member of a set saves it only as far as their
    copies are confirmed, and what is confirmed is never cut.
    """

    def __init__(self, files: Files, store: Path, own_folder: Path) -> None:
        self._files = files
        self._store = store
        self._own = own_folder
        self._path = own_folder / "cut.json"

    def request(self, to: int, end: int) -> None:
        """Ask the next start to cut the log, which ends at ``end``, at ``to``; durable when it returns.

        ``to``: physical offset at which a record ends.
        """
        replace_file(self._files, self._path, json.dumps({"to": to, "end": end}).encode())

    def finish(self) -> None:
        """Do the cut that was requested, if there is one. The store is locked, and nothing of it is open. Blocks."""
        if not self._path.exists():
            return
        to, end = _read_request(self._path, self._parse, "where to cut the log, and is damaged")
        # From here on this start, or a repetition after an interruption, is one after a crash.
        AbortFile(self._files, self._store).create()
        paths = sorted(path for path in (self._store / "commitlog").glob("*") if path.name.isdecimal())
        self._keep(paths, to, end)
        checkpoint = StoreCheckpoint(self._files, self._store / "checkpoint")
        checkpoint.load()
        checkpoint.lower(to)
        state = StoreState(self._files, self._own / "state.json")
        state.load()
        state.log_was_cut(to)
        # It may cover what is cut; a start without it reads the staged transactions from the log.
        for path in self._own.glob("prepared.json*"):
            self._files.unlink(path)
        self._cut(paths, to)
        self._files.unlink(self._path)
        self._files.sync_folder(self._own)

    @staticmethod
    def _parse(row: dict[str, Any]) -> tuple[int, int]:
        to, end = row["to"], row["end"]
        if not (type(to) is type(end) is int and 0 <= to <= end):
            raise ValueError(f"it says {row}")
        return to, end

    def _keep(self, paths: list[Path], to: int, end: int) -> None:
        """Copy what is cut, or its first part, to ``flintmq/diverged/``, unless an earlier attempt has done so."""
        folder = self._own / "diverged"
        target = folder / f"{to:020d}-{end:020d}"
        kept_end = min(end, to + DIVERGED_BYTES_MAX)
        if target.exists() or kept_end == to:
            return
        make_durable_folder(self._files, folder)
        for oldest in sorted(folder.iterdir())[: 1 - DIVERGED_FILES_MAX]:
            self._files.unlink(oldest)
        replace_file(self._files, target, bytes(self._read(paths, to, kept_end)))
        log.warning(
            "the log is cut from %d to %d: what follows was never acknowledged; %d bytes of it are in %s",
            end,
            to,
            kept_end - to,
            target,
        )

    def _read(self, paths: list[Path], begin: int, end: int) -> bytearray:
        content = bytearray()
        for path in paths:
            first = int(path.name)
            with self._files.opened(path) as fd:
                at, stop = max(begin - first, 0), min(end - first, self._files.size(fd))
                if at < stop:
                    blob = bytearray(stop - at)
                    self._files.read(fd, memoryview(blob), at, wait=True)
                    content += blob
        return content

    def _cut(self, paths: list[Path], to: int) -> None:
        """Remove the files that begin at or after ``to``, newest first, and zero the rest of the one before."""
        for path in reversed(paths):
            begin, size = int(path.name), path.stat().st_size
            if begin >= to and path is not paths[0]:
                self._files.unlink(path)
            elif begin + size > to:
                with self._files.opened(path) as fd:
                    zero(self._files, fd, max(to - begin, 0), size)
                    self._files.sync_data(fd)
        if paths:
            self._files.sync_folder(paths[0].parent)


# ---- LogRestart: a new, empty log in place of one that shares nothing with another broker's log, or is too
# old.

DERIVED = ("commitlog", "consumequeue", "index", "config/delayOffset.json", "config/delayOffset.json.bak")
"""Parts of a store that belong to its log."""
OWN = (
    *("prepared.json", "prepared.json.bak", "pop.json", "pop.json.bak", "state.json", "state.json.bak"),
    *("aside", "new", "timers", "quarantine"),
)
"""The same in FlintMQ's own folder."""


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
        begin, record = _read_request(self._path, self._parse, "where a new log begins, and cannot be used")
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

    def _parse(self, row: dict[str, Any]) -> tuple[int, ReplicaRecord]:
        begin = row["begin"]
        if type(begin) is not int or begin < 0 or begin % self._file_bytes:
            raise ValueError(f"the log cannot begin at {begin!r}")
        return begin, ReplicaRecord.from_json(row["replica"])


# ---- Files that a member of a replica set keeps beside its log: the epochs, and requests to change the log at
# a start.


class ReplicaFiles:
    """The files of one store, in ``flintmq/``."""

    def __init__(self, files: Files, store: Path, own_folder: Path, log_file_bytes: int) -> None:
        self.state = ReplicaState(files, own_folder / "replication.json")
        self.cut = LogCut(files, store, own_folder)
        self.restart = LogRestart(files, store, own_folder, log_file_bytes, self.state)

    def finish_changes(self) -> None:
        """Do what was requested before this start. The store is locked, and nothing of it is open. Blocks."""
        self.restart.finish()
        self.cut.finish()
