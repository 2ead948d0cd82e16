"""The CommitLog's next file: prepared elsewhere, and moved to the log's folder when it is certain to be written."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgpack
import numpy as np
import pytest

from flintmq.broker.store import MessageStore, ProduceBatch, StoreSettings, TopicConfig
from flintmq.broker.store.files.file_system import Files
from flintmq.broker.store.log.commitlog import count_rolls
from flintmq.protocol.errors import MessageIllegal
from flintmq.protocol.storage.layout import BLANK_BYTES_MIN
from flintmq.protocol.storage.record import Record

FILE_BYTES = 4 * 1024 * 1024
SETTINGS = StoreSettings(
    commitlog_file_bytes=FILE_BYTES, index_slots=500, index_entries=2_000, allocate_step_bytes=1024 * 1024
)
TOPIC = TopicConfig("orders", 1, 1)


class WatchedFiles(Files):
    """The real file operations; a hook sees each rename and each folder sync before it happens."""

    def __init__(self) -> None:
        self.before_rename: Callable[[Path], None] = lambda target: None
        self.before_sync_folder: Callable[[Path], None] = lambda path: None

    def rename(self, source: Path, target: Path) -> None:
        self.before_rename(target)
        super().rename(source, target)

    def sync_folder(self, path: Path) -> None:
        self.before_sync_folder(path)
        super().sync_folder(path)


@pytest.fixture
def files() -> WatchedFiles:
    return WatchedFiles()


@pytest.fixture
def store(tmp_path: Path, files: WatchedFiles) -> MessageStore:
    """Return an open store; the test closes it."""
    opened = MessageStore(tmp_path / "store", SETTINGS, files=files)
    opened.open()
    opened.topics.put(TOPIC)
    return opened


def append_all(store: MessageStore, bodies: Sequence[object]) -> None:
    """Append messages with these bodies as one frame."""
    frame = bytearray(b"".join(msgpack.packb([body, {}]) for body in bodies))
    store.append(TOPIC, 0, ProduceBatch(frame, 0, len(frame), len(bodies), 0, b"", 0, b"", 0, 0, bytes(8)))


def append(store: MessageStore, body: bytes = bytes(400_000)) -> None:
    append_all(store, [body])


def log_files(store: MessageStore) -> list[str]:
    return sorted(path.name for path in (store.path / "commitlog").iterdir())


def fill_first_file(store: MessageStore) -> None:
    """Append until the next message needs the next file, which exists already."""
    while store.write_offset < 4_000_000:
        append(store)
        store.commitlog.prepare_ahead()
    store.flush()
    assert store.commitlog.ahead.prepared
    assert store.write_offset < FILE_BYTES


def test_a_file_made_ahead_is_not_in_the_logs_folder_before_a_record_is(store: MessageStore) -> None:
    fill_first_file(store)
    assert log_files(store) == [f"{0:020d}"]
    append(store)
    assert log_files(store) == [f"{0:020d}", f"{FILE_BYTES:020d}"]
    store.close()


def test_a_file_made_ahead_and_not_used_is_gone_after_the_next_start(store: MessageStore) -> None:
    fill_first_file(store)
    store.close()
    assert len(list((store.path / "flintmq").rglob("0*"))) == 1
    again = MessageStore(store.path, SETTINGS)
    again.open()
    assert list((store.path / "flintmq").rglob("0*")) == []
    assert log_files(store) == [f"{0:020d}"]
    again.close()


def test_the_name_of_a_new_file_is_on_disk_before_its_bytes_count_as_flushed(
    store: MessageStore, files: WatchedFiles
) -> None:
    fill_first_file(store)
    append(store)
    flushed_at_sync = []
    folder = store.path / "commitlog"
    files.before_sync_folder = lambda path: flushed_at_sync.append(store.flushed_offset) if path == folder else None
    assert store.flush() > FILE_BYTES
    assert len(flushed_at_sync) == 1
    assert flushed_at_sync[0] < FILE_BYTES
    store.close()


def test_only_a_frame_that_needs_the_next_file_creates_it(store: MessageStore) -> None:
    fill_first_file(store)
    log = store.commitlog
    append_all(store, [bytes(FILE_BYTES - store.write_offset - 40_000)])
    with pytest.raises(MessageIllegal, match="message 199: its body is not"):
        append_all(store, [b"x"] * 199 + ["no body"])
    # At the maximum size known before they are planned, none of the three would fit.
    append_all(store, [b"x"] * 200)
    waiting = [Record(topic=b"orders", body=b"y" * 50) for _ in range(60)]
    store.append_records(waiting)
    rows = [(each.physical_offset, len(each.encode()), 0) for each in waiting]
    read = store.rewriter.read(np.array(rows, np.int64).reshape(-1), hot=False)
    store.deliver(read, [("orders", 0)])
    assert log_files(store) == [f"{0:020d}"]
    assert len(log.queue.files) == 1

    store.close()


@pytest.mark.parametrize("over", [0, 1], ids=["to the last byte", "one byte more"])
def test_a_record_goes_into_a_file_only_if_it_leaves_room_for_a_blank(store: MessageStore, over: int) -> None:
    fill_first_file(store)
    before = store.write_offset
    append_all(store, [b""])
    record_bytes = store.write_offset - before
    append_all(store, [bytes(FILE_BYTES - store.write_offset - record_bytes - BLANK_BYTES_MIN + over)])
    if over:
        assert log_files(store) == [f"{0:020d}", f"{FILE_BYTES:020d}"]
        assert store.write_offset > FILE_BYTES
    else:
        assert log_files(store) == [f"{0:020d}"]
        assert store.write_offset == FILE_BYTES - BLANK_BYTES_MIN
    store.close()


def test_the_files_that_are_gone_on_in_are_counted_as_they_are_filled() -> None:
    source = random.Random(3)
    for _ in range(500):
        sizes = [source.randint(91, 400) for _ in range(source.randint(1, 30))]
        room = source.randint(0, 1000)
        rolls, position = 0, 1000 - room
        for size in sizes:
            if position + size + BLANK_BYTES_MIN > 1000:
                rolls, position = rolls + 1, 0
            position += size
        assert count_rolls(np.array(sizes, np.int64), room, 1000) == rolls
