"""Threads that call a listener, a plain function, with the works that the engine begins."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ...core import hooks
from ...core.consume.stored import StoredMessage
from ...errors import ClientFailed
from .claim import WorkItem
from .group_client import Engine
from .options import Options
from .outcome import Failed, failed_with


class Workers:
    """The threads of one consumer, ``side``. ``call``: called with a message or a batch; its exceptions decide the
    outcome."""

    def __init__(self, options: Options, side: hooks.Side, call: Callable[[Any], None]) -> None:
        self.engine: Engine
        """Set by the creator of both."""
        self._options = options
        self._side = side
        self._call = call
        self._ready: queue.SimpleQueue[WorkItem | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start ``workers`` threads."""
        for _ in range(self._options.workers):
            self._add()

    def begin(self, works: list[WorkItem]) -> None:
        """Queue works for handling. Does not block."""
        for work in works:
            self._ready.put(work)

    def recall(self) -> None:
        """Give back works of revoked queues that no thread has begun, because the queues' next member waits for them.

        The others keep their order. Only the engine's thread calls this and ``begin``.
        """
        waiting: list[WorkItem | None] = []
        with contextlib.suppress(queue.Empty):  # the threads take works at the same time
            for _ in range(self._ready.qsize()):
                waiting.append(self._ready.get_nowait())
        for work in waiting:
            if work is not None and work.claim.stopped:
                self.engine.give_back(work)
            else:
                self._ready.put(work)

    def replace(self, work: WorkItem) -> None:
        """Start another thread in place of one that does not return: Python cannot end a stuck thread."""
        self._add()

    def stop(self) -> None:
        """Make each thread end after its current work. Does not wait for them."""
        for _ in self._threads:
            self._ready.put(None)

    def called_by_one(self) -> bool:
        """Return whether the calling thread is one of the workers."""
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
            except BaseException as error:  # noqa: BLE001 - a dying thread must end the consumer, not go unnoticed
                self.engine.die(
                    ClientFailed(f"a listener ended its thread with {type(error).__name__}: {error}", error)
                )
                return
            if work.given_up:
                return  # another thread has taken this one's place

    def _handle_batch(self, work: WorkItem) -> None:
        failed = self._failed(work.whole, work.messages, work)
        if failed and self._options.orderly and all(failure.delay_level >= 0 for failure in failed):
            self.engine.keep_back(work, 0, [], failed[0].reason)
        else:
            self.engine.finish_work(work, failed, len(work.messages) - len(failed))

    def _handle_each(self, work: WorkItem) -> None:
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
                work.begun_at = time.monotonic()  # the timeout applies to each message
        self.engine.finish_work(work, failed, len(work.messages) - len(failed))

    def _failed(self, handed: Any, messages: Sequence[StoredMessage], work: WorkItem) -> Failed:
        """Call the listener; returns the messages to redeliver, with their delay levels."""
        try:
            if (active := hooks.installed) is None:
                self._call(handed)
            else:
                with active.process(self._side, messages, several=self._options.whole_batches, pushed=True):
                    self._call(handed)
        except BaseException as error:  # noqa: BLE001 - after any error of a listener the messages are redelivered
            return failed_with(error, self._options, messages, work)
        return []
