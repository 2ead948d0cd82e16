"""A broker for tests: small files, a temporary store, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .started_broker import StartedBroker

SMALL_FILES: Mapping[str, int] = {
    "store.commitlog_file_bytes": 4 * 1024 * 1024,
    "store.consumequeue_file_bytes": 20_000,
    "store.index_slots": 5_000,
    "store.index_entries": 20_000,
    "store.allocate_step_bytes": 1024 * 1024,
}
"""Settings of a store that needs little room on the disk, and whose files roll after a few messages."""
SETTINGS: Mapping[str, Any] = {**SMALL_FILES, "flush.policy": "async", "metrics.listen": "off"}
"""Settings of a broker for tests that differ from the defaults."""
ATTACHED = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit(1)
from flintmq.broker.app.daemon import main
main(prog_name="flintmq-broker")
"""
"""The broker as a program that Linux stops (``PR_SET_PDEATHSIG``) when its parent, whose pid is an argument, ends."""


class LocalBroker(StartedBroker):
    """A broker for tests; a context manager that starts and stops it.

    ``store``: its folder; None: a temporary one, which is removed when the context ends and so outlives ``stop`` and
    ``kill``. ``options``: further arguments of ``flintmq-broker serve``; ``settings``: values by name, added to
    ``SETTINGS`` or in place of them. On Linux the broker also ends if this process is killed.
    """

    def __init__(self, store: Path | None = None, *options: str, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(store or Path(), *options, settings={**SETTINGS, **(settings or {})})
        self._is_temporary = store is None
        self._made: Path | None = None

    def __enter__(self) -> Self:
        try:
            return super().__enter__()
        except BaseException:
            self._remove_temporary()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, traceback)
        finally:
            self._remove_temporary()

    def start(self) -> None:
        """Start the broker and wait until it listens; make the temporary store if there is none yet."""
        if self._is_temporary and self._made is None:
            self.store = self._made = Path(tempfile.mkdtemp(prefix="flintmq-test-"))
        super().start()

    def _remove_temporary(self) -> None:
        if self._made is not None:
            shutil.rmtree(self._made)
            self._made = None

    def _program(self) -> Sequence[str]:
        # Linux sends the signal when the thread that started the process ends, so only the main thread may ask for it.
        if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
            return super()._program()
        return ("-P", "-c", ATTACHED, str(os.getpid()))
