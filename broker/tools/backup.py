"""``flintmq-broker backup``, and ``restore`` and ``verify`` of a backup.

A backup is a restorable copy of a store, even while a broker serves it. The order of the steps matters:

1. Copy the tables: ``config/`` and ``flintmq/``. Tables on disk only refer to records on disk. Copied before the log,
   they may be older than it, as after a crash, but never ahead of it.
2. Read from the checkpoint how far the log is flushed. A broker never changes the log below that.
3. Open all of the log's files before copying the first: retention may delete their names meanwhile, but their content
   stays until they are closed.

ConsumeQueues and index are derived from the log and not copied; a broker rebuilds them when it starts on the restored
store. Complete files that the backup already has are not copied again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ... import __version__
from ...protocol.checked_json import encode_checked, take_checksum
from ...protocol.display import escape, show_bytes, to_json
from ...protocol.errors import FlintError
from ...protocol.store_files import (
    FILE_MODE,
    MANIFEST,
    OFFSET_NAME,
    PROGRESS,
    TABLES_PREFIX,
    backup_kind,
    file_name,
    refuse_backup,
)
from ..kernels import dispatch as kernel
from ..kernels import search
from ..store.derivation import LogScan, ends_file
from ..store.errors import CorruptFile, StoreLocked
from ..store.files.file_system import Files, make_durable_folder, open_file, replace_file
from ..store.files.json_table import JOURNAL_SUFFIX, SHAPE_ERRORS
from ..store.files.system_calls import usable_processors
from ..store.message_store import OWN_FOLDER
from ..store.tables.checkpoint import Mark, StoreCheckpoint
from ..store.tables.store_state import ChecksummedRanges, StoreState
from .findings import Findings
from .log_verifier import THREADS_MAX
from .log_verifier import Progress as BytesDone
from .offline import ReadOnlyFiles, open_for_reading
from .output import Progress
from .verify import conclusion, findings_json

# ---- Layout of a backup, and its manifest ``backup.json``. The manifest is written last, by rename; a folder
# without it is not a complete backup.
#
# DEST/backup.json each file with its size and SHA-256, and the end of the log; with a checksum DEST/backup-
# progress.json only during a backup: the log files that are already copied DEST/commitlog/ the log's files,
# the last one up to the log's end DEST/tables-N/ config/ and flintmq/; N grows, so that the previous backup
# stays complete

LOG_FOLDER = "commitlog"
FORMAT = 1


class BackupError(FlintError):
    """A backup cannot be made or restored; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class BackedUp:
    """One file of a backup: its path below ``commitlog`` or the folder of the tables, its size in bytes, the SHA-256
    of its content, and its permissions."""

    path: str
    bytes: int
    sha256: str
    mode: int = 0o644


@dataclass(slots=True)
class Manifest:
    """A complete backup. The log's records are in ``[log_begin, log_end)``, physical offsets; ``file_bytes``: size of a
    CommitLog file; ``last_store_ms``: store time of the last record; ``running``: made while a broker ran."""

    made_at: str
    version: str
    source: str
    running: bool
    log_begin: int
    log_end: int
    file_bytes: int
    last_store_ms: int
    tables_folder: str
    tables: list[BackedUp] = field(default_factory=list)
    log: list[BackedUp] = field(default_factory=list)
    format: int = FORMAT

    @property
    def bytes(self) -> int:
        """Return the total size of all files."""
        return sum(each.bytes for each in (*self.tables, *self.log))

    def save(self, files: Files, folder: Path) -> None:
        """Write the manifest of ``folder`` durably: the backup is complete from then on."""
        replace_file(files, folder / MANIFEST, encode_checked(asdict(self)).encode())

    @classmethod
    def load(cls, folder: Path) -> Manifest | None:
        """Return the manifest of ``folder``, or None. Raises ``BackupError`` if it is unreadable."""
        table = _read(folder / MANIFEST)
        if table is None:
            return None
        if not isinstance(table, dict):
            raise _unreadable(folder / MANIFEST, TypeError("not a JSON object"))
        # First, because another format may have another checksum and other fields.
        if table.get("format") != FORMAT:
            raise BackupError(
                f"{folder / MANIFEST} has format {table.get('format')!r}, this FlintMQ reads format {FORMAT}: use "
                "the one that made it"
            )
        try:
            take_checksum(table)
            files = {name: [_file(row) for row in table[name]] for name in ("tables", "log")}
            return cls(**{**table, **files})
        except SHAPE_ERRORS as error:
            raise _unreadable(folder / MANIFEST, error) from None


