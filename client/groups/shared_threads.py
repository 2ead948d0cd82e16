"""The threads that all members of groups in a process share: one talks to brokers, others run the application's code.

A forked child begins without them: its parent's connections are not its own.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
from collections.abc import Callable

IDLE_SECONDS = 60.0
"""Time without work after which a thread of the application's code ends."""


class IoThread:
    """A thread with an event loop, which runs while it has users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> asyncio.AbstractEventLoop:
        """Return the loop for one more user, whose last act in it is ``leave``."""
        with self._lock:
            if self._loop is None:
                loop = _new_loop()
                threading.Thread(target=_run, args=(loop,), name="flintmq-io", daemon=True).start()
                self._loop = loop
            self._users += 1
            return self._loop

    def leave(self) -> None:
        """End the use of the loop, in the loop."""
        with self._lock:
            self._users -= 1
            if not self._users:
                assert self._loop is not None
                self._loop.stop()
                self._loop = None


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of the system's usual kind: those of the application's policy may be made for its main thread."""
    if sys.platform == "win32":
        return asyncio.ProactorEventLoop()
    return asyncio.SelectorEventLoop()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.close()


Job = Callable[[], object]


class ThreadPool:
    """Threads that each do one job after another; there are as many as there have recently been jobs at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[Job, str]] = queue.SimpleQueue()
        self._spare = 0
        """Number of threads that wait for a job, less the jobs that wait for a thread."""

    def run(self, job: Job, name: str) -> None:
        """Do a job, which must not raise an exception, in a thread that has this name meanwhile. Raises
        ``RuntimeError`` if the system has no thread for it."""
        with self._lock:
            if self._spare <= 0:
                threading.Thread(target=self._work, daemon=True).start()
                self._spare += 1
            self._spare -= 1
            self._jobs.put((job, name))

    def _work(self) -> None:
        thread = threading.current_thread()
        while True:
            try:
                job, thread.name = self._jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._spare <= 0:
                        continue  # a job has come for this thread in the meantime
                    self._spare -= 1
                    return
            job()
            del job  # not to be kept until the next one
            with self._lock:
                self._spare += 1


io_thread = IoThread()
pool = ThreadPool()


def _forget_threads() -> None:
    global io_thread, pool
    io_thread, pool = IoThread(), ThreadPool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
