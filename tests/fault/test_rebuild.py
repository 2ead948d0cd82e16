"""``rebuild`` creates the same files as a broker, and may be killed at any point."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flintmq.broker.store import MessageStore, StoreLocked
from flintmq.broker.store.damage import LostRange
from flintmq.broker.tools.repair import Rebuilt, rebuild
from flintmq.protocol.storage.layout import CHECKPOINT_MARK_AT, RECORD_HEAD_BYTES
from tests.fault.dying_files import Died, DyingFiles
from tests.store_tools import (
    SMALL,
    Sent,
    append,
    assert_holds,
    copy_store,
    dispatch,
    index_files,
    kill,
    open_store,
    overwrite,
    plain,
    put,
    queue_files,
    reopen,
)
from tests.tools_runs import findings
from tests.unit.test_store_golden import pristine

__all__ = ["pristine"]

Filled = tuple[Path, list[Sent]]


def quiet(stage: str, done: int, total: int) -> None:
    pass


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    path = tmp_path_factory.mktemp("source") / "store"
    store = open_store(path)
    sent = []
    for number in range(0, 480, 6):
        sent += put(store, ("orders", "bills", "%a|b")[number % 3], number // 6 % 4, plain(6, first=number, tags="eu"))
    store.close()
    return path, sent


@pytest.fixture
def path(source: Filled, tmp_path: Path) -> Path:
    return copy_store(source[0], tmp_path / "store")


def assert_as_before(path: Path, source: Filled) -> None:
    """Check that the derived files equal the source's byte for byte, that no others remain, and that a broker
    continues."""
    assert queue_files(path) == queue_files(source[0])
    assert index_files(path) == index_files(source[0])
    assert findings(path) == []
    assert not list((path / "flintmq" / "aside").glob("*"))
    assert not (path / "abort").exists()
    store, report = reopen(path)
    assert report.clean
    assert report.rebuilt == []
    assert_holds(store, source[1])
    store.close()


def test_rebuilt_files_equal_those_of_a_broker_byte_for_byte(path: Path, source: Filled) -> None:
    rebuilt = rebuild(path, quiet)
    assert isinstance(rebuilt, Rebuilt)
    assert (rebuilt.messages, rebuilt.queues) == (480, len({(each.topic, each.queue) for each in source[1]}))
    assert rebuilt.index_files == len(index_files(source[0]))
    assert_as_before(path, source)


def test_a_rebuild_repairs_damage_that_a_start_would_not_see(path: Path, source: Filled) -> None:
    queue = path / "consumequeue" / "orders" / "0" / f"{0:020d}"
    overwrite(queue, 20 * 3 + 12, b"\x12\x34\x56\x78")
    assert {finding.kind for finding in findings(path)} == {"unit-wrong"}
    rebuild(path, quiet)
    assert_as_before(path, source)


def test_a_rebuild_creates_missing_queues_and_index(path: Path, source: Filled) -> None:
    shutil.rmtree(path / "consumequeue")
    shutil.rmtree(path / "index")
    rebuild(path, quiet)
    assert_as_before(path, source)


def test_a_killed_store_is_recovered_and_rebuilt(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(100))
    sent += append(store, "orders", 1, plain(30, first=200))
    kill(store)
    assert rebuild(tmp_path / "store", quiet).messages == 130
    store, report = reopen(tmp_path / "store")
    assert report.clean
    assert_holds(store, sent)
    store.close()


@pytest.mark.parametrize("had_it_last", ["FlintMQ", "RocketMQ"])
def test_a_rebuild_keeps_the_next_offset_of_an_expired_queue(tmp_path: Path, had_it_last: str) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    put(store, "old", 0, plain(7, size=100_000))
    for number in range(0, 300, 10):
        put(store, "orders", 0, plain(10, first=number, size=40_000))
    store.sync_derived()
    assert store.expire(2) > 0
    store.close()
    if had_it_last == "RocketMQ":
        shutil.rmtree(path / "flintmq")
        overwrite(path / "checkpoint", CHECKPOINT_MARK_AT, bytes(24))
    rebuild(path, quiet, index_slots=SMALL.index_slots)
    store = open_store(path)
    assert store.queue_reads.next_offset("old", 0) == 7
    store.close()


def test_a_rebuild_contains_a_damaged_log_as_a_start_does(path: Path, source: Filled) -> None:
    sent = source[1][100]
    overwrite(path / "commitlog" / f"{0:020d}", sent.physical_offset + RECORD_HEAD_BYTES, b"!")
    (hole,) = rebuild(path, quiet).quarantined
    assert (hole.physical_offset, hole.lost) == (
        sent.physical_offset,
        (LostRange(sent.topic, sent.queue, sent.queue_offset, 1),),
    )
    assert rebuild(path, quiet).quarantined == []


def test_a_rebuild_refuses_a_store_that_a_broker_has_open(path: Path) -> None:
    store = open_store(path)
    with pytest.raises(StoreLocked):
        rebuild(path, quiet)
    store.close()


def rebuild_with(store: MessageStore) -> None:
    store.open(rebuild=True)
    store.close()


def test_the_next_start_completes_a_rebuild_killed_at_any_change(source: Filled, tmp_path: Path) -> None:
    counting = DyingFiles(1 << 30)
    rebuild_with(MessageStore(copy_store(source[0], tmp_path / "counted"), SMALL, files=counting))
    total = (1 << 30) - counting.lives
    assert total > 30
    for left in range(0, total, max(total // 20, 1)):
        path = copy_store(source[0], tmp_path / f"store-{left}")
        store = MessageStore(path, SMALL, files=DyingFiles(left))
        with pytest.raises(Died):
            rebuild_with(store)
        kill_quietly(store)
        store, _ = reopen(path)
        assert_holds(store, source[1], keys=left == 0)
        dispatch(store)
        store.close()
        assert queue_files(path) == queue_files(source[0])
        assert index_files(path) == index_files(source[0])
        shutil.rmtree(path)


def kill_quietly(store: MessageStore) -> None:
    """Release the lock and the files, as the end of a process does."""
    store._close_files()
