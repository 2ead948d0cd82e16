"""ConsumeQueues and index are derived files: after any damage they are rebuilt as they were."""

from __future__ import annotations

import dataclasses
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flintmq.broker.kernels import dispatch as kernel
from flintmq.broker.store import MessageStore
from flintmq.protocol.storage.javahash import index_key_hash
from flintmq.protocol.storage.layout import INDEX_HEADER_BYTES, INDEX_SLOT_BYTES, PRE_BLANK_SIZE, UNIT
from flintmq.protocol.storage.record import Record
from tests.store_tools import (
    SMALL,
    Message,
    Sent,
    append,
    assert_contained,
    assert_found,
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

END = Callable[[MessageStore], None]
Damage = Callable[[Path], None]
ENTRIES_AT = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * SMALL.index_slots
SOURCE = random.Random(5)


def close(store: MessageStore) -> None:
    store.close()


def sync_and_kill(store: MessageStore) -> None:
    """Kill the store just after queues and index were synced: recovery has nothing to dispatch."""
    store.sync_derived()
    kill(store)


both_ends = pytest.mark.parametrize("end", [sync_and_kill, kill])


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[END], tuple[Path, list[Sent]]]:
    """Return ``filled(end)``: a stopped store with five queues, each of several files, and four index files."""
    made: dict[END, tuple[Path, list[Sent]]] = {}

    def make(end: END) -> tuple[Path, list[Sent]]:
        if end not in made:
            path = tmp_path_factory.mktemp("filled") / "store"
            store = open_store(path)
            source = random.Random(9)
            sent = []
            for number in range(0, 560, 4):
                topic, queue = source.choice([("orders", 0), ("orders", 1), ("orders", 3), ("bills", 0), ("%a|b", 2)])
                sent += put(store, topic, queue, plain(4, first=number, tags=source.choice(["", "eu"])))
            end(store)
            made[end] = path, sent
        return made[end]

    return make


def assert_rebuilt(filled: tuple[Path, list[Sent]], tmp_path: Path, damage: Damage, *, reported: bool = True) -> None:
    """Check that all files are rebuilt byte for byte, stay that way, and that new messages can be appended."""
    source, sent = filled
    path = copy_store(source, tmp_path / "store")
    damage(path)
    store, report = reopen(path)
    assert report.rebuilt or not reported
    assert report.truncated_bytes == 0
    assert_holds(store, sent)
    kill(store)
    assert queue_files(path) == queue_files(source)
    assert index_files(path) == index_files(source)
    assert not list((path / "flintmq" / "aside").glob("*"))
    store, report = reopen(path)
    assert report.rebuilt == []
    new = [
        each for topic, queue in (("orders", 1), ("new", 0)) for each in put(store, topic, queue, plain(60, first=5000))
    ]
    store.close()
    store, report = reopen(path)
    assert report.rebuilt == []
    assert_holds(store, [*sent, *new], keys=False)
    assert_found(store, new)
    store.close()


QUEUE = Path("consumequeue") / "orders" / "1"
FIRST, SECOND = f"{0:020d}", f"{SMALL.consumequeue_file_bytes:020d}"


def no_damage(path: Path) -> None:
    pass


def all_queues_gone(path: Path) -> None:
    shutil.rmtree(path / "consumequeue")


def a_topic_gone(path: Path) -> None:
    shutil.rmtree(path / "consumequeue" / "orders")


def a_queue_gone(path: Path) -> None:
    shutil.rmtree(path / QUEUE)


def last_queue_file(path: Path) -> Path:
    return sorted((path / QUEUE).iterdir())[-1]


def first_file_gone(path: Path) -> None:
    (path / QUEUE / FIRST).unlink()


def second_file_gone(path: Path) -> None:
    (path / QUEUE / SECOND).unlink()


def last_file_gone(path: Path) -> None:
    last_queue_file(path).unlink()


def only_the_last_file_left(path: Path) -> None:
    for file in sorted((path / QUEUE).iterdir())[:-1]:
        file.unlink()


def file_cut_short(path: Path) -> None:
    with (path / QUEUE / SECOND).open("r+b") as file:
        file.truncate(333)


def last_file_cut_to_nothing(path: Path) -> None:
    last_queue_file(path).write_bytes(b"")


def file_too_long(path: Path) -> None:
    with (path / QUEUE / FIRST).open("ab") as file:
        file.write(b"x")


def file_zeroed(path: Path) -> None:
    (path / QUEUE / SECOND).write_bytes(bytes(SMALL.consumequeue_file_bytes))


def last_file_zeroed(path: Path) -> None:
    last_queue_file(path).write_bytes(bytes(SMALL.consumequeue_file_bytes))


