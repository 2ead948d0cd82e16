"""Named points of a broker's work at which it is killed, and the file system that does it.

A point is a change of the file system (which one, of which file, before or after it) or a call inside the store, while
the store opens, serves or closes.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flintmq.broker.store import MessageStore
from flintmq.broker.store.dispatch import Dispatcher
from flintmq.broker.store.index import IndexFile
from flintmq.broker.store.log.commitlog import CommitLog
from flintmq.broker.store.log.produce_batch import LogWriter
from flintmq.broker.store.tables.store_state import StoreState

from .hooked_files import HookedFiles

OPENING, SERVING, CLOSING = "opening", "serving", "closing"
CALLS: dict[str, tuple[type, str]] = {
    "append": (CommitLog, "append"),
    "blank": (LogWriter, "roll"),
    "dispatch": (Dispatcher, "step"),
    "index": (IndexFile, "put"),
    "log_begins_at": (StoreState, "log_begins_at"),
    "delete": (StoreState, "delete"),
}
"""Calls inside the store that are points: they change a memory map, or files in several steps."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point. ``operation``: of ``hooked_files.OPERATIONS`` or of ``CALLS``; ``path``: a pattern for the file's path
    in the store; ``nth_max``: how often the point is reached at least within a short load."""

    operation: str
    path: str = ""
    after: bool = False
    phase: str = SERVING
    nth_max: int = 1

    def matches(self, operation: str, path: str, after: bool, phase: str) -> bool:
        return (operation, after, phase) == (self.operation, self.after, self.phase) and bool(
            re.fullmatch(self.path or ".*", path)
        )


LOG, QUEUE, INDEX = r"commitlog/\d{20}", r"consumequeue/.*", r"index/\d+"
STATE, TIMER_ROWS, TIMER_CURSOR = r"flintmq/state\.json", r"flintmq/timers/\d+", r"flintmq/timers/cursor\.json"
CONFIG, CONFIG_TMP = r"config/\w+\.json", r"config/\w+\.json\.tmp"

POINTS = {
    "append": Point("append", nth_max=40),
    "append: the records are written": Point("write", LOG, after=True, nth_max=40),
    "append: written, not flushed": Point("append", after=True, nth_max=40),
    "roll: in the middle of a frame": Point("blank"),
    "roll: the blank is written": Point("blank", after=True),
    "roll: the next file is made": Point("rename", r"flintmq/new/\d{20}", after=True),
    "roll: the next file gets its blocks": Point("allocate", r"flintmq/new/.*"),
    "roll: the next file enters": Point("rename", LOG),
    "roll: the next file entered, its name not synced": Point("rename", LOG, after=True),
    "flush": Point("sync_data", LOG, nth_max=20),
    "flush: on disk, not acknowledged": Point("sync_data", LOG, after=True, nth_max=20),
    "flush: the mark": Point("write", "checkpoint", nth_max=20),
    "dispatch": Point("dispatch", nth_max=20),
    "dispatch: done, no one notified": Point("dispatch", after=True, nth_max=20),
    "dispatch: a queue": Point("write", QUEUE, nth_max=20),
    "dispatch: a queue has its units": Point("write", QUEUE, after=True, nth_max=20),
    "dispatch: the index": Point("index", nth_max=20),
    "dispatch: the index has its entries": Point("index", after=True, nth_max=20),
    "checkpoint: the queues": Point("sync_data", QUEUE, nth_max=4),
    "checkpoint: the index": Point("sync_data", INDEX, nth_max=2),
    "checkpoint: the state": Point("rename", STATE),
    "checkpoint: the state is replaced": Point("rename", STATE, after=True),
    "checkpoint: the mark": Point("sync_data", "checkpoint", nth_max=2),
    "checkpoint: done": Point("sync_data", "checkpoint", after=True, nth_max=2),
    "config: the new table is written": Point("write", CONFIG_TMP, after=True, nth_max=3),
    "config: the new table replaces the old": Point("rename", CONFIG, nth_max=3),
    "config: replaced, not synced": Point("rename", CONFIG, after=True, nth_max=3),
    "deletion of a topic: the table is written": Point("delete"),
    "deletion of a topic: the state is written": Point("delete", after=True),
    "timers: rows": Point("write", TIMER_ROWS),
    "timers: rows on disk": Point("sync_data", TIMER_ROWS, after=True),
    "timers: the cursor": Point("rename", TIMER_CURSOR),
    "retention: the log's new beginning": Point("log_begins_at"),
    "retention: the log's new beginning is written": Point("log_begins_at", after=True),
    "retention: a file of the log": Point("unlink", LOG),
    "retention: a file of the log is gone": Point("unlink", LOG, after=True),
    "retention: a file of a queue": Point("unlink", QUEUE),
    "recovery: the abort file": Point("write", "abort", phase=OPENING),
    "recovery: the end of the log": Point("sync_data", LOG, phase=OPENING),
    "recovery: the end of the log is on disk": Point("sync_data", LOG, after=True, phase=OPENING),
    "recovery: dispatch": Point("dispatch", phase=OPENING),
    "recovery: a queue": Point("write", QUEUE, phase=OPENING),
    "recovery: the index": Point("index", phase=OPENING),
    "recovery: the mark": Point("write", "checkpoint", phase=OPENING),
    "recovery: the mark is on disk": Point("sync_data", "checkpoint", after=True, phase=OPENING),
    "recovery: the state": Point("rename", STATE, phase=OPENING),
    "stop: the queues": Point("sync_data", QUEUE, phase=CLOSING),
    "stop: the mark": Point("sync_data", "checkpoint", phase=CLOSING),
    "stop: the abort file": Point("unlink", "abort", phase=CLOSING),
    "stop: the abort file is gone": Point("unlink", "abort", after=True, phase=CLOSING),
}


def end_process(witness: int, line: str) -> None:
    """Tell the harness that a fault happened, then die as by kill -9."""
    os.write(witness, (line + "\n").encode())
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # never reached: the signal is on its way


class DyingAtPoint(HookedFiles):
    """File system that kills its own process when the point is reached for the ``nth`` time."""

    def __init__(self, root: Path, name: str, nth: int, witness: int) -> None:
        super().__init__(root)
        self._name_of_point = name
        self._point = POINTS[name]
        self._left = nth
        self._witness = witness
        self._phase = OPENING

    def before(self, operation: str, path: str) -> None:
        self._reached(operation, path, after=False)

    def after(self, operation: str, path: str) -> None:
        self._reached(operation, path, after=True)

    def _reached(self, operation: str, path: str, *, after: bool) -> None:
        if not self._point.matches(operation, path, after, self._phase):
            return
        with self._counting:
            self._left -= 1
            if self._left == 0:
                end_process(self._witness, f"point {self._name_of_point}")

    def watch(self) -> None:
        """Insert the points that are calls, and note when the process's only store opens and closes."""
        if self._point.operation in CALLS:
            owner, name = CALLS[self._point.operation]
            self._wrap(
                owner,
                name,
                lambda: self.before(self._point.operation, ""),
                lambda: self.after(self._point.operation, ""),
            )
        self._wrap(MessageStore, "open", self._set_phase(OPENING), self._set_phase(SERVING))
        self._wrap(MessageStore, "close", self._set_phase(CLOSING), lambda: None)

    def _set_phase(self, phase: str) -> Callable[[], None]:
        def change() -> None:
            self._phase = phase

        return change

    @staticmethod
    def _wrap(owner: type, name: str, before: Callable[[], None], after: Callable[[], None]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def watched(*arguments: Any, **options: Any) -> Any:
            before()
            result = original(*arguments, **options)
            after()
            return result

        setattr(owner, name, watched)