def load_whole(folder: Path) -> Manifest:
    """Return the manifest of the backup in ``folder``. Raises ``BackupError`` if it is missing or cannot be read."""
    manifest = Manifest.load(folder)
    if manifest is not None:
        return manifest
    if backup_kind(folder):
        raise BackupError(
            f"{folder} holds an incomplete backup: there is no {MANIFEST}. Run `flintmq-broker backup STORE "
            f"{folder}` again; what is copied already stays. If this is a copy of a backup, copy its {MANIFEST} too"
        )
    raise BackupError(f"{folder} is not a backup: it has no {MANIFEST} in it")


def write_new(files: Files, path: Path, content: bytes, mode: int) -> None:
    """Write a small file that is not there yet, with these permissions from its first byte on; its content is on disk
    when it returns."""
    fd = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        files.write(fd, content, 0)
        files.sync_data(fd)
    finally:
        files.close(fd)
    files.sync_folder(path.parent)


def save_progress(files: Files, folder: Path, copied: list[BackedUp]) -> None:
    """Note which log files a backup that is being made has already; durable when it returns."""
    replace_file(files, folder / PROGRESS, json.dumps([asdict(each) for each in copied], indent=1).encode())


def load_progress(folder: Path) -> list[BackedUp]:
    """Return the files that an interrupted backup has copied; none if no backup was interrupted."""
    rows = _read(folder / PROGRESS)
    try:
        return [_file(row) for row in rows or []]
    except SHAPE_ERRORS as error:
        raise _unreadable(folder / PROGRESS, error) from None


def _file(row: dict[str, Any]) -> BackedUp:
    """Return a row of the manifest as a file. Raises ``ValueError`` if its path leads out of the backup."""
    found = BackedUp(str(row["path"]), int(row["bytes"]), str(row["sha256"]), int(row["mode"]))
    path = Path(found.path)
    if path.is_absolute() or ".." in path.parts or not path.parts or found.bytes < 0:
        raise ValueError(f"{found.path!r} is not a file of a backup")
    return found


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except SHAPE_ERRORS as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> BackupError:
    return BackupError(
        f"{path} cannot be read: {type(error).__name__}: {error}. The backup is damaged: make another in a new folder"
    )


# ---- Copying a large file while hashing it in a second thread, so that the disk stays busy.

CHUNK_BYTES = 4 << 20
SYNC_BYTES = 64 << 20
"""Number of bytes written before they are flushed in parallel with the copy."""


class Digest(Protocol):
    """A hash object of ``hashlib``."""

    def update(self, data: Any, /) -> None:
        """Hash these bytes."""


def copy_summed(
    files: Files,
    source: int,
    target: int,
    begin: int,
    end: int,
    digest: Digest,
    step: Callable[[int], None],
    *,
    write: bool = True,
) -> int:
    """Copy ``[begin, end)`` of the descriptor ``source`` to the same place of ``target``, and sum it.

    ``step``: called with the size of each finished chunk. ``write`` False: only hash. Returns the end of the copy, less
    than ``end`` if the source ends before. Not all written bytes are on disk yet.
    """
    buffers = [memoryview(bytearray(min(CHUNK_BYTES, max(end - begin, 1)))) for _ in range(2)]
    summing: Future[None] | None = None
    syncing: Future[None] | None = None
    unsynced, at = 0, begin
    with ThreadPoolExecutor(2, "copy") as pool:
        while at < end:
            buffers.reverse()  # the other buffer is being hashed
            chunk = buffers[0][: min(len(buffers[0]), end - at)]
            chunk = chunk[: files.read(source, chunk, at, wait=True)]
            # Digests need the chunks in order, and the next turn reads into this one's buffer.
            if summing is not None:
                summing.result()
            if not len(chunk):
                break
            summing = pool.submit(digest.update, chunk)
            if write:
                files.write(target, chunk, at)
                unsynced += len(chunk)
                if unsynced >= SYNC_BYTES and (syncing is None or syncing.done()):
                    if syncing is not None:
                        # The kernel reports a failed flush only once.
                        syncing.result()
                    syncing, unsynced = pool.submit(files.sync_data, target), 0
            at += len(chunk)
            step(len(chunk))
        for future in (summing, syncing):
            if future is not None:
                future.result()
    return at


ENDS_BYTES = 64 << 10
"""Bytes that are compared at both ends of a complete file that the backup already has."""
ATTEMPTS = 50
PAUSE_S = 0.02
SPARE_DESCRIPTORS = 64
_LEFT_OUT = {f"{OWN_FOLDER}/new", f"{OWN_FOLDER}/aside"}
"""Folders of unfinished files, and of those that were replaced."""


@dataclass(frozen=True, slots=True)
class Made:
    """Result of a backup. ``copied_bytes``: bytes written; ``kept_bytes``: bytes that the backup already had."""

    manifest: Manifest
    copied_bytes: int
    kept_bytes: int
    seconds: float


