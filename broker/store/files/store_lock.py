"""The lock on a store's folder: a POSIX lock on its file ``lock``, which RocketMQ honours too."""

from __future__ import annotations

import fcntl
from pathlib import Path

from ..errors import StoreLocked
from .file_system import Files

LOCK_CONTENT = b"lock"

_locked_here: set[str] = set()
"""Stores locked by this process: POSIX locks do not exclude their own process."""


class StoreLock:
    """Held by whoever writes the store, alone (``take``), or by those who only read it (``share``)."""

    def __init__(self, files: Files, store: Path) -> None:
        self._files = files
        self._path = store / "lock"
        self._key = str(store.resolve())
        self._fd = -1

    def take(self) -> None:
        """Take it, alone; the file is made if need be. Raises ``StoreLocked``."""
        self._lock(fcntl.LOCK_EX, create=True)
        if self._files.size(self._fd) != len(LOCK_CONTENT):
            self._files.resize(self._fd, 0)
            self._files.write(self._fd, LOCK_CONTENT, 0)

    def share(self) -> None:
        """Take it beside others who only read; changes nothing. Where there is no such file no broker has the store
        open. Raises ``StoreLocked``."""
        if self._path.is_file():
            self._lock(fcntl.LOCK_SH, create=False)

    def _lock(self, how: int, *, create: bool) -> None:
        # Without opening the file: closing any descriptor of it lets this process's lock go.
        if self._key in _locked_here:
            raise self._locked()
        fd = self._files.open(self._path, create=create)
        try:
            fcntl.lockf(fd, how | fcntl.LOCK_NB, 1, 0)
        except (BlockingIOError, PermissionError):
            self._files.close(fd)
            raise self._locked() from None
        _locked_here.add(self._key)
        self._fd = fd

    def _locked(self) -> StoreLocked:
        return StoreLocked(
            f"{self._path.parent} is open in another broker (it holds a lock on {self._path}). Stop that one, or "
            "choose another folder with --store"
        )

    def release(self) -> None:
        """Let it go; idempotent."""
        if self._fd >= 0:
            _locked_here.discard(self._key)
            self._files.close(self._fd)
            self._fd = -1
