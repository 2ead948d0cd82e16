"""The index's next blocks and file, made ahead: dispatch runs on the event loop, and does not wait for them."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from flintmq.broker.store import MessageStore, ProduceBatch, StoreSettings, TopicConfig
from flintmq.broker.store.files.file_system import Files

ENTRIES = 400
SETTINGS = StoreSettings(
    commitlog_file_bytes=4 * 1024 * 1024, index_slots=500, index_entries=ENTRIES, allocate_step_bytes=1024 * 1024
)
TOPIC = TopicConfig("orders", 1, 1)
FRAME_MESSAGES = 50


class CountedFiles(Files):
    """The real file operations, which count those that may wait for the disk."""

    def __init__(self) -> None:
        self.waits: list[str] = []

    def allocate(self, fd: int, at: int, size: int) -> None:
        self.waits.append("allocate")
        super().allocate(fd, at, size)

    def sync_data(self, fd: int) -> None:
        self.waits.append("sync_data")
        super().sync_data(fd)

    def sync_folder(self, path: Path) -> None:
        self.waits.append(f"sync_folder {path.name}")
        super().sync_folder(path)


@pytest.fixture
def files() -> CountedFiles:
    return CountedFiles()


@pytest.fixture
def store(tmp_path: Path, files: CountedFiles) -> MessageStore:
    """Return an open store; the test closes it."""
    opened = MessageStore(tmp_path / "store", SETTINGS, files=files)
    opened.open()
    opened.topics.put(TOPIC)
    return opened


def append(store: MessageStore) -> None:
    """Append messages with a key each as one frame, and dispatch them."""
    rows = [msgpack.packb([b"apples", {"KEYS": f"o-{number}"}]) for number in range(FRAME_MESSAGES)]
    frame = bytearray(b"".join(rows))
    store.append(TOPIC, 0, ProduceBatch(frame, 0, len(frame), FRAME_MESSAGES, 0, b"", 0, b"", 0, 0, bytes(8)))
    store.flush()
    while store.reput_offset < store.write_offset:
        store.dispatch(store.write_offset)


def names(store: MessageStore) -> list[str]:
    return sorted(path.name for path in (store.path / "index").iterdir())


def test_dispatch_rolls_to_a_prepared_file_without_waiting_for_the_disk(
    store: MessageStore, files: CountedFiles
) -> None:
    append(store)
    rolled = 0
    for _ in range(40):
        while store.index.prepare():
            pass
        before = len(names(store))
        files.waits.clear()
        append(store)
        rolled += len(names(store)) - before
        assert files.waits == ["sync_data"]  # the log's own flush
    assert rolled >= 2
    assert names(store) == [file.path.name for file in store.index.files]
    store.close()
    reopened = MessageStore(store.path, SETTINGS)
    reopened.open()
    assert [file.path.name for file in reopened.index.files] == names(reopened)
    assert reopened.index.files[-1].header.index_count > 1
    reopened.close()


def test_the_names_of_new_files_are_on_disk_before_the_state_has_them(store: MessageStore, files: CountedFiles) -> None:
    while len(names(store)) < 2:
        append(store)
        store.index.prepare()
    files.waits.clear()
    store.sync_derived()
    assert "sync_folder index" in files.waits
    files.waits.clear()
    store.sync_derived()
    assert "sync_folder index" not in files.waits
    store.close()


def test_a_file_that_was_not_prepared_in_time_is_made_when_it_is_needed(store: MessageStore) -> None:
    while len(names(store)) < 3:
        append(store)
    assert [file.path.name for file in store.index.files] == names(store)
    store.close()


def test_a_prepared_file_that_is_never_used_is_gone_after_the_next_start(store: MessageStore) -> None:
    append(store)
    while not (store.path / "flintmq/new/index").exists():
        append(store)
        store.index.prepare()
    store.close()
    reopened = MessageStore(store.path, SETTINGS)
    reopened.open()
    assert not (store.path / "flintmq/new/index").exists()
    reopened.close()
