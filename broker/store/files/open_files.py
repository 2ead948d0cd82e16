"""Descriptors: how many the store keeps for itself, and which files of the ConsumeQueues are open.

Every queue has at least one file, so a broker with a hundred thousand queues would need more descriptors than a process
gets. Only so many are open at a time. The others are opened again when they are read or written: some 10 µs.
"""

from __future__ import annotations

import errno
import resource
import threading
from collections import OrderedDict
from typing import Protocol

from .file_system import Descriptor

STORE_DESCRIPTORS_MIN = 4096
"""Descriptors that connections leave to the store, or half of all where there are few."""
_UNBOUNDED = 2**31
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)


def descriptors_max() -> int:
    """How many descriptors the process may have."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNBOUNDED if most == resource.RLIM_INFINITY else most


def store_descriptors() -> int:
    """How many of them are kept for the store's files."""
    most = descriptors_max()
    return min(most // 2, max(most // 4, STORE_DESCRIPTORS_MIN))


class HasFiles(Protocol):
    """A row of files, some of them open."""

    def shut(self, start: int) -> None:
        """Let go of the descriptor of the file that begins at ``start``."""


class OpenFiles:
    """Which files are open, at most ``files_max`` (default: half of what is kept for the store).

    The one that goes is one that was not used for long: the clock algorithm. What was written to it stays in the page
    cache and is put on disk by the next sync, which opens it again; an error that nobody saw is kept for who opens it
    next (``errseq`` of Linux). A reader that is still in a file keeps its descriptor. Any thread may call.
    """

    def __init__(self, files_max: int | None = None) -> None:
        self.files_max = store_descriptors() // 2 if files_max is None else files_max
        self.lock = threading.Lock()
        """Held to change which descriptor stands for a file."""
        self._open: OrderedDict[Descriptor, tuple[HasFiles, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, owner: HasFiles, start: int, file: Descriptor) -> None:
        """A file was opened, and stands in its row; the lock is held."""
        self._open[file] = owner, start
        while len(self._open) > self.files_max and self._shut_one():
            pass

    def left(self, file: Descriptor) -> None:
        """A file is in its row no more; the lock is held."""
        self._open.pop(file, None)

    def make_room(self, error: OSError) -> None:
        """A file could not be opened: have one descriptor more for it. Raises ``error`` where that does not help."""
        with self.lock:
            if error.errno not in _NONE_LEFT or not self._shut_one():
                raise error

    def _shut_one(self) -> bool:
        for _ in range(2 * len(self._open)):
            file, (owner, start) = self._open.popitem(last=False)
            if not file.used:
                owner.shut(start)
                return True
            file.used = False
            self._open[file] = owner, start
        return False
