"""On a disk so full that not even a small file fits, the broker keeps running, loses nothing, and resumes later."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from flintmq.broker.background.services import CheckpointService
from flintmq.broker.store import MessageStore
from tests.store_tools import UnsyncedFiles, assert_holds, open_store, plain, put, reopen


class FullDisk(UnsyncedFiles):
    """Files that refuse new files while ``full``."""

    full = False

    def open(self, path: Path, *, create: bool = False) -> int:
        """Raise ENOSPC for a file that a table is written to."""
        if self.full and create and path.suffix == ".tmp":
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open(path, create=create)


@pytest.fixture
def files() -> FullDisk:
    return FullDisk()


@pytest.fixture
def store(tmp_path: Path, files: FullDisk) -> MessageStore:
    return open_store(tmp_path / "store", files=files)


def no_client(*arguments: object) -> None:
    raise AssertionError(arguments)


def test_queues_and_index_are_synced_nevertheless(store: MessageStore, files: FullDisk) -> None:
    sent = put(store, "orders", 0, plain(20))
    files.full = True
    store.sync_derived()
    files.full = False
    sent += put(store, "orders", 0, plain(20, first=20))
    store.close()
    store, report = reopen(store.path)
    assert report.rebuilt == []
    assert_holds(store, sent)
    store.close()


def test_retention_removes_nothing_that_it_cannot_record(store: MessageStore, files: FullDisk) -> None:
    while len(store.commitlog.queue.files) < 3:
        put(store, "orders", 0, plain(8, size=60_000))
    files.full = True
    assert store.expire(2) == 0
    assert store.min_physical_offset == 0
    assert len(list((store.path / "commitlog").iterdir())) == 3
    files.full = False
    assert store.expire(2) > 0
    store.close()
    store, report = reopen(store.path)
    assert report.rebuilt == []
    store.close()


def test_consumer_offsets_are_written_when_there_is_room(store: MessageStore, files: FullDisk) -> None:
    service = CheckpointService(store, no_client, no_client)
    store.consumer_offsets.commit("billing", "orders", 0, 7)
    files.full = True
    assert not service.do_once()
    assert store.consumer_offsets.dirty
    files.full = False
    assert not service.do_once()
    assert not store.consumer_offsets.dirty
    store.close()
    assert '"0": 7' in (store.path / "config" / "consumerOffset.json").read_text()
