"""Units of many queues that wait in memory to be written together: readers find them, and no crash loses them."""

from __future__ import annotations

import errno
import shutil
import struct
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from flintmq.broker.background.services import CheckpointService
from flintmq.broker.store import MessageStore
from flintmq.broker.store.dispatch import GATHER_RUNS_MIN
from flintmq.broker.store.files.file_system import OpenFiles
from flintmq.broker.store.queues import GATHERED_UNITS_MAX, ConsumeQueue
from flintmq.protocol.storage.layout import UNIT_BYTES
from tests.store_tools import Sent, UnsyncedFiles, append, assert_holds, dispatch, open_store, plain, reopen

TOPICS = [f"topic-{number}" for number in range(GATHER_RUNS_MIN)]
UNITS_A_FILE = 50


def put_to_all(store: MessageStore, rounds: int, topics: Sequence[str] = TOPICS) -> list[Sent]:
    """Send one message to each topic and dispatch them together, several times."""
    sent: list[Sent] = []
    for number in range(rounds):
        for topic in topics:
            sent += append(store, topic, 0, plain(1, first=number))
        dispatch(store)
    return sent


def written(store: MessageStore) -> list[int]:
    """Return the number of units in the files of each queue."""
    files = [path.read_bytes() for path in (store.path / "consumequeue").rglob("*") if path.is_file()]
    return [sum(1 for _, size, _ in struct.iter_unpack(">qiq", content) if size) for content in files]


def test_messages_of_many_queues_are_read_before_their_units_are_written(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = put_to_all(store, 4)
    assert written(store) == [1] * len(TOPICS), "the first message of a queue is dispatched alone"
    assert_holds(store, sent)
    store.close()
    assert written(store) == [4] * len(TOPICS)


def test_units_are_written_when_enough_have_gathered(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = put_to_all(store, 2 + GATHERED_UNITS_MAX)
    assert written(store) == [1 + GATHERED_UNITS_MAX] * len(TOPICS)
    assert_holds(store, sent)
    store.close()


def test_units_of_few_queues_are_in_the_files_at_once(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = put_to_all(store, 1)
    sent += put_to_all(store, 2, TOPICS[1:])
    sent += put_to_all(store, 2)
    assert sorted(written(store)) == [1] + [3] * (len(TOPICS) - 1)
    sent += put_to_all(store, 1, TOPICS[1:])
    assert sorted(written(store)) == [1] + [3] * (len(TOPICS) - 1), "they join those that wait"
    sent += append(store, TOPICS[1], 0, plain(GATHERED_UNITS_MAX))
    dispatch(store)
    assert sorted(written(store)) == [1] + [3] * (len(TOPICS) - 2) + [6 + GATHERED_UNITS_MAX], "many are written"
    assert_holds(store, sent)
    store.close()


@pytest.mark.parametrize("synced", [0, 2, 5], ids=["none", "some", "all"])
def test_a_crash_loses_no_unit(tmp_path: Path, synced: int) -> None:
    store = open_store(tmp_path / "store")
    sent = put_to_all(store, 1)
    if not synced:
        store.sync_derived()
    for number in range(5):
        sent += put_to_all(store, 1)
        if number + 1 == synced:
            store.sync_derived()
    shutil.copytree(store.path, tmp_path / "crashed")
    store.close()
    crashed, report = reopen(tmp_path / "crashed")
    assert report.rebuilt == []
    assert report.messages_recovered == (5 - synced) * len(TOPICS)
    assert_holds(crashed, sent)
    crashed.close()


class FullDisk(UnsyncedFiles):
    """Files that refuse units while ``full``."""

    full = False

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        if self.full and isinstance(data, memoryview) and len(data) % UNIT_BYTES == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, data, at)


def test_on_a_full_disk_units_wait_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def no_client(*arguments: object) -> None:
        raise AssertionError(arguments)

    files = FullDisk()
    store = open_store(tmp_path / "store", files=files)
    service = CheckpointService(store, no_client, no_client, sync_share=0)
    sent = put_to_all(store, 2)
    files.full = True
    assert not service.do_once()
    assert "no room" in caplog.text
    assert_holds(store, sent)
    files.full = False
    sent += put_to_all(store, 1)
    assert not service.do_once()
    shutil.copytree(store.path, tmp_path / "crashed")
    crashed, report = reopen(tmp_path / "crashed")
    assert report.messages_recovered == 0
    assert_holds(crashed, sent)
    crashed.close()
    store.close()


def test_on_a_full_disk_retention_makes_room_although_units_wait(tmp_path: Path) -> None:
    files = FullDisk()
    store = open_store(tmp_path / "store", files=files)
    while len(store.commitlog.queue.files) < 3:
        append(store, "orders", 0, plain(8, size=60_000))
        dispatch(store)
    put_to_all(store, 1)
    store.sync_derived()
    put_to_all(store, 1)
    files.full = True
    assert store.expire(1) > 0
    files.full = False
    store.close()


def test_units_are_read_and_synced_beside_their_writer(tmp_path: Path) -> None:
    count = 20_000
    queue = ConsumeQueue(UnsyncedFiles(), OpenFiles(2), tmp_path, "orders", 0, UNITS_A_FILE * UNIT_BYTES, 0)
    ended = threading.Event()
    problems: list[str] = []

    def unit(number: int) -> bytes:
        return struct.pack(">qiq", 100 * number, 100, 7)

    def read() -> None:
        number = 0
        while not ended.is_set():
            end = queue.max_offset
            first = max(end - 3 - number % (2 * GATHERED_UNITS_MAX), 0)
            if queue.read_units(first, end - first, hot=False) != b"".join(map(unit, range(first, end))):
                problems.append(f"{first} to {end}")
            number += 1

    def sync() -> None:
        while not ended.is_set():
            queue.write_out()
            queue.sync()

    threads = [threading.Thread(target=work) for work in (read, read, sync)]
    for thread in threads:
        thread.start()
    for number in range(count):
        (queue.append if number % 97 == 0 else queue.gather)(memoryview(unit(number)))
    ended.set()
    for thread in threads:
        thread.join()
    queue.write_out()
    queue.sync()
    assert not queue.dirty
    assert not problems
    content = b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert content[: count * UNIT_BYTES] == b"".join(map(unit, range(count)))
    queue.close()
