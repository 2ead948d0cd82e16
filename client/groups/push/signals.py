"""Signals that close a consumer gracefully."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Within the block the first SIGTERM or SIGINT calls ``stop``; the next one has the effect it had before the block.

    ``stop`` runs between any two steps of the main thread, so it must not take a lock. Only the main thread of a
    program receives signals: in another thread nothing changes. A signal that the program ignores stays ignored.
    ``received``: the first signal, None before.
    """

    def __init__(self, stop: Callable[[], object]) -> None:
        self.received: signal.Signals | None = None
        self._stop = stop
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in STOP_SIGNALS:
            previous = signal.getsignal(number)
            if previous not in (None, signal.SIG_IGN):  # None: set by non-Python code, so it could not be restored
                self._previous[number] = previous
                signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number)
            self._stop()
            return
        self._restore()
        signal.raise_signal(number)
