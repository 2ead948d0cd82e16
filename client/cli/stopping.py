"""Ctrl-C and SIGTERM as a request to end in order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .failures import EXIT_INTERRUPTED, EXIT_OK

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """``event`` is set when somebody asks. Who asks a second time interrupts the process."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._signal: int | None = None

    def take_signals(self) -> None:
        """Handle both signals from now on: again, where a library has taken one of them."""
        for each in SIGNALS:
            signal.signal(each, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.event.is_set():
            raise KeyboardInterrupt
        self._signal = number
        self.event.set()

    @property
    def exit_code(self) -> int:
        """What the command ends with. SIGTERM is how a service is ended: that is success."""
        return EXIT_INTERRUPTED if self._signal == signal.SIGINT else EXIT_OK


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Within, both signals are a request; afterwards they are what they were."""
    before = {each: signal.getsignal(each) for each in SIGNALS}
    request = StopRequest()
    request.take_signals()
    try:
        yield request
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
