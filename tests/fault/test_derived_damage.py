"""ConsumeQueues and index are derived files: a start rebuilds them from the log, with what only the log knows."""

from __future__ import annotations

import dataclasses
import random
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from flintmq.broker.kernels import dispatch as kernel
from flintmq.protocol.commands.common import QUEUES_MAX
from flintmq.protocol.storage.javahash import index_key_hash
from flintmq.protocol.storage.layout import CHECKPOINT, CHECKPOINT_FILE_BYTES, PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from flintmq.protocol.storage.record import Record
from tests.fault.damaged_logs import FIRST
from tests.fault.derived_files import (
    ENTRIES_AT,
    INDEX_DAMAGES,
    QUEUE,
    QUEUE_DAMAGES,
    End,
    Filled,
    a_queue_gone,
    all_queues_gone,
    assert_rebuilt,
    both_ends,
    close,
    index_file,
    no_damage,
    queue_file,
    sync_and_kill,
)
from tests.store_tools import (
    SMALL,
    Message,
    append,
    assert_contained,
    assert_holds,
    copy_store,
    dispatch,
    find,
    index_files,
    kill,
    open_store,
    overwrite,
    plain,
    pull_all,
    put,
    queue_files,
    reopen,
    tree,
)
from tests.tools_runs import findings_however_split

DAMAGES = QUEUE_DAMAGES | INDEX_DAMAGES
SOURCE = random.Random(5)


def everything_but_the_log(path: Path) -> None:
    for name in ("consumequeue", "index", "config", "flintmq"):
        shutil.rmtree(path / name)
    (path / "checkpoint").unlink()
    (path / "abort").unlink(missing_ok=True)


@both_ends
def test_a_store_with_only_a_log_is_rebuilt_completely(filled: Filled, tmp_path: Path, end: End) -> None:
    assert_rebuilt(filled(end), tmp_path, everything_but_the_log)
    store = open_store(tmp_path / "store")
    assert {config.name for config in store.topics} == {"orders", "bills", "%a|b", "new"}
    store.close()


@pytest.mark.parametrize("seed", range(6))
def test_any_mixture_of_damage_is_repaired(filled: Filled, tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)

    def damage(path: Path) -> None:
        for file in sorted([*(path / "consumequeue").rglob("0*"), *(path / "index").iterdir()]):
            if file.is_file() and source.random() < 0.3:
                content = bytearray(file.read_bytes())
                at = source.randrange(len(content))
                content[at : at + source.randrange(1, 200)] = source.randbytes(source.randrange(1, 200))
                file.write_bytes(content[: source.choice([len(content), at, SMALL.consumequeue_file_bytes])])
        if source.random() < 0.5:
            (path / "checkpoint").unlink()

    assert_rebuilt(filled(source.choice([close, sync_and_kill])), tmp_path, damage, reported=False)


@both_ends
@pytest.mark.parametrize("name", [*QUEUE_DAMAGES, *INDEX_DAMAGES])
def test_damaged_files_are_rebuilt(filled: Filled, tmp_path: Path, end: End, name: str) -> None:
    # Killed before anything was synced, recovery fills all queues again: there is no damage to report.
    assert_rebuilt(filled(end), tmp_path, DAMAGES[name].apply, reported=end is not kill)


@pytest.mark.parametrize("name", [*QUEUE_DAMAGES, *INDEX_DAMAGES])
def test_verify_finds_the_damage_and_its_place(filled: Filled, tmp_path: Path, name: str) -> None:
    source, _ = filled(close)
    damage, folder = DAMAGES[name], "index" if name in INDEX_DAMAGES else QUEUE
    path = copy_store(source, tmp_path / "store")
    file = path / folder / sorted(each.name for each in (path / folder).iterdir())[damage.file]
    damage.apply(path)
    found = findings_however_split(path)
    assert {each.kind for each in found} == set(damage.kinds.split())
    if damage.at >= 0:
        assert (damage.kinds.split()[0], file, damage.at) in {(each.kind, each.path, each.position) for each in found}


@pytest.mark.parametrize("byte", range(20))
def test_a_flipped_bit_anywhere_in_a_unit_is_noticed(filled: Filled, tmp_path: Path, byte: int) -> None:
    def flip(path: Path) -> None:
        at = SOURCE.randrange(50) * 20 + byte
        held = queue_file(path, 0).read_bytes()[at]
        overwrite(queue_file(path, 0), at, bytes([held ^ 1 << SOURCE.randrange(8)]))

    assert_rebuilt(filled(close), tmp_path, flip)


