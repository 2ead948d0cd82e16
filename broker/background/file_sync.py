"""The compiled thread that syncs a file at a time for the event loop, and tells the loop when it is done."""

from __future__ import annotations

import os
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..kernels import sync_loop as kernel
from ..store import MappedFile

OnSynced = Callable[[OSError | None], None]
"""Called on the loop after a sync, with its error or None."""
RESPONSE_BYTES_MAX = 4096
"""Maximum number of bytes of responses that the thread sends after a sync."""


@dataclass(frozen=True, slots=True)
class EarlyResponses:
    """Responses that the thread is to send after a sync: their bytes, and a socket, whose descriptor belongs to the
    request. ``on_sent``: called on the loop before ``OnSynced``, with the number of bytes that were sent."""

    socket: int
    content: bytes
    on_sent: Callable[[int], None]


class FileSync:
    """A thread that runs ``kernels.sync_loop``. All methods belong to the loop, except ``stop``.

    The loop writes a descriptor into a shared array and wakes the thread through one event counter; the thread reports
    through another one, which the loop polls with its sockets. A third one decides who sends early responses.
    """

    def __init__(self, loop: AbstractEventLoop, on_synced: OnSynced) -> None:
        self._loop = loop
        self._on_synced = on_synced
        self._slots = np.zeros(kernel.S_LENGTH, np.int64)
        self._values = memoryview(self._slots.data)
        self._responses = bytearray(RESPONSE_BYTES_MAX)
        self._requests = os.eventfd(0, os.EFD_CLOEXEC)
        self._results = os.eventfd(0, os.EFD_CLOEXEC)
        self._permit = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._file: MappedFile | None = None
        """The file that is being synced; the reference keeps its descriptor open."""
        self._early: EarlyResponses | None = None
        self._ending = False
        self._thread = threading.Thread(
            target=kernel.serve,
            args=(self._requests, self._results, self._permit, self._slots, np.frombuffer(self._responses, np.uint8)),
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

    @property
    def synced(self) -> bool:
        """True if the file is synced and the loop does not know that yet, although a client may."""
        return self._values[kernel.S_SYNCED] != 0

    def request(self, file: MappedFile, early: EarlyResponses | None = None) -> None:
        """Sync ``file``, then send ``early``. Only while the thread is not busy."""
        self._file = file
        self._early = early
        values = self._values
        values[kernel.S_FD] = file.fd
        values[kernel.S_SOCKET] = kernel.NO_SOCKET
        if early is not None:
            values[kernel.S_SOCKET] = early.socket
            values[kernel.S_SEND_BYTES] = len(early.content)
            self._responses[: len(early.content)] = early.content
            os.eventfd_write(self._permit, 1)
        # After everything that the thread reads as soon as it is woken.
        os.eventfd_write(self._requests, 1)

    def take_back(self) -> bool:
        """Keep the thread from sending the early responses; return False if it has begun to send them."""
        try:
            os.eventfd_read(self._permit)
        except BlockingIOError:
            return False
        return True

    def _report(self) -> None:
        os.eventfd_read(self._results)
        file, self._file = self._file, None
        early, self._early = self._early, None
        assert file is not None, "the thread reports only what was requested"
        values = self._values
        number = values[kernel.S_ERRNO]
        values[kernel.S_SYNCED] = 0
        if early is not None:
            os.close(early.socket)
            early.on_sent(values[kernel.S_SENT_BYTES])
        self._on_synced(OSError(number, os.strerror(number), str(file.path)) if number else None)
        if self._ending:
            self._end()

    def stop(self) -> None:
        """End the thread after the sync that it is making, and wait for it. Any thread but the loop's own."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end)
            self._thread.join()
            for counter in (self._requests, self._results, self._permit):
                os.close(counter)

    def _end(self) -> None:
        self._ending = True
        if self._file is None:
            self._loop.remove_reader(self._results)
            self._values[kernel.S_FD] = kernel.END
            os.eventfd_write(self._requests, 1)
