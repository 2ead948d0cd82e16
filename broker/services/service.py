"""What every background service is: a thread that sleeps until it is woken, does one piece of work, and can be stopped.

A service that dies takes the broker down: the exception goes to ``on_fatal`` on the event loop, and nothing goes on
half alive.
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
"""Called on the loop with the service's name and what ended it."""


class Service:
    """A named thread. Subclasses say in ``do_once`` what one piece of work is, and in ``behind`` how much is
    waiting."""

    name = "service"
    interval_seconds: float | None = None
    """How long the thread sleeps at most; None: until woken."""

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
        """There is something to do. Any thread."""
        self._woken.set()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def do_once(self) -> bool:
        """Do a piece of work; whether there may be more at once. On the service's thread."""
        raise AssertionError("a service says what it does")

    def behind(self) -> int:
        """How much waits, in the service's own measure (bytes, mostly)."""
        return 0

    def last_work(self) -> None:
        """What a stopping service still has to do. On its thread."""

    def stop(self) -> None:
        """End the thread after its last work, and wait for it. May be called again."""
        self._stopping = True
        self._woken.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            self._thread = None

    def _run(self) -> None:
        try:
            while not self._stopping:
                if not self.do_once():
                    self._woken.wait(self.interval_seconds)
                self._woken.clear()
            self.last_work()
        except BaseException as error:
            log.critical("the service %s ended", self.name, exc_info=True)
            self._died(error)

    def _call_on_loop(self, call: Callable[..., object], *arguments: object) -> None:
        """Have the loop call; where that raises it is the end of the service, as on its own thread."""
        self._post(self._guarded, call, arguments)

    def _guarded(self, call: Callable[..., object], arguments: tuple[object, ...]) -> None:
        try:
            call(*arguments)
        except Exception as error:
            log.critical("the service %s ended", self.name, exc_info=True)
            self._on_fatal(self.name, error)

    def _died(self, error: BaseException) -> None:
        try:
            self._post(self._on_fatal, self.name, error)
        except RuntimeError:  # the loop is closed: the process ends already
            log.critical("the service %s ended while the broker stopped", self.name)