def test_units_lost_below_the_checked_part_are_refilled_once_a_later_record_shows_it(tmp_path: Path) -> None:
    settings = dataclasses.replace(SMALL, verify_at_start_bytes=0)
    store = open_store(tmp_path / "store", settings)
    sent = put(store, "orders", 1, plain(30))
    store.sync_derived()
    sent += append(store, "orders", 1, plain(3, first=30))
    store.flush()
    kill(store)
    overwrite(queue_file(store.path, 0), 20 * UNIT_BYTES, bytes(10 * UNIT_BYTES))
    for name in ("state.json", "state.json.bak"):  # they say where the queue ended
        (store.path / "flintmq" / name).unlink(missing_ok=True)
    store, report = reopen(store.path, settings)
    assert report.rebuilt == ["consumequeue orders/1: it ends at 20"]
    assert_holds(store, sent)
    store.close()


def test_units_that_rocketmq_had_not_flushed_are_added_however_new_other_queues_are(tmp_path: Path) -> None:
    """It flushes the log more often than the queues, so its checkpoint names an older time for these."""
    settings = dataclasses.replace(SMALL, verify_at_start_bytes=0)
    store = open_store(tmp_path / "store", settings)
    sent = put(store, "orders", 1, plain(30))
    while store.write_offset < SMALL.commitlog_file_bytes:
        put(store, "bills", 0, plain(10, size=50_000))
    kill(store)
    shutil.rmtree(store.path / "flintmq")
    overwrite(queue_file(store.path, 0), 20 * UNIT_BYTES, bytes(10 * UNIT_BYTES))
    # A start checks the newest file of the log only: the others are known to be flushed.
    times = CHECKPOINT.pack(sent[-1].store_ms + 3_600_000, sent[0].store_ms, sent[0].store_ms, 0, 0)
    (store.path / "checkpoint").write_bytes(times.ljust(CHECKPOINT_FILE_BYTES, b"\0"))
    store, report = reopen(store.path, settings)
    assert not report.clean
    assert report.messages_checked < 30
    assert_holds(store, sent)
    store.close()


@pytest.mark.parametrize(("damage", "kept"), [("newest file gone", 2), ("middle file gone", 1)])
def test_the_index_files_before_a_missing_one_stay(filled: Filled, tmp_path: Path, damage: str, kept: int) -> None:
    source, sent = filled(close)
    path = copy_store(source, tmp_path / "store")
    names = [each.name for each in sorted((path / "index").iterdir())]
    assert len(names) == 3
    INDEX_DAMAGES[damage].apply(path)
    store, report = reopen(path)
    assert [file.path.name for file in store.index.files][:kept] == names[:kept]
    assert 0 < report.messages_recovered < len(sent)
    store.close()
    assert index_files(path) == index_files(source)


@pytest.mark.parametrize("byte", range(20))
def test_a_flipped_bit_anywhere_in_an_entry_is_noticed(filled: Filled, tmp_path: Path, byte: int) -> None:
    def flip(path: Path) -> None:
        # No one knows the first entry's second: RocketMQ counts it from the file before.
        at = ENTRIES_AT + 20 * SOURCE.randrange(2, 190) + byte
        held = index_file(path, 1).read_bytes()[at]
        overwrite(index_file(path, 1), at, bytes([held ^ 1 << SOURCE.randrange(8)]))

    assert_rebuilt(filled(close), tmp_path, flip)


def test_an_index_file_set_back_by_a_power_cut_is_noticed_even_if_its_part_of_the_log_is_not_checked(
    tmp_path: Path,
) -> None:
    """Of the two newest files the newer one reached the disk, and the older one is as of the last checkpoint."""
    settings = dataclasses.replace(SMALL, verify_at_start_bytes=0)
    store = open_store(tmp_path / "store", settings)
    sent = put(store, "orders", 0, plain(150))
    store.sync_derived()
    (checkpointed,) = index_files(store.path)
    sent += put(store, "orders", 0, plain(100, first=150))
    older, _ = sorted((store.path / "index").iterdir())
    kill(store)
    older.write_bytes(checkpointed)
    store = open_store(tmp_path / "store", settings)
    assert_holds(store, sent)
    store.close()


def test_keys_missing_after_a_stop_between_two_index_files_are_added(tmp_path: Path) -> None:
    """The last record's first key is in a full file, the others belong in the next."""
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(SMALL.index_entries - 2))
    last = append(store, "orders", 0, [Message(b"last", keys=("one", "two", "three"))])[0]
    store.flush()
    keys = [[index_key_hash("orders", key), last.physical_offset, last.store_ms] for key in last.message.keys]
    array = np.array(keys, np.int64).reshape(-1)
    assert len(array) == 3 * kernel.KEY_ROW
    assert next(store.index.put(array, 3)) == 1
    assert store.index.files[-1].full
    kill(store)
    store = open_store(tmp_path / "store")
    assert_holds(store, [*sent, last])
    assert len(store.index.files) == 2
    whole = index_files(store.path)
    kill(store)
    shutil.rmtree(store.path / "index")
    store = open_store(tmp_path / "store")
    assert index_files(store.path) == whole
    store.close()