def queue_zeroed(path: Path) -> None:
    for file in (path / QUEUE).iterdir():
        file.write_bytes(bytes(SMALL.consumequeue_file_bytes))


def file_of_random_bytes(path: Path) -> None:
    (path / QUEUE / SECOND).write_bytes(SOURCE.randbytes(SMALL.consumequeue_file_bytes))


def every_file_random(path: Path) -> None:
    for file in (path / "consumequeue").rglob("0*"):
        if file.is_file():
            file.write_bytes(SOURCE.randbytes(SMALL.consumequeue_file_bytes))


def files_of_another_queue(path: Path) -> None:
    """As if two folders had been mixed up."""
    shutil.rmtree(path / QUEUE)
    shutil.copytree(path / "consumequeue" / "orders" / "3", path / QUEUE)


def a_unit_of_ones(path: Path) -> None:
    overwrite(path / QUEUE / FIRST, 7 * 20, b"\xff" * 20)


def a_unit_beyond_the_log(path: Path) -> None:
    overwrite(path / QUEUE / FIRST, 7 * 20, UNIT.pack(1 << 60, 200, 0))


def a_unit_gone(path: Path) -> None:
    overwrite(path / QUEUE / FIRST, 7 * 20, bytes(20))


def a_unit_that_fills(path: Path) -> None:
    overwrite(path / QUEUE / FIRST, 7 * 20, UNIT.pack(0, PRE_BLANK_SIZE, 0))


def two_units_changed_places(path: Path) -> None:
    held = (path / QUEUE / FIRST).read_bytes()
    overwrite(path / QUEUE / FIRST, 140, held[160:180] + held[140:160])


@both_ends
@pytest.mark.parametrize(
    "damage",
    [
        all_queues_gone,
        a_topic_gone,
        a_queue_gone,
        first_file_gone,
        second_file_gone,
        last_file_gone,
        only_the_last_file_left,
        file_cut_short,
        last_file_cut_to_nothing,
        file_too_long,
        file_zeroed,
        last_file_zeroed,
        queue_zeroed,
        file_of_random_bytes,
        every_file_random,
        files_of_another_queue,
        a_unit_of_ones,
        a_unit_beyond_the_log,
        a_unit_gone,
        a_unit_that_fills,
        two_units_changed_places,
    ],
)
def test_a_damaged_consumequeue_is_rebuilt(
    filled: Callable[[END], tuple[Path, list[Sent]]], tmp_path: Path, end: END, damage: Damage
) -> None:
    # Killed before anything was synced, recovery fills all queues again: there is no damage to report.
    assert_rebuilt(filled(end), tmp_path, damage, reported=end is not kill)


@pytest.mark.parametrize("byte", range(20))
def test_a_flipped_bit_anywhere_in_a_unit_is_noticed(
    filled: Callable[[END], tuple[Path, list[Sent]]], tmp_path: Path, byte: int
) -> None:
    def flip(path: Path) -> None:
        at = SOURCE.randrange(50) * 20 + byte
        held = (path / QUEUE / FIRST).read_bytes()[at]
        overwrite(path / QUEUE / FIRST, at, bytes([held ^ 1 << SOURCE.randrange(8)]))

    assert_rebuilt(filled(close), tmp_path, flip)


# The index.


def index_path(path: Path, number: int) -> Path:
    return sorted((path / "index").iterdir())[number]


def index_gone(path: Path) -> None:
    shutil.rmtree(path / "index")


def oldest_index_gone(path: Path) -> None:
    index_path(path, 0).unlink()


def middle_index_gone(path: Path) -> None:
    index_path(path, 1).unlink()


def newest_index_gone(path: Path) -> None:
    index_path(path, -1).unlink()


def newest_index_cut_short(path: Path) -> None:
    with index_path(path, -1).open("r+b") as file:
        file.truncate(1000)


def oldest_index_cut_short(path: Path) -> None:
    with index_path(path, 0).open("r+b") as file:
        file.truncate(0)


def oldest_index_random(path: Path) -> None:
    file = index_path(path, 0)
    file.write_bytes(SOURCE.randbytes(file.stat().st_size))


def newest_index_random(path: Path) -> None:
    file = index_path(path, -1)
    file.write_bytes(SOURCE.randbytes(file.stat().st_size))


def newest_index_zeroed(path: Path) -> None:
    file = index_path(path, -1)
    file.write_bytes(bytes(file.stat().st_size))


def every_index_zeroed(path: Path) -> None:
    for file in (path / "index").iterdir():
        file.write_bytes(bytes(file.stat().st_size))


def slots_zeroed(path: Path) -> None:
    overwrite(index_path(path, 1), INDEX_HEADER_BYTES, bytes(2000))


