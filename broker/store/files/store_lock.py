"""The lock on a store's folder: a POSIX lock on its file ``lock``, which RocketMQ respects too."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreLocked
from .file_system import is_plain_file

if TYPE_CHECKING:
    from .file_system import Files

LOCK_CONTENT = b"lock"

_locked_here: set[str] = set()
"""Stores locked by this process: POSIX locks do not exclude their own process."""


class StoreLock:
    """The lock: exclusive for the process that writes the store (``take``), shared for readers (``share``)."""

    def __init__(self, files: Files, store: Path) -> None:
        self._files = files
        self._path = store / "lock"
        self._key = str(store.resolve())
        self._fd = -1

    def take(self) -> None:
        """Take the lock exclusively; create the file if necessary. Raises ``StoreLocked``."""
        self._lock(fcntl.LOCK_EX, create=True)
        if self._files.size(self._fd) != len(LOCK_CONTENT):
            self._files.resize(self._fd, 0)
            self._files.write(self._fd, LOCK_CONTENT, 0)

    def share(self) -> None:
        """Share the lock with other readers; changes nothing. Raises ``StoreLocked``.

        Does nothing if the file does not exist: then no broker has the store open.
        """
        if is_plain_file(self._path):
            self._lock(fcntl.LOCK_SH, create=False)

    def _lock(self, how: int, *, create: bool) -> None:
        # Checked before the file is opened: closing any descriptor of the file releases this process's lock.
        if self._key in _locked_here:
            raise self._locked()
        fd = self._files.open(self._path, create=create)
        try:
            # The first byte is the one that RocketMQ locks (``tryLock(0, 1, false)``).
            fcntl.lockf(fd, how | fcntl.LOCK_NB, 1, 0)
        except (BlockingIOError, PermissionError):
            self._files.close(fd)
            raise self._locked() from None
        _locked_here.add(self._key)
        self._fd = fd

    def _locked(self) -> StoreLocked:
        return StoreLocked(
            f"{self._path.parent} is open in another broker (it holds a lock on {self._path}). Stop it, or "
            "choose another folder with --store"
        )

    def release(self) -> None:
        """Release the lock; idempotent."""
        if self._fd >= 0:
            _locked_here.discard(self._key)
            self._files.close(self._fd)
            self._fd = -1
