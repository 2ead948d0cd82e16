"""Base of the background services: a thread that sleeps until it is woken, does one piece of work, and can be stopped.

If a service dies, the broker ends: the exception goes to ``on_fatal`` on the event loop, so that the broker never runs
with a part of it missing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

Post = Callable[..., Any]
"""``loop.call_soon_threadsafe``."""
OnFatal = Callable[[str, BaseException], None]
"""Called on the loop with the service's name and the exception that ended it."""


class Service:
    """A named thread. A subclass does one piece of work in ``do_once``; ``backlog`` says how much is left."""

    name = "service"
    interval_seconds: float | None = None
    """Maximum sleep of the thread; None: until woken."""

    def __init__(self, post: Post, on_fatal: OnFatal) -> None:
        self._post = post
        self._on_fatal = on_fatal
        self._woken = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=f"flintmq-{self.name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Wake the thread: there is work. Any thread."""
        self._woken.set()

    @property
    def alive(self) -> bool:
        """Return whether its thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def do_once(self) -> bool:
        """Do a piece of work; return whether there may be more to do now. On the service's thread."""
        raise AssertionError("a subclass must implement do_once")

    def backlog(self) -> int:
        """Return the size of the backlog, in the service's own unit (mostly bytes)."""
        return 0

    def last_work(self) -> None:
        """Do the remaining work of a stopping service. On its thread."""

    def stop(self) -> None:
        """End the thread after its last work, and wait for it. May be called more than once."""
        self._stopping = True
        self._woken.set()
        thread = self._thread
        # A service that is stopped by its own thread cannot wait for itself.
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            self._thread = None

    def _run(self) -> None:
        try:
            while not self._stopping:
                if not self.do_once():
                    self._woken.wait(self.interval_seconds)
                # Before the next piece of work, so that a wake during it is not lost.
                self._woken.clear()
            self.last_work()
        except BaseException as error:
            log.critical("the service %s failed", self.name, exc_info=True)
            self._died(error)

    def _call_on_loop(self, call: Callable[..., object], *arguments: object) -> None:
        """Run ``call`` on the loop. If it raises, the service has failed, as if it had raised on its own thread."""
        self._post(self._guarded, call, arguments)

    def _guarded(self, call: Callable[..., object], arguments: tuple[object, ...]) -> None:
        try:
            call(*arguments)
        except Exception as error:
            log.critical("the service %s failed", self.name, exc_info=True)
            self._on_fatal(self.name, error)

    def _died(self, error: BaseException) -> None:
        try:
            self._post(self._on_fatal, self.name, error)
        except RuntimeError:  # the loop is closed: the process is already ending
            log.critical("the service %s failed while the broker was stopping", self.name)