def entries_zeroed(path: Path) -> None:
    overwrite(index_path(path, 1), ENTRIES_AT + 20 * 10, bytes(400))


def header_zeroed(path: Path) -> None:
    overwrite(index_path(path, -1), 0, bytes(40))


def count_too_small(path: Path) -> None:
    overwrite(index_path(path, -1), 36, struct.pack(">i", 2))


def count_too_large(path: Path) -> None:
    overwrite(index_path(path, -1), 36, struct.pack(">i", SMALL.index_entries))


def count_negative(path: Path) -> None:
    overwrite(index_path(path, 0), 36, struct.pack(">i", -5))


def count_of_another_size(path: Path) -> None:
    overwrite(index_path(path, 0), 36, struct.pack(">i", 2**31 - 1))


def end_offset_beyond_the_log(path: Path) -> None:
    overwrite(index_path(path, -1), 24, struct.pack(">q", 1 << 50))


def begin_offset_wrong(path: Path) -> None:
    overwrite(index_path(path, 1), 16, struct.pack(">q", 1))


def begin_time_wrong(path: Path) -> None:
    overwrite(index_path(path, 1), 0, struct.pack(">q", 1))


def a_slot_of_another_chain(path: Path) -> None:
    held = index_path(path, 0).read_bytes()
    slots = struct.unpack_from(f">{SMALL.index_slots}i", held, INDEX_HEADER_BYTES)
    used = [number for number, head in enumerate(slots) if head]
    overwrite(index_path(path, 0), INDEX_HEADER_BYTES + 4 * used[3], struct.pack(">i", slots[used[4]]))


@both_ends
@pytest.mark.parametrize(
    "damage",
    [
        index_gone,
        oldest_index_gone,
        middle_index_gone,
        newest_index_gone,
        newest_index_cut_short,
        oldest_index_cut_short,
        oldest_index_random,
        newest_index_random,
        newest_index_zeroed,
        every_index_zeroed,
        slots_zeroed,
        entries_zeroed,
        header_zeroed,
        count_too_small,
        count_too_large,
        count_negative,
        count_of_another_size,
        end_offset_beyond_the_log,
        begin_offset_wrong,
        begin_time_wrong,
        a_slot_of_another_chain,
    ],
)
def test_a_damaged_index_is_rebuilt(
    filled: Callable[[END], tuple[Path, list[Sent]]], tmp_path: Path, end: END, damage: Damage
) -> None:
    assert_rebuilt(filled(end), tmp_path, damage, reported=end is not kill)


@pytest.mark.parametrize("byte", range(20))
def test_a_flipped_bit_anywhere_in_an_entry_is_noticed(
    filled: Callable[[END], tuple[Path, list[Sent]]], tmp_path: Path, byte: int
) -> None:
    def flip(path: Path) -> None:
        # No one knows the first entry's second: RocketMQ counts it from the file before.
        at = ENTRIES_AT + 20 * SOURCE.randrange(2, 190) + byte
        held = index_path(path, 1).read_bytes()[at]
        overwrite(index_path(path, 1), at, bytes([held ^ 1 << SOURCE.randrange(8)]))

    assert_rebuilt(filled(close), tmp_path, flip)


def everything_but_the_log(path: Path) -> None:
    for name in ("consumequeue", "index", "config", "flintmq"):
        shutil.rmtree(path / name)
    (path / "checkpoint").unlink()
    (path / "abort").unlink(missing_ok=True)


@both_ends
def test_a_store_with_only_a_log_is_rebuilt_completely(
    filled: Callable[[END], tuple[Path, list[Sent]]], tmp_path: Path, end: END
) -> None:
    assert_rebuilt(filled(end), tmp_path, everything_but_the_log)
    store = open_store(tmp_path / "store")
    assert {config.name for config in store.topics} == {"orders", "bills", "%a|b", "new"}
    store.close()


@pytest.mark.parametrize("seed", range(6))
def test_any_mixture_of_damage_is_repaired(
    filled: Callable[[END], tuple[Path, list[Sent]]], tmp_path: Path, seed: int
) -> None:
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


def test_an_index_lost_by_rocketmq_in_a_crash_is_completed(tmp_path: Path) -> None:
    """After kill -9 RocketMQ deletes index files and indexes only new messages: it no longer finds older ones."""
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(500))
    store.close()
    for number in (0, 0):
        index_path(store.path, number).unlink()
    shutil.rmtree(store.path / "flintmq")
    (store.path / "checkpoint").unlink()
    store, report = reopen(store.path)
    assert "does not reach back" in report.rebuilt[0]
    assert_holds(store, sent)
    store.close()


def test_damage_does_not_spread(filled: Callable[[END], tuple[Path, list[Sent]]], tmp_path: Path) -> None:
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
