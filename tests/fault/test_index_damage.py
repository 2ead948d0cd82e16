"""Damage of the index: its files are rebuilt as they were."""

from __future__ import annotations

import dataclasses
import random
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from flintmq.broker.kernels import dispatch as kernel
from flintmq.protocol.storage.javahash import index_key_hash
from flintmq.protocol.storage.layout import INDEX_HEADER_BYTES, INDEX_SLOT_BYTES
from tests.fault.derived_files import Damage, End, Filled, assert_rebuilt, both_ends, close
from tests.store_tools import (
    SMALL,
    Message,
    append,
    assert_holds,
    copy_store,
    index_files,
    kill,
    open_store,
    overwrite,
    plain,
    put,
    reopen,
)

ENTRIES_AT = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * SMALL.index_slots
SOURCE = random.Random(5)


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
def test_a_damaged_index_is_rebuilt(filled: Filled, tmp_path: Path, end: End, damage: Damage) -> None:
    assert_rebuilt(filled(end), tmp_path, damage, reported=end is not kill)


@pytest.mark.parametrize(("damage", "kept"), [(newest_index_gone, 2), (middle_index_gone, 1)])
def test_the_index_files_before_a_missing_one_stay(filled: Filled, tmp_path: Path, damage: Damage, kept: int) -> None:
    source, sent = filled(close)
    path = copy_store(source, tmp_path / "store")
    names = [each.name for each in sorted((path / "index").iterdir())]
    assert len(names) == 3
    damage(path)
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
        held = index_path(path, 1).read_bytes()[at]
        overwrite(index_path(path, 1), at, bytes([held ^ 1 << SOURCE.randrange(8)]))

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
        index_path(store.path, number).unlink()
    shutil.rmtree(store.path / "flintmq")
    (store.path / "checkpoint").unlink()
    store, report = reopen(store.path)
    assert "does not reach back" in report.rebuilt[0]
    assert_holds(store, sent)
    store.close()