def test_an_index_lost_by_rocketmq_in_a_crash_is_completed(tmp_path: Path) -> None:
    """After kill -9 RocketMQ deletes index files and indexes only new messages: it no longer finds older ones."""
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(500))
    store.close()
    for number in (0, 0):
        index_file(store.path, number).unlink()
    shutil.rmtree(store.path / "flintmq")
    (store.path / "checkpoint").unlink()
    store, report = reopen(store.path)
    assert "does not reach back" in report.rebuilt[0]
    assert_holds(store, sent)
    store.close()


# Facts that only the log knows, and facts that it does not know.


def test_a_hole_found_while_queues_are_filled_is_contained(tmp_path: Path) -> None:
    """The hole is in a part of the log that a start does not always read."""
    settings = dataclasses.replace(SMALL, verify_at_start_bytes=0)
    store = open_store(tmp_path / "store", settings)
    sent = [each for number in range(15) for each in put(store, "orders", 0, plain(1, size=400_000, first=number))]
    store.close()
    overwrite(store.path / "commitlog" / f"{0:020d}", sent[3].physical_offset, bytes(60))
    store = open_store(store.path, settings)
    assert store.queue_reads.max_offset("orders", 0) == 15
    store.close()
    shutil.rmtree(store.path / "consumequeue")
    assert_contained(store.path, sent, [sent[3]], settings=settings)


def test_messages_missing_from_the_log_leave_a_gap_without_shifting_offsets(tmp_path: Path) -> None:
    """A log with a gap in a queue's offsets, as RocketMQ may leave it after retention in the middle."""
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(10))
    store.append_offsets.advance("orders", 0, 75)  # only a damaged log has this
    sent += put(store, "orders", 0, plain(60, first=10))
    for number in range(4):
        assert [record.queue_offset for record in pull_all(store, "orders", 0)] == [*range(10), *range(75, 135)]
        assert_holds(store, sent)
        assert store.queue_reads.max_offset("orders", 0) == 135
        if number == 1:
            kill(store)
            shutil.rmtree(store.path / "consumequeue")
        else:
            (close if number else kill)(store)
        store = open_store(tmp_path / "store")
    store.close()


def test_a_rebuilt_queue_begins_at_the_same_offset(tmp_path: Path) -> None:
    """Its first messages are no longer in the log, as after retention."""
    store = open_store(tmp_path / "store")
    lost = [each for number in range(10) for each in put(store, "orders", 0, plain(1, size=400_000, first=number))]
    sent = [
        each for number in range(30) for each in put(store, "orders", 0, plain(3, size=100_000, first=10 + 3 * number))
    ]
    kept = [each for each in sent if each.physical_offset >= SMALL.commitlog_file_bytes]
    before = queue_files(store.path)
    store.close()
    (store.path / "commitlog" / f"{0:020d}").unlink()
    (store.path / "checkpoint").unlink()
    for damage in (no_damage, all_queues_gone, no_damage):
        damage(store.path)
        store = open_store(store.path)
        low = kept[0].queue_offset
        assert (store.queue_reads.min_offset("orders", 0, hot=False), store.queue_reads.max_offset("orders", 0)) == (
            low,
            100,
        )
        assert_holds(store, kept)
        assert find(store, "orders", lost[0].message.keys[0]) == []
        store.close()
    after = queue_files(store.path)
    filling = UNIT.pack(0, PRE_BLANK_SIZE, 0)
    start = low - low % 50
    assert list(after) == [name for name in before if int(name[-20:]) >= start * 20]
    first = after[f"orders/0/{start * 20:020d}"]
    assert first == filling * (low - start) + before[f"orders/0/{start * 20:020d}"][(low - start) * 20 :]


