"""The thread that syncs the CommitLog, in compiled code: it waits, syncs and reports without ever taking the GIL.

A Python thread would have to take the GIL from the event loop before and after each fdatasync. For a flush of a few
pages that costs more than the fdatasync itself. The thread can also send the responses that wait for a sync, so that
the client does not wait until the loop has woken up.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import numpy as np
from numba import types

from ...protocol.storage.arrays.jit import INTERPRETED, bytes_array, i64, i64_array, kernel, void

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
S_SOCKET = 3
"""Socket to send the responses to after a successful sync; ``NO_SOCKET``: the loop sends them."""
S_SEND_BYTES = 4
"""Number of bytes of the responses."""
S_SENT_BYTES = 5
"""Number of bytes of the responses that the thread has sent."""
S_SYNCED = 6
"""1 after a successful sync, before anything is sent; the loop sets it to 0 with each request."""
S_LENGTH = 7

END = -1
"""Value of ``S_FD`` that ends the thread."""
NO_SOCKET = -1
"""Value of ``S_SOCKET`` if nothing is to be sent."""

_COUNTER_BYTES = 8
_EINTR = errno.EINTR
_MSG_DONTWAIT = 0x40
_MSG_NOSIGNAL = 0x4000
"""Linux has the same values on all processors; the kernels do without the module ``socket``."""
_int_pointer: Any = types.CPointer(types.int32)  # type: ignore[no-untyped-call] # Numba is untyped

# The names are resolved in the process when the compiled code is loaded, so that it can be cached.
_read: Any = types.ExternalFunction("read", i64(types.int32, types.intp, i64))
_write: Any = types.ExternalFunction("write", i64(types.int32, types.intp, i64))
_fdatasync: Any = types.ExternalFunction("fdatasync", types.int32(types.int32))
_pwrite: Any = types.ExternalFunction("pwrite", i64(types.int32, types.intp, i64, i64))
_send: Any = types.ExternalFunction("send", i64(types.int32, types.intp, i64, types.int32))
_errno_location: Any = types.ExternalFunction("__errno_location", _int_pointer())


def _serve(requests: int, results: int, permit: int, slots: np.ndarray, responses: np.ndarray) -> None:
    """``requests``, ``results``, ``permit``: event counters; whoever reads ``permit`` may send the responses."""
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
        slots[S_SENT_BYTES] = 0
        if error == 0:
            slots[S_SYNCED] = 1
            if slots[S_SOCKET] != NO_SOCKET and _read(permit, counter, _COUNTER_BYTES) == _COUNTER_BYTES:
                sent = _send(slots[S_SOCKET], responses.ctypes.data, slots[S_SEND_BYTES], _MSG_DONTWAIT | _MSG_NOSIGNAL)
                slots[S_SENT_BYTES] = max(sent, 0)  # after an error, the loop sends them and finds out
        slots[S_COUNTER] = 1
        _write(results, counter, _COUNTER_BYTES)


if AVAILABLE:
    serve = kernel(void, i64, i64, i64, i64_array, bytes_array)(_serve)
else:
    serve = _serve
