"""``flintmq-broker restore``: turn a backup into a store on which a broker can start.

The checkpoint is written first and says how far the log goes; the log's files come last, in order, each by an atomic
rename. So a broker does not start on a half-restored store: it reports a missing file. All content is compared with
the backup's SHA-256 during the copy.

The store looks as after a crash, with ``abort``: the start rebuilds queues and index from the log, and moves back
consumer offsets that are ahead of it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...protocol.auth.users import USERS_FILE, choose_users
from ...protocol.errors import ConfigurationError
from ...protocol.store_files import FILE_MODE
from ..store.files.file_system import Files, make_durable_folder, open_file
from ..store.files.json_table import SHAPE_ERRORS, parse_table
from ..store.files.store_lock import StoreLock
from ..store.message_store import OWN_FOLDER
from ..store.tables.checkpoint import StoreCheckpoint
from .backup import LOG_FOLDER, BackedUp, BackupError, Manifest, copy_summed, load_whole, write_new
from .output import Progress

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
        checkpoint = StoreCheckpoint(self._files, self._store / "checkpoint")
        checkpoint.create()
        # Nothing is dispatched: the first start makes queues and index.
        checkpoint.reset(
            flushed_offset=self._manifest.log_end,
            dispatched_offset=self._manifest.log_begin,
            physic_ms=self._manifest.last_store_ms,
            logics_ms=0,
            index_ms=0,
        )
        checkpoint.close()
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
        held = open_file(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            out = files.open(scratch, create=True)
            try:
                files.resize(out, self._manifest.file_bytes)
                digest = hashlib.sha256()
                at = copy_summed(files, held, out, 0, each.bytes, digest, self._count)
                if at != each.bytes or digest.hexdigest() != each.sha256:
                    raise _damaged(source)
                files.sync_data(out)
            finally:
                files.close(out)
        finally:
            os.close(held)
        files.rename(scratch, target)
        files.sync_folder(target.parent)

    def _count(self, count: int) -> None:
        self._done += count
        self._progress("restoring", self._done, self._manifest.bytes)


def _damaged(path: Path) -> BackupError:
    return BackupError(f"{path} is not what was backed up: its SHA-256 differs. The backup is damaged there")


# ---- Restoring damaged tables of a stopped store: a table from its ``.bak``, or the ``.bak`` from its table.
#
# Tables that a start rebuilds from the log (``timers/``, ``quarantine/``) need no repair.


def restore_tables(path: Path, files: Files) -> list[Path]:
    """Rewrite each damaged file whose counterpart is sound; return the rewritten files. Raises ``StoreLocked``."""
    lock = StoreLock(files, path)
    lock.take()
    try:
        tables = [table for name in ("config", OWN_FOLDER) for table in sorted((path / name).glob("*.json"))]
        with _users_locked(path):
            return [restored for table in tables if (restored := _restore(path, table, files)) is not None]
    finally:
        lock.release()


@contextmanager
def _users_locked(path: Path) -> Iterator[None]:
    """Take the lock under which ``flintmq user`` changes users; it takes no other."""
    descriptor = os.open(path / OWN_FOLDER, os.O_RDONLY | os.O_DIRECTORY) if (path / OWN_FOLDER).is_dir() else -1
    try:
        if descriptor >= 0:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _restore(path: Path, table: Path, files: Files) -> Path | None:
    backup = table.with_name(f"{table.name}.bak")
    if not backup.exists():
        return None
    is_sound, is_backup_sound = _is_sound(table), _is_sound(backup)
    if is_sound == is_backup_sound:
        return None
    if not is_sound and table == path / USERS_FILE and not _serves(table, backup):
        return None  # it may have been edited on purpose to lock a user out: see ``protocol.users``
    source, target = (table, backup) if is_sound else (backup, table)
    _replace(files, target, source.read_bytes())
    return target


def _is_sound(table: Path) -> bool:
    try:
        parse_table(table.read_text(encoding="utf-8"))
    except SHAPE_ERRORS:
        return False
    return True


def _serves(table: Path, backup: Path) -> bool:
    """Return whether a broker would use the copy of the users."""
    try:
        choose_users(table.read_bytes(), backup.read_bytes(), str(table))
    except ConfigurationError:
        return False
    return True


def _replace(files: Files, target: Path, content: bytes) -> None:
    """Replace a file atomically, keeping its owner and permissions."""
    was = target.stat()
    scratch = target.with_name(f"{target.name}.tmp")
    scratch.unlink(missing_ok=True)
    write_new(files, scratch, content, was.st_mode & 0o777)
    # Otherwise the file would be root's, and the broker's user could not change it.
    if os.geteuid() == 0:
        os.chown(scratch, was.st_uid, was.st_gid, follow_symlinks=False)
    files.rename(scratch, target)
    files.sync_folder(target.parent)
