"""Threads that call a listener, a plain function, with what the engine begins."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..core.stored import StoredMessage
from ..errors import ClientFailed
from .claims import Work
from .engine import Engine
from .options import Options
from .outcome import Failed, failed_with


class Workers:
    """One consumer's. ``call``: called with a message or a batch; what it raises decides what becomes of that."""

    def __init__(self, options: Options, call: Callable[[Any], None]) -> None:
        self.engine: Engine
        """Set by who makes both."""
        self._options = options
        self._call = call
        self._ready: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start as many threads as the options say."""
        for _ in range(self._options.workers):
            self._add()

    def begin(self, works: list[Work]) -> None:
        """Have works handled. Does not block."""
        for work in works:
            self._ready.put(work)

    def recall(self) -> None:
        """Give back what no thread has begun of queues that were revoked: the next member waits for them.

        The others stay in their order. Only the engine's thread calls this and ``begin``.
        """
        waiting: list[Work | None] = []
        with contextlib.suppress(queue.Empty):
            for _ in range(self._ready.qsize()):
                waiting.append(self._ready.get_nowait())
        for work in waiting:
            if work is not None and work.claim.stopped:
                self.engine.give_back(work)
            else:
                self._ready.put(work)

    def replace(self, work: Work) -> None:
        """Start another thread for one that does not come back, so that the others' messages go on."""
        self._add()

    def stop(self) -> None:
        """Have each thread end when it is done with what it has. Does not wait for them."""
        for _ in self._threads:
            self._ready.put(None)

    def called_by_one(self) -> bool:
        """Return whether this is one of the threads."""
        return threading.current_thread() in self._threads

    def _add(self) -> None:
        name = f"flintmq-listener-{self._options.group}-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        handle = self._handle_batch if self._options.whole_batches else self._handle_each
        while (work := self._ready.get()) is not None:
            if work.claim.stopped:
                self.engine.give_back(work)
                continue
            work.taken_at = work.begun_at = time.monotonic()
            try:
                handle(work)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it must not stay in this thread
                self.engine.die(
                    ClientFailed(f"a listener ended its thread with {type(error).__name__}: {error}", error)
                )
                return
            if work.given_up:
                return  # another one took this thread's place

    def _handle_batch(self, work: Work) -> None:
        failed = self._failed(work.whole, work.messages, work)
        if failed and self._options.orderly and all(failure.delay_level >= 0 for failure in failed):
            self.engine.keep_back(work, 0, [], failed[0].reason)
        else:
            self.engine.finished(work, failed, len(work.messages) - len(failed))

    def _handle_each(self, work: Work) -> None:
        failed: Failed = []
        orderly = self._options.orderly
        for number, message in enumerate(work.messages):
            if work.given_up:
                return
            outcome = self._failed(message, (message,), work)
            if outcome and orderly and outcome[0].delay_level >= 0:
                self.engine.keep_back(work, number, failed, outcome[0].reason)
                return
            failed += outcome
            if len(work.messages) > 1:
                work.begun_at = time.monotonic()  # each message has its own time
        self.engine.finished(work, failed, len(work.messages) - len(failed))

    def _failed(self, handed: Any, messages: Sequence[StoredMessage], work: Work) -> Failed:
        """Call the listener; the messages to be tried again, and their delay levels."""
        try:
            self._call(handed)
        except Exception as error:  # noqa: BLE001 - whatever a listener raises, the messages are tried again
            return failed_with(error, self._options, messages, work)
        return []