@dataclass(slots=True)
class _Source:
    """The log to be copied: descriptors of its files by name, in order, and its end."""

    end: int
    last_store_ms: int
    running: bool
    fds: dict[str, int]
    file_bytes: int

    def wanted(self, name: str) -> int:
        """Return the number of the file's bytes that belong to the log."""
        return min(self.end - int(name), self.file_bytes)


def backup(store: Path, folder: Path, progress: Progress) -> Made:
    """Back up the store at ``store`` into ``folder``: from scratch, on top of an existing backup, or continuing an
    interrupted one. Blocks.

    Raises ``BackupError``, or ``NotAStore`` if ``store`` is itself a backup. After an error, a previously complete
    backup is still complete.
    """
    refuse_backup(store)
    if not (store / LOG_FOLDER).is_dir():
        raise BackupError(
            f"{store} is not a store: it has no folder `{LOG_FOLDER}`. Name the folder that the broker serves"
        )
    if folder.resolve().is_relative_to(store.resolve()):
        raise BackupError(f"{folder} is inside the store: choose a folder elsewhere, best on another disk")
    started = time.perf_counter()
    with _target(folder):
        try:
            return _Backup(store, folder, progress).run(started)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise BackupError(
                f"there is no room in {folder}: {error}. Free space, then run it again: what is copied already stays"
            ) from error


@contextmanager
def _target(folder: Path) -> Iterator[None]:
    """Create the folder if necessary, and lock it for this backup."""
    is_begun = (folder / MANIFEST).exists() or (folder / PROGRESS).exists()
    if folder.exists() and not is_begun and (not folder.is_dir() or any(folder.iterdir())):
        raise BackupError(f"{folder} is neither empty nor a backup: choose another folder")
    make_durable_folder(Files(), folder)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"another backup into {folder} is running: wait for it") from None
        yield
    finally:
        os.close(fd)


