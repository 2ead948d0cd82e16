"""The system calls that Linux has and other systems lack, each with a substitute.

The broker's promises hold on Linux. With the substitutes it also runs elsewhere, such as on macOS, for development.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

PATH_BYTES_MAX = 1024
"""Length of the buffer in which macOS returns the path of a descriptor."""


def _grow(fd: int, at: int, size: int) -> None:
    """Make the file long enough. No blocks are allocated: if the disk is full, a write into a map may end in SIGBUS."""
    if os.fstat(fd).st_size < at + size:
        os.ftruncate(fd, at + size)


def _sync_fully(fd: int) -> None:
    """Sync the file and the disk's own cache; ``fsync`` of macOS leaves out the latter."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def _ignore(fd: int, at: int, size: int, advice: int) -> None:
    """Give the system no advice."""


allocate: Callable[[int, int, int], None] = getattr(os, "posix_fallocate", _grow)
"""Allocate disk blocks: descriptor, place, size. Raises OSError ENOSPC if the disk is full."""
sync_data: Callable[[int], None] = getattr(os, "fdatasync", _sync_fully)
"""Put the bytes of a file on disk."""
_advise: Callable[[int, int, int, int], None] = getattr(os, "posix_fadvise", _ignore)
_WILL_NEED: int = getattr(os, "POSIX_FADV_WILLNEED", 0)


def will_read(fd: int, at: int, size: int) -> None:
    """Let the system read a range ahead, if it can."""
    _advise(fd, at, size, _WILL_NEED)


def usable_processors() -> int:
    """Return the number of processors that this process may use; where the system does not say, that of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def path_of(fd: int) -> str:
    """Return the path of an open file. Raises OSError."""
    if hasattr(fcntl, "F_GETPATH"):
        return os.fsdecode(fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(PATH_BYTES_MAX)).rstrip(b"\0"))
    return str(Path(f"/proc/self/fd/{fd}").readlink())
