"""The thread that syncs the CommitLog, in compiled code: it waits, syncs and reports without ever taking the GIL.

A Python thread would have to take the GIL from the event loop before and after each fdatasync. For a flush of a few
pages that costs more than the fdatasync itself. If another broker waits for the sync, the thread tells it directly,
because the event loop would take as long to wake up as the message does to arrive.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import numpy as np
from numba import types

from ...protocol.storage.arrays.jit import INTERPRETED, i64, i64_array, is_compiled, kernel, void

AVAILABLE = sys.platform == "linux" and hasattr(os, "eventfd") and not INTERPRETED
"""True if this platform and mode have the thread: it needs eventfd, and the names that Linux's C libraries give it."""

# Slots of the array that the event loop and the thread share. Each side writes its slots before it signals the other,
# and the system calls between the two order the accesses.
S_COUNTER = 0
"""Value of the last event counter read or written; only the thread uses it."""
S_FD = 1
"""Descriptor of the file to sync, or ``END``."""
S_ERRNO = 2
"""Error number of the last sync; 0 if it succeeded."""
S_NOTICE_FD = 3
"""Descriptor of the socket to which a notice is sent after a sync that succeeded, or ``NONE``."""
S_NOTICE_AT = 4
"""Address of the notice."""
S_NOTICE_BYTES = 5
S_SENT = 6
"""Number of bytes of the notice that the socket took; 0 or less: none."""
S_LENGTH = 7

END = -1
"""Value of ``S_FD`` that ends the thread."""
NONE = -1

_COUNTER_BYTES = 8
_EINTR = errno.EINTR
_int_pointer: Any = types.CPointer(types.int32)  # type: ignore[no-untyped-call] # Numba is untyped

# The names are resolved in the process when the compiled code is loaded, so that it can be cached.
_read: Any = types.ExternalFunction("read", i64(types.int32, types.intp, i64))
_write: Any = types.ExternalFunction("write", i64(types.int32, types.intp, i64))
_fdatasync: Any = types.ExternalFunction("fdatasync", types.int32(types.int32))
_pwrite: Any = types.ExternalFunction("pwrite", i64(types.int32, types.intp, i64, i64))
_send: Any = types.ExternalFunction("send", i64(types.int32, types.intp, i64, types.int32))
_SEND_FLAGS = np.int32(0x40 | 0x4000)
"""Linux's MSG_DONTWAIT and MSG_NOSIGNAL."""
_errno_location: Any = types.ExternalFunction("__errno_location", _int_pointer())


def _serve(requests: int, results: int, slots: np.ndarray) -> None:
    counter = slots.ctypes.data
    while True:
        if _read(requests, counter, _COUNTER_BYTES) != _COUNTER_BYTES:
            if _errno_location()[0] == _EINTR:
                continue
            slots[S_ERRNO] = _errno_location()[0]
            return
        fd = slots[S_FD]
        if fd == END:
            return
        error = 0
        # The empty write fails if the file system was shut down meanwhile: see ``Files.sync_data``.
        while _fdatasync(fd) != 0 or _pwrite(fd, counter, 0, 0) != 0:
            error = _errno_location()[0]
            if error != _EINTR:
                break
            error = 0
        slots[S_ERRNO] = error
        slots[S_SENT] = 0
        notice_fd = slots[S_NOTICE_FD]
        if error == 0 and notice_fd != NONE:
            slots[S_SENT] = _send(notice_fd, slots[S_NOTICE_AT], slots[S_NOTICE_BYTES], _SEND_FLAGS)
        slots[S_COUNTER] = 1
        _write(results, counter, _COUNTER_BYTES)


if AVAILABLE:
    serve = kernel(void, i64, i64, i64_array)(_serve)
else:
    serve = _serve


def is_ready() -> bool:
    """Return whether the thread can run: ``serve`` is compiled."""
    return is_compiled(serve)
