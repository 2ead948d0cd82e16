"""Restoring damaged tables of a stopped store: a table from its ``.bak``, or the ``.bak`` from its table.

Tables that a start rebuilds from the log (``timers/``, ``quarantine/``) need no repair.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...protocol.auth.users import USERS_FILE, choose_users
from ...protocol.errors import ConfigurationError
from ..store.files.file_system import Files
from ..store.files.json_table import SHAPE_ERRORS, parse_table
from ..store.files.store_lock import StoreLock
from ..store.message_store import OWN_FOLDER
from .backup_manifest import write_new


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
