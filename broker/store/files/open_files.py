"""File descriptors: the number reserved for the store, and the pool of open ConsumeQueue files.

Every queue has at least one file, so a broker with a hundred thousand queues would need more descriptors than a process
may have. The pool bounds the number of open files. A closed file is reopened when it is read or written, which takes
about 10 µs.
"""

from __future__ import annotations

import errno
import logging
import resource
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .file_system import Descriptor

STORE_DESCRIPTORS_MIN = 4096
"""Minimum number of descriptors reserved for the store, unless that is more than half of all."""
_UNBOUNDED = 2**31
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)

log = logging.getLogger(__name__)


def descriptors_max() -> int:
    """Return the maximum number of descriptors of this process."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNBOUNDED if most == resource.RLIM_INFINITY else most


def store_descriptors() -> int:
    """Return the number of descriptors that are reserved for the store's files."""
    most = descriptors_max()
    return min(most // 2, max(most // 4, STORE_DESCRIPTORS_MIN))


class HasFiles(Protocol):
    """A sequence of files, some of them open."""

    def shut(self, start: int) -> None:
        """Drop the descriptor of the file that begins at ``start``."""


class OpenFiles:
    """The open files, at most ``files_max`` (default: half of the descriptors reserved for the store).

    The clock algorithm picks the file to close among those not used recently. Its unsynced bytes stay in the page cache
    until the next sync, which reopens it; Linux reports a write error that happened meanwhile to the next descriptor
    (``errseq``). A reader that is using a file keeps its descriptor. Thread-safe.
    """

    def __init__(self, files_max: int | None = None) -> None:
        self.files_max = store_descriptors() // 2 if files_max is None else files_max
        self.lock = threading.Lock()
        """Held to change the descriptor of a file."""
        self._open: OrderedDict[Descriptor, tuple[HasFiles, int]] = OrderedDict()
        self._shortage_logged = False

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, owner: HasFiles, start: int, file: Descriptor) -> None:
        """Add an opened file, which its owner already refers to. The caller holds the lock."""
        self._open[file] = owner, start
        while len(self._open) > self.files_max and self._shut_one():
            if not self._shortage_logged:
                self._shortage_logged = True
                log.warning(
                    "more queues are in use than the %d whose files may be open at once: files are closed and opened "
                    "again, which slows each message down; raise the open-file limit (ulimit -Hn, LimitNOFILE)",
                    self.files_max,
                )

    def left(self, file: Descriptor) -> None:
        """Forget a file that its owner no longer refers to. The caller holds the lock."""
        self._open.pop(file, None)

    def make_room(self, error: OSError) -> None:
        """Free one descriptor after a file could not be opened. Raises ``error`` if that would not help."""
        with self.lock:
            if error.errno not in _NONE_LEFT or not self._shut_one():
                raise error

    def _shut_one(self) -> bool:
        for _ in range(2 * len(self._open)):  # the first round may find every file used, and only clears the marks
            file, (owner, start) = self._open.popitem(last=False)
            if not file.used:
                owner.shut(start)
                return True
            file.used = False
            self._open[file] = owner, start
        return False
