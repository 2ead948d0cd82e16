"""Topic changes: those requested during one write share the next, and are confirmed after it, in their order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from flintmq.broker.delivery.topic_changes import TopicChanges
from flintmq.broker.store import TopicConfig
from flintmq.broker.store.files.file_system import Files
from flintmq.broker.store.tables.topic_table import TopicTable
from flintmq.protocol.errors import BrokerError
from tests.store_tools import open_store

TIMEOUT_S = 60.0


class StoppingFiles(Files):
    """Files whose fdatasync waits while ``go`` is cleared, and fails for the calls numbered in ``failing``."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.entered = threading.Event()
        self.syncs = 0
        self.failing: set[int] = set()

    def sync_data(self, fd: int) -> None:
        self.syncs += 1
        number = self.syncs
        self.entered.set()
        assert self.go.wait(TIMEOUT_S)
        if number in self.failing:
            raise OSError(5, "injected")
        super().sync_data(fd)


class Changed:
    """A store with the changes of its topics, and the names in the order in which they were confirmed."""

    def __init__(self, folder: Path) -> None:
        self.files = StoppingFiles()
        self.path = folder / "config" / "topics.json"
        self._store = open_store(folder, files=self.files)
        self.table = self._store.topics
        self.table.put(TopicConfig("old"))
        self.table.save()
        self.deleted: list[str] = []
        self.changes = TopicChanges(self._store, asyncio.get_running_loop(), self.deleted.append)
        self.confirmed: list[tuple[str, BrokerError | None]] = []
        self.on_disk_when_confirmed: list[bool] = []
        self._one_confirmed = asyncio.Event()

    def close(self) -> None:
        """End the thread of the changes, and close the store."""
        self.changes.close()
        self._store.close()

    def create(self, name: str) -> None:
        self.changes.put(TopicConfig(name), partial(self._done, name))

    def delete(self, name: str) -> None:
        self.changes.delete(name, partial(self._done, name))

    def _done(self, name: str, error: BrokerError | None) -> None:
        self.confirmed.append((name, error))
        self.on_disk_when_confirmed.append(name in self.read_back())
        self._one_confirmed.set()

    def read_back(self) -> set[str]:
        """Return the topics that a broker would find after a crash at this moment."""
        table = TopicTable(Files(), self.path)
        table.load()
        return {config.name for config in table}

    @contextmanager
    def during_a_write(self, first: str) -> Iterator[None]:
        """Create ``first``, and run the block while that change is being written."""
        self.files.go.clear()
        self.files.entered.clear()
        self.create(first)
        yield
        self.files.go.set()

    async def writing(self) -> None:
        """Wait until the write has begun."""
        assert await asyncio.to_thread(self.files.entered.wait, TIMEOUT_S)

    async def settled(self, count: int) -> None:
        """Wait until ``count`` changes are confirmed."""
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.confirmed) < count:
                self._one_confirmed.clear()
                await self._one_confirmed.wait()


def test_changes_during_a_write_share_the_next_one_and_are_confirmed_in_order(tmp_path: Path) -> None:
    async def run() -> None:
        changed = Changed(tmp_path)
        names = [f"topic-{number}" for number in range(50)]
        changed.create("begins-the-journal")
        await changed.settled(1)
        before = changed.files.syncs
        with changed.during_a_write("first"):
            await changed.writing()
            for name in names:
                changed.create(name)
            assert len(changed.confirmed) == 1, "a change was confirmed before it was on disk"
        await changed.settled(52)

        assert changed.confirmed[1:] == [(name, None) for name in ("first", *names)]
        assert all(changed.on_disk_when_confirmed)
        assert changed.files.syncs - before == 2
        assert changed.changes.pending == {}
        changed.close()

    asyncio.run(run())


def test_changes_that_are_given_up_call_everyone_who_waits(tmp_path: Path) -> None:
    """The member of a replica set whose leadership ends while its followers do not have a new topic yet."""

    async def run() -> None:
        changed = Changed(tmp_path)
        on_disk = asyncio.Event()
        changed.changes.replicate = lambda _: on_disk.set()  # never confirmed
        error = BrokerError("another broker leads")
        changed.create("first")
        async with asyncio.timeout(TIMEOUT_S):
            await on_disk.wait()
        changed.changes.when_done("first", lambda _: changed.create("asked again"))
        changed.create("queued")
        changed.changes.give_up(error)
        changed.delete("old")
        await changed.settled(4)

        assert changed.confirmed == [(name, error) for name in ("first", "queued", "asked again", "old")]
        assert changed.changes.pending == {}
        assert changed.table.get("old") is not None
        assert changed.table.get("asked again") is None
        changed.close()

    asyncio.run(run())


def test_a_failing_write_fails_exactly_the_changes_that_share_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        changed = Changed(tmp_path)
        changed.create("begins-the-journal")
        await changed.settled(1)
        with changed.during_a_write("first"):
            await changed.writing()
            changed.files.failing = {changed.files.syncs + 1}
            for name in ("a", "b", "c"):
                changed.create(name)
        await changed.settled(5)
        changed.create("after")
        await changed.settled(6)

        failed = [name for name, error in changed.confirmed if error is not None]
        assert failed == ["a", "b", "c"]
        assert [name for name, error in changed.confirmed if error is None] == ["begins-the-journal", "first", "after"]
        assert {config.name for config in changed.table} == {"old", "begins-the-journal", "first", "after"}
        assert changed.read_back() == {"old", "begins-the-journal", "first", "after"}
        changed.close()

    asyncio.run(run())


def test_creations_after_a_deletion_wait_for_its_write(tmp_path: Path) -> None:
    async def run() -> None:
        changed = Changed(tmp_path)
        with changed.during_a_write("first"):
            await changed.writing()
            changed.delete("old")
            changed.create("next")
        await changed.settled(3)

        assert changed.confirmed == [("first", None), ("old", None), ("next", None)]
        assert changed.deleted == ["old"]
        assert changed.read_back() == {"first", "next"}
        changed.close()

    asyncio.run(run())
