"""The lock on a store's folder: a POSIX lock on its file ``lock``, which RocketMQ respects too."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ....protocol.store_files import OFFSET_NAME
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

    @contextmanager
    def held(self) -> Iterator[None]:
        """Take the lock, and release it on exit. Raises ``StoreLocked``."""
        self.take()
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Release the lock; idempotent."""
        if self._fd >= 0:
            _locked_here.discard(self._key)
            self._files.close(self._fd)
            self._fd = -1


# ---- The file ``abort``, which marks a store that a broker is running on. RocketMQ has the same.


class AbortFile:
    """``abort`` in the store's folder. If it exists at a start, the last process did not stop in an orderly way."""

    def __init__(self, files: Files, store: Path) -> None:
        self._files = files
        self._path = store / "abort"

    def exists(self) -> bool:
        return self._path.exists()

    def create(self) -> None:
        """Create the file with the number of this process, durably."""
        with self._files.opened(self._path, create=True) as fd:
            self._files.resize(fd, 0)
            self._files.write(fd, str(os.getpid()).encode(), 0)
            self._files.sync_data(fd)
        self._files.sync_folder(self._path.parent)

    def remove(self) -> None:
        """Remove the file, durably. Everything else must be on disk."""
        self._files.unlink(self._path)
        self._files.sync_folder(self._path.parent)


# ---- Check that a store's paths are of the right kind.
#
# Finds a folder where a file belongs, or a link that is dangling because a disk is not mounted.

_FOLDERS = tuple(
    ("commitlog consumequeue index config flintmq flintmq/aside flintmq/new flintmq/quarantine flintmq/timers").split()
)
_TABLES = tuple(
    (
        "config/topics.json config/consumerOffset.json config/subscriptionGroup.json "
        "config/delayOffset.json flintmq/state.json flintmq/prepared.json flintmq/pop.json "
        "flintmq/users.json flintmq/quarantine/index.json flintmq/clock.json"
    ).split()
)
_FILES = (
    *("lock", "abort", "checkpoint", "flintmq/following.json", *_TABLES),
    *("config/topics.json.journal", "config/consumerOffset.json.journal", "flintmq/pop.json.journal"),
    *(f"{name}.bak" for name in _TABLES),
)


def strange_places(store: Path) -> Iterator[tuple[Path, str]]:
    """Yield (path, problem) for each path that must be a file or a folder and is something else.

    A folder may be a link, to another disk; a file must not be one, because it could lead to any file of the machine,
    which would then be overwritten. The files of ConsumeQueues and index are not checked: recovery can rebuild them.
    """
    log = store / "commitlog"
    folders = [store / name for name in _FOLDERS]
    files = [store / name for name in _FILES]
    if log.is_dir():
        files += sorted(path for path in log.iterdir() if OFFSET_NAME.match(path.name))
    files += [path for path in _links_of_tables(store) if path not in files]
    for paths, is_right, wanted in ((folders, stat.S_ISDIR, "folder"), (files, stat.S_ISREG, "file")):
        for path in paths:
            if found := _instead(path, is_right):
                yield path, f"it is {found}, where a {wanted} belongs"


def _links_of_tables(store: Path) -> Iterator[Path]:
    """Yield the links in the place of tables and of what belongs to one, such as a table that is being written; not
    those in folders that a start empties."""
    paths = sorted((store / "config").glob("*.json*"))
    for folder, folders, names in os.walk(store / "flintmq"):
        folders[:] = sorted(name for name in folders if name not in ("aside", "new"))
        paths += [Path(folder, name) for name in sorted(names)]
    yield from (path for path in paths if path.is_symlink())


def _instead(path: Path, is_right: Callable[[int], bool]) -> str:
    """Return a description of a wrong object at ``path``; empty if it is right or if nothing is there."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "a link that leads nowhere" if path.is_symlink() else ""
    except NotADirectoryError:
        return ""  # its parent is reported instead
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return "a link that leads to itself"
    if is_right(mode):
        return "a link" if stat.S_ISREG(mode) and path.is_symlink() else ""
    return "a folder" if stat.S_ISDIR(mode) else "a file" if stat.S_ISREG(mode) else "neither a file nor a folder"
