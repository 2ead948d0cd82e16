"""Graceful stop of a command on Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .failures import EXIT_INTERRUPTED, EXIT_OK

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """A request to stop. The first signal sets ``event``; the second one raises ``KeyboardInterrupt``."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._signal: int | None = None

    def take_signals(self) -> None:
        """Install the handlers for both signals; call it again after a library has replaced one."""
        for each in SIGNALS:
            signal.signal(each, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.event.is_set():
            raise KeyboardInterrupt
        self._signal = number
        self.event.set()

    @property
    def exit_code(self) -> int:
        """Exit code of the command. SIGTERM is the normal way to stop a service, so it counts as success."""
        return EXIT_INTERRUPTED if self._signal == signal.SIGINT else EXIT_OK


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Handle both signals as a request to stop within the context; restore the old handlers afterwards."""
    before = {each: signal.getsignal(each) for each in SIGNALS}
    request = StopRequest()
    request.take_signals()
    try:
        yield request
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