class _Backup:
    def __init__(self, store: Path, folder: Path, progress: Progress) -> None:
        self._store = store
        self._folder = folder
        self._progress = progress
        self._files = Files()
        self._before = Manifest.load(folder)
        self._known = {
            each.path: each for each in (*(self._before.log if self._before else ()), *load_progress(folder))
        }
        self._copied_bytes = 0
        self._kept_bytes = 0

    def run(self, started: float) -> Made:
        # First, because this file marks the folder as a backup that was begun.
        save_progress(self._files, self._folder, list(self._known.values()))
        make_durable_folder(self._files, self._folder / LOG_FOLDER)
        tables_folder = self._folder / self._tables_name()
        with ExitStack() as stack:
            tables, source = self._take(tables_folder, stack)
            log = self._copy_log(source)
        manifest = Manifest(
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            version=__version__,
            source=str(self._store.resolve()),
            running=source.running,
            log_begin=min((int(name) for name in source.fds), default=source.end),
            log_end=source.end,
            file_bytes=source.file_bytes,
            last_store_ms=source.last_store_ms,
            tables_folder=tables_folder.name,
            tables=tables,
            log=log,
        )
        manifest.save(self._files, self._folder)
        # After the manifest: up to here the previous one was valid and named these files.
        self._remove_what_it_does_not_name(manifest)
        return Made(manifest, self._copied_bytes, self._kept_bytes, time.perf_counter() - started)

    def _tables_name(self) -> str:
        number = int(self._before.tables_folder.removeprefix(TABLES_PREFIX)) + 1 if self._before else 1
        return f"{TABLES_PREFIX}{number}"

    def _take(self, tables_folder: Path, stack: ExitStack) -> tuple[list[BackedUp], _Source]:
        """Copy the tables, then open the log. Try again if retention deletes a file in between."""
        for _ in range(ATTEMPTS):
            # An interrupted run or the attempt before has left it.
            if tables_folder.exists():
                shutil.rmtree(tables_folder)
            with ExitStack() as attempt:
                # In each attempt: a broker may start or stop between two of them.
                end = self._hold(attempt)
                try:
                    tables = self._copy_tables(tables_folder)
                    source = self._open_log(attempt, end)
                except FileNotFoundError:
                    pass  # retention deleted it
                else:
                    if source is not None:
                        # Lock and descriptors are held until the log is copied.
                        stack.push(attempt.pop_all())
                        return tables, source
                    if end is not None:
                        break  # the checkpoint did not change while it was read
            time.sleep(PAUSE_S)
        raise BackupError(
            f"{self._store} cannot be backed up: its checkpoint has no flushed offset, because RocketMQ uses the "
            "store or used it last. Start and stop FlintMQ's broker on it, then run this again"
        )

    def _hold(self, stack: ExitStack) -> int | None:
        """Lock a stopped store against brokers and return the end of its log; return None if a broker has it open."""
        try:
            _, end = stack.enter_context(open_for_reading(self._store, Findings(), running=False, index_slots=None))
        except StoreLocked:
            return None
        return end

    # Tables.

    def _copy_tables(self, folder: Path) -> list[BackedUp]:
        """Copy every file of ``config/`` and ``flintmq/``. A file that vanishes meanwhile is no longer needed."""
        copied = []
        for path in self._table_files():
            name = str(path.relative_to(self._store))
            try:
                with open(open_file(path, os.O_RDONLY | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a descriptor
                    content, mode = file.read(), os.fstat(file.fileno()).st_mode & 0o777
            except FileNotFoundError:
                continue
            target = folder / name
            make_durable_folder(self._files, target.parent)
            write_new(self._files, target, content, mode)
            copied.append(BackedUp(name, len(content), hashlib.sha256(content).hexdigest(), mode))
            self._copied_bytes += len(content)
        make_durable_folder(self._files, folder)
        return copied

    def _table_files(self) -> Iterator[Path]:
        """Yield the files in copy order: in each folder journals first, because one may be merged into its table
        meanwhile; then JSON, because a ``cursor.json`` refers to rows that are already in other, growing files."""
        for name in ("config", OWN_FOLDER):
            for folder, folders, names in os.walk(self._store / name):
                relative = Path(folder).relative_to(self._store)
                folders[:] = sorted(each for each in folders if str(relative / each) not in _LEFT_OUT)
                names.sort(key=lambda each: (not each.endswith(JOURNAL_SUFFIX), not each.endswith(".json"), each))
                for each in names:
                    if not each.endswith(".tmp"):
                        yield Path(folder) / each

    # The log.

    def _open_log(self, stack: ExitStack, end: int | None) -> _Source | None:
        """Return the log's files, open; None if the checkpoint has no mark. ``end``: end of the log of a stopped store.

        Raises ``FileNotFoundError`` if retention has just deleted a file.
        """
        checkpoint = StoreCheckpoint(ReadOnlyFiles(), self._store / "checkpoint")
        checkpoint.load()
        if checkpoint.mark is None:
            return None
        running, flushed = end is None, checkpoint.mark.flushed_offset
        # A stopped store may end after the offset in its last checkpoint.
        end = flushed if end is None else max(end, flushed)
        log_folder = self._store / LOG_FOLDER
        names = sorted(path.name for path in log_folder.iterdir() if OFFSET_NAME.match(path.name) and path.is_file())
        names = [name for name in names if int(name) < end]
        begin = min(self._log_begin(flushed), end)
        _allow_descriptors(len(names))
        fds = {}
        for name in names:
            fds[name] = open_file(log_folder / name, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, fds[name])
        # The open files must be a whole log: of one size, without a gap, from its beginning to its end.
        sizes = {os.fstat(fd).st_size for fd in fds.values()}
        file_bytes = max(sizes, default=0)
        follow_on = all(int(name) + file_bytes == int(later) for name, later in pairwise(names))
        held = (int(names[0]), int(names[-1]) + file_bytes) if names else (end, end)
        if len(sizes) > 1 or not follow_on or held[0] > begin or held[1] < end:
            raise BackupError(
                f"the log in {log_folder} is incomplete between {begin:,} and {end:,}: a file is missing or has the "
                f"wrong size. `flintmq-broker verify {self._store}` reports more. An earlier backup in {self._folder} "
                f"stays valid: the file may be in its folder `{LOG_FOLDER}`"
            )
        return _Source(end, checkpoint.physic_msg_timestamp, running, fds, file_bytes)

    def _log_begin(self, flushed: int) -> int:
        """Return the greatest possible start of the log, which FlintMQ notes before it deletes a file.

        Call this after listing the files: a later note says which files may be gone, not which must exist.
        """
        state = StoreState(ReadOnlyFiles(), self._store / OWN_FOLDER / "state.json")
        with suppress(CorruptFile):  # copied unchanged; the start of the log is then unknown
            state.load()
        log_start = state.snapshot.log_start
        return log_start if 0 <= log_start < flushed else flushed

    def _copy_log(self, source: _Source) -> list[BackedUp]:
        before = self._before
        # Without a common file nothing would show that it is the same log.
        if (
            before
            and before.log
            and before.source != str(self._store.resolve())
            and not self._known.keys() & source.fds
        ):
            raise self._another_log(before.log[-1].path)
        copied: list[BackedUp] = []
        total = sum(source.wanted(name) for name in source.fds)
        for name, fd in source.fds.items():
            done = sum(each.bytes for each in copied)
            known = self._known.get(name)
            if known is not None and self._is_there(name, fd, known, source):
                self._kept_bytes += known.bytes
                copied.append(known)
                continue
            copied.append(self._copy_file(name, fd, source.wanted(name), known, (done, total)))
            self._known[name] = copied[-1]
            # After the file is on disk: what is noted here is kept by a run that continues.
            save_progress(self._files, self._folder, list(self._known.values()))
        self._progress("copying", total, total)
        return copied

    def _is_there(self, name: str, fd: int, known: BackedUp, source: _Source) -> bool:
        """Return whether the backup already has the whole file. Whole files never change, so comparing both ends is
        enough to identify it."""
        target = self._folder / LOG_FOLDER / name
        if not known.bytes == source.wanted(name) == source.file_bytes:
            return False
        if not target.exists() or target.stat().st_size != known.bytes:
            return False
        with ReadOnlyFiles().opened(target) as held:
            return all(
                os.pread(fd, ENDS_BYTES, at) == os.pread(held, ENDS_BYTES, at)
                for at in (0, max(known.bytes - ENDS_BYTES, 0))
            )

    def _copy_file(
        self, name: str, fd: int, wanted: int, known: BackedUp | None, progress: tuple[int, int]
    ) -> BackedUp:
        """Copy the first ``wanted`` bytes of a log file, or the missing part of them; read and hash all of them."""
        files, target = self._files, self._folder / LOG_FOLDER / name
        keep = known.bytes if known is not None and target.exists() and target.stat().st_size >= known.bytes else 0
        if keep > wanted:
            raise self._another_log(name)
        digest, done = hashlib.sha256(), [progress[0]]

        def step(count: int) -> None:
            done[0] += count
            self._progress("copying", done[0], progress[1])

        with files.opened(target, create=True) as out:
            files.resize(out, keep)  # later bytes of an interrupted run may not be on disk
            # The store's bytes are hashed, also those that the backup has: if they differ, it is of another log.
            at = copy_summed(files, fd, out, 0, keep, digest, step, write=False)
            if keep and known is not None and digest.hexdigest() != known.sha256:
                raise self._another_log(name)
            at = copy_summed(files, fd, out, at, wanted, digest, step)
            if at != wanted:
                raise BackupError(f"{self._store / LOG_FOLDER / name} ended at byte {at:,} while it was copied")
            self._copied_bytes += at - keep
            files.sync_data(out)
        files.sync_folder(target.parent)
        self._kept_bytes += keep
        return BackedUp(name, wanted, digest.hexdigest())

    def _another_log(self, name: str) -> BackupError:
        return BackupError(
            f"{self._folder / LOG_FOLDER / name} is not the beginning of {self._store / LOG_FOLDER / name}: the backup "
            "is of another store, or of this one before it was restored. Choose another folder; the backup in "
            "this one stays valid"
        )

    def _remove_what_it_does_not_name(self, manifest: Manifest) -> None:
        """Remove log files that retention has deleted, tables of the previous backup, and the notes of this run."""
        named = {each.path for each in manifest.log}
        for path in (self._folder / LOG_FOLDER).iterdir():
            if path.name not in named:
                path.unlink()
        for path in self._folder.glob(f"{TABLES_PREFIX}*"):
            if path.name != manifest.tables_folder:
                shutil.rmtree(path)
        (self._folder / PROGRESS).unlink()
        self._files.sync_folder(self._folder)


def _allow_descriptors(count: int) -> None:
    """Raise the system's limit of open files to ``count``, if possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_DESCRIPTORS
    if wanted > soft != resource.RLIM_INFINITY:
        if hard != resource.RLIM_INFINITY and wanted > hard:
            raise BackupError(f"the log has {count:,} files, and no more than {hard:,} may be open: raise `ulimit -n`")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# ---- ``flintmq-broker restore``: turn a backup into a store on which a broker can start.
#
# The checkpoint is written first and says how far the log goes; the log's files come last, in order, each by
# an atomic rename. So a broker does not start on a half-restored store: it reports a missing file. All content
# is compared with the backup's SHA-256 during the copy.
#
# The store looks as after a crash, with ``abort``: the start rebuilds queues and index from the log, and moves
# back consumer offsets that are ahead of it.

_OF_A_MEMBER = {f"{OWN_FOLDER}/{name}.json" for name in ("replication", "cut", "restart")}
"""Tables that are not restored: a member of a replica set lacks what was acknowledged after its backup, and must not
lead with it."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore."""

    manifest: Manifest
    seconds: float


def restore(folder: Path, store: Path, progress: Progress) -> Restored:
    """Restore the backup in ``folder`` into the folder ``store``, which must be missing or empty. Blocks.

    Raises ``BackupError`` if the backup is incomplete, or a file of it has changed.
    """
    started = time.perf_counter()
    manifest = load_whole(folder)
    if store.exists() and (not store.is_dir() or any(store.iterdir())):
        raise BackupError(f"{store} is not empty: choose a folder that does not exist, or empty it")
    _check_sizes(folder, manifest)
    try:
        _Restoring(folder, store, manifest, progress).run()
    except BaseException as error:
        if isinstance(error, (BackupError, OSError, KeyboardInterrupt)):
            error.add_note(f"{store} is not complete, and no broker starts on it: remove it before you try again")
        raise
    return Restored(manifest, time.perf_counter() - started)


def _check_sizes(folder: Path, manifest: Manifest) -> None:
    """Check before anything is written that all files exist."""
    for path, each in _all(folder, manifest):
        size = path.stat().st_size if path.is_file() else -1
        if size < each.bytes:
            is_what = "is missing" if size < 0 else f"has {size:,} bytes instead of {each.bytes:,}"
            raise BackupError(
                f"{path} {is_what}: the backup is damaged. If the store still exists, `flintmq-broker backup` into "
                "a new folder makes another"
            )


def _all(folder: Path, manifest: Manifest) -> list[tuple[Path, BackedUp]]:
    tables = [(folder / manifest.tables_folder / each.path, each) for each in manifest.tables]
    return tables + [(folder / LOG_FOLDER / each.path, each) for each in manifest.log]


class _Restoring:
    """One run of a restore."""

    def __init__(self, folder: Path, store: Path, manifest: Manifest, progress: Progress) -> None:
        self._folder = folder
        self._store = store
        self._manifest = manifest
        self._progress = progress
        self._files = Files()
        self._done = 0

    def run(self) -> None:
        files, store, manifest = self._files, self._store, self._manifest
        for name in (LOG_FOLDER, "config", f"{OWN_FOLDER}/new"):
            make_durable_folder(files, store / name)
        self._write_checkpoint()
        write_new(files, store / "abort", b"", FILE_MODE)
        for each in manifest.tables:
            if each.path.removesuffix(".bak") in _OF_A_MEMBER:
                self._count(each.bytes)
            else:
                self._restore_table(each)
        for each in manifest.log:
            self._restore_log_file(each)

    def _write_checkpoint(self) -> None:
        # Nothing is dispatched: the first start makes queues and index.
        mark = Mark(self._manifest.log_end, self._manifest.log_begin)
        StoreCheckpoint(self._files, self._store / "checkpoint").write_alone(mark, self._manifest.last_store_ms)
        self._files.sync_folder(self._store)

    def _restore_table(self, each: BackedUp) -> None:
        source = self._folder / self._manifest.tables_folder / each.path
        content = source.read_bytes()
        if len(content) != each.bytes or hashlib.sha256(content).hexdigest() != each.sha256:
            raise _damaged(source)
        target = self._store / each.path
        make_durable_folder(self._files, target.parent)
        write_new(self._files, target, content, each.mode)
        self._count(each.bytes)

    def _restore_log_file(self, each: BackedUp) -> None:
        """Copy the file under another name, padded to the size of the log's files, then rename it."""
        files, source = self._files, self._folder / LOG_FOLDER / each.path
        target = self._store / LOG_FOLDER / each.path
        scratch = self._store / OWN_FOLDER / "new" / f"restored-{each.path}"
        with ReadOnlyFiles().opened(source) as held, files.opened(scratch, create=True) as out:
            files.resize(out, self._manifest.file_bytes)
            digest = hashlib.sha256()
            at = copy_summed(files, held, out, 0, each.bytes, digest, self._count)
            if at != each.bytes or digest.hexdigest() != each.sha256:
                raise _damaged(source)
            files.sync_data(out)
        files.rename(scratch, target)
        files.sync_folder(target.parent)

    def _count(self, count: int) -> None:
        self._done += count
        self._progress("restoring", self._done, self._manifest.bytes)


def _damaged(path: Path) -> BackupError:
    return BackupError(f"{path} is not what was backed up: its SHA-256 differs. The backup is damaged there")


# ---- ``flintmq-broker verify`` of a backup: its manifest, every byte of its files, and every record of its log.

SCAN_STEP_BYTES = 8 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_TABLE_FOLDERS = ("config", OWN_FOLDER)


@dataclass(frozen=True, slots=True)
class VerifiedBackup:
    """Result of a verification. ``bytes``: size of all files; ``records``: number of readable records."""

    manifest: Manifest
    findings: Findings
    records: int
    bytes: int
    seconds: float


def verify_backup(folder: Path, progress: BytesDone) -> VerifiedBackup:
    """Verify the backup in ``folder``. Changes nothing.

    Raises ``BackupError`` if the manifest is missing or unreadable: without it, the expected content is unknown.
    """
    started = time.perf_counter()
    manifest = load_whole(folder)
    run = _Verification(folder, manifest, progress)
    run.check_manifest()
    run.check_files()
    return VerifiedBackup(manifest, run.findings, run.records, run.bytes_done, time.perf_counter() - started)


class _Verification:
    """One verification of a backup."""

    def __init__(self, folder: Path, manifest: Manifest, progress: BytesDone) -> None:
        self.folder = folder
        self.manifest = manifest
        self.findings = Findings()
        self.records = 0
        self.bytes_done = 0
        self._progress = progress
        self._counting = threading.Lock()
        self._tables = folder / manifest.tables_folder
        self._log = folder / LOG_FOLDER
        self._checksummed = ChecksummedRanges()

    # The manifest: is it consistent, and does the folder match it?

    def check_manifest(self) -> None:
        """Check that the manifest is consistent and matches the names in the folder."""
        for problem in self._problems():
            self.findings.add("backup-manifest", self.folder / MANIFEST, problem)
        named = {self._tables / each.path for each in self.manifest.tables}
        named |= {self._log / each.path for each in self.manifest.log}
        named |= {self.folder / MANIFEST, self.folder / PROGRESS}
        for path in sorted(self.folder.rglob("*")):
            if path not in named and not path.is_dir():
                self.findings.note(f"{path} is not part of the backup: {MANIFEST} does not name it")
        if (self.folder / PROGRESS).exists():
            self.findings.note(
                f"a later run of `flintmq-broker backup` into {self.folder} was interrupted: the backup "
                "before it stays valid. The next run continues"
            )

    def _problems(self) -> Iterator[str]:
        manifest = self.manifest
        for each in (*manifest.tables, *manifest.log):
            if not _SHA256.match(each.sha256):
                yield f"{each.path}: {each.sha256!r} is not a SHA-256"
        for files in (manifest.tables, manifest.log):
            for name in sorted({each.path for each in files if sum(other.path == each.path for other in files) > 1}):
                yield f"{name} is named more than once"
        if not re.fullmatch(rf"{TABLES_PREFIX}[0-9]+", manifest.tables_folder):
            yield f"{manifest.tables_folder!r} is not a folder of tables"
        for each in manifest.tables:
            if Path(each.path).parts[0] not in _TABLE_FOLDERS:
                yield f"{each.path} is not a table of a store"
        try:
            datetime.fromisoformat(manifest.made_at)
        except ValueError:
            yield f"made_at is not a time: {manifest.made_at!r}"
        yield from self._log_problems()

    def _log_problems(self) -> Iterator[str]:
        """Yield why its files do not form one log from ``log_begin`` to ``log_end``."""
        manifest, size = self.manifest, self.manifest.file_bytes
        log = sorted(manifest.log, key=lambda each: each.path)
        wrong = [each.path for each in log if not re.fullmatch("[0-9]{20}", each.path)]
        if wrong:
            yield f"{', '.join(wrong)}: not names of CommitLog files"
            return
        begins = [int(each.path) for each in log]
        if not 0 <= manifest.log_begin <= manifest.log_end:
            yield f"the log cannot go from {manifest.log_begin:,} to {manifest.log_end:,}"
        elif (begins[0] if log else manifest.log_end) != manifest.log_begin:
            yield f"the log begins at {manifest.log_begin:,}, but its first file is {log[0].path if log else 'missing'}"
        for before, behind in pairwise(begins):
            if before + size != behind:
                yield f"{file_name(before + size)} is missing after {file_name(before)}"
        if begins and begins[-1] + size < manifest.log_end:
            yield f"{file_name(begins[-1] + size)} is missing: the log continues up to {manifest.log_end:,}"
        for number, each in enumerate(log):
            wanted = min(manifest.log_end - begins[number], size)
            if each.bytes != wanted:
                yield f"{each.path}: {each.bytes:,} bytes of it were backed up, where the log has {wanted:,}"

    # The files: do they match the manifest, and is the log readable?

    def check_files(self) -> None:
        """Read every byte, tables first because they say which records must have a checksum."""
        for each in self.manifest.tables:
            self._check_sum(self._tables / each.path, each)
        self._checksummed = self._checksummed_ranges()
        with ThreadPoolExecutor(max(1, min(usable_processors(), THREADS_MAX)), "verify") as pool:
            work: list[Future[None]] = [pool.submit(self._check_log_file, each) for each in self.manifest.log]
            try:
                for future in work:
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _check_log_file(self, each: BackedUp) -> None:
        path = self._log / each.path
        held = self._check_sum(path, each)
        if re.fullmatch("[0-9]{20}", each.path):
            self._check_records(path, int(each.path), min(held, each.bytes))

    def _check_sum(self, path: Path, each: BackedUp) -> int:
        """Compare a file with its SHA-256; return how many of the backed-up bytes it has."""
        if not path.is_file():
            self.findings.add("backup-file", path, "it is missing")
            return 0
        held = path.stat().st_size
        if held < each.bytes:
            self.findings.add("backup-file", path, f"it has {held:,} bytes instead of {each.bytes:,}", position=held)
        digest = hashlib.sha256()
        with ReadOnlyFiles().opened(path) as fd:
            # Nothing is written, so there is no target.
            copy_summed(Files(), fd, -1, 0, min(held, each.bytes), digest, self._count, write=False)
        if held >= each.bytes and digest.hexdigest() != each.sha256:
            self.findings.add("backup-file", path, "its SHA-256 is not that of the file that was backed up")
        elif held > each.bytes:
            # An interrupted run appends to the last file; `restore` leaves that out.
            self.findings.note(f"{path} has {held - each.bytes:,} bytes after the size that {MANIFEST} states")
        return held

    def _count(self, count: int) -> None:
        with self._counting:
            self.bytes_done += count
            self._progress(self.bytes_done, self.manifest.bytes)

    def _checksummed_ranges(self) -> ChecksummedRanges:
        state = StoreState(ReadOnlyFiles(), self._tables / OWN_FOLDER / "state.json")
        try:
            state.load()
        except (CorruptFile, *SHAPE_ERRORS) as error:
            if self._tables.is_dir():
                self.findings.note(f"{error}: it is unknown which records must have a checksum over the whole record")
        return state.checksummed

    def _check_records(self, path: Path, base: int, size: int) -> None:
        """Check each record of a log file below ``size``."""
        if not size:
            return
        files = ReadOnlyFiles()
        with files.opened(path) as fd:
            array = np.frombuffer(files.map(fd, size), np.uint8)
        scan = LogScan(self._checksummed)
        at = 0
        while at < size:
            status, at = scan.step(array, base + at, base + min(at + SCAN_STEP_BYTES, size), base)
            if status == kernel.DONE:
                continue
            if status == kernel.BLANK and ends_file(array, at):
                break
            found = int(search.next_record(array, at + 1, size, base, scan.parts))
            name = "a blank record that does not end its file" if status == kernel.BLANK else kernel.BAD_NAMES[status]
            self.findings.add(
                "backup-record",
                path,
                f"{name}; {found - at:,} bytes up to the next readable record",
                position=at,
                physical_offset=base + at,
            )
            at = found
        with self._counting:
            self.records += scan.counts[kernel.S_RECORDS]


def backup_as_json(verified: VerifiedBackup, folder: Path) -> Iterator[str]:
    manifest = verified.manifest
    yield from findings_json(verified.findings)
    yield to_json(
        {
            "kind": "summary",
            "backup": str(folder),
            "source": manifest.source,
            "made_at": manifest.made_at,
            "version": manifest.version,
            "beside_a_broker": manifest.running,
            "log_start": manifest.log_begin,
            "log_end": manifest.log_end,
            "records": verified.records,
            "tables": len(manifest.tables),
            "bytes": verified.bytes,
            "seconds": round(verified.seconds, 3),
            "findings": verified.findings.counts,
            "notes": verified.findings.notes,
        }
    )


def backup_as_text(verified: VerifiedBackup, folder: Path, shown: int) -> Iterator[str]:
    manifest = verified.manifest
    beside = "beside a running broker" if manifest.running else "of a stopped store"
    files = f"{len(manifest.log):,} file{'s' * (len(manifest.log) != 1)}"
    made = f"made {escape(manifest.made_at)} by FlintMQ {escape(manifest.version)}"
    yield f"backup   {escape(str(folder))}, {made} {beside}"
    yield f"source   {escape(manifest.source)}"
    yield (
        f"log      {verified.records:,} records in {files}, physical offsets {manifest.log_begin:,} to "
        f"{manifest.log_end:,}"
    )
    yield f"tables   {len(manifest.tables):,}"
    rate = verified.bytes / max(verified.seconds, 1e-3)
    yield f"checked  {show_bytes(verified.bytes)} in {verified.seconds:.2f} s, {show_bytes(rate)}/s"
    yield from conclusion(
        verified.findings, folder, shown, "every file is as it was backed up, and every record of the log can be read"
    )
