"""The writes of what groups must not forget."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flintmq.broker.delivery.groups.coordinator import GroupChanges
from flintmq.protocol.errors import BrokerError
from tests.store_tools import open_store

SECONDS_MAX = 20


class SlowWriters(ThreadPoolExecutor):
    """Counts the writes; each sets ``written`` and then takes until ``go``."""

    def __init__(self) -> None:
        super().__init__(1)
        self.writes = 0
        self.written = threading.Event()
        self.go = threading.Event()

    def submit(self, write: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.writes += 1
        return super().submit(self._write, write)

    def _write(self, write: Callable[[], None]) -> None:
        write()
        self.written.set()
        assert self.go.wait(SECONDS_MAX)


async def run(folder: Path, *, changes_meanwhile: bool) -> tuple[int, list[str]]:
    """Make a change, and let another request wait while it is written; return the number of writes, and what the two
    requests heard."""
    store = open_store(folder)
    heard: list[str] = []
    both = asyncio.Event()

    def second(error: BrokerError | None) -> None:
        heard.append(f"second {error}")
        both.set()

    with SlowWriters() as writers:
        changes = GroupChanges(store, asyncio.get_running_loop(), writers)
        store.consumer_offsets.commit("g", "t", 0, 5)
        assert changes.pending
        changes.when_saved(lambda error: heard.append(f"first {error}"))
        await asyncio.sleep(0)  # it begins in the next turn of the loop
        assert await asyncio.get_running_loop().run_in_executor(None, writers.written.wait, SECONDS_MAX)
        if changes_meanwhile:
            store.consumer_offsets.commit("h", "t", 0, 5)
        assert changes.pending
        changes.when_saved(second)
        writers.go.set()
        await asyncio.wait_for(both.wait(), SECONDS_MAX)
        assert not changes.pending
        assert not store.consumer_offsets.unsaved
    store.close()
    return writers.writes, heard


def test_a_request_during_a_write_that_has_everything_causes_no_other(tmp_path: Path) -> None:
    """Otherwise requests that keep coming would keep each other waiting, long after the only change."""
    assert asyncio.run(run(tmp_path, changes_meanwhile=False)) == (1, ["first None", "second None"])


def test_a_change_during_a_write_gets_its_own(tmp_path: Path) -> None:
    assert asyncio.run(run(tmp_path, changes_meanwhile=True)) == (2, ["first None", "second None"])