def test_the_end_of_a_queue_without_messages_is_remembered(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    put(store, "orders", 2, plain(7))
    for number in range(15):
        put(store, "bills", 0, plain(1, size=400_000, first=number))
    store.close()
    (store.path / "commitlog" / f"{0:020d}").unlink()
    (store.path / "checkpoint").unlink()
    shutil.rmtree(store.path / "consumequeue")
    for _ in range(3):
        store, report = reopen(store.path)
        assert (store.queue_reads.min_offset("orders", 2, hot=False), store.queue_reads.max_offset("orders", 2)) == (
            7,
            7,
        )
        store.close()
    assert report.rebuilt == []
    store = open_store(store.path)
    sent = put(store, "orders", 2, plain(3, first=100))
    assert [each.queue_offset for each in sent] == [7, 8, 9]
    for end in (kill, close):
        end(store)
        store = open_store(store.path)
        assert_holds(store, sent)
    store.close()


def test_a_kill_in_the_middle_of_dispatch_indexes_nothing_twice(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, [Message(b"x", keys=("all", f"k{number}")) for number in range(300)])
    whole = index_files(store.path)
    for _ in range(3):
        kill(store)
        store = open_store(tmp_path / "store")
        assert index_files(store.path) == whole
    assert_holds(store, sent)
    dispatch(store)
    store.close()


def test_topics_deleted_by_rocketmq_stay_deleted(tmp_path: Path) -> None:
    """RocketMQ removes the topic from its table and deletes the queues; the records stay in the log."""
    store = open_store(tmp_path / "store")
    gone = put(store, "orders", 0, plain(10))
    kept = put(store, "bills", 0, plain(10, first=10))
    store.topics.remove("orders")
    store.close()
    shutil.rmtree(store.path / "consumequeue" / "orders")
    shutil.rmtree(store.path / "flintmq")
    (store.path / "checkpoint").unlink()
    for damage in (no_damage, no_damage, all_queues_gone):
        damage(store.path)
        store = open_store(store.path)
        assert [config.name for config in store.topics] == ["bills"]
        assert_holds(store, kept)
        store.close()
    store = open_store(store.path)
    new = put(store, "orders", 0, plain(3))
    assert find(store, "orders", gone[0].message.keys[0])[0].physical_offset == new[0].physical_offset
    assert_holds(store, new)
    store.close()


def test_damage_does_not_spread(filled: Filled, tmp_path: Path) -> None:
    """The rebuild of one queue or index file leaves sound ones untouched."""
    source, _ = filled(close)
    path = copy_store(source, tmp_path / "store")
    a_queue_gone(path)
    before = {
        name: (path / name).stat().st_mtime_ns for name in tree(path) if name.startswith(("consume", "index", "commit"))
    }
    store = open_store(path)
    kill(store)
    for name, changed_at in before.items():
        if name not in ("consumequeue", "consumequeue/orders", "index", "commitlog"):
            assert (path / name).stat().st_mtime_ns == changed_at, name


@pytest.mark.parametrize("number", [0, 1, 7])
@pytest.mark.parametrize("lost", ["queue", "checkpoint", "nothing"])
def test_a_record_with_a_wrong_queue_offset_hides_no_later_record(tmp_path: Path, number: int, lost: str) -> None:
    """No checksum covers a record's head. If recovery filled the queue up to the claimed offset, later records would be
    missing."""
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(20))
    sent += put(store, "bills", 0, plain(5))
    store.close()
    log = store.path / "commitlog" / FIRST
    overwrite(log, sent[number].physical_offset + 20, struct.pack(">q", number + 4096))
    if lost == "queue":
        shutil.rmtree(store.path / "consumequeue")
    elif lost == "checkpoint":
        (store.path / "checkpoint").unlink()
    assert_contained(store.path, sent, [sent[number]])


@pytest.mark.parametrize("queue", [-1, QUEUES_MAX, 2**31 - 1])
def test_a_record_of_an_impossible_queue_makes_no_queues(tmp_path: Path, queue: int) -> None:
    """A topic of two billion queues would hold up each request that goes through them."""
    path = tmp_path / "store"
    (path / "commitlog").mkdir(parents=True)
    record = Record(topic=b"orders", body=b"x", queue_id=queue, store_timestamp=1_700_000_000_000)
    (path / "commitlog" / FIRST).write_bytes(record.encode().ljust(SMALL.commitlog_file_bytes, b"\0"))
    store, report = reopen(path)
    assert [each.reason for each in report.quarantined] == ["a topic or queue that cannot be one"]
    assert len(store.topics) == 0
    store.close()


@pytest.mark.parametrize("topic", [b"../../outside", b"..", b"a/b", b"\xff\xfe", b"nul\0", b""])
def test_an_invalid_topic_name_creates_no_folder(tmp_path: Path, topic: bytes) -> None:
    record = Record(topic=topic, body=b"x", properties=b"KEYS\x01k\x02", store_timestamp=1_700_000_000_000)
    path = tmp_path / "deep" / "store"
    (path / "commitlog").mkdir(parents=True)
    (path / "commitlog" / FIRST).write_bytes(record.encode().ljust(SMALL.commitlog_file_bytes, b"\0"))
    store, report = reopen(path)
    assert [each.reason for each in report.quarantined] == ["a topic or queue that cannot be one"]
    assert len(store.topics) == 0
    store.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["deep"]
    assert not list((path / "consumequeue").iterdir())
