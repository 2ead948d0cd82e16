"""The compiled thread that syncs a file at a time for the event loop, and tells the loop when it is done."""

from __future__ import annotations

import os
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..kernels import sync_loop as kernel

if TYPE_CHECKING:
    from ..store import MappedFile

OnSynced = Callable[[OSError | None], None]
"""Called on the loop after a sync, with its error or None."""


class FileSync:
    """A thread that runs ``kernels.sync_loop``. All methods belong to the loop, except ``stop``.

    The loop writes a descriptor into a shared array and wakes the thread through one event counter; the thread reports
    through another one, which the loop polls with its sockets.
    """

    def __init__(self, loop: AbstractEventLoop, on_synced: OnSynced) -> None:
        self._loop = loop
        self._on_synced = on_synced
        self._slots = np.zeros(kernel.S_LENGTH, np.int64)
        self._values = memoryview(self._slots.data)
        self._requests = os.eventfd(0, os.EFD_CLOEXEC)
        self._results = os.eventfd(0, os.EFD_CLOEXEC)
        self._file: MappedFile | None = None
        """The file that is being synced; the reference keeps its descriptor open."""
        self._ending = False
        self._thread = threading.Thread(
            target=kernel.serve,
            args=(self._requests, self._results, self._slots),
            name="flintmq-file-sync",
            daemon=True,
        )

    @classmethod
    def start(cls, loop: AbstractEventLoop, on_synced: OnSynced) -> FileSync | None:
        """Start the thread; return None if the platform has no such thread."""
        if not kernel.AVAILABLE:
            return None
        sync = cls(loop, on_synced)
        sync._thread.start()
        loop.add_reader(sync._results, sync._report)
        return sync

    @property
    def busy(self) -> bool:
        """True while a file is being synced, and until the loop knows the result."""
        return self._file is not None

    def request(self, file: MappedFile) -> None:
        """Sync ``file``. Only while the thread is not busy."""
        self._file = file
        self._values[kernel.S_FD] = file.fd
        # After the descriptor, which the thread reads as soon as it is woken.
        os.eventfd_write(self._requests, 1)

    def _report(self) -> None:
        os.eventfd_read(self._results)
        file, self._file = self._file, None
        assert file is not None, "the thread reports only what was requested"
        number = self._values[kernel.S_ERRNO]
        self._on_synced(OSError(number, os.strerror(number), str(file.path)) if number else None)
        if self._ending:
            self._end()

    def stop(self) -> None:
        """End the thread after the sync that it is making, and wait for it. Any thread but the loop's own."""
        if self._thread.is_alive():
            # Only the loop may stop polling the counter, and a running sync has to be reported first.
            self._loop.call_soon_threadsafe(self._end)
            self._thread.join()
            os.close(self._requests)
            os.close(self._results)

    def _end(self) -> None:
        self._ending = True
        # While a file is being synced, ``_report`` comes here again afterwards.
        if self._file is None:
            self._loop.remove_reader(self._results)
            self._values[kernel.S_FD] = kernel.END
            os.eventfd_write(self._requests, 1)
